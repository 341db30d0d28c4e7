package gateway

import (
	"context"
	"net/http"

	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/policy"
)

// serve answers one request. What a step learns is kept in the exchange; each
// step is a method of it, in a file named after the question it answers.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request, op wire.Operation) {
	x, ctx := g.begin(w, r, op)
	defer x.over(ctx)
	ctx, end := g.within(ctx)
	defer end()
	defer x.owed.Wait()
	defer x.survive(ctx)
	if x.err = x.run(ctx); x.err != nil {
		if cause := ours(ctx); cause != nil && !x.recorded {
			x.err = cause // whatever it was that our own end of it interrupted
		}
		x.refuse(ctx, x.err)
	}
}

// run is the life of a request. The order is the product: nothing below a line
// happens unless everything above it has.
func (x *exchange) run(ctx context.Context) error {
	// Who is calling? One snapshot of policy serves the whole request.
	x.snap = x.g.cfg.Policy.Snapshot()
	if err := x.step(ctx, "who", x.who); err != nil {
		return err
	}
	// What is this? Read whole, decoded once, classified and labelled.
	if err := x.step(ctx, "what", x.what); err != nil {
		return err
	}
	// May they? Rego answers, code narrows the answer.
	if err := x.step(ctx, "may", x.may); err != nil {
		return err
	}
	if x.op.Class == policy.Discovery {
		return x.step(ctx, "list", x.list)
	}
	// How long is it? Where our own tokenizer cannot say, a permitted engine may,
	// in its own little time and with a record of its own.
	if err := x.step(ctx, "count", x.count); err != nil {
		return err
	}
	for {
		// Where? Only permitted, authenticated replicas are candidates.
		if err := x.step(ctx, "where", x.where); err != nil {
			return err
		}
		// Written down, durably, before any byte of the prompt leaves. The
		// replica's connection is made meanwhile.
		x.g.cfg.Upstream.Prepare(ctx, x.replica())
		if err := x.step(ctx, "write", x.write); err != nil {
			return err
		}
		// What may have changed while we waited? Then it is a new decision.
		if err := x.step(ctx, "recheck", x.recheck); err != nil {
			x.settle(ctx, notForwarded(err).final())
			x.recorded = x.stale == nil // what the new policy says is a decision too
			return err
		} else if x.stale != nil {
			x.settle(ctx, notForwarded(x.stale))
			continue
		}
		// Forward, to that replica and no other. From here on the caller may lose
		// what let it in: then the engine is stopped.
		watched := x.watch(ctx)
		if err := x.step(watched, "forward", x.forward); err != nil {
			x.vigil.release()
			if x.again(err) {
				x.settle(ctx, failed(err))
				continue
			}
			x.settle(ctx, failed(err).final())
			return err
		}
		// Stream back. From the first byte on there is no second attempt. The
		// outcome is owed even if the caller has gone.
		err := x.step(watched, "back", x.back)
		x.vigil.release()
		x.settle(ctx, x.end)
		return err
	}
}
