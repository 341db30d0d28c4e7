package fleet

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/routing"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

// notices collects what a fleet is told of doubts.
type notices struct {
	mu  sync.Mutex
	all []Notice
}

func (n *notices) add(x Notice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, x)
}

func (n *notices) has(d Doubt, over bool) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.all, func(x Notice) bool { return x.Doubt == d && x.Over == over && x.Replica == base+"r0" })
}

// doubtful is a fleet of one replica that may be doubted, and one that is not.
func doubtful(t *testing.T, blocks uint64) (*Fleet, *relay, *notices) {
	a := newAuthority(t)
	r, other := a.relay(t, base+"r0", "general", "127.0.0.1:0"), a.relay(t, base+"r1", "general", "127.0.0.1:0")
	r.hello.NumBlocks = blocks
	var n notices
	c := a.config(t, r.target("general"), other.target("general"))
	c.Penalty, c.Notify = 50*time.Millisecond, n.add
	f := start(t, c)
	up(t, f, 2)
	return f, r, &n
}

// at makes a request go to r0.
func at(r Request) Request {
	r.Exclude = map[string]routing.Reason{base + "r1": routing.Unhealthy}
	return r
}

func TestAReplicaThatClaimsMoreThanItHasLosesCreditUntilItKeepsToIt(t *testing.T) {
	f, r, n := doubtful(t, 30)
	first, second := prompt(1, 320), prompt(2, 320)
	r.store("acme", first)
	until(t, "the first prompt is indexed", func() bool { return depth(f, ask(first), 0) == 20 })
	r.store("acme", second)
	until(t, "the replica is in doubt", func() bool { return n.has(OverClaims, false) })
	if d := depth(f, ask(first), 0); d != 0 {
		t.Errorf("credited %d blocks of a prompt", d)
	}
	if s := f.status(0); s.Doubt != OverClaims || s.Excluded != "" || s.Blocks != 0 {
		t.Errorf("doubt %q, excluded %q, %d blocks", s.Doubt, s.Excluded, s.Blocks)
	}
	if p := reserve(t, f, at(ask(first))).Placement; p.Basis == routing.KVEvents || p.Predicted != 0 {
		t.Errorf("placed on %s, %d predicted", p.Basis, p.Predicted)
	}
	r.evict("acme", second, 0)
	until(t, "it has kept to the rules", func() bool { return n.has(OverClaims, true) })
	until(t, "it is credited again", func() bool { return depth(f, ask(first), 0) == 20 })
}

func TestAReplicaThatFloodsIsNotListenedToForAWhile(t *testing.T) {
	f, r, n := doubtful(t, 100)
	tokens := prompt(3, 320)
	r.store("acme", tokens)
	until(t, "the prompt is indexed", func() bool { return depth(f, ask(tokens), 0) == 20 })
	nodes := make([]uint32, 60_000)
	for i := range nodes {
		nodes[i] = uint32(1000 + i) // none that it told of
	}
	for range 20 {
		r.say(func() *residencyv1.Frame {
			return &residencyv1.Frame{Body: &residencyv1.Frame_Removed{Removed: &residencyv1.Removed{Nodes: nodes}}}
		})
	}
	until(t, "the replica is in doubt", func() bool { return n.has(Floods, false) })
	if d := depth(f, ask(tokens), 0); d != 0 {
		t.Errorf("credited %d blocks of a prompt", d)
	}
	until(t, "it has kept to the rules", func() bool { return n.has(Floods, true) })
	until(t, "it is credited again", func() bool { return depth(f, ask(tokens), 0) == 20 })
}

func TestClaimsThatKeepMissingAreDoubtedUntilTheyComeTrue(t *testing.T) {
	f, r, n := doubtful(t, 10_000)
	tokens := prompt(4, 2000)
	r.store("acme", tokens)
	until(t, "the prompt is indexed", func() bool { return depth(f, ask(tokens), 0) == 125 })
	none, all := 0, 1999
	for range 20 {
		reserve(t, f, at(ask(tokens))).Finish(Result{PromptTokens: 2000, CachedTokens: &none})
	}
	if s := f.status(0); s.Doubt != MissClaims || s.Confidence != 0 || !n.has(MissClaims, false) {
		t.Fatalf("doubt %q, confidence %d", s.Doubt, s.Confidence)
	}
	for range 20 {
		reserve(t, f, at(ask(tokens))).Finish(Result{PromptTokens: 2000, CachedTokens: &all})
	}
	s := f.status(0)
	if s.Doubt != "" || s.Confidence < 500 || !n.has(MissClaims, true) {
		t.Errorf("doubt %q, confidence %d after hits", s.Doubt, s.Confidence)
	}
	if s.Predicted != 40*1984 || s.Cached != 20*1999 || s.Prompt != 40*2000 || s.Doubts != 1 {
		t.Errorf("counted %+v", s)
	}
}

func TestAnEngineThatReportsHitsButTakesAsLongAsWithoutIsNotBelieved(t *testing.T) {
	f, r, n := doubtful(t, 10_000)
	tokens, reported := prompt(5, 2000), 1984
	took := func(tokens []uint32, cached int, d time.Duration) {
		res := reserve(t, f, at(ask(tokens)))
		res.FirstToken(res.reserved.Add(d))
		res.Finish(Result{PromptTokens: len(tokens), CachedTokens: &cached})
	}
	for i := range 20 { // 2,000 tokens take 200 ms
		took(prompt(uint64(100+i), 2000), 0, 200*time.Millisecond)
	}
	r.store("acme", tokens)
	until(t, "the prompt is indexed", func() bool { return depth(f, ask(tokens), 0) == 125 })
	for range 20 {
		took(tokens, reported, 10*time.Millisecond)
	}
	if s := f.status(0); s.Doubt != "" {
		t.Fatalf("doubted with quick answers: %q", s.Doubt)
	}
	before := f.status(0).PrefillPS
	for range 20 {
		took(tokens, reported, 200*time.Millisecond)
	}
	if s := f.status(0); s.Doubt != MissClaims || !n.has(MissClaims, false) || s.PrefillPS != before {
		t.Errorf("doubt %q, rate %d, was %d", s.Doubt, s.PrefillPS, before)
	}
}

func TestARelayThatBreaksTheProtocolIsReported(t *testing.T) {
	f, r, n := doubtful(t, 10_000)
	r.say(func() *residencyv1.Frame {
		return &residencyv1.Frame{Body: &residencyv1.Frame_Removed{Removed: &residencyv1.Removed{Nodes: []uint32{0}}}}
	})
	until(t, "it is reported", func() bool { return n.has(BreaksWord, false) })
	until(t, "it has kept to the rules", func() bool { return n.has(BreaksWord, true) })
	if s := f.status(0); s.Doubt != "" {
		t.Errorf("doubt %q", s.Doubt)
	}
}
