package lab

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sallyport-ai/sallyport/routing/sim"
)

// Config is what to run. Zero fields have the defaults that are named.
type Config struct {
	Source         Source
	Replicas       int       // default 8
	Gateways       int       // default 1
	Strategies     []string  // default all
	Loads          []float64 // of the oracle's saturation; default 0.5, 0.8, 0.95
	Capacities     []float64 // of each replica, in different blocks of the trace; default 0.1, 0.3, 1
	Seeds          int       // runs of each; default 3
	FirstSeed      uint64    // of the first run, the next has the next; default 1
	OracleRequests int       // the oracle's part of the trace; default 2000
	OracleSeeds    int       // default 3, and at most Seeds
	TuneRequests   int       // the part of the trace on which rivals are tuned; default 1000
	Faults         Faults
	Progress       func(string) // told what is done, one thing at a time; nil is told nothing
}

// engineLimits resemble a 30-billion-parameter model on two large accelerators:
// 16,000 prompt tokens a second, as llm-d's default has it, less with context.
func engineLimits(block int) limits {
	return limits{
		timing: sim.Timing{Step: 6 * time.Millisecond, Prefill: 62500 * time.Nanosecond, Decode: 150 * time.Microsecond, Context: 32768},
		block:  block, budget: 2048, running: 128,
	}
}

// Result is one row: a strategy at a load and a capacity.
type Result struct {
	Trace           string  `json:"trace"`
	Strategy        string  `json:"strategy"`
	Load            float64 `json:"load"`
	Capacity        float64 `json:"capacity"`
	Replicas        int     `json:"replicas"`
	Gateways        int     `json:"gateways"`
	Requests        int     `json:"requests"` // of all seeds
	HitTokensShare  float64 `json:"hit_tokens_share"`
	OracleShare     float64 `json:"oracle_share"` // hit tokens on the oracle's part of the trace, over the oracle's
	TTFTP50         float64 `json:"ttft_p50_ms"`
	TTFTP90         float64 `json:"ttft_p90_ms"`
	TTFTP99         float64 `json:"ttft_p99_ms"`
	ThroughputTokS  float64 `json:"throughput_tok_s"` // prompt and output tokens
	Imbalance       float64 `json:"imbalance"`        // most prompt tokens computed by a replica, over the mean
	refusals        int
	preemptions     int
	failed          int
	requestsPerS    float64
	blocksByReplica int
}

// Report is everything that a run of the lab found.
type Report struct {
	Trace       string
	Requests    int // of one seed
	Seeds       int
	Replicas    int
	Gateways    int
	Infinite    float64             // hit share of a cache without limits
	Saturation  map[float64]float64 // requests a second that the oracle's fleet does, by capacity
	Tuned       map[string]string   // parameters by strategy
	Faults      Faults
	OracleShare int // requests in the oracle's part
	Results     []Result
}

func (c Config) withDefaults() Config {
	set := func(n *int, def int) {
		if *n == 0 {
			*n = def
		}
	}
	set(&c.Replicas, 8)
	set(&c.Gateways, 1)
	set(&c.Seeds, 3)
	c.FirstSeed = max(c.FirstSeed, 1)
	set(&c.OracleRequests, 2000)
	set(&c.OracleSeeds, 3)
	set(&c.TuneRequests, 1000)
	c.OracleSeeds = min(c.OracleSeeds, c.Seeds)
	if len(c.Strategies) == 0 {
		c.Strategies = Strategies()
	}
	if len(c.Loads) == 0 {
		c.Loads = []float64{0.5, 0.8, 0.95}
	}
	if len(c.Capacities) == 0 {
		c.Capacities = []float64{0.1, 0.3, 1}
	}
	c.Progress = oneByOne(c.Progress)
	return c
}

func (c Config) check() error {
	if c.Source == nil {
		return errors.New("lab: no trace")
	}
	if c.Replicas < 1 || c.Replicas > 1024 || c.Gateways < 1 || c.Gateways > 64 || c.Seeds < 1 || c.OracleRequests < 1 || c.OracleSeeds < 1 || c.TuneRequests < 1 {
		return errors.New("lab: want 1 to 1024 replicas, 1 to 64 gateways, and at least one seed and request")
	}
	for _, x := range slices.Concat(c.Loads, c.Capacities) {
		if !(x > 0 && x <= 100) {
			return fmt.Errorf("lab: %g is no load or capacity: want more than 0", x)
		}
	}
	for _, s := range c.Strategies {
		if _, err := choicesOf(s); err != nil {
			return fmt.Errorf("lab: %w", err)
		}
	}
	return c.Faults.check(c.Replicas)
}

