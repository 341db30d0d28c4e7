// Package kvindex knows which replica holds which prompt blocks.
//
// Start at [New], [Index.Stream] for each publisher and [Index.Match] for each
// request.
//
// # Structure
//
// Per namespace a radix forest over block ids, compressed by runs: a node is up
// to 64 consecutive blocks. A block's identity is its path from the root, never
// its id alone. Per node a bitset of the replicas that hold the whole run, and
// a word for each replica that holds a part of it, so that a block evicted from
// the middle of a prefix, and its return, cost one bit. Both exist twice: for
// the GPU, and for blocks held only on slower tiers.
//
// A stream has a dense table from its publisher's node numbers to places in the
// forest. Nothing else names a place for it, so what replica R publishes can
// only change R's bits.
//
// Nodes, runs and bitsets live in arenas without pointers and name each other
// by number. Memory is counted and bounded; what does not fit is not stored,
// which loses credit and never gives any.
//
// # Concurrency
//
// A stream belongs to one goroutine. Namespaces are spread over shards, each
// with a read-write lock whose waiters look before they sleep (lock.go); a store
// holds it for at most 1,024 blocks.
package kvindex

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// shards is how many locks there are.
const shards = 64

// MinBudget is the least byte budget: what the shards' arenas start with.
const MinBudget = 16 << 20

// Config bounds an index.
type Config struct {
	ByteBudget int64 // 0: 1 GiB; at least MinBudget
	Replicas   int   // ordinals are below this; 0: 8,192; at most 65,536
}

// Index is the forests of all namespaces. Safe for concurrent use.
type Index struct {
	meter  meter
	budget int64
	shards [shards]*shard

	// shown has a bit for each stream that is visible to Match, and width is
	// how many of its words have ever had one.
	shown []atomic.Uint64
	width atomic.Int32

	mu    sync.Mutex // guards taken, and changes of width
	taken []uint64   // ordinals with a stream

	scratch sync.Pool // of *scratch
}

// New returns an empty index.
func New(c Config) (*Index, error) {
	if c.ByteBudget == 0 {
		c.ByteBudget = 1 << 30
	}
	if c.Replicas == 0 {
		c.Replicas = 8192
	}
	if c.ByteBudget < MinBudget {
		return nil, fmt.Errorf("index byte budget %d is below %d", c.ByteBudget, MinBudget)
	}
	if c.Replicas < 0 || c.Replicas > 65536 {
		return nil, fmt.Errorf("index for %d replicas: at most 65536", c.Replicas)
	}
	w := (c.Replicas + 63) / 64
	// Every shard may be in the middle of one step when the budget is reached.
	ix := &Index{budget: c.ByteBudget - shards*stepBytes, shown: make([]atomic.Uint64, w), taken: make([]uint64, w)}
	for i := range ix.shards {
		ix.shards[i] = newShard(&ix.meter, [2]uint64{rand.Uint64(), rand.Uint64()})
	}
	ix.scratch.New = func() any { return new(scratch) }
	return ix, nil
}

// ErrOrdinal says that an ordinal is out of bounds or has a stream already.
var ErrOrdinal = errors.New("replica ordinal out of bounds or in use")

// Stream returns the stream of the publisher with that ordinal, invisible until
// Commit. budgetBlocks is how many blocks it may hold on tier 0: its advertised
// capacity. 0 means unknown, which is taken as a million.
func (ix *Index) Stream(replica, budgetBlocks int) (*Stream, error) {
	if replica < 0 || replica >= 64*len(ix.taken) || budgetBlocks < 0 {
		return nil, fmt.Errorf("stream of replica %d: %w", replica, ErrOrdinal)
	}
	const unknown, most = 1 << 20, 1 << 27
	if budgetBlocks == 0 {
		budgetBlocks = unknown
	}
	budgetBlocks = min(budgetBlocks, most)
	ix.mu.Lock()
	defer ix.mu.Unlock()
	bit := uint64(1) << (replica % 64)
	if ix.taken[replica/64]&bit != 0 {
		return nil, fmt.Errorf("stream of replica %d: %w", replica, ErrOrdinal)
	}
	ix.taken[replica/64] |= bit
	ix.width.Store(max(ix.width.Load(), int32(replica/64)+1))
	st := &Stream{index: ix, replica: uint32(replica), budget: budgetBlocks, byNS: make(map[uint64]uint16)}
	st.Expect(budgetBlocks)
	return st, nil
}

