package kvindex

import "math/bits"

// children finds a node's child by the child's first id: an open-addressing
// table over all nodes of a shard, keyed by (the parent's kids key, id). The
// secret seeds keep a publisher, who may send any ids it likes, from making
// them collide here.
type children struct {
	slots []childSlot // a power of two; linear probing
	n     int
	seed  [2]uint64
}

type childSlot struct {
	id   uint64
	kids uint32
	node uint32 // 0: empty
}

const (
	childSlotBytes = 16
	minChildSlots  = 64
)

func (c *children) home(kids uint32, id uint64) int {
	hi, lo := bits.Mul64(id^c.seed[0], uint64(kids)*0x9e3779b97f4a7c15^c.seed[1])
	return int((hi ^ lo) & uint64(len(c.slots)-1))
}

func (c *children) find(kids uint32, id uint64) uint32 {
	if len(c.slots) == 0 {
		return 0
	}
	mask := len(c.slots) - 1
	for i := c.home(kids, id); ; i = (i + 1) & mask {
		s := &c.slots[i]
		if s.node == 0 || s.id == id && s.kids == kids {
			return s.node
		}
	}
}

// full says whether the next add grows the table.
func (c *children) full() bool { return c.n+1 > len(c.slots)*3/4 }

func (c *children) add(m *meter, kids uint32, id uint64, node uint32) {
	if c.full() {
		old := c.slots
		c.slots = make([]childSlot, max(minChildSlots, 2*len(old)))
		m.add(int64(len(c.slots)-len(old)) * childSlotBytes)
		for _, s := range old {
			if s.node != 0 {
				c.put(s)
			}
		}
	}
	c.put(childSlot{id: id, kids: kids, node: node})
	c.n++
}

func (c *children) put(s childSlot) {
	mask := len(c.slots) - 1
	i := c.home(s.kids, s.id)
	for c.slots[i].node != 0 {
		i = (i + 1) & mask
	}
	c.slots[i] = s
}

// remove deletes an entry that is there, and moves back what probed past it.
func (c *children) remove(kids uint32, id uint64) {
	mask := len(c.slots) - 1
	i := c.home(kids, id)
	for c.slots[i].id != id || c.slots[i].kids != kids {
		i = (i + 1) & mask
	}
	for j := (i + 1) & mask; c.slots[j].node != 0; j = (j + 1) & mask {
		home := c.home(c.slots[j].kids, c.slots[j].id)
		if (j-home)&mask >= (j-i)&mask {
			c.slots[i] = c.slots[j]
			i = j
		}
	}
	c.slots[i] = childSlot{}
	c.n--
}

func (c *children) drop(m *meter) {
	m.add(-int64(len(c.slots)) * childSlotBytes)
	c.slots, c.n = nil, 0
}
