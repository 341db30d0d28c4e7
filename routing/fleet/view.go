package fleet

import (
	"slices"
	"time"

	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/blockid"
	"github.com/sallyport-ai/sallyport/routing/kvindex"
)

// lookup is what the index says of one prompt, per block size in use.
type lookup struct {
	ns       uint64
	sizes    []sized
	replicas int // of the pools, when it was made
}

type sized struct {
	block   int
	ids     []uint64
	matches []kvindex.Match
}

func (l *lookup) ids(block int) []uint64 {
	for i := range l.sizes {
		if l.sizes[i].block == block {
			return l.sizes[i].ids
		}
	}
	return nil
}

// look asks the index. It needs no lock of the fleet. Whoever asked gives it
// back to f.looks: a long prompt's ids are 64 KiB.
func (f *Fleet) look(r *Request) *lookup {
	l, _ := f.looks.Get().(*lookup)
	if l == nil {
		l = &lookup{}
	}
	used := l.sizes[:cap(l.sizes)]
	l.ns, l.sizes = 0, l.sizes[:0]
	var blocks []int
	blocks, l.replicas = f.blockSizes(r.Pools)
	if !r.TokensExact || len(r.Tokens) == 0 {
		return l
	}
	l.ns = blockid.Namespace(&f.key, r.Model, r.Adapter, r.Domain)
	for i, block := range blocks {
		s := sized{block: block}
		if i < len(used) {
			s.ids, s.matches = used[i].ids[:0], used[i].matches[:0]
		}
		s.ids = r.appendBlocks(s.ids, &f.key, block)
		s.matches = f.index.Match(s.matches, l.ns, s.ids)
		l.sizes = append(l.sizes, s)
	}
	return l
}

// blockSizes is the block sizes of the pools' replicas, and how many of those there
// are.
func (f *Fleet) blockSizes(pools []string) (sizes []int, n int) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, p := range pools {
		n += len(f.pools[p])
		for _, r := range f.pools[p] {
			if b := int(r.hello.GetBlockSize()); b > 0 && !slices.Contains(sizes, b) {
				sizes = append(sizes, b)
			}
		}
	}
	return sizes, n
}

// view is one moment of the permitted replicas.
type view struct {
	query    routing.Query
	snapshot routing.Snapshot
	pools    []span
	replicas []*replica // of each candidate
	gens     []uint64
	holds    map[int][]hold // of candidates whose rank can be chosen, by rank
}

// span is where a pool's replicas begin in a view.
type span struct {
	pool  string
	begin int
}

// room is an empty view with room for as many replicas as there were when look was
// made, so that room need not be made under a lock. Whoever has placed a request by it
// gives it back to f.views: of 1,000 replicas it takes 200 KiB.
func (f *Fleet) room(look *lookup) *view {
	v, _ := f.views.Get().(*view)
	if v == nil {
		v = &view{}
	}
	*v = view{
		pools: v.pools[:0], replicas: slices.Grow(v.replicas[:0], look.replicas), gens: slices.Grow(v.gens[:0], look.replicas),
		snapshot: routing.Snapshot{Candidates: slices.Grow(v.snapshot.Candidates[:0], look.replicas)},
	}
	return v
}

// view makes the snapshot, in the room that look has for it. It changes nothing but
// v. The caller holds f.mu, if only to read.
func (f *Fleet) view(v *view, r *Request, look *lookup) *view {
	now, sole := time.Now(), blockid.Sole(&f.key, r.Domain)
	ranked := false
	v.query = query(r)
	for i, p := range r.Pools {
		if slices.Contains(r.Pools[:i], p) {
			continue
		}
		v.pools = append(v.pools, span{p, len(v.replicas)})
		for _, x := range f.pools[p] {
			v.replicas = append(v.replicas, x)
			v.gens = append(v.gens, x.gen)
			v.snapshot.Candidates = append(v.snapshot.Candidates, x.candidate(r, sole, now))
			ranked = ranked || len(x.ranks) > 1
		}
	}
	for i := range look.sizes {
		f.credit(v, look.ns, &look.sizes[i], now)
	}
	if ranked {
		v.settleRanks(now)
	}
	f.missHolder(v, look)
	return v
}

