package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/google/uuid"
)

// The routes of vLLM that say what a prompt becomes and compute nothing
// (vllm/entrypoints/serve/render and tokenize). None of them looks at the cache.
const (
	renderSuffix = "/render" // after the path of a route that generates
	tokenizePath = "/tokenize"
)

// generateRequest is the answer of a render route: what vLLM would hand to its
// core. Fields without a meaning here are null, as vLLM has them.
type generateRequest struct {
	RequestID      string         `json:"request_id"`
	TokenIDs       []uint32       `json:"token_ids"`
	Features       any            `json:"features"`
	SamplingParams map[string]any `json:"sampling_params"`
	Model          string         `json:"model"`
	Stream         bool           `json:"stream"`
	StreamOptions  any            `json:"stream_options"`
	CacheSalt      *string        `json:"cache_salt"`
	Priority       int            `json:"priority"`
	KVTransfer     any            `json:"kv_transfer_params"`
}

// render answers a render route with the prompt that the route it belongs to
// would compute. That of completions has a list, one entry for each prompt.
func (e *Engine) render(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimSuffix(r.URL.Path, renderSuffix)
	body, ok := readWhole(w, r)
	if !ok {
		return
	}
	req, err := e.read(r.Context(), path, body)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	if _, served := e.serves(req.Model); !served {
		writeError(w, http.StatusNotFound, fmt.Sprintf("The model `%s` does not exist.", req.Model))
		return
	}
	out := generateRequest{
		RequestID: uuid.NewString(), TokenIDs: req.prompt, Model: req.Model, Stream: req.Stream,
		SamplingParams: map[string]any{"max_tokens": e.cfg.MaxModelLen - len(req.prompt), "temperature": 1.0},
	}
	if req.CacheSalt != "" {
		out.CacheSalt = &req.CacheSalt
	}
	if path == "/v1/completions" {
		writeJSON(w, http.StatusOK, []generateRequest{out})
		return
	}
	writeJSON(w, http.StatusOK, out)
}

// tokenizeAnswer is that of /tokenize.
type tokenizeAnswer struct {
	Count       int      `json:"count"`
	MaxModelLen int      `json:"max_model_len"`
	Tokens      []uint32 `json:"tokens"`
	TokenStrs   []string `json:"token_strs"`
}

// tokenize answers for a text or for messages. Of the fields of a chat it takes
// those that vLLM's TokenizeChatRequest has.
func (e *Engine) tokenize(w http.ResponseWriter, r *http.Request) {
	body, ok := readWhole(w, r)
	if !ok {
		return
	}
	ids, err := e.tokenIDs(r.Context(), body)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	writeJSON(w, http.StatusOK, tokenizeAnswer{Count: len(ids), MaxModelLen: e.cfg.MaxModelLen, Tokens: ids})
}

func (e *Engine) tokenIDs(ctx context.Context, body []byte) ([]uint32, error) {
	var in struct {
		Prompt   *string         `json:"prompt"`
		Messages json.RawMessage `json:"messages"`

		Documents       json.RawMessage `json:"documents"`
		ReasoningEffort json.RawMessage `json:"reasoning_effort"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, errors.New("invalid body")
	}
	ask := e.cfg.Prompt.Chat
	switch {
	case in.Messages == nil && in.Prompt != nil:
		ask = e.cfg.Prompt.Completion
	case in.Messages == nil:
		return nil, errors.New("neither prompt nor messages")
	case in.Documents != nil || in.ReasoningEffort != nil:
		// vLLM would leave them out of the prompt, with a warning.
		return nil, errors.New("documents and reasoning_effort are not fields of this route")
	}
	p, err := ask(ctx, body)
	if p.IDs == nil {
		p.IDs = []uint32{}
	}
	return p.IDs, err
}

func readWhole(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		writeError(w, http.StatusRequestEntityTooLarge, err.Error())
		return nil, false
	}
	return body, true
}
