package gateway

import (
	"context"
	"errors"
	"net/http"

	"github.com/sallyport-ai/sallyport/gateway/upstream"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/routing"
)

// serve answers one request. What a step learns is kept in the exchange; each
// step is a method of it, in a file named after the question it answers.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request, op wire.Operation) {
	x := g.begin(w, r, op)
	if err := x.run(r.Context()); err != nil {
		x.refuse(r.Context(), err)
	}
}

// run is the life of a request. The order is the product: nothing below a line
// happens unless everything above it has.
func (x *exchange) run(ctx context.Context) error {
	// Who is calling? One snapshot of policy serves the whole request.
	x.snap = x.g.Policy.Snapshot()
	if err := x.who(ctx); err != nil {
		return err
	}
	// What is this? Read whole, decoded once, classified and labelled.
	if err := x.what(ctx); err != nil {
		return err
	}
	// May they? Rego answers, code narrows the answer.
	if err := x.may(ctx); err != nil {
		return err
	}
	if x.op.Class == policy.Discovery {
		return x.list(ctx)
	}
	for {
		// Where? Only permitted, authenticated replicas are candidates.
		if err := x.where(ctx); err != nil {
			return err
		}
		// Written down, durably, before any byte of the prompt leaves. The
		// replica's connection is made meanwhile.
		x.g.Upstream.Prepare(ctx, x.replica())
		if err := x.write(ctx); err != nil {
			return err
		}
		// What may have changed while we waited? Then it is a new decision.
		if err := x.recheck(ctx); err != nil {
			x.settle(ctx, notForwarded(err).final())
			x.recorded = !x.stale // what the new policy says is a decision too
			return err
		} else if x.stale {
			x.settle(ctx, notForwarded(errPolicyMoved))
			continue
		}
		// Forward, to that replica and no other.
		resp, err := x.forward(ctx)
		if err != nil {
			if x.again(err) {
				x.settle(ctx, failed(err))
				continue
			}
			x.settle(ctx, failed(err).final())
			return err
		}
		// Stream back. From the first byte on there is no second attempt. The
		// outcome is owed even if the caller has gone.
		end := x.back(ctx, resp)
		x.settle(ctx, end)
		return end.err
	}
}

// again says whether another replica may be tried after err, which came before
// any byte of an answer. A refusal of the content is not one of these: another
// replica would be asked to overrule the first.
func (x *exchange) again(err error) bool {
	if x.attempt >= x.g.MaxAttempts {
		return false
	}
	switch id := x.reservation.Replica.ID; {
	case errors.Is(err, upstream.ErrIdentity):
		x.g.Fleet.ReportFailure(id, true)
		x.exclude[id], x.reason = routing.SVIDMismatch, string(routing.SVIDMismatch)
	case errors.Is(err, upstream.ErrUnreachable):
		x.g.Fleet.ReportFailure(id, false)
		x.exclude[id], x.reason = routing.HolderDown, string(routing.HolderDown)
	case errors.Is(err, errEngineBusy), errors.Is(err, errEngineFailed):
		x.exclude[id], x.reason = routing.Unhealthy, faultOf(err).Reason
	default:
		return false
	}
	return true
}
