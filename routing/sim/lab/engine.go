package lab

import (
	"math"

	"github.com/sallyport-ai/sallyport/routing/sim"
)

// job is one request inside an engine. The engine owns it until it has ended.
type job struct {
	contents []int32
	prompt   int // tokens
	output   int

	slots    []int32
	computed int // tokens whose keys and values exist
	filled   int // prompt blocks that can be found by others
	made     int // tokens sampled
	hit      int // tokens found cached when it was first scheduled
	begun    bool
}

func (j *job) tokens() int { return j.prompt + j.made }

// limits are what an engine's scheduler is configured with.
type limits struct {
	timing  sim.Timing // every field set
	block   int        // tokens
	budget  int        // tokens in a step
	running int        // sequences at once
	stepped bool       // never leap: for the test that leaping changes nothing
}

// engine is one replica. It has no clock: begin and complete are called in turn
// by whoever keeps the time.
//
// A step changes the state when it begins and shows what it made when it is
// complete, as an engine's does. Runs of steps in which every sequence decodes
// one token, none ends and none needs a block are one leap, whose state changes
// when it is complete, so that an arrival can cut it short.
type engine struct {
	limits
	cache   *cache
	running []*job
	waiting []*job

	busy    bool
	blocked bool  // the first in waiting found no room in the last step
	start   int64 // of the step or leap, ns
	end     int64
	leap    int // steps; 0: one step that is done but for its time

	work   []*job // of this step
	firsts []*job // made their first token in this step
	ended  []*job // ended in this step

	pool []*job // of a fork: its copies of jobs

	computed    int64 // prompt tokens, ever
	preemptions int
}

func newEngine(l limits, blocks, contents int) *engine {
	return &engine{limits: l, cache: newCache(blocks, contents)}
}

func (e *engine) idle() bool { return len(e.running) == 0 && len(e.waiting) == 0 }

// arrive queues j at time now. A leap ends with the step that is going on.
func (e *engine) arrive(j *job, now int64) {
	e.waiting = append(e.waiting, j)
	if !e.busy {
		e.begin(now)
		return
	}
	if e.leap > 0 && len(e.waiting) == 1 {
		e.cut(now)
	}
}

// cut shortens a leap to the step that is going on at now.
func (e *engine) cut(now int64) {
	base, sum, n := e.leapCost()
	end := e.start
	for k := range e.leap {
		end += base + e.attention(sum+int64(k)*n)
		if end >= now {
			e.leap, e.end = k+1, end
			return
		}
	}
}

// begin starts the next step at now, if there is anything to do.
func (e *engine) begin(now int64) {
	e.firsts, e.ended = e.firsts[:0], e.ended[:0]
	e.busy, e.leap, e.start = !e.idle(), 0, now
	if !e.busy {
		return
	}
	if e.leap = e.reach(); e.leap > 0 {
		base, sum, n := e.leapCost()
		e.end = now
		for k := range e.leap {
			e.end += base + e.attention(sum+int64(k)*n)
		}
		return
	}
	e.end = now + e.step()
}

// complete ends the step or leap. What it made is in firsts, ended and the
// cache's changes until the next begin.
func (e *engine) complete() {
	for _, j := range e.running {
		j.computed += e.leap
		j.made += e.leap
	}
	e.leap = 0
}

// reach is how many steps can be passed over at once.
func (e *engine) reach() int {
	if e.stepped || len(e.running) == 0 || len(e.waiting) > 0 && !e.blocked {
		return 0
	}
	n := math.MaxInt
	for _, j := range e.running {
		if j.made == 0 || j.tokens()-j.computed != 1 {
			return 0
		}
		n = min(n, j.output-j.made-1, len(j.slots)*e.block-j.computed)
	}
	return max(n, 0)
}

// leapCost is what each step of a leap costs: base, and attention over a sum of
// contexts that grows by n with each step.
func (e *engine) leapCost() (base, sum, n int64) {
	n = int64(len(e.running))
	for _, j := range e.running {
		sum += int64(j.computed)
	}
	return e.timing.Step.Nanoseconds() + n*e.timing.Decode.Nanoseconds(), sum, n
}

// attention is what decoding costs for contexts of so many tokens in all.
func (e *engine) attention(contexts int64) int64 {
	return e.timing.Decode.Nanoseconds() * contexts / int64(e.timing.Context)
}

// step advances the batch once and returns how long that takes: running
// sequences first, then waiting ones while there is room.
func (e *engine) step() int64 {
	budget, preempted := e.budget, false
	cost, contexts := e.timing.Step.Nanoseconds(), int64(0)
	work := e.work[:0]
	spend := func(j *job, n int) {
		budget -= n
		work = append(work, j)
		if n == 1 {
			cost += e.timing.Decode.Nanoseconds()
			contexts += int64(j.computed)
		} else {
			base := e.timing.Prefill.Nanoseconds() * int64(n)
			cost += base + base*int64(j.computed)/int64(e.timing.Context)
		}
		e.computed += int64(max(0, min(n, j.prompt-j.computed)))
		j.computed += n
	}
	for i := 0; i < len(e.running) && budget > 0; i++ {
		j := e.running[i]
		n := min(j.tokens()-j.computed, budget)
		if e.makeRoom(j, n, &preempted) {
			spend(j, n)
		}
	}
	e.blocked = false
	for !preempted && budget > 0 && len(e.waiting) > 0 {
		j := e.waiting[0]
		n, ok := e.admit(j, budget)
		if e.blocked = !ok; !ok {
			break
		}
		e.running = append(e.running, j)
		e.waiting = e.waiting[1:]
		spend(j, n)
	}
	e.work = work
	for _, j := range work {
		e.publish(j)
		if j.computed == j.tokens() {
			e.sample(j)
		}
	}
	for _, j := range e.ended {
		e.remove(j)
		e.blocked = false
	}
	return cost + e.attention(contexts)
}

