package lab

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sallyport-ai/sallyport/routing/sim"
)

// small is an engine whose steps are easy to reckon: a step takes 1000 ns, a
// prompt token 64, a decoded one 512, and a context of 64 doubles either.
func small(blocks, contents int) *engine {
	return newEngine(limits{
		timing: sim.Timing{Step: 1000, Prefill: 64, Decode: 512, Context: 64},
		block:  4, budget: 16, running: 3,
	}, blocks, contents)
}

func sequence(from, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(from + i)
	}
	return out
}

// failer is what testing.TB and rapid.T have in common.
type failer interface {
	Helper()
	Fatal(args ...any)
}

// steps runs e until it is idle and returns how long each step took.
func steps(t failer, e *engine) (took []int64) {
	t.Helper()
	for e.begin(0); e.busy; e.begin(0) {
		took = append(took, e.end)
		e.complete()
		if len(took) > 100_000 {
			t.Fatal("the engine makes no progress")
		}
	}
	return took
}

func TestAStepCostsWhatItComputes(t *testing.T) {
	e := small(16, 8)
	e.stepped = true
	e.waiting = []*job{{contents: sequence(0, 5), prompt: 20, output: 3}}
	got := steps(t, e)
	want := []int64{
		1000 + 16*64,             // a chunk of the budget
		1000 + 4*64 + 4*64*16/64, // the rest, which attends to 16 tokens: the first token
		1000 + 512 + 512*20/64,   // the second
		1000 + 512 + 512*21/64,   // the third
	}
	if !slices.Equal(got, want) {
		t.Errorf("steps took %v, want %v", got, want)
	}
}

func TestTheLastTokenIsAlwaysComputed(t *testing.T) {
	for _, c := range []struct {
		claim       string
		prompt, hit int
	}{
		{"a prompt of whole blocks does not find its last one", 16, 12},
		{"a prompt with a tail finds all its full blocks", 18, 16},
		{"a prompt shorter than a block finds nothing", 3, 0},
	} {
		t.Run(c.claim, func(t *testing.T) {
			e := small(64, 8)
			for i := range 2 {
				j := &job{contents: sequence(0, c.prompt/4), prompt: c.prompt, output: 2}
				e.waiting = append(e.waiting, j)
				steps(t, e)
				if want := i * c.hit; j.hit != want {
					t.Errorf("request %d found %d tokens, want %d", i, j.hit, want)
				}
			}
		})
	}
}

func TestTheLeastRecentlyUsedGoesFirst(t *testing.T) {
	e := small(8, 12)
	ask := func(from int) int {
		j := &job{contents: sequence(from, 2), prompt: 9, output: 1}
		e.waiting = append(e.waiting, j)
		steps(t, e)
		return j.hit
	}
	for i, c := range []struct {
		claim     string
		from, hit int
	}{
		{"the first is new", 0, 0},
		{"the second is new", 2, 0},
		{"the first is found, and is now the most recent", 0, 8},
		{"a third needs room: the second's end goes", 4, 0},
		{"the first is still there", 0, 8},
		{"a fourth takes the rest of the second", 6, 0},
		{"the second is gone", 2, 0},
	} {
		if hit := ask(c.from); hit != c.hit {
			t.Errorf("%d: %s: found %d tokens, want %d", i, c.claim, hit, c.hit)
		}
	}
}

// traffic is random requests with common prefixes, every one of which fits.
func traffic(r *rand.Rand, n, blocks int) (jobs []*job, contents int) {
	b := newBuilder("", 4)
	for range n {
		ids := make([]uint64, r.IntN(blocks/2))
		for i := range ids {
			ids[i] = uint64(r.IntN(2))
		}
		b.add(Request{Prompt: len(ids)*4 + 1 + r.IntN(3), Output: 1 + r.IntN(8)}, ids)
	}
	for _, q := range b.t.Requests {
		jobs = append(jobs, &job{contents: q.Blocks, prompt: q.Prompt, output: q.Output})
	}
	return jobs, max(len(b.t.parents), 1)
}

// drive feeds jobs at times and returns when each had its first token and
// ended; look is called after each step.
func drive(t failer, e *engine, jobs []*job, at []int64, look func()) (firsts, ends map[*job]int64) {
	t.Helper()
	firsts, ends = map[*job]int64{}, map[*job]int64{}
	for i, n := 0, 0; i < len(jobs) || e.busy; n++ {
		if n > 1_000_000 {
			t.Fatal("the engine makes no progress")
		}
		if i < len(jobs) && (!e.busy || at[i] <= e.end) {
			e.arrive(jobs[i], at[i])
			i++
			continue
		}
		e.complete()
		for _, j := range e.firsts {
			firsts[j] = e.end
		}
		for _, j := range e.ended {
			ends[j] = e.end
		}
		look()
		e.begin(e.end)
	}
	return firsts, ends
}

func times(r *rand.Rand, n int, mean float64) []int64 {
	at := make([]int64, n)
	now := 0.0
	for i := range at {
		now += r.ExpFloat64() * mean
		at[i] = int64(now)
	}
	return at
}

