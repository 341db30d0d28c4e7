package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/kvevents"
	"github.com/sallyport-ai/sallyport/routing/kvindex"
)

// The seventeen invariants of the KV-event plane, each against the reference
// model of plane_test.go: for every engine the multiset of whole prefixes that
// it holds. Most run from encoded batches to a gateway's credit. What tests of
// a single part say beside them:
//
//	 1  TestMirrorNeverSaysMoreThanTheEngineHolds, TestAfterAnyFaultTheIndexIsWhatTheEngineHolds
//	 2  TestAnySubscriberAtAnyTimeBelievesWhatTheMirrorHolds, kvindex: TestIndexEqualsTheReferenceAfterAnyHistory
//	 3  fleet: TestNoTenantsContentMovesAnothersScore
//	 7  TestMirrorTellsWhatAPromptCanReuse
//	 9  kvindex: TestEveryHolderOfABlockIsReported
//	11  kvindex: TestMemoryIsStableUnderChurn, TestTheByteBudgetHolds; TestMirrorMemoryIsBounded
//	13  kvevents: TestDecodesEveryForm, TestDecodesWhatRealEnginesPublish; TestADialectThatHidesTheSaltEarnsNoCredit
//	14  kvevents: FuzzDecode, FuzzFrames, FuzzHandshake; FuzzMirrorNeverSaysMoreThanTheEngineHolds
//	16  routing: place_test.go

// 1. Soundness: what is credited is never more than the consecutive blocks that
// the engine holds, whatever was stored, evicted, cleared, repeated, lost,
// replayed or restarted.
func TestInvariant01CreditIsNeverMoreThanWhatIsHeld(t *testing.T) {
	t.Parallel()
	for _, sh := range []shape{{}, {kept: 3, form: kvevents.FormArray}, {noReplay: true}} {
		t.Run(fmt.Sprintf("%+v", sh), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				p := newPlane(rt, sh)
				rt.Repeat(merged(p.work(drawSpace, p.drawReplica), p.faults(), map[string]func(*rapid.T){
					"": func(*rapid.T) { p.sound() },
				}))
			})
		})
	}
}

// 2. Completeness: once all is quiet, credit equals the model where nothing was
// lost that a replay did not bring back.
func TestInvariant02CreditEqualsTheModelOnceAllIsQuiet(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		p := newPlane(rt, shape{replicas: 2})
		faults := p.faults()
		delete(faults, "a batch cannot be decoded") // nothing brings that back
		faults["the gateway's watch ends"] = func(rt *rapid.T) {
			if rapid.IntRange(0, 15).Draw(rt, "seldom") == 15 { // coming back takes a moment
				p.sides[p.drawReplica(rt)].cut()
			}
		}
		rt.Repeat(merged(p.work(drawSpace, p.drawReplica), faults, map[string]func(*rapid.T){
			"": func(*rapid.T) { p.equal() },
		}))
	})
}

