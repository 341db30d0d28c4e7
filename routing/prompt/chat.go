package prompt

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sallyport-ai/sallyport/routing/prompt/jinja"
)

// chatBody is what of a /v1/chat/completions body has a bearing on the prompt.
type chatBody struct {
	Messages  jsontext.Value `json:"messages"`
	Tools     jsontext.Value `json:"tools"`
	Documents jsontext.Value `json:"documents"`

	AddGenerationPrompt  *bool `json:"add_generation_prompt"`
	ContinueFinalMessage bool  `json:"continue_final_message"`

	TemplateArgs    jsontext.Value `json:"chat_template_kwargs"`
	Template        jsontext.Value `json:"chat_template"`
	ReasoningEffort jsontext.Value `json:"reasoning_effort"`
	ToolChoice      jsontext.Value `json:"tool_choice"`
	ResponseFormat  jsontext.Value `json:"response_format"`
	Truncate        jsontext.Value `json:"truncate_prompt_tokens"`

	AddSpecialTokens bool `json:"add_special_tokens"`

	said []jinja.Value // instead of Messages, where it was made of another body
}

// maxSteps bounds a rendering to some hundred milliseconds.
const maxSteps = 5_000_000

// limits allows a template to copy each byte of the body some times, as they
// do when they put a message together from its parts.
func (m *Model) limits(body []byte) jinja.Limits {
	return jinja.Limits{Steps: maxSteps, Bytes: 4<<20 + 24*len(body), Now: m.now()}
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrUnsupported, fmt.Errorf(format, args...))
}

func isSet(v jsontext.Value) bool { return len(v) > 0 && v.Kind() != 'n' }

// Chat is the prompt of a /v1/chat/completions body. Its errors have
// ErrUnsupported in their chain, are that of ctx, or are about the JSON. Their
// text may quote the body: it is not for logs.
func (m *Model) Chat(ctx context.Context, body []byte) (Prompt, error) {
	return m.chat(ctx, body, m.prompt)
}

// encoding makes the prompt of a text and, by itself, the first user turn.
// With around, it adds what the model puts around a text.
type encoding func(ctx context.Context, text, turn string, around bool) (Prompt, error)

func (m *Model) chat(ctx context.Context, body []byte, encode encoding) (Prompt, error) {
	b, err := readChat(body)
	if err != nil {
		return Prompt{}, err
	}
	text, messages, err := m.render(ctx, b, m.limits(body))
	if err != nil {
		return Prompt{}, err
	}
	return encode(ctx, text, firstUserText(messages), b.AddSpecialTokens)
}

func readChat(body []byte) (*chatBody, error) {
	b := new(chatBody)
	if err := json.Unmarshal(body, b); err != nil {
		return nil, fmt.Errorf("read chat body: %w", err)
	}
	return b, nil
}

// render is the text of the prompt, and the messages as the engine normalizes
// them.
func (m *Model) render(ctx context.Context, b *chatBody, limits jinja.Limits) (string, *jinja.List, error) {
	if m.template == nil {
		return "", nil, unsupported("the model has no chat template")
	}
	if m.harmony() {
		return "", nil, unsupported("vLLM writes Harmony prompts without the template")
	}
	vars, messages, err := m.variables(b)
	if err != nil {
		return "", nil, err
	}
	text, err := m.template.Render(ctx, vars, limits)
	if err != nil {
		return "", nil, m.failed(ctx, "render", err)
	}
	if b.ContinueFinalMessage {
		text, err = continueFinal(text, messages)
	}
	return text, messages, err
}

// harmony reports whether the model speaks OpenAI's Harmony format.
func (m *Model) harmony() bool {
	_, start := m.tokenizer.Added("<|start|>")
	_, channel := m.tokenizer.Added("<|channel|>")
	return start && channel
}

// failed sorts errors: the context's is passed on, the rest is ErrUnsupported.
func (m *Model) failed(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return err
	}
	return fmt.Errorf("%s: %w: %w", what, ErrUnsupported, err)
}

// prompt is the encoding without memory.
func (m *Model) prompt(ctx context.Context, text, turn string, around bool) (Prompt, error) {
	p := Prompt{Text: text}
	ids := make([]uint32, 0, len(text)/3+8)
	prefix, suffix, err := m.wrapping(around)
	if err != nil {
		return Prompt{}, err
	}
	if p.IDs, err = m.tokenizer.AppendEncodeContext(ctx, append(ids, prefix...), text, true); err != nil {
		return Prompt{}, m.failed(ctx, "encode", err)
	}
	p.IDs = append(p.IDs, suffix...)
	if p.FirstUserTurn, err = m.tokenizer.AppendEncodeContext(ctx, nil, turn, true); err != nil {
		return Prompt{}, m.failed(ctx, "encode", err)
	}
	return p, nil
}

// wrapping is what goes around a text, if anything is to.
func (m *Model) wrapping(around bool) (prefix, suffix []uint32, err error) {
	if !around {
		return nil, nil, nil
	}
	if m.around != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrUnsupported, m.around)
	}
	prefix, suffix = m.tokenizer.Around()
	return prefix, suffix, nil
}

