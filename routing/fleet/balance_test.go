package fleet

import (
	"math"
	"testing"

	"github.com/sallyport-ai/sallyport/routing"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

func TestImbalanceIsMeasuredAmongThoseThatTakeRequests(t *testing.T) {
	all := []Status{
		{Target: Target{Pool: "a"}, Load: 30_000, Blocks: 10},
		{Target: Target{Pool: "a"}, Load: 10_000, Blocks: 30},
		{Target: Target{Pool: "a"}, Load: 900_000, Blocks: 900, Excluded: routing.Draining},
		{Target: Target{Pool: "b"}, Load: 5, Blocks: 0},
	}
	balance(all)
	for i, want := range [][2]float64{{1.5, 0.5}, {0.5, 1.5}, {0, 0}, {1, 0}} {
		if got := [2]float64{all[i].LoadRatio, all[i].BlockRatio}; math.Abs(got[0]-want[0])+math.Abs(got[1]-want[1]) > 1e-9 {
			t.Errorf("replica %d: %v, want %v", i, got, want)
		}
	}
}

func TestAHotReplicaIsCounted(t *testing.T) {
	f, relays, _ := two(t)
	relays[0].report(&residencyv1.Load{WaitingPrefillTokens: 20_000})
	until(t, "one is hot", func() bool { return f.Pools()[0].Hot == 1 })
	relays[1].report(&residencyv1.Load{WaitingPrefillTokens: 20_000})
	until(t, "both are even", func() bool { return f.Pools()[0].Hot == 0 })
}

func TestEventsThatMatchNothingAreNoticed(t *testing.T) {
	f, relays, _ := two(t)
	held := prompt(1, 16*2000)
	relays[0].store("acme", held[:16*500])
	until(t, "it is indexed", func() bool { return f.status(0).Blocks == 500 })
	place := func(tokens []uint32) PoolStatus {
		res := reserve(t, f, ask(tokens))
		res.Finish(Result{})
		return f.Pools()[0]
	}
	for i := range overlapLookups {
		if p := place(prompt(uint64(100+i), 64)); p.NoOverlap || p.Overlaps != 0 {
			t.Fatalf("after %d prompts: %+v", i, p)
		}
	}
	if p := f.Pools()[0]; p.NoOverlap || p.Lookups != overlapLookups {
		t.Errorf("nobody told of a block meanwhile: %+v", p)
	}
	relays[1].store("acme", prompt(2, 16*overlapTold))
	until(t, "nothing matches what is told", func() bool { return f.Pools()[0].NoOverlap })
	if p := place(prompt(999, 10)); p.Lookups != overlapLookups {
		t.Errorf("a prompt without a second block was counted: %+v", p)
	}
	if p := place(held[:64]); p.NoOverlap || p.Overlaps != 1 {
		t.Errorf("a prompt that matches: %+v", p)
	}
}
