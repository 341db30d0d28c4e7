package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// running are the requests that are being served, each by what ends it early.
// The zero value is ready.
type running struct {
	mu      sync.Mutex
	last    uint64
	end     map[uint64]context.CancelCauseFunc
	stopped bool
	idle    chan struct{} // while somebody waits: closed once none is left
}

// add takes a request and returns what takes it out again. After Stop it ends
// at once.
func (r *running) add(end context.CancelCauseFunc) (remove func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		end(errStopping)
	}
	if r.end == nil {
		r.end = make(map[uint64]context.CancelCauseFunc)
	}
	r.last++
	n := r.last
	r.end[n] = end
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.end, n)
		if len(r.end) == 0 && r.idle != nil {
			close(r.idle)
			r.idle = nil
		}
	}
}

// none returns a channel that is closed once no request is being served, or nil
// if none is.
func (r *running) none() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.end) > 0 && r.idle == nil {
		r.idle = make(chan struct{})
	}
	return r.idle
}

// Stop ends every request that is being served, and those that come: what has
// not been answered is refused, and a stream ends with an error event. Their
// outcomes are written down as ever.
func (g *Gateway) Stop() {
	r := &g.running
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	for _, end := range r.end {
		end(errStopping)
	}
}

// EndAll ends every request that is being served, as Stop does, because the log
// takes no more than their outcomes. Those that come find that out for
// themselves.
func (g *Gateway) EndAll() {
	r := &g.running
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, end := range r.end {
		end(errUnrecorded)
	}
}

// Wait returns once no request is being served, each with its outcome written
// down, or with the error of ctx. The log must not be closed before.
func (g *Gateway) Wait(ctx context.Context) error {
	none := g.running.none()
	if none == nil {
		return nil
	}
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for requests to end: %w", ctx.Err())
	}
}

// within returns the context of a request: it ends with the caller, when the
// request has taken longer than it may, and when the gateway is stopped. Its
// cause says which.
func (g *Gateway) within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(g.cfg.Total, func() { cancel(errOverdue) })
	remove := g.running.add(cancel)
	return ctx, func() {
		late.Stop()
		remove()
		cancel(nil)
	}
}

// ours returns the reason for which we ended a request, if we did.
func ours(ctx context.Context) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errOverdue), errors.Is(cause, errStopping), errors.Is(cause, errUnrecorded):
		return cause
	}
	return nil
}
