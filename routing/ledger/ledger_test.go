package ledger

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sallyport-ai/sallyport/routing"
)

func TestARateIsLearnedFromItsOwnAndItsPeersSamples(t *testing.T) {
	var pool, measured, peer Rate
	if got := peer.Over(&pool); got != PriorPS {
		t.Errorf("knowing nothing it is %d, want the prior", got)
	}
	for range 60 {
		measured.First(&pool, 2000, 0, 20*time.Millisecond)
	}
	for what, got := range map[string]int64{"its own": measured.Over(&pool), "its peer's": peer.Over(&pool)} {
		if got < 10_000_000 || got > 20_000_000 {
			t.Errorf("%s: 10 µs a token is taken for %d ps", what, got)
		}
	}
	before := measured.Over(&pool)
	measured.First(&pool, 100, 0, time.Second) // a short prompt tells of round trips
	measured.First(&pool, 2000, 3000, time.Second)
	measured.First(&pool, 2000, 0, -time.Second)
	measured.Told(&pool, 0)
	if got := measured.Over(&pool); got != before {
		t.Errorf("what tells nothing changed it from %d to %d", before, got)
	}
	for range 60 {
		measured.Told(&pool, 1_000_000)
	}
	if got := measured.Over(&pool); got > 3_000_000 {
		t.Errorf("1 µs a token was told, and %d ps are believed", got)
	}
	measured.Told(&pool, 1<<63)
	measured.First(&pool, 2000, 0, 1<<62)
	if got := measured.Over(&pool); got < 1 || got > PriorPS*1000 {
		t.Errorf("absurd samples make it %d", got)
	}
}

func TestAFirstTokenBeliesAPredictionWhenItIsAsLateAsWithout(t *testing.T) {
	for _, c := range []struct {
		claim string
		known int // samples
		took  time.Duration
		want  bool
	}{
		{"as early as predicted", 20, 30 * time.Millisecond, false},
		{"half way", 20, 100 * time.Millisecond, false},
		{"as late as if nothing was found", 20, 195 * time.Millisecond, true},
		{"the same, where the rate is hardly known", 5, 195 * time.Millisecond, false},
	} {
		var r, pool Rate
		for range c.known {
			r.First(&pool, 2000, 0, 20*time.Millisecond)
		}
		if got := r.First(&pool, 2000, 18_000, c.took); got != c.want {
			t.Errorf("%s: belied %v", c.claim, got)
		}
	}
}

func TestClaimsThatMissLoseWeightAndEarnItBack(t *testing.T) {
	var c Claims
	if c.PerMille() != 1000 || c.Doubted() {
		t.Error("nothing was claimed yet, and it is not trusted")
	}
	n := 0
	for ; !c.Doubted() && n < 100; n++ {
		c.Judge(1000, 0)
	}
	if n < doubtAfter || n > 20 || c.PerMille() > 250 {
		t.Errorf("doubted after %d misses, at %d per mille", n, c.PerMille())
	}
	for n = 0; c.Doubted() && n < 100; n++ {
		c.Judge(1000, 2000) // finding more than was claimed is no more than true
	}
	if n > 20 || c.PerMille() < 500 || c.PerMille() > 1000 {
		t.Errorf("trusted again after %d hits, at %d per mille", n, c.PerMille())
	}
	rapid.Check(t, func(rt *rapid.T) {
		var c Claims
		for range rapid.IntRange(0, 30).Draw(rt, "claims") {
			c.Judge(rapid.IntRange(1, 1<<30).Draw(rt, "predicted"), rapid.Int().Draw(rt, "actual"))
			if p := c.PerMille(); p < 0 || p > 1000 {
				rt.Fatalf("%d per mille", p)
			}
		}
	})
}

// Whatever happens in whatever order, what is not seen is what was sent and not
// ended, and no number is given to two that are under way.
func TestWorkCountsEachRequestOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var w Work
		open := map[uint64]int64{}
		sum := int64(0)
		drop := func(n uint64) {
			sum -= open[n]
			delete(open, n)
		}
		for range rapid.IntRange(0, 60).Draw(rt, "steps") {
			some := func() uint64 { return rapid.Uint64Range(0, 40).Draw(rt, "number") }
			switch rapid.IntRange(0, 4).Draw(rt, "what") {
			case 0, 1:
				tokens := rapid.Int64Range(0, 1000).Draw(rt, "tokens")
				n := w.Dispatch(tokens)
				if _, twice := open[n]; twice || n == 0 {
					rt.Fatalf("number %d is given to two", n)
				}
				open[n] = tokens
				sum += tokens
			case 2:
				n := some()
				w.Seen(n)
				if _, ok := open[n]; ok && rapid.Bool().Draw(rt, "never sent") {
					w.Unused(n)
				}
				drop(n)
			case 3:
				upTo, beyond := some(), some()
				w.Acknowledged(upTo, []uint64{beyond})
				for n := range open {
					if n <= upTo || n == beyond {
						drop(n)
					}
				}
			default:
				if rapid.IntRange(0, 9).Draw(rt, "restart") == 0 {
					w.Reset()
					clear(open)
					sum = 0
				}
			}
			if n, tokens := w.Unseen(); n != len(open) || tokens != sum {
				rt.Fatalf("%d requests of %d tokens are not seen, want %d of %d", n, tokens, len(open), sum)
			}
		}
		w.Told = Told{WaitingTokens: 500, Waiting: 2, Running: 3, UsedBlocks: 10}
		c := routing.Candidate{BlockSize: 16, KVTotal: 100}
		w.Fill(&c)
		n := int64(len(open))
		want := routing.Candidate{
			BlockSize: 16, KVTotal: 100, WaitingTokens: 500 + sum, Waiting: 2 + n, Running: 5 + n,
			DecodeNS: (5 + n) * DecodeNS, KVFree: max(0, 90-(sum+15)/16), Load: 660 + sum,
		}
		if c != want {
			rt.Fatalf("%+v\nwant %+v", c, want)
		}
	})
}