func query(r *Request) routing.Query {
	n := max(r.PromptTokens, len(r.Tokens))
	return routing.Query{
		Strategy: r.Strategy, PromptTokens: n, TokensExact: r.TokensExact, MaxOutput: r.MaxOutput,
		Seed: r.Seed, Affinity: r.Affinity, Region: r.Region, Warm: r.Warm,
	}
}

// credit fills in the depths of the candidates with one block size.
func (f *Fleet) credit(v *view, ns uint64, s *sized, now time.Time) {
	f.depths(s.matches, v, func(at, rank, depth, any int) {
		c := &v.snapshot.Candidates[at]
		switch {
		case c.BlockSize != s.block:
		case rank >= len(v.replicas[at].ranks): // the ordinal became its after the index was asked
		case v.replicas[at].addressable():
			h := v.hold(at, rank)
			h.depth, h.any = depth, any
		case c.Stream.Credits():
			c.Depth, c.Lower = depth, any
			if any == depth {
				c.Lower = 0 // nothing beyond
			}
		}
	})
	f.overlay.Look(ns, s.block, s.ids, now, func(to target, depth int, answered bool) {
		at, ok := v.index(to.replica)
		if !ok || to.epoch != to.replica.epoch {
			return
		}
		own, overlay := &v.snapshot.Candidates[at].Depth, &v.snapshot.Candidates[at].Overlay
		switch x := to.replica; {
		case x.addressable() && to.rank < len(x.ranks):
			h := v.hold(at, to.rank)
			own, overlay = &h.depth, &h.overlay
		case len(x.ranks) > 1: // nobody knows which rank has it
			return
		case !v.snapshot.Candidates[at].Stream.Credits():
			return
		}
		if answered {
			*own = max(*own, depth)
		}
		*overlay = max(*overlay, depth)
	})
}

// index is where x stands in v.
func (v *view) index(x *replica) (int, bool) {
	for _, s := range v.pools {
		if s.pool == x.target.Pool {
			at := s.begin + x.at
			return at, at < len(v.replicas) && v.replicas[at] == x
		}
	}
	return 0, false
}

// depths calls each with the depth of every candidate among the matches: for
// each rank where a request can choose it, otherwise once with the least over
// all ranks, because we cannot say which of them will get the request.
func (f *Fleet) depths(matches []kvindex.Match, v *view, each func(at, rank, depth, any int)) {
	var ranked map[int][3]int // ranks that match, least depth, least on any tier
	for _, m := range matches {
		if m.Replica >= len(f.owners) {
			continue
		}
		r := f.owners[m.Replica].replica
		if r == nil {
			continue
		}
		at, ok := v.index(r)
		if !ok {
			continue
		}
		if len(r.ranks) == 1 || r.addressable() {
			each(at, f.owners[m.Replica].rank, m.Depth, m.Any)
			continue
		}
		if ranked == nil {
			ranked = make(map[int][3]int)
		}
		k, seen := ranked[at]
		if !seen {
			k = [3]int{0, m.Depth, m.Any}
		}
		ranked[at] = [3]int{k[0] + 1, min(k[1], m.Depth), min(k[2], m.Any)}
	}
	for at, k := range ranked {
		if k[0] == len(v.replicas[at].ranks) {
			each(at, 0, k[1], k[2])
		}
	}
}

// missHolder finds out whether a replica that cannot be reached held more of
// the prompt than anybody who can, by its last known residency, and excludes
// it as holder_down.
func (f *Fleet) missHolder(v *view, look *lookup) {
	lost, best := false, 0
	for i := range v.snapshot.Candidates {
		c := &v.snapshot.Candidates[i]
		if c.Excluded == "" {
			best = max(best, c.Depth*c.BlockSize)
		}
		lost = lost || unreachable(c.Excluded)
	}
	if !lost {
		return
	}
	holder := -1
	for i := range look.sizes {
		s := &look.sizes[i]
		f.depths(f.index.Held(nil, look.ns, s.ids), v, func(at, _, depth, _ int) {
			c := &v.snapshot.Candidates[at]
			if unreachable(c.Excluded) && c.BlockSize == s.block && depth*s.block > best {
				holder, best = at, depth*s.block
			}
		})
	}
	if holder >= 0 {
		v.snapshot.Candidates[holder].Excluded = routing.HolderDown
	}
}

// unreachable says whether a reason means that a replica which served before
// does not answer.
func unreachable(r routing.Reason) bool {
	return r == routing.Unhealthy || r == routing.Breaker || r == routing.NoSVID
}
