package relay

import "slices"

// change is what subscribers are told of one rank, in the order of its fields.
type change struct {
	rank    int
	cleared bool
	removed [tiers][]uint32
	stored  []stored // parents first
	state   *streamState
}

// stored is a node that entered a tier. Its slices are never written again.
type stored struct {
	node, parent uint32
	tier         uint8
	space        *space
	tokens       []uint32
	extra        []byte
}

// size is what the change costs a queue.
func (c *change) size() int {
	n := 1 + len(c.stored)
	for _, r := range c.removed {
		n += len(r)
	}
	return n
}

// flush returns the net change since the last flush and forgets nodes that are
// gone. Only blocks that are reachable from their prompt's beginning through
// resident blocks are told: no other can be a hit. So a subscriber never needs
// a parent that it was not told of. The result is nil if nothing changed.
func (m *mirror) flush() *change {
	if len(m.dirty) == 0 && !m.cleared {
		return nil
	}
	c := &change{cleared: m.cleared}
	changed := m.settle()
	for _, n := range changed {
		b := &m.nodes[n]
		for t := range uint8(tiers) {
			if b.told&^b.want&(1<<t) != 0 {
				c.removed[t] = append(c.removed[t], n)
			}
		}
	}
	c.stored = m.stores(changed)
	for _, n := range changed {
		m.nodes[n].told = m.nodes[n].want
	}
	m.sweep()
	m.cleared = false
	if c.size() == 1 && !c.cleared {
		return nil
	}
	return c
}

// settle decides anew what should be told of the dirty nodes, and of whatever
// that uncovers or covers. It returns the nodes for which told is wrong now.
func (m *mirror) settle() []uint32 {
	work := slices.Clone(m.dirty)
	var changed []uint32
	for len(work) > 0 {
		n := work[len(work)-1]
		work = work[:len(work)-1]
		b := &m.nodes[n]
		want := m.wanted(b)
		if want == b.want {
			continue
		}
		changed = append(changed, n)
		toggled := (want == 0) != (b.want == 0)
		b.want = want
		for k := b.child; toggled && k != 0; k = m.nodes[k].next {
			work = append(work, k)
		}
	}
	slices.Sort(changed)
	changed = slices.Compact(changed)
	return slices.DeleteFunc(changed, func(n uint32) bool { return m.nodes[n].want == m.nodes[n].told })
}

// wanted is the tiers to tell of b.
func (m *mirror) wanted(b *block) (bits uint8) {
	if b.adrift || b.hidden || !b.space.reported || m.nodes[b.parent].want == 0 {
		return 0
	}
	for t, n := range b.copies {
		if n > 0 {
			bits |= 1 << t
		}
	}
	return bits
}

// stores lists the tiers that the changed nodes entered. A node comes after
// its parent; nodes of one prompt come together.
func (m *mirror) stores(changed []uint32) (out []stored) {
	pending := make(map[uint32]bool, len(changed))
	for _, n := range changed {
		if b := &m.nodes[n]; b.want&^b.told != 0 {
			pending[n] = true
		}
	}
	var more []stored // a node's second tier and third, once all nodes are known
	var stack []uint32
	for _, n := range changed {
		if !pending[n] || pending[m.nodes[n].parent] {
			continue
		}
		stack = append(stack, n)
		for len(stack) > 0 {
			k := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			out, more = m.tell(k, m.nodes[k].want&^m.nodes[k].told, out, more)
			for c := m.nodes[k].child; c != 0; c = m.nodes[c].next {
				if pending[c] {
					stack = append(stack, c)
				}
			}
		}
	}
	return append(out, more...)
}

// tell appends node n in its lowest tier of bits to first and in the others to
// rest.
func (m *mirror) tell(n uint32, bits uint8, first, rest []stored) (_, _ []stored) {
	b := &m.nodes[n]
	s := stored{node: n, parent: b.parent, space: b.space, tokens: b.tokens, extra: b.extra}
	to := &first
	for t := range uint8(tiers) {
		if bits&(1<<t) != 0 {
			s.tier = t
			*to = append(*to, s)
			to = &rest
		}
	}
	return first, rest
}

// snapshot lists everything that subscribers have been told. Call it after
// flush.
func (m *mirror) snapshot() []stored {
	out := make([]stored, 0, m.live)
	var more []stored
	stack := []uint32{0}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if n != 0 {
			out, more = m.tell(n, m.nodes[n].told, out, more)
		}
		for c := m.nodes[n].child; c != 0; c = m.nodes[c].next {
			if m.nodes[c].told != 0 {
				stack = append(stack, c)
			}
		}
	}
	return append(out, more...)
}
