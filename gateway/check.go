package gateway

import (
	"context"
	"sync"

	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/prompt"
)

// What our own tokenizer makes of prompts is held against what engines make of
// them, all the time: ids that differ in one place predict hits that never come,
// and nothing else would show it. Three things tell, the first free:
//
//   - the number of prompt tokens that the engine reports with its answer;
//   - the ids themselves, where an engine was asked for them;
//   - the blocks that the engine stored for our ticket, of which the relay says
//     where ours part from them (diverge.go): asked where fewer were cached than
//     predicted, and of one request in sixteen.

// What came of a check, for metrics.
const (
	checkMatch  = "match"
	checkLength = "length" // another number of tokens
	checkIDs    = "ids"    // the engine's ids differ
	checkBlocks = "blocks" // what the engine stored differs
)

// compare holds our ids against those that an engine gave.
func (x *exchange) compare(ctx context.Context, got countAnswer) {
	own := x.tokens.own
	if own == nil {
		return
	}
	x.tokens.compared = true
	if sameIDs(own, got) {
		x.observe(ctx, checkMatch, true)
		return
	}
	at := 0
	for at < len(own) && at < len(got.known) && own[at] == got.known[at] {
		at++
	}
	base := x.base() // of this policy: the request may go on under another
	x.aside(ctx, func(ctx context.Context) {
		x.g.metrics.diverged(ctx, base, x.partAt(ctx, base, at, at+1, got.count))
	})
	x.observe(ctx, checkIDs, true)
}

// checkAnswer holds our prompt against what the engine reported with its answer.
func (x *exchange) checkAnswer(ctx context.Context, e ended) {
	if e.err != nil || e.usage == nil || e.usage.PromptTokens <= 0 || x.reservation == nil {
		return
	}
	x.checkOverlap(e)
	t, theirs := &x.tokens, e.usage.PromptTokens
	if t.own == nil || t.compared {
		return
	}
	t.compared = true
	if len(t.own) != theirs {
		x.observe(ctx, checkLength, false)
		x.look(ctx, e, func(context.Context, verdict) {}) // for the part
		return
	}
	p := &x.reservation.Placement
	// Of a replica whose events are not followed there is nothing to be asked.
	followed := p.Basis == routing.KVEvents || p.Basis == routing.Partial || p.Basis == routing.Load
	short := e.usage.CachedTokens != nil && *e.usage.CachedTokens+p.BlockSize < p.Predicted
	if !followed || !x.g.looks.sampled() && !short || !x.look(ctx, e, x.looked) {
		x.observe(ctx, checkMatch, false)
	}
}

// looked takes what a look showed. Where that is nothing, the length is all that
// there is to go by.
func (x *exchange) looked(ctx context.Context, v verdict) {
	if v == looksDifferent {
		x.observe(ctx, checkBlocks, true)
	} else {
		x.observe(ctx, checkMatch, v == looksSame)
	}
}

// observe takes one piece of evidence on the model's tokenizer, of ids or only of
// a length.
func (x *exchange) observe(ctx context.Context, result string, ids bool) {
	base := x.base()
	x.g.metrics.checkedPrompt(ctx, base, result)
	from, to := x.tokens.standing.Observe(result == checkMatch, ids)
	if from == to {
		return
	}
	x.g.tell(PromptNotice{
		Model: base, Digest: x.live.Prompts[base].Model().Digest(), Doubt: PromptMismatch, Over: to > from,
		From: from.String(), To: to.String(), Detail: result,
	})
}

// The doubts about a tokenizer.
const (
	PromptMismatch = "prompt_mismatch" // its ids were not the engine's
	NoOverlap      = "no_overlap"      // engines find prefixes cached, and we foretell none
)

// PromptNotice says that evidence has changed what is thought of the token ids
// that we compute for a model.
type PromptNotice struct {
	Model  string // served name
	Digest string // of its files; empty where they are not here
	Doubt  string // PromptMismatch or NoOverlap
	Over   bool   // the doubt is over, or one step less
	From   string // of PromptMismatch: verified, unverified or engine
	To     string
	Detail string // the observation that decided
}

// tell tells of a change.
func (g *Gateway) tell(n PromptNotice) {
	g.cfg.Logger.Warn("evidence on a tokenizer", "model", n.Model, "digest", n.Digest, "doubt", n.Doubt, "over", n.Over,
		"from", n.From, "to", n.To, "detail", n.Detail)
	if g.cfg.NotifyPrompt != nil {
		g.cfg.NotifyPrompt(n)
	}
}

// blindAfter is how many requests in a row must have found something cached that
// was not foretold, while events came, for an alarm.
const blindAfter = 20

// overlap watches for what fails silently everywhere: events arrive, engines
// find prefixes cached, and nothing that the events told ever overlaps with a
// prompt of ours. The zero value is ready.
type overlap struct {
	mu    sync.Mutex
	blind map[string]int // requests in a row, by model
}

// saw takes one request of which the engine found a block or more cached, and
// reports the beginning or end of an alarm.
func (o *overlap) saw(model string, foretold bool) (changed, alarm bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.blind == nil {
		o.blind = make(map[string]int)
	}
	before := o.blind[model] >= blindAfter
	if foretold {
		o.blind[model] = 0
	} else {
		o.blind[model]++
	}
	after := o.blind[model] >= blindAfter
	return before != after, after
}

// alarms lists the models that there is an alarm for, and those without.
func (o *overlap) alarms() map[string]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make(map[string]bool, len(o.blind))
	for model, n := range o.blind {
		out[model] = n >= blindAfter
	}
	return out
}

// checkOverlap looks for cached blocks that nothing foretold although the
// replica's events are followed.
func (x *exchange) checkOverlap(e ended) {
	p := &x.reservation.Placement
	cached := e.usage.CachedTokens
	if cached == nil || p.BlockSize == 0 || *cached < p.BlockSize || !exact(x.tokens.basis) {
		return
	}
	switch p.Basis {
	case routing.KVEvents, routing.Partial, routing.Load: // residency is known
	default:
		return
	}
	changed, alarm := x.g.overlap.saw(x.base(), x.reservation.Indexed > 0)
	if !changed {
		return
	}
	n := PromptNotice{Model: x.base(), Doubt: NoOverlap, Over: !alarm, Detail: "engines find prefixes cached that were not foretold"}
	if m := x.live.Prompts[x.base()]; m != nil {
		n.Digest = m.Model().Digest()
	}
	x.g.tell(n)
}

// levels lists the level of each model, for the gauge.
func (l *Live) levels() map[string]prompt.Level {
	out := make(map[string]prompt.Level, len(l.standings))
	for name, s := range l.standings {
		out[name] = s.Level()
	}
	return out
}