// ownVariables are set from the body's own fields, not chat_template_kwargs.
var ownVariables = map[string]bool{
	"messages": true, "conversation": true, "tools": true, "documents": true, "chat_template": true,
	"add_generation_prompt": true, "continue_final_message": true, "tokenize": true,
	// Functions of the template's environment.
	"range": true, "namespace": true, "raise_exception": true, "strftime_now": true, "dict": true, "lipsum": true, "cycler": true, "joiner": true,
}

// variables are what the template is rendered with, and the messages as the
// engine normalizes them.
func (m *Model) variables(b *chatBody) (*jinja.Dict, *jinja.List, error) {
	switch generate := b.AddGenerationPrompt == nil || *b.AddGenerationPrompt; {
	case isSet(b.Template):
		return nil, nil, unsupported("chat_template in the body")
	case isSet(b.Truncate):
		return nil, nil, unsupported("truncate_prompt_tokens")
	case isSet(b.ReasoningEffort) && m.template.Mentions("reasoning_effort"):
		return nil, nil, unsupported("reasoning_effort with a template that reads it")
	case isSet(b.ReasoningEffort) && m.template.Mentions("enable_thinking"):
		return nil, nil, unsupported("reasoning_effort, by which vLLM's versions do or do not set enable_thinking")
	case isSet(b.ToolChoice) && m.template.Mentions("tool_choice"), isSet(b.ResponseFormat) && m.template.Mentions("response_format"):
		return nil, nil, unsupported("tool_choice or response_format with a template that reads it")
	case generate && b.ContinueFinalMessage:
		return nil, nil, unsupported("add_generation_prompt and continue_final_message together")
	}
	messages, err := m.messages(b)
	if err != nil {
		return nil, nil, err
	}
	tools, err := toolList(b.Tools)
	if err != nil {
		return nil, nil, err
	}
	documents, err := value(b.Documents, "documents")
	if err != nil {
		return nil, nil, err
	}
	vars := &jinja.Dict{}
	for i := range m.special.Len() {
		vars.Set(m.special.At(i))
	}
	vars.Set("messages", messages)
	vars.Set("tools", tools)
	vars.Set("documents", documents)
	vars.Set("add_generation_prompt", b.AddGenerationPrompt == nil || *b.AddGenerationPrompt)
	for i := range m.defaults.Len() {
		vars.Set(m.defaults.At(i))
	}
	return vars, messages, templateArgs(vars, b.TemplateArgs)
}

// templateArgs makes variables of chat_template_kwargs.
func templateArgs(vars *jinja.Dict, raw jsontext.Value) error {
	v, err := value(raw, "chat_template_kwargs")
	if v == nil || err != nil {
		return err
	}
	args, ok := v.(*jinja.Dict)
	if !ok {
		return unsupported("chat_template_kwargs that is not an object")
	}
	for i := range args.Len() {
		name, v := args.At(i)
		if ownVariables[name] {
			return unsupported("%s in chat_template_kwargs", name)
		}
		vars.Set(name, v)
	}
	return nil
}

func value(raw jsontext.Value, what string) (jinja.Value, error) {
	if !isSet(raw) {
		return nil, nil
	}
	v, err := jinja.FromJSON(raw)
	if err != nil {
		return nil, unsupported("%s: %w", what, err)
	}
	return v, nil
}

// continueFinal ends the prompt where the content of the last message ends, as
// transformers does (apply_chat_template with continue_final_message).
func continueFinal(text string, messages *jinja.List) (string, error) {
	if messages.Len() == 0 {
		return "", unsupported("continue_final_message without messages")
	}
	last, _ := messages.At(messages.Len() - 1).(*jinja.Dict)
	content, err := lastText(last)
	if err != nil {
		return "", err
	}
	stripped := jinja.Strip(content, true, true)
	at := strings.LastIndex(text, stripped)
	if at < 0 {
		return "", unsupported("continue_final_message with a template that changes the last message")
	}
	if end := at + len(jinja.Strip(content, true, false)); end <= len(text) && text[at:end] == content {
		return text[:end], nil
	}
	return text[:at+len(stripped)], nil
}

func lastText(message *jinja.Dict) (string, error) {
	content, _ := message.Get("content")
	if parts, ok := content.(*jinja.List); ok && parts.Len() > 0 {
		part, _ := parts.At(parts.Len() - 1).(*jinja.Dict)
		content, _ = part.Get("text")
	}
	s, ok := content.(string)
	if !ok {
		return "", unsupported("continue_final_message without text in the last message")
	}
	return s, nil
}

// turnBytes is how much of the first user turn is looked at.
const turnBytes = 16 << 10

func firstUserText(messages *jinja.List) string {
	for i := range messages.Len() {
		message, _ := messages.At(i).(*jinja.Dict)
		if role, _ := message.Get("role"); role != "user" {
			continue
		}
		content, _ := message.Get("content")
		switch c := content.(type) {
		case string:
			return cutText(c)
		case *jinja.List:
			var b strings.Builder
			for j := range c.Len() {
				part, _ := c.At(j).(*jinja.Dict)
				text, _ := part.Get("text")
				s, _ := text.(string)
				b.WriteString(s)
			}
			return cutText(b.String())
		}
	}
	return ""
}

// cutText shortens s to turnBytes, not inside a character.
func cutText(s string) string {
	if len(s) <= turnBytes {
		return s
	}
	n := turnBytes
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
