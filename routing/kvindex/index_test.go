package kvindex

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// fatal is what a test and a rapid check have in common.
type fatal interface{ Fatal(...any) }

// publisher is the reference: what one replica holds, as a plain trie with the
// node numbers that a relay would give.
type publisher struct {
	st    *Stream
	nodes map[uint32]*pubNode
	kids  map[pubKey]uint32
	free  []uint32
	next  uint32
}

type pubKey struct {
	ns     uint64
	parent uint32
	id     uint64
}

type pubNode struct {
	key   pubKey
	tiers uint8
	kids  int
}

func newPublisher(t fatal, ix *Index, replica, budget int) *publisher {
	st, err := ix.Stream(replica, budget)
	if err != nil {
		t.Fatal(err)
	}
	st.Begin()
	st.Commit()
	return &publisher{st: st, nodes: map[uint32]*pubNode{}, kids: map[pubKey]uint32{}, next: 1}
}

// store puts a path below parent on a tier, told in runs of at most most
// blocks whose numbers are consecutive.
func (p *publisher) store(t fatal, ns uint64, parent uint32, ids []uint64, tier, most int) {
	numbers := make([]uint32, 0, len(ids))
	at := parent
	for _, id := range ids {
		key := pubKey{ns, at, id}
		n, ok := p.kids[key]
		if !ok {
			n = p.number()
			p.kids[key] = n
			p.nodes[n] = &pubNode{key: key}
			if at != 0 {
				p.nodes[at].kids++
			}
		}
		p.nodes[n].tiers |= 1 << tier
		numbers = append(numbers, n)
		at = n
	}
	for len(numbers) > 0 {
		k := 1
		for k < len(numbers) && k < most && numbers[k] == numbers[k-1]+1 {
			k++
		}
		if err := p.st.Store(ns, parent, numbers[0], ids[:k], tier); err != nil {
			t.Fatal(err)
		}
		parent, numbers, ids = numbers[k-1], numbers[k:], ids[k:]
	}
}

func (p *publisher) number() uint32 {
	if k := len(p.free); k > 0 {
		n := p.free[k-1]
		p.free = p.free[:k-1]
		return n
	}
	p.next++
	return p.next - 1
}

func (p *publisher) remove(t fatal, tier int, nodes ...uint32) {
	if err := p.st.Remove(nodes, tier); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if x := p.nodes[n]; x != nil {
			x.tiers &^= 1 << tier
			p.release(n)
		}
	}
}

func (p *publisher) release(n uint32) {
	for n != 0 {
		x := p.nodes[n]
		if x.tiers != 0 || x.kids != 0 {
			return
		}
		delete(p.nodes, n)
		delete(p.kids, x.key)
		p.free = append(p.free, n)
		if n = x.key.parent; n != 0 {
			p.nodes[n].kids--
		}
	}
}

func (p *publisher) clear() {
	p.st.Clear()
	p.forget()
}

func (p *publisher) forget() {
	clear(p.nodes)
	clear(p.kids)
	p.free, p.next = nil, 1
}

// depth is the consecutive blocks of ids on tiers within mask.
func (p *publisher) depth(ns uint64, ids []uint64, tiers uint8) int {
	at := uint32(0)
	for i, id := range ids {
		n, ok := p.kids[pubKey{ns, at, id}]
		if !ok || p.nodes[n].tiers&tiers == 0 {
			return i
		}
		at = n
	}
	return len(ids)
}

func (p *publisher) numbers() []uint32 { return slices.Sorted(maps.Keys(p.nodes)) }

// compare says where the index differs from the reference.
func compare(ix *Index, pubs map[int]*publisher, ns uint64, ids []uint64) error {
	want := map[int]Match{}
	for r, p := range pubs {
		if m := (Match{r, p.depth(ns, ids, 1), p.depth(ns, ids, 0xff)}); m.Any > 0 {
			want[r] = m
		}
	}
	got := map[int]Match{}
	for _, m := range ix.Match(nil, ns, ids) {
		if _, dup := got[m.Replica]; dup {
			return fmt.Errorf("replica %d twice", m.Replica)
		}
		got[m.Replica] = m
	}
	if !maps.Equal(got, want) {
		return fmt.Errorf("ns %d ids %v: got %v, want %v", ns, ids, got, want)
	}
	return nil
}

