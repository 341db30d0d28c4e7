package routing

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A second copy of a prefix is made when waiting for the first one exceeds
// computing it elsewhere, which counts for the caller and for those it holds up.
func TestAHotPrefixIsCopiedOnceWaitingForItCostsMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const block = 16
		blocks := rapid.IntRange(1, 500).Draw(t, "prefix")
		n := blocks*block + rapid.IntRange(1, 500).Draw(t, "rest")
		others := rapid.Int64Range(0, 10).Draw(t, "waiting requests")
		holder := Candidate{
			ID: "holder", Stream: StreamLive, BlockSize: block, Depth: blocks, Confidence: 1000, PrefillPS: 62_500_000,
			Waiting: others, WaitingTokens: rapid.Int64Range(0, 40_000).Draw(t, "waiting"),
		}
		idle := holder
		idle.ID, idle.Depth, idle.Waiting, idle.WaitingTokens = "idle", 0, 0, 0
		p, err := Place(Query{Strategy: Deterministic, PromptTokens: n, TokensExact: true}, Snapshot{[]Candidate{holder, idle}})
		if err != nil {
			t.Fatal(err)
		}
		// Of those who wait at the holder alone one counts: half a request a
		// replica. And nobody else waits, or usually half of what that one waits.
		usual := int64(0)
		if others <= 1 {
			usual = holder.WaitingTokens / 2
		}
		rest := int64(n - blocks*block)
		delay := func(tokens int64) int64 { return min(tokens*(1000+500*min(others, 1))/1000, tokens+2*usual) }
		worth := int64(blocks*block) + delay(int64(n)) - delay(rest)
		switch {
		case holder.WaitingTokens < worth-1 && p.ID != "holder":
			t.Fatalf("copied, although %d tokens of waiting are less than the %d that it spares", holder.WaitingTokens, worth)
		case holder.WaitingTokens > worth+1 && p.ID != "idle":
			t.Fatalf("not copied, although %d tokens of waiting are more than the %d that it spares", holder.WaitingTokens, worth)
		}
		if p.WaitNS > p.CostNS || p.ID == "holder" && p.WaitNS < holder.WaitingTokens*62_500 {
			t.Fatalf("%d ns until the first token, at a cost of %d, behind %d tokens", p.WaitNS, p.CostNS, holder.WaitingTokens)
		}
	})
}

// queue is a replica that computes what it is given in order, and keeps it.
type queue struct {
	free     float64 // when it will have computed all that it was given, s
	waiting  []float64
	holds    map[int]float64 // prefix: from when on
	requests int
	computed float64 // tokens
}

// served is how many requests serve places.
const served = 20_000

// serve places a stream of requests, of which most begin with one of a few
// prefixes, on replicas that compute 16,000 tokens a second, and returns them
// and how long requests waited, ascending: of the first half, in which every
// prefix is computed at least once, and of the second.
func serve(t *testing.T, strategy Strategy, load float64) (fleet []*queue, cold, warm []float64) {
	t.Helper()
	const replicas, prefix, rest, rate, block = 16, 4096, 256, 16_000.0, 64
	r := rand.New(rand.NewPCG(7, 8))
	zipf := rand.NewZipf(r, 1.2, 1, 199)
	fleet = make([]*queue, replicas)
	for i := range fleet {
		fleet[i] = &queue{holds: map[int]float64{}}
	}
	now := 0.0
	for i := range served {
		now += r.ExpFloat64() * rest / rate / replicas / load
		asked := int(zipf.Uint64())
		list := make([]Candidate, replicas)
		for i, q := range fleet {
			q.waiting = slices.DeleteFunc(q.waiting, func(first float64) bool { return first <= now })
			list[i] = Candidate{
				ID: fmt.Sprint("r", i), Stream: StreamLive, BlockSize: block, Confidence: 1000, PrefillPS: 62_500_000,
				Waiting: int64(len(q.waiting)), WaitingTokens: int64(max(q.free-now, 0) * rate),
			}
			if from, ok := q.holds[asked]; ok {
				list[i].Overlay = prefix / block
				if from <= now {
					list[i].Depth = prefix / block
				}
			}
			list[i].Load = list[i].WaitingTokens
		}
		p, err := Place(Query{Strategy: strategy, PromptTokens: prefix + rest, TokensExact: true, Seed: r.Uint64()}, Snapshot{list})
		if err != nil {
			t.Fatal(err)
		}
		q := fleet[p.Chosen]
		tokens := float64(prefix + rest)
		if _, ok := q.holds[asked]; ok {
			tokens = rest
		}
		q.free = max(q.free, now) + tokens/rate
		if _, ok := q.holds[asked]; !ok {
			q.holds[asked] = q.free
		}
		q.waiting = append(q.waiting, q.free)
		q.requests++
		q.computed += tokens
		if i < served/2 {
			cold = append(cold, q.free-now)
		} else {
			warm = append(warm, q.free-now)
		}
	}
	slices.Sort(cold)
	slices.Sort(warm)
	return fleet, cold, warm
}

// The most popular prefix alone is asked for more often than one replica can
// answer. No bound on load is needed for what a bound is for.
func TestUnderASkewedTraceLoadSpreadsAndNobodyStarves(t *testing.T) {
	for _, strategy := range []Strategy{Probabilistic, Deterministic} {
		for _, load := range []float64{0.3, 0.6, 0.8} {
			fleet, cold, warm := serve(t, strategy, load)
			least, most, sum, copies := fleet[0].requests, 0.0, 0.0, 0
			for _, q := range fleet {
				least, most, sum = min(least, q.requests), max(most, q.computed), sum+q.computed
				if _, ok := q.holds[0]; ok {
					copies++
				}
			}
			switch mean := sum / float64(len(fleet)); {
			case least < served/len(fleet)/4:
				t.Errorf("%s at load %g: a replica got %d of %d requests", strategy, load, least, served)
			case load > 0.5 && most > 1.5*mean: // else everybody can be where the prefix is
				t.Errorf("%s at load %g: a replica computed %.0f tokens, on average it is %.0f", strategy, load, most, mean)
			case copies < 2:
				t.Errorf("%s at load %g: the most popular prefix has %d copies", strategy, load, copies)
			case cold[len(cold)-1] > 6 || warm[len(warm)-1] > 3:
				t.Errorf("%s at load %g: the longest waited %.2f s, once prefixes are computed %.2f s", strategy, load, cold[len(cold)-1], warm[len(warm)-1])
			}
		}
	}
}
