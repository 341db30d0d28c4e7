package kvindex

import (
	"errors"
	"fmt"
	"math"
)

// Errors of a publisher that breaks the protocol. Its stream cannot be trusted
// from there on.
var (
	ErrNode   = errors.New("node number out of bounds")
	ErrReused = errors.New("node number reused while in use")
	ErrTwice  = errors.New("block has another node number")
	ErrParent = errors.New("parent is of another namespace")
	ErrTier   = errors.New("tier out of bounds")
)

// MaxTiers is how many tiers a block can be held on.
const MaxTiers = 8

// entry is one of the publisher's nodes: where its block stands in the forest.
// It is there as long as the block is on a tier or has an entry below it.
type entry struct {
	node   uint32 // with off, a name for shard.resolve; 0: no such entry
	parent uint32 // the publisher's number; 0 at the beginning of a prompt
	kids   uint32 // entries whose parent this is
	ns     uint16 // index in Stream.spaces
	off    uint8
	tiers  uint8 // bit per tier
}

const (
	pageEntries = 1024
	entryBytes  = 16
	pageBytes   = pageEntries*entryBytes + 8
)

type page struct {
	entries [pageEntries]entry
	live    int
}

// space is a namespace in which a stream has entries.
type space struct {
	ns   uint64
	live int
}

// Stream is what one publisher (a replica, or one rank of it) says it holds.
// All calls for a stream come from one goroutine, which owns every field; the
// forest it writes to is locked by shard. It can only change its own coverage.
type Stream struct {
	index   *Index
	replica uint32
	budget  int    // blocks on tier 0
	limit   uint32 // node numbers are below it

	pages   []*page
	spaces  []space
	byNS    map[uint64]uint16
	freeNS  []uint16
	entries int
	gpu     int // entries on tier 0
	refused uint64
	over    uint64
}

// Expect says that the publisher has so many blocks on its GPU, more perhaps
// than the stream may hold. It bounds node numbers and not what is stored:
// slower tiers are larger than the GPU, 16 times is generous, and a table of
// more than 4 Mi times that would be large even with nothing in it.
func (st *Stream) Expect(blocks int) {
	const most = 4 << 20
	st.limit = max(st.limit, uint32(16*min(max(blocks, 0), most)+65536))
}

// Stats is what a stream holds.
type Stats struct {
	Blocks  int    // on tier 0
	Nodes   int    // publisher's nodes known, on any tier or kept for those below
	Refused uint64 // blocks not stored for want of budget or parent, ever
	Over    uint64 // times that a store went beyond the stream's own budget, ever
}

// Stats returns the stream's counts. Like every method, for its goroutine only.
func (st *Stream) Stats() Stats {
	return Stats{Blocks: st.gpu, Nodes: st.entries, Refused: st.refused, Over: st.over}
}

// Begin starts over: what the stream held is forgotten, and what it stores is
// invisible until Commit.
func (st *Stream) Begin() {
	st.Suspend()
	st.drop()
}

// Commit makes everything stored visible to Match, at once.
func (st *Stream) Commit() { st.index.show(st.replica, true) }

// Suspend takes the stream out of Match but keeps what it holds for Held.
func (st *Stream) Suspend() { st.index.show(st.replica, false) }

// Clear forgets everything the stream holds.
func (st *Stream) Clear() {
	visible := st.index.visible(st.replica)
	st.Begin()
	if visible {
		st.Commit()
	}
}

// Close forgets everything and frees the stream's ordinal.
func (st *Stream) Close() {
	st.Begin()
	st.index.free(st.replica)
}