// 3. Isolation, replicas: what replica R publishes changes nothing that a
// placement sees of another. Isolation, namespaces: what is stored in one
// changes nothing that a placement sees for another. Load is held still.
func TestInvariant03NobodysEventsMoveAnothersScore(t *testing.T) {
	t.Parallel()
	seen := func(p *plane, spaces []namespace) (out []routing.Candidate) {
		p.settle()
		for _, ns := range spaces {
			for _, names := range planePrompts {
				out = append(out, p.candidates(ns, names)...)
			}
		}
		return out
	}
	rapid.Check(t, func(rt *rapid.T) {
		p := newPlane(rt, shape{replicas: 2})
		for i := range p.sides {
			for _, ns := range planeSpaces {
				names := drawPrompt(rt)
				p.say(i, p.engine(i).store(ns, names, 0, len(names)))
			}
		}
		others := []namespace{nsA, nsLoRA}
		before, of0 := seen(p, others), seen(p, planeSpaces)
		of0 = only(of0, 0)
		onlyB := p.work(func(*rapid.T) namespace { return nsB }, func(*rapid.T) int { return 1 })
		rt.Repeat(merged(onlyB, map[string]func(*rapid.T){
			"": func(rt *rapid.T) {
				if now := seen(p, others); !slices.Equal(now, before) {
					rt.Fatalf("content of domain b moved:\n%+v\n%+v", before, now)
				}
			},
		}))
		// Now replica 1 does as it likes everywhere, and breaks.
		one := func(*rapid.T) int { return 1 }
		rt.Repeat(merged(p.work(drawSpace, one), map[string]func(*rapid.T){
			"clear":   func(*rapid.T) { p.say(1, p.engine(1).clear()) },
			"restart": func(rt *rapid.T) { p.disconnect(1); p.overtake(rt, 1); p.connect(1, 0) },
			"lost":    func(*rapid.T) { p.disconnect(1) },
			"": func(rt *rapid.T) {
				if now := only(seen(p, planeSpaces), 0); !slices.Equal(now, of0) {
					rt.Fatalf("events of replica 1 moved replica 0:\n%+v\n%+v", of0, now)
				}
			},
		}))
	})
}

// only are every second of the candidates of two replicas.
func only(cs []routing.Candidate, replica int) (out []routing.Candidate) {
	for i, c := range cs {
		if i%2 == replica {
			out = append(out, c)
		}
	}
	return out
}

// 4. One event of eight blocks, eight events of one, and any cut into events
// and batches give the same credit.
func TestInvariant04HowARunIsCutDoesNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		const names = "wxyzvwxy"
		p := newPlane(rt, shape{replicas: 2})
		p.say(0, p.engine(0).store(nsA, names, 0, len(names)))
		var evs []kvevents.Event
		for at := 0; at < len(names); {
			to := rapid.IntRange(at+1, len(names)).Draw(rt, "to")
			evs = append(evs, p.engine(1).store(nsA, names, at, to))
			if at = to; rapid.Bool().Draw(rt, "batch ends") {
				p.say(1, evs...)
				evs = nil
			}
		}
		p.say(1, evs...)
		p.settle()
		for n := range len(names) + 1 {
			if a, b := p.credit(0, nsA, names[:n]), p.credit(1, nsA, names[:n]); a != n || b != n {
				rt.Fatalf("%d blocks: credited %d as one event, %d cut", n, a, b)
			}
		}
	})
}

// 5. Independent events commute, and a replay that overlaps what was heard
// changes nothing.
func TestInvariant05OrderOfIndependentEventsAndOverlapDoNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		p := newPlane(rt, shape{replicas: 2})
		var evs [2][]kvevents.Event
		for i := range evs {
			e := p.engine(i)
			for _, ns := range planeSpaces {
				evs[i] = append(evs[i], e.store(ns, "wxyz", 0, 4), e.store(ns, "vxyz", 0, 4)) // no two share a block
			}
		}
		for i, at := range rapid.Permutation([]int{0, 1, 2, 3, 4, 5}).Draw(rt, "order") {
			p.say(0, evs[0][i])
			p.say(1, evs[1][at])
		}
		for i := range evs {
			p.say(i, p.engine(i).evict(prefix{nsA, "wx"}))
		}
		p.equal()
		for range rapid.IntRange(1, 3).Draw(rt, "overlaps") {
			switch log := p.engine(1).log; rapid.IntRange(0, 2).Draw(rt, "how") {
			case 0: // all of it again, as if it were new
				p.sides[1].relay.hub.update(0, func(s *stream) { s.restart("test") })
				p.connect(1, 0)
			case 1: // from the last batch on
				p.disconnect(1)
				p.connect(1, 0)
			case 2: // live batches that the replay brought already
				p.deliver(1, 0, rapid.IntRange(0, len(log)-1).Draw(rt, "again"))
			}
			p.equal()
		}
		p.say(1, p.engine(1).evict(prefix{nsA, "w"})) // one removal clears one block: nothing was counted twice
		p.equal()
	})
}

