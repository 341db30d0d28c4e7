package gateway

import (
	"context"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"github.com/sallyport-ai/sallyport/gateway/upstream"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/fleet"
)

// exchange is one request on its way. It is owned by the request's goroutine.
// The fields stand in the order in which the pipeline learns them.
type exchange struct {
	g     *Gateway
	op    wire.Operation
	w     http.ResponseWriter
	r     *http.Request
	id    string // decision id
	began time.Time
	live  *Live
	span  trace.Span
	snap  *policy.Snapshot

	// who
	withdrawn    <-chan struct{} // closed once credentials were withdrawn since the caller was last asked for
	principal    identity.Principal
	registration policy.Registration   // zero where the caller has none
	client       policy.Registration   // of the client of its token, where that is another
	chain        []policy.InputActor   // who acts for whom; empty where nobody does
	actors       []policy.Registration // of the chain, all but its first
	tenant       policy.Tenant
	subject      string // as policy and records see it: clear or a pseudonym

	// what
	held         int64 // bytes in flight that are counted for the body
	body         []byte
	request      *wire.Request
	conversation conversation
	class        policy.Class
	facts        []policy.Fact
	label        policy.Label
	mismatch     bool
	model        policy.Model
	tokens       tokens

	// may
	input      policy.Input
	decision   policy.Decision
	evaluation policy.Evaluation
	upstream   []byte // the body for the engine
	domain     string // cache domain

	// count
	owed sync.WaitGroup // outcomes that are being written

	// where; replaced by each attempt
	attempt     int // from 1
	decided     int // the last attempt whose decision is in the log
	exclude     map[string]routing.Reason
	detail      string        // why no other replica was tried
	wait        time.Duration // before it is worth asking again; 0: nobody knows
	reason      string        // why this attempt is not the first, or is not where it might be
	reservation *fleet.Reservation
	stale       error // what changed while this attempt was being written down; nil: nothing
	recorded    bool  // the log holds how this attempt was decided
	open        bool  // the log holds a decision of ours that has no outcome yet

	// forward
	sent     time.Time  // when; zero: nothing was
	call     trace.Span // until the attempt ends; nil: not traced
	response *upstream.Response
	vigil    *vigil // over the caller, while an engine works for it

	// back
	answer    *wire.Answer // what has been read of it
	out       *outgoing    // to the client; nil: it is no stream, or has not begun
	answering bool         // the status line has been sent
	end       ended

	err error // how the request ended
}

// begin returns the exchange of a request that nothing is known of, and the
// context of its span.
func (g *Gateway) begin(w http.ResponseWriter, r *http.Request, op wire.Operation) (*exchange, context.Context) {
	id, err := uuid.NewV7()
	if err != nil {
		id = uuid.New() // the random source failed once; version 4 asks it again and panics if it must
	}
	x := &exchange{g: g, op: op, w: w, r: r, id: id.String(), began: time.Now(), live: g.live.Load(), exclude: make(map[string]routing.Reason)}
	ctx := x.startSpan(r)
	g.metrics.begun(ctx, x)
	return x, ctx
}

// over counts the request and ends its span.
func (x *exchange) over(ctx context.Context) {
	x.g.inflight.give(x.held)
	var f *Fault
	if x.err != nil {
		f = faultOf(x.err)
	}
	x.g.metrics.over(ctx, x, f)
	x.endSpan(f)
}

// survive turns a panic of ours into a refusal, so that what was written down
// has its outcome and the caller an answer. It takes the place of a crash, not
// of a check: each is a bug, and logged as one.
func (x *exchange) survive(ctx context.Context) {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler {
		panic(p) // how an answer that has begun is broken off
	}
	x.g.cfg.Logger.Error("panic", "decision_id", x.id, "panic", p, "stack", string(debug.Stack()))
	x.err = errPanic
	switch {
	case x.open:
		x.settle(ctx, failed(errPanic).final())
	case x.reservation != nil:
		x.reservation.Release() // its place, or the replica looks busy for ever
	}
	x.refuse(ctx, errPanic)
}

// authenticated reports whether the caller is known.
func (x *exchange) authenticated() bool { return !x.principal.IsZero() }

// replica is where the current attempt goes.
func (x *exchange) replica() upstream.Replica {
	return upstream.Replica{Address: x.reservation.Replica.Address, ID: x.reservation.Replica.ID}
}

// refuse tells the caller, and writes down a refusal that no record holds yet.
// Outcomes of attempts were written where they ended.
func (x *exchange) refuse(ctx context.Context, err error) {
	if !x.authenticated() {
		x.g.turnAway(x.w, x.r, x.op.Shape, err, x.wait)
		return
	}
	f := faultOf(err)
	if !x.recorded {
		x.recordRefusal(ctx, f)
	}
	if f.unforeseen() {
		x.g.cfg.Logger.Error("request failed inside", "decision_id", x.id, "error", f)
	}
	if f.clientGone() {
		return
	}
	if x.answering {
		// The status line is gone; say it as the last event, and let the
		// missing end marker speak for itself where there are no events.
		x.breakOff(f)
		return
	}
	f.sayWhen(x.w.Header(), x.wait)
	if f.Status == http.StatusUnauthorized {
		x.live.oauth.challenge(x.w.Header(), x.r, err)
	}
	wire.WriteError(x.w, x.op.Shape, f.Status, f.Type, f.Code, f.Message, f.Param)
}
