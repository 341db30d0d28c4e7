package fleet

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/kvindex"
	"github.com/sallyport-ai/sallyport/routing/ledger"
	"github.com/sallyport-ai/sallyport/routing/residency"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

// replica is one target and what is known of it.
type replica struct {
	target Target
	rate   ledger.Rate // guarded by Fleet.mu
	pool   *ledger.Rate

	// streams are the residency of each rank, ords their ordinals in the index.
	// Both belong to the goroutine of keep.
	streams []*kvindex.Stream
	ords    []int

	heard  atomic.Int64  // when the last frame came, in ns since the Unix epoch
	frames atomic.Uint64 // number of the last frame that was applied

	// What follows is guarded by Fleet.mu.

	stop   context.CancelFunc // ends the goroutine of keep; nil before Run
	at     int                // index among the replicas of its pool
	gone   bool               // it is not a target any more
	gen    uint64             // changes with everything that a placement looks at, but for the relay's own reports
	id     string             // configured, or proven first
	down   routing.Reason     // why the Watch does not make it eligible; empty: it does
	detail string
	cancel context.CancelFunc // ends the present session; nil without one
	conn   *residency.Conn    // of the present session; nil without one

	breaker breaker

	epoch     string
	hello     *residencyv1.Hello // of this session or the last; never nil
	draining  bool               // its relay asks for nothing new
	whole     bool               // the snapshot of this session is complete
	ranks     []rankState
	onRank    []rankWork // our own work, per epoch
	blocks    int        // resident on the GPU
	refusing  bool       // the index left out blocks of this session
	load      *residencyv1.Load
	lagMS     int64
	claims    ledger.Claims
	doubt     Doubt       // why it earns no credit
	doubts    uint64      // how often it was in doubt
	predicted uint64      // cached tokens that were predicted, of requests that the engine reported on
	cached    uint64      // and those that it reported
	prompt    uint64      // prompt tokens of the same requests
	blocksIn  uint64      // blocks that it told of
	work      ledger.Work // by number of our tickets, per epoch
}

// rankState is the state of one rank's event stream, as the relay says.
type rankState struct {
	stream routing.Stream
	reason routing.BasisReason
}

func newReplica(t Target, pool *ledger.Rate) *replica {
	return &replica{
		target: t, id: t.ID, pool: pool,
		down: routing.NoSVID, detail: "not connected yet",
		hello: new(residencyv1.Hello), load: new(residencyv1.Load),
	}
}

func (r *replica) redial() {
	if r.cancel != nil {
		r.cancel()
	}
}

// excluded says why r cannot take a request at all.
func (r *replica) excluded(req *Request, sole uint64, now time.Time) routing.Reason {
	if reason := req.Exclude[r.id]; reason != "" {
		return reason
	}
	if reason := r.state(now); reason != "" {
		return reason
	}
	switch {
	case !r.serves(req):
		return routing.ModelMissing
	case !r.isolates(req, sole):
		return routing.RouteNotIsolated
	}
	return ""
}

// state says why r takes no requests of any kind.
func (r *replica) state(now time.Time) routing.Reason {
	switch {
	case r.down != "":
		return r.down
	case r.draining:
		return routing.Draining
	}
	return r.breaker.state(now)
}

// isolates says whether the request's domain has its cache to itself: since the
// engine was shown to keep domains apart, or because it serves no other. sole
// is the request's domain as a relay names it.
func (r *replica) isolates(req *Request, sole uint64) bool {
	return slices.Contains(r.hello.GetRoutesIsolated(), req.Operation) ||
		sole == r.hello.GetSoleDomain() && sole != 0 && slices.Contains(r.hello.GetRoutesSole(), req.Operation)
}

func (r *replica) serves(req *Request) bool {
	if len(r.target.Models) > 0 && !slices.Contains(r.target.Models, req.Model) {
		return false
	}
	return slices.Contains(r.hello.GetModels(), req.Model) &&
		(req.Adapter == "" || slices.Contains(r.hello.GetAdapters(), req.Adapter))
}