// 6. From a lost connection or a gap in the sequence until what was missed is
// known, nothing is credited.
func TestInvariant06AGapOrALostConnectionEarnsNothingUntilItIsHealed(t *testing.T) {
	t.Parallel()
	names := planePrompts[0]
	begin := func(t *testing.T, sh shape) (*plane, *reference) {
		p := newPlane(t, sh)
		e := p.engine(0)
		p.say(0, e.store(nsA, names, 0, 4))
		p.equal()
		return p, e
	}
	zero := func(t *testing.T, p *plane, when string) {
		t.Helper()
		p.settle()
		if got := p.credit(0, nsA, names); got != 0 {
			t.Errorf("%s: credited %d", when, got)
		}
	}
	t.Run("a lost connection, with replay", func(t *testing.T) {
		p, e := begin(t, shape{})
		p.disconnect(0)
		zero(t, p, "while disconnected")
		e.batch(e.evict(prefix{nsA, "wx"}))
		p.connect(0, 0)
		p.equal()
	})
	t.Run("a lost connection, without", func(t *testing.T) {
		p, e := begin(t, shape{noReplay: true})
		p.disconnect(0)
		zero(t, p, "while disconnected")
		p.connect(0, 0)
		zero(t, p, "connected again, of what was before")
		p.say(0, e.store(nsB, names, 0, 2))
		p.settle()
		if got := p.credit(0, nsB, names); got != 2 {
			t.Errorf("of what came since: credited %d", got)
		}
		p.sound()
	})
	t.Run("a gap, while its replay lasts", func(t *testing.T) {
		p, e := begin(t, shape{})
		f, replay := p.sides[0].follow[0], p.sides[0].follow[0].replay
		f.replay = func(ctx context.Context, from uint64, each func(kvevents.Message) error) error {
			zero(t, p, "while the replay lasts")
			return replay(ctx, from, each)
		}
		e.batch(e.evict(prefix{nsA, "wx"}))
		p.say(0, e.store(nsB, names, 0, 1))
		p.equal()
	})
	t.Run("a gap whose replay breaks off", func(t *testing.T) {
		p, e := begin(t, shape{})
		p.sides[0].follow[0].replay = func(context.Context, uint64, func(kvevents.Message) error) error { return errors.New("broken") }
		e.batch(e.evict(prefix{nsA, "wx"}))
		p.say(0, e.store(nsB, names, 0, 1))
		zero(t, p, "of what was before the gap")
		p.sound()
	})
	t.Run("a gap without replay", func(t *testing.T) {
		p, e := begin(t, shape{noReplay: true})
		e.batch(e.evict(prefix{nsA, "wx"}))
		p.say(0, e.store(nsB, names, 0, 1))
		zero(t, p, "of what was before the gap")
		p.sound()
	})
	t.Run("a gateway's watch that ends", func(t *testing.T) {
		p, _ := begin(t, shape{})
		p.sides[0].cut()
		eventually(t, "no credit", func() bool { return p.credit(0, nsA, names) == 0 })
		p.equal()
	})
}

// 7. A run whose parent is not known is never the beginning of a prompt; it
// counts once its parent comes.
func TestInvariant07AnOrphanNeverBecomesARoot(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		p := newPlane(rt, shape{noReplay: true})
		e, names := p.engine(0), "wxyzv"
		p.say(0, e.store(nsA, "q", 0, 1)) // the namespace has other roots
		k := rapid.IntRange(1, len(names)-1).Draw(rt, "unknown beginning")
		p.say(0, e.store(nsA, names, k, len(names)))
		rootless := func() {
			p.settle()
			for from := 1; from < len(names); from++ {
				if got := p.credit(0, nsA, names[from:]); got != 0 {
					rt.Fatalf("an orphan earns %d blocks of %q", got, names[from:])
				}
			}
			if got, held := p.credit(0, nsA, names), e.depth(nsA, names); got > held {
				rt.Fatalf("credited %d blocks of %q, held %d", got, names, held)
			}
		}
		rootless()
		// The beginning comes, from its end to its start or the other way.
		order := make([]int, k)
		for i := range order {
			order[i] = i
		}
		for _, i := range rapid.Permutation(order).Draw(rt, "order") {
			p.say(0, e.store(nsA, names, i, i+1))
			rootless()
		}
		if got := p.credit(0, nsA, names); got != len(names) {
			rt.Fatalf("all came: credited %d of %d", got, len(names))
		}
	})
}

