// Package roster keeps in a gateway's log which replicas it knows, under numbers,
// and finds out from the log which it knew at a time: so that whoever reads a
// decision can tell what fleet it saw, from that log alone.
//
// Start at [Tracker], which makes the records, and [Reader], which takes them.
//
// # Records
//
// They are of kind fleet, and their event is an [Event]. The first after each
// start, and one an hour, are full: they name every replica. The others name
// those that have changed. What does not fit into one record follows in the next,
// as a further part. Numbers are given out in order, begin anew with each start of
// the gateway, and never come to mean another replica before that.
//
// A replica that keeps changing does not fill the log: the more often there are
// changes the longer they are gathered, up to a minute. Its last state is always
// written, and how often it changed before.
package roster

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Action is the action of the event of these records. Fleet records of other
// actions are about doubts.
const Action = "members"

var prefix = []byte(`{"action":"` + Action + `",`)

// Is says whether the event of a fleet record is one of these.
func Is(event []byte) bool { return bytes.HasPrefix(event, prefix) }

// Event is the event of a record.
type Event struct {
	Action   string   `json:"action"`
	State    uint64   `json:"state"` // counts what was written of the fleet, from 1 at each start
	Full     bool     `json:"full"`
	Part     int      `json:"part"` // of Parts, from 1
	Parts    int      `json:"parts"`
	At       int64    `json:"at"` // the fleet as it was seen then, µs since the Unix epoch
	Replicas []Member `json:"replicas,omitempty"`
	Gone     []Gone   `json:"gone,omitempty"` // replicas that there are no more
}

// Gone is a replica that was taken away.
type Gone struct {
	N  int   `json:"n"`
	At int64 `json:"at"` // when it was missed, µs since the Unix epoch
}

// Member is a replica. Without a Replica nobody has proven yet who is at Address.
type Member struct {
	N        int    `json:"n"`
	Replica  string `json:"replica,omitempty"` // SPIFFE ID
	Address  string `json:"address,omitempty"` // given while there is no SPIFFE ID
	Pool     string `json:"pool"`
	Region   string `json:"region,omitempty"`
	Epoch    string `json:"epoch,omitempty"`    // its relay process
	Excluded string `json:"excluded,omitempty"` // why it takes no requests of any kind
	At       int64  `json:"at"`                 // since when it is as it is, µs since the Unix epoch
	// Changes says how often it changed since it was written last, if more than
	// once; then the first change was at First.
	Changes int   `json:"changes,omitempty"`
	First   int64 `json:"first,omitempty"`
}

// Seen is a replica as the gateway sees it now.
type Seen struct {
	Key      string // where it is looked for, which tells it from others
	Replica  string
	Address  string
	Pool     string
	Region   string
	Epoch    string
	Excluded string
}

// known is a replica that has its number.
type known struct {
	Member
	seen    Seen
	changes int // since it was written
	present bool
	gone    int64 // when it was missed, µs since the Unix epoch
}

// How long changes are gathered, and how often everything is written.
const (
	gatherLeast = time.Second
	gatherMost  = time.Minute
	fullEvery   = time.Hour
)

// maxEvent bounds an event, in bytes. A record has to fit into 64 KiB, and to get
// through sinks that take less.
const maxEvent = 16 << 10

// Tracker finds out what has changed. The zero value has seen nothing; one
// goroutine at a time uses it.
type Tracker struct {
	byKey  map[string]*known
	next   int
	state  uint64
	gone   []*known // not written yet
	full   time.Time
	wrote  time.Time
	gather time.Duration
}

