package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/ledger"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

const base = "spiffe://example.org/pool/general/"

func prompt(seed uint64, n int) []uint32 {
	r := rand.New(rand.NewPCG(seed, 1))
	p := make([]uint32, n)
	for i := range p {
		p[i] = r.Uint32N(50_000)
	}
	return p
}

func ask(tokens []uint32) Request {
	return Request{
		Pools: []string{"general"}, Model: "small", Domain: "acme", Operation: chat,
		Tokens: tokens, TokensExact: true, Affinity: [32]byte{1}, Strategy: routing.Probabilistic,
	}
}

func reserve(t testing.TB, f *Fleet, r Request) *Reservation {
	t.Helper()
	res, err := f.Reserve(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// depth is how many blocks replica i is credited for a request.
func depth(f *Fleet, r Request, i int) int {
	_, s := f.Snapshot(r)
	return s.Candidates[i].Depth
}

// two is a fleet of two live replicas.
func two(t testing.TB) (*Fleet, []*relay, *authority) {
	a := newAuthority(t)
	relays := []*relay{a.relay(t, base+"r0", "general", "127.0.0.1:0"), a.relay(t, base+"r1", "general", "127.0.0.1:0")}
	f := start(t, a.config(t, relays[0].target("general"), relays[1].target("general")))
	up(t, f, 2)
	return f, relays, a
}

func TestAConversationGoesWhereItsPrefixIs(t *testing.T) {
	f, relays, _ := two(t)
	tokens := prompt(1, 500)
	cold := reserve(t, f, ask(tokens))
	if p := cold.Placement; p.Basis != routing.Load || p.Predicted != 0 {
		t.Errorf("cold: basis %s, predicted %d", p.Basis, p.Predicted)
	}
	cold.FirstToken(time.Now())
	cold.Finish(Result{})
	at := 0
	if cold.Replica.ID == relays[1].id {
		at = 1
	}
	relays[at].store("acme", tokens)
	next := ask(append(tokens[:496:496], prompt(2, 100)...))
	until(t, "the prefix is indexed", func() bool { return depth(f, next, at) == 31 })
	time.Sleep(60 * time.Millisecond) // past the overlay's time: only events speak

	warm := reserve(t, f, next)
	if p := warm.Placement; warm.Replica.ID != cold.Replica.ID || p.Basis != routing.KVEvents || p.Predicted != 31*16 {
		t.Errorf("warm: %s, basis %s, predicted %d", warm.Replica.ID, p.Basis, p.Predicted)
	}
	other := next
	other.Domain = "globex"
	if p := reserve(t, f, other).Placement; p.Predicted != 0 || p.Basis != routing.Load {
		t.Errorf("another tenant: basis %s, predicted %d", p.Basis, p.Predicted)
	}
	guess := next
	guess.TokensExact = false
	if p := reserve(t, f, guess).Placement; p.Predicted != 0 || p.Basis != routing.Affinity || p.BasisReason != routing.TokensEstimated {
		t.Errorf("estimated tokens: basis %s (%s), predicted %d", p.Basis, p.BasisReason, p.Predicted)
	}

	relays[at].evict("acme", tokens, 0)
	until(t, "the eviction is seen", func() bool { return depth(f, next, at) == 0 })
	warm.Release()
	if p := reserve(t, f, next).Placement; p.Predicted != 0 {
		t.Errorf("evicted: predicted %d", p.Predicted)
	}
}

func TestAnImpostorIsNeverACandidate(t *testing.T) {
	a := newAuthority(t)
	good := a.relay(t, base+"r0", "general", "127.0.0.1:0")
	pinned := a.relay(t, "spiffe://example.org/elsewhere", "general", "127.0.0.1:0")
	free := a.relay(t, "spiffe://example.org/pool/agents/r9", "general", "127.0.0.1:0")
	liar := a.relay(t, base+"r7", "general", "127.0.0.1:0")
	liar.hello.Replica = base + "r0"
	foreign := newAuthority(t).relay(t, base+"r8", "general", "127.0.0.1:0")
	moved := a.relay(t, base+"r6", "agents", "127.0.0.1:0")
	members := []string{base}
	f := start(t, a.config(t,
		good.target("general"),
		Target{Address: pinned.address, ID: base + "r1", Pool: "general"},
		Target{Address: free.address, Members: members, Pool: "general"},
		Target{Address: liar.address, Members: members, Pool: "general"},
		Target{Address: foreign.address, ID: base + "r8", Pool: "general"},
		Target{Address: moved.address, ID: base + "r6", Pool: "general"},
		Target{Address: "127.0.0.1:1", ID: base + "r5", Pool: "general"},
	))
	want := []routing.Reason{"", routing.SVIDMismatch, routing.SVIDMismatch, routing.SVIDMismatch, routing.NoSVID, routing.NotPermitted, routing.Unhealthy}
	until(t, "every replica is judged", func() bool {
		for i, s := range f.Replicas() {
			if s.Excluded != want[i] {
				return false
			}
		}
		return true
	})
	res := reserve(t, f, ask(prompt(1, 100)))
	if res.Replica.ID != good.id || res.Placement.Excluded[routing.SVIDMismatch] != 3 {
		t.Errorf("placed on %s, excluded %v", res.Replica.ID, res.Placement.Excluded)
	}
}

func TestAnAddressIsPinnedToTheIDItProvesFirst(t *testing.T) {
	a := newAuthority(t)
	r := a.relay(t, base+"r0", "general", "127.0.0.1:0")
	f := start(t, a.config(t, Target{Address: r.address, Members: []string{base}, Pool: "general"}))
	up(t, f, 1)
	if got := f.status(0).ID; got != r.id {
		t.Fatalf("pinned to %q", got)
	}
	r.server.Stop()
	a.relay(t, base+"r1", "general", r.address)
	until(t, "another member at that address is refused", func() bool { return f.status(0).Excluded == routing.SVIDMismatch })
}

func TestALostHolderIsNamedUntilItReturnsAsAnother(t *testing.T) {
	f, relays, a := two(t)
	tokens := prompt(3, 800)
	relays[0].store("acme", tokens)
	until(t, "the prefix is indexed", func() bool { return depth(f, ask(tokens), 0) == 50 })
	first := reserve(t, f, ask(tokens))
	if first.Replica.ID != relays[0].id || first.Counter != 1 || first.HolderDown {
		t.Fatalf("placed on %s, counter %d, holder down %v", first.Replica.ID, first.Counter, first.HolderDown)
	}

	relays[0].server.Stop()
	until(t, "the loss is seen", func() bool { return f.status(0).Excluded == routing.Unhealthy })
	res := reserve(t, f, ask(tokens))
	if res.Replica.ID != relays[1].id || !res.HolderDown || res.Placement.Excluded[routing.HolderDown] != 1 || res.Placement.Predicted != 0 {
		t.Errorf("placed on %s, holder down %v, excluded %v, predicted %d", res.Replica.ID, res.HolderDown, res.Placement.Excluded, res.Placement.Predicted)
	}
	if res := reserve(t, f, ask(prompt(4, 800))); res.HolderDown || res.Placement.Excluded[routing.Unhealthy] != 1 {
		t.Errorf("a prompt it did not hold: holder down %v, excluded %v", res.HolderDown, res.Placement.Excluded)
	}

	relays[1].store("acme", tokens)
	until(t, "the other holds it too", func() bool { return depth(f, ask(tokens), 1) == 50 })
	if res := reserve(t, f, ask(tokens)); res.HolderDown || res.Placement.Predicted != 49*16 {
		t.Errorf("the other holds as much: holder down %v, predicted %d", res.HolderDown, res.Placement.Predicted)
	}

	again := a.relay(t, base+"r0", "general", relays[0].address)
	up(t, f, 2)
	if got := depth(f, ask(tokens), 0); got != 0 {
		t.Errorf("the new process is credited %d blocks of the old one", got)
	}
	only := ask(prompt(5, 100))
	only.Exclude = map[string]routing.Reason{relays[1].id: routing.Unhealthy}
	if res := reserve(t, f, only); res.Counter != 1 || res.Replica.Epoch != again.epoch {
		t.Errorf("counter %d, epoch %s: they belong to the relay process", res.Counter, res.Replica.Epoch)
	}
}

func TestAFailedConnectionTakesTheReplicaOut(t *testing.T) {
	f, relays, _ := two(t)
	tokens := prompt(3, 800)
	relays[0].store("acme", tokens)
	until(t, "the prefix is indexed", func() bool { return depth(f, ask(tokens), 0) == 50 })
	f.ReportFailure(relays[0].id, false)
	if got := f.status(0).Excluded; got != routing.Breaker {
		t.Errorf("after a failure: %q", got)
	}
	if res := reserve(t, f, ask(tokens)); !res.HolderDown || res.Replica.ID != relays[1].id {
		t.Errorf("placed on %s, holder down %v", res.Replica.ID, res.HolderDown)
	}
	f.ReportFailure(relays[1].id, true)
	if got := f.status(1).Excluded; got != routing.SVIDMismatch {
		t.Errorf("after another identity: %q", got)
	}
	_, err := f.Reserve(context.Background(), ask(prompt(9, 30)))
	var none *routing.NoReplicaError
	if !errors.As(err, &none) || none.Excluded[routing.Breaker] != 1 || none.Excluded[routing.SVIDMismatch] != 1 {
		t.Errorf("got %v", err)
	}
	up(t, f, 2) // the breaker closes by itself, the identity is proven anew
}

func TestWithoutALiveStreamThereIsNoCredit(t *testing.T) {
	f, relays, _ := two(t)
	tokens := prompt(6, 320)
	relays[0].store("acme", tokens)
	until(t, "the prefix is indexed", func() bool { return depth(f, ask(tokens), 0) == 20 })

	relays[0].setState(residencyv1.State_SUSPECT)
	until(t, "the doubt is seen", func() bool { return depth(f, ask(tokens), 0) == 0 })
	relays[0].setState(residencyv1.State_LIVE_PARTIAL)
	until(t, "it is trusted again", func() bool { return depth(f, ask(tokens), 0) == 20 })
	res := reserve(t, f, ask(tokens))
	if p := res.Placement; p.Basis != routing.Partial || p.BasisReason != routing.PartialStream || p.Predicted != 19*16 {
		t.Errorf("partial: basis %s (%s), predicted %d", p.Basis, p.BasisReason, p.Predicted)
	}
	res.Release()

	f.mu.Lock()
	r := f.replicas[0]
	now := time.Unix(0, r.heard.Load())
	fresh, _ := r.stream(now.Add(2900 * time.Millisecond))
	stale, why := r.stream(now.Add(3100 * time.Millisecond))
	f.mu.Unlock()
	if !fresh.Credits() || stale.Credits() || why != routing.SuspectStream {
		t.Errorf("after 2.9 s %v, after 3.1 s %v (%s)", fresh, stale, why)
	}
}

func TestARelayThatBreaksTheProtocolLosesCreditAndStartsOver(t *testing.T) {
	f, relays, _ := two(t)
	tokens := prompt(7, 320)
	relays[0].store("acme", tokens)
	until(t, "the prefix is indexed", func() bool { return depth(f, ask(tokens), 0) == 20 })
	for name, frame := range map[string]*residencyv1.Frame{
		"a hole":              {Seq: 999_999, Body: &residencyv1.Frame_Heartbeat{Heartbeat: &residencyv1.Heartbeat{}}},
		"a rank out of range": {Body: &residencyv1.Frame_Cleared{Cleared: &residencyv1.Cleared{Rank: 3}}},
		"a number in use":     {Body: &residencyv1.Frame_Stored{Stored: &residencyv1.Stored{Node: 1, Ids: []uint64{5}}}},
	} {
		f.mu.Lock()
		before := f.replicas[0].hello
		f.mu.Unlock()
		relays[0].say(func() *residencyv1.Frame { return frame })
		until(t, name+" ends the session", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.replicas[0].hello != before
		})
		until(t, "after "+name+" it is credited again", func() bool { return depth(f, ask(tokens), 0) == 20 })
	}
}

func TestReplicasThatCannotServeTheRequestAreExcluded(t *testing.T) {
	f, relays, _ := two(t)
	for name, c := range map[string]struct {
		change func(*Request)
		want   routing.Reason
	}{
		"another model":     {func(r *Request) { r.Model = "large" }, routing.ModelMissing},
		"unknown adapter":   {func(r *Request) { r.Adapter = "lora" }, routing.ModelMissing},
		"unproven route":    {func(r *Request) { r.Operation = "POST /v1/embeddings" }, routing.RouteNotIsolated},
		"longer than cache": {func(r *Request) { r.Tokens = make([]uint32, 200_000) }, routing.NoHeadroom},
		"both were tried": {func(r *Request) {
			r.Exclude = map[string]routing.Reason{relays[0].id: routing.HolderDown, relays[1].id: routing.HolderDown}
		}, routing.HolderDown},
	} {
		r := ask(prompt(1, 50))
		c.change(&r)
		_, err := f.Reserve(context.Background(), r)
		var none *routing.NoReplicaError
		if !errors.As(err, &none) || none.Excluded[c.want] != 2 {
			t.Errorf("%s: %v", name, err)
		}
	}
	up(t, f, 2)
	r := ask(prompt(1, 50))
	r.Pools = []string{"agents"}
	if _, err := f.Reserve(context.Background(), r); !errors.Is(err, routing.ErrNoReplica) {
		t.Errorf("a pool without replicas: %v", err)
	}
}

func TestOurOwnWorkCountsUntilTheRelayHasSeenIt(t *testing.T) {
	f, relays, _ := two(t)
	r := ask(prompt(1, 1000))
	r.Exclude = map[string]routing.Reason{relays[1].id: routing.Unhealthy}
	a, b, c := reserve(t, f, r), reserve(t, f, r), reserve(t, f, r)
	if got := f.status(0).Waiting; got != 3000 {
		t.Errorf("three dispatched: %d tokens wait", got)
	}
	relays[0].report(&residencyv1.Load{Waiting: 2, WaitingPrefillTokens: 2000, KvUsedBlocks: 7, Ack: &residencyv1.Ack{NContiguous: 1, NBeyond: []uint64{3}}})
	until(t, "the report is applied", func() bool { return f.status(0).KVUsed == 7 })
	if got := f.status(0).Waiting; got != 3000 {
		t.Errorf("two of them seen: %d tokens wait", got)
	}
	b.Release()
	if got := f.status(0).Waiting; got != 2000 {
		t.Errorf("the third never sent: %d tokens wait", got)
	}
	if d := reserve(t, f, r); d.Counter != b.Counter {
		t.Errorf("counter %d was never sent, yet the next is %d", b.Counter, d.Counter)
	} else {
		d.FirstToken(time.Now())
	}
	if got := f.status(0).Waiting; got != 2000 {
		t.Errorf("after its first token: %d tokens wait", got)
	}
	a.Finish(Result{})
	c.Finish(Result{Err: errors.New("broken")})
	b.Finish(Result{}) // after Release: nothing
	if got := f.status(0); got.Waiting != 2000 || got.Running != 2 {
		t.Errorf("the relay's own report is left: %+v", got)
	}
}

func TestConcurrentRequestsDoNotHerd(t *testing.T) {
	a := newAuthority(t)
	var targets []Target
	for i := range 4 {
		targets = append(targets, a.relay(t, fmt.Sprint(base, i), "general", "127.0.0.1:0").target("general"))
	}
	f := start(t, a.config(t, targets...))
	up(t, f, 4)
	for _, strategy := range []routing.Strategy{routing.Probabilistic, routing.Deterministic} {
		var mu sync.Mutex
		count := map[string]int{}
		var held []*Reservation
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				r := ask(prompt(uint64(1000+i), 500))
				r.Strategy, r.Seed = strategy, uint64(i)
				res, err := f.Reserve(context.Background(), r)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				count[res.Replica.ID]++
				held = append(held, res)
			})
		}
		wg.Wait()
		for id, n := range count {
			if n < 20 || n > 31 {
				t.Errorf("%s: %s got %d of 100", strategy, id, n)
			}
		}
		for _, res := range held {
			res.Release()
		}
	}
}