// 8. The same content at the same place of another prompt is another block.
func TestInvariant08ContentIsNotCreditedAcrossPrefixes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		p := newPlane(rt, shape{})
		letters := rapid.SliceOfN(rapid.SampledFrom([]byte("wx")), 1, 6)
		for range rapid.IntRange(1, 6).Draw(rt, "prompts") {
			names := string(letters.Draw(rt, "stored"))
			p.say(0, p.engine(0).store(nsA, names, 0, len(names)))
		}
		p.settle()
		for range 20 {
			names := string(letters.Draw(rt, "asked"))
			if got, held := p.credit(0, nsA, names), p.engine(0).depth(nsA, names); got != held {
				rt.Fatalf("credited %d blocks of %q, held %d", got, names, held)
			}
		}
	})
}

// 9. Every holder of a block is reported, however many there are.
func TestInvariant09EveryHolderIsReported(t *testing.T) {
	t.Parallel()
	for _, holders := range []int{1, 11, 65, 257, 1000} {
		ix, err := kvindex.New(kvindex.Config{})
		if err != nil {
			t.Fatal(err)
		}
		r, ids := rand.New(rand.NewPCG(uint64(holders), 9)), []uint64{1, 2, 3, 4, 5, 6, 7, 8}
		want := make([]int, holders)
		for i := range holders {
			st, err := ix.Stream(i, 0)
			if err != nil {
				t.Fatal(err)
			}
			want[i] = 1 + r.IntN(len(ids))
			if err := st.Store(7, 0, 1, ids[:want[i]], 0); err != nil {
				t.Fatal(err)
			}
			st.Commit()
		}
		got := make([]int, holders)
		for _, m := range ix.Match(nil, 7, ids) {
			got[m.Replica] = m.Depth
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d holders: depths %v, want %v", holders, got, want)
		}
	}
}

// 10. A block that was stored n times is held until it was removed n times.
func TestInvariant10CopiesAreCounted(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		p := newPlane(rt, shape{})
		e, n := p.engine(0), rapid.IntRange(1, 5).Draw(rt, "copies")
		for range n {
			p.say(0, e.store(nsA, "wxy", 0, 3))
		}
		for left := n - 1; left >= 0; left-- {
			p.say(0, e.evict(prefix{nsA, "wx"}))
			p.settle()
			want := 3
			if left == 0 {
				want = 1
			}
			if got := p.credit(0, nsA, "wxy"); got != want {
				rt.Fatalf("%d of %d copies left: credited %d, want %d", left, n, got, want)
			}
		}
		p.say(0, kvevents.Event{Type: kvevents.Removed, Hashes: []kvevents.Hash{e.hash(prefix{nsA, "wx"})}, Medium: "GPU", Group: 0, LoRAID: kvevents.None})
		p.say(0, e.store(nsA, "wxy", 1, 2)) // a removal too many is not owed
		p.equal()
	})
}

