package fleet

import (
	"errors"
	"testing"

	"github.com/sallyport-ai/sallyport/routing"
)

func TestTargetsMayChangeWhileServing(t *testing.T) {
	f, relays, a := two(t)
	tokens := prompt(1, 200)
	relays[0].store("acme", tokens)
	until(t, "the prefix", func() bool { return depth(f, ask(tokens), 0) > 0 })

	third := a.relay(t, base+"r2", "general", "127.0.0.1:0")
	if err := f.SetTargets([]Target{third.target("general"), relays[0].target("general")}); err != nil {
		t.Fatal(err)
	}
	if d := depth(f, ask(tokens), 1); d == 0 {
		t.Error("a replica that stayed lost its residency")
	}
	up(t, f, 2)
	for _, s := range f.Replicas() {
		if s.ID == relays[1].id {
			t.Error("a replica that was withdrawn is still listed")
		}
	}
	if s := f.status(0); s.ID != third.id || s.Excluded != "" {
		t.Errorf("the new replica: %s %s", s.ID, s.Excluded)
	}

	if err := f.SetTargets(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Reserve(t.Context(), ask(tokens)); !errors.Is(err, routing.ErrNoReplica) {
		t.Errorf("placed on a withdrawn replica: %v", err)
	}
	until(t, "the index to be empty", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, o := range f.owners {
			if o.replica != nil {
				return false
			}
		}
		return true
	})
}

func TestTargetsThatCannotWorkChangeNothing(t *testing.T) {
	f, relays, _ := two(t)
	twice := []Target{relays[0].target("general"), relays[0].target("general")}
	if err := f.SetTargets(twice); err == nil {
		t.Fatal("took the same address twice")
	}
	if n := len(f.Replicas()); n != 2 {
		t.Fatalf("%d replicas after a refused change", n)
	}
}

func TestARequestOutlivesItsReplicasWithdrawal(t *testing.T) {
	f, _, _ := two(t)
	r := reserve(t, f, ask(prompt(2, 100)))
	if err := f.SetTargets(nil); err != nil {
		t.Fatal(err)
	}
	r.Finish(Result{})
}
