package lab

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/routing/sim"
)

// Package sim's scheduler wrote these lines, and its tests hold it to them.
const schedulePath = "../testdata/schedule.jsonl"

// TestTheEngineKeepsTheSchedule runs what sim's scheduler ran: every first
// token, end and hit must be the same to the nanosecond. Where sequences were
// preempted that had answered at length, sim's find their answers in the cache
// and ours compute them again: then sums may differ a little.
func TestTheEngineKeepsTheSchedule(t *testing.T) {
	file, err := os.Open(schedulePath)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	exact, bounded := 0, 0
	for lines.Scan() {
		var s struct {
			Claim    string
			Exact    bool
			Block    int
			Blocks   int
			Budget   int
			Running  int
			StepNS   int64 `json:"step_ns"`
			PromptNS int64 `json:"prompt_ns"`
			DecodeNS int64 `json:"decode_ns"`
			Context  int
			Requests []struct {
				At, First, End      int64
				Prompt, Output, Hit int
				IDs                 []uint64
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		t.Run(s.Claim, func(t *testing.T) {
			b := newBuilder("", s.Block)
			var jobs []*job
			var at []int64
			for _, r := range s.Requests {
				b.add(Request{Prompt: r.Prompt, Output: r.Output}, r.IDs)
				at = append(at, r.At)
			}
			for _, q := range b.t.Requests {
				jobs = append(jobs, &job{contents: q.Blocks, prompt: q.Prompt, output: q.Output})
			}
			e := newEngine(limits{
				timing: sim.Timing{Step: time.Duration(s.StepNS), Prefill: time.Duration(s.PromptNS), Decode: time.Duration(s.DecodeNS), Context: s.Context},
				block:  s.Block, budget: s.Budget, running: s.Running,
			}, s.Blocks, b.t.Blocks())
			firsts, ends := drive(t, e, jobs, at, func() {})
			var ours, theirs [3]int64
			for i, r := range s.Requests {
				j := jobs[i]
				if s.Exact && (firsts[j] != r.First || ends[j] != r.End || j.hit != r.Hit) {
					t.Fatalf("request %d: first token at %d, end at %d, %d found; sim's scheduler had %d, %d, %d",
						i, firsts[j], ends[j], j.hit, r.First, r.End, r.Hit)
				}
				for k, x := range []int64{firsts[j] - r.At, ends[j] - r.At, int64(j.hit)} {
					ours[k] += x
				}
				for k, x := range []int64{r.First - r.At, r.End - r.At, int64(r.Hit)} {
					theirs[k] += x
				}
			}
			for k, what := range []string{"first tokens", "ends", "hits"} {
				if d := float64(ours[k]-theirs[k]) / float64(theirs[k]); d > 0.005 || d < -0.005 {
					t.Errorf("%s differ by %.1f %%", what, 100*d)
				}
			}
			if s.Exact {
				exact++
			} else {
				bounded++
			}
		})
	}
	if err := lines.Err(); err != nil || exact < 4 || bounded < 1 {
		t.Errorf("%d schedules were exact and %d not: %v", exact, bounded, err)
	}
}