// An engine that announces blocks anew that it uses again has no further copy
// of them: one removal takes the block, and after a gap that nothing fills the
// mirror learns of what is used.
func TestInvariant10AnnouncementsAreNoCopies(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		p := newPlane(rt, shape{noReplay: true, once: true})
		e := p.engine(0)
		announce := func(names string, to int) kvevents.Event { // stored or used
			ev := e.store(nsA, names, 0, to)
			for x, n := range e.held {
				e.held[x] = min(n, 1)
			}
			return ev
		}
		rt.Repeat(map[string]func(*rapid.T){
			"use": func(rt *rapid.T) { n := drawPrompt(rt); p.say(0, announce(n, len(n))) },
			"evict": func(rt *rapid.T) {
				if held := e.prefixes(); len(held) > 0 {
					p.say(0, e.evict(rapid.SampledFrom(held).Draw(rt, "evicted")))
				}
			},
			"gap": func(*rapid.T) { e.batch(e.evict(e.prefixes()...)); p.say(0, announce("w", 1)) },
			"":    func(*rapid.T) { p.sound() },
		})
		p.disconnect(0)
		p.connect(0, 0) // nothing is known any more
		for _, names := range planePrompts {
			p.say(0, announce(names, len(names)))
		}
		p.equal()
	})
}

// 11. After a clear, and after churn of many times what is held, the relay and
// the gateway need no more memory than before; a budget is never exceeded.
func TestInvariant11MemoryReturnsToItsBaseline(t *testing.T) {
	t.Parallel()
	p := newPlane(t, shape{})
	e, m := p.engine(0), p.sides[0].relay.hub.streams[0].m
	empty := p.fleet.IndexBytes()
	var most int64
	for round := range 12 {
		for k := range 300 {
			ns := namespace{"m", "", fmt.Sprint("d", k%40)}
			p.say(0, e.store(ns, fmt.Sprintf("%c%c%c", 'a'+k%26, 'a'+k/26, 'a'+round), 0, 3))
		}
		p.settle()
		if bytes := p.fleet.IndexBytes(); round == 0 {
			most = bytes
		} else if bytes > most {
			t.Errorf("round %d: %d bytes of index, %d after the first", round, bytes, most)
		}
		if round%2 == 0 {
			p.say(0, e.evict(e.prefixes()...))
		} else {
			p.say(0, e.clear())
		}
		p.settle()
		if bytes := p.fleet.IndexBytes(); bytes > empty || m.live != 0 || len(m.byHash) != 0 || len(m.spaces) != 0 {
			t.Errorf("round %d: %d bytes of index (%d when new), %d blocks in the mirror", round, bytes, empty, m.live)
		}
		clear(e.held)
	}
}

