package relay

import (
	"slices"

	"github.com/sallyport-ai/sallyport/routing/kvevents"
)

// space is what blocks below one root have in common. A space that is not
// reported belongs to no tenant: its salt is not ours.
type space struct {
	key           spaceKey
	adapter       string
	model, domain string
	reported      bool
	roots         int // nodes that hold it directly below the root
}

// spaceKey is what tells spaces apart. An adapter that is known only by its
// number is not known, and not none either.
type spaceKey struct {
	salt, adapter string
	number        int64
}

func spaceKeyOf(ev *kvevents.Event) spaceKey {
	k := spaceKey{ev.Salt, ev.Adapter, kvevents.None}
	if ev.Adapter == "" {
		k.number = ev.LoRAID
	}
	return k
}

// block is one node of the forest. One whose copies are all gone stays while it
// has children, since they may become reachable again.
type block struct {
	hash   kvevents.Hash
	parent uint32 // 0 for a first block, and for a detached run's first
	child  uint32 // first child
	next   uint32 // siblings
	prev   uint32
	same   uint32 // next node with this hash, in another space
	space  *space // nil while detached
	copies [tiers]uint32
	told   uint8 // tiers that subscribers believe, a bit each
	want   uint8 // tiers that they should
	used   bool
	dirty  bool
	hidden bool // not to be taken for what its tokens say
	adrift bool // detached: it, or a block above it, waits for a parent
	tokens []uint32
	extra  []byte
}

// forest holds the blocks, each below the one that its prompt has before it.
// Number 0 is the sentinel above all first blocks.
type forest struct {
	nodes   []block
	free    []uint32
	byHash  map[kvevents.Hash]uint32
	waiting map[kvevents.Hash]uint32 // missing parent → first of the runs that wait for it
	missing map[uint32]kvevents.Hash // the inverse
	spaces  map[spaceKey]*space
	adrift  int      // detached nodes
	live    int      // nodes in use
	dirty   []uint32 // nodes of which what is told may have to change
}

// clear forgets everything.
func (f *forest) clear() {
	clear(f.nodes)
	f.nodes = append(f.nodes[:0], block{used: true, want: 1, told: 1})
	f.free = f.free[:0]
	f.byHash = make(map[kvevents.Hash]uint32)
	f.waiting = make(map[kvevents.Hash]uint32)
	f.missing = make(map[uint32]kvevents.Hash)
	f.spaces = make(map[spaceKey]*space)
	f.adrift, f.live = 0, 0
	f.dirty = f.dirty[:0]
}

func (f *forest) alloc() uint32 {
	f.live++
	if k := len(f.free); k > 0 {
		n := f.free[k-1]
		f.free = f.free[:k-1]
		return n
	}
	f.nodes = append(f.nodes, block{})
	return uint32(len(f.nodes) - 1)
}

// push puts n before head in a list of siblings.
func (f *forest) push(n, head uint32) {
	f.nodes[n].next, f.nodes[n].prev = head, 0
	if head != 0 {
		f.nodes[head].prev = n
	}
}

// adopt gives n the runs that were waiting for it.
func (f *forest) adopt(n uint32) {
	h := f.nodes[n].hash
	head, ok := f.waiting[h]
	if !ok {
		return
	}
	delete(f.waiting, h)
	last := head
	for c := head; c != 0; c = f.nodes[c].next {
		delete(f.missing, c)
		f.nodes[c].parent = n
		last = c
	}
	first := f.nodes[n].child
	f.nodes[last].next = first
	if first != 0 {
		f.nodes[first].prev = last
	}
	f.nodes[n].child = head
	if !f.nodes[n].adrift {
		f.land(n)
	}
}

// land gives everything below n its space.
func (f *forest) land(n uint32) {
	sp := f.nodes[n].space
	stack := []uint32{n}
	for len(stack) > 0 {
		p := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for c := f.nodes[p].child; c != 0; c = f.nodes[c].next {
			b := &f.nodes[c]
			if !b.adrift {
				continue
			}
			b.adrift, b.space = false, sp
			f.adrift--
			if !sp.reported {
				b.tokens = nil
			}
			f.touch(c)
			stack = append(stack, c)
		}
	}
}

// touch notes that what is told of n may have to change.
func (f *forest) touch(n uint32) {
	if b := &f.nodes[n]; !b.dirty {
		b.dirty = true
		f.dirty = append(f.dirty, n)
	}
}

// orphansPct is the share of blocks that wait for a parent.
func (f *forest) orphansPct() uint32 {
	if f.live == 0 {
		return 0
	}
	return uint32(100 * f.adrift / f.live)
}

// sweep frees the dirty nodes that have no copies and no children, and those
// above them that lose their last child and have no copies either. It runs
// after their removal was told, so a number never means two blocks between two
// flushes.
func (f *forest) sweep() {
	freed := len(f.free)
	for _, n := range f.dirty {
		f.nodes[n].dirty = false
		for n != 0 && f.nodes[n].used && f.nodes[n].child == 0 && f.nodes[n].copies == [tiers]uint32{} {
			up := f.nodes[n].parent
			f.release(n)
			n = up
		}
	}
	f.dirty = f.dirty[:0]
	// Ascending numbers make long runs when they are used again.
	fresh := f.free[freed:]
	slices.Sort(fresh)
	slices.Reverse(fresh)
}

// release unlinks a node without children from everything.
func (f *forest) release(n uint32) {
	b := &f.nodes[n]
	if b.next != 0 {
		f.nodes[b.next].prev = b.prev
	}
	missing, waits := f.missing[n]
	switch {
	case b.prev != 0:
		f.nodes[b.prev].next = b.next
	case waits && b.next == 0:
		delete(f.waiting, missing)
	case waits:
		f.waiting[missing] = b.next
	default:
		f.nodes[b.parent].child = b.next
	}
	delete(f.missing, n)
	f.unhash(n)
	if b.adrift {
		f.adrift--
	} else if b.parent == 0 {
		if b.space.roots--; b.space.roots == 0 {
			delete(f.spaces, b.space.key)
		}
	}
	f.nodes[n] = block{}
	f.live--
	f.free = append(f.free, n)
}

func (f *forest) unhash(n uint32) {
	h := f.nodes[n].hash
	if f.byHash[h] == n {
		if same := f.nodes[n].same; same != 0 {
			f.byHash[h] = same
		} else {
			delete(f.byHash, h)
		}
		return
	}
	for k := f.byHash[h]; k != 0; k = f.nodes[k].same {
		if f.nodes[k].same == n {
			f.nodes[k].same = f.nodes[n].same
			return
		}
	}
}
