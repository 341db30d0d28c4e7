package kvindex

// maxRun is how many blocks a node's run has at most: coverage of a run is a
// word with a bit per block.
const maxRun = 64

// node is a run of consecutive blocks of one namespace, and who holds them. A
// node in which the last block is held by nobody, and that has no children, is
// cut back or freed.
type node struct {
	run    uint32 // ids, in words of class
	parent uint32 // or an ancestor's name for it, see shard.parentOf
	cont   uint32 // the child that took the end of the run when it was split
	kids   uint32 // key of its children in shard.children; 0 while it has none
	nkids  uint32
	hint   uint32 // one of the children, tried first; 0: none
	start  uint32 // blocks before the run
	n      uint8  // blocks in the run; 0 for a root
	class  uint8
	gpu    cover // held on tier 0
	low    cover // held, but only on other tiers
}

const nodeBytes, partialBytes = 64, 16

// shard is the forests of the namespaces that hash to it.
type shard struct {
	meter *meter
	seed  [2]uint64

	// mu guards all below: a stream's writer changes it, any number of readers
	// match. A reader allocates nothing and writes nothing.
	mu       fairLock
	roots    map[uint64]uint32 // namespace to root node
	names    map[uint32]uint64 // root node to namespace
	nodes    arena[node]
	parts    arena[partial]
	words    words
	children children
	kids     []uint32 // free kids keys
	nextKids uint32
	lows     int // blocks ever stored on a lower tier since the shard was empty
}

func newShard(m *meter, seed [2]uint64) *shard {
	s := &shard{meter: m, seed: seed, roots: make(map[uint64]uint32), names: make(map[uint32]uint64)}
	s.nodes.size, s.nodes.link = nodeBytes, func(n *node) *uint32 { return &n.parent }
	s.parts.size, s.parts.link = partialBytes, func(p *partial) *uint32 { return &p.next }
	s.children.seed = seed
	return s
}

// stepBytes is an upper bound of what one step of a store allocates in a
// shard and a stream, except for the growth of the children table.
const stepBytes = 2*nodeBytes*slabItems + 2*partialBytes*slabItems + 6*slabWords*8 + 2*pageBytes + rootBytes

// rootBytes is about what a root costs in maps.
const rootBytes = 128

// step is how many bytes the next step may allocate.
func (s *shard) step() int64 {
	n := int64(stepBytes)
	if s.children.n+2 > len(s.children.slots)*3/4 {
		n += int64(max(minChildSlots, 2*len(s.children.slots))) * childSlotBytes
	}
	return n
}

func (s *shard) ids(x *node) []uint64 { return s.words.at(x.class, x.run)[:x.n] }

// resolve follows a name (a node, and an offset in its run as it was when the
// name was given) to the node that has the block now.
//
// A name stays good because a split leaves the node its beginning and gives
// the end to cont, and because nobody has a name for a block unless it holds
// the block or one below it: so the nodes on the way cannot be freed.
func (s *shard) resolve(i uint32, off uint8) (uint32, uint8) {
	for {
		x := s.nodes.at(i)
		if off < x.n || x.cont == 0 {
			return i, off
		}
		i, off = x.cont, off-x.n
	}
}

// parentOf is the node whose run ends where x begins. x.parent may name a node
// that has been split since.
func (s *shard) parentOf(x *node) uint32 {
	i := x.parent
	for {
		p := s.nodes.at(i)
		if x.start <= p.start+uint32(p.n) {
			x.parent = i
			return i
		}
		i = p.cont
	}
}

// child returns the child of x whose run begins with id, or 0.
func (s *shard) child(x *node, id uint64) uint32 {
	if x.hint != 0 {
		if h := s.nodes.at(x.hint); s.words.at(h.class, h.run)[0] == id {
			return x.hint
		}
		if x.nkids == 1 {
			return 0
		}
	}
	if x.nkids == 0 {
		return 0
	}
	return s.children.find(x.kids, id)
}

