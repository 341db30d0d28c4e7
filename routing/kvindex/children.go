package kvindex

import "math/bits"

// children finds a node's child by the child's first id: an open-addressing
// table over all nodes of a shard, keyed by (the parent's kids key, id). The
// secret seeds keep a publisher, who may send any ids it likes, from making
// them collide here.
//
// A table that is full is replaced by one twice as large, into which a few
// entries move with each one that is added: whoever waits for the shard's lock
// must not wait for millions of them.
type children struct {
	slots []childSlot // a power of two; linear probing
	n     int
	seed  [2]uint64

	old   []childSlot // the table before; entries below moved are in slots as well
	moved int
}

type childSlot struct {
	id   uint64
	kids uint32
	node uint32 // 0: empty
}

const (
	childSlotBytes = 16
	minChildSlots  = 64
	// moveSlots is how many slots of an old table move with an addition: enough
	// to be done long before the next table is full.
	moveSlots = 8
	// goneChild is in an old table in place of a node that was removed.
	goneChild = 1<<32 - 1
)

func (c *children) home(kids uint32, id uint64, size int) int {
	hi, lo := bits.Mul64(id^c.seed[0], uint64(kids)*0x9e3779b97f4a7c15^c.seed[1])
	return int((hi ^ lo) & uint64(size-1))
}

func (c *children) find(kids uint32, id uint64) uint32 {
	if s := c.slot(c.slots, kids, id); s != nil {
		return s.node
	}
	if s := c.slot(c.old, kids, id); s != nil && s.node != goneChild {
		return s.node
	}
	return 0
}

// slot is where a table has the entry, or nil.
func (c *children) slot(table []childSlot, kids uint32, id uint64) *childSlot {
	if len(table) == 0 {
		return nil
	}
	mask := len(table) - 1
	for i := c.home(kids, id, len(table)); ; i = (i + 1) & mask {
		s := &table[i]
		if s.node == 0 {
			return nil
		}
		if s.id == id && s.kids == kids {
			return s
		}
	}
}

// full says whether the next add grows the table.
func (c *children) full() bool { return c.n+1 > len(c.slots)*3/4 }

func (c *children) add(m *meter, kids uint32, id uint64, node uint32) {
	if c.full() {
		c.move(m, len(c.old))
		c.old, c.moved = c.slots, 0
		c.slots = make([]childSlot, max(minChildSlots, 2*len(c.old)))
		m.add(int64(len(c.slots)) * childSlotBytes)
	}
	c.move(m, moveSlots)
	c.put(childSlot{id: id, kids: kids, node: node})
	c.n++
}

// move copies the entries of some more slots of the old table, and frees it
// after the last.
func (c *children) move(m *meter, n int) {
	if c.old == nil {
		return
	}
	end := min(c.moved+n, len(c.old))
	for _, s := range c.old[c.moved:end] {
		if s.node != 0 && s.node != goneChild {
			c.put(s)
		}
	}
	if c.moved = end; end == len(c.old) {
		m.add(-int64(len(c.old)) * childSlotBytes)
		c.old = nil
	}
}

func (c *children) put(s childSlot) {
	mask := len(c.slots) - 1
	i := c.home(s.kids, s.id, len(c.slots))
	for c.slots[i].node != 0 {
		i = (i + 1) & mask
	}
	c.slots[i] = s
}

// remove deletes an entry that is there. In the old table its place stays
// taken, since others were probed past it.
func (c *children) remove(kids uint32, id uint64) {
	c.n--
	if s := c.slot(c.old, kids, id); s != nil {
		s.node = goneChild
	}
	mask := len(c.slots) - 1
	i := c.home(kids, id, len(c.slots))
	for c.slots[i].id != id || c.slots[i].kids != kids {
		if c.slots[i].node == 0 {
			return // it had not moved yet
		}
		i = (i + 1) & mask
	}
	if c.slots[i].node == 0 {
		return
	}
	for j := (i + 1) & mask; c.slots[j].node != 0; j = (j + 1) & mask { // what probed past it moves back
		home := c.home(c.slots[j].kids, c.slots[j].id, len(c.slots))
		if (j-home)&mask >= (j-i)&mask {
			c.slots[i] = c.slots[j]
			i = j
		}
	}
	c.slots[i] = childSlot{}
}

func (c *children) drop(m *meter) {
	m.add(-int64(len(c.slots)+len(c.old)) * childSlotBytes)
	c.slots, c.n, c.old, c.moved = nil, 0, nil, 0
}
