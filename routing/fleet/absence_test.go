package fleet

import (
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/blockid"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

func TestALostReplicaIsRememberedForAMinute(t *testing.T) {
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	a := absence{keep: keepLost}
	for _, step := range []struct {
		what    string
		after   time.Duration
		watched bool
		forget  bool
	}{
		{"it was never watched", 5 * time.Minute, false, false},
		{"it is lost", time.Second, true, false},
		{"an attempt fails", 30 * time.Second, false, false},
		{"another fails, at the minute", 30 * time.Second, false, false},
		{"another fails, after it", time.Second, false, true},
		{"and so does the next", time.Second, false, true},
		{"it was back, and is lost again", time.Hour, true, false},
		{"an attempt fails", 59 * time.Second, false, false},
	} {
		at = at.Add(step.after)
		if got := a.ended(step.watched, at); got != step.forget {
			t.Errorf("%s: forget %v", step.what, got)
		}
	}
}

func TestWhatALostReplicaHeldIsGivenBack(t *testing.T) {
	a := newAuthority(t)
	r := a.relay(t, base+"r0", "general", "127.0.0.1:0")
	c := a.config(t, r.target("general"))
	c.keepLost = 300 * time.Millisecond
	f := start(t, c)
	up(t, f, 1)
	empty := f.IndexBytes()
	r.store("acme", prompt(1, 3200))
	until(t, "it is indexed", func() bool { return f.status(0).Blocks == 200 })
	r.server.Stop()
	until(t, "it is lost", func() bool { return f.status(0).Excluded == routing.Unhealthy })
	if f.IndexBytes() <= empty {
		t.Error("what it held is forgotten at once")
	}
	until(t, "it is forgotten", func() bool { return f.IndexBytes() == empty && f.status(0).Blocks == 0 })
}

// A replica may have more blocks than its share of the index: then part of them
// earns no credit. Its numbers for them are no offence.
func TestAReplicaLargerThanItsShareKeepsItsWord(t *testing.T) {
	a := newAuthority(t)
	r := a.relay(t, base+"r0", "general", "127.0.0.1:0")
	r.hello.NumBlocks = 2_000_000
	r.hello.TierNames = []string{"gpu", "cpu"}
	c := a.config(t, r.target("general"))
	c.indexBytes = 32 << 20 // a share of about a million
	f := start(t, c)
	up(t, f, 1)
	tokens := prompt(5, 320)
	const far = 31_000_000 // below 16 times what it has, above 16 times its share
	r.say(func() *residencyv1.Frame {
		return &residencyv1.Frame{Body: &residencyv1.Frame_Stored{Stored: &residencyv1.Stored{
			Ns: blockid.Namespace(&f.key, "small", "", "acme"), Node: far, Ids: blockid.Append(nil, &f.key, tokens, 16), Tier: 1,
		}}}
	})
	until(t, "a block with a large number is credited", func() bool {
		_, s := f.Snapshot(ask(tokens))
		return s.Candidates[0].Lower == 20
	})
	r.say(func() *residencyv1.Frame {
		return &residencyv1.Frame{Body: &residencyv1.Frame_Stored{Stored: &residencyv1.Stored{
			Ns: blockid.Namespace(&f.key, "small", "", "acme"), Node: 33_000_000, Ids: []uint64{1}, Tier: 1,
		}}}
	})
	until(t, "a number beyond 16 times what it has is one", func() bool { return f.status(0).Doubt == BreaksWord })
}