func TestAPlacementIsMadeAnewIfTheChosenReplicaChangedMeanwhile(t *testing.T) {
	f, _, _ := two(t)
	r, other := ask(prompt(1, 500)), ask(prompt(2, 500))
	place := func(r Request) (*lookup, *view, routing.Placement) {
		look := f.look(&r)
		f.mu.Lock()
		defer f.mu.Unlock()
		v := f.view(&view{}, &r, look)
		p, err := routing.Place(v.query, v.snapshot)
		if err != nil {
			t.Fatal(err)
		}
		return look, v, p
	}
	look1, v1, p1 := place(r)
	look2, v2, p2 := place(other)
	if p1.ID != p2.ID {
		t.Fatalf("the same moment gave %s and %s", p1.ID, p2.ID)
	}
	a, err := f.commit(&r, look1, v1, p1)
	if err != nil {
		t.Fatal(err)
	}
	b, err := f.commit(&other, look2, v2, p2)
	if err != nil {
		t.Fatal(err)
	}
	if a.Replica.ID != p1.ID || b.Replica.ID == p1.ID {
		t.Errorf("both chose %s; reserved %s and %s", p1.ID, a.Replica.ID, b.Replica.ID)
	}
	look3, v3, p3 := place(r)
	f.ReportFailure(p3.ID, false)
	if c, err := f.commit(&r, look3, v3, p3); err != nil || c.Replica.ID == p3.ID {
		t.Errorf("reserved on %s, which had failed: %v", p3.ID, err)
	}
}

