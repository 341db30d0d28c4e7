package format

import (
	"golang.org/x/mod/sumdb/tlog"

	"github.com/sallyport-ai/sallyport/audit"
)

// stub stands for a leaf that is longer than a sink takes.
type stub struct {
	V         int          `json:"v"`
	Kind      audit.Kind   `json:"kind"`
	ID        string       `json:"id"`
	Log       audit.LogRef `json:"log"`
	Time      audit.Time   `json:"time"`
	Truncated bool         `json:"truncated"`
	LeafHash  tlog.Hash    `json:"leaf_hash"`
	LeafBytes int          `json:"leaf_bytes"`
}

// recordEvent is the leaf itself, byte for byte. It has its index and origin
// in its log field.
func recordEvent(e *Event, c cut) ([]byte, error) {
	if c < bare {
		return e.Leaf, nil
	}
	r := e.Record
	return encode(stub{
		V: r.V, Kind: r.Kind, ID: r.ID, Log: r.Log, Time: r.Time,
		Truncated: true, LeafHash: e.Hash, LeafBytes: len(e.Leaf),
	})
}

// anchorFields is an anchor as JSON.
type anchorFields struct {
	Kind       string    `json:"kind"` // anchor
	Origin     string    `json:"origin"`
	Sink       string    `json:"sink"`
	Time       int64     `json:"time"` // µs since the Unix epoch
	First      uint64    `json:"first"`
	Next       uint64    `json:"next"`
	Records    int       `json:"records"`
	Digest     tlog.Hash `json:"digest"`
	Checkpoint string    `json:"checkpoint,omitempty"`
}

func (a *Anchor) fields() anchorFields {
	return anchorFields{
		Kind: "anchor", Origin: a.Origin, Sink: a.Sink, Time: a.Time.UnixMicro(),
		First: a.First, Next: a.Next, Records: a.Records, Digest: a.Digest, Checkpoint: a.Checkpoint,
	}
}

func recordAnchor(a *Anchor) ([]byte, error) { return encode(a.fields()) }
