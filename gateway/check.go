package gateway

import (
	"context"

	"github.com/sallyport-ai/sallyport/routing"
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
	t := &x.tokens
	if t.own == nil || t.compared {
		return
	}
	t.compared = true
	if len(t.own) != e.usage.PromptTokens {
		x.observe(ctx, checkLength, false)
		x.look(ctx, e, func(context.Context, verdict) {}) // for the part that differs
		return
	}
	if !x.worthALook(e) || !x.look(ctx, e, x.looked) {
		x.observe(ctx, checkMatch, false)
	}
}

// worthALook says whether the blocks of a prompt whose length is right are to be
// held against what the engine stored.
func (x *exchange) worthALook(e ended) bool {
	p := &x.reservation.Placement
	if !followed(p.Basis) {
		return false // there is nothing to be asked
	}
	fewer := e.usage.CachedTokens != nil && *e.usage.CachedTokens+p.BlockSize < p.Predicted
	return x.g.looks.sampled() || fewer
}

// followed says whether a placement's replica tells what it holds.
func followed(b routing.Basis) bool {
	return b == routing.KVEvents || b == routing.Partial || b == routing.Load
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