// 12. Adapter, salt, media, cache group and rank each make another block.
func TestInvariant12WhatIsNotTheSameIsNotTheSameBlock(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*kvevents.Event)
	}{
		{"an adapter", func(e *kvevents.Event) { e.Adapter = "lora" }},
		{"an adapter known by number only", func(e *kvevents.Event) { e.LoRAID = 3 }},
		{"another salt", func(e *kvevents.Event) { e.Salt = "other" }},
		{"no salt", func(e *kvevents.Event) { e.Salt = "" }},
		{"media", func(e *kvevents.Event) {
			e.Extra = [][]kvevents.ExtraKey{{{Kind: kvevents.MediaKey, ID: "i", Offset: 0}, {Kind: kvevents.SaltKey, ID: e.Salt}}, nil}
		}},
		{"a key that nobody knows", func(e *kvevents.Event) {
			e.Extra = [][]kvevents.ExtraKey{{{Kind: kvevents.SaltKey, ID: e.Salt}, {}}, nil}
		}},
		{"a group of sliding windows", func(e *kvevents.Event) { e.Group, e.SpecKind, e.SlidingWindow = 1, "sliding_window", 64 }},
		{"another block size", func(e *kvevents.Event) { e.BlockSize, e.Hashes = 2*testBlock, e.Hashes[:1] }},
		{"another machine's", func(e *kvevents.Event) { e.Locality = "REMOTE" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlane(t, shape{})
			ev := p.engine(0).store(nsA, "wx", 0, 2)
			c.change(&ev)
			p.say(0, ev)
			p.settle()
			if got := p.credit(0, nsA, "wx"); got != 0 {
				t.Errorf("credited %d blocks of plain text", got)
			}
			clear(p.engine(0).held)
			p.say(0, p.engine(0).store(nsA, "yz", 0, 2)) // the same without it
			p.settle()
			if got := p.credit(0, nsA, "yz"); got != 2 {
				t.Errorf("credited %d blocks of what is plain text", got)
			}
			ev.Hashes = []kvevents.Hash{kvevents.IntHash(1), kvevents.IntHash(2)}[:len(ev.Hashes)]
			ev.Tokens = tokensOf('v', 'v')
			p.say(0, ev) // beside it, too
			p.settle()
			if got := p.credit(0, nsA, "vv"); got != 0 {
				t.Errorf("credited %d blocks of plain text beside some that is", got)
			}
		})
	}
	t.Run("a rank that the request chooses", func(t *testing.T) {
		p := newPlane(t, shape{ranks: 2})
		for rank, names := range []string{"wx", "wxy"} {
			p.deliver(0, rank, p.sides[0].engines[rank].batch(p.sides[0].engines[rank].store(nsA, names, 0, len(names))))
		}
		p.settle()
		if c := p.candidates(nsA, "wxy")[0]; c.Depth != 3 || c.Rank != 1 {
			t.Errorf("the ranks hold 2 and 3: credited %d on rank %d", c.Depth, c.Rank)
		}
		e := p.sides[0].engines[1]
		e.rank = 0 // what it says of itself is not believed
		p.deliver(0, 1, e.batch(e.store(nsA, "wxy", 2, 3)))
		p.settle()
		if c := p.candidates(nsA, "wxy")[0]; c.Depth != 2 || c.Rank != 0 {
			t.Errorf("rank 1 says it is another: credited %d on rank %d", c.Depth, c.Rank)
		}
	})
	t.Run("a rank that the engine chooses", func(t *testing.T) {
		p := newPlane(t, shape{ranks: 2, kind: SGLang})
		say := func(rank int, names string) {
			p.deliver(0, rank, p.sides[0].engines[rank].batch(p.sides[0].engines[rank].store(nsA, names, 0, len(names))))
			p.settle()
		}
		say(0, "wxy")
		if got := p.credit(0, nsA, "wxy"); got != 0 {
			t.Errorf("one rank of two holds it: credited %d", got)
		}
		p.sides[0].engines[1].rank = 0 // as without parallel attention
		say(1, "wx")
		if c := p.candidates(nsA, "wxy")[0]; c.Depth != 2 || c.Rank != 0 {
			t.Errorf("the ranks hold 3 and 2: credited %d on rank %d", c.Depth, c.Rank)
		}
	})
}

// 13. Golden bytes: of what real engines published, nothing is credited but
// what bore a salt of ours, and all of that.
func TestInvariant13GoldenBytes(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(vectorDir, "*", "[0-9]*.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Skip("no captures of real engines at", vectorDir)
	}
	credited := 0
	for _, file := range files {
		b := captured(t, file)
		want, hidden := 0, false
		for i := range b.Events {
			hidden = hidden || b.Events[i].SaltHidden
			if ev := &b.Events[i]; ev.Type == kvevents.Stored && ev.Salt != "" && !ev.SaltHidden && ev.Parent.IsZero() && ev.Dense() && ev.Adapter == "" {
				want += len(ev.Hashes)
			}
		}
		m, sub := newMirror(mirrorConfig{resolve: func(salt string) (model, domain string, ok bool) { return "m", "d", salt != "" }}), newBeliever(t)
		m.apply(b)
		sub.take(m.flush())
		if got := len(sub.credits()); got != want {
			t.Errorf("%s: %d blocks credited, want %d", file, got, want)
		}
		if m.saltHidden != hidden {
			t.Errorf("%s: that the dialect hides the salt is noticed: %v", file, m.saltHidden)
		}
		credited += want
	}
	if credited == 0 {
		t.Error("test shows nothing: no capture has a salted event")
	}
}

