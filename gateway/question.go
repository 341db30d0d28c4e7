package gateway

import (
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sallyport-ai/sallyport/gateway/wire"
)

// question is one way to ask an engine what a prompt becomes.
type question struct {
	path string
	body []byte
	read func([]byte) (countAnswer, error)
}

// operation is its route, as relays and tickets name it.
func (q question) operation() string { return http.MethodPost + " " + q.path }

const (
	renderSuffix = "/render" // after the path of the engine's route
	tokenizePath = "/tokenize"
	// maxCountAnswer bounds an answer: half a million ids, as text.
	maxCountAnswer = 4 << 20
)

// questions are the ways to ask for this request, the most exact first: the
// engine's render route takes the very bytes that would be sent to be answered.
func (x *exchange) questions() []question {
	if x.request.Prompts > 1 {
		return nil // each meets the window by itself
	}
	render := question{path: x.op.Engine + renderSuffix, body: x.upstream, read: readRendered}
	switch x.op.Engine {
	case wire.ChatCompletions.Engine:
	case wire.Completions.Engine:
		render.read = readRenderedList
	case wire.Responses.Engine:
		return []question{render}
	default:
		return nil
	}
	if body := TokenizeBody(x.upstream); body != nil {
		return []question{render, {path: tokenizePath, body: body, read: readTokenized}}
	}
	return []question{render}
}

// rendered is what of vLLM's GenerateRequest says what a prompt is.
type rendered struct {
	TokenIDs []uint32 `json:"token_ids"`
	Features *struct {
		Placeholders map[string][]struct {
			Offset int `json:"offset"`
			Length int `json:"length"`
		} `json:"mm_placeholders"`
	} `json:"features"`
}

// engineJSON is lenient about what is not ours to judge, strict about types.
var engineJSON = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

func readRendered(body []byte) (countAnswer, error) {
	var r rendered
	if json.Unmarshal(body, &r, engineJSON) != nil {
		return countAnswer{}, errCount // the cause may quote the answer
	}
	return r.answer()
}

func readRenderedList(body []byte) (countAnswer, error) {
	var list []rendered
	if json.Unmarshal(body, &list, engineJSON) != nil || len(list) != 1 {
		return countAnswer{}, errCount
	}
	return list[0].answer()
}

func readTokenized(body []byte) (countAnswer, error) {
	var r struct {
		Count  int      `json:"count"`
		Tokens []uint32 `json:"tokens"`
	}
	if json.Unmarshal(body, &r, engineJSON) != nil || len(r.Tokens) == 0 || r.Count != len(r.Tokens) {
		return countAnswer{}, errCount
	}
	return countAnswer{known: r.Tokens, count: len(r.Tokens)}, nil
}

// answer cuts the ids where media begin: what stands there is told apart in the
// engine's cache by more than its ids.
func (r *rendered) answer() (countAnswer, error) {
	if len(r.TokenIDs) == 0 {
		return countAnswer{}, errCount
	}
	known := len(r.TokenIDs)
	if r.Features != nil {
		for _, ranges := range r.Features.Placeholders {
			for _, p := range ranges {
				if p.Offset < 0 || p.Offset > len(r.TokenIDs) {
					return countAnswer{}, fmt.Errorf("%w: a placeholder outside the prompt", errCount)
				}
				known = min(known, p.Offset)
			}
		}
	}
	return countAnswer{known: r.TokenIDs[:known], count: len(r.TokenIDs)}, nil
}

// tokenizeFields are the members that /tokenize takes as the inference routes
// do. It does not know the others that have a bearing on the prompt, which are
// in tokenizeUnfit.
var (
	tokenizeFields = []string{
		"model", "messages", "prompt", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens", "chat_template_kwargs",
	}
	tokenizeUnfit = []string{
		"documents", "reasoning_effort", "truncate_prompt_tokens", "suffix", "prompt_embeds", "response_format",
	}
)

// TokenizeBody is what vLLM's and SGLang's /tokenize is asked for the prompt of a
// chat or completion body, or nil if it does not take all that matters.
func TokenizeBody(body []byte) []byte {
	var all map[string]jsontext.Value
	if json.Unmarshal(body, &all) != nil {
		return nil
	}
	for _, name := range tokenizeUnfit {
		if v, ok := all[name]; ok && v.Kind() != 'n' {
			return nil
		}
	}
	if p, ok := all["prompt"]; ok && p.Kind() != '"' {
		return nil
	}
	out := make(map[string]jsontext.Value, len(tokenizeFields))
	for _, name := range tokenizeFields {
		if v, ok := all[name]; ok {
			out[name] = v
		}
	}
	b, err := json.Marshal(out, json.Deterministic(true))
	if err != nil {
		return nil
	}
	return b
}