func TestPrefixesInFlightAreColocatedButNotPredicted(t *testing.T) {
	f, _, _ := two(t)
	tokens := prompt(8, 4000)
	a := reserve(t, f, ask(tokens))
	a2 := ask(append(tokens[:3900:3900], prompt(9, 200)...))
	b := reserve(t, f, a2)
	if b.Replica.ID != a.Replica.ID || b.Placement.Predicted != 0 {
		t.Errorf("while its prefill waits: %s then %s, predicted %d", a.Replica.ID, b.Replica.ID, b.Placement.Predicted)
	}
	held := []*Reservation{b}
	for len(held) < 10 && held[len(held)-1].Replica.ID == a.Replica.ID {
		held = append(held, reserve(t, f, a2))
	}
	if len(held) == 10 {
		t.Error("ten of a burst went to one replica")
	}
	for _, x := range held {
		x.Release()
	}
	a.FirstToken(time.Now())
	c := reserve(t, f, a2)
	if c.Replica.ID != a.Replica.ID || c.Placement.Predicted != 243*16 {
		t.Errorf("after its first token: %s then %s, predicted %d", a.Replica.ID, c.Replica.ID, c.Placement.Predicted)
	}
	c.Release()
	time.Sleep(100 * time.Millisecond)
	if p := reserve(t, f, a2).Placement; p.Predicted != 0 {
		t.Errorf("no event ever confirmed it, yet predicted is %d", p.Predicted)
	}
}

