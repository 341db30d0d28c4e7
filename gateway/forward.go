package gateway

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sallyport-ai/sallyport/gateway/upstream"
	"github.com/sallyport-ai/sallyport/routing/ticket"
)

// maxMoves bounds how often a request is decided anew because policy or its replica
// changed under it.
const maxMoves = 3

// trustFor is how long after a request's arrival its credential is not asked for
// again: a revocation takes as long to be heard of.
const trustFor = 100 * time.Millisecond

// recheck looks again at what may have changed between the decision and now:
// the credential may have run out, policy may have been replaced, and the replica
// withdrawn or started anew. A new policy is asked at once; if it still allows, and
// without the replica, the attempt is placed again under a decision record of its
// own.
func (x *exchange) recheck(ctx context.Context) error {
	if err := ours(ctx); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	if x.expired(time.Now()) {
		return errExpired
	}
	if time.Since(x.began) > trustFor || closed(x.withdrawn) {
		if err := x.reauthenticate(ctx); err != nil {
			return err
		}
	}
	var moved error
	now := x.g.cfg.Policy.Snapshot()
	switch {
	case now != x.snap:
		moved = errPolicyMoved
	case !x.reservation.Stands():
		moved = errReplicaMoved
	default:
		return nil
	}
	if x.attempt >= x.g.cfg.MaxAttempts+maxMoves {
		return moved
	}
	x.stale, x.reason = moved, faultOf(moved).Reason
	if now == x.snap {
		return nil // it is only placed again
	}
	x.snap = now
	x.model, _ = now.Model(x.request.Model) // its name may mean another model now
	if err := x.resolve(); err != nil {
		return err
	}
	x.weigh()
	return x.may(ctx)
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// expired reports whether the caller's credential has run out.
func (x *exchange) expired(now time.Time) bool {
	return !x.principal.Expires.IsZero() && !now.Before(x.principal.Expires)
}

// forward sends the body to the reserved replica, with a ticket that ties these
// bytes to this decision, and returns once the answer has begun. Nothing of the
// client's header goes along: the engine needs none of it.
func (x *exchange) forward(ctx context.Context) error {
	res := x.reservation
	model, adapter := x.served()
	signed, err := x.g.cfg.Tickets.Sign(ticket.Ticket{
		ID: x.id, Attempt: x.attempt, N: res.Counter, Op: x.operation(),
		Audience: res.Replica.ID, Epoch: res.Replica.Epoch, Pool: res.Replica.Pool,
		Model: model, Adapter: adapter, Domain: x.domain, Rank: res.Replica.Rank, Tokens: min(res.Tokens, ticket.MaxTokens),
		Body: sha256.Sum256(x.upstream), Exp: time.Now().Add(ticket.Lifetime).Unix(),
	})
	if err != nil {
		return fmt.Errorf("sign ticket: %w", err)
	}
	x.sent = time.Now()
	if x.attempt == 1 {
		x.g.retries.earn()
	}
	resp, err := x.g.cfg.Upstream.Do(ctx, x.replica(), upstream.Request{
		Method: x.op.Method, Path: x.op.Engine, Body: x.upstream,
		Header: http.Header{
			"Content-Type": {"application/json"},
			"Accept":       {"application/json, text/event-stream"},
			"User-Agent":   {"sallyport"},
			ticket.Header:  {signed},
		},
	})
	if err != nil {
		return cut(ctx, err)
	}
	if err := engineError(resp.Status, resp.Header); err != nil {
		// The text stays here: it may quote the prompt, or name the engine. It is
		// read, if it comes soon, so that the connection can be used again.
		late := time.AfterFunc(trailing, func() { _ = resp.Body.Close() })
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
		late.Stop()
		_ = resp.Body.Close()
		return fmt.Errorf("%w: status %d", err, resp.Status)
	}
	x.response = resp
	return nil
}

// engineError sorts the engine's status: nil means that an answer follows.
func engineError(status int, h http.Header) error {
	switch status {
	case http.StatusOK:
		return nil
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return &busyError{limited: status == http.StatusTooManyRequests, wait: retryAfter(h, time.Now())}
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge:
		return errEngineRefused
	default:
		return errEngineFailed
	}
}
