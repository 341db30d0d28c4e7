package sim

import "time"

// Timing is how long a step takes. The zero value of a field means its default,
// which resembles a small model on one accelerator, so that a demo does not
// wait.
type Timing struct {
	Step    time.Duration // fixed cost of a step; default 2 ms
	Prefill time.Duration // per prompt token; default 20 µs
	Decode  time.Duration // per sequence that decodes; default 200 µs
	// Context is the length, in tokens, at which attention doubles the cost of
	// a prompt token; default 32768.
	Context int
}

func (t Timing) withDefaults() Timing {
	set := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	set(&t.Step, 2*time.Millisecond)
	set(&t.Prefill, 20*time.Microsecond)
	set(&t.Decode, 200*time.Microsecond)
	if t.Context == 0 {
		t.Context = 32768
	}
	return t
}

// sequence is one request inside the engine. Fields are owned by the
// scheduler's goroutine once it was added.
type sequence struct {
	tokens []uint32 // prompt, then what was generated
	prompt int      // length of the prompt
	plan   []uint32 // what it will say
	limit  int      // most tokens to generate
	chain  chain

	blocks   []int32
	computed int  // tokens whose keys and values exist
	filled   int  // blocks that were published
	cached   int  // tokens found at first scheduling
	begun    bool // cached is known
	stopped  bool // its caller has gone

	emit func(token uint32, last string) // called by the scheduler's goroutine; last is the finish reason or ""
}

// scheduler batches continuously, as vLLM's does: each step gives every running
// sequence a token, or a chunk of its prompt, within one budget of tokens. It
// has no clock; [scheduler.step] says how long the step takes.
type scheduler struct {
	cache       *cache
	timing      Timing
	budget      int // tokens in a step
	maxRunning  int
	running     []*sequence
	waiting     []*sequence
	preemptions uint64
	hitTokens   uint64
	seenTokens  uint64
	prompts     uint64 // prompt tokens computed or found
	generated   uint64
}

// emission is a token that a step made.
type emission struct {
	seq   *sequence
	token uint32
	last  string // finish reason, or ""
}

// step advances the batch once and returns what it made and how long it takes.
func (s *scheduler) step() ([]emission, time.Duration) {
	s.dropStopped()
	work := s.schedule()
	cost := s.timing.Step
	var out []emission
	for _, w := range work {
		cost += s.cost(w)
		w.seq.computed += w.tokens
		s.publish(w.seq)
		if w.seq.computed == len(w.seq.tokens) {
			out = append(out, s.sample(w.seq))
		}
	}
	s.retire(out)
	return out, cost
}

func (s *scheduler) idle() bool { return len(s.running) == 0 && len(s.waiting) == 0 }

// share is a sequence's part of a step.
type share struct {
	seq    *sequence
	tokens int
}

// schedule divides the budget: running sequences first, then waiting ones while
// there is room for them.
func (s *scheduler) schedule() []share {
	budget, preempted := s.budget, false
	var work []share
	for i := 0; i < len(s.running) && budget > 0; i++ {
		seq := s.running[i]
		n := min(len(seq.tokens)-seq.computed, budget)
		for !s.grow(seq, seq.computed+n) {
			preempted = true
			victim := s.running[len(s.running)-1]
			s.preempt(victim)
			if victim == seq {
				break
			}
		}
		if i < len(s.running) && s.running[i] == seq {
			work = append(work, share{seq, n})
			budget -= n
		}
	}
	for !preempted && budget > 0 && len(s.waiting) > 0 && len(s.running) < s.maxRunning {
		n, ok := s.admit(s.waiting[0], budget)
		if !ok {
			break
		}
		work = append(work, share{s.waiting[0], n})
		budget -= n
		s.running = append(s.running, s.waiting[0])
		s.waiting = s.waiting[1:]
	}
	return work
}

// admit claims what the cache holds of seq and blocks for its first chunk. Where
// there is no room it touches nothing: what is not used does not become recent.
func (s *scheduler) admit(seq *sequence, budget int) (int, bool) {
	s.cache.extend(&seq.chain, seq.tokens)
	// The last token is always computed: its output is what is wanted.
	found, idle := s.cache.held(seq.chain.digests, (len(seq.tokens)-1)/s.cache.blockSize)
	start := len(found) * s.cache.blockSize
	n := min(len(seq.tokens)-start, budget)
	if s.cache.blocksFor(start+n)-len(found) > s.cache.pool.Idle()-idle {
		return 0, false
	}
	for _, id := range found {
		s.cache.pool.Share(id)
	}
	seq.blocks, seq.computed, seq.filled = found, start, len(found)
	s.grow(seq, start+n)
	if !seq.begun {
		seq.begun, seq.cached = true, seq.computed
		s.hitTokens += uint64(seq.cached)
		s.seenTokens += uint64(seq.prompt)
		s.prompts += uint64(seq.prompt)
	}
	return n, true
}

// grow makes sure that seq has blocks for so many tokens.
func (s *scheduler) grow(seq *sequence, tokens int) bool {
	need := s.cache.blocksFor(tokens) - len(seq.blocks)
	if need <= 0 {
		return true
	}
	ids, ok := s.cache.allocate(need)
	seq.blocks = append(seq.blocks, ids...)
	return ok
}

// preempt takes the blocks of a running sequence, which starts over later.
func (s *scheduler) preempt(seq *sequence) {
	s.preemptions++
	s.cache.pool.Release(seq.blocks)
	seq.blocks, seq.computed, seq.filled = nil, 0, 0
	s.running = s.running[:len(s.running)-1]
	s.waiting = append([]*sequence{seq}, s.waiting...)
}

// publish fills the blocks that have become full.
func (s *scheduler) publish(seq *sequence) {
	s.cache.extend(&seq.chain, seq.tokens)
	full := seq.computed / s.cache.blockSize
	s.cache.fill(&seq.chain, seq.blocks, seq.tokens, seq.filled, full)
	seq.filled = max(seq.filled, full)
}

// sample makes the sequence's next token.
func (s *scheduler) sample(seq *sequence) emission {
	i := len(seq.tokens) - seq.prompt
	e := emission{seq: seq, token: seq.plan[i]}
	seq.tokens = append(seq.tokens, e.token)
	s.generated++
	switch {
	case i+1 == len(seq.plan):
		e.last = "stop"
	case i+1 == seq.limit:
		e.last = "length"
	}
	return e
}

// retire frees the blocks of the sequences that have ended.
func (s *scheduler) retire(out []emission) {
	for _, e := range out {
		if e.last != "" {
			s.remove(e.seq)
		}
	}
}

func (s *scheduler) dropStopped() {
	for _, list := range []*[]*sequence{&s.running, &s.waiting} {
		kept := (*list)[:0:0]
		for _, seq := range *list {
			if seq.stopped {
				s.cache.pool.Release(seq.blocks)
				continue
			}
			kept = append(kept, seq)
		}
		*list = kept
	}
}

func (s *scheduler) remove(seq *sequence) {
	s.cache.pool.Release(seq.blocks)
	for i, r := range s.running {
		if r == seq {
			s.running = append(s.running[:i:i], s.running[i+1:]...)
			return
		}
	}
}

// cost is what one share adds to its step. A long context makes each token
// dearer, because it attends to all before it.
func (s *scheduler) cost(w share) time.Duration {
	per := s.timing.Decode
	if w.tokens > 1 {
		per = s.timing.Prefill
	}
	base := per * time.Duration(w.tokens)
	return base + base*time.Duration(w.seq.computed)/time.Duration(s.timing.Context)
}
