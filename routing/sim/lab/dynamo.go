package lab

// dynamo is NVIDIA Dynamo's KV router. In blocks, the least of
//
//	scale·max(0, active prefill + prompt − overlap) + decode
//
// at temperature 0, ties drawn. Active prefill counts what is not cached of
// requests that await their first token; decode the blocks of all requests in
// flight and of this one, shared ones once. Routers share what they have in
// flight: here at once and without loss, which is better than best effort.
type dynamo struct {
	scale  float64
	guess  bool // predict on route: blocks count as soon as a request is sent
	routed routed
	deep   []int
	active []activity // by replica
}

// activity is what all gateways have in flight at one replica.
type activity struct {
	prefill int64   // tokens
	uses    []int32 // by block
	blocks  int     // of prompts in flight, shared ones once
	rest    int     // blocks of partial ends, and answers
}

func newDynamo(w *world, scale float64, guess bool) *dynamo {
	s := &dynamo{scale: scale, guess: guess, routed: newRouted(w), deep: make([]int, w.setup.replicas), active: make([]activity, w.setup.replicas)}
	for r := range s.active {
		s.active[r].uses = make([]int32, w.trace.Blocks())
	}
	return s
}

// dynamoCost is the formula, in blocks of so many tokens.
func dynamoCost(scale float64, activePrefill, prompt, overlap int64, block, decode int) float64 {
	return scale*float64(max(0, activePrefill+prompt-overlap))/float64(block) + float64(decode)
}

func (s *dynamo) pick(w *world, c *call) int {
	w.view.depths(s.deep, c.req)
	if s.guess {
		for r := range s.deep {
			s.deep[r] = s.routed.deepen(c, r, s.deep[r], w.now)
		}
	}
	r := w.least(func(r int) float64 {
		a := &s.active[r]
		return dynamoCost(s.scale, a.prefill, int64(c.req.Prompt), int64(s.deep[r]*w.trace.Block), w.trace.Block, a.with(c.req))
	})
	if r == nowhere {
		return r
	}
	c.uncached = max(c.req.Prompt-s.deep[r]*w.trace.Block, 0)
	s.active[r].add(c)
	if s.guess {
		s.routed.add(c, r, w.now+guessTTL)
	}
	return r
}

// with is the blocks in flight if r were too.
func (a *activity) with(r *Request) int {
	n := a.blocks + a.rest + 1
	for _, b := range r.Blocks {
		if a.uses[b] == 0 {
			n++
		}
	}
	return n
}

func (a *activity) add(c *call) {
	a.prefill += int64(c.uncached)
	a.rest++
	for _, b := range c.req.Blocks {
		if a.uses[b]++; a.uses[b] == 1 {
			a.blocks++
		}
	}
}

func (s *dynamo) first(_ *world, c *call) { s.active[c.replica].prefill -= int64(c.uncached) }

func (s *dynamo) end(_ *world, c *call) {
	a := &s.active[c.replica]
	if c.first == 0 {
		a.prefill -= int64(c.uncached)
	}
	a.rest--
	for _, b := range c.req.Blocks {
		if a.uses[b]--; a.uses[b] == 0 {
			a.blocks--
		}
	}
}

func (s *dynamo) report(*world, int, report) {}
