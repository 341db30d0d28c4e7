package lab

// The scores of llm-d-router and the Gateway API inference extension. Every one
// is between 0 and 1, higher is better, and a profile weighs them.

// queueScores is 1 for the shortest queue, 0 for the longest.
func queueScores(dst []float64, queued []int) {
	lo, hi := queued[0], queued[0]
	for _, q := range queued {
		lo, hi = min(lo, q), max(hi, q)
	}
	for i, q := range queued {
		dst[i] = 1
		if hi > lo {
			dst[i] = float64(hi-q) / float64(hi-lo)
		}
	}
}

// prefixScore is w·min(1, tokens/8192)² + (1−w)·match/total.
func prefixScore(w float64, matched, total int) float64 {
	long := min(1, float64(matched)/8192)
	return w*long*long + (1-w)*share(float64(matched), float64(total))
}

// profile weighs the scores.
type profile struct{ prefix, queue, memory float64 }

// scraped is what the router knows from metrics.
type scraped struct {
	queued []int
	used   []float64
	scores []float64
}

func newScraped(n int) scraped {
	return scraped{make([]int, n), make([]float64, n), make([]float64, n)}
}

func (s *scraped) note(w *world, replica int, r report) {
	s.queued[replica], s.used[replica] = r.queued, float64(r.usedBlocks)/float64(w.blocks)
}

// best is the replica with the greatest weighted score.
func (s *scraped) best(w *world, p profile, prefix func(r int) float64) int {
	queueScores(s.scores, s.queued)
	return w.least(func(r int) float64 {
		return -(p.prefix*prefix(r) + p.queue*s.scores[r] + p.memory*(1-s.used[r]))
	})
}

// routed remembers, per gateway and replica, until when each block is taken to
// be there because a request with it was sent there.
type routed struct {
	until [][][]int64
}

func newRouted(w *world) routed {
	x := routed{until: make([][][]int64, w.gateways)}
	for g := range x.until {
		x.until[g] = make([][]int64, w.setup.replicas)
		for r := range x.until[g] {
			x.until[g][r] = make([]int64, w.trace.Blocks())
		}
	}
	return x
}

func (x *routed) add(c *call, r int, until int64) {
	at := x.until[c.gateway][r]
	for _, b := range c.req.Blocks {
		at[b] = until
	}
}

// deepen is how far the prompt is there, given that depth blocks are anyway.
func (x *routed) deepen(c *call, r int, depth int, now int64) int {
	at, blocks := x.until[c.gateway][r], c.req.Blocks
	for depth < len(blocks) && at[blocks[depth]] > now {
		depth++
	}
	return depth
}

// llmd is llm-d-router on KV events. With penalty 0 it is the classic profile:
// prefix, queue and memory scores and the best of them. Otherwise it is
// prefix-cache-affinity-filter and token-load-scorer: among those with at least
// 80 % of the prompt the one with the fewest tokens in flight, unless another
// replica promises the first token sooner by more than penalty.
type llmd struct {
	tallies
	scraped
	profile profile
	long    float64 // w of prefixScore
	penalty int64   // ns
	guess   bool    // speculative entries, for 2 s
	routed  routed
	deep    []int
}

const (
	sticky    = 0.80
	guessTTL  = 2000 * ms
	peakNS    = 1e9 / 15928.0 // ns per token: peakPrefillThroughput's default
	tokenCap  = 4 << 20       // of token-load-scorer
	maxHolder = 10            // podCacheSize: holders of a block that the index keeps
)

func (s *llmd) pick(w *world, c *call) int {
	w.view.depths(s.deep, c.req)
	limitHolders(s.deep)
	if s.guess {
		for r := range s.deep {
			s.deep[r] = s.routed.deepen(c, r, s.deep[r], w.now)
		}
	}
	r := s.choose(w, c)
	if r == nowhere {
		return r
	}
	c.uncached = c.req.Prompt - s.matched(w, c, r)
	s.take(c, r)
	if s.guess {
		s.routed.add(c, r, w.now+guessTTL)
	}
	return r
}

