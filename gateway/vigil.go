package gateway

import (
	"context"
	"errors"
	"sync"
	"time"
)

// vigil is kept over a caller while an engine works for it, whether the answer
// comes as a stream or in one piece, and from before its first byte.
type vigil struct {
	once  sync.Once
	stop  chan struct{} // closed to end it
	over  chan struct{} // closed once nobody is asked any more
	err   error         // why the caller gets no more; to be read once over is closed
	leave context.CancelCauseFunc
}

// watch begins a vigil. The returned context ends when the caller's credential
// expires or, asked again every reauthorize_s and whenever credentials were
// withdrawn, is not accepted, or policy denies; its cause says which. What the
// engine does is done in that context, so that it stops then.
func (x *exchange) watch(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	v := &vigil{stop: make(chan struct{}), over: make(chan struct{}), leave: cancel}
	x.vigil = v
	go func() {
		defer close(v.over)
		for asked := true; asked && v.err == nil; {
			asked, v.err = x.await(ctx, v.stop)
		}
		if v.err != nil {
			cancel(v.err)
		}
	}()
	return ctx
}

// end ends the vigil, though not its context, and returns why the caller gets no
// more, if it does not.
func (v *vigil) end() error {
	v.once.Do(func() { close(v.stop) })
	<-v.over
	return v.err
}

// release ends the vigil and its context: nothing more is done for the caller.
func (v *vigil) release() {
	_ = v.end() // whoever had to know has asked
	v.leave(nil)
}

// cut returns why the vigil ended ctx, if it did, instead of an error that came
// of it.
func cut(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errExpired) || errors.Is(cause, errWithdrawn) {
		return cause
	}
	return err
}

// await waits until the caller is to be asked for again, and asks.
func (x *exchange) await(ctx context.Context, stop <-chan struct{}) (asked bool, err error) {
	var due <-chan time.Time // nil: never
	if wait, ends := x.nextCheck(time.Now()); ends {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
		return false, nil
	case <-stop:
		return false, nil
	case <-x.withdrawn:
		return true, x.reauthenticate(ctx)
	case <-due:
		return true, x.stillAllowed(ctx)
	}
}

// nextCheck is how long from now a request may go on unasked: until the caller's
// credential expires, but no longer than reauthorize_s. Without either it may
// go on to its end.
func (x *exchange) nextCheck(now time.Time) (wait time.Duration, ends bool) {
	wait = time.Duration(x.decision.ReauthorizeS) * time.Second
	if expires := x.principal.Expires; !expires.IsZero() {
		if left := expires.Sub(now); left < wait || wait <= 0 {
			return max(left, time.Millisecond), true
		}
	}
	return wait, wait > 0
}

// stillAllowed asks again what let the request go to the engine.
func (x *exchange) stillAllowed(ctx context.Context) error {
	if x.expired(time.Now()) {
		return errExpired
	}
	if err := x.reauthenticate(ctx); err != nil {
		return err
	}
	if d, _, err := x.g.cfg.Policy.Snapshot().Decide(ctx, x.input); err != nil || !d.Allow {
		return errWithdrawn
	}
	return nil
}
