package relay

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// route is an inference route, method and path, as in a ticket's op.
type route string

// The routes that are forwarded.
const (
	chatRoute       route = "POST /v1/chat/completions"
	completionRoute route = "POST /v1/completions"
	responsesRoute  route = "POST /v1/responses"
	embeddingsRoute route = "POST /v1/embeddings"
)

// probes builds, for each route, a request with this text that asks for the
// least output.
var probes = map[route]func(model, salt, text string) any{
	chatRoute: func(model, salt, text string) any {
		return map[string]any{
			"model": model, "cache_salt": salt, "max_tokens": 1,
			"messages": []any{map[string]any{"role": "user", "content": text}},
		}
	},
	completionRoute: func(model, salt, text string) any {
		return map[string]any{"model": model, "cache_salt": salt, "max_tokens": 1, "prompt": text}
	},
	responsesRoute: func(model, salt, text string) any {
		return map[string]any{"model": model, "cache_salt": salt, "max_output_tokens": 1, "store": false, "input": text}
	},
	embeddingsRoute: func(model, salt, text string) any {
		return map[string]any{"model": model, "cache_salt": salt, "input": text}
	},
}

// The routes that only say what a prompt becomes. They look at no cache, so they
// need no salt: and must not be given one, for vLLM sends it back.
const (
	chatRender       route = chatRoute + "/render"
	completionRender route = completionRoute + "/render"
	responsesRender  route = responsesRoute + "/render"
	tokenizeRoute    route = "POST /tokenize" // of vLLM and SGLang, with messages
)

// countings builds, for each of them, a small request.
var countings = map[route]func(model, text string) any{
	chatRender:       func(model, text string) any { return probes[chatRoute](model, "", text) },
	completionRender: func(model, text string) any { return probes[completionRoute](model, "", text) },
	responsesRender:  func(model, text string) any { return probes[responsesRoute](model, "", text) },
	tokenizeRoute: func(model, text string) any {
		return map[string]any{"model": model, "messages": []any{map[string]any{"role": "user", "content": text}}}
	},
}

// counts reports whether the route only says what a prompt becomes.
func (r route) counts() bool { return countings[r] != nil }

// known reports whether the route may be forwarded at all.
func (r route) known() bool { return probes[r] != nil || r.counts() }

// serves reports whether the engine answers on a route that counts, with token
// ids. Engines of other versions do not have it, or take no messages there.
func serves(ctx context.Context, e *engine, in *info, r route) error {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	body, err := json.Marshal(withoutSalt(countings[r](in.models[0], "Is anybody there?")))
	if err != nil {
		return fmt.Errorf("build question: %w", err)
	}
	reply, err := e.call(ctx, http.MethodPost, r.path(), body)
	if err != nil {
		return err
	}
	if r == completionRender {
		var list []rendered
		if json.Unmarshal(reply, &list) != nil || len(list) != 1 || len(list[0].TokenIDs) == 0 {
			return errNoIDs
		}
		return nil
	}
	var one rendered
	if json.Unmarshal(reply, &one) != nil || len(one.TokenIDs)+len(one.Tokens) == 0 {
		return errNoIDs
	}
	return nil
}

var errNoIDs = errors.New("the answer has no token ids")

type rendered struct {
	TokenIDs []uint32 `json:"token_ids"`
	Tokens   []uint32 `json:"tokens"`
}

// withoutSalt takes the salt out of a probe.
func withoutSalt(body any) any {
	if m, ok := body.(map[string]any); ok {
		delete(m, "cache_salt")
	}
	return body
}

// path is the route's path.
func (r route) path() string {
	_, path, _ := strings.Cut(string(r), " ")
	return path
}

// Why a route's isolation is not proven.
var (
	errNotIsolated = errors.New("another domain's prompt was a cache hit: the engine ignores the salt here")
	errNoHit       = errors.New("the same domain's prompt was no cache hit, so nothing is shown")
	errNoReport    = errors.New("the engine reports no cached_tokens, so nothing can be shown (vLLM: --enable-prompt-tokens-details)")
	errShort       = errors.New("the prompt was too short for two blocks")
)

const (
	probeTries   = 3
	probeTimeout = 60 * time.Second
	// probeBlock is the assumed block size where the engine tells none.
	probeBlock = 64
)

