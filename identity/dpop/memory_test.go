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
