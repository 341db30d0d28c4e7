package relay

import (
	"errors"
	"fmt"
	"sync"

	"github.com/sallyport-ai/sallyport/routing/blockid"
	"github.com/sallyport-ai/sallyport/routing/ticket"
)

// logsPerGateway bounds how many logs one SPIFFE ID may register.
const logsPerGateway = 64

var (
	errNotPinned = errors.New("log key is not the one pinned for this gateway")
	errKeyInUse  = errors.New("another key is in use for this log")
)

// register decides which log keys sign tickets.
type register struct {
	verifier *ticket.Verifier
	pinned   map[string][]ticket.Key // by SPIFFE ID
	unpinned bool                    // IDs without a pinned key may bring one

	mu      sync.Mutex
	watches map[gatewayLog]int         // live Watch streams
	keys    map[gatewayLog]blockid.Key // of the newest Watch
	logs    map[string]int             // unpinned logs by SPIFFE ID
}

func newRegister(p pinned, unpinned bool) *register {
	r := &register{
		verifier: new(ticket.Verifier), pinned: p.keys, unpinned: unpinned,
		watches: make(map[gatewayLog]int), keys: make(map[gatewayLog]blockid.Key), logs: make(map[string]int),
	}
	for peer, keys := range p.keys {
		for _, k := range keys {
			r.verifier.SetKey(peer, k)
		}
	}
	return r
}

// enter registers the key that a Watch of peer brought, until leave. A pinned
// key cannot be replaced from outside. One that was brought can be replaced
// only by the same ID and while no Watch uses it, so that of two processes
// that claim one log the second is refused.
func (r *register) enter(peer string, key ticket.Key, blockKey blockid.Key) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := gatewayLog{peer, key.Origin}
	if err := r.admit(g, key); err != nil {
		return err
	}
	r.watches[g]++
	r.keys[g] = blockKey
	return nil
}

func (r *register) admit(g gatewayLog, key ticket.Key) error {
	if pins := r.pinned[g.peer]; len(pins) > 0 {
		for _, p := range pins {
			if p.Equal(key) {
				return nil
			}
		}
		return fmt.Errorf("log %q: %w", key.Origin, errNotPinned)
	}
	if !r.unpinned {
		return fmt.Errorf("log %q: %w", key.Origin, errNotPinned)
	}
	switch old := r.verifier.Key(g.peer, key.Origin); {
	case old.Equal(key):
		return nil
	case !old.IsZero() && r.watches[g] > 0:
		return fmt.Errorf("log %q: %w", key.Origin, errKeyInUse)
	case old.IsZero():
		if r.logs[g.peer] >= logsPerGateway {
			return fmt.Errorf("log %q: gateway has registered %d logs already", key.Origin, logsPerGateway)
		}
		r.logs[g.peer]++
	}
	r.verifier.SetKey(g.peer, key)
	return nil
}

func (r *register) leave(peer, log string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := gatewayLog{peer, log}
	if r.watches[g]--; r.watches[g] <= 0 {
		delete(r.watches, g)
	}
}

// blockKey is the key that the newest Watch of a gateway asked for.
func (r *register) blockKey(g gatewayLog) (blockid.Key, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, ok := r.keys[g]
	return k, ok
}
