package gateway

import (
	"context"

	"github.com/sallyport-ai/sallyport/routing/prompt"
)

// What our own tokenizer makes of prompts is held against what engines make of
// them, all the time: ids that differ in one place predict hits that never come,
// and nothing else would show it.

// What came of a check, for metrics.
const (
	checkMatch  = "match"
	checkLength = "length" // another number of tokens
	checkIDs    = "ids"    // the engine's ids differ
)

// compare holds our ids against those that an engine gave.
func (x *exchange) compare(ctx context.Context, got countAnswer) {
	if x.tokens.own == nil {
		return
	}
	x.tokens.compared = true
	result := checkMatch
	if !sameIDs(x.tokens.own, got) {
		result = checkIDs
	}
	x.observe(ctx, result)
}

// checkUsage holds the length of our prompt against the one that the engine
// reported with its answer.
func (x *exchange) checkUsage(ctx context.Context, e ended) {
	t := &x.tokens
	if t.own == nil || t.compared || e.err != nil || e.usage == nil || e.usage.PromptTokens <= 0 {
		return
	}
	t.compared = true
	if len(t.own) != e.usage.PromptTokens {
		x.observe(ctx, checkLength)
		return
	}
	x.observe(ctx, checkMatch)
}

// observe takes one piece of evidence on the model's tokenizer.
func (x *exchange) observe(ctx context.Context, result string) {
	base, _ := x.served()
	x.g.metrics.checkedPrompt(ctx, base, result)
	from, to := x.tokens.standing.Observe(result == checkMatch)
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
	Digest string // of its files
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

// levels lists the level of each model, for the gauge.
func (l *Live) levels() map[string]prompt.Level {
	out := make(map[string]prompt.Level, len(l.standings))
	for name, s := range l.standings {
		out[name] = s.Level()
	}
	return out
}
