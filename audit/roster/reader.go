package roster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

// Late is how long after a change it is in the log, at the latest: a [Reader] has
// to be given what was written so long after the time that it is for.
const Late = gatherMost + 30*time.Second

// Then is a replica as it was at a time.
type Then struct {
	Member
	Unsure bool // it changed several times around then, of which the log has the last
}

// Reader finds out which replicas there were when a record was written.
type Reader struct {
	at int64 // µs since the Unix epoch

	told    bool // by a full record, since the last start
	over    bool // the gateway was started again
	members map[int]Then
	whole   []Event // the parts of a full record so far
}

// NewReader is for the fleet at a time, in µs since the Unix epoch.
func NewReader(at int64) *Reader { return &Reader{at: at, members: make(map[int]Then)} }

// Add takes the next record of the log; after says whether it comes after the one
// that is asked about.
func (r *Reader) Add(rec *audit.Record, after bool) error {
	if rec.Kind == audit.KindBoot {
		if after {
			r.over = true
		} else {
			*r = *NewReader(r.at)
		}
	}
	if rec.Kind != audit.KindFleet || r.over || !Is(rec.Event) {
		return nil
	}
	var e Event
	if err := json.Unmarshal(rec.Event, &e); err != nil {
		return fmt.Errorf("fleet record: %w", err)
	}
	if e.Full {
		r.full(e)
	} else {
		r.change(e)
	}
	return nil
}

// full takes a part of a full record. It says which replicas there are only once
// all its parts are there; a part that is missing is written again.
func (r *Reader) full(e Event) {
	if e.Part == 1 {
		r.whole = nil
	}
	if e.Part != len(r.whole)+1 || e.Part > 1 && e.State != r.whole[0].State {
		r.whole = nil
		return
	}
	if r.whole = append(r.whole, e); e.Part < e.Parts {
		return
	}
	if e.At <= r.at {
		r.members, r.told = make(map[int]Then), true
	}
	for _, part := range r.whole {
		r.change(part)
	}
	r.whole = nil
}

// change takes what has changed.
func (r *Reader) change(e Event) {
	for _, m := range e.Replicas {
		before, ok := r.members[m.N]
		switch several := m.Changes > 1 && m.First <= r.at; {
		case m.At <= r.at:
			r.members[m.N] = Then{Member: m}
		case several && !ok:
			r.members[m.N] = Then{Member: m, Unsure: true}
		case several:
			before.Unsure = true
			r.members[m.N] = before
		}
	}
	for _, g := range e.Gone {
		if g.At <= r.at {
			delete(r.members, g.N)
		}
	}
}

// Members are the replicas there were, by number. Without a full record before it
// the log does not say which.
func (r *Reader) Members() (all []Then, told bool) {
	all = slices.Collect(maps.Values(r.members))
	slices.SortFunc(all, func(a, b Then) int { return cmp.Compare(a.N, b.N) })
	return all, r.told
}
