package fleet

import (
	"sync"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/routing"
)

// A placement looks at every replica that there is. Others that only look do not wait
// for it, nor does whoever asks how the replicas are.
func TestWhoeverOnlyLooksWaitsForNobodyWhoDoes(t *testing.T) {
	f := watched(t, 8, [][]uint32{prompt(1, 500)})
	f.mu.RLock() // as a placement that is looking does
	defer f.mu.RUnlock()
	done := make(chan routing.Snapshot)
	go func() {
		_, s := f.Snapshot(ask(prompt(1, 500)))
		f.Replicas()
		f.Members()
		done <- s
	}()
	select {
	case s := <-done:
		if len(s.Candidates) != 8 {
			t.Errorf("%d candidates", len(s.Candidates))
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it waits")
	}
}

// However many reserve at once, of several pools and in any order of them, while
// replicas come and go: each gets one of the replicas that it may have, and in the end
// nothing is left on anybody's books.
func TestManyReserveAtOnce(t *testing.T) {
	prompts := [][]uint32{prompt(1, 500), prompt(2, 700), prompt(3, 900)}
	f := watched(t, 24, prompts)
	all := make([]Target, 0, len(f.replicas))
	for _, r := range f.replicas {
		all = append(all, r.target)
	}
	stop := make(chan struct{})
	var changes sync.WaitGroup
	changes.Go(func() {
		for n := 0; ; n++ {
			if err := f.SetTargets(append(all[n%len(all):len(all):len(all)], all[:n%len(all)]...)); err != nil { // in another order
				t.Error(err)
			}
			for _, r := range f.replicas { // nobody else writes these
				r.heard.Store(time.Now().UnixNano())
			}
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	var requests sync.WaitGroup
	for k := range 8 {
		requests.Go(func() {
			for i := range 100 {
				p := prompts[(k+i)%len(prompts)]
				res, err := f.Reserve(t.Context(), ask(p))
				if err != nil {
					t.Error(err)
					return
				}
				if res.Replica.Pool != "general" || res.Placement.ID != res.Replica.ID || res.Counter == 0 {
					t.Errorf("reserved %+v by %+v", res.Replica, res.Placement)
				}
				cached := len(p) - 1
				switch i % 3 {
				case 0:
					res.Release()
				case 1:
					res.FirstToken(time.Now())
					fallthrough
				default:
					res.Finish(Result{CachedTokens: &cached})
				}
			}
		})
	}
	requests.Wait()
	close(stop)
	changes.Wait()
	_, s := f.Snapshot(ask(prompts[0]))
	for _, c := range s.Candidates {
		if c.Waiting != 0 || c.WaitingTokens != 0 {
			t.Errorf("%s has %d requests of %d tokens on its books", c.ID, c.Waiting, c.WaitingTokens)
		}
	}
}

// What a placement rested on is for its record, which is written later: by then the
// fleet has looked at its replicas for others.
func TestAPlacementStaysAsItWasMade(t *testing.T) {
	f := watched(t, 24, [][]uint32{prompt(1, 500)})
	for _, strategy := range []routing.Strategy{routing.Probabilistic, routing.Deterministic} {
		r := ask(prompt(1, 500))
		r.Strategy = strategy
		first, err := f.Reserve(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		var was []routing.Candidate
		for _, c := range first.Placement.Candidates {
			was = append(was, *c.Candidate)
		}
		for i := range 50 {
			other := ask(prompt(uint64(i), 900))
			res, err := f.Reserve(t.Context(), other)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Release()
		}
		for i, c := range first.Placement.Candidates {
			if *c.Candidate != was[i] {
				t.Fatalf("%s: %+v was %+v", strategy, *c.Candidate, was[i])
			}
		}
		first.Release()
	}
}

// What the index says is asked for without the lock, and an ordinal that was given up
// meanwhile may be another stream's: of a rank that its replica has not said yet that
// it has.
func TestAMatchOfARankThatIsNotThereIsNoCredit(t *testing.T) {
	p := prompt(1, 500)
	f := watched(t, 1, [][]uint32{p})
	r := f.replicas[0]
	f.mu.Lock()
	r.hello.RanksAddressable = true
	r.ranks = []rankState{r.ranks[0], r.ranks[0]}
	r.onRank = make([]rankWork, 2)
	f.owners[r.ords[0]].rank = 2
	f.mu.Unlock()
	_, s := f.Snapshot(ask(p))
	if c := s.Candidates[0]; c.Depth != 0 || c.Overlay != 0 || c.Lower != 0 {
		t.Errorf("credit for %d, %d and %d blocks", c.Depth, c.Overlay, c.Lower)
	}
}
