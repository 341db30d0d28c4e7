package dpop_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sallyport-ai/sallyport/identity/dpop"
)

// Against a list of all that was ever used: within its time no proof counts
// twice, and what is remembered stays bounded and goes away. Who holds nothing is
// refused only when there is no room at all.
func TestMemoryForgetsNothingBeforeItsTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_800_000_000, 0)
		const most = 12
		m := dpop.NewMemory(most, func() time.Time { return now })
		used := map[[32]byte]time.Time{}
		type spent struct {
			id    byte
			until time.Time
		}
		var remembered []spent
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 30_000).Draw(t, "ms")) * time.Millisecond)
			id := rapid.ByteRange(0, 20).Draw(t, "proof")
			proof := [32]byte{id}
			of := dpop.Holder{Tenant: fmt.Sprint("t", id%3), Key: fmt.Sprint("k", id%6)}
			until, known := used[proof]
			if !known || until.Before(now) {
				known = false
				until = now.Add(time.Duration(rapid.IntRange(1, 120_000).Draw(t, "left")) * time.Millisecond)
			}
			first, err := m.Spend(context.Background(), of, proof, until)
			switch {
			case errors.Is(err, dpop.ErrFull):
				var all, tenant, key int
				for _, other := range remembered {
					if other.until.Unix()/10+1 < now.Unix()/10 {
						continue
					}
					all++
					if other.id%3 == id%3 {
						tenant++
					}
					if other.id%6 == id%6 {
						key++
					}
				}
				if left := most - all; first || tenant < left && key < left-tenant {
					t.Fatalf("full with %d: %d of the tenant and %d of the key", all, tenant, key)
				}
			case err != nil:
				t.Fatal(err)
			case first && known:
				t.Fatalf("%d counted twice", id)
			case first:
				used[proof] = until
				remembered = append(remembered, spent{id, until})
			}
			if m.Held() > most {
				t.Fatalf("holds %d", m.Held())
			}
		}
		now = now.Add(time.Hour)
		if first, err := m.Spend(context.Background(), dpop.Holder{}, [32]byte{99}, now.Add(time.Second)); !first || err != nil || m.Held() != 1 {
			t.Fatalf("after an hour: %v, %v, holds %d", first, err, m.Held())
		}
	})
}

func TestAFullShareRefusesItsHolderAlone(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	m := dpop.NewMemory(1200, func() time.Time { return now })
	used := 0
	fill := func(tenant, key string) (taken int) {
		for ; ; taken++ {
			used++
			proof := [32]byte{byte(used), byte(used >> 8), byte(used >> 16)}
			first, err := m.Spend(t.Context(), dpop.Holder{Tenant: tenant, Key: key}, proof, now.Add(time.Minute))
			switch {
			case errors.Is(err, dpop.ErrFull):
				return taken
			case err != nil || !first:
				t.Fatal(first, err)
			}
		}
	}
	for _, c := range []struct {
		claim, tenant, key string
		least, most        int
	}{
		{"one key, as often as it may", "acme", "a", 400, 400},
		{"again at once", "acme", "a", 0, 0},
		{"another key of its tenant", "acme", "b", 130, 140},
		{"another tenant", "globex", "a", 200, 240},
		{"and one more", "initech", "a", 100, 160},
	} {
		if got := fill(c.tenant, c.key); got < c.least || got > c.most {
			t.Errorf("%s: %d were taken", c.claim, got)
		}
	}
	for i := range 200 { // a tenant that makes itself as many keys as it likes
		fill("acme", fmt.Sprint(i))
	}
	if got := fill("hooli", "a"); got == 0 {
		t.Error("a tenant with many keys took the room of one that had used nothing")
	}
	now = now.Add(time.Hour)
	if got := fill("acme", "a"); got != 400 {
		t.Errorf("after their time, %d were taken", got)
	}
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
			first, err := m.Spend(t.Context(), dpop.Holder{}, [32]byte{id}, began.Add(c.until))
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
		first, err := m.Spend(t.Context(), dpop.Holder{}, [32]byte{1}, until)
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
			if first, err := m.Spend(t.Context(), dpop.Holder{}, [32]byte{1}, time.Now().Add(time.Minute)); first && err == nil {
				firsts.Add(1)
			}
		})
	}
	all.Wait()
	if firsts.Load() != 1 {
		t.Errorf("%d were first", firsts.Load())
	}
}

// Many callers, and as many proofs as there is room for them.
func BenchmarkSpend(b *testing.B) {
	now := time.Unix(1_800_000_000, 0)
	m := dpop.NewMemory(0, func() time.Time { return now })
	holders := make([]dpop.Holder, 10_000)
	for i := range holders {
		holders[i] = dpop.Holder{Tenant: fmt.Sprint("tenant-", i%100), Key: fmt.Sprint("key-", i)}
	}
	var proof [32]byte
	for i := 0; b.Loop(); i++ {
		binary.LittleEndian.PutUint64(proof[:], uint64(i))
		now = now.Add(250 * time.Microsecond) // 4,000 a second
		if _, err := m.Spend(b.Context(), holders[i%len(holders)], proof, now.Add(time.Minute)); err != nil {
			b.Fatal(err)
		}
	}
}
