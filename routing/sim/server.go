package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
)

const maxBody = 64 << 20

// routes is the surface of vLLM that the rest of the system uses, with the
// administrative route that a relay must never expose.
func (e *Engine) routes() http.Handler {
	r := chi.NewRouter()
	r.Get("/health", func(http.ResponseWriter, *http.Request) {})
	r.Get("/metrics", e.metrics)
	r.Get("/v1/models", e.models)
	r.Post("/v1/chat/completions", e.generate)
	r.Post("/v1/completions", e.generate)
	r.Post(responsesPath, e.generate)
	r.Post("/v1/embeddings", e.embed)
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", responsesPath} {
		r.Post(path+renderSuffix, e.render)
	}
	r.Post(tokenizePath, e.tokenize)
	r.Post("/reset_prefix_cache", e.reset)
	return r
}

func (e *Engine) models(w http.ResponseWriter, _ *http.Request) {
	list := []any{map[string]any{
		"id": e.cfg.Model, "object": "model", "created": 1700000000, "owned_by": "sim", "max_model_len": e.cfg.MaxModelLen,
	}}
	for _, name := range e.cfg.Adapters {
		list = append(list, map[string]any{"id": name, "object": "model", "created": 1700000000, "owned_by": "sim", "parent": e.cfg.Model})
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

// serves says whether a request's model is here, and by which adapter.
func (e *Engine) serves(name string) (adapter string, ok bool) {
	if slices.Contains(e.cfg.Adapters, name) {
		return name, true
	}
	return "", name == e.cfg.Model
}

func (e *Engine) reset(w http.ResponseWriter, r *http.Request) {
	cleared := true
	for _, rank := range e.ranks {
		done := false
		rank.do(r.Context(), func(s *scheduler) { done = s.cache.clear() })
		cleared = cleared && done
	}
	if !cleared {
		writeError(w, http.StatusConflict, "cache is in use")
	}
}

func (e *Engine) metrics(w http.ResponseWriter, r *http.Request) {
	var b strings.Builder
	for _, rank := range e.ranks {
		rank.do(r.Context(), func(s *scheduler) { rank.metrics(&b, s) })
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = io.WriteString(w, b.String()) // a scraper that left needs no answer
}

// metrics writes what vLLM says of one of its engines.
func (r *rank) metrics(b *strings.Builder, s *scheduler) {
	label := fmt.Sprintf(`{engine="%d",model_name=%q}`, r.number, r.cfg.Model)
	gauge := func(kind, name string, v any) {
		fmt.Fprintf(b, "# TYPE vllm:%s %s\nvllm:%s%s %v\n", name, kind, name, label, v)
	}
	fmt.Fprintf(b, "# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"%d\",enable_prefix_caching=\"True\",engine=\"%d\",num_gpu_blocks=\"%d\"} 1.0\n",
		r.cfg.BlockSize, r.number, r.cfg.Blocks)
	gauge("gauge", "num_requests_running", float64(len(s.running)))
	gauge("gauge", "num_requests_waiting", float64(len(s.waiting)))
	gauge("gauge", "kv_cache_usage_perc", float64(s.cache.pool.Len()-s.cache.pool.Idle())/float64(s.cache.pool.Len()))
	gauge("counter", "prefix_cache_queries_total", s.seenTokens)
	gauge("counter", "prefix_cache_hits_total", s.hitTokens)
	gauge("counter", "prompt_tokens_total", s.prompts)
	gauge("counter", "generation_tokens_total", s.generated)
	gauge("counter", "num_preemptions_total", s.preemptions)
}

// request is a decoded request and what will be said to it.
type request struct {
	chatRequest
	chat    bool
	items   bool // the answer is one of items: that of /v1/responses
	prompt  []uint32
	call    *toolCall
	phrases int // of an answer, one more for every other prompt
	said    string
	plan    []uint32
	limit   int
	salt    string
	adapter string
	rank    *rank // whose scheduler gets it
}

func (e *Engine) generate(w http.ResponseWriter, r *http.Request) {
	body, ok := readWhole(w, r)
	if !ok {
		return
	}
	req, err := e.read(r.Context(), r.URL.Path, body)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	var served bool
	if req.adapter, served = e.serves(req.Model); !served {
		writeError(w, http.StatusNotFound, fmt.Sprintf("The model `%s` does not exist.", req.Model))
		return
	}
	if req.rank, err = e.rankOf(r); err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	seq, next, stop := req.begin(r.Context())
	if seq == nil {
		return
	}
	defer stop()
	switch {
	case req.items:
		e.respond(w, req, seq, next)
	case req.Stream:
		e.stream(w, req, seq, next)
	default:
		e.whole(w, req, seq, next)
	}
}

// begin hands a request to the scheduler. next returns what it makes, token by
// token; stop says that nobody wants more. The sequence is nil if the caller has
// gone.
func (r *request) begin(ctx context.Context) (seq *sequence, next func() (emission, error), stop func()) {
	tokens := make(chan emission, len(r.plan)+1) // the scheduler never waits for a reader
	seq = &sequence{tokens: slices.Clone(r.prompt), prompt: len(r.prompt), plan: r.plan, limit: r.limit, chain: chain{salt: r.salt, adapter: r.adapter}}
	seq.emit = func(token uint32, last string) { tokens <- emission{token: token, last: last} }
	if !r.rank.do(ctx, func(s *scheduler) { s.waiting = append(s.waiting, seq) }) {
		return nil, nil, nil
	}
	r.rank.requests.Add(1)
	next = func() (emission, error) {
		select {
		case em := <-tokens:
			return em, nil
		case <-ctx.Done():
			return emission{}, context.Cause(ctx)
		}
	}
	return seq, next, func() {
		r.rank.requests.Add(-1)
		r.rank.do(context.WithoutCancel(ctx), func(*scheduler) { seq.stopped = true })
	}
}

// read decodes a body and plans the answer. Fields it does not know are
// ignored, as vLLM ignores them.
func (e *Engine) read(ctx context.Context, path string, body []byte) (*request, error) {
	req := &request{chat: path == "/v1/chat/completions", phrases: e.cfg.Sentences}
	if path == responsesPath {
		var err error
		if body, err = chatFromItems(body); err != nil {
			return nil, err
		}
		req.chat, req.items = true, true
	}
	if err := json.Unmarshal(body, &req.chatRequest); err != nil {
		return nil, fmt.Errorf("invalid body: %w", err)
	}
	if req.N != nil && *req.N != 1 {
		return nil, errors.New("only n=1 is supported")
	}
	if !slices.Contains(e.cfg.SaltBlind, path) {
		req.salt = req.CacheSalt
	}
	ask := e.cfg.Prompt.Completion
	if req.chat {
		ask = e.cfg.Prompt.Chat
	}
	p, err := ask(ctx, body)
	if err != nil {
		return nil, err
	}
	req.prompt = p.IDs
	if err := req.answer(); err != nil {
		return nil, err
	}
	req.plan = append(e.cfg.Prompt.Encode(req.said, true), e.end)
	req.limit = len(req.plan)
	for _, limit := range []*int{req.MaxTokens, req.MaxCompletionTokens} {
		if limit != nil {
			req.limit = min(req.limit, max(*limit, 1))
		}
	}
	if len(req.prompt) == 0 || len(req.prompt)+req.limit > e.cfg.MaxModelLen {
		return nil, fmt.Errorf("this model's maximum context length is %d tokens, but %d were requested", e.cfg.MaxModelLen, len(req.prompt)+req.limit)
	}
	return req, nil
}

// answer decides between calling a tool and speaking.
func (r *request) answer() error {
	if r.wantsCall() {
		t := r.Tools[0]
		for _, other := range r.Tools {
			if name := r.forced(); name != "" && other.Function.Name == name {
				t = other
			}
		}
		call, err := callFor(t)
		if err != nil {
			return err
		}
		r.call, r.said = &call, call.text()
		return nil
	}
	r.said = sentences(r.prompt, r.phrases+len(r.prompt)%2)
	return nil
}

func (r *request) wantsCall() bool {
	if !r.chat || len(r.Tools) == 0 || string(r.ToolChoice) == `"none"` || len(r.Messages) == 0 {
		return false
	}
	return r.Messages[len(r.Messages)-1].Role == "user"
}

// forced is the function that tool_choice names, if it names one.
func (r *request) forced() string {
	var choice struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	if json.Unmarshal(r.ToolChoice, &choice) != nil {
		return "" // a word such as auto
	}
	return choice.Function.Name
}

func (r *request) usage(seq *sequence, completion int) *usage {
	u := &usage{PromptTokens: seq.prompt, CompletionTokens: completion, TotalTokens: seq.prompt + completion}
	u.Details.CachedTokens = seq.cached
	return u
}

func (r *request) reply() completion {
	c := completion{ID: "cmpl-" + uuid.NewString(), Object: "text_completion", Created: time.Now().Unix(), Model: r.Model}
	if r.chat {
		c.ID, c.Object = "chat"+c.ID, "chat.completion"
	}
	return c
}

func (e *Engine) whole(w http.ResponseWriter, req *request, seq *sequence, next func() (emission, error)) {
	var ids []uint32
	var finish string
	for finish == "" {
		em, err := next()
		if err != nil {
			return // the caller has gone
		}
		ids, finish = append(ids, em.token), em.last
	}
	text := e.cfg.Prompt.Decode(e.spoken(ids))
	c := req.reply()
	ch := choice{Finish: &finish}
	switch {
	case !req.chat:
		ch.Text = &text
	case req.call != nil && finish == "stop":
		finish = "tool_calls"
		ch.Message = &answerMessage{Role: "assistant", ToolCalls: []callJSON{req.callJSON(false)}}
	default:
		ch.Message = &answerMessage{Role: "assistant", Content: &text}
	}
	c.Choices, c.Usage = []choice{ch}, req.usage(seq, len(ids))
	writeJSON(w, http.StatusOK, c)
}

// spoken drops the end token, which is generated and counted but not shown.
func (e *Engine) spoken(ids []uint32) []uint32 {
	if n := len(ids); n > 0 && ids[n-1] == e.end {
		return ids[:n-1]
	}
	return ids
}

func (r *request) callJSON(stream bool) callJSON {
	var c callJSON
	c.ID, c.Type = "call_"+uuid.NewString(), "function"
	c.Function.Name = r.call.Name
	if stream {
		zero := 0
		c.Index = &zero
		return c
	}
	c.Function.Arguments = r.call.Arguments
	return c
}

// stream sends each token's text as it is made. A tool call is recognised while
// it is generated, as a tool parser would, and sent when its name is known.
func (e *Engine) stream(w http.ResponseWriter, req *request, seq *sequence, next func() (emission, error)) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	s := &streamer{w: w, flush: http.NewResponseController(w), base: req.reply()}
	if req.chat {
		s.base.Object = "chat.completion.chunk"
		empty := ""
		s.chunk(&answerMessage{Role: "assistant", Content: &empty}, nil)
	}
	sent := 0
	count, finish, err := e.speak(next, func(text, finish string) error {
		switch {
		case req.call != nil:
			sent += s.call(req, sent, finish)
		case req.chat && text != "":
			s.chunk(&answerMessage{Content: &text}, nil)
		case text != "":
			s.text(text, nil)
		}
		return s.err
	})
	if err != nil {
		return // the caller has gone
	}
	if req.call != nil && finish == "stop" {
		finish = "tool_calls"
	}
	if req.chat {
		s.chunk(&answerMessage{}, &finish)
	} else {
		s.text("", &finish)
	}
	if req.StreamOptions.IncludeUsage {
		c := s.base
		c.Choices, c.Usage = []choice{}, req.usage(seq, count)
		s.send(c)
	}
	s.raw("data: [DONE]\n\n")
}

// speak passes each piece of text on as its tokens are made, whole characters
// only, and returns how many tokens there were and why they ended.
func (e *Engine) speak(next func() (emission, error), piece func(text, finish string) error) (count int, finish string, err error) {
	var pending []uint32
	for finish == "" {
		em, err := next()
		if err != nil {
			return count, "", err
		}
		count, finish = count+1, em.last
		if em.token != e.end {
			pending = append(pending, em.token)
		}
		text := e.cfg.Prompt.Decode(pending)
		if !utf8.ValidString(text) && finish == "" {
			continue // half a character: wait for the rest
		}
		pending = pending[:0]
		if err := piece(text, finish); err != nil {
			return count, "", err
		}
	}
	return count, finish, nil
}

// streamer writes server-sent events; the first error ends it.
type streamer struct {
	w     http.ResponseWriter
	flush *http.ResponseController
	base  completion
	err   error
}

func (s *streamer) chunk(delta *answerMessage, finish *string) {
	c := s.base
	c.Choices = []choice{{Delta: delta, Finish: finish}}
	s.send(c)
}

func (s *streamer) text(text string, finish *string) {
	c := s.base
	c.Choices = []choice{{Text: &text, Finish: finish}}
	s.send(c)
}

// call sends the next part of a tool call: its head, then its arguments in
// pieces, all that is left at the end.
func (s *streamer) call(req *request, sent int, finish string) int {
	if sent == 0 {
		s.chunk(&answerMessage{ToolCalls: []callJSON{req.callJSON(true)}}, nil)
		return 1
	}
	from := sent - 1
	zero := 0
	part := callJSON{Index: &zero}
	part.Function.Arguments = req.call.next(&from, finish)
	if part.Function.Arguments != "" {
		s.chunk(&answerMessage{ToolCalls: []callJSON{part}}, nil)
	}
	return from - sent + 1
}

// next is the next piece of the arguments after the first sent bytes, which it
// counts; at the end all that is left.
func (c *toolCall) next(sent *int, finish string) string {
	rest := c.Arguments[*sent:]
	n := min(8, len(rest))
	if finish == "stop" {
		n = len(rest)
	}
	for !utf8.ValidString(rest[:n]) {
		n++
	}
	*sent += n
	return rest[:n]
}

func (s *streamer) send(c completion) {
	b, err := json.Marshal(c)
	if err != nil {
		s.err = err
		return
	}
	s.raw("data: " + string(b) + "\n\n")
}

func (s *streamer) raw(text string) {
	if s.err != nil {
		return
	}
	if _, s.err = io.WriteString(s.w, text); s.err == nil {
		s.err = s.flush.Flush()
	}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the caller may have gone; there is nobody to tell
}

func writeError(w http.ResponseWriter, status int, message string) {
	var e apiError
	e.Error.Message, e.Error.Type, e.Error.Code = message, "BadRequestError", status
	writeJSON(w, status, e)
}
