package relay

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/fleet"
	"github.com/sallyport-ai/sallyport/routing/kvevents"
	"github.com/sallyport-ai/sallyport/routing/kvindex"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

// Bugs that other routers had with KV events, each with its whole kind, by the
// numbers of the list that they were collected in. Those that another test
// holds already:
//
//	B097  ranks ignored or misparsed        TestARequestReachesTheRankThatHoldsItsPrefix, TestEachRankOfSGLangIsFollowed, invariant 12
//	B098  two layouts of replays            kvevents: TestReadsRealReplays, TestReplaysFromLibzmqRouter
//	B099  probes reset counts of load       fleet: TestOurOwnWorkCountsUntilTheRelayHasSeenIt; TestTheLoadAcknowledgesTheSubscribersOwnTickets
//	B101  misses go to the busiest          routing: TestAStreamOfColdRequestsSpreads, invariant 16
//	B102  a cold burst scatters             fleet: TestPrefixesInFlightAreColocatedButNotPredicted
//	B103  a new router is blind             fleet: TestReadyWaitsForTheStreams; TestAnySubscriberAtAnyTimeBelievesWhatTheMirrorHolds
//	B104  an address is used again          fleet: TestAnAddressIsPinnedToTheIDItProvesFirst, TestALostHolderIsNamedUntilItReturnsAsAnother

func TestB084ABlockWhoseParentCameBeforeUsIsNotLostForEver(t *testing.T) {
	for _, replay := range []bool{true, false} {
		p := newPlane(t, shape{noReplay: !replay})
		e := p.engine(0)
		e.batch(e.store(nsA, "wx", 0, 2)) // before anybody listened
		p.connect(0, 0)
		p.say(0, e.store(nsA, "wxyz", 2, 4))
		p.sound()
		if replay {
			p.equal()
			continue
		}
		// The engine evicts the beginning and computes it again, in the end.
		p.say(0, e.evict(prefix{nsA, "w"}, prefix{nsA, "wx"}))
		p.say(0, e.store(nsA, "wx", 0, 2))
		p.equal()
		if got := p.credit(0, nsA, "wxyz"); got != 4 {
			t.Errorf("credited %d once the parent came", got)
		}
	}
}

func TestB086ClearsOfEveryKindTakeAllCredit(t *testing.T) {
	for name, clear := range map[string]func(p *plane){
		"an event":                   func(p *plane) { p.say(0, p.engine(0).clear()) },
		"among others":               func(p *plane) { e := p.engine(0); p.say(0, e.store(nsB, "w", 0, 1), e.clear()) },
		"never flushed: it sleeps":   func(p *plane) { p.engine(0).clear(); p.sides[0].relay.hub.asleep() },
		"another process, same port": func(p *plane) { p.disconnect(0); p.engine(0).restart(); p.connect(0, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlane(t, shape{})
			for i := range 10 {
				p.say(0, p.engine(0).store(nsA, fmt.Sprintf("%cxyz", 'a'+i), 0, 4))
			}
			clear(p)
			p.settle()
			for i := range 10 {
				if got := p.credit(0, nsA, fmt.Sprintf("%cxyz", 'a'+i)); got != 0 {
					t.Errorf("prompt %d is credited with %d blocks", i, got)
				}
			}
			p.say(0, p.engine(0).store(nsA, "wx", 0, 2))
			p.sound()
			if got := p.credit(0, nsA, "wx"); got != 2 {
				t.Errorf("afterwards: credited %d", got)
			}
		})
	}
}

func TestB088AFirstNumberAboveZeroIsNoBeginning(t *testing.T) {
	for _, c := range []struct {
		name string
		sh   shape
		want routing.Stream
	}{
		{"replayed from 0", shape{}, routing.StreamLive},
		{"replayed from 30", shape{kept: 10}, routing.StreamLivePartial},
		{"without replay", shape{noReplay: true}, routing.StreamLivePartial},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlane(t, c.sh)
			e := p.engine(0)
			e.restart()
			for i := range 40 {
				e.batch(e.store(nsA, string(rune('a'+i%26)), 0, 1))
			}
			p.connect(0, 0)
			p.say(0, e.store(nsB, "wx", 0, 2))
			p.sound()
			if s := p.candidates(nsB, "wx")[0]; s.Stream != c.want || s.Depth != 2 {
				t.Errorf("stream %v, credited %d", s.Stream, s.Depth)
			}
		})
	}
}