func TestClaimsThatKeepMissingLoseWeight(t *testing.T) {
	f, relays, _ := two(t)
	tokens := prompt(10, 2000)
	relays[0].store("acme", tokens)
	until(t, "the prefix is indexed", func() bool { return depth(f, ask(tokens), 0) == 125 })
	none := 0
	for range 40 {
		r := ask(tokens)
		r.Exclude = map[string]routing.Reason{relays[1].id: routing.Unhealthy}
		reserve(t, f, r).Finish(Result{CachedTokens: &none})
	}
	if got := f.status(0).Confidence; got > 10 {
		t.Errorf("confidence is %d per mille after 40 misses", got)
	}
	c := reserve(t, f, ask(tokens)).Placement.Candidates
	if d := c[1].CostNS - c[0].CostNS; d > 2_000_000 {
		t.Errorf("empty claims still earn %d ns", d)
	}
}

func TestTheReplicaIsWatchedAnewBeforeACertificateExpires(t *testing.T) {
	for name, ttl := range map[string]struct{ relay, gateway time.Duration }{
		"the relay's": {4 * time.Second, time.Hour},
		"our own":     {time.Hour, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it takes seconds: certificates expire in whole ones
			a := newAuthority(t)
			r := newRelay(t, a.svid(t, base+"r0", ttl.relay), base+"r0", "general", "127.0.0.1:0")
			f := start(t, a.configUntil(t, ttl.gateway, r.target("general")))
			up(t, f, 1)
			f.mu.Lock()
			first := f.replicas[0].hello
			f.mu.Unlock()
			until(t, "watched anew", func() bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				if got := f.replicas[0].state(time.Now()); got != "" {
					t.Fatalf("meanwhile it was %s", got)
				}
				return f.replicas[0].hello != first
			})
		})
	}
}

