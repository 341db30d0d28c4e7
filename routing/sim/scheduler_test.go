package sim

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sallyport-ai/sallyport/routing/kvevents"
)

func newScheduler(blocks int) *scheduler {
	return &scheduler{cache: newCache(blocks, 4), timing: Timing{}.withDefaults(), budget: 32, maxRunning: 4}
}

func ids(from, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(from + i)
	}
	return out
}

func newSequence(prompt []uint32, salt string, answer int) *sequence {
	plan := ids(1_000_000, answer)
	return &sequence{tokens: append([]uint32(nil), prompt...), prompt: len(prompt), plan: plan, limit: answer, chain: chain{salt: salt}}
}

// finish steps until the scheduler is idle and returns the finish reasons.
func finish(t *testing.T, s *scheduler) map[*sequence]string {
	t.Helper()
	reasons := make(map[*sequence]string)
	for n := 0; !s.idle(); n++ {
		if n > 10_000 {
			t.Fatal("the scheduler makes no progress")
		}
		out, cost := s.step()
		if cost <= 0 {
			t.Fatal("a step took no time")
		}
		for _, e := range out {
			if e.last != "" {
				reasons[e.seq] = e.last
			}
		}
	}
	return reasons
}

func TestSecondPromptFindsTheFirstOnesBlocks(t *testing.T) {
	for _, c := range []struct {
		claim  string
		length int
		cached int
	}{
		{"a prompt of whole blocks computes its last token, so its last block", 16, 12},
		{"a prompt with a tail finds all its full blocks", 18, 16},
		{"a prompt shorter than a block finds nothing", 3, 0},
	} {
		t.Run(c.claim, func(t *testing.T) {
			s := newScheduler(64)
			first, second := newSequence(ids(0, c.length), "", 3), newSequence(ids(0, c.length), "", 3)
			s.waiting = append(s.waiting, first)
			finish(t, s)
			s.waiting = append(s.waiting, second)
			finish(t, s)
			if first.cached != 0 || second.cached != c.cached {
				t.Fatalf("cached %d then %d, want 0 then %d", first.cached, second.cached, c.cached)
			}
		})
	}
}

func TestSaltSeparates(t *testing.T) {
	s := newScheduler(64)
	for i, c := range []struct {
		salt   string
		cached int
	}{{"a", 0}, {"b", 0}, {"", 0}, {"a", 12}} {
		q := newSequence(ids(0, 16), c.salt, 1)
		s.waiting = append(s.waiting, q)
		finish(t, s)
		if q.cached != c.cached {
			t.Fatalf("request %d under salt %q: cached %d, want %d", i, c.salt, q.cached, c.cached)
		}
	}
}

func TestSaltIsPublishedWithTheFirstBlockOnly(t *testing.T) {
	s := newScheduler(64)
	s.waiting = append(s.waiting, newSequence(ids(0, 40), "s", 1))
	finish(t, s)
	events := s.cache.takeEvents()
	if len(events) < 2 {
		t.Fatalf("%d events: the prompt should take two steps", len(events))
	}
	for i, e := range events {
		if (e.Salt == "s") != (i == 0) || e.Parent.IsZero() != (i == 0) {
			t.Fatalf("event %d: salt %q, root %v", i, e.Salt, e.Parent.IsZero())
		}
	}
}

func TestSamePromptAtOnceIsStoredTwice(t *testing.T) {
	s := newScheduler(64)
	s.waiting = append(s.waiting, newSequence(ids(0, 8), "", 2), newSequence(ids(0, 8), "", 2))
	finish(t, s)
	if n := len(s.cache.copies[s.cache.contents[s.cache.copies[firstDigest(s, ids(0, 8))][0]].digest]); n != 2 {
		t.Fatalf("%d copies, want 2", n)
	}
}

func firstDigest(s *scheduler, tokens []uint32) digest {
	var ch chain
	s.cache.extend(&ch, tokens)
	return ch.digests[0]
}

func TestMoreThanFitsIsPreemptedAndStillEnds(t *testing.T) {
	s := newScheduler(10) // 40 tokens
	var all []*sequence
	for i := range 6 {
		all = append(all, newSequence(ids(1000*i, 12), "", 20))
	}
	s.waiting = append(s.waiting, all...)
	reasons := finish(t, s)
	for i, q := range all {
		if reasons[q] != "stop" || len(q.tokens) != 32 {
			t.Fatalf("sequence %d: %q with %d tokens", i, reasons[q], len(q.tokens))
		}
	}
	if s.preemptions == 0 || s.cache.pool.Idle() != 10 {
		t.Fatalf("preemptions %d, free blocks %d of 10", s.preemptions, s.cache.pool.Idle())
	}
}

