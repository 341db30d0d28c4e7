package lab

import (
	"container/heap"
	"math/rand/v2"
)

// Times, in ns, that are the same for every strategy.
const (
	ms = int64(1e6)

	network   = ms / 2   // one way between a gateway and a relay
	eventLag  = 12 * ms  // from the end of a step until gateways know what it changed
	resync    = 100 * ms // from a hole in the events until it is filled, where it is
	backoff   = 50 * ms  // a caller that was refused comes again
	detection = 500 * ms // a caller learns that its replica is gone
)

// call is one request as its caller and its gateway see it.
type call struct {
	req     *Request
	gateway int
	arrived int64 // at the gateway

	// Of the attempt that is going on.
	replica   int
	job       *job
	placed    int64
	landed    int64 // at the relay; 0: on its way
	predicted int   // prompt tokens that the strategy expects to be cached
	uncached  int   // prompt tokens that it expects to be computed
	alone     bool  // the strategy saw nothing else there
	begun     bool  // the relay saw the first token
	belied    bool  // it came too late for what was predicted

	first    int64 // when the gateway saw the first token; 0: not yet
	refusals int
	over     bool
	failed   bool // its replica was lost after the first token
}

// report is what a relay, or a scraper, says of a replica at a time.
type report struct {
	at            int64
	waitingTokens int64 // that gateways expect to be computed, of prompts without a first token
	waiting       int   // such requests
	running       int   // requests with a first token
	queued        int   // requests that the engine has not scheduled
	usedBlocks    int
}

// strategy chooses replicas. One serves every gateway of a run; what gateways do
// not share it keeps by gateway.
type strategy interface {
	// pick chooses a replica for c, which has come to its gateway, and takes it
	// into account; nowhere: none can take it now.
	pick(w *world, c *call) int
	// first and end: the gateway saw the first token, or the end, of c. A call
	// whose replica failed ends too, perhaps without a first token.
	first(w *world, c *call)
	end(w *world, c *call)
	// report has come from a replica.
	report(w *world, replica int, r report)
}

// traits is what a strategy needs of its surroundings.
type traits struct {
	events bool  // it reads KV events
	loss   loss  // what it does about lost ones
	every  int64 // between reports, ns
}

// loss is what becomes of a hole in the events.
type loss int

const (
	forget  loss = iota // nobody notices
	replay              // the hole is filled; what is known meanwhile still counts
	suspend             // the hole is filled; nothing counts meanwhile
)

// happening is something at a time.
type happening struct {
	at  int64
	seq int // orders what happens at the same time
	do  func()
}

type agenda []happening

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].seq < a[j].seq
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(happening)) }
func (a *agenda) Pop() any {
	old := *a
	x := old[len(old)-1]
	*a = old[:len(old)-1]
	return x
}

// setup is one run of one strategy.
type setup struct {
	trace    *Trace
	limits   limits
	replicas int
	gateways int
	blocks   int     // of each replica
	rate     float64 // requests a second
	seed     uint64
	faults   Faults
}

// replica is an engine and what relays and gateways know of it.
type replica struct {
	engine *engine
	wake   int // which wake is meant
	coming []landing
	out    bool // takes no requests
	work   map[*call]struct{}
	report report

	lost   []change // what a hole in the events hides
	hole   bool
	filler bool // the hole is being filled
}

// world is a fleet in simulated time.
type world struct {
	setup
	now      int64
	seq      int
	agenda   agenda
	replicas []*replica
	calls    []*call
	byJob    map[*job]*call
	left     int // calls that are not over
	rng      *rand.Rand
	faulty   *rand.Rand
	view     *residency // nil: the strategy reads no events
	traits   traits
	strategy strategy
	err      error
	last     int64 // when the last call ended
}

// newWorld prepares a run.
func newWorld(s setup, make func(*world) (strategy, traits)) (*world, error) {
	w := &world{
		setup: s, byJob: map[*job]*call{},
		rng: rand.New(rand.NewPCG(s.seed, 2)), faulty: rand.New(rand.NewPCG(s.seed, 3)),
	}
	for range s.replicas {
		w.replicas = append(w.replicas, &replica{engine: newEngine(s.limits, s.blocks, s.trace.Blocks()), work: map[*call]struct{}{}})
	}
	w.strategy, w.traits = make(w)
	if w.traits.events {
		var err error
		if w.view, err = newResidency(s.trace, s.replicas, s.blocks); err != nil {
			return nil, err
		}
	}
	at, order := s.trace.arrivals(s.rate, s.seed)
	w.left = len(order)
	for i, o := range order {
		c := &call{req: &s.trace.Requests[o], gateway: w.rng.IntN(s.gateways), arrived: at[i], replica: nowhere}
		w.calls = append(w.calls, c)
	}
	w.arrive(0)
	if w.traits.every > 0 {
		w.at(w.traits.every, w.tick)
	}
	w.plan(at[len(at)-1])
	return w, nil
}

// at has do happen at a time.
func (w *world) at(t int64, do func()) {
	w.seq++
	heap.Push(&w.agenda, happening{t, w.seq, do})
}