func TestRatesAreLearnedFromTheRelayAndFromFirstTokens(t *testing.T) {
	f, relays, _ := two(t)
	if a := f.status(0).PrefillPS; a != ledger.PriorPS {
		t.Fatalf("at first %d ps", a)
	}
	for i := range 60 {
		r := ask(prompt(uint64(100+i), 2000))
		r.Exclude = map[string]routing.Reason{relays[1].id: routing.Unhealthy}
		res := reserve(t, f, r)
		res.FirstToken(res.reserved.Add(2000 * 10 * time.Microsecond))
		res.Finish(Result{})
	}
	if got := f.status(0).PrefillPS; got < 9_000_000 || got > 13_000_000 {
		t.Errorf("10 µs per token was measured, learned %d ps", got)
	}
	if got := f.status(1).PrefillPS; got < 9_000_000 || got > 20_000_000 {
		t.Errorf("its peer, never measured, is taken for %d ps", got)
	}
	short := ask(prompt(2, 100))
	res := reserve(t, f, short)
	before := f.status(0).PrefillPS
	res.FirstToken(res.reserved.Add(time.Second))
	if got := f.status(0).PrefillPS; got != before {
		t.Errorf("a short prompt changed the rate to %d", got)
	}
	for i := range 60 {
		relays[1].report(&residencyv1.Load{PrefillRate: 1_000_000 + uint64(i), KvUsedBlocks: uint64(i + 1)})
	}
	until(t, "the reports are applied", func() bool { return f.status(1).KVUsed == 60 })
	if got := f.status(1).PrefillPS; got > 3_000_000 {
		t.Errorf("1 µs per token was reported, learned %d ps", got)
	}
}