// check verifies the structure that the comments of node and cover promise.
func check(ix *Index) error {
	for _, s := range ix.shards {
		live, edges := 0, 0
		for _, root := range s.roots {
			if s.nodes.at(root).nkids == 0 {
				return fmt.Errorf("root %d without children", root)
			}
		}
		for _, c := range s.children.slots {
			if c.node == 0 {
				continue
			}
			edges++
			x := s.nodes.at(c.node)
			p := s.nodes.at(s.parentOf(x))
			switch {
			case x.n < 1 || x.n > maxRun:
				return fmt.Errorf("node %d has a run of %d", c.node, x.n)
			case p.kids != c.kids || s.child(p, c.id) != c.node || s.ids(x)[0] != c.id:
				return fmt.Errorf("node %d is not its parent's child", c.node)
			case x.start != p.start+uint32(p.n):
				return fmt.Errorf("node %d begins at %d", c.node, x.start)
			case x.nkids == 0 && max(s.top(&x.gpu, x.n), s.top(&x.low, x.n)) != x.n:
				return fmt.Errorf("node %d: nobody holds the end of a leaf", c.node)
			}
			if err := checkCover(s, &x.gpu, x.n); err != nil {
				return fmt.Errorf("node %d: %w", c.node, err)
			}
		}
		live = edges + len(s.roots)
		if edges != s.children.n || live != s.nodes.live {
			return fmt.Errorf("%d nodes live, %d reachable, %d edges", s.nodes.live, live, s.children.n)
		}
	}
	return nil
}

func checkCover(s *shard, c *cover, n uint8) error {
	if c.n > 1 {
		full := 0
		for _, w := range s.words.at(c.class, c.set) {
			full += bits.OnesCount64(w)
		}
		if full != int(c.n) {
			return fmt.Errorf("%d full holders, %d counted", full, c.n)
		}
	}
	for i := c.part; i != 0; i = s.parts.at(i).next {
		p := s.parts.at(i)
		if p.mask == 0 || p.mask&^ones(n) != 0 || p.mask == ones(n) || s.full(c, p.replica) {
			return fmt.Errorf("partial holder %d of %d blocks with %#x", p.replica, n, p.mask)
		}
	}
	return nil
}

func newIndex(t fatal, c Config) *Index {
	ix, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return ix
}

// The claims together: never over-credit and complete after each change;
// isolation of replicas and of namespaces; any cut of a batch; eviction from
// the middle and return; duplicates; clear; numbers used again; tiers.
func TestIndexEqualsTheReferenceAfterAnyHistory(t *testing.T) { rapid.Check(t, anyHistory) }

func FuzzIndexEqualsTheReference(f *testing.F) { f.Fuzz(rapid.MakeFuzz(anyHistory)) }