// Bytes is how much memory the index has allocated.
func (ix *Index) Bytes() int64 { return ix.meter.bytes.Load() }

func (ix *Index) shard(ns uint64) *shard { return ix.shards[ns%shards] }

// room says whether one more step in s is within the budget.
func (ix *Index) room(s *shard) bool { return ix.meter.bytes.Load()+s.step() <= ix.budget }

func (ix *Index) free(replica uint32) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.taken[replica/64] &^= 1 << (replica % 64)
}

func (ix *Index) show(replica uint32, visible bool) {
	w, bit := &ix.shown[replica/64], uint64(1)<<(replica%64)
	if visible {
		w.Or(bit)
	} else {
		w.And(^bit)
	}
}

func (ix *Index) visible(replica uint32) bool {
	return ix.shown[replica/64].Load()>>(replica%64)&1 == 1
}

// Match is how much of a prompt one replica holds, in consecutive blocks from
// its beginning.
type Match struct {
	Replica int
	Depth   int // on the GPU
	Any     int // on any tier; at least Depth
}

// scratch is the working memory of a match.
type scratch struct {
	alive []uint64 // replicas that hold everything so far
	full  []uint64 // replicas that hold all of a run, on any tier
	at    []int32  // index in the result by replica, plus one
}

// fit makes room for replicas of so many words.
func (sc *scratch) fit(words int) {
	if len(sc.alive) < words {
		sc.alive, sc.full, sc.at = make([]uint64, words), make([]uint64, words), make([]int32, 64*words)
	}
}

// Match appends to dst how much each replica holds of the prompt with these
// block ids; replicas that hold nothing are left out. It does not allocate
// beyond dst.
func (ix *Index) Match(dst []Match, ns uint64, ids []uint64) []Match {
	return ix.match(dst, ns, ids, true)
}

// Held is Match that includes suspended streams and unfinished snapshots. It
// says who used to hold a prompt and must never give credit.
func (ix *Index) Held(dst []Match, ns uint64, ids []uint64) []Match {
	return ix.match(dst, ns, ids, false)
}

func (ix *Index) match(dst []Match, ns uint64, ids []uint64, onlyShown bool) []Match {
	if len(ids) == 0 {
		return dst
	}
	sc := ix.scratch.Get().(*scratch)
	defer ix.scratch.Put(sc)
	s := ix.shard(ns)
	s.mu.RLock()
	defer s.mu.RUnlock()
	// Whoever is in the forest, got an ordinal first.
	sc.fit(int(ix.width.Load()))
	root, ok := s.roots[ns]
	if !ok {
		return dst
	}
	base := len(dst)
	ix.revive(sc, onlyShown)
	dst = s.descend(dst, sc, root, ids, false)
	for i := base; i < len(dst); i++ {
		dst[i].Any = dst[i].Depth
	}
	if s.lows == 0 {
		return dst
	}
	gpu := len(dst)
	ix.revive(sc, onlyShown)
	dst = s.descend(dst, sc, root, ids, true)
	return sc.merge(dst, base, gpu)
}

// revive marks all replicas that take part as holding everything so far.
func (ix *Index) revive(sc *scratch, onlyShown bool) {
	for i := range sc.alive {
		sc.alive[i] = ^uint64(0)
		if onlyShown {
			sc.alive[i] = ix.shown[i].Load()
		}
	}
}

// merge folds the any-tier matches from gpu on into those before.
func (sc *scratch) merge(dst []Match, base, gpu int) []Match {
	for i := base; i < gpu; i++ {
		sc.at[dst[i].Replica] = int32(i - base + 1)
	}
	out := gpu
	for _, m := range dst[gpu:] {
		if at := sc.at[m.Replica]; at != 0 {
			dst[base+int(at)-1].Any = m.Depth
			continue
		}
		dst[out] = Match{Replica: m.Replica, Any: m.Depth}
		out++
	}
	for i := base; i < gpu; i++ {
		sc.at[dst[i].Replica] = 0
	}
	return dst[:out]
}

