package gateway

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