// arrive schedules call i, which schedules the next.
func (w *world) arrive(i int) {
	if i == len(w.calls) {
		return
	}
	w.at(w.calls[i].arrived, func() {
		w.place(w.calls[i])
		w.arrive(i + 1)
	})
}

// run goes on until every call is over.
func (w *world) run() error {
	for w.left > 0 && w.err == nil {
		w.next()
	}
	return w.err
}

func (w *world) next() {
	h := heap.Pop(&w.agenda).(happening)
	w.now = h.at
	h.do()
}

// place has the strategy choose for c, which is at its gateway.
func (w *world) place(c *call) {
	c.predicted, c.uncached, c.landed = 0, c.req.Prompt, 0
	c.alone, c.begun, c.belied = false, false, false
	r := w.strategy.pick(w, c)
	if r == nowhere {
		c.refusals++
		w.at(w.now+backoff, func() { w.place(c) })
		return
	}
	c.replica, c.placed = r, w.now
	c.job = &job{contents: c.req.Blocks, prompt: c.req.Prompt, output: c.req.Output}
	w.byJob[c.job] = c
	x, j := w.replicas[r], c.job
	x.coming = append(x.coming, landing{w.now + network, j})
	w.at(w.now+network, func() { w.land(r, c, j) })
}

// land brings a call to the relay of replica r, and to its engine.
func (w *world) land(r int, c *call, j *job) {
	x := w.replicas[r]
	if len(x.coming) == 0 || x.coming[0].job != j {
		return // the replica was lost meanwhile, and the call with it
	}
	x.coming = x.coming[1:]
	c.landed = w.now
	x.work[c] = struct{}{}
	before := x.engine.end
	wasBusy := x.engine.busy
	x.engine.arrive(j, w.now)
	if !wasBusy || x.engine.end != before {
		w.await(r)
	}
}

// await schedules the end of the step that replica r is in.
func (w *world) await(r int) {
	x := w.replicas[r]
	x.wake++
	wake := x.wake
	w.at(x.engine.end, func() {
		if x.wake == wake {
			w.complete(r)
		}
	})
}

// complete ends a step of replica r and begins the next.
func (w *world) complete(r int) {
	x := w.replicas[r]
	x.engine.complete()
	for _, j := range x.engine.firsts {
		c := w.byJob[j]
		c.begun = true
		w.at(w.now+network, func() { w.answered(c, j) })
	}
	for _, j := range x.engine.ended {
		c := w.byJob[j]
		w.at(w.now+network, func() { w.ended(c, j) })
		delete(x.work, c)
	}
	w.publish(r)
	x.engine.begin(w.now)
	if x.engine.busy {
		w.await(r)
	}
}

// answered is the first token at the gateway. The job says of which attempt.
func (w *world) answered(c *call, j *job) {
	if c.job != j || c.over {
		return
	}
	c.first = w.now
	w.strategy.first(w, c)
}

func (w *world) ended(c *call, j *job) {
	if c.job != j || c.over {
		return
	}
	w.finish(c)
}

func (w *world) finish(c *call) {
	c.over = true
	w.left--
	w.last = w.now
	w.strategy.end(w, c)
	delete(w.byJob, c.job)
}

// publish sends what the last step changed to the gateways.
func (w *world) publish(r int) {
	x := w.replicas[r]
	changes := x.engine.cache.changes
	if len(changes) == 0 {
		return
	}
	if w.view == nil {
		x.engine.cache.changes = changes[:0]
		return
	}
	x.engine.cache.changes = nil
	lost := w.faults.EventLoss > 0 && w.faulty.Float64() < w.faults.EventLoss
	w.at(w.now+eventLag, func() { w.deliver(r, changes, lost) })
}

// deliver is what gateways, or the relay before them, make of a batch.
func (w *world) deliver(r int, changes []change, lost bool) {
	x := w.replicas[r]
	if lost {
		if w.traits.loss != forget {
			x.lost = append(x.lost, changes...)
			x.hole = true
		}
		return
	}
	if !x.hole {
		w.fail(w.view.apply(r, changes))
		return
	}
	// The batch after the hole shows it, and has to wait until it is filled.
	x.lost = append(x.lost, changes...)
	if x.filler {
		return
	}
	x.filler = true
	if w.traits.loss == suspend {
		w.view.streams[r].Suspend()
	}
	w.at(w.now+resync, func() {
		w.fail(w.view.apply(r, x.lost))
		w.view.streams[r].Commit()
		x.lost, x.hole, x.filler = nil, false, false
	})
}

func (w *world) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

// tick makes a report of every replica.
func (w *world) tick() {
	for i, x := range w.replicas {
		r := report{at: w.now, queued: len(x.engine.waiting), usedBlocks: x.engine.cache.used()}
		for c := range x.work {
			if c.begun {
				r.running++
			} else {
				r.waiting++
				r.waitingTokens += int64(c.uncached)
			}
		}
		x.report = r
		w.strategy.report(w, i, r)
	}
	w.at(w.now+w.traits.every, w.tick)
}