// descend walks from root along ids and appends each replica at the depth where
// it stops holding them: on the GPU, or on any tier.
func (s *shard) descend(dst []Match, sc *scratch, root uint32, ids []uint64, anyTier bool) []Match {
	depth := 0
	for i := s.child(s.nodes.at(root), ids[0]); i != 0; {
		x := s.nodes.at(i)
		m := common(s.ids(x), ids[depth:])
		dst = s.leave(dst, sc, x, depth, m, anyTier)
		depth += m
		if m < int(x.n) || depth == len(ids) {
			break
		}
		i = s.child(x, ids[depth])
	}
	if depth == 0 {
		return dst
	}
	return takeAll(dst, sc.alive, depth)
}

// common is the length of the common prefix of a run and the rest of a prompt.
func common(run, ids []uint64) int {
	n := min(len(run), len(ids))
	run, ids = run[:n], ids[:n]
	for i := range run {
		if run[i] != ids[i] {
			return i
		}
	}
	return n
}

// leave takes those out of sc.alive that do not hold the first m blocks of x's
// run, and appends how far they come. Those that hold m but not the whole run
// go on only where the walk ends here.
func (s *shard) leave(dst []Match, sc *scratch, x *node, depth, m int, anyTier bool) []Match {
	for i := x.gpu.part; i != 0; {
		p := s.parts.at(i)
		i = p.next
		mask := p.mask
		if anyTier {
			mask |= s.mask(&x.low, p.replica, x.n)
		}
		if mask != ones(x.n) {
			dst = take(dst, sc.alive, p.replica, depth, min(m, bits.TrailingZeros64(^mask)))
		}
	}
	if !anyTier {
		return s.keepFull(dst, sc, x, depth)
	}
	for i := x.low.part; i != 0; {
		p := s.parts.at(i)
		i = p.next
		if s.mask(&x.gpu, p.replica, x.n)|p.mask != ones(x.n) {
			dst = take(dst, sc.alive, p.replica, depth, min(m, bits.TrailingZeros64(^p.mask)))
		}
	}
	return s.keepAny(dst, sc, x, depth)
}

// keepFull appends and takes out everyone left who holds nothing of x.
func (s *shard) keepFull(dst []Match, sc *scratch, x *node, depth int) []Match {
	clear(sc.full)
	s.addTo(sc.full, &x.gpu)
	return intersect(dst, sc, depth)
}

// keepAny is keepFull for any tier.
func (s *shard) keepAny(dst []Match, sc *scratch, x *node, depth int) []Match {
	clear(sc.full)
	s.addTo(sc.full, &x.gpu)
	s.addTo(sc.full, &x.low)
	for i := x.gpu.part; i != 0; i = s.parts.at(i).next {
		p := s.parts.at(i)
		if p.mask|s.mask(&x.low, p.replica, x.n) == ones(x.n) {
			sc.full[p.replica/64] |= 1 << (p.replica % 64)
		}
	}
	return intersect(dst, sc, depth)
}

// addTo sets the bits of the full holders of c.
func (s *shard) addTo(full []uint64, c *cover) {
	switch {
	case c.n == 1:
		full[(c.one-1)/64] |= 1 << ((c.one - 1) % 64)
	case c.n > 1:
		for w, x := range s.words.at(c.class, c.set) {
			if x != 0 {
				full[w] |= x
			}
		}
	}
}

// intersect keeps those of sc.alive that are in sc.full; the others are
// appended at depth.
func intersect(dst []Match, sc *scratch, depth int) []Match {
	for w, x := range sc.alive {
		if gone := x &^ sc.full[w]; gone != 0 {
			sc.alive[w] = x & sc.full[w]
			if depth > 0 {
				dst = takeWord(dst, w, gone, depth)
			}
		}
	}
	return dst
}

// take appends replica at depth+more, if it was alive, and takes it out.
func take(dst []Match, alive []uint64, replica uint32, depth, more int) []Match {
	w, bit := replica/64, uint64(1)<<(replica%64)
	if alive[w]&bit == 0 {
		return dst
	}
	alive[w] &^= bit
	if depth+more == 0 {
		return dst
	}
	return append(dst, Match{Replica: int(replica), Depth: depth + more})
}

func takeAll(dst []Match, alive []uint64, depth int) []Match {
	for w, x := range alive {
		if x != 0 {
			dst = takeWord(dst, w, x, depth)
		}
	}
	return dst
}

func takeWord(dst []Match, w int, x uint64, depth int) []Match {
	for ; x != 0; x &= x - 1 {
		dst = append(dst, Match{Replica: w*64 + bits.TrailingZeros64(x), Depth: depth})
	}
	return dst
}