// limitHolders drops matches of replicas beyond those that the index keeps.
func limitHolders(deep []int) {
	n := 0
	for r, d := range deep {
		if d == 0 {
			continue
		}
		if n++; n > maxHolder {
			deep[r] = 0
		}
	}
}

func (s *llmd) matched(w *world, c *call, r int) int {
	return min(s.deep[r]*w.trace.Block, c.req.Prompt-1)
}

func (s *llmd) choose(w *world, c *call) int {
	if s.penalty == 0 {
		return s.best(w, s.profile, func(r int) float64 { return prefixScore(s.long, s.matched(w, c, r), c.req.Prompt) })
	}
	load := func(r int) float64 { return 1 - min(1, float64(s.of(c, r).prefill)/tokenCap) }
	ttft := func(r int) float64 { return float64(s.of(c, r).prefill) * peakNS }
	stuck := func(r int) bool {
		return share(float64(s.matched(w, c, r)), float64(c.req.Prompt)) >= sticky
	}
	held := w.least(func(r int) float64 { return only(stuck(r), -load(r)) })
	free := w.least(func(r int) float64 { return -load(r) })
	if held == nowhere || !stuck(held) || ttft(held) > ttft(free)+float64(s.penalty) {
		return free
	}
	return held
}

// only is value where it may be chosen.
func only(may bool, value float64) float64 {
	if may {
		return value
	}
	return 1e300
}

func (s *llmd) report(w *world, replica int, r report) { s.note(w, replica, r) }

// approx is the approximate prefix plugin of the inference extension: it takes
// a prompt's blocks to be where it last sent them, in an LRU per replica, and
// weighs that with queue and memory.
type approx struct {
	tallies
	scraped
	profile profile
	lrus    [][]*lru // by gateway and replica
}

func newApprox(w *world, p profile, blocks int) *approx {
	s := &approx{tallies: newTallies(w), scraped: newScraped(w.setup.replicas), profile: p, lrus: make([][]*lru, w.gateways)}
	for g := range s.lrus {
		for range w.setup.replicas {
			s.lrus[g] = append(s.lrus[g], newLRU(blocks, w.trace.Blocks()))
		}
	}
	return s
}

func (s *approx) pick(w *world, c *call) int {
	lrus := s.lrus[c.gateway]
	r := s.best(w, s.profile, func(r int) float64 {
		return share(float64(lrus[r].held(c.req.Blocks)), float64(len(c.req.Blocks)))
	})
	if r == nowhere {
		return r
	}
	for i := len(c.req.Blocks) - 1; i >= 0; i-- { // the tail is the oldest
		lrus[r].touch(c.req.Blocks[i])
	}
	s.take(c, r)
	return r
}

func (s *approx) report(w *world, replica int, r report) { s.note(w, replica, r) }

// lru is a set of at most so many blocks.
type lru struct {
	room       int
	next, prev []int32 // by block; nowhere at an end, absent where it is not in
	head, tail int32   // head is dropped next
}

const absent = -2

func newLRU(room, contents int) *lru {
	l := &lru{room: max(room, 1), next: make([]int32, contents), prev: make([]int32, contents), head: nowhere, tail: nowhere}
	for i := range l.next {
		l.next[i] = absent
	}
	return l
}

func (l *lru) held(blocks []int32) int {
	n := 0
	for n < len(blocks) && l.next[blocks[n]] != absent {
		n++
	}
	return n
}

func (l *lru) touch(b int32) {
	if l.next[b] != absent {
		l.drop(b)
	}
	if l.room == 0 {
		l.drop(l.head)
	}
	l.room--
	l.prev[b], l.next[b] = l.tail, nowhere
	if l.tail == nowhere {
		l.head = b
	} else {
		l.next[l.tail] = b
	}
	l.tail = b
}

func (l *lru) drop(b int32) {
	l.room++
	if l.prev[b] == nowhere {
		l.head = l.next[b]
	} else {
		l.next[l.prev[b]] = l.next[b]
	}
	if l.next[b] == nowhere {
		l.tail = l.prev[b]
	} else {
		l.prev[l.next[b]] = l.prev[b]
	}
	l.next[b] = absent
}