// probe shows that the engine keeps two domains' caches apart on a route: the
// same fresh prompt in domain a, then in b (no hit), then in a again (a hit,
// or the lack of the former would mean nothing). The domains are new each time
// and reserved: the salter does not know their salts, so their blocks are
// reported to nobody. Where the engine has ranks and chooses among them by
// itself, a prompt may miss because it came to another rank: it is then sent so
// often that all have it, and in several other domains.
func probe(ctx context.Context, e *engine, s *salter, in *info, r route) error {
	var err error
	for range probeTries { // other work may have evicted the prompt meanwhile
		if err = probeOnce(ctx, e, s, in, r); err == nil || !errors.Is(err, errNoHit) {
			return err
		}
	}
	return err
}

func probeOnce(ctx context.Context, e *engine, s *salter, in *info, r route) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	model, nonce := in.models[0], rand.Text()
	a := s.secret("probe/a/"+nonce, model)
	block := in.blockSize
	if block == 0 {
		block = probeBlock
	}
	text := nonsense(8 * block)
	first, err := ask(ctx, e, r, model, a, text)
	if err != nil {
		return err
	}
	if first.prompt < 2*block+1 {
		return fmt.Errorf("%w: %d tokens, blocks of %d", errShort, first.prompt, block)
	}
	if first.cached > 0 {
		return errNotIsolated
	}
	repeats := e.cfg.probeRepeats()
	for range repeats - 1 { // every rank shall have the prompt
		if _, err := ask(ctx, e, r, model, a, text); err != nil {
			return err
		}
	}
	for k := range min(repeats, 3) {
		other, err := ask(ctx, e, r, model, s.secret(fmt.Sprintf("probe/b%d/%s", k, nonce), model), text)
		if err != nil {
			return err
		}
		if other.cached > 0 {
			return errNotIsolated
		}
	}
	return control(ctx, e, r, model, a, text, block)
}

// control asks for the prompt in its own domain again, which must be a hit.
func control(ctx context.Context, e *engine, r route, model, salt, text string, block int) error {
	for range e.cfg.probeRepeats() {
		again, err := ask(ctx, e, r, model, salt, text)
		switch {
		case err != nil:
			return err
		case !again.reported && e.cfg.probeRepeats() == 1:
			return errNoReport
		case again.cached >= block:
			return nil
		}
	}
	return errNoHit
}

// probeRepeats is how often a prompt is sent so that whichever rank gets the
// next request almost surely has seen it.
func (e *Engine) probeRepeats() int {
	if e.ranks() == 1 || e.addressable() {
		return 1
	}
	return 4 * e.ranks()
}

// nonsense is random text of about n characters that no cache has seen.
func nonsense(n int) string {
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(strings.ToLower(rand.Text()[:5]))
		b.WriteByte(' ')
	}
	return b.String()
}

// usage is what an answer says of its prompt. vLLM leaves out cached_tokens
// where it is 0, so its absence shows nothing by itself.
type usage struct {
	prompt, cached int
	reported       bool
}

// ask sends one probe.
func ask(ctx context.Context, e *engine, r route, model, salt, text string) (usage, error) {
	body, err := json.Marshal(probes[r](model, salt, text))
	if err != nil {
		return usage{}, fmt.Errorf("build probe: %w", err)
	}
	reply, err := e.call(ctx, http.MethodPost, r.path(), body)
	if err != nil {
		return usage{}, err
	}
	var answer struct {
		Usage struct {
			PromptTokens  int      `json:"prompt_tokens"`
			PromptDetails *details `json:"prompt_tokens_details"`
			InputTokens   int      `json:"input_tokens"`
			InputDetails  *details `json:"input_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(reply, &answer); err != nil {
		return usage{}, fmt.Errorf("probe answer: %w", err)
	}
	u := usage{prompt: max(answer.Usage.PromptTokens, answer.Usage.InputTokens)}
	for _, d := range []*details{answer.Usage.PromptDetails, answer.Usage.InputDetails} {
		if d != nil && d.CachedTokens != nil {
			u.cached, u.reported = max(u.cached, *d.CachedTokens), true
		}
	}
	return u, nil
}

type details struct {
	CachedTokens *int `json:"cached_tokens"`
}