// root returns the root of ns, made where there was none.
func (s *shard) root(ns uint64) uint32 {
	if i, ok := s.roots[ns]; ok {
		return i
	}
	i := s.nodes.alloc(s.meter)
	s.roots[ns], s.names[i] = i, ns
	s.meter.add(rootBytes)
	return i
}

// adopt makes i, whose run begins with id, a child of p.
func (s *shard) adopt(p *node, id uint64, i uint32) {
	if p.nkids == 0 {
		if k := len(s.kids); k > 0 {
			p.kids, s.kids = s.kids[k-1], s.kids[:k-1]
		} else {
			s.nextKids++
			p.kids = s.nextKids
		}
		p.hint = i
	}
	p.nkids++
	s.children.add(s.meter, p.kids, id, i)
}

// grow appends ids to the run of x.
func (s *shard) grow(x *node, ids []uint64) {
	n := int(x.n) + len(ids)
	s.fit(x, n)
	copy(s.words.at(x.class, x.run)[x.n:], ids)
	x.n = uint8(n)
}

// fit gives x a run with room for n ids, and little more.
func (s *shard) fit(x *node, n int) {
	class := classFor(n)
	if x.run != 0 && class == x.class {
		return
	}
	slot := s.words.alloc(s.meter, class)
	if x.run != 0 {
		copy(s.words.at(class, slot), s.ids(x)[:min(int(x.n), n)])
		s.words.release(x.class, x.run)
	}
	x.run, x.class = slot, class
}

// sprout makes a new child of p with a run of ids.
func (s *shard) sprout(parent uint32, ids []uint64) uint32 {
	i := s.nodes.alloc(s.meter)
	x, p := s.nodes.at(i), s.nodes.at(parent)
	x.parent, x.start = parent, p.start+uint32(p.n)
	s.grow(x, ids)
	s.adopt(p, ids[0], i)
	return i
}

// split cuts the run of node i at k: i keeps k blocks, a new child gets the
// rest and all that was below.
func (s *shard) split(i uint32, k uint8) {
	j := s.nodes.alloc(s.meter)
	x, y := s.nodes.at(i), s.nodes.at(j)
	n := x.n
	y.parent, y.start = i, x.start+uint32(k)
	y.kids, y.nkids, y.hint, y.cont = x.kids, x.nkids, x.hint, x.cont
	s.grow(y, s.ids(x)[k:])
	y.gpu, y.low = s.cut(&x.gpu, k, n), s.cut(&x.low, k, n)
	x.kids, x.nkids, x.hint, x.cont = 0, 0, 0, j
	s.fit(x, int(k))
	x.n = k
	s.adopt(x, s.ids(y)[0], j)
}

// reap cuts back or frees node i, and what frees with it, if nobody holds its
// end.
func (s *shard) reap(i uint32) {
	for {
		x := s.nodes.at(i)
		if x.nkids > 0 {
			return
		}
		if ns, isRoot := s.names[i]; isRoot && x.n == 0 {
			delete(s.roots, ns)
			delete(s.names, i)
			s.meter.add(-rootBytes)
			s.nodes.release(i)
			s.emptied()
			return
		}
		top := max(s.top(&x.gpu, x.n), s.top(&x.low, x.n))
		if top == x.n {
			return
		}
		if top > 0 {
			s.fit(x, int(top))
			x.n = top
			s.promote(&x.gpu, top)
			s.promote(&x.low, top)
			return
		}
		up := s.parentOf(x)
		p := s.nodes.at(up)
		s.children.remove(p.kids, s.ids(x)[0])
		s.words.release(x.class, x.run)
		s.nodes.release(i)
		p.nkids--
		if p.hint == i {
			p.hint = 0
		}
		if p.cont == i {
			p.cont = 0
		}
		if p.nkids == 0 {
			s.kids = append(s.kids, p.kids)
			p.kids = 0
		}
		i = up
	}
}

// emptied gives the memory back once nothing is left.
func (s *shard) emptied() {
	if s.nodes.live > 0 {
		return
	}
	s.nodes.drop(s.meter)
	s.parts.drop(s.meter)
	s.words.drop(s.meter)
	s.children.drop(s.meter)
	s.kids, s.nextKids, s.lows = nil, 0, 0
}