// 14. Bytes that nobody should send neither break the plane nor earn anything.
func TestInvariant14BrokenBytesEarnNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		p := newPlane(rt, shape{noReplay: true, form: rapid.SampledFrom([]kvevents.Form{kvevents.FormMap, kvevents.FormArray}).Draw(rt, "form")})
		e := p.engine(0)
		p.say(0, e.store(nsA, "wxyz", 0, 4))
		seq := e.batch(e.evict(prefix{nsA, "w"}), e.store(nsB, "wxyz", 0, 4))
		clear(e.held) // whatever comes of it: what was before may be gone, and what is said is not whole
		bytes := e.log[seq].Payload
		switch rapid.IntRange(0, 2).Draw(rt, "damage") {
		case 0:
			bytes = bytes[:rapid.IntRange(1, len(bytes)-1).Draw(rt, "cut at")]
		case 1:
			bytes = append(slices.Clone(bytes), rapid.SliceOfN(rapid.Byte(), 1, 9).Draw(rt, "more")...)
		case 2:
			bytes = rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(rt, "noise")
		}
		e.log[seq].Payload = bytes
		p.deliver(0, 0, seq)
		p.sound()
		p.say(0, e.store(nsB, "vxyz", 0, 4)) // and what comes next counts
		p.settle()
		if got := p.credit(0, nsB, "vxyz"); got != 4 {
			rt.Fatalf("after broken bytes: credited %d", got)
		}
	})
}

// 15. The last token is always computed: no more is predicted than
// ⌊(n-1)/block⌋ whole blocks.
func TestInvariant15TheLastTokenIsComputed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		block, n := rapid.SampledFrom([]int{1, 16, 64, 256}).Draw(rt, "block"), rapid.IntRange(1, 2000).Draw(rt, "tokens")
		depth := n / block
		s := routing.Snapshot{Candidates: []routing.Candidate{{
			ID: "r", Stream: routing.StreamLive, BlockSize: block, Depth: depth, Confidence: 1000, PrefillPS: 62_500_000,
		}}}
		got, err := routing.Place(routing.Query{PromptTokens: n, TokensExact: true}, s)
		if err != nil {
			rt.Fatal(err)
		}
		if want := (n - 1) / block * block; got.Predicted != want {
			rt.Fatalf("%d tokens in blocks of %d, all held: predicted %d, want %d", n, block, got.Predicted, want)
		}
	})
}