func TestLimitEndsWithLength(t *testing.T) {
	s := newScheduler(64)
	q := newSequence(ids(0, 8), "", 10)
	q.limit = 4
	s.waiting = append(s.waiting, q)
	if r := finish(t, s); r[q] != "length" || len(q.tokens) != 12 {
		t.Fatalf("%q after %d tokens", r[q], len(q.tokens)-8)
	}
}

func TestStoppedSequenceGivesItsBlocksBack(t *testing.T) {
	s := newScheduler(64)
	q := newSequence(ids(0, 30), "", 10)
	s.waiting = append(s.waiting, q)
	s.step()
	q.stopped = true
	finish(t, s)
	if s.cache.pool.Idle() != 64 {
		t.Fatalf("%d blocks free of 64", s.cache.pool.Idle())
	}
}

func TestLongContextIsDearer(t *testing.T) {
	s := newScheduler(64)
	short := s.cost(share{newSequence(nil, "", 1), 16})
	q := newSequence(nil, "", 1)
	q.computed = s.timing.Context
	if long := s.cost(share{q, 16}); long != 2*short || short != 16*20*time.Microsecond {
		t.Fatalf("%v for the beginning, %v at the context length", short, long)
	}
}

// The events alone must tell what the cache holds: that is what they are for.
func TestEventsTellExactlyWhatTheCacheHolds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newScheduler(rapid.IntRange(8, 24).Draw(rt, "blocks"))
		told := make(map[kvevents.Hash]int)
		for range rapid.IntRange(1, 12).Draw(rt, "rounds") {
			for range rapid.IntRange(1, 3).Draw(rt, "requests") {
				from := 100 * rapid.IntRange(0, 3).Draw(rt, "prompt")
				n := rapid.IntRange(1, 20).Draw(rt, "length")
				s.waiting = append(s.waiting, newSequence(ids(from, n), rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "salt"), rapid.IntRange(1, 8).Draw(rt, "answer")))
			}
			for n := 0; !s.idle(); n++ {
				if n > 10_000 {
					rt.Fatal("no progress")
				}
				s.step()
			}
			if rapid.IntRange(0, 9).Draw(rt, "clear") == 0 && !s.cache.clear() {
				rt.Fatal("an idle cache would not clear")
			}
			for _, e := range s.cache.takeEvents() {
				apply(rt, told, e)
			}
		}
		held := make(map[kvevents.Hash]int)
		for d, copies := range s.cache.copies {
			held[d.event()] += len(copies)
		}
		if len(held) != len(told) {
			rt.Fatalf("told of %d blocks, holds %d", len(told), len(held))
		}
		for h, n := range held {
			if told[h] != n {
				rt.Fatalf("block %v: told of %d copies, holds %d", h, told[h], n)
			}
		}
		if s.cache.pool.Idle() != s.cache.pool.Len() {
			rt.Fatalf("%d of %d blocks free when idle", s.cache.pool.Idle(), s.cache.pool.Len())
		}
	})
}

func apply(rt *rapid.T, told map[kvevents.Hash]int, e kvevents.Event) {
	switch e.Type {
	case kvevents.Cleared:
		clear(told)
	case kvevents.Stored:
		if !e.Dense() {
			rt.Fatalf("event of %d blocks with %d tokens", len(e.Hashes), len(e.Tokens))
		}
		for _, h := range e.Hashes {
			told[h]++
		}
	case kvevents.Removed:
		for _, h := range e.Hashes {
			if told[h]--; told[h] == 0 {
				delete(told, h)
			} else if told[h] < 0 {
				rt.Fatal("removed what was never stored")
			}
		}
	}
}

func BenchmarkStep(b *testing.B) {
	s := &scheduler{cache: newCache(4096, 16), timing: Timing{}.withDefaults(), budget: 2048, maxRunning: 64}
	for i := 0; b.Loop(); i++ {
		if len(s.running)+len(s.waiting) < 32 {
			s.waiting = append(s.waiting, newSequence(ids(7919*i, 400+i%300), "s", 40))
		}
		s.step()
		s.cache.takeEvents()
	}
}
