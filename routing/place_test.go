package routing

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// candidates of a random fleet in which everything that Place looks at varies.
func drawCandidates(t *rapid.T) []Candidate {
	out := make([]Candidate, rapid.IntRange(1, 12).Draw(t, "replicas"))
	for i := range out {
		out[i] = Candidate{
			ID:            fmt.Sprintf("r%d", i),
			Excluded:      rapid.SampledFrom([]Reason{"", "", "", Unhealthy, SVIDMismatch}).Draw(t, "excluded"),
			Stream:        rapid.SampledFrom([]Stream{StreamLive, StreamLive, StreamLivePartial, StreamSuspect, StreamNone}).Draw(t, "stream"),
			Region:        rapid.SampledFrom([]string{"", "eu", "us"}).Draw(t, "region"),
			BlockSize:     rapid.SampledFrom([]int{0, 16, 64}).Draw(t, "block"),
			Depth:         rapid.IntRange(0, 300).Draw(t, "depth"),
			Overlay:       rapid.IntRange(0, 300).Draw(t, "overlay"),
			Lower:         rapid.SampledFrom([]int{0, 0, 400}).Draw(t, "lower"),
			LowerPS:       rapid.SampledFrom([]int64{0, 10_000_000, 100_000_000}).Draw(t, "load rate"),
			Confidence:    rapid.SampledFrom([]int{0, 500, 1000, 1000}).Draw(t, "confidence"),
			WaitingTokens: rapid.Int64Range(0, 20_000).Draw(t, "waiting"),
			PrefillPS:     rapid.SampledFrom([]int64{62_500_000, 62_500_000, 20_000_000}).Draw(t, "rate"),
			DecodeNS:      rapid.Int64Range(0, 5_000_000).Draw(t, "decode"),
			KVTotal:       rapid.SampledFrom([]int64{0, 100, 10_000}).Draw(t, "total"),
			KVFree:        rapid.Int64Range(0, 10_000).Draw(t, "free"),
			Load:          rapid.Int64Range(0, 50_000).Draw(t, "load"),
			Waiting:       rapid.Int64Range(0, 20).Draw(t, "waiting requests"),
		}
	}
	return out
}

func drawQuery(t *rapid.T) Query {
	q := Query{
		Strategy:     rapid.SampledFrom([]Strategy{Probabilistic, Deterministic, ""}).Draw(t, "strategy"),
		PromptTokens: rapid.IntRange(0, 5000).Draw(t, "prompt"),
		TokensExact:  rapid.SampledFrom([]bool{true, true, false}).Draw(t, "exact"),
		MaxOutput:    rapid.IntRange(0, 5000).Draw(t, "output"),
		Seed:         rapid.Uint64().Draw(t, "seed"),
		Region:       rapid.SampledFrom([]string{"", "eu"}).Draw(t, "prefer"),
		Warm:         rapid.Bool().Draw(t, "warm"),
	}
	if rapid.Bool().Draw(t, "affine") {
		q.Affinity = [32]byte{byte(rapid.IntRange(1, 255).Draw(t, "affinity")), 9, 8, 7}
	}
	return q
}

func TestNobodyExcludedIsEverChosenAndEveryoneIsAccountedFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, s := drawQuery(t), Snapshot{drawCandidates(t)}
		p, err := Place(q, s)
		excluded := 0
		var none *NoReplicaError
		if errors.As(err, &none) {
			for _, n := range none.Excluded {
				excluded += n
			}
			if excluded != len(s.Candidates) || !errors.Is(err, ErrNoReplica) {
				t.Fatalf("%d of %d accounted for: %v", excluded, len(s.Candidates), err)
			}
			return
		}
		c := s.Candidates[p.Chosen]
		if c.Excluded != "" || c.ID != p.ID {
			t.Fatalf("chose %s, excluded as %q", p.ID, c.Excluded)
		}
		for _, n := range p.Excluded {
			excluded += n
		}
		at := slices.IndexFunc(p.Candidates, func(x Scored) bool { return x.ID == p.ID })
		switch {
		case at < 0 || p.Candidates[at].CostNS != p.CostNS:
			t.Fatalf("the chosen one is not among the candidates as chosen: %+v", p)
		case p.Strategy == Deterministic && excluded+len(p.Candidates) != p.Considered,
			p.Strategy == Probabilistic && len(p.Candidates) != min(8, p.Considered-excluded):
			t.Fatalf("%d candidates, %d excluded of %d", len(p.Candidates), excluded, p.Considered)
		}
	})
}

func TestTheChoiceDoesNotDependOnTheOrderOfTheCandidates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, list := drawQuery(t), drawCandidates(t)
		a, errA := Place(q, Snapshot{list})
		b, errB := Place(q, Snapshot{rapid.Permutation(list).Draw(t, "order")})
		if (errA == nil) != (errB == nil) {
			t.Fatalf("%v, then %v", errA, errB)
		}
		if a.ID != b.ID || a.Basis != b.Basis || a.BasisReason != b.BasisReason || a.ChosenBecause != b.ChosenBecause ||
			a.Predicted != b.Predicted || !maps.Equal(a.Excluded, b.Excluded) {
			t.Fatalf("%+v, then %+v", a, b)
		}
	})
}