func TestReadyWaitsForTheStreams(t *testing.T) {
	a := newAuthority(t)
	r := a.relay(t, base+"r0", "general", "127.0.0.1:0")
	wrong := a.relay(t, base+"r9", "general", "127.0.0.1:0")
	c := a.config(t, r.target("general"), Target{Address: wrong.address, ID: base + "r1", Pool: "general"})
	idle, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := idle.Ready(); !errors.Is(err, ErrNotReady) {
		t.Errorf("before Run: %v", err)
	}
	f := start(t, c)
	until(t, "ready, although one replica is an impostor", func() bool { return f.Ready() == nil })

	c.Targets = append(c.Targets, Target{Address: "127.0.0.1:1", ID: base + "r2", Pool: "general"})
	c.settle = 300 * time.Millisecond
	f = start(t, c)
	up(t, f, 1)
	if err := f.Ready(); !errors.Is(err, ErrNotReady) {
		t.Errorf("one of two: %v", err)
	}
	until(t, "ready after the time to settle", func() bool { return f.Ready() == nil })
}

func TestRanksEarnWhatTheLeastOfThemHolds(t *testing.T) {
	a := newAuthority(t)
	r := a.relay(t, base+"r0", "general", "127.0.0.1:0")
	r.hello.Ranks = 2
	f := start(t, a.config(t, r.target("general")))
	up(t, f, 1)
	tokens := prompt(11, 320)
	r.store("acme", tokens)
	until(t, "rank 0 is indexed", func() bool { return f.status(0).Blocks == 20 })
	if got := depth(f, ask(tokens), 0); got != 0 {
		t.Errorf("held by one rank of two: depth %d", got)
	}
	r.say(func() *residencyv1.Frame {
		s := &watcher{key: f.key, node: map[string]uint32{}}
		st := s.stored(heldKey("acme", tokens), tokens)
		st.Rank, st.Ids = 1, st.Ids[:12]
		return &residencyv1.Frame{Body: &residencyv1.Frame_Stored{Stored: st}}
	})
	until(t, "rank 1 is indexed", func() bool { return depth(f, ask(tokens), 0) == 12 })
}