func anyHistory(rt *rapid.T) {
	ix := newIndex(rt, Config{Replicas: 300})
	pubs := map[int]*publisher{}
	for _, r := range []int{0, 1, 63, 64, 200} {
		pubs[r] = newPublisher(rt, ix, r, 0)
	}
	one := rapid.SampledFrom(slices.Sorted(maps.Keys(pubs)))
	ns := rapid.SampledFrom([]uint64{7, 7 + shards, 8})
	path := rapid.Custom(func(rt *rapid.T) []uint64 {
		// Long stretches shared by all, with few places to diverge.
		ids := make([]uint64, rapid.IntRange(1, 150).Draw(rt, "len"))
		for i := range ids {
			ids[i] = uint64(i % 3)
		}
		for range rapid.IntRange(0, 2).Draw(rt, "forks") {
			ids[rapid.IntRange(0, len(ids)-1).Draw(rt, "at")] = 99
		}
		return ids
	})
	tier := rapid.SampledFrom([]int{0, 0, 0, 1, 2})
	rt.Repeat(map[string]func(*rapid.T){
		"store": func(rt *rapid.T) {
			pubs[one.Draw(rt, "replica")].store(rt, ns.Draw(rt, "ns"), 0, path.Draw(rt, "path"), tier.Draw(rt, "tier"),
				rapid.SampledFrom([]int{1, 2, 1000}).Draw(rt, "batch"))
		},
		"extend": func(rt *rapid.T) {
			p := pubs[one.Draw(rt, "replica")]
			if len(p.nodes) == 0 {
				rt.Skip("the replica holds nothing yet")
			}
			n := rapid.SampledFrom(p.numbers()).Draw(rt, "parent")
			p.store(rt, p.nodes[n].key.ns, n, path.Draw(rt, "path")[:1], tier.Draw(rt, "tier"), 1000)
		},
		"remove": func(rt *rapid.T) {
			p := pubs[one.Draw(rt, "replica")]
			if len(p.nodes) == 0 {
				rt.Skip("the replica holds nothing yet")
			}
			p.remove(rt, tier.Draw(rt, "tier"), rapid.SliceOfN(rapid.SampledFrom(p.numbers()), 1, 200).Draw(rt, "nodes")...)
		},
		"clear": func(rt *rapid.T) { pubs[one.Draw(rt, "replica")].clear() },
		"": func(rt *rapid.T) {
			if err := compare(ix, pubs, ns.Draw(rt, "query ns"), path.Draw(rt, "query")); err != nil {
				rt.Fatal(err)
			}
			if err := check(ix); err != nil {
				rt.Fatal(err)
			}
		},
	})
	for _, p := range pubs {
		p.st.Close()
	}
	if got := ix.Bytes(); got != 0 {
		rt.Fatalf("%d bytes left after everything closed", got)
	}
}

func chain(from, n int) []uint64 {
	ids := make([]uint64, n)
	for i := range ids {
		ids[i] = uint64(from + i)
	}
	return ids
}

func depths(ms []Match) map[int]int {
	out := map[int]int{}
	for _, m := range ms {
		out[m.Replica] = m.Depth
	}
	return out
}

func TestABlockEvictedFromTheMiddleCutsThePrefixUntilItReturns(t *testing.T) {
	ix := newIndex(t, Config{})
	p := newPublisher(t, ix, 5, 0)
	ids := chain(0, 100)
	p.store(t, 1, 0, ids, 0, 1000)
	for _, at := range []int{0, 40, 63, 64, 99} {
		p.remove(t, 0, uint32(at+1))
		if got := depths(ix.Match(nil, 1, ids))[5]; got != at {
			t.Errorf("without block %d: depth %d", at, got)
		}
		p.store(t, 1, 0, ids, 0, 1000)
		if got := depths(ix.Match(nil, 1, ids))[5]; got != 100 {
			t.Errorf("block %d back: depth %d", at, got)
		}
	}
}

func TestEveryHolderOfABlockIsReported(t *testing.T) {
	ix := newIndex(t, Config{})
	ids := chain(0, 50)
	for r := range 1200 {
		newPublisher(t, ix, r, 0).store(t, 1, 0, ids[:1+r%50], 0, 1000)
	}
	got := depths(ix.Match(nil, 1, ids))
	for r := range 1200 {
		if got[r] != 1+r%50 {
			t.Fatalf("replica %d: depth %d, want %d", r, got[r], 1+r%50)
		}
	}
}

