package relay

import (
	"slices"

	"github.com/sallyport-ai/sallyport/routing/kvevents"
)

// place is where a block hangs.
type place struct {
	parent uint32
	space  *space        // nil if adrift
	adrift bool          // parent waits, or is itself missing
	wait   kvevents.Hash // the missing parent, of the first block of a run adrift
}

// place finds where the run's first block hangs.
func (m *mirror) place(ev *kvevents.Event) (place, bool) {
	if ev.Parent.IsZero() {
		return place{space: m.spaceOf(ev)}, true
	}
	if m.cfg.perEvent {
		sp := m.spaces[spaceKeyOf(ev)]
		for n := m.byHash[ev.Parent]; n != 0; n = m.nodes[n].same {
			if sp != nil && m.nodes[n].space == sp {
				return place{parent: n, space: sp}, true
			}
		}
		// The hash does not tell spaces apart, so the run could only wait
		// for a parent that may be another tenant's.
		m.skipped["orphan"]++
		return place{}, false
	}
	if n := m.byHash[ev.Parent]; n != 0 {
		return place{parent: n, space: m.nodes[n].space, adrift: m.nodes[n].adrift}, true
	}
	if m.adrift >= m.cfg.maxNodes/4 {
		m.skipped["orphan_bound"]++
		return place{}, false
	}
	return place{adrift: true, wait: ev.Parent}, true
}

// spaceOf is the space of a first block; add remembers it.
func (m *mirror) spaceOf(ev *kvevents.Event) *space {
	key := spaceKeyOf(ev)
	if sp := m.spaces[key]; sp != nil {
		return sp
	}
	sp := &space{key: key, adapter: ev.Adapter}
	if ev.Salt != "" && key.number == kvevents.None {
		sp.model, sp.domain, sp.reported = m.cfg.resolve(ev.Salt)
	}
	return sp
}

// find returns the node of hash h that hangs at this place, or 0.
func (m *mirror) find(at place, h kvevents.Hash) (uint32, fault) {
	for n := m.byHash[h]; n != 0; n = m.nodes[n].same {
		b := &m.nodes[n]
		switch {
		case b.parent == at.parent && b.space == at.space && b.adrift == at.adrift && m.missing[n] == at.wait:
			return n, ""
		case !m.cfg.perEvent:
			// The hash covers the whole prefix, so it cannot hang elsewhere.
			return 0, faultConflict
		}
	}
	return 0, ""
}

// sameContent reports whether a block that is stored again is what it was.
func (m *mirror) sameContent(n uint32, ev *kvevents.Event, i int) bool {
	b := &m.nodes[n]
	return b.tokens == nil || slices.Equal(b.tokens, ev.BlockTokens(i))
}

// add makes a node for block i of the event.
func (m *mirror) add(at place, h kvevents.Hash, ev *kvevents.Event, i int) uint32 {
	n := m.alloc()
	extra, known := canonicalExtra(ev.BlockExtra(i))
	b := &m.nodes[n]
	*b = block{
		used: true, hash: h, parent: at.parent, space: at.space, adrift: at.adrift,
		same: m.byHash[h], extra: extra,
		hidden: !known || ev.BlockSize != m.cfg.blockSize || (at.space != nil && ev.Adapter != at.space.adapter),
	}
	if at.space == nil || at.space.reported {
		b.tokens = slices.Clone(ev.BlockTokens(i)) // the decoder reuses its memory
	}
	m.byHash[h] = n
	switch {
	case !at.wait.IsZero():
		m.missing[n] = at.wait
		m.push(n, m.waiting[at.wait])
		m.waiting[at.wait] = n
	default:
		m.push(n, m.nodes[at.parent].child)
		m.nodes[at.parent].child = n
	}
	if at.parent == 0 && at.space != nil {
		m.spaces[at.space.key] = at.space
		at.space.roots++
	}
	if at.adrift {
		m.adrift++
	}
	m.adopt(n)
	return n
}