// Run runs everything that c asks for.
func Run(ctx context.Context, c Config) (*Report, error) {
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return nil, err
	}
	b := &bench{Config: c, rates: map[float64]float64{}, tuned: map[string]choice{}}
	for seed := range c.Seeds {
		t, err := c.Source(c.FirstSeed + uint64(seed))
		if err != nil {
			return nil, err
		}
		b.traces = append(b.traces, t)
	}
	c.Progress(fmt.Sprintf("%s: %d requests; a cache without limits would find %.1f%% of their tokens",
		b.traces[0].Name, len(b.traces[0].Requests), 100*b.traces[0].InfiniteHitShare()))
	if err := b.saturate(ctx); err != nil {
		return nil, err
	}
	if err := b.tune(ctx); err != nil {
		return nil, err
	}
	return b.all(ctx)
}

// bench is a run of the lab.
type bench struct {
	Config
	traces []*Trace            // by seed
	rates  map[float64]float64 // load 1.0 by capacity, requests a second
	tuned  map[string]choice
}

// setup is the run of a part of a seed's trace.
func (b *bench) setup(seed, requests int, capacity, rate float64, f Faults) setup {
	t := b.traces[seed].First(requests)
	blocks := int(math.Ceil(capacity * float64(t.Blocks())))
	return setup{
		trace: t, limits: engineLimits(t.Block), replicas: b.Replicas, gateways: b.Gateways,
		// Less than the longest request would never serve it.
		blocks: max(blocks, ceil(b.traces[seed].longest(), t.Block)+1),
		rate:   rate, seed: b.FirstSeed + uint64(seed), faults: f,
	}
}

// oneByOne makes f callable by many.
func oneByOne(f func(string)) func(string) {
	if f == nil {
		return func(string) {}
	}
	var mu sync.Mutex
	return func(s string) {
		mu.Lock()
		defer mu.Unlock()
		f(s)
	}
}

// each runs n independent things on every processor there is.
func each(ctx context.Context, n int, do func(i int) error) error {
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range n {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return do(i)
		})
	}
	return g.Wait()
}

// saturate finds load 1.0 for each capacity: the rate at which the oracle's
// fleet gives first tokens while it is offered twice what it could do with a
// perfect cache.
func (b *bench) saturate(ctx context.Context) error {
	oracles, err := choicesOf("oracle")
	if err != nil {
		return err
	}
	rates := make([]float64, len(b.Capacities))
	err = each(ctx, len(rates), func(i int) error {
		s := b.setup(0, b.OracleRequests, b.Capacities[i], 1, Faults{})
		s.rate = 2 * ideal(s)
		w, err := newWorld(s, oracles[0].make)
		if err != nil {
			return err
		}
		if err := w.run(); err != nil {
			return err
		}
		rates[i] = w.served()
		return nil
	})
	for i, c := range b.Capacities {
		b.rates[c] = rates[i]
		b.Progress(fmt.Sprintf("capacity %g: load 1.0 is %.2f requests a second", c, rates[i]))
	}
	return err
}

// ideal is how many requests a second the fleet could do if every block were
// computed once and nobody ever waited.
func ideal(s setup) float64 {
	t, l := s.trace, s.limits.timing
	compute := (1 - t.InfiniteHitShare()) * float64(l.Prefill)
	var work float64
	for _, r := range t.Requests {
		work += float64(r.Prompt)*compute + float64(r.Output)*float64(l.Decode)
	}
	return float64(len(t.Requests)*s.replicas) / (work / 1e9)
}

// served is the rate of first tokens, in requests a second, between the first
// quarter of the arrivals and their end, weighing requests by their length.
func (w *world) served() float64 {
	end := w.calls[len(w.calls)-1].arrived
	start := end / 4
	var tokens, all float64
	for _, c := range w.calls {
		all += float64(c.req.Prompt)
		if c.first > start && c.first <= end {
			tokens += float64(c.req.Prompt)
		}
	}
	return share(tokens, all/float64(len(w.calls))) / (float64(end-start) / 1e9)
}

// cell is a load and a capacity.
type cell struct{ load, capacity float64 }

func (b *bench) cells() (all []cell) {
	for _, capacity := range b.Capacities {
		for _, load := range b.Loads {
			all = append(all, cell{load, capacity})
		}
	}
	return all
}