func TestB089AReplayThatOverlapsLiveBatchesCountsOnce(t *testing.T) {
	p := newPlane(t, shape{})
	e := p.engine(0)
	for range 21 {
		e.batch(e.store(nsA, "wx", 0, 2))
		p.sides[0].engines[0].held[prefix{nsA, "wx"}] = 1 // it is the same copy, told anew
	}
	e.restart()
	for i := range 26 {
		e.batch(e.store(nsA, string(rune('a'+i)), 0, 1))
	}
	whole := e.log
	e.log = whole[:21]
	p.connect(0, 0) // replays 0 to 20
	e.log = whole
	for seq := 15; seq <= 25; seq++ { // live, 15 to 25
		p.deliver(0, 0, seq)
	}
	p.equal()
	for i := range 26 {
		p.say(0, e.evict(prefix{nsA, string(rune('a' + i))}))
	}
	p.settle()
	for i := range 26 {
		if got := p.credit(0, nsA, string(rune('a'+i))); got != 0 {
			t.Errorf("block %d outlives its removal", i)
		}
	}
}

func TestB090NothingGrowsWithWhatCameAndWent(t *testing.T) {
	t.Run("a thousand replicas", func(t *testing.T) {
		ix, err := kvindex.New(kvindex.Config{Replicas: 64})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 1000 {
			st, err := ix.Stream(i%64, 1000)
			if err != nil {
				t.Fatal(err)
			}
			if err := st.Store(uint64(i), 0, 1, []uint64{1, 2, 3, uint64(i)}, 0); err != nil {
				t.Fatal(err)
			}
			st.Commit()
			st.Close()
		}
		if got := ix.Bytes(); got != 0 {
			t.Errorf("%d bytes are left", got)
		}
	})
	t.Run("a burst of a million blocks into the index", func(t *testing.T) {
		ix, err := kvindex.New(kvindex.Config{ByteBudget: 24 << 20})
		if err != nil {
			t.Fatal(err)
		}
		st, err := ix.Stream(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(1, 90))
		ids := make([]uint64, 1000)
		for k := range 1000 {
			for i := range ids {
				ids[i] = r.Uint64()
			}
			if err := st.Store(uint64(k), 0, uint32(k*len(ids)+1), ids, 0); err != nil {
				t.Fatal(err)
			}
			if got := ix.Bytes(); got > 24<<20 {
				t.Fatalf("after %d blocks: %d bytes", k*len(ids), got)
			}
		}
		if st.Stats().Refused == 0 {
			t.Error("test shows nothing: all fitted")
		}
	})
	t.Run("a burst into the mirror", func(t *testing.T) {
		m := testMirror(func(c *mirrorConfig) { c.maxNodes = 1000 })
		for i := range 20_000 {
			m.apply(batchOf(store(fmt.Sprint("ours/", i), "wx", 0, 2)))
		}
		if m.live > 1000 || m.skipped["memory_bound"] == 0 {
			t.Errorf("%d blocks", m.live)
		}
	})
}

// What is left out of a batch is counted, and the batch is not lost for it. Only
// where it may have been a removal does the mirror begin anew, with what comes.
func TestB091FormsMixWithinABatch(t *testing.T) {
	encoded := func(ev kvevents.Event, form kvevents.Form) []byte { // one event
		b := kvevents.AppendBatch(nil, &kvevents.Batch{TS: 1, Rank: 0, Events: []kvevents.Event{ev}}, form)
		return b[11 : len(b)-1]
	}
	for _, c := range []struct {
		name    string
		between []byte
		want    int
		counted uint64
	}{
		{"a broken store", []byte("\x82\xa4type\xabBlockStored\xa1z\x01"), 4, 1},
		{"an unknown kind, as a map", []byte("\x81\xa4type\xa5Alien"), 0, 1},
		{"an unknown kind, as an array", []byte("\x91\xa5Alien"), 0, 1},
		{"a broken removal", []byte("\x82\xa4type\xacBlockRemoved\xa1z\x01"), 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlane(t, shape{})
			e := p.engine(0)
			seq := e.batch()
			e.log[seq].Payload = bytes.Join([][]byte{
				kvevents.AppendBatch(nil, &kvevents.Batch{TS: 7, Rank: 0}, kvevents.FormMap)[:10],
				{0x93},
				encoded(e.store(nsA, "wx", 0, 2), kvevents.FormArray), c.between,
				encoded(e.store(nsA, "wxyz", 2, 4), kvevents.FormMap),
				{0x00},
			}, nil)
			p.deliver(0, 0, seq)
			p.settle()
			if got := p.credit(0, nsA, "wxyz"); got != c.want {
				t.Errorf("credited %d of 4 blocks, want %d", got, c.want)
			}
			n := uint64(0)
			for why, k := range p.sides[0].relay.hub.summaries()[0].skipped {
				if strings.HasPrefix(why, "undecoded_") {
					n += k
				}
			}
			if n != c.counted {
				t.Errorf("counted %d, want %d", n, c.counted)
			}
			p.say(0, e.store(nsB, "wx", 0, 2))
			p.settle()
			if got := p.credit(0, nsB, "wx"); got != 2 {
				t.Errorf("of what came next: credited %d", got)
			}
		})
	}
}

