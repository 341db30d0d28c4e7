package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway/upstream"
	"github.com/sallyport-ai/sallyport/gateway/wire"
)

const (
	// maxAnswer bounds an answer that is not streamed.
	maxAnswer = 64 << 20
	// writeTimeout is how long a client may leave an event unread.
	writeTimeout = 30 * time.Second
	// keepAlive is how long a stream may be silent before its client is told that
	// it lives: proxies and clients give up on silence of a minute or so.
	keepAlive = 15 * time.Second
	// trailing is how long a replica may take to end what is of no more use: an
	// error's text, a stream after its proper end.
	trailing = 250 * time.Millisecond
)

// back carries the answer to the caller, and keeps how it ended.
func (x *exchange) back(ctx context.Context) error {
	resp := x.response
	defer func() { _ = resp.Body.Close() }() // whatever it says, the answer is over
	x.end = ended{status: audit.StatusOK, http: http.StatusOK, engine: resp.Status, peer: resp.Peer}
	end := &x.end
	a := x.op.Answer(x.request)
	a.CachedTokens = x.decision.ExposeCachedTokens
	if exact(x.tokens.basis) {
		a.PromptTokens = x.tokens.count
	}
	x.answer = a
	carry := x.whole
	if x.request.Stream {
		carry = x.stream
	}
	err := carry(ctx, resp, a, end)
	end.usage, end.finish = a.Usage, a.Finish
	if err != nil {
		broken := failed(err)
		end.status, end.err = broken.status, err
		if !x.answering {
			end.http = faultOf(err).Status
		}
	}
	return err
}

// whole reads the answer to its end before the caller sees any of it, which it
// does not if its credential was withdrawn meanwhile.
func (x *exchange) whole(ctx context.Context, resp *upstream.Response, a *wire.Answer, end *ended) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return x.gone(cut(ctx, err))
	}
	x.firstToken(end)
	if len(body) > maxAnswer {
		return fmt.Errorf("%w: over %d bytes", errAnswer, maxAnswer)
	}
	shown, err := a.Body(body)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errAnswer, err)
	case a.Failed:
		return fmt.Errorf("%w: an error under status 200", errEngineFailed)
	}
	if err := x.vigil.end(); err != nil {
		return err
	}
	if closed(x.withdrawn) {
		if err := x.reauthenticate(ctx); err != nil {
			return err
		}
	}
	x.w.Header().Set("Content-Type", "application/json")
	x.answering = true
	x.patience()
	if _, err := x.w.Write(shown); err != nil {
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	return nil
}

// stream passes events on as they come, each as its own bytes but for what the
// caller may not see. A stream that breaks is never made to look finished.
func (x *exchange) stream(ctx context.Context, resp *upstream.Response, a *wire.Answer, end *ended) error {
	if !wire.IsEventStream(resp.Header.Get("Content-Type")) {
		return fmt.Errorf("%w: not a stream of events", errAnswer)
	}
	x.out = &outgoing{write: x.send, alive: wire.KeepAlive(x.op.Shape), every: x.g.keepAlive}
	defer x.out.stop()
	f := wire.NewFramer(resp.Body, 0)
	for {
		ev, err := f.Next()
		if ev.Open {
			_, err = f.Next() // what cut the event off
		}
		switch {
		case a.Done:
			return nil // whatever comes after its end, the answer is whole
		case errors.Is(err, io.EOF):
			return fmt.Errorf("%w: %w", errAnswer, a.End())
		case context.Cause(ctx) != nil:
			return x.gone(context.Cause(ctx))
		case err != nil:
			return x.gone(err)
		}
		if err := x.pass(ev, a, end); err != nil {
			return err
		}
		if a.Done {
			defer time.AfterFunc(trailing, func() { _ = resp.Body.Close() }).Stop()
		}
	}
}

// pass sends one event.
func (x *exchange) pass(ev wire.Event, a *wire.Answer, end *ended) error {
	shown, err := a.Event(ev)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errAnswer, err)
	case a.Failed:
		return fmt.Errorf("%w: an error event", errEngineFailed)
	case len(shown) == 0:
		return nil
	}
	if !x.answering {
		x.firstToken(end)
		x.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		x.w.Header().Set("Cache-Control", "no-store")
		x.w.Header().Set("X-Accel-Buffering", "no")
		x.answering = true
	}
	return x.out.pass(shown)
}

// send writes events and sees to it that they leave.
func (x *exchange) send(events []byte) error {
	x.patience()
	if _, err := x.w.Write(events); err != nil {
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	if err := http.NewResponseController(x.w).Flush(); err != nil {
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	return nil
}

// gone turns an error of reading the answer into the caller's cancellation where
// that is what it was.
func (x *exchange) gone(err error) error {
	switch {
	case errors.Is(err, errExpired), errors.Is(err, errWithdrawn):
		return err
	case x.r.Context().Err() != nil:
		return fmt.Errorf("%w: %w", errClientGone, err)
	case errors.Is(err, wire.ErrEventTooLarge):
		return fmt.Errorf("%w: %w", errAnswer, err)
	default:
		return err
	}
}

// firstToken notes when the answer began.
func (x *exchange) firstToken(end *ended) {
	now := time.Now()
	end.ttft, end.first = now.Sub(x.began), now
	x.reservation.FirstToken(now)
}

// patience gives the client a while to take what comes next. A client that
// stops reading must not hold a replica.
func (x *exchange) patience() {
	// Where the connection has no deadline to set there is none to miss.
	_ = http.NewResponseController(x.w).SetWriteDeadline(time.Now().Add(x.g.writeTimeout))
}

// breakOff ends an answer that has begun with what went wrong.
func (x *exchange) breakOff(f *Fault) {
	if x.request == nil || !x.request.Stream {
		panic(http.ErrAbortHandler) // half a body must not look like a whole one
	}
	x.patience()
	// The client may have gone; the record has what there is to say.
	_, _ = x.w.Write(x.answer.ErrorEvent(x.op.Shape, f.Type, f.Code, f.Message))
	_ = http.NewResponseController(x.w).Flush()
}
