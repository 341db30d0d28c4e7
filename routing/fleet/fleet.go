// Package fleet knows the replicas there are, by pool, with their identity,
// health, load and stream state; it makes the snapshots that package routing
// decides on, and takes reservations.
//
// Start at [New], then [Fleet.Run] beside everything else and [Fleet.Reserve]
// once per attempt of a request.
//
// # One replica
//
// A goroutine per replica keeps one residency Watch alive on a connection of
// its own, with backoff. A replica is eligible only while that Watch runs: it
// is what proves the replica's SPIFFE ID. An address configured without an ID
// is pinned to the ID it proves first.
//
// # Load
//
// The relay reports the work of all gateways and acknowledges our tickets by
// their counters. To its report the fleet adds what it dispatched itself and
// the relay has not acknowledged, so nothing is counted twice or not at all.
//
// # Credit
//
// Residency counts only from a stream that is live and was heard of in the last
// 3 s, and from a replica that is not in doubt (trust.go). Of a replica that is
// lost, what it held is kept for a minute, to be able to say that a prompt's
// holder is down; it is never credited.
package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/blockid"
	"github.com/sallyport-ai/sallyport/routing/kvindex"
	"github.com/sallyport-ai/sallyport/routing/ledger"
)

// Config is what a fleet needs. TLS and PeerID are required.
type Config struct {
	Targets []Target

	// TLS returns the configuration for a connection to t, which MUST
	// authorise t.ID where set, else exactly the IDs that t.Members matches.
	TLS func(t Target) (*tls.Config, error)
	// PeerID returns the SPIFFE ID that the peer proved.
	PeerID func(tls.ConnectionState) (string, error)
	// IdentityError says whether a failed handshake failed because the peer
	// proved an ID that TLS does not authorise. nil: none did.
	IdentityError func(error) bool

	BlockKey [16]byte // random per process
	KeyID    string   // names BlockKey in logs
	LogVKey  string   // note verifier key of our log

	ErrorsInRow int // answers in a row that must fail to open a replica's breaker; 0: 5

	Log     *slog.Logger  // nil discards
	Penalty time.Duration // how long a replica that floods or claims too much is not listened to; 0: 1 min

	// Notify is told when a replica loses credit for what it says, and when it
	// has it again. It must not wait. nil: nobody is told.
	Notify func(Notice)

	// Tests set these.

	indexBytes int64         // budget of the residency index; 0: 1 GiB and 4 MiB for each of the first targets
	keepLost   time.Duration // how long what a lost replica held is remembered; 0: keepLost
	settle     time.Duration // unready at most this long after Run begins; 0: settle
}

// settle is how long streams may take to become live before the fleet is ready
// without them.
const settle = 30 * time.Second

// Fleet is the replicas. Safe for concurrent use.
type Fleet struct {
	cfg   Config
	key   blockid.Key
	index *kvindex.Index
	log   *slog.Logger

	looks   sync.Pool     // of *lookup
	views   sync.Pool     // of *view
	changed chan struct{} // holds a value when there are new replicas to watch

	// mu guards what follows and every field of a replica that says so. It is
	// never held while waiting for anything. Looking at all replicas, which is most
	// of the work of a placement, only reads, so that placements go side by side.
	mu       sync.RWMutex
	replicas []*replica            // in the order of the targets
	pools    map[string][]*replica // the same, by pool
	owners   []owner               // by index ordinal
	overlay  ledger.Overlay[target]
	rates    map[string]*ledger.Rate // prefill rate by pool
	overlaps map[string]*overlaps    // by pool
	notices  []Notice                // to be handed out
	started  time.Time               // zero before Run
	ready    bool
}

// owner is the stream that an index ordinal belongs to; a nil replica: nobody's.
type owner struct {
	replica *replica
	rank    int
}

// New returns the fleet of the targets in c; none is eligible before Run.
func New(c Config) (*Fleet, error) {
	if c.TLS == nil || c.PeerID == nil {
		return nil, errors.New("fleet: TLS and PeerID are required")
	}
	if c.IdentityError == nil {
		c.IdentityError = func(error) bool { return false }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.ErrorsInRow <= 0 {
		c.ErrorsInRow = errorsInRow
	}
	if c.settle == 0 {
		c.settle = settle
	}
	if c.keepLost == 0 {
		c.keepLost = keepLost
	}
	if c.Penalty <= 0 {
		c.Penalty = penalty
	}
	if c.indexBytes == 0 {
		c.indexBytes = 1<<30 + int64(len(c.Targets))<<22
	}
	index, err := kvindex.New(kvindex.Config{ByteBudget: c.indexBytes, Replicas: 65536})
	if err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	f := &Fleet{
		cfg: c, key: c.BlockKey, index: index, log: c.Log,
		changed: make(chan struct{}, 1), overlaps: make(map[string]*overlaps),
		pools: make(map[string][]*replica), rates: make(map[string]*ledger.Rate),
	}
	return f, f.SetTargets(c.Targets)
}

// Run keeps the replicas watched until ctx ends, and returns its error.
func (f *Fleet) Run(ctx context.Context) error {
	f.mu.Lock()
	f.started = time.Now()
	f.mu.Unlock()
	var keepers sync.WaitGroup
	for {
		f.watchNew(ctx, &keepers)
		select {
		case <-f.changed:
		case <-ctx.Done():
			keepers.Wait()
			return ctx.Err()
		}
	}
}

// ErrNotReady says that too few streams are live yet.
var ErrNotReady = errors.New("residency streams are not live yet")

// Ready is nil once 90 % of the replicas' streams are live or 30 s have passed
// since Run began, and stays so. Replicas refused for their identity have no
// stream that could become live.
func (f *Fleet) Ready() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ready {
		return nil
	}
	if f.started.IsZero() {
		return ErrNotReady
	}
	live, all := 0, 0
	for _, r := range f.replicas {
		if r.down == routing.SVIDMismatch || r.down == routing.NotPermitted {
			continue
		}
		all++
		if r.down == "" && r.settled() {
			live++
		}
	}
	if live*10 < all*9 && time.Since(f.started) < f.cfg.settle {
		return fmt.Errorf("%w: %d of %d", ErrNotReady, live, all)
	}
	f.ready = true
	return nil
}

func (f *Fleet) byID(id string) *replica {
	for _, r := range f.replicas {
		if r.id == id {
			return r
		}
	}
	return nil
}
