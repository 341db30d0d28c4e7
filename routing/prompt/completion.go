package prompt

import (
	"context"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// completionBody is what of a /v1/completions body has a bearing on the prompt.
type completionBody struct {
	Prompt   jsontext.Value `json:"prompt"`
	Suffix   jsontext.Value `json:"suffix"`
	Embeds   jsontext.Value `json:"prompt_embeds"`
	Truncate jsontext.Value `json:"truncate_prompt_tokens"`

	// AddSpecialTokens is true if it is not there.
	AddSpecialTokens *bool `json:"add_special_tokens"`
}

// completionTurn is how many ids of a completion's prompt stand for its first
// turn.
const completionTurn = 256

// Completion is the prompt of a /v1/completions body: a text, or a list of
// token ids. Several prompts in one body are ErrUnsupported. Errors are those
// of Chat.
func (m *Model) Completion(ctx context.Context, body []byte) (Prompt, error) {
	return m.complete(ctx, body, m.prompt)
}

func (m *Model) complete(ctx context.Context, body []byte, encode encoding) (Prompt, error) {
	var b completionBody
	if err := json.Unmarshal(body, &b); err != nil {
		return Prompt{}, fmt.Errorf("read completion body: %w", err)
	}
	if isSet(b.Suffix) || isSet(b.Embeds) || isSet(b.Truncate) {
		return Prompt{}, unsupported("suffix, prompt_embeds or truncate_prompt_tokens")
	}
	p, err := m.completion(ctx, b.Prompt, encode, b.AddSpecialTokens == nil || *b.AddSpecialTokens)
	p.FirstUserTurn = p.IDs[:min(len(p.IDs), completionTurn)]
	return p, err
}

func (m *Model) completion(ctx context.Context, raw jsontext.Value, encode encoding, around bool) (Prompt, error) {
	var text string
	if raw.Kind() == '"' {
		if err := json.Unmarshal(raw, &text); err != nil {
			return Prompt{}, fmt.Errorf("read prompt: %w", err)
		}
		return encode(ctx, text, "", around)
	}
	var texts []string
	if err := json.Unmarshal(raw, &texts); err == nil && len(texts) == 1 {
		return encode(ctx, texts[0], "", around)
	}
	var ids []uint32
	if err := json.Unmarshal(raw, &ids); err != nil || len(ids) == 0 {
		return Prompt{}, unsupported("prompt is neither one text nor a list of token ids")
	}
	for _, id := range ids {
		if int(id) >= m.VocabSize() {
			return Prompt{}, unsupported("token id %d is not in the vocabulary", id)
		}
	}
	return Prompt{Text: m.Decode(ids), IDs: ids}, nil
}
