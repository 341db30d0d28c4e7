// Package routing picks a replica from a snapshot of replicas.
//
// Start at [Place]. It is a pure function in integer arithmetic: no clock, no
// lock, no socket, no floating point, so that a recorded placement recomputes
// to the same choice on any architecture. Package fleet makes the snapshots.
//
// # Cost
//
// Everything is time, in nanoseconds, so nothing needs a weight:
//
//	predicted = min(depth, (n-1)/block) * block     tokens; the last token is always computed
//	hit       = predicted * confidence / 1000       0 unless the stream is live or live_partial
//	lower     = what slower tiers hold beyond that, likewise
//	computed  = n - hit - lower
//	lacking   = memory needed beyond the hit and what is free, in tokens
//	wait      = (waiting + computed + lacking) * prefill_ps / 1000 + lower * lower_ps / 1000 + decode_ns
//	others    = 1 + the mean number of requests waiting, where no replica counts for more than 1 + twice the median
//	usual     = the mean of waiting * prefill_ps / 1000 where no more than that many requests wait
//	delay     = min(computed * others * prefill_ps / 1000, computed * prefill_ps / 1000 + 2 * usual)
//	cost      = wait + delay + penalty
//
// Delay is why a hot prefix is not copied to everywhere: what this caller computes
// makes others wait, at least the next one to come. A copy is made once waiting at
// the holder exceeds both together, and that is never later than for twice the
// usual wait and twice the time that computing takes. Only a replica that could
// never hold the request is not eligible for want of memory.
//
// A prefix that is being prefilled somewhere counts towards hit (Overlay) but
// never towards predicted, which is what the record promises of the engine.
// Loading from a slower tier counts where it is faster than computing. All sums
// and products saturate.
package routing

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Strategy says how the choice is made among candidates of similar cost. The
// zero value is treated as [Deterministic].
type Strategy string

// The strategies.
const (
	// Probabilistic takes the less loaded of two candidates drawn, by the
	// query's seed, from those that cost nearly the least.
	Probabilistic Strategy = "probabilistic"
	// Deterministic takes the least cost; ties are broken by the query's seed,
	// then by ID.
	Deterministic Strategy = "deterministic"
)

// Basis says what a placement rests on.
type Basis string

// The bases, from the best informed.
const (
	KVEvents Basis = "kv_events"  // residency, from a complete event stream
	Partial  Basis = "kv_partial" // residency, from a stream that began in the middle
	Affinity Basis = "affinity"   // no residency is known; the conversation's hash decides
	Load     Basis = "load"       // residency is known and nothing matches; load decides
)

// BasisReason says why a placement rests on less than complete residency.
type BasisReason string

// The basis reasons.
const (
	SuspectStream   BasisReason = "suspect_stream"
	PartialStream   BasisReason = "partial_stream"
	TokensEstimated BasisReason = "tokens_estimated"
	SaltHidden      BasisReason = "salt_hidden"
	NoEvents        BasisReason = "no_events"
	IndexBudget     BasisReason = "index_budget"
)

// Reason says why a replica was not eligible. The zero value means it was.
type Reason string

// The exclusion reasons.
const (
	NotPermitted     Reason = "not_permitted"
	SVIDMismatch     Reason = "svid_mismatch"
	NoSVID           Reason = "no_svid"
	Unhealthy        Reason = "unhealthy"
	Draining         Reason = "draining"
	Breaker          Reason = "breaker"
	NoHeadroom       Reason = "no_headroom"
	ModelMissing     Reason = "model_missing"
	RouteNotIsolated Reason = "route_not_isolated"
	HolderDown       Reason = "holder_down"
)

// Because says what decided between the eligible candidates.
type Because string

// What can decide.
const (
	OnlyCandidate Because = "only_candidate"
	LeastCost     Because = "least_cost"
	NearTie       Because = "near_tie"  // drawn from candidates of nearly the least cost
	TieBreak      Because = "tie_break" // equal cost; the seed decided
	ByAffinity    Because = "affinity"
)

// Stream is the state of a replica's residency stream. The zero value earns no
// credit.
type Stream uint8

// The stream states.
const (
	StreamUnknown Stream = iota
	StreamNone           // the engine publishes no events
	StreamSuspect
	StreamLivePartial
	StreamLive
)

// Credits says whether residency learned from the stream may count.
func (s Stream) Credits() bool { return s == StreamLive || s == StreamLivePartial }

