package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite testdata/schedule.jsonl")

// schedule is one engine and what is asked of it, with what this scheduler made
// of it: a line of testdata/schedule.jsonl. The placement lab's engine, which
// takes the same steps by another way, is held to the same lines.
type schedule struct {
	Claim    string         `json:"claim"`
	Exact    bool           `json:"exact"` // nobody was preempted who had answered at length
	Block    int            `json:"block"` // tokens
	Blocks   int            `json:"blocks"`
	Budget   int            `json:"budget"` // tokens in a step
	Running  int            `json:"running"`
	StepNS   int64          `json:"step_ns"`
	PromptNS int64          `json:"prompt_ns"`
	DecodeNS int64          `json:"decode_ns"`
	Context  int            `json:"context"`
	Requests []scheduleCall `json:"requests"`
}

// scheduleCall is a request. Its ids name the full blocks of the prompt; what
// follows them is like nothing else.
type scheduleCall struct {
	At     int64    `json:"at"` // ns
	Prompt int      `json:"prompt"`
	Output int      `json:"output"`
	IDs    []uint64 `json:"ids"`

	First int64 `json:"first"` // ns; when the first token was made
	End   int64 `json:"end"`
	Hit   int   `json:"hit"`
}

// draw makes a schedule: of prompts with common beginnings, and of answers that
// fill no block of their own unless they are long.
func draw(claim string, seed uint64, blocks, long int, every float64) schedule {
	s := schedule{
		Claim: claim, Block: 16, Blocks: blocks, Budget: 128, Running: 6,
		StepNS: 6_000_000, PromptNS: 65_536, DecodeNS: 163_840, Context: 32_768,
	}
	r := rand.New(rand.NewPCG(seed, 11))
	now := 0.0
	for range 60 {
		c := scheduleCall{At: int64(now), IDs: []uint64{}}
		for range r.IntN(12) {
			c.IDs = append(c.IDs, uint64(r.IntN(2)))
		}
		tail := 1 + r.IntN(7)
		c.Prompt = len(c.IDs)*s.Block + tail
		c.Output = 1 + r.IntN(s.Block-tail)
		if long > 0 {
			c.Output = 1 + r.IntN(long)
		}
		now += r.ExpFloat64() * every
		s.Requests = append(s.Requests, c)
	}
	return s
}

func schedules() []schedule {
	return []schedule{
		draw("seldom", 1, 400, 0, 60e6),
		draw("at once", 2, 400, 0, 1e5),
		draw("busy, with little memory", 3, 24, 0, 12e6),
		draw("at once, with little memory", 4, 20, 0, 1e5),
		draw("what waits finds in the next step what this one computed", 116, 22, 0, 12e6),
		draw("the same, at once", 133, 25, 0, 1e5),
		draw("long answers", 5, 400, 80, 40e6),
		draw("long answers, with little memory", 6, 30, 80, 30e6),
		draw("long answers at once, with little memory", 7, 30, 80, 1e5),
	}
}

// run has a scheduler do it.
func (s *schedule) run(t *testing.T) {
	t.Helper()
	timing := Timing{Step: time.Duration(s.StepNS), Prefill: time.Duration(s.PromptNS), Decode: time.Duration(s.DecodeNS), Context: s.Context}
	e := &scheduler{cache: newCache(s.Blocks, s.Block), timing: timing, budget: s.Budget, maxRunning: s.Running}
	calls := map[*sequence]*scheduleCall{}
	now, next := int64(0), 0
	for n := 0; next < len(s.Requests) || !e.idle(); n++ {
		if n > 100_000 {
			t.Fatal("the scheduler makes no progress")
		}
		if e.idle() {
			now = max(now, s.Requests[next].At)
		}
		for next < len(s.Requests) && s.Requests[next].At <= now {
			q := s.sequence(next)
			calls[q] = &s.Requests[next]
			e.waiting = append(e.waiting, q)
			next++
		}
		out, cost := e.step()
		now += int64(cost)
		for _, o := range out {
			c := calls[o.seq]
			if c.First == 0 {
				c.First, c.Hit = now, o.seq.cached
			}
			if o.last != "" {
				c.End = now
			}
		}
	}
	// A preempted sequence finds what it has answered, where that fills blocks;
	// the lab does not know answers.
	longest := 0
	for _, c := range s.Requests {
		longest = max(longest, c.Prompt%s.Block+c.Output)
	}
	s.Exact = e.preemptions == 0 || longest <= s.Block
}

func (s *schedule) sequence(i int) *sequence {
	c := &s.Requests[i]
	var tokens []uint32
	for _, id := range c.IDs {
		for k := range s.Block {
			tokens = append(tokens, uint32(id)*100+uint32(k))
		}
	}
	for k := len(tokens); k < c.Prompt; k++ {
		tokens = append(tokens, uint32(1_000_000+1000*i+k))
	}
	q := &sequence{tokens: tokens, prompt: len(tokens), limit: c.Output + 1}
	for k := range c.Output {
		q.plan = append(q.plan, uint32(500_000_000+1000*i+k))
	}
	return q
}

func TestTheScheduleIsAsWrittenDown(t *testing.T) {
	const path = "testdata/schedule.jsonl"
	var got bytes.Buffer
	out := json.NewEncoder(&got)
	for _, s := range schedules() {
		s.run(t)
		if err := out.Encode(s); err != nil {
			t.Fatal(err)
		}
	}
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	a, b := bufio.NewScanner(bytes.NewReader(want)), bufio.NewScanner(&got)
	a.Buffer(nil, 1<<20)
	b.Buffer(nil, 1<<20)
	for i := 1; b.Scan(); i++ {
		if !a.Scan() || a.Text() != b.Text() {
			t.Errorf("%s:%d is not what the scheduler does now (go test -update writes it anew)", path, i)
		}
	}
}
