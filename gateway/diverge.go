package gateway

import (
	"context"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/routing/fleet"
	"github.com/sallyport-ai/sallyport/routing/prompt"
)

const (
	// sampleOne is one request in so many whose blocks are looked at although
	// nothing is conspicuous: two prompts of one length may differ.
	sampleOne = 16
	// mostLooks is how many are looked at at once; the others go unlooked at.
	mostLooks = 8
	// lookTime bounds one look, and lookAgain is how long after a first
	// difference the same is asked once more: events may have been late.
	lookTime  = 5 * time.Second
	lookAgain = time.Second
)

// looks decides which requests are looked at. The zero value is ready.
type looks struct {
	seen   atomic.Uint64
	inside atomic.Int64
}

// sampled picks one in sampleOne.
func (l *looks) sampled() bool { return l.seen.Add(1)%sampleOne == 0 }

// enter takes a place, if there is one.
func (l *looks) enter() bool {
	if l.inside.Add(1) > mostLooks {
		l.inside.Add(-1)
		return false
	}
	return true
}

func (l *looks) leave() { l.inside.Add(-1) }

// aside runs do beside the request, which need not wait for it and may be over
// first, and reports whether there is room for that. A panic of ours ends no more
// than the look: other requests do not depend on it.
func (x *exchange) aside(ctx context.Context, do func(context.Context)) bool {
	if !x.g.looks.enter() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTime)
	go func() {
		defer x.g.looks.leave()
		defer cancel()
		defer func() {
			if p := recover(); p != nil {
				x.g.cfg.Logger.Error("panic", "decision_id", x.id, "panic", p, "stack", string(debug.Stack()))
			}
		}()
		do(ctx)
	}()
	return true
}

// verdict is what a look showed.
type verdict uint8

const (
	looksUnknown verdict = iota // nothing
	looksSame
	looksDifferent
)

// look asks the relay, beside the request, where our blocks part from what the
// engine stored, and counts in which part of the prompt that is. It reports
// whether it does; then gets what it showed.
func (x *exchange) look(ctx context.Context, e ended, then func(context.Context, verdict)) bool {
	res, theirs, cached := x.reservation, e.usage.PromptTokens, 0
	if e.usage.CachedTokens != nil {
		cached = *e.usage.CachedTokens
	}
	return x.aside(ctx, func(ctx context.Context) {
		d, err := x.diverge(ctx, res, cached)
		if err != nil || !d.Known || d.Blocks == 0 {
			if len(x.tokens.own) != theirs {
				x.g.metrics.diverged(ctx, x.base(), "unknown")
			}
			then(ctx, looksUnknown)
			return
		}
		if d.Same() {
			then(ctx, looksSame)
			return
		}
		part := x.partAt(ctx, x.base(), d.Index*d.BlockSize, (d.Index+1)*d.BlockSize, theirs)
		x.g.metrics.diverged(ctx, x.base(), part)
		then(ctx, looksDifferent)
	})
}

// diverge asks once events have had time to arrive, and once more before a
// difference is believed. Where nothing was stored because all was cached, that
// the engine found more than our blocks lead to is as good.
func (x *exchange) diverge(ctx context.Context, res *fleet.Reservation, cached int) (d fleet.Divergence, err error) {
	ask := fleet.Request{Tokens: x.tokens.own, AppendBlocks: x.tokens.ownBlocks}
	for _, wait := range []time.Duration{res.Lag(), lookAgain} {
		select {
		case <-ctx.Done():
			return fleet.Divergence{}, ctx.Err()
		case <-time.After(wait):
		}
		d, err = res.Diverge(ctx, x.id, &ask)
		d.Known = d.Known || d.Index < d.Blocks && cached >= (d.Index+1)*d.BlockSize
		if err != nil || d.Same() || d.Blocks == 0 {
			return d, err
		}
	}
	return d, nil
}

// partAt names the part of our prompt, made of the base model's files, where the
// first difference lies.
func (x *exchange) partAt(ctx context.Context, base string, from, to, theirs int) string {
	m := x.live.Prompts[base]
	kind := prompt.ChatBody
	switch x.op.Engine {
	case wire.Completions.Engine:
		kind = prompt.CompletionBody
	case wire.Responses.Engine:
		kind = prompt.ResponseBody
	}
	if part := m.Model().PartAt(ctx, kind, x.request.Body, x.tokens.own, from, to, theirs); part != "" {
		return string(part)
	}
	return "unknown"
}

// base is the served name of the model, or of the one that it adapts.
func (x *exchange) base() string {
	base, _ := x.served()
	return base
}
