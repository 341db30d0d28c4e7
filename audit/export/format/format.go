// Package format writes audit records in the forms that SIEMs read.
//
// Start at [Find], which returns a [Format] by its name, and [NewEvent], which
// makes of an entry of the log what formats write. A new format is one entry in
// the table [All].
//
// # What every form has
//
// Each event carries where its record stands in the log (origin and index),
// the RFC 6962 hash of the exact leaf, and the index and hash of the record
// that the same sink was given before it. So a copy that lacks, repeats or
// alters a record shows it, even where a sink is given only some of them. Each
// batch ends with an [Anchor], which holds a signed checkpoint of the log.
//
// Records hold no prompt, completion or tool-argument text, and a format adds
// nothing that is not in the record.
package format

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/roster"
)

// Event is one record on its way out.
type Event struct {
	Index  uint64
	Leaf   []byte    // as stored
	Hash   tlog.Hash // RFC 6962 hash of the leaf
	Record *audit.Record

	Previous *Link // what the sink was given before; nil for the first
	Replayed bool  // the sink may have it already
	Raw      bool  // the form is to hold the leaf too
}

// Link names a record by its index and leaf hash.
type Link struct {
	Index uint64    `json:"index"`
	Hash  tlog.Hash `json:"hash"` // base64
}

// LeafHash is the RFC 6962 hash of a leaf.
func LeafHash(leaf []byte) tlog.Hash { return tlog.RecordHash(leaf) }

// NewEvent decodes a leaf, but for what no format writes: the policy input and
// the candidates of a placement are left out of the event's record.
func NewEvent(index uint64, leaf []byte) (*Event, error) {
	r, ok := audit.DecodeOutline(leaf)
	if !ok {
		r = new(audit.Record)
		if err := json.Unmarshal(leaf, r, lenient); err != nil {
			return nil, fmt.Errorf("decode record %d: %w", index, err)
		}
		if r.Input = nil; r.Placement != nil {
			r.Placement.Candidates = nil
		}
	}
	return &Event{Index: index, Leaf: leaf, Hash: LeafHash(leaf), Record: r}, nil
}

// lenient takes duplicate names and invalid UTF-8: they are for the log not to
// take, and what it holds goes out.
var lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// Anchor closes a batch: it says what the batch held and what the log's signed
// head was then. A receiver that keeps anchors holds what the log cannot take
// back.
type Anchor struct {
	Origin     string
	Sink       string
	Time       time.Time
	First      uint64    // of the log, the records First ≤ index < Next
	Next       uint64    // were looked at,
	Records    int       // and this many of them were for the sink
	Digest     tlog.Hash // SHA-256 of their leaf hashes, one after the other
	Checkpoint string    // signed note; empty if the log has published none yet
}

// UID names the anchor: the same each time that its batch is sent.
func (a *Anchor) UID() string { return fmt.Sprintf("%s/%d-%d", a.Origin, a.First, a.Next) }

// Format is one way to write events and anchors.
type Format struct {
	Name string
	// ContentType is the media type of one event.
	ContentType string
	event       func(e *Event, cut cut) ([]byte, error)
	anchor      func(a *Anchor) ([]byte, error)
}

// All are the formats there are.
func All() []Format {
	return []Format{
		{Name: "record", ContentType: "application/json", event: recordEvent, anchor: recordAnchor},
		{Name: "ocsf", ContentType: "application/json", event: ocsfEvent, anchor: ocsfAnchor},
		{Name: "ecs", ContentType: "application/json", event: ecsEvent, anchor: ecsAnchor},
		{Name: "cef", ContentType: "text/plain; charset=utf-8", event: cefEvent, anchor: cefAnchor},
	}
}

// Find returns a format by name; the empty name is record.
func Find(name string) (Format, error) {
	var names []string
	for _, f := range All() {
		if f.Name == name || name == "" {
			return f, nil
		}
		names = append(names, f.Name)
	}
	return Format{}, fmt.Errorf("no format %q; there are %s", name, strings.Join(names, ", "))
}

