package routing

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestWhatComputingCostsOthers(t *testing.T) {
	for _, c := range []struct {
		claim   string
		waiting []int64 // requests, at each replica; 1,000 tokens each, of a nanosecond
		others  int64   // per mille
		usual   int64   // ns
	}{
		{"where nobody waits, the next to come", []int64{0, 0, 0, 0}, 1000, 0},
		{"a single replica", []int64{3}, 4000, 3000},
		{"the mean, where queues are alike", []int64{2, 3, 3, 4}, 4000, 3000},
		{"half a request each", []int64{0, 1, 0, 1}, 1500, 500},
		{"who queues for one prefix hardly counts, and is not usual", []int64{500, 0, 0, 0}, 1250, 0},
		{"nor where others wait a little", []int64{500, 1, 1, 1}, 2500, 1000},
		{"when half of the replicas are crowded, those that are not decide", []int64{0, 0, 40, 40}, 1500, 0},
		{"when more are, they are what is usual", []int64{0, 40, 40, 40}, 31_000, 30_000},
		{"a crowd beyond counting", []int64{1 << 50, 1 << 50}, 64_000, math.MaxInt64 / 2},
		{"less than nothing is nothing", []int64{-5, -5}, 1000, 0},
	} {
		var q crowd
		for _, w := range c.waiting {
			tokens := w * 1000
			if w > 1<<40 {
				tokens = math.MaxInt64
			}
			q.add(&Candidate{Waiting: w, WaitingTokens: tokens, PrefillPS: 1000})
		}
		if got := q.price(int64(len(c.waiting))); got.others != c.others || got.usual != c.usual {
			t.Errorf("%s: %v: %d per mille and %d ns, want %d and %d", c.claim, c.waiting, got.others, got.usual, c.others, c.usual)
		}
	}
}

// More to compute never costs others less, and no queue anywhere asks for more
// patience than there is.
func TestWhatIsChargedIsBounded(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var q crowd
		n := rapid.Int64Range(1, 40).Draw(rt, "replicas")
		for range n {
			q.add(&Candidate{Waiting: rapid.Int64Range(0, 1000).Draw(rt, "waiting"), WaitingTokens: rapid.Int64Range(0, 1<<40).Draw(rt, "tokens"), PrefillPS: rapid.Int64Range(0, 5000).Draw(rt, "rate")})
		}
		p := q.price(n)
		less := rapid.Int64Range(0, 1<<40).Draw(rt, "computed")
		more := less + rapid.Int64Range(0, 1<<40).Draw(rt, "more")
		switch a, b := p.delay(less, 1000), p.delay(more, 1000); {
		case p.others < 1000 || p.others > (2+crowded)*1000 || p.usual < 0:
			rt.Fatalf("%+v", p)
		case a > b || a < less || a > less+2*p.usual:
			rt.Fatalf("%+v: %d tokens are charged as %d, %d as %d", p, less, a, more, b)
		}
	})
}