func TestAFlightLastsAsLongAsItsPrefillAndThenAsItsEvent(t *testing.T) {
	at := func(d time.Duration) time.Time { return time.Unix(1000, 0).Add(d) }
	ids := []uint64{1, 2, 3, 4}
	found := func(o *Overlay[string], ids []uint64, now time.Time) (depth int, answered bool) {
		o.Look(7, 16, ids, now, func(to string, d int, a bool) {
			if to != "r1" {
				t.Errorf("on its way to %s", to)
			}
			depth, answered = d, a
		})
		return depth, answered
	}
	for _, c := range []struct {
		claim    string
		wait     time.Duration // expected
		answered time.Duration // 0: not
		lag      time.Duration
		look     time.Duration
		want     int
	}{
		{"at once", 0, 0, 0, 0, 2},
		{"a prefill that is expected to take long", 20 * time.Second, 0, 0, 40 * time.Second, 2},
		{"twice that and a second are over", 20 * time.Second, 0, 0, 41*time.Second + 1, 0},
		{"one that should have been there at once", 0, 0, 0, time.Second + 1, 0},
		{"nobody waits for ever", time.Hour, 0, 0, 2*time.Minute + time.Second + 1, 0},
		{"its first token has come, and no event yet", 20 * time.Second, 10 * time.Second, 20 * time.Millisecond, 10*time.Second + 80*time.Millisecond, 2},
		{"no event came", 20 * time.Second, 10 * time.Second, 20 * time.Millisecond, 10*time.Second + 80*time.Millisecond + 1, 0},
		{"nor for a slow one", 20 * time.Second, 10 * time.Second, time.Hour, 10*time.Second + 500*time.Millisecond + 1, 0},
	} {
		var o Overlay[string]
		f := o.Add(7, 16, ids, "r1", at(0), c.wait)
		if c.answered > 0 {
			f.Answered(at(c.answered), c.lag)
		}
		depth, answered := found(&o, []uint64{1, 2, 9}, at(c.look))
		if depth != c.want || depth > 0 && answered != (c.answered > 0) {
			t.Errorf("%s: %d blocks, answered %v", c.claim, depth, answered)
		}
	}
	var o Overlay[string]
	own := []uint64{1, 2, 3}
	f := o.Add(7, 16, own, "r1", at(0), time.Second)
	own[0] = 99 // the caller uses its slice again
	if depth, _ := found(&o, ids, at(0)); depth != 3 {
		t.Errorf("%d blocks after the caller changed its ids", depth)
	}
	o.Look(8, 16, ids, at(0), func(string, int, bool) { t.Error("found in another namespace") })
	o.Look(7, 32, ids, at(0), func(string, int, bool) { t.Error("found at another block size") })
	o.Remove(f)
	o.Remove(f)
	if depth, _ := found(&o, ids, at(0)); depth != 0 || len(o.by) != 0 {
		t.Errorf("%d blocks after its removal, %d namespaces kept", depth, len(o.by))
	}
}

func TestTheOverlayIsBounded(t *testing.T) {
	var o Overlay[int]
	now := time.Unix(0, 0)
	for i := range 3 * maxFlights {
		o.Add(1, 16, []uint64{uint64(i)}, i, now, 0)
	}
	if n := len(o.by[flights{1, 16}]); n != maxFlights {
		t.Errorf("%d flights of a namespace", n)
	}
	for i := range 2 * maxNamespaces {
		o.Add(uint64(i), 16, make([]uint64, 2*maxFlightBlocks), i, now, 0)
	}
	if len(o.by) != maxNamespaces || len(o.by[flights{2, 16}][0].ids) != maxFlightBlocks {
		t.Errorf("%d namespaces, %d blocks", len(o.by), len(o.by[flights{2, 16}][0].ids))
	}
}

// A conversation's namespace is hardly ever looked at again once it is over.
func TestFlightsThatNobodyLooksAtAgainMakeRoom(t *testing.T) {
	var o Overlay[int]
	now := time.Unix(0, 0)
	for i := range 20 * maxNamespaces {
		now = now.Add(10 * time.Millisecond)
		f := o.Add(uint64(i), 16, []uint64{1, 2}, i, now, 0)
		f.Answered(now, 0)
		found := 0
		o.Look(uint64(i), 16, []uint64{1, 2}, now, func(int, int, bool) { found++ })
		if found != 1 {
			t.Fatalf("the flight in namespace %d is not kept: %d are, of which nearly all are over", i, len(o.by))
		}
	}
}