// cut says how much of an event is left out so that it fits.
type cut int

const (
	whole       cut = iota
	withoutLeaf     // no copy of the leaf
	withoutDetail
	bare // who, what and where in the log
)

// Event writes an event in at most limit bytes, one line without its end. What
// is longer loses its least needed parts and says so; it keeps its place in the
// log and its hash, by which the log has the rest. A limit of 0 is none.
func (f Format) Event(e *Event, limit int) ([]byte, error) {
	for c := whole; ; c++ {
		b, err := f.event(e, c)
		if err != nil {
			return nil, fmt.Errorf("write record %d as %s: %w", e.Index, f.Name, err)
		}
		if limit == 0 || len(b) <= limit || c == bare {
			return b, nil
		}
	}
}

// Anchor writes an anchor.
func (f Format) Anchor(a *Anchor) ([]byte, error) {
	b, err := f.anchor(a)
	if err != nil {
		return nil, fmt.Errorf("write anchor as %s: %w", f.Name, err)
	}
	return b, nil
}

// verdict is what the record says came of it.
type verdict struct {
	allowed bool // a decision that let the request through
	denied  bool
	ok      bool // nothing went wrong
	failed  bool
}

func (e *Event) verdict() verdict {
	r := e.Record
	switch r.Kind {
	case audit.KindDecision:
		allowed := r.Status == audit.StatusAllowed
		return verdict{allowed: allowed, denied: !allowed, ok: allowed, failed: !allowed}
	case audit.KindOutcome:
		ok := r.Status == audit.StatusOK
		return verdict{ok: ok, failed: !ok}
	default:
		return verdict{ok: true}
	}
}

// Severity is 1 informational, 2 low, 3 medium or 4 high, as OCSF has them.
func (e *Event) Severity() int {
	r := e.Record
	switch {
	case r.Placement != nil && (r.Placement.Excluded["svid_mismatch"] > 0 || r.Placement.Excluded["no_svid"] > 0):
		return 4
	case r.Kind == audit.KindGap, r.Kind == audit.KindPrune:
		return 4
	case r.Class != nil && r.Class.Mismatch, r.Kind == audit.KindFleet && !roster.Is(r.Event), r.Kind == audit.KindKeyRotation, r.Status == audit.StatusUnknownCrash:
		return 3
	case e.verdict().failed, r.Kind == audit.KindDenialSummary:
		return 2
	default:
		return 1
	}
}

// summary says in a sentence what happened. It holds nothing that a caller
// chose freely but the names of models.
func (e *Event) summary() string {
	r := e.Record
	var b strings.Builder
	b.WriteString(strings.ReplaceAll(string(r.Kind), "_", " "))
	if r.Status != "" {
		b.WriteString(" " + r.Status)
	}
	if r.Request != nil {
		b.WriteString(": " + r.Request.Operation)
		if r.Request.Model != "" {
			b.WriteString(" of " + r.Request.Model)
		}
	}
	if r.Caller != nil {
		b.WriteString(" for tenant " + r.Caller.Tenant)
	}
	if r.Reason != "" {
		b.WriteString(" (" + r.Reason + ")")
	}
	return b.String()
}

// UID names the event: the same each time that it is sent, to whichever sink.
func (e *Event) UID() string {
	return e.Record.Log.Origin + "/" + strconv.FormatUint(e.Index, 10)
}

// Time is when the record was appended.
func (e *Event) Time() time.Time { return time.UnixMicro(e.Record.Time.Wall).UTC() }

// replica is where the request went or was to go.
func (e *Event) replica() (id, pool string) {
	r := e.Record
	if r.Placement != nil {
		id, pool = r.Placement.Replica, r.Placement.Pool
	}
	if r.Outcome != nil {
		id = r.Outcome.Replica
	}
	return id, pool
}

// build is the program that wrote the record, as far as it says.
func (e *Event) build() string {
	if e.Record.Gateway == nil {
		return ""
	}
	return e.Record.Gateway.Build
}