// String returns the name that records and consoles use.
func (s Stream) String() string {
	switch s {
	case StreamNone:
		return "none"
	case StreamSuspect:
		return "suspect"
	case StreamLivePartial:
		return "live_partial"
	case StreamLive:
		return "live"
	default:
		return "unknown"
	}
}

// Query is the request as placement sees it.
type Query struct {
	Strategy     Strategy
	PromptTokens int
	TokensExact  bool // PromptTokens and the block ids come from the model's own tokenizer
	MaxOutput    int  // tokens the answer may have; 0 unknown
	Seed         uint64
	Affinity     [32]byte // digest of namespace and first user turn; zero for none
	Region       string   // preferred region; empty for none
	Warm         bool     // among near ties take the one with most of the prompt cached
}

// Candidate is one replica at the moment of the snapshot.
type Candidate struct {
	ID       string // SPIFFE ID
	Pool     string
	Region   string
	Epoch    string // the replica's relay process
	Rank     int    // data-parallel rank that would get the request, where the request chooses; else 0
	Excluded Reason // not empty: never chosen, only counted

	Stream       Stream
	StreamReason BasisReason // why the stream earns less than full credit
	BlockSize    int         // tokens; 0 unknown, which earns no credit
	Depth        int         // consecutive blocks of the prompt it holds
	Overlay      int         // the same, counting prefixes whose prefill is in flight
	Lower        int         // the same, counting blocks on slower tiers
	Confidence   int         // per mille of past predictions that came true

	WaitingTokens int64 // prefill tokens ahead of us
	PrefillPS     int64 // picoseconds per prefill token
	LowerPS       int64 // picoseconds per token to load from a slower tier
	DecodeNS      int64 // interference by running decodes
	KVFree        int64 // blocks that a new request could take
	KVTotal       int64 // blocks; 0 unknown, which is taken as enough
	Running       int64 // requests, running or waiting
	Waiting       int64 // requests without a first token
	Load          int64 // tokens waiting for prefill or held by running requests
	LagMS         int64 // age of its events when they reach us, smoothed
}

// Snapshot is the candidates for one query. Place does not change it, and its
// placement holds copies, so that it may be used again.
type Snapshot struct {
	Candidates []Candidate
}

// Scored is a candidate as Place saw it.
type Scored struct {
	*Candidate
	CostNS    int64
	PenaltyNS int64 // part of CostNS that is the region preference
}

// Placement is a choice and everything it rested on.
type Placement struct {
	Strategy    Strategy
	Basis       Basis
	BasisReason BasisReason
	Seed        uint64

	Chosen    int // index in the snapshot
	ID        string
	Pool      string
	Epoch     string
	Rank      int // data-parallel rank
	Predicted int // prompt tokens that the replica is expected to find cached
	BlockSize int // of the chosen replica
	Blocks    int // full blocks of the prompt at that size
	LagMS     int64
	CostNS    int64
	WaitNS    int64 // part of CostNS that is until its first token, as far as can be known
	Others    int64 // requests that computing a prompt holds up, per mille; with Usual the same for every candidate
	Usual     int64 // wait at a replica that is not crowded, ns

	ChosenBecause Because
	Considered    int            // candidates in the snapshot
	Excluded      map[Reason]int // how many were not eligible, and why

	// Candidates are the eligible ones: all of them, in the snapshot's order,
	// under the deterministic strategy; otherwise the chosen one and the next
	// cheapest, at most 8, cheapest first.
	Candidates []Scored
}

// ErrNoReplica says that no candidate was eligible; errors.As with
// [NoReplicaError] gives the counts.
var ErrNoReplica = errors.New("no eligible replica")

// NoReplicaError is ErrNoReplica with the reasons.
type NoReplicaError struct {
	Considered int
	Excluded   map[Reason]int
}

// Error lists the reasons in a fixed order.
func (e *NoReplicaError) Error() string {
	reasons := make([]string, 0, len(e.Excluded))
	for r, n := range e.Excluded {
		reasons = append(reasons, fmt.Sprintf("%s %d", r, n))
	}
	slices.Sort(reasons)
	if len(reasons) == 0 {
		return fmt.Sprintf("%v among %d", ErrNoReplica, e.Considered)
	}
	return fmt.Sprintf("%v among %d: %s", ErrNoReplica, e.Considered, strings.Join(reasons, ", "))
}

// Unwrap makes errors.Is find ErrNoReplica.
func (e *NoReplicaError) Unwrap() error { return ErrNoReplica }
