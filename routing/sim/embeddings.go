package sim

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"net/http"
	"slices"
)

type embeddingsRequest struct {
	Model      string          `json:"model"`
	Input      json.RawMessage `json:"input"`
	Encoding   string          `json:"encoding_format"`
	Dimensions *int            `json:"dimensions"`
	CacheSalt  string          `json:"cache_salt"`
}

type embedding struct {
	Object string `json:"object"`
	Index  int    `json:"index"`
	Vector any    `json:"embedding"` // numbers, or base64 of little-endian float32
}

// embed answers /v1/embeddings. Each text is computed as a prompt is, so that it
// uses the cache and waits its turn; its vector follows from its tokens.
func (e *Engine) embed(w http.ResponseWriter, r *http.Request) {
	body, ok := readWhole(w, r)
	if !ok {
		return
	}
	var req embeddingsRequest
	if err := json.Unmarshal(body, &req); err != nil {
		writeError(w, http.StatusBadRequest, "invalid body")
		return
	}
	adapter, served := e.serves(req.Model)
	if !served {
		writeError(w, http.StatusNotFound, fmt.Sprintf("The model `%s` does not exist.", req.Model))
		return
	}
	salt := req.CacheSalt
	if slices.Contains(e.cfg.SaltBlind, r.URL.Path) {
		salt = ""
	}
	rank, err := e.rankOf(r)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	texts, err := req.texts()
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	data, u := make([]embedding, len(texts)), usage{}
	for i, text := range texts {
		prompt := e.cfg.Prompt.Encode(text, true)
		if len(prompt) == 0 || len(prompt) >= e.cfg.MaxModelLen {
			writeError(w, http.StatusBadRequest, fmt.Sprintf("input %d has %d tokens", i, len(prompt)))
			return
		}
		cached, err := e.prefill(r.Context(), &request{prompt: prompt, salt: salt, adapter: adapter, rank: rank})
		if err != nil {
			return // the caller has gone
		}
		data[i] = embedding{Object: "embedding", Index: i, Vector: req.vector(prompt)}
		u.PromptTokens += len(prompt)
		u.Details.CachedTokens += cached
	}
	u.TotalTokens = u.PromptTokens
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": data, "model": req.Model, "usage": u})
}

func (r *embeddingsRequest) texts() ([]string, error) {
	var text string
	if json.Unmarshal(r.Input, &text) == nil {
		return []string{text}, nil
	}
	var texts []string
	if json.Unmarshal(r.Input, &texts) != nil || len(texts) == 0 {
		return nil, errors.New("input must be a text or a list of texts")
	}
	return texts, nil
}

// prefill computes a prompt and nothing more, and returns how much of it was
// cached. The scheduler has no sequences without output; this one ends with its
// first token.
func (e *Engine) prefill(ctx context.Context, req *request) (int, error) {
	req.plan, req.limit = []uint32{e.end}, 1
	seq, next, stop := req.begin(ctx)
	if seq == nil {
		return 0, context.Cause(ctx)
	}
	defer stop()
	if _, err := next(); err != nil {
		return 0, err
	}
	return seq.cached, nil
}

const defaultDimensions = 64

// vector is of unit length.
func (r *embeddingsRequest) vector(tokens []uint32) any {
	v := make([]float32, defaultDimensions)
	if r.Dimensions != nil && *r.Dimensions > 0 {
		v = make([]float32, min(*r.Dimensions, 4096))
	}
	h := fnv.New64a()
	for _, t := range tokens {
		var b [4]byte
		binary.LittleEndian.PutUint32(b[:], t)
		_, _ = h.Write(b[:]) // a hash never fails
	}
	x, sum := h.Sum64(), 0.0
	for i := range v {
		x = x*6364136223846793005 + 1442695040888963407
		v[i] = float32(int32(x>>32)) / math.MaxInt32
		sum += float64(v[i]) * float64(v[i])
	}
	for i := range v {
		v[i] /= float32(math.Sqrt(sum))
	}
	if r.Encoding != "base64" {
		return v
	}
	raw := make([]byte, 0, 4*len(v))
	for _, f := range v {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(f))
	}
	return base64.StdEncoding.EncodeToString(raw)
}