// Store says that the blocks with these ids, consecutive from below parent (0:
// from the beginning of a prompt), are held on a tier; block i is the
// publisher's node first+i. Blocks beyond a budget, or below an unknown parent,
// are left out and counted: that loses credit, and never gives any. An error
// says that the publisher broke the protocol.
func (st *Stream) Store(ns uint64, parent, first uint32, ids []uint64, tier int) error {
	if tier < 0 || tier >= MaxTiers {
		return fmt.Errorf("store on tier %d: %w", tier, ErrTier)
	}
	if first == 0 || uint64(first)+uint64(len(ids)) > uint64(st.limit) || parent >= st.limit {
		return fmt.Errorf("store %d blocks at node %d below %d: %w", len(ids), first, parent, ErrNode)
	}
	const chunk = 1024 // readers wait no longer than this takes
	for len(ids) > 0 {
		n := min(chunk, len(ids))
		stored, err := st.storeRun(ns, parent, first, ids[:n], tier)
		if err != nil {
			return fmt.Errorf("store %d blocks at node %d below %d: %w", len(ids), first, parent, err)
		}
		if stored < n {
			st.refused += uint64(len(ids) - stored)
			return nil
		}
		parent, first, ids = first+uint32(n)-1, first+uint32(n), ids[n:]
	}
	return nil
}

func (st *Stream) storeRun(ns uint64, parent, first uint32, ids []uint64, tier int) (int, error) {
	if parent != 0 && st.entry(parent) == nil {
		return 0, nil
	}
	s := st.index.shard(ns)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !st.index.room(s) {
		return 0, nil
	}
	space, ok := st.space(ns)
	if !ok {
		return 0, nil
	}
	c := cursor{s: s, replica: st.replica}
	if parent == 0 {
		c.enter(s.root(ns), 0)
	} else {
		e := st.entry(parent)
		if e.ns != space {
			st.leave(space)
			return 0, ErrParent
		}
		i, off := s.resolve(e.node, e.off)
		c.enter(i, off+1)
	}
	n, err := st.walk(&c, space, parent, first, ids, tier)
	c.flush()
	s.reap(c.node) // a root without children, where nothing was stored
	st.leave(space)
	return n, err
}

// walk stores ids from the cursor on and returns how many it stored.
func (st *Stream) walk(c *cursor, space uint16, parent, first uint32, ids []uint64, tier int) (int, error) {
	for done := 0; done < len(ids); {
		at := first + uint32(done)
		known := st.entry(at)
		if known != nil && (known.ns != space || known.parent != parent || c.s.idAt(known) != ids[done]) {
			return done, ErrReused
		}
		if !st.affords(known, tier) {
			st.over++
			return done, nil
		}
		if !st.index.room(c.s) {
			return done, nil
		}
		n := 1
		switch {
		case !c.step(ids[done]):
			n = c.append(st.fresh(at, ids[done:], tier))
		case c.held() && (known == nil || known.tiers == 0):
			// The removal of one number would take the block from the other, which
			// would go on naming what may be freed.
			return done, ErrTwice
		}
		for k := range n {
			st.hold(c, space, parent, at+uint32(k), c.off-uint8(n-1-k), tier)
			parent = at + uint32(k)
		}
		done += n
	}
	return len(ids), nil
}

// affords says whether putting the block of e (nil: a new one) on that tier is
// within the stream's budget.
func (st *Stream) affords(e *entry, tier int) bool {
	return tier != 0 || e != nil && e.tiers&1 == 1 || st.gpu < st.budget
}

// fresh is the beginning of ids, for nodes from at, that can be stored at once:
// what fits the budget and has no entry yet. It is at least one block.
func (st *Stream) fresh(at uint32, ids []uint64, tier int) []uint64 {
	n := len(ids)
	if tier == 0 {
		n = min(n, st.budget-st.gpu)
	}
	for k := 1; k < n; k++ {
		if st.entry(at+uint32(k)) != nil {
			return ids[:k]
		}
	}
	return ids[:n]
}

// hold notes that node, which stands at block off (from 1) of the cursor's
// run, is on a tier.
func (st *Stream) hold(c *cursor, space uint16, parent, node uint32, off uint8, tier int) {
	e := st.entry(node)
	if e == nil {
		e = st.create(node)
		*e = entry{node: c.node, off: off - 1, parent: parent, ns: space}
		st.spaces[space].live++
		if p := st.entry(parent); p != nil {
			p.kids++
		}
	}
	if tier == 0 && e.tiers&1 == 0 {
		st.gpu++
	}
	if tier > 0 {
		c.s.lows++
	}
	e.tiers |= 1 << tier
	c.set(off-1, e.tiers)
}

