package relay

import "github.com/sallyport-ai/sallyport/routing/kvevents"

// fault is why a mirror can no longer be believed; empty for none. It is told
// to subscribers as the reason of the stream's state.
type fault string

// What an engine can say that contradicts what it said before.
const (
	faultConflict fault = "hash_conflict"  // one hash, two contents
	faultCapacity fault = "over_capacity"  // more blocks than the engine has
	faultGroups   fault = "untyped_groups" // several cache groups and no telling which is which
)

// mirror is the cache of one engine rank as its events tell it. It is pure:
// no clock, no lock, no socket. The hub's lock guards it.
type mirror struct {
	cfg mirrorConfig
	forest
	groups     groups
	copies     [tiers]int
	cleared    bool              // since the last flush
	skipped    map[string]uint64 // events left out, by reason; for metrics
	saltHidden bool              // an event had no place for a salt
}

type mirrorConfig struct {
	blockSize int // tokens in a block that is reported; 0: that of the first event
	capacity  int // of the GPU tier, in blocks; 0 unknown
	maxNodes  int // bound on memory
	perEvent  bool
	once      bool // a block that is stored again is no further copy
	// resolve says whose salt this is.
	resolve func(salt string) (model, domain string, ok bool)
}

// defaultMaxNodes bounds a mirror of an engine that does not tell its capacity.
const defaultMaxNodes = 1 << 20

func newMirror(cfg mirrorConfig) *mirror {
	if cfg.maxNodes <= 0 {
		cfg.maxNodes = defaultMaxNodes
	}
	m := &mirror{cfg: cfg, skipped: make(map[string]uint64)}
	m.clear()
	m.cleared = false
	return m
}

// clear forgets everything.
func (m *mirror) clear() {
	m.forest.clear()
	m.copies, m.cleared = [tiers]int{}, true
}

// restart forgets everything and what was learned of the engine besides.
func (m *mirror) restart() {
	m.clear()
	m.groups = groups{}
}

// apply takes one batch. After a fault the mirror must be restarted.
func (m *mirror) apply(b *kvevents.Batch) fault {
	for i := range b.Events {
		ev := &b.Events[i]
		var f fault
		switch ev.Type {
		case kvevents.Stored:
			f = m.stored(ev)
		case kvevents.Removed:
			m.removed(ev)
		case kvevents.Cleared:
			m.clear()
		}
		if f != "" {
			return f
		}
	}
	m.count(b)
	return ""
}

// count notes what could not be decoded of a batch.
func (m *mirror) count(b *kvevents.Batch) {
	for _, s := range b.Skipped {
		m.skipped["undecoded_"+s.Reason.String()] += uint64(s.N)
	}
}

// stored takes a run of blocks.
func (m *mirror) stored(ev *kvevents.Event) fault {
	tier, ok, f := m.admit(ev)
	if !ok {
		return f
	}
	at, ok := m.place(ev)
	if !ok {
		return ""
	}
	for i, h := range ev.Hashes {
		n, f := m.find(at, h)
		switch {
		case f != "":
			return f
		case n == 0:
			if m.live >= m.cfg.maxNodes {
				m.skipped["memory_bound"]++
				return ""
			}
			n = m.add(at, h, ev, i)
		case !m.sameContent(n, ev, i):
			return faultConflict
		}
		if !m.cfg.once || m.nodes[n].copies[tier] == 0 {
			m.nodes[n].copies[tier]++
			m.copies[tier]++
		}
		m.touch(n)
		at = place{parent: n, space: m.nodes[n].space, adrift: m.nodes[n].adrift}
	}
	if m.cfg.capacity > 0 && m.copies[0] > m.cfg.capacity {
		return faultCapacity
	}
	return ""
}

// removed takes one copy of each block away.
func (m *mirror) removed(ev *kvevents.Event) {
	tier, known := tierOf[ev.Medium]
	if !known || ev.Locality == "REMOTE" || !m.groups.evicts(ev.Group) {
		return
	}
	for _, h := range ev.Hashes {
		for n := m.byHash[h]; n != 0; n = m.nodes[n].same {
			b := &m.nodes[n]
			if b.copies[tier] == 0 {
				continue
			}
			b.copies[tier]--
			m.copies[tier]--
			m.touch(n)
		}
	}
}
