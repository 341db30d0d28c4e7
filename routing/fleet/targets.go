package fleet

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/sallyport-ai/sallyport/routing/ledger"
)

// Target is one configured or discovered replica. An address is only a hint
// where to look; the identity is what counts.
type Target struct {
	Address string   // host:port of its relay
	ID      string   // expected SPIFFE ID; empty: any member, pinned to the first one proven
	Pool    string   // pool it is configured in
	Region  string   // where it runs; empty unknown
	Members []string // SPIFFE ID patterns of the pool
	Models  []string // served names that the pool is configured for; empty: whatever the replica serves
}

func (t Target) equal(o Target) bool {
	return t.Address == o.Address && t.ID == o.ID && t.Pool == o.Pool && t.Region == o.Region &&
		slices.Equal(t.Members, o.Members) && slices.Equal(t.Models, o.Models)
}

// SetTargets makes targets the replicas there are. One that is as before keeps
// its Watch, its residency and what was learned of it; one that is gone takes
// no more requests at once, while those it has go on. After an error nothing
// has changed.
func (f *Fleet) SetTargets(targets []Target) error {
	if err := checkTargets(targets); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.replicas
	f.replicas, f.pools = make([]*replica, 0, len(targets)), make(map[string][]*replica)
	for _, t := range targets {
		r := take(before, t)
		if r == nil {
			if f.rates[t.Pool] == nil {
				f.rates[t.Pool] = new(ledger.Rate)
			}
			r = newReplica(t, f.rates[t.Pool])
		}
		r.at = len(f.pools[t.Pool])
		f.replicas = append(f.replicas, r)
		f.pools[t.Pool] = append(f.pools[t.Pool], r)
	}
	for _, r := range before {
		if r == nil {
			continue
		}
		r.gone = true
		r.gen++
		if r.stop != nil {
			r.stop()
		}
	}
	select {
	case f.changed <- struct{}{}:
	default: // Run has yet to see the last change; it will see this one with it
	}
	return nil
}

// take finds the replica of t and takes it out of the list.
func take(list []*replica, t Target) *replica {
	for i, r := range list {
		if r != nil && r.target.equal(t) {
			list[i] = nil
			return r
		}
	}
	return nil
}

// watchNew begins to watch the replicas that nobody watches yet.
func (f *Fleet) watchNew(ctx context.Context, keepers *sync.WaitGroup) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.replicas {
		if r.stop != nil {
			continue
		}
		ctx, stop := context.WithCancel(ctx)
		r.stop = stop
		keepers.Go(func() {
			defer stop()
			f.keep(ctx, r)
		})
	}
}

func checkTargets(targets []Target) error {
	seen := make(map[string]bool)
	for _, t := range targets {
		switch {
		case t.Address == "" || t.Pool == "":
			return fmt.Errorf("fleet: replica %q of pool %q: address and pool are required", t.Address, t.Pool)
		case t.ID == "" && len(t.Members) == 0:
			return fmt.Errorf("fleet: replica %s of pool %s: an id or the pool's members are required", t.Address, t.Pool)
		case seen["address "+t.Address] || t.ID != "" && seen["id "+t.ID]:
			return fmt.Errorf("fleet: replica %s %s of pool %s is configured twice", t.Address, t.ID, t.Pool)
		}
		seen["address "+t.Address], seen["id "+t.ID] = true, true
	}
	return nil
}