// tune picks the parameters of each strategy that has any: those with the least
// geometric mean of TTFT p90 over all cells, on the first seed. Ours has none.
func (b *bench) tune(ctx context.Context) error {
	cells := b.cells()
	for _, name := range b.Strategies {
		choices, err := choicesOf(name)
		if err != nil {
			return err
		}
		scores := make([]float64, len(choices)*len(cells))
		if len(choices) > 1 {
			err = each(ctx, len(scores), func(i int) error {
				at := cells[i%len(cells)]
				m, err := simulate(b.setup(0, b.TuneRequests, at.capacity, at.load*b.rates[at.capacity], b.Faults), choices[i/len(cells)])
				if err == nil {
					scores[i] = math.Log(m.quantile(0.9))
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		best, least := 0, math.Inf(1)
		for k := range choices {
			sum := 0.0
			for _, x := range scores[k*len(cells) : (k+1)*len(cells)] {
				sum += x
			}
			if sum < least {
				best, least = k, sum
			}
		}
		b.tuned[name] = choices[best]
		if len(choices) > 1 {
			b.Progress(fmt.Sprintf("%s: best of %d is %s", name, len(choices), choices[best].params))
		}
	}
	return nil
}

// runs are all runs of a strategy in one cell.
type runs struct {
	full []*measure // by seed, of the whole trace
	part []*measure // by seed, of the oracle's part
}

// all runs every strategy in every cell.
func (b *bench) all(ctx context.Context) (*Report, error) {
	names := slices.Clone(b.Strategies)
	if !slices.Contains(names, "oracle") {
		names = append(names, "oracle") // the others are measured by it
		oracles, err := choicesOf("oracle")
		if err != nil {
			return nil, err
		}
		b.tuned["oracle"] = oracles[0]
	}
	cells := b.cells()
	done := make([]runs, len(names)*len(cells))
	err := each(ctx, len(done), func(i int) error {
		name, at := names[i/len(cells)], cells[i%len(cells)]
		r, err := b.cell(name, at)
		if err != nil {
			return fmt.Errorf("lab: %s at load %g, capacity %g: %w", name, at.load, at.capacity, err)
		}
		done[i] = r
		b.Progress(fmt.Sprintf("%s at load %g, capacity %g: done", name, at.load, at.capacity))
		return nil
	})
	if err != nil {
		return nil, err
	}
	t := b.traces[0]
	out := &Report{
		Trace: t.Name, Requests: len(t.Requests), Seeds: b.Seeds, Replicas: b.Replicas, Gateways: b.Gateways,
		Infinite: t.InfiniteHitShare(), Saturation: b.rates, Tuned: map[string]string{}, Faults: b.Faults,
		OracleShare: min(b.OracleRequests, len(t.Requests)),
	}
	oracleAt := slices.Index(names, "oracle")
	for k, at := range cells {
		for n, name := range b.Strategies {
			out.Tuned[name] = b.tuned[name].params
			out.Results = append(out.Results, b.result(name, at, done[n*len(cells)+k], done[oracleAt*len(cells)+k]))
		}
	}
	return out, nil
}

// cell runs one strategy with every seed: on the whole trace, except for the
// oracle, and on the oracle's part of it.
func (b *bench) cell(name string, at cell) (runs, error) {
	var r runs
	rate := at.load * b.rates[at.capacity]
	for seed := range b.Seeds {
		whole := b.OracleRequests >= len(b.traces[seed].Requests)
		if seed < b.OracleSeeds {
			m, err := simulate(b.setup(seed, b.OracleRequests, at.capacity, rate, b.Faults), b.tuned[name])
			if err != nil {
				return r, err
			}
			r.part = append(r.part, m)
			if whole {
				r.full = append(r.full, m)
			}
		}
		if name == "oracle" || whole && seed < b.OracleSeeds {
			continue
		}
		m, err := simulate(b.setup(seed, 0, at.capacity, rate, b.Faults), b.tuned[name])
		if err != nil {
			return r, err
		}
		r.full = append(r.full, m)
	}
	if name == "oracle" {
		r.full = r.part
	}
	return r, nil
}

func pool(list []*measure) *measure {
	all := &measure{}
	for _, m := range list {
		all.add(m)
	}
	return all
}

func (b *bench) result(name string, at cell, r, oracle runs) Result {
	m := pool(r.full)
	part, best := pool(r.part), pool(oracle.part)
	return Result{
		Trace: b.traces[0].Name, Strategy: name, Load: at.load, Capacity: at.capacity,
		Replicas: b.Replicas, Gateways: b.Gateways, Requests: len(m.ttft),
		HitTokensShare: round(m.hitShare()), OracleShare: round(share(float64(part.hit), float64(best.hit))),
		TTFTP50: m.quantile(0.5), TTFTP90: m.quantile(0.9), TTFTP99: m.quantile(0.99),
		ThroughputTokS: round(m.throughput()), Imbalance: round(m.imbalance),
		refusals: m.refusals, preemptions: m.preemptions, failed: m.failed,
		requestsPerS: at.load * b.rates[at.capacity], blocksByReplica: b.setup(0, 0, at.capacity, 1, Faults{}).blocks,
	}
}

func round(x float64) float64 { return math.Round(x*1e4) / 1e4 }
