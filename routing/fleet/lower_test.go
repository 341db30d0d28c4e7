package fleet

import (
	"testing"

	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

func TestWhatASlowerTierHoldsIsWorthTheTimeToLoadIt(t *testing.T) {
	f, relays, _ := two(t)
	tokens := prompt(77, 2000)
	relays[0].say(func() *residencyv1.Frame {
		s := &watcher{key: f.key, node: map[string]uint32{}}
		st := s.stored(heldKey("acme", tokens), tokens)
		st.Tier = 1
		return &residencyv1.Frame{Body: &residencyv1.Frame_Stored{Stored: st}}
	})
	r := ask(tokens)
	until(t, "the prefix is indexed", func() bool {
		_, s := f.Snapshot(r)
		return s.Candidates[0].Lower == 125
	})
	p := reserve(t, f, r).Placement
	if p.ID != relays[0].id || p.Predicted != 0 {
		t.Errorf("placed at %s, %d tokens predicted", p.ID, p.Predicted)
	}
}