// on tells a fleet that a rank of r holds the first blocks of a prompt.
func (r *relay) on(f *Fleet, rank uint32, tokens []uint32, blocks int) {
	r.say(func() *residencyv1.Frame {
		st := (&watcher{key: f.key, node: map[string]uint32{}}).stored(heldKey("acme", tokens), tokens)
		st.Rank, st.Ids = rank, st.Ids[:blocks]
		return &residencyv1.Frame{Body: &residencyv1.Frame_Stored{Stored: st}}
	})
}

func TestADrainingReplicaGetsNothingNewUntilItIsBack(t *testing.T) {
	f, relays, _ := two(t)
	running := reserve(t, f, ask(prompt(1, 100)))
	told := func(on bool) {
		relays[0].say(func() *residencyv1.Frame {
			return &residencyv1.Frame{Body: &residencyv1.Frame_Drain{Drain: &residencyv1.Drain{Draining: on}}}
		})
	}
	told(true)
	until(t, "it drains", func() bool { return f.status(0).Excluded == routing.Draining })
	for i := range 20 {
		res := reserve(t, f, ask(prompt(uint64(i), 100)))
		if res.Replica.ID != base+"r1" || res.Placement.Excluded[routing.Draining] != 1 {
			t.Fatalf("placed on %s, excluded %v", res.Replica.ID, res.Placement.Excluded)
		}
	}
	running.FirstToken(time.Now())
	running.Finish(Result{}) // what runs is not touched
	told(false)
	until(t, "it is back", func() bool { return f.status(0).Excluded == "" })
}

func TestARankThatCanBeChosenIsATarget(t *testing.T) {
	a := newAuthority(t)
	r := a.relay(t, base+"r0", "general", "127.0.0.1:0")
	r.hello.Ranks, r.hello.RanksAddressable = 2, true
	f := start(t, a.config(t, r.target("general")))
	up(t, f, 1)
	tokens := prompt(11, 3200)
	r.on(f, 0, tokens, 20)
	r.on(f, 1, tokens, 120)
	until(t, "both ranks are indexed", func() bool { return f.status(0).Blocks == 140 })
	first := reserve(t, f, ask(tokens))
	if first.Replica.Rank != 1 || first.Placement.Predicted != 120*16 {
		t.Errorf("rank %d, %d tokens predicted: not the rank that holds most", first.Replica.Rank, first.Placement.Predicted)
	}
	// What is under way on a rank makes it dearer, until the other is better.
	ranks := [2]int{}
	var under []*Reservation
	for range 8 {
		res := reserve(t, f, ask(tokens))
		ranks[res.Replica.Rank]++
		under = append(under, res)
	}
	if ranks[0] == 0 || ranks[1] == 0 {
		t.Errorf("eight at once: %v by rank", ranks)
	}
	for _, res := range append(under, first) {
		res.FirstToken(time.Now())
		res.Finish(Result{})
	}
	f.mu.Lock()
	left := f.replicas[0].onRank
	f.mu.Unlock()
	if left[0] != (rankWork{}) || left[1] != (rankWork{}) {
		t.Errorf("all have ended, and %v is left", left)
	}
	// Nobody holds anything of these: they spread.
	spread := [2]int{}
	for i := range 40 {
		q := ask(prompt(uint64(100+i), 320))
		q.Seed = uint64(i)
		spread[reserve(t, f, q).Replica.Rank]++
	}
	if min(spread[0], spread[1]) < 15 {
		t.Errorf("cold prompts: %v by rank", spread)
	}
}

func TestAnotherRanksDoubtIsNoneOfOurs(t *testing.T) {
	a := newAuthority(t)
	r := a.relay(t, base+"r0", "general", "127.0.0.1:0")
	r.hello.Ranks, r.hello.RanksAddressable = 2, true
	f := start(t, a.config(t, r.target("general")))
	up(t, f, 1)
	tokens := prompt(11, 320)
	r.on(f, 0, tokens, 10)
	r.on(f, 1, tokens, 20)
	until(t, "both ranks are indexed", func() bool { return f.status(0).Blocks == 30 })
	r.say(func() *residencyv1.Frame {
		return &residencyv1.Frame{Body: &residencyv1.Frame_State{State: &residencyv1.State{Rank: 1, State: residencyv1.State_SUSPECT}}}
	})
	until(t, "the rank that is believed is chosen", func() bool {
		_, s := f.Snapshot(ask(tokens))
		c := s.Candidates[0]
		return c.Rank == 0 && c.Depth == 10 && c.Stream == routing.StreamLive
	})
}