// withheld says why no rank of r earns credit, whatever the state of its own
// stream; the reason is empty where it may.
func (r *replica) withheld() (routing.Stream, routing.BasisReason) {
	switch {
	case !r.whole:
		return routing.StreamUnknown, routing.SuspectStream
	case r.doubt == OverClaims || r.doubt == Floods:
		return routing.StreamSuspect, routing.SuspectStream
	case !r.hello.GetSaltVisible() && !r.silent():
		return routing.StreamNone, routing.SaltHidden
	}
	return routing.StreamUnknown, ""
}

// stream is the state of the worst rank, and why it earns less than full
// credit.
func (r *replica) stream(now time.Time) (routing.Stream, routing.BasisReason) {
	if s, why := r.withheld(); why != "" {
		return s, why
	}
	worst := r.ranks[0]
	for _, k := range r.ranks[1:] {
		if k.stream < worst.stream {
			worst = k
		}
	}
	return r.streamOf(worst, now)
}

// streamOf is the state of one rank.
func (r *replica) streamOf(k rankState, now time.Time) (routing.Stream, routing.BasisReason) {
	switch {
	case !k.stream.Credits():
		return k.stream, k.reason
	case now.UnixNano()-r.heard.Load() > int64(residency.Stale):
		return routing.StreamSuspect, routing.SuspectStream
	case r.refusing:
		return routing.StreamLivePartial, routing.IndexBudget
	}
	return k.stream, k.reason
}

// silent says whether the engine publishes no events at all.
func (r *replica) silent() bool {
	for _, k := range r.ranks {
		if k.stream != routing.StreamNone {
			return false
		}
	}
	return true
}

// settled says whether every rank's stream is live, or never will be.
func (r *replica) settled() bool {
	for _, k := range r.ranks {
		if !k.stream.Credits() && k.stream != routing.StreamNone {
			return false
		}
	}
	return r.whole
}

// candidate is r as placement sees it, but for residency.
func (r *replica) candidate(req *Request, sole uint64, now time.Time) routing.Candidate {
	c := routing.Candidate{
		ID: r.id, Pool: r.target.Pool, Region: r.target.Region, Epoch: r.epoch,
		Excluded:   r.excluded(req, sole, now),
		BlockSize:  int(r.hello.GetBlockSize()),
		Confidence: r.claims.PerMille(),
		PrefillPS:  r.rate.Over(r.pool),
		LowerPS:    ledger.LowerPS,
		KVTotal:    clamp(r.hello.GetNumBlocks()),
		LagMS:      r.lagMS,
	}
	c.Stream, c.StreamReason = r.stream(now)
	if r.doubt != "" {
		c.Confidence = 0 // what it claims is still compared with what comes of it
	}
	r.work.Fill(&c)
	return c
}

// clamp makes of a relay's number one that sums without overflow.
func clamp(n uint64) int64 { return int64(min(n, 1<<40)) }

// newEpoch forgets what concerned another process of the relay.
func (r *replica) newEpoch(epoch string) {
	if r.epoch == epoch {
		return
	}
	r.epoch, r.onRank = epoch, nil
	r.work.Reset()
}

// report takes a relay's load and its acknowledgements.
func (r *replica) report(l *residencyv1.Load) {
	if rate := l.GetPrefillRate(); rate != r.load.GetPrefillRate() { // else it says again what we know
		r.rate.Told(r.pool, rate)
	}
	r.load = l
	r.work.Told = ledger.Told{
		WaitingTokens: clamp(l.GetWaitingPrefillTokens()), UsedBlocks: clamp(l.GetKvUsedBlocks()),
		Waiting: int64(l.GetWaiting()), Running: int64(l.GetRunning()),
	}
	ack := l.GetAck()
	r.work.Acknowledged(ack.GetNContiguous(), ack.GetNBeyond())
}
