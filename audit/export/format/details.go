package format

import (
	"encoding/json"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/sallyport-ai/sallyport/audit"
)

// details is what of a record has no field of its own in OCSF or ECS. Its
// fields are named as in the record. What is missing are the policy input and
// the candidates of a placement, for which the log is the place.
type details struct {
	Kind     audit.Kind `json:"kind"`
	ID       string     `json:"id"`
	Index    uint64     `json:"index"`
	Boot     string     `json:"boot"`
	LeafHash tlog.Hash  `json:"leaf_hash"` // base64
	Previous *Link      `json:"previous,omitempty"`
	Replayed bool       `json:"replayed,omitempty"`

	Attempt    int              `json:"attempt,omitempty"`
	Status     string           `json:"status,omitempty"`
	Reason     string           `json:"reason,omitempty"`
	HTTP       int              `json:"http,omitempty"`
	Durability audit.Durability `json:"durability,omitempty"`
	Gateway    *audit.Gateway   `json:"gateway,omitempty"`

	Caller    *audit.Caller       `json:"caller,omitempty"`
	Class     *audit.Class        `json:"class,omitempty"`
	Label     *audit.Label        `json:"label,omitempty"`
	Request   *audit.Request      `json:"request,omitempty"`
	Policy    *audit.Policy       `json:"policy,omitempty"`
	Decision  json.RawMessage     `json:"decision,omitempty"`
	Placement *audit.Placement    `json:"placement,omitempty"`
	Outcome   *audit.Outcome      `json:"outcome,omitempty"`
	Denials   []audit.DenialCount `json:"denials,omitempty"`
	Event     json.RawMessage     `json:"event,omitempty"`
	Detail    string              `json:"detail,omitempty"`
}

func (e *Event) details(c cut) *details {
	r := e.Record
	d := &details{
		Kind: r.Kind, ID: r.ID, Index: e.Index, Boot: r.Log.Boot, LeafHash: e.Hash, Previous: e.Previous, Replayed: e.Replayed,
		Attempt: r.Attempt, Status: r.Status, Reason: r.Reason, HTTP: r.HTTP, Durability: r.Durability, Gateway: r.Gateway,
	}
	if c >= bare {
		return d
	}
	d.Class, d.Label = r.Class, r.Label
	if c >= withoutDetail {
		return d
	}
	d.Caller, d.Request, d.Policy, d.Decision = r.Caller, r.Request, r.Policy, r.Decision
	d.Outcome, d.Denials, d.Event, d.Detail = r.Outcome, r.Denials, r.Event, r.Detail
	if r.Placement != nil {
		p := *r.Placement
		p.Candidates = nil
		d.Placement = &p
	}
	return d
}