// makeRoom gets j blocks for n more tokens, taking those of the last to have
// come where it must; it reports false if that was j itself.
func (e *engine) makeRoom(j *job, n int, preempted *bool) bool {
	for !e.grow(j, j.computed+n) {
		*preempted = true
		last := e.running[len(e.running)-1]
		e.preempt(last)
		if last == j {
			return false
		}
	}
	return true
}

// admit claims what the cache holds of j and blocks for its first chunk.
func (e *engine) admit(j *job, budget int) (int, bool) {
	if len(e.running) >= e.limits.running {
		return 0, false
	}
	// The last token is always computed: its output is what is wanted.
	usable := j.contents[:min(len(j.contents), (j.tokens()-1)/e.block)]
	held, idle := e.cache.held(usable)
	start := held * e.block
	n := min(j.tokens()-start, budget)
	if ceil(start+n, e.block)-held > e.cache.Idle()-idle {
		return 0, false
	}
	j.slots = e.cache.take(j.slots[:0], usable[:held])
	j.computed, j.filled = start, held
	e.grow(j, start+n)
	if !j.begun {
		j.begun, j.hit = true, start
	}
	return n, true
}

func ceil(n, d int) int { return (n + d - 1) / d }

// grow makes sure that j has blocks for so many tokens.
func (e *engine) grow(j *job, tokens int) bool {
	need := ceil(tokens, e.block) - len(j.slots)
	if need > e.cache.Idle() {
		return false
	}
	if need > 0 {
		j.slots = e.cache.allocate(j.slots, need)
	}
	return true
}

// preempt takes the blocks of the last running sequence, which starts over.
func (e *engine) preempt(j *job) {
	e.preemptions++
	e.cache.Release(j.slots)
	j.slots, j.computed, j.filled = j.slots[:0], 0, 0
	e.running = e.running[:len(e.running)-1]
	e.waiting = append([]*job{j}, e.waiting...)
}

// publish lets others find the prompt blocks that have become full.
func (e *engine) publish(j *job) {
	for full := min(j.computed/e.block, len(j.contents)); j.filled < full; j.filled++ {
		e.cache.fill(j.slots[j.filled], j.contents[j.filled])
		e.blocked = false // who waits may need less room now
	}
}

func (e *engine) sample(j *job) {
	j.made++
	if j.made == 1 {
		e.firsts = append(e.firsts, j)
	}
	if j.made == j.output {
		e.ended = append(e.ended, j)
	}
}

func (e *engine) remove(j *job) {
	e.cache.Release(j.slots)
	for i, r := range e.running {
		if r == j {
			e.running = append(e.running[:i], e.running[i+1:]...)
			return
		}
	}
}

// fail loses everything: memory and all jobs, which it returns.
func (e *engine) fail() []*job {
	lost := append(append([]*job(nil), e.running...), e.waiting...)
	if e.busy { // what ends with the step that is going on has not ended yet
		lost = append(lost, e.ended...)
	}
	e.cache = newCache(len(e.cache.slots), len(e.cache.first))
	e.running, e.waiting, e.busy, e.leap, e.blocked = nil, nil, false, 0, false
	e.firsts, e.ended = nil, nil
	return lost
}

// copyFrom makes e, which nothing else uses, the same as o. Jobs are copied, into
// those that e had before.
func (e *engine) copyFrom(o *engine) {
	c, pool, running, waiting, work := e.cache, e.pool, e.running[:0], e.waiting[:0], e.work
	*e = *o
	e.cache, e.work, e.firsts, e.ended = c, work, nil, nil
	c.copyFrom(o.cache)
	for len(pool) < len(o.running)+len(o.waiting) {
		pool = append(pool, new(job))
	}
	for i, j := range o.running {
		running = append(running, pool[i].copyFrom(j))
	}
	for i, j := range o.waiting {
		waiting = append(waiting, pool[len(o.running)+i].copyFrom(j))
	}
	e.pool, e.running, e.waiting = pool, running, waiting
}

func (j *job) copyFrom(o *job) *job {
	slots := append(j.slots[:0], o.slots...)
	*j = *o
	j.slots = slots
	return j
}

// landing is a job on its way to an engine.
type landing struct {
	at  int64
	job *job
}

// firstToken runs the engine, with these landings and no other, until the last
// of them has its first token, and returns when that is.
func (e *engine) firstToken(coming []landing) int64 {
	last := coming[len(coming)-1].job
	for {
		if len(coming) > 0 && (!e.busy || coming[0].at <= e.end) {
			e.arrive(coming[0].job, coming[0].at)
			coming = coming[1:]
			continue
		}
		e.complete()
		if last.made > 0 {
			return e.end
		}
		e.begin(e.end)
	}
}
