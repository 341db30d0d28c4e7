package lab

import "math"

// tally is what one gateway has in flight at one replica, as routers keep it
// that ask nobody.
type tally struct {
	requests int
	prefill  int64 // tokens not known to be cached, until the first token
	prompts  int64 // prompt tokens, until the first token
}

// tallies are kept per gateway and replica. Strategies embed them.
type tallies struct {
	by [][]tally
}

func newTallies(w *world) tallies {
	l := tallies{by: make([][]tally, w.gateways)}
	for g := range l.by {
		l.by[g] = make([]tally, w.setup.replicas)
	}
	return l
}

func (l *tallies) of(c *call, r int) *tally { return &l.by[c.gateway][r] }

func (l *tallies) take(c *call, r int) {
	x := l.of(c, r)
	x.requests++
	x.prefill += int64(c.uncached)
	x.prompts += int64(c.req.Prompt)
}

func (l *tallies) first(_ *world, c *call) {
	x := l.of(c, c.replica)
	x.prefill -= int64(c.uncached)
	x.prompts -= int64(c.req.Prompt)
}

func (l *tallies) end(_ *world, c *call) {
	x := l.of(c, c.replica)
	x.requests--
	if c.first == 0 {
		x.prefill -= int64(c.uncached)
		x.prompts -= int64(c.req.Prompt)
	}
}

func (l *tallies) report(*world, int, report) {}

// least returns the replica in service with the least value, ties drawn.
func (w *world) least(value func(r int) float64) int {
	best, at, ties := math.Inf(1), nowhere, 0
	for r, x := range w.replicas {
		if x.out {
			continue
		}
		switch v := value(r); {
		case at == nowhere || v < best:
			best, at, ties = v, r, 1
		case v == best:
			if ties++; w.rng.IntN(ties) == 0 {
				at = r
			}
		}
	}
	return at
}

// roundRobin takes the replicas in turn, each gateway for itself.
type roundRobin struct {
	tallies
	next []int
}

func (s *roundRobin) pick(w *world, c *call) int {
	for range w.replicas {
		r := s.next[c.gateway] % len(w.replicas)
		s.next[c.gateway]++
		if !w.replicas[r].out {
			s.take(c, r)
			return r
		}
	}
	return nowhere
}

// leastLoad takes the replica with the least in flight: requests, or prompt
// tokens whose first token is awaited.
type leastLoad struct {
	tallies
	tokens bool
}

func (s *leastLoad) pick(w *world, c *call) int {
	r := w.least(func(r int) float64 {
		if x := s.of(c, r); s.tokens {
			return float64(x.prompts)
		} else {
			return float64(x.requests)
		}
	})
	if r != nowhere {
		s.take(c, r)
	}
	return r
}

// hashed is consistent hashing with bounded loads (Mirrokni et al.,
// https://arxiv.org/abs/1608.01350) of a key: the session, or the first tokens of
// the prompt. bound is the factor of the mean load that nobody may exceed; 0
// means no bound.
type hashed struct {
	tallies
	prefix int // tokens; 0: the session is the key
	bound  float64
}

func (s *hashed) key(w *world, r *Request) uint64 {
	k := mix(uint64(r.Tenant) + 1)
	if s.prefix == 0 {
		return mix(k ^ uint64(r.Session))
	}
	n := min(max(s.prefix/w.trace.Block, 1), len(r.Blocks))
	if n == 0 {
		return mix(k ^ uint64(r.Session)<<1) // shorter than a block: all it has is its own
	}
	return mix(k ^ uint64(r.Blocks[n-1])<<2)
}

func (s *hashed) pick(w *world, c *call) int {
	key, all, up := s.key(w, c.req), 1, 0
	for r, x := range w.replicas {
		all += s.of(c, r).requests
		if !x.out {
			up++
		}
	}
	limit := bounded(s.bound, all, up)
	r := w.least(func(r int) float64 {
		if s.of(c, r).requests+1 > limit {
			return math.Inf(1)
		}
		return -float64(mix(key^mix(uint64(r))) >> 11)
	})
	if r != nowhere {
		s.take(c, r)
	}
	return r
}

// bounded is how many requests one of n replicas may have of all.
func bounded(factor float64, all, n int) int {
	if factor == 0 || n == 0 {
		return math.MaxInt
	}
	return int(math.Ceil(factor * float64(all) / float64(n)))
}