func TestEveryRequestEndsAndNoBlockIsLost(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		blocks := rapid.IntRange(8, 40).Draw(rt, "blocks")
		jobs, contents := traffic(r, 30, blocks)
		e := small(blocks, contents)
		resident := map[int32]bool{}
		look := func() {
			for _, c := range e.cache.changes {
				if resident[c.content] == c.stored {
					rt.Fatalf("block %d: stored %v twice", c.content, c.stored)
				}
				resident[c.content] = c.stored
			}
			e.cache.changes = e.cache.changes[:0]
			for c, at := range e.cache.first {
				if (at != nowhere) != resident[int32(c)] {
					rt.Fatalf("block %d is held: %v, as events tell: %v", c, at != nowhere, resident[int32(c)])
				}
			}
		}
		firsts, ends := drive(rt, e, jobs, times(r, len(jobs), 4000), look)
		for i, j := range jobs {
			switch first, ended := firsts[j], ends[j]; {
			case ended == 0 || first == 0 || first > ended || j.made != j.output:
				rt.Fatalf("request %d: first token at %d, end at %d, %d of %d tokens", i, first, ended, j.made, j.output)
			case j.hit >= j.prompt || j.hit%4 != 0:
				rt.Fatalf("request %d found %d of %d tokens", i, j.hit, j.prompt)
			}
		}
		if e.cache.Idle() != blocks {
			rt.Fatalf("%d of %d blocks are free at the end", e.cache.Idle(), blocks)
		}
	})
}

func TestLeapingOverDecodesChangesNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		mean := rapid.SampledFrom([]float64{500, 5000, 50_000}).Draw(rt, "mean")
		outcome := func(stepped bool) (all []string) {
			r := rand.New(rand.NewPCG(seed, 1))
			jobs, contents := traffic(r, 30, 24)
			for _, j := range jobs {
				j.output *= 5
			}
			e := small(48, contents)
			e.stepped = stepped
			firsts, ends := drive(rt, e, jobs, times(r, len(jobs), mean), func() {})
			for _, j := range jobs {
				all = append(all, fmt.Sprint(firsts[j], ends[j], j.hit))
			}
			return append(all, fmt.Sprint(e.preemptions))
		}
		if a, b := outcome(true), outcome(false); !slices.Equal(a, b) {
			rt.Fatalf("step by step: %v\nleaping:      %v", a, b)
		}
	})
}

func TestAForkDoesNotTouchItsOrigin(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	jobs, contents := traffic(r, 40, 24)
	run := func(forking bool) (all []string) {
		var own []*job
		for _, j := range jobs {
			own = append(own, &job{contents: j.contents, prompt: j.prompt, output: j.output})
		}
		e, fork := small(24, contents), small(24, contents)
		var foretold int64
		firsts, ends := drive(t, e, own, times(rand.New(rand.NewPCG(6, 1)), len(own), 3000), func() {
			if !forking {
				return
			}
			for range 2 { // a fork is used again and again
				fork.copyFrom(e)
				foretold = fork.firstToken([]landing{{e.end + 100, &job{contents: jobs[0].contents, prompt: jobs[0].prompt, output: 3}}})
				if foretold < e.end+100 {
					t.Fatal("the first token came before the request")
				}
			}
		})
		for _, j := range own {
			all = append(all, fmt.Sprint(firsts[j], ends[j], j.hit))
		}
		return all
	}
	if a, b := run(false), run(true); !slices.Equal(a, b) {
		t.Errorf("alone:  %v\nforked: %v", a, b)
	}
}

func TestAForkForetellsTheFirstToken(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 1))
	jobs, contents := traffic(r, 20, 24)
	e, fork := small(24, contents), small(24, contents)
	at := times(r, len(jobs), 3000)
	for i, j := range jobs[:19] {
		for e.busy && e.end < at[i] {
			e.complete()
			e.begin(e.end)
		}
		e.arrive(j, at[i])
	}
	last := jobs[19]
	fork.copyFrom(e)
	twin := *last
	foretold := fork.firstToken([]landing{{e.end + 1, &twin}})
	firsts, _ := drive(t, e, []*job{last}, []int64{e.end + 1}, func() {})
	if firsts[last] != foretold || foretold == 0 {
		t.Errorf("first token at %d, foretold %d", firsts[last], foretold)
	}
}

func BenchmarkEngine(b *testing.B) {
	source, _, err := Synthetic("chat", 1000)
	if err != nil {
		b.Fatal(err)
	}
	tr, err := source(1)
	if err != nil {
		b.Fatal(err)
	}
	at, order := tr.arrivals(4, 1)
	for b.Loop() {
		var jobs []*job
		for _, o := range order {
			q := tr.Requests[o]
			jobs = append(jobs, &job{contents: q.Blocks, prompt: q.Prompt, output: q.Output})
		}
		e := newEngine(engineLimits(tr.Block), tr.Blocks()/4, tr.Blocks())
		drive(b, e, jobs, at, func() { e.cache.changes = e.cache.changes[:0] })
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(len(order))/float64(time.Microsecond), "µs/request")
}
