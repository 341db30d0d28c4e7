package kvindex

import "math/bits"

// cover says which replicas hold which blocks of one node's run, on one kind
// of tier. A replica is either a full holder or a partial one, never both.
type cover struct {
	one   uint32 // the only full holder, plus one; 0 where n is not 1
	set   uint32 // bitset of the full holders where n is 2 or more
	part  uint32 // list of the partial holders
	n     uint16 // full holders
	class uint8  // of set
}

// partial is a replica that holds some blocks of a run, by bit.
type partial struct {
	mask    uint64
	replica uint32
	next    uint32
}

// ones is the mask of a run of n blocks, 1 to 64.
func ones(n uint8) uint64 { return ^uint64(0) >> (64 - n) }

// full says whether replica holds the whole run.
func (s *shard) full(c *cover, replica uint32) bool {
	if c.n < 2 {
		return c.one == replica+1
	}
	set := s.words.at(c.class, c.set)
	w := int(replica / 64)
	return w < len(set) && set[w]>>(replica%64)&1 == 1
}

// mask is the blocks that replica holds of a run of n.
func (s *shard) mask(c *cover, replica uint32, n uint8) uint64 {
	if n == 0 {
		return 0
	}
	if s.full(c, replica) {
		return ones(n)
	}
	for i := c.part; i != 0; i = s.parts.at(i).next {
		if p := s.parts.at(i); p.replica == replica {
			return p.mask
		}
	}
	return 0
}

// setMask makes mask what replica holds of a run of n.
func (s *shard) setMask(c *cover, replica uint32, n uint8, mask uint64) {
	if mask == ones(n) {
		s.setPartial(c, replica, 0)
		s.addFull(c, replica)
		return
	}
	s.removeFull(c, replica)
	s.setPartial(c, replica, mask)
}

func (s *shard) setPartial(c *cover, replica uint32, mask uint64) {
	at := &c.part
	for *at != 0 {
		i := *at
		p := s.parts.at(i)
		if p.replica != replica {
			at = &p.next
			continue
		}
		p.mask = mask
		if mask == 0 {
			*at = p.next
			s.parts.release(i)
		}
		return
	}
	if mask != 0 {
		i := s.parts.alloc(s.meter)
		*s.parts.at(i) = partial{mask: mask, replica: replica, next: c.part}
		c.part = i
	}
}

func (s *shard) addFull(c *cover, replica uint32) {
	switch {
	case s.full(c, replica):
		return
	case c.n == 0:
		c.one = replica + 1
	default:
		top := replica
		if c.n == 1 {
			top = max(top, c.one-1)
		}
		s.widen(c, top)
		set := s.words.at(c.class, c.set)
		if c.n == 1 {
			set[(c.one-1)/64] |= 1 << ((c.one - 1) % 64)
			c.one = 0
		}
		set[replica/64] |= 1 << (replica % 64)
	}
	c.n++
}

// widen makes room for replica in the bitset.
func (s *shard) widen(c *cover, replica uint32) {
	class := classFor(int(replica/64) + 1)
	if c.set != 0 && class <= c.class {
		return
	}
	slot := s.words.alloc(s.meter, class)
	if c.set != 0 {
		copy(s.words.at(class, slot), s.words.at(c.class, c.set))
		s.words.release(c.class, c.set)
	}
	c.set, c.class = slot, class
}

func (s *shard) removeFull(c *cover, replica uint32) {
	if !s.full(c, replica) {
		return
	}
	c.n--
	if c.n == 0 {
		c.one = 0
		return
	}
	set := s.words.at(c.class, c.set)
	set[replica/64] &^= 1 << (replica % 64)
	if c.n > 1 {
		return
	}
	for w, x := range set {
		if x != 0 {
			c.one = uint32(w*64+bits.TrailingZeros64(x)) + 1
		}
	}
	s.words.release(c.class, c.set)
	c.set = 0
}

// sole says whether nobody but replica holds anything.
func (s *shard) sole(c *cover, replica uint32) bool {
	if c.n > 1 || c.n == 1 && c.one != replica+1 {
		return false
	}
	return c.part == 0 || s.parts.at(c.part).replica == replica && s.parts.at(c.part).next == 0
}

// top is how many blocks of a run of n reach up to the last one that anybody
// holds.
func (s *shard) top(c *cover, n uint8) uint8 {
	if c.n > 0 {
		return n
	}
	var all uint64
	for i := c.part; i != 0; i = s.parts.at(i).next {
		all |= s.parts.at(i).mask
	}
	return uint8(bits.Len64(all))
}

// promote turns partial holders of all n blocks into full ones, after the run
// has become shorter.
func (s *shard) promote(c *cover, n uint8) {
	at := &c.part
	for *at != 0 {
		i := *at
		p := s.parts.at(i)
		if p.mask != ones(n) {
			at = &p.next
			continue
		}
		*at = p.next
		replica := p.replica
		s.parts.release(i)
		s.addFull(c, replica)
	}
}

// cut splits what c says of a run of n at k: c keeps the first k blocks, the
// result has the others.
func (s *shard) cut(c *cover, k, n uint8) cover {
	rest := *c
	rest.part = 0
	if c.n > 1 {
		rest.set = s.words.alloc(s.meter, c.class)
		copy(s.words.at(c.class, rest.set), s.words.at(c.class, c.set))
	}
	list := c.part
	c.part = 0
	for list != 0 {
		p := *s.parts.at(list)
		s.parts.release(list)
		list = p.next
		if low := p.mask & ones(k); low != 0 {
			s.setMask(c, p.replica, k, low)
		}
		if high := p.mask >> k; high != 0 {
			s.setMask(&rest, p.replica, n-k, high)
		}
	}
	return rest
}