func TestASnapshotBecomesVisibleAtOnce(t *testing.T) {
	ix := newIndex(t, Config{})
	st, err := ix.Stream(3, 0)
	if err != nil {
		t.Fatal(err)
	}
	st.Begin()
	if err := st.Store(1, 0, 1, chain(0, 10), 0); err != nil {
		t.Fatal(err)
	}
	if got := ix.Match(nil, 1, chain(0, 10)); len(got) != 0 {
		t.Errorf("before commit: %v", got)
	}
	st.Commit()
	if got := depths(ix.Match(nil, 1, chain(0, 10))); got[3] != 10 {
		t.Errorf("after commit: %v", got)
	}
	st.Suspend()
	if got := ix.Match(nil, 1, chain(0, 10)); len(got) != 0 {
		t.Errorf("suspended: %v", got)
	}
	if got := depths(ix.Held(nil, 1, chain(0, 10))); got[3] != 10 {
		t.Errorf("held: %v", got)
	}
}

func TestAPublisherThatBreaksTheProtocolIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(*Stream) error
		want error
	}{
		"node number 0":             {func(st *Stream) error { return st.Store(1, 0, 0, chain(0, 1), 0) }, ErrNode},
		"node number too high":      {func(st *Stream) error { return st.Store(1, 0, 1<<31, chain(0, 1), 0) }, ErrNode},
		"run past the last number":  {func(st *Stream) error { return st.Store(1, 0, 65536+160-1, chain(0, 3), 0) }, ErrNode},
		"number in use elsewhere":   {func(st *Stream) error { return st.Store(1, 0, 2, chain(50, 1), 0) }, ErrReused},
		"number in use, other id":   {func(st *Stream) error { return st.Store(1, 1, 2, chain(50, 1), 0) }, ErrReused},
		"number in use, other ns":   {func(st *Stream) error { return st.Store(2, 0, 1, chain(0, 1), 0) }, ErrReused},
		"the same, same shard":      {func(st *Stream) error { return st.Store(1+shards, 0, 1, chain(0, 1), 0) }, ErrReused},
		"run over a number in use":  {func(st *Stream) error { return st.Store(1, 0, 1, []uint64{0, 77}, 0) }, ErrReused},
		"child in another ns":       {func(st *Stream) error { return st.Store(2, 3, 9, chain(3, 1), 0) }, ErrParent},
		"child in ns of same shard": {func(st *Stream) error { return st.Store(1+shards, 3, 9, chain(3, 1), 0) }, ErrParent},
		"tier too high":             {func(st *Stream) error { return st.Store(1, 0, 9, chain(0, 1), 8) }, ErrTier},
		"removes node 0":            {func(st *Stream) error { return st.Remove([]uint32{0}, 0) }, ErrNode},
		"removes from no tier":      {func(st *Stream) error { return st.Remove([]uint32{1}, -1) }, ErrTier},
	} {
		t.Run(name, func(t *testing.T) {
			ix := newIndex(t, Config{})
			st, err := ix.Stream(0, 10)
			if err != nil {
				t.Fatal(err)
			}
			if err := st.Store(1, 0, 1, chain(0, 3), 0); err != nil {
				t.Fatal(err)
			}
			if err := c.do(st); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			st.Close()
			if got := ix.Bytes(); got != 0 {
				t.Errorf("%d bytes left", got)
			}
		})
	}
}

func TestWhatIsOverBudgetOrOrphanedIsNotCredited(t *testing.T) {
	ix := newIndex(t, Config{})
	p := newPublisher(t, ix, 0, 30)
	p.store(t, 1, 0, chain(0, 100), 0, 1000)
	if got := depths(ix.Match(nil, 1, chain(0, 100)))[0]; got != 30 {
		t.Errorf("budget of 30 blocks: depth %d", got)
	}
	if err := p.st.Store(1, 60, 200, chain(500, 5), 0); err != nil {
		t.Fatal(err)
	}
	if got := ix.Match(nil, 1, chain(500, 5)); len(got) != 0 {
		t.Errorf("an orphan became a root: %v", got)
	}
	if got := p.st.Stats(); got.Blocks != 30 || got.Refused != 75 {
		t.Errorf("stats %+v", got)
	}
}