func TestCostFallsWithTheHitAndRisesWithTheLoad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := drawQuery(t)
		c := drawCandidates(t)[0]
		more := c
		more.Depth += rapid.IntRange(0, 50).Draw(t, "more depth")
		more.Overlay += rapid.IntRange(0, 50).Draw(t, "more overlay")
		more.Lower += rapid.IntRange(0, 50).Draw(t, "more lower")
		var z sizes
		var a, b, d scored
		a.score(&q, &c, &z)
		b.score(&q, &more, &z)
		if b.cost > a.cost || b.predicted < a.predicted {
			t.Fatalf("deeper costs %d, not %d", b.cost, a.cost)
		}
		if fits(&c, &z) != fits(&more, &z) {
			t.Fatal("whether it fits depends on what is there")
		}
		fuller := c
		fuller.KVFree -= rapid.Int64Range(0, 100).Draw(t, "less free")
		if d.score(&q, &fuller, &z); d.cost < a.cost {
			t.Fatalf("fuller costs %d, not %d", d.cost, a.cost)
		}
		busy := c
		busy.WaitingTokens += rapid.Int64Range(0, 1000).Draw(t, "more waiting")
		busy.DecodeNS += rapid.Int64Range(0, 1000).Draw(t, "more decoding")
		if d.score(&q, &busy, &z); d.cost < a.cost {
			t.Fatalf("busier costs %d, not %d", d.cost, a.cost)
		}
		if a.wait > a.cost || a.wait < 0 || a.computed < 0 {
			t.Fatalf("waits %d and computes %d at a cost of %d", a.wait, a.computed, a.cost)
		}
		if n := int64(q.PromptTokens); a.predicted > 0 && (a.predicted >= n || !q.TokensExact || !c.Stream.Credits()) {
			t.Fatalf("%d of %d tokens predicted", a.predicted, n)
		}
	})
}

func TestMoreHitNeverLosesAChoiceAndMoreLoadNeverWinsOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, list := drawQuery(t), drawCandidates(t)
		q.Strategy = Deterministic
		before, err := Place(q, Snapshot{list})
		if err != nil || before.Basis == Affinity {
			return
		}
		better := slices.Clone(list)
		better[before.Chosen].Depth += 40
		if after, _ := Place(q, Snapshot{better}); after.ID != before.ID {
			t.Fatalf("with more of the prompt at %s the choice went to %s", before.ID, after.ID)
		}
		busier := slices.Clone(list)
		other := rapid.IntRange(0, len(list)-1).Draw(t, "other")
		busier[other].WaitingTokens += 5000
		// It may go from one to another of the rest, as what is usual has changed; and
		// there, where of two replicas it alone is what is usual.
		after, _ := Place(q, Snapshot{busier})
		alone := 2*(after.Usual-before.Usual) > milli(5000, list[other].PrefillPS)+2
		if other != before.Chosen && after.ID == list[other].ID && !alone {
			t.Fatalf("with more work at %s the choice went there, from %s", after.ID, before.ID)
		}
	})
}

// What a placement kept is enough to make it again, or it is said that it is not.
func TestAPlacementIsMadeAgainFromWhatItKept(t *testing.T) {
	again, not := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		q, list := drawQuery(t), slices.Concat(drawCandidates(t), drawCandidates(t))
		q.Strategy, q.Affinity = Probabilistic, [32]byte{}
		for i := range list {
			list[i].ID = fmt.Sprintf("r%d", i)
		}
		p, err := Place(q, Snapshot{list})
		if err != nil {
			return
		}
		var kept Snapshot
		for _, c := range p.Candidates {
			kept.Candidates = append(kept.Candidates, *c.Candidate)
		}
		got, err := Again(q, kept, p.Others, p.Usual)
		if errors.Is(err, ErrNotAll) {
			not++
			return
		}
		if err != nil || got.ID != p.ID || got.CostNS != p.CostNS || got.ChosenBecause != p.ChosenBecause && len(p.Candidates) > 1 {
			t.Fatalf("%v: %s for %d because %s, and again %s for %d because %s", err, p.ID, p.CostNS, p.ChosenBecause, got.ID, got.CostNS, got.ChosenBecause)
		}
		again++
	})
	if again == 0 || not == 0 && !testing.Short() { // few are drawn then
		t.Errorf("%d were made again, %d not", again, not)
	}
}