// Remove says that nodes left a tier. Nodes that are not there are ignored.
func (st *Stream) Remove(nodes []uint32, tier int) error {
	if tier < 0 || tier >= MaxTiers {
		return fmt.Errorf("remove from tier %d: %w", tier, ErrTier)
	}
	var c cursor
	defer c.close()
	for i, n := range nodes {
		if n == 0 || n >= st.limit {
			return fmt.Errorf("remove node %d: %w", n, ErrNode)
		}
		if i%1024 == 1023 {
			c.close() // let readers in
		}
		e := st.entry(n)
		if e == nil || e.tiers>>tier&1 == 0 {
			continue
		}
		if tier == 0 {
			st.gpu--
		}
		e.tiers &^= 1 << tier
		st.lift(&c, e)
		st.forget(n)
	}
	return nil
}

// lift moves the cursor to e's block and sets there which tiers are left.
func (st *Stream) lift(c *cursor, e *entry) {
	s := st.index.shard(st.spaces[e.ns].ns)
	if c.s != s {
		c.close()
		s.mu.Lock()
		*c = cursor{s: s, replica: st.replica, locked: true}
	}
	i, off := s.resolve(e.node, e.off)
	if i != c.node {
		c.flush()
		if c.node != 0 {
			s.reap(c.node)
		}
		c.enter(i, 0)
	}
	c.set(off, e.tiers)
}

// forget drops the entry of n, and those above, that are on no tier and have
// none below.
func (st *Stream) forget(n uint32) {
	for n != 0 {
		e := st.entry(n)
		if e.tiers != 0 || e.kids != 0 {
			return
		}
		parent := e.parent
		st.discard(n, e)
		if parent == 0 {
			return
		}
		st.entry(parent).kids--
		n = parent
	}
}

func (st *Stream) discard(n uint32, e *entry) {
	st.spaces[e.ns].live--
	st.leave(e.ns)
	*e = entry{}
	st.entries--
	p := st.pages[n/pageEntries]
	if p.live--; p.live == 0 {
		st.pages[n/pageEntries] = nil
		st.index.meter.add(-pageBytes)
	}
}

// drop forgets every entry and clears the stream's coverage.
func (st *Stream) drop() {
	var c cursor
	defer c.close()
	for i, p := range st.pages {
		if p == nil {
			continue
		}
		for k := range p.entries {
			e := &p.entries[k]
			if e.node != 0 && e.tiers != 0 {
				e.tiers = 0
				st.lift(&c, e)
			}
		}
		c.close() // let readers in
		st.pages[i] = nil
		st.index.meter.add(-pageBytes)
	}
	st.pages, st.spaces, st.freeNS = nil, nil, nil
	clear(st.byNS)
	st.entries, st.gpu = 0, 0
}

// entry returns the entry of the publisher's node n, or nil.
func (st *Stream) entry(n uint32) *entry {
	if i := n / pageEntries; int(i) < len(st.pages) && st.pages[i] != nil {
		if e := &st.pages[i].entries[n%pageEntries]; e.node != 0 {
			return e
		}
	}
	return nil
}

func (st *Stream) create(n uint32) *entry {
	i := int(n / pageEntries)
	for i >= len(st.pages) {
		st.pages = append(st.pages, nil)
	}
	if st.pages[i] == nil {
		st.pages[i] = new(page)
		st.index.meter.add(pageBytes)
	}
	st.pages[i].live++
	st.entries++
	return &st.pages[i].entries[n%pageEntries]
}

// space returns the index of ns, or false where a stream has too many.
func (st *Stream) space(ns uint64) (uint16, bool) {
	if i, ok := st.byNS[ns]; ok {
		return i, true
	}
	var i uint16
	switch k := len(st.freeNS); {
	case k > 0:
		i, st.freeNS = st.freeNS[k-1], st.freeNS[:k-1]
	case len(st.spaces) > math.MaxUint16:
		return 0, false
	default:
		i = uint16(len(st.spaces))
		st.spaces = append(st.spaces, space{})
	}
	st.spaces[i] = space{ns: ns}
	st.byNS[ns] = i
	return i, true
}

// leave frees the namespace's index once nothing is left in it.
func (st *Stream) leave(i uint16) {
	if st.spaces[i].live == 0 {
		delete(st.byNS, st.spaces[i].ns)
		st.freeNS = append(st.freeNS, i)
	}
}