func TestTheByteBudgetHolds(t *testing.T) {
	ix := newIndex(t, Config{ByteBudget: MinBudget})
	r := rand.New(rand.NewPCG(1, 1))
	var refused uint64
	var pubs []*Stream
	for i := range 40 {
		st, err := ix.Stream(i, 0)
		if err != nil {
			t.Fatal(err)
		}
		pubs = append(pubs, st)
		node := uint32(1)
		for range 2000 {
			ids := make([]uint64, 1+r.IntN(20))
			for k := range ids {
				ids[k] = r.Uint64()
			}
			if err := st.Store(r.Uint64N(100), 0, node, ids, 0); err != nil {
				t.Fatal(err)
			}
			node += uint32(len(ids))
		}
		refused += st.Stats().Refused
		if got := ix.Bytes(); got > MinBudget {
			t.Fatalf("%d bytes, budget %d", got, MinBudget)
		}
	}
	if refused == 0 {
		t.Error("nothing was refused: the test does not reach the budget")
	}
	for _, st := range pubs {
		st.Close()
	}
	if got := ix.Bytes(); got != 0 {
		t.Errorf("%d bytes left after close", got)
	}
}

func TestMemoryIsStableUnderChurn(t *testing.T) {
	ix := newIndex(t, Config{})
	p := newPublisher(t, ix, 0, 0)
	r := rand.New(rand.NewPCG(2, 2))
	const capacity = 20_000
	var order []uint32
	fill := func(blocks int) {
		for blocks > 0 {
			ids := []uint64{1, 2, 3}
			for range 5 + r.IntN(60) {
				ids = append(ids, r.Uint64())
			}
			p.store(t, 1, 0, ids, 0, 1000)
			at := uint32(0)
			for _, id := range ids {
				at = p.kids[pubKey{1, at, id}]
				order = append(order, at)
			}
			blocks -= len(ids)
			for len(p.nodes) > capacity {
				n := order[0]
				order = order[1:]
				if p.nodes[n] != nil {
					p.remove(t, 0, n)
				}
			}
		}
	}
	fill(2 * capacity)
	base := ix.Bytes()
	fill(10 * capacity)
	if got := ix.Bytes(); got > base*5/4 {
		t.Errorf("%d bytes after ten times the capacity, %d before", got, base)
	}
	t.Logf("%.1f bytes per block", float64(base)/capacity)
	p.clear()
	if got := ix.Bytes(); got != 0 {
		t.Errorf("%d bytes after clear", got)
	}
}

func TestMatchDoesNotAllocate(t *testing.T) {
	ix := newIndex(t, Config{})
	ids := chain(0, 500)
	for r := range 100 {
		newPublisher(t, ix, r, 0).store(t, 1, 0, ids[:5*(r+1)], 0, 1000)
	}
	dst := make([]Match, 0, 200)
	if n := testing.AllocsPerRun(100, func() { dst = ix.Match(dst[:0], 1, ids) }); n > 0 && !raceEnabled {
		t.Errorf("%v allocations", n)
	}
}

func TestReadersSeeWholeStepsOfConcurrentWriters(t *testing.T) {
	ix := newIndex(t, Config{})
	ids := chain(0, 300)
	var writers, readers sync.WaitGroup
	stop := make(chan struct{})
	for r := range 4 {
		p := newPublisher(t, ix, r, 0)
		writers.Go(func() {
			for i := range 25 {
				k := 100 + (i*37+r*11)%200
				p.store(t, 1, 0, ids[:k], i%5/4, 1000)
				p.store(t, 1, 0, append(chain(0, 50+i%50), uint64(5000+r)), 0, 1000)
				p.remove(t, 0, p.numbers()[i%50:]...)
				if i%20 == 0 {
					p.clear()
				}
			}
		})
	}
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for _, m := range ix.Match(nil, 1, ids) {
					if m.Replica > 3 || m.Depth > 299 || m.Any < m.Depth {
						t.Errorf("impossible match %+v", m)
						return
					}
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	if err := check(ix); err != nil {
		t.Error(err)
	}
}
