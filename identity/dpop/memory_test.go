package dpop_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sallyport-ai/sallyport/identity/dpop"
)

// Against a list of all that was ever used: within its time no proof counts
// twice, and what is remembered stays bounded and goes away.
func TestMemoryForgetsNothingBeforeItsTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_800_000_000, 0)
		const most = 8
		m := dpop.NewMemory(most, func() time.Time { return now })
		used := map[[32]byte]time.Time{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 30_000).Draw(t, "ms")) * time.Millisecond)
			id := rapid.ByteRange(0, 20).Draw(t, "proof")
			proof := [32]byte{id}
			until, known := used[proof]
			if !known || until.Before(now) {
				known = false
				until = now.Add(time.Duration(rapid.IntRange(1, 120_000).Draw(t, "left")) * time.Millisecond)
			}
			first, err := m.Spend(context.Background(), proof, until)
			switch {
			case errors.Is(err, dpop.ErrFull):
				if first || m.Held() < most {
					t.Fatalf("full with %d", m.Held())
				}
			case err != nil:
				t.Fatal(err)
			case first && known:
				t.Fatalf("%d counted twice", id)
			case first:
				used[proof] = until
			}
			if m.Held() > most {
				t.Fatalf("holds %d", m.Held())
			}
		}
		now = now.Add(time.Hour)
		if first, err := m.Spend(context.Background(), [32]byte{99}, now.Add(time.Second)); !first || err != nil || m.Held() != 1 {
			t.Fatalf("after an hour: %v, %v, holds %d", first, err, m.Held())
		}
	})
}

// Proofs are forgotten ten seconds' worth at a time; one whose time has just
// ended is remembered, or refused, but never taken twice.
func TestTheEdgesOfAProofsTime(t *testing.T) {
	began := time.Unix(1_800_000_000, 0) // where a slot begins
	for _, c := range []struct {
		claim      string
		until, now time.Duration // since began
		fresh      bool          // whether a proof that was not used before is taken then
	}{
		{"its last second", 30 * time.Second, 30 * time.Second, true},
		{"the end of the slot in which it ended", 30 * time.Second, 49 * time.Second, true},
		{"the slot after", 30 * time.Second, 50 * time.Second, false},
		{"a last moment of its slot, in the next", 39 * time.Second, 40 * time.Second, true},
		{"long after", 30 * time.Second, time.Hour, false},
	} {
		now := began
		m := dpop.NewMemory(0, func() time.Time { return now })
		spend := func(id byte) bool {
			first, err := m.Spend(t.Context(), [32]byte{id}, began.Add(c.until))
			if err != nil {
				t.Fatal(err)
			}
			return first
		}
		if !spend(1) {
			t.Fatalf("%s: the scene is not set", c.claim)
		}
		now = began.Add(c.now)
		if spend(1) {
			t.Errorf("%s: one proof counted twice", c.claim)
		}
		if got := spend(2); got != c.fresh {
			t.Errorf("%s: a proof that was not used before: %v", c.claim, got)
		}
	}
}

// A clock that is set back brings no proof back with it.
func TestAProofStaysUsedWhenTheClockGoesBack(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	m := dpop.NewMemory(0, func() time.Time { return now })
	used := now.Add(time.Minute)
	spend := func(until time.Time) bool {
		first, err := m.Spend(t.Context(), [32]byte{1}, until)
		if err != nil {
			t.Fatal(err)
		}
		return first
	}
	if !spend(used) {
		t.Fatal("the scene is not set")
	}
	now = now.Add(time.Hour)
	spend(now.Add(time.Minute)) // forgets what ended
	now = now.Add(-time.Hour)
	if spend(used) {
		t.Error("it was taken again")
	}
}

func TestOneOfManyIsFirst(t *testing.T) {
	m := dpop.NewMemory(0, nil)
	var firsts atomic.Int32
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			if first, err := m.Spend(t.Context(), [32]byte{1}, time.Now().Add(time.Minute)); first && err == nil {
				firsts.Add(1)
			}
		})
	}
	all.Wait()
	if firsts.Load() != 1 {
		t.Errorf("%d were first", firsts.Load())
	}
}
