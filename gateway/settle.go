package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway/classify"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/routing/fleet"
)

// ended is how an attempt ended.
type ended struct {
	status string
	http   int // sent to the caller; 0 where another attempt follows or nobody is there
	engine int // status of the engine's answer
	peer   string
	ttft   time.Duration
	first  time.Time // of the answer
	usage  *wire.Usage
	finish string
	err    error
}

// notForwarded is the end of an attempt of which nothing left the process.
func notForwarded(err error) ended { return ended{status: audit.StatusNotForwarded, err: err} }

// final adds the status that the caller is sent for it.
func (e ended) final() ended {
	e.http = faultOf(e.err).Status
	return e
}

// failed is the end of an attempt that broke.
func failed(err error) ended {
	e := ended{status: audit.StatusError, err: err}
	switch {
	case errors.Is(err, errClientGone), errors.Is(err, context.Canceled):
		e.status = audit.StatusCancelled
	case errors.Is(err, errExpired), errors.Is(err, errWithdrawn), errors.Is(err, errEngineRefused):
		e.status = audit.StatusRefused
	}
	return e
}

// nameParties says in an outcome whose it is and how sensitive, as the decision
// does at length: who receives the one must be able to receive the other.
func (x *exchange) nameParties(rec *audit.Record) {
	c := x.caller()
	rec.Caller = &audit.Caller{Mode: c.Mode, Ref: c.Ref, Tenant: c.Tenant, Kind: c.Kind, Method: c.Method}
	if x.label.Level != policy.Absent {
		rec.Class = &audit.Class{Name: x.class.String(), Mismatch: x.mismatch, Table: classify.Table}
		rec.Label = &audit.Label{Level: x.label.Level.String(), Rank: x.label.Level.Rank()}
	}
}

// settle writes the outcome of the current attempt and gives its reservation
// back. It is owed even if the caller has gone.
func (x *exchange) settle(ctx context.Context, e ended) {
	x.open = false
	rec := &audit.Record{
		V: audit.Version, Kind: audit.KindOutcome, ID: x.id, Attempt: x.decided, Status: e.status,
		Outcome: &audit.Outcome{
			Status: e.status, HTTP: e.http, UpstreamHTTP: e.engine, Peer: e.peer,
			TTFTMS: e.ttft.Milliseconds(), DurationMS: time.Since(x.began).Milliseconds(), Finish: finishReason(e.finish),
			Inspected: audit.Inspected{Request: notNil(x.decision.Inspect.Request), Response: notNil(x.decision.Inspect.Response)},
		},
	}
	x.nameParties(rec)
	if e.err != nil {
		f := faultOf(e.err)
		rec.Reason, rec.Outcome.ErrorClass = f.Reason, f.Code
	}
	rec.Detail = x.detail
	result := fleet.Result{Err: e.err, Blame: e.status == audit.StatusError && blames(e.err)}
	if e.usage != nil {
		rec.Outcome.PromptTokens, rec.Outcome.CompletionTokens, rec.Outcome.CachedTokens = e.usage.PromptTokens, e.usage.CompletionTokens, e.usage.CachedTokens
		result.PromptTokens, result.CachedTokens = e.usage.PromptTokens, e.usage.CachedTokens
	}
	if x.reservation != nil {
		rec.Outcome.Replica = x.reservation.Replica.ID
		if e.status == audit.StatusNotForwarded {
			x.reservation.Release()
		} else {
			x.reservation.Finish(result)
		}
	}
	rec.Durability = x.durability()
	x.g.metrics.ended(ctx, x, e)
	x.checkAnswer(ctx, e)
	x.endCall(e)
	err := x.step(context.WithoutCancel(ctx), "settle", func(ctx context.Context) error { return x.append(ctx, rec) })
	if err != nil {
		x.g.cfg.Logger.Error("outcome not recorded", "decision_id", x.id, "error", err)
	}
}