// 16. Placement: the same for the same seed, in whatever order; never worse for
// holding more nor better for being busier; and nobody takes all of it.
func TestInvariant16PlacementIsFairMonotoneAndRepeatable(t *testing.T) {
	t.Parallel()
	candidate := rapid.Custom(func(rt *rapid.T) routing.Candidate {
		return routing.Candidate{
			Stream: routing.StreamLive, BlockSize: 16, Depth: rapid.IntRange(0, 100).Draw(rt, "depth"), Confidence: rapid.IntRange(0, 1000).Draw(rt, "confidence"),
			WaitingTokens: rapid.Int64Range(0, 100_000).Draw(rt, "waiting"), PrefillPS: rapid.Int64Range(1e6, 1e9).Draw(rt, "ps"),
			Load: rapid.Int64Range(0, 1_000_000).Draw(rt, "load"),
		}
	})
	place := func(rt *rapid.T, q routing.Query, cs []routing.Candidate) routing.Placement {
		got, err := routing.Place(q, routing.Snapshot{Candidates: slices.Clone(cs)})
		if err != nil {
			rt.Fatal(err)
		}
		return got
	}
	rapid.Check(t, func(rt *rapid.T) {
		cs := rapid.SliceOfN(candidate, 1, 12).Draw(rt, "candidates")
		for i := range cs {
			if rapid.IntRange(0, 2).Draw(rt, "a tie") == 0 {
				cs[i] = cs[0]
			}
			cs[i].ID = planeID(i)
		}
		q := routing.Query{
			Strategy:     rapid.SampledFrom([]routing.Strategy{routing.Probabilistic, routing.Deterministic}).Draw(rt, "strategy"),
			PromptTokens: 1600, TokensExact: true, Seed: rapid.Uint64().Draw(rt, "seed"),
		}
		first := place(rt, q, cs)
		if again := place(rt, q, rapid.Permutation(cs).Draw(rt, "order")); again.ID != first.ID {
			rt.Fatalf("%s, then %s in another order", first.ID, again.ID)
		}
		for _, s := range first.Candidates {
			if tie := max(2_000_000, s.CostNS/50); s.CostNS+tie < first.CostNS {
				rt.Fatalf("%s was chosen at %d, %s costs %d", first.ID, first.CostNS, s.ID, s.CostNS)
			}
		}
		if q.Strategy == routing.Deterministic {
			better := slices.Clone(cs)
			better[first.Chosen].Depth = min(100, better[first.Chosen].Depth+10)
			if got := place(rt, q, better); got.ID != first.ID {
				rt.Fatalf("%s holds more and loses to %s", first.ID, got.ID)
			}
			for i := range cs {
				if i == first.Chosen {
					continue
				}
				busier := slices.Clone(cs)
				busier[i].WaitingTokens += 50_000
				if got := place(rt, q, busier); got.ID == cs[i].ID {
					rt.Fatalf("%s is busier and wins from %s", got.ID, first.ID)
				}
			}
		}
	})
	// No herd and no starvation: of equal replicas each gets its part of a
	// stream of requests, although only one holds the prefix.
	work := make([]routing.Candidate, 8)
	for i := range work {
		work[i] = routing.Candidate{ID: planeID(i), Stream: routing.StreamLive, BlockSize: 16, Confidence: 1000, PrefillPS: 62_500_000}
	}
	work[3].Depth = 60
	served := make([]int, len(work))
	for seed := range uint64(800) {
		got, err := routing.Place(routing.Query{Strategy: routing.Probabilistic, PromptTokens: 1000, TokensExact: true, Seed: seed}, routing.Snapshot{Candidates: slices.Clone(work)})
		if err != nil {
			t.Fatal(err)
		}
		c := &work[got.Chosen]
		served[got.Chosen]++
		c.WaitingTokens += 1000
		c.Load += 1000
		c.Depth = max(c.Depth, 60) // it has it now
	}
	if slices.Min(served) < 50 || slices.Max(served) > 200 {
		t.Errorf("served %v", served)
	}
}

// 17. An engine that restarts while nobody listens, and whose numbers have gone
// past the old ones, is another engine.
func TestInvariant17ARestartUnheardIsNoContinuation(t *testing.T) {
	t.Parallel()
	for _, sh := range []shape{{}, {kept: 2}, {noReplay: true}} {
		t.Run(fmt.Sprintf("%+v", sh), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				p := newPlane(rt, sh)
				e := p.engine(0)
				for range rapid.IntRange(1, 5).Draw(rt, "batches before") {
					p.say(0, e.store(nsA, drawPrompt(rt), 0, 1))
				}
				p.say(0, e.store(nsB, "wxyzw", 0, 5))
				before := len(e.log)
				p.disconnect(0)
				e.restart()
				for range before + rapid.IntRange(-1, 3).Draw(rt, "batches since") {
					e.batch(e.store(nsA, "zyxwv", 0, 1))
				}
				p.connect(0, 0)
				p.sound()
				p.say(0, e.store(nsB, "vxyz", 0, 4))
				p.sound()
				if got := p.credit(0, nsB, "vxyz"); got != 4 {
					rt.Fatalf("of what came since: credited %d", got)
				}
				if sh == (shape{}) {
					p.equal()
				}
			})
		})
	}
}