func TestAChosenRankEarnsNoCreditThatItsReplicaMayNot(t *testing.T) {
	for _, c := range []struct {
		claim string
		hide  bool
		doubt Doubt
		want  routing.Stream
		why   routing.BasisReason
	}{
		{"it claims more than it has", false, OverClaims, routing.StreamSuspect, routing.SuspectStream},
		{"it floods", false, Floods, routing.StreamSuspect, routing.SuspectStream},
		{"its engine hides salts", true, "", routing.StreamNone, routing.SaltHidden},
	} {
		a := newAuthority(t)
		r := a.relay(t, base+"r0", "general", "127.0.0.1:0")
		r.hello.Ranks, r.hello.RanksAddressable, r.hello.SaltVisible = 2, true, !c.hide
		f := start(t, a.config(t, r.target("general")))
		up(t, f, 1)
		tokens := prompt(11, 320)
		r.on(f, 1, tokens, 20)
		until(t, "it is indexed", func() bool { return f.status(0).Blocks == 20 })
		f.mu.Lock()
		f.replicas[0].doubt = c.doubt
		f.mu.Unlock()
		_, s := f.Snapshot(ask(tokens))
		if got := s.Candidates[0]; got.Stream != c.want || got.StreamReason != c.why || got.Depth > 0 {
			t.Errorf("%s: %v for %q, %d blocks deep", c.claim, got.Stream, got.StreamReason, got.Depth)
		}
	}
}

func TestAReplicaIsHeldToItsShareOfTheIndex(t *testing.T) {
	a := newAuthority(t)
	greedy := a.relay(t, base+"r0", "general", "127.0.0.1:0")
	greedy.hello.NumBlocks = 1 << 27
	c := a.config(t, greedy.target("general"), Target{Address: "127.0.0.1:1", ID: base + "r1", Pool: "general"})
	c.indexBytes = 16 << 20
	f := start(t, c)
	up(t, f, 1)
	for i := range 300 {
		greedy.store("acme", prompt(uint64(i), 16*1000))
	}
	until(t, "its share is full", func() bool { return f.status(0).Stream == routing.StreamLivePartial })
	if s := f.status(0); s.StreamWhy != routing.IndexBudget || s.Blocks > 16<<20/32/2+1 {
		t.Errorf("%d blocks, %s", s.Blocks, s.StreamWhy)
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	c := newAuthority(t).config(t)
	for name, targets := range map[string][]Target{
		"no address":           {{ID: base + "r0", Pool: "general"}},
		"no pool":              {{ID: base + "r0", Address: "127.0.0.1:1"}},
		"no id and no members": {{Address: "127.0.0.1:1", Pool: "general"}},
		"the same address":     {{Address: "127.0.0.1:1", Pool: "a", ID: "x"}, {Address: "127.0.0.1:1", Pool: "a", ID: "y"}},
		"the same id":          {{Address: "127.0.0.1:1", Pool: "a", ID: "x"}, {Address: "127.0.0.1:2", Pool: "a", ID: "x"}},
	} {
		c.Targets = targets
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	c.Targets, c.TLS = nil, nil
	if _, err := New(c); err == nil {
		t.Error("without TLS: accepted")
	}
}

func TestTheBusiestRankIsNeverTheCheapest(t *testing.T) {
	r := &replica{ranks: make([]rankState, 2), onRank: []rankWork{{waiting: 1 << 28, running: 1}, {waiting: 1 << 20, running: 1}}}
	c := routing.Candidate{PrefillPS: 1000 * ledger.PriorPS} // as slow as any is taken to be
	if got := r.pick(&c, nil, &routing.Query{}); got != 1 {
		t.Errorf("rank %d, with %d tokens waiting there and %d at the other", got, r.onRank[got].waiting, r.onRank[1-got].waiting)
	}
}