// See takes in what there is at a time.
func (t *Tracker) See(now time.Time, all []Seen) {
	if t.byKey == nil {
		t.byKey = make(map[string]*known)
	}
	for _, k := range t.byKey {
		k.present = false
	}
	for _, s := range all {
		k := t.byKey[s.Key]
		if k == nil {
			k = &known{Member: Member{N: t.next}}
			t.next++
			t.byKey[s.Key] = k
		}
		if k.present = true; k.seen != s || k.At == 0 {
			k.take(now, s)
		}
	}
	for key, k := range t.byKey {
		if !k.present {
			delete(t.byKey, key)
			k.gone = now.UnixMicro()
			t.gone = append(t.gone, k)
		}
	}
}

func (k *known) take(now time.Time, s Seen) {
	k.seen = s
	k.Replica, k.Address, k.Pool, k.Region, k.Epoch, k.Excluded = s.Replica, "", s.Pool, s.Region, s.Epoch, s.Excluded
	if s.Replica == "" {
		k.Address = s.Address
	}
	k.At = now.UnixMicro()
	if k.changes++; k.changes == 1 {
		k.First = k.At
	}
}

// Due says whether there is something to be written now.
func (t *Tracker) Due(now time.Time) bool {
	return t.full.IsZero() || now.Sub(t.full) >= fullEvery || t.changed() && now.Sub(t.wrote) >= t.gather
}

// changed says whether anything has not been written.
func (t *Tracker) changed() bool {
	if len(t.gone) > 0 {
		return true
	}
	for _, k := range t.byKey {
		if k.changes > 0 {
			return true
		}
	}
	return false
}

// Events are what has to be written, none if nothing has. Once they are, the
// caller says [Tracker.Written]; otherwise they are due again.
func (t *Tracker) Events(now time.Time) ([]Event, error) {
	full := t.full.IsZero() || now.Sub(t.full) >= fullEvery
	if !full && !t.changed() {
		return nil, nil
	}
	var members []Member
	var gone []Gone
	for _, k := range t.byKey {
		if full || k.changes > 0 {
			members = append(members, k.member())
		}
	}
	for _, k := range t.gone {
		if k.changes > 0 { // it came and went
			members = append(members, k.member())
		}
		gone = append(gone, Gone{k.N, k.gone})
	}
	slices.SortFunc(members, func(a, b Member) int { return cmp.Compare(a.N, b.N) })
	t.state++
	events, err := split(members, gone)
	for i := range events {
		e := &events[i]
		e.Action, e.State, e.Full, e.Part, e.Parts, e.At = Action, t.state, full, i+1, len(events), now.UnixMicro()
	}
	return events, err
}

// member is a replica as it is written.
func (k *known) member() Member {
	m := k.Member
	if m.Changes = k.changes; k.changes < 2 {
		m.Changes, m.First = 0, 0
	}
	return m
}

// split puts members and numbers into as many events as they need, at least one.
func split(members []Member, gone []Gone) ([]Event, error) {
	events, size := make([]Event, 1), 0
	room := func(of any) (*Event, error) {
		b, err := json.Marshal(of)
		if err != nil {
			return nil, fmt.Errorf("fleet record: %w", err)
		}
		if size += len(b) + 1; size > maxEvent {
			events, size = append(events, Event{}), len(b)+1
		}
		return &events[len(events)-1], nil
	}
	for _, m := range members {
		e, err := room(m)
		if err != nil {
			return nil, err
		}
		e.Replicas = append(e.Replicas, m)
	}
	for _, g := range gone {
		e, err := room(g)
		if err != nil {
			return nil, err
		}
		e.Gone = append(e.Gone, g)
	}
	return events, nil
}

// Written says that the events of now are in the log. Changes that follow soon are
// gathered for twice as long as those before.
func (t *Tracker) Written(now time.Time) {
	if t.full.IsZero() || now.Sub(t.full) >= fullEvery {
		t.full = now
	}
	if t.gather *= 2; t.gather == 0 || now.Sub(t.wrote) > t.gather+gatherLeast {
		t.gather = gatherLeast
	}
	t.gather = min(t.gather, gatherMost)
	t.wrote, t.gone = now, nil
	for _, k := range t.byKey {
		k.changes = 0
	}
}