// A stream of requests, each adding to the load of where it went.
func TestAStreamOfColdRequestsSpreads(t *testing.T) {
	for _, strategy := range []Strategy{Probabilistic, Deterministic} {
		r := rand.New(rand.NewPCG(1, 2))
		list := make([]Candidate, 20)
		for i := range list {
			list[i] = Candidate{ID: fmt.Sprint("r", i), Stream: StreamLive, BlockSize: 16, Confidence: 1000, PrefillPS: 62_500_000}
		}
		for range 2000 {
			q := Query{Strategy: strategy, PromptTokens: 100 + r.IntN(3000), TokensExact: true, Seed: r.Uint64(), Affinity: [32]byte{1}}
			p, err := Place(q, Snapshot{list})
			if err != nil {
				t.Fatal(err)
			}
			c := &list[p.Chosen]
			c.WaitingTokens += int64(q.PromptTokens)
			c.Load += int64(q.PromptTokens)
		}
		least, most := int64(math.MaxInt64), int64(0)
		for _, c := range list {
			least, most = min(least, c.Load), max(most, c.Load)
		}
		if most*4 > least*5 {
			t.Errorf("%s: loads from %d to %d", strategy, least, most)
		}
	}
}

func TestAffinityIsStableAndEven(t *testing.T) {
	list := make([]Candidate, 10)
	for i := range list {
		list[i] = Candidate{ID: fmt.Sprint("spiffe://example.org/pool/general/r", i), PrefillPS: 1}
	}
	count := make([]int, len(list))
	moved := 0
	for i := range 5000 {
		q := Query{PromptTokens: 100, Affinity: [32]byte{byte(i), byte(i >> 8), 1}}
		p, err := Place(q, Snapshot{list})
		if err != nil {
			t.Fatal(err)
		}
		if p.Basis != Affinity || p.ChosenBecause != ByAffinity {
			t.Fatalf("basis %s because %s", p.Basis, p.ChosenBecause)
		}
		count[p.Chosen]++
		fewer, err := Place(q, Snapshot{list[:9]})
		if err != nil {
			t.Fatal(err)
		}
		if p.Chosen != 9 && fewer.Chosen != p.Chosen {
			moved++
		}
	}
	if moved > 0 {
		t.Errorf("%d conversations moved although their replica stayed", moved)
	}
	for i, n := range count {
		if n < 400 || n > 600 {
			t.Errorf("replica %d got %d of 5000", i, n)
		}
	}
}

func TestAbsurdInputsSaturate(t *testing.T) {
	for _, c := range []Candidate{
		{WaitingTokens: math.MaxInt64, PrefillPS: math.MaxInt64, DecodeNS: math.MaxInt64, Load: math.MaxInt64},
		{WaitingTokens: -1 << 63, PrefillPS: -5, DecodeNS: -1, Load: -1 << 63, KVFree: -1, KVTotal: -1},
		{Stream: StreamLive, BlockSize: math.MaxInt, Depth: math.MaxInt, Overlay: math.MaxInt, Confidence: math.MaxInt},
		{Stream: StreamLive, BlockSize: 1, Depth: -1, Overlay: -1, Confidence: -1},
	} {
		for _, n := range []int{math.MinInt, -1, 0, 1, math.MaxInt} {
			c.ID = "a"
			other := c
			other.ID = "b"
			q := Query{PromptTokens: n, TokensExact: true, MaxOutput: n, Region: "x"}
			p, err := Place(q, Snapshot{[]Candidate{c, other}})
			if err == nil && (p.CostNS < 0 || p.Predicted < 0) {
				t.Errorf("%+v with %d tokens: cost %d, predicted %d", c, n, p.CostNS, p.Predicted)
			}
		}
	}
}

func BenchmarkPlace(b *testing.B) {
	for _, strategy := range []Strategy{Probabilistic, Deterministic} {
		for _, n := range []int{8, 100, 1000} {
			b.Run(fmt.Sprintf("%s/%d", strategy, n), func(b *testing.B) { benchPlace(b, strategy, n) })
		}
	}
}

func benchPlace(b *testing.B, strategy Strategy, n int) {
	r := rand.New(rand.NewPCG(3, 4))
	snapshots := make([]Snapshot, 64)
	for k := range snapshots {
		list := make([]Candidate, n)
		for i := range list {
			list[i] = Candidate{
				ID: fmt.Sprintf("spiffe://example.org/pool/general/r%d", i), Pool: "general", Stream: StreamLive, BlockSize: 16,
				Depth: r.IntN(3) / 2 * r.IntN(500), Confidence: 1000, WaitingTokens: r.Int64N(5000), PrefillPS: 62_500_000,
				DecodeNS: r.Int64N(1e6), KVTotal: 50_000, KVFree: 1000 + r.Int64N(40_000), Load: r.Int64N(50_000),
			}
		}
		snapshots[k] = Snapshot{list}
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		q := Query{Strategy: strategy, PromptTokens: 100 + i%9000, TokensExact: true, Seed: uint64(i), Affinity: [32]byte{byte(i)}}
		if _, err := Place(q, snapshots[i%len(snapshots)]); err != nil {
			b.Fatal(err)
		}
	}
}