func TestB092HashesOfEveryTypeNameTheirOwnBlock(t *testing.T) {
	digest := func(b byte, n int) kvevents.Hash {
		h, err := kvevents.BytesHash(bytes.Repeat([]byte{b}, n))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	hashes := []kvevents.Hash{
		kvevents.IntHash(1<<64 - 1), kvevents.IntHash(1 << 63), kvevents.IntHash(1<<63 - 1), kvevents.IntHash(1),
		digest(0xff, 8), digest(0xff, 32), digest(0, 32), digest(0, 8), digest(1, 1),
	}
	p := newPlane(t, shape{})
	e := p.engine(0)
	for i, h := range hashes {
		ev := e.store(nsA, string(rune('a'+i)), 0, 1)
		ev.Hashes[0] = h
		p.say(0, ev)
	}
	for i, h := range hashes {
		p.say(0, kvevents.Event{Type: kvevents.Removed, Hashes: []kvevents.Hash{h}, Medium: "GPU", LoRAID: kvevents.None})
		p.settle()
		for k := range hashes {
			want := 1
			if k <= i {
				want = 0
			}
			if got := p.credit(0, nsA, string(rune('a'+k))); got != want {
				t.Fatalf("without hashes up to %d, block %d is credited %d", i, k, got)
			}
		}
	}
}

func TestB094WhatASlowerTierHoldsIsCountedInBlocks(t *testing.T) {
	p := newPlane(t, shape{})
	e := p.engine(0)
	names := strings.Repeat("wxyzv", 20)
	ev := e.store(nsA, names, 0, 100)
	ev.Medium = "CPU"
	p.say(0, ev)
	p.settle()
	if c := p.candidates(nsA, names)[0]; c.Lower != 100 || c.Depth != 0 {
		t.Errorf("100 blocks on the CPU: %d on lower tiers, %d on the GPU", c.Lower, c.Depth)
	}
}

func TestB095TheTopicIsNobodysIdentity(t *testing.T) {
	p := newPlane(t, shape{replicas: 2})
	for i, topic := range []string{"kv@10.0.0.9:8000@m", "kv@" + planeID(0) + "@m"} {
		e := p.engine(i)
		seq := e.batch(e.store(nsA, "wx", 0, 2-i))
		e.log[seq].Topic = topic
		p.deliver(i, 0, seq)
	}
	p.equal()
}

func TestB096AReplicaWithoutEventsSaysSoAndIsPlacedByLoad(t *testing.T) {
	f := newFaulty(t)
	w := newWorld(t, withEngine(f))
	w.ready()
	flt := w.fleetOf()
	eventually(t, "that there are none is known", func() bool {
		s := flt.Replicas()[0]
		return s.Excluded == "" && s.Stream == routing.StreamNone && s.StreamWhy == routing.NoEvents
	})
	res, err := flt.Reserve(context.Background(), fleet.Request{
		Pools: []string{"general"}, Model: "small", Domain: "d", Operation: string(chatRoute), Tokens: tokensOf([]byte("wxyz")...), TokensExact: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Release()
	if res.Placement.Basis == routing.KVEvents || res.Placement.BasisReason != routing.NoEvents || res.Placement.Predicted != 0 {
		t.Errorf("placed by %s, %s, %d predicted", res.Placement.Basis, res.Placement.BasisReason, res.Placement.Predicted)
	}
	if w.relay.hub.summaries()[0].state != residencyv1.State_NONE.String() {
		t.Error("the relay's metrics do not say so")
	}
}

func TestB106BlocksThatAreNotWhatTheySayAreSkippedAndCounted(t *testing.T) {
	for name, change := range map[string]func(*kvevents.Event){
		"three tokens for a block of 256": func(e *kvevents.Event) { e.BlockSize, e.Tokens, e.Hashes = 256, e.Tokens[:3], e.Hashes[:1] },
		"no tokens":                       func(e *kvevents.Event) { e.Tokens = nil },
		"a token too many":                func(e *kvevents.Event) { e.Tokens = append(e.Tokens, 1) },
		"blocks of no size":               func(e *kvevents.Event) { e.BlockSize = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlane(t, shape{})
			e := p.engine(0)
			ev := e.store(nsA, "wx", 0, 2)
			change(&ev)
			p.say(0, ev, e.store(nsA, "vxyz", 0, 4)) // the same batch goes on
			p.settle()
			if bad, good := p.credit(0, nsA, "wx"), p.credit(0, nsA, "vxyz"); bad != 0 || good != 4 {
				t.Errorf("credited %d, and %d of what is well", bad, good)
			}
			n := uint64(0)
			for _, k := range p.sides[0].relay.hub.summaries()[0].skipped {
				n += k
			}
			if n != 1 {
				t.Errorf("counted %d", n)
			}
		})
	}
}
