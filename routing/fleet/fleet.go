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
package fleet

import (
	"crypto/tls"
	"log/slog"
	"time"

	"github.com/sallyport-ai/sallyport/routing"
)

// Target is one configured replica.
type Target struct {
	Address string   // host:port of its relay
	ID      string   // expected SPIFFE ID; empty: any member, pinned to the first one proven
	Pool    string   // pool it is configured in
	Region  string   // where it runs; empty unknown
	Members []string // SPIFFE ID patterns of the pool
	Models  []string // served names that the pool is configured for; empty: whatever the replica serves
}

// Config is what a fleet needs. TLS and PeerID are required.
type Config struct {
	Targets []Target

	// TLS returns the configuration for a connection to t, which MUST
	// authorise t.ID where set, else exactly the IDs that t.Members matches.
	TLS func(t Target) (*tls.Config, error)
	// PeerID returns the SPIFFE ID that the peer proved.
	PeerID func(tls.ConnectionState) (string, error)
	// IdentityError says whether a failed handshake failed because the peer
	// proved an ID that TLS does not authorise.
	IdentityError func(error) bool

	BlockKey [16]byte // random per process
	KeyID    string   // names BlockKey in logs
	LogVKey  string   // note verifier key of our log

	IndexBytes int64         // budget of the residency index; 0: 1 GiB
	Log        *slog.Logger  // nil discards
	Settle     time.Duration // unready at most this long after Run begins; 0: 30 s
}

// Request is one attempt to place a request.
type Request struct {
	Pools       []string // permitted
	Model       string   // served name
	Adapter     string
	Domain      string // cache domain
	Operation   string // "POST /v1/chat/completions"; its isolation must be proven
	Tokens      []uint32
	TokensExact bool // Tokens are exactly what the engine will see
	// PromptTokens is the length of the prompt where Tokens are not known;
	// otherwise it is len(Tokens).
	PromptTokens int
	Affinity     [32]byte
	Strategy     routing.Strategy
	Seed         uint64
	MaxOutput    int
	Region       string // preferred
	Warm         bool
	Exclude      map[string]routing.Reason // replicas not to use, by ID: those already tried
}

// Replica is the replica of a reservation.
type Replica struct {
	ID        string
	Address   string
	Pool      string
	Epoch     string
	BlockSize int
}

// Result is how a reserved request ended.
type Result struct {
	PromptTokens int  // as the engine counted; 0 unknown
	CachedTokens *int // nil where the engine does not say
	Err          error
}
