package kvindex

// cursor is a place in a forest, and what one replica holds of the node there.
// What it holds is read on entering a node and written back by flush.
type cursor struct {
	s       *shard
	replica uint32
	locked  bool // close unlocks the shard

	node  uint32
	off   uint8 // blocks of the run that are behind us
	gpu   uint64
	low   uint64
	dirty bool
}

func (c *cursor) enter(node uint32, off uint8) {
	x := c.s.nodes.at(node)
	c.node, c.off, c.dirty = node, off, false
	c.gpu = c.s.mask(&x.gpu, c.replica, x.n)
	c.low = c.s.mask(&x.low, c.replica, x.n)
}

func (c *cursor) flush() {
	if !c.dirty {
		return
	}
	x := c.s.nodes.at(c.node)
	c.s.setMask(&x.gpu, c.replica, x.n, c.gpu)
	c.s.setMask(&x.low, c.replica, x.n, c.low)
	c.dirty = false
}

// set says on which tiers block off of the run is.
func (c *cursor) set(off, tiers uint8) {
	bit := uint64(1) << off
	c.gpu &^= bit
	c.low &^= bit
	switch {
	case tiers&1 == 1:
		c.gpu |= bit
	case tiers != 0:
		c.low |= bit
	}
	c.dirty = true
}

// held says whether the replica holds the block that was last moved past.
func (c *cursor) held() bool { return (c.gpu|c.low)>>(c.off-1)&1 == 1 }

// step moves past the block with that id, if the forest has it there.
func (c *cursor) step(id uint64) bool {
	x := c.s.nodes.at(c.node)
	if c.off < x.n {
		if c.s.ids(x)[c.off] != id {
			return false
		}
		c.off++
		return true
	}
	next := c.s.child(x, id)
	if next == 0 {
		return false
	}
	c.flush()
	c.enter(next, 1)
	return true
}

// append makes blocks with the first of these ids below the place where step
// failed, moves past them, and returns how many: in the same run if that is
// nobody else's and has no children, else in a new node.
func (c *cursor) append(ids []uint64) int {
	s := c.s
	if x := s.nodes.at(c.node); c.off < x.n {
		c.flush()
		s.split(c.node, c.off)
		c.enter(c.node, c.off)
	}
	x := s.nodes.at(c.node)
	if x.n > 0 && x.n < maxRun && x.nkids == 0 && s.sole(&x.gpu, c.replica) && s.sole(&x.low, c.replica) {
		n := min(len(ids), maxRun-int(x.n))
		s.grow(x, ids[:n])
		c.off, c.dirty = x.n, true
		return n
	}
	c.flush()
	n := min(len(ids), maxRun)
	c.enter(s.sprout(c.node, ids[:n]), uint8(n))
	return n
}

// close writes back, frees what is no longer held and unlocks.
func (c *cursor) close() {
	if !c.locked {
		return
	}
	c.flush()
	if c.node != 0 {
		c.s.reap(c.node)
	}
	c.s.mu.Unlock()
	*c = cursor{}
}

// idAt is the id of the block that e stands for.
func (s *shard) idAt(e *entry) uint64 {
	i, off := s.resolve(e.node, e.off)
	return s.ids(s.nodes.at(i))[off]
}
