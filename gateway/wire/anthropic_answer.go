package wire

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// message turns answers of chat into Anthropic's messages. What the engine said
// but this protocol cannot say is an error, never left out. One Answer owns it.
type message struct {
	model    string // as the client asked for it
	thinking bool   // the client wants to see reasoning

	stream messageStream
}

func readMessage(r *Request) reader { return &message{model: r.Model, thinking: r.thinking} }

// completion is what of a chat completion, whole or in chunks, has a
// counterpart.
type completion struct {
	ID      string `json:"id"`
	Choices []struct {
		Message      *spoken        `json:"message"`
		Delta        *spoken        `json:"delta"`
		FinishReason string         `json:"finish_reason"`
		StopReason   jsontext.Value `json:"stop_reason"` // vLLM: the stop string that was met, or a token
	} `json:"choices"`
}

type spoken struct {
	Content          string       `json:"content"`
	Refusal          string       `json:"refusal"`
	Reasoning        string       `json:"reasoning"`
	ReasoningContent string       `json:"reasoning_content"`
	ToolCalls        []spokenCall `json:"tool_calls"`
}

type spokenCall struct {
	Index    *int   `json:"index"`
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// thought is the reasoning, which engines name in two ways, some in both.
func (s *spoken) thought() string {
	if s.Reasoning != "" {
		return s.Reasoning
	}
	return s.ReasoningContent
}

// The parts of Anthropic's API that answers are written in.
type (
	anthropicMessage struct {
		ID           string         `json:"id"`
		Type         string         `json:"type"`
		Role         string         `json:"role"`
		Model        string         `json:"model"`
		Content      []any          `json:"content"`
		StopReason   *string        `json:"stop_reason"`
		StopSequence *string        `json:"stop_sequence"`
		Usage        anthropicUsage `json:"usage"`
	}
	anthropicUsage struct {
		InputTokens     int  `json:"input_tokens"`
		CacheReadTokens *int `json:"cache_read_input_tokens,omitzero"`
		OutputTokens    int  `json:"output_tokens"`
	}
	textBlock struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	thinkingBlock struct {
		Type      string `json:"type"`
		Thinking  string `json:"thinking"`
		Signature string `json:"signature"`
	}
	toolUseBlock struct {
		Type  string         `json:"type"`
		ID    string         `json:"id"`
		Name  string         `json:"name"`
		Input jsontext.Value `json:"input"`
	}
)

// read decodes a whole answer or one chunk and learns from it. The answer is
// nil where the engine reported an error.
func (m *message) read(a *Answer, body []byte) (*completion, error) {
	c, err := a.chunk(body)
	if err != nil {
		return nil, err
	}
	if a.learn(c); c.failed {
		return nil, nil
	}
	out := new(completion)
	if err := json.Unmarshal(body, out); err != nil {
		return nil, ErrAnswer // the cause would quote the answer
	}
	if len(out.Choices) > 1 {
		return nil, fmt.Errorf("%w: %d choices", ErrAnswer, len(out.Choices))
	}
	return out, nil
}

func (m *message) body(a *Answer, body []byte) ([]byte, error) {
	c, err := m.read(a, body)
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if c == nil {
		return nil, nil
	}
	if len(c.Choices) == 0 || c.Choices[0].Message == nil {
		return nil, fmt.Errorf("read answer: %w: no message", ErrAnswer)
	}
	choice := c.Choices[0]
	m.stream.id = c.ID
	out := m.empty(c.ID)
	if out.Content, err = m.content(choice.Message, choice.FinishReason == "length"); err != nil {
		return nil, fmt.Errorf("translate answer: %w", err)
	}
	reason, sequence, err := stopReason(choice.FinishReason, choice.StopReason, len(choice.Message.ToolCalls) > 0)
	if err != nil {
		return nil, err
	}
	out.StopReason, out.StopSequence = &reason, sequence
	out.Usage = a.anthropicUsage()
	return encode(out)
}

func (m *message) empty(id string) anthropicMessage {
	return anthropicMessage{ID: "msg_" + strings.TrimPrefix(id, "chatcmpl-"), Type: "message", Role: "assistant", Model: m.model, Content: []any{}}
}

// content are the blocks of a whole message. cut says that the engine ran out of
// tokens: then the last call may be half written, and is left out, as the stop
// reason tells.
func (m *message) content(s *spoken, cut bool) ([]any, error) {
	blocks := []any{}
	if t := s.thought(); t != "" && m.thinking {
		blocks = append(blocks, thinkingBlock{Type: "thinking", Thinking: t})
	}
	if text := s.Content + s.Refusal; text != "" {
		blocks = append(blocks, textBlock{Type: "text", Text: text})
	}
	for i, call := range s.ToolCalls {
		input, err := call.input()
		if err != nil {
			if cut && i == len(s.ToolCalls)-1 {
				break
			}
			return nil, err
		}
		blocks = append(blocks, toolUseBlock{Type: "tool_use", ID: m.callID(call.ID, i), Name: call.Function.Name, Input: input})
	}
	return blocks, nil
}

// callID is the id that an answer to the i-th call will name. Engines that give
// none get one that is unique in the conversation.
func (m *message) callID(id string, i int) string {
	if id != "" {
		return id
	}
	return "toolu_" + m.stream.id + "_" + strconv.Itoa(i)
}

// input are the arguments of a call, which must be an object.
func (c spokenCall) input() (jsontext.Value, error) {
	if c.Type != "" && c.Type != "function" {
		return nil, fmt.Errorf("%w: a call that is not of a function", ErrAnswer)
	}
	text := strings.TrimSpace(c.Function.Arguments)
	if text == "" {
		text = "{}"
	}
	v := jsontext.Value(text)
	if !v.IsValid() || v.Kind() != '{' {
		return nil, fmt.Errorf("%w: arguments that are not an object", ErrAnswer)
	}
	return v, nil
}

// stopReasons are the finish reasons of chat and what they are called here.
var stopReasons = map[string]string{
	"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "function_call": "tool_use", "content_filter": "refusal",
}

// stopReason translates why the engine stopped. Where a tool was forced engines
// say stop, although the message is a call.
func stopReason(finish string, met jsontext.Value, called bool) (reason string, sequence *string, err error) {
	reason, ok := stopReasons[finish]
	if !ok {
		return "", nil, fmt.Errorf("%w: no finish reason that is known", ErrAnswer)
	}
	if finish != "stop" {
		return reason, nil, nil
	}
	if called {
		return "tool_use", nil, nil
	}
	if met.Kind() == '"' {
		text := string(unquote(met))
		return "stop_sequence", &text, nil
	}
	return reason, nil, nil
}

// anthropicUsage counts cached tokens apart where they may be seen, and among
// the rest where not.
func (a *Answer) anthropicUsage() anthropicUsage {
	var u anthropicUsage
	if a.Usage == nil {
		return u
	}
	u.InputTokens, u.OutputTokens = a.Usage.PromptTokens, a.Usage.CompletionTokens
	if cached := a.Usage.CachedTokens; cached != nil && a.CachedTokens {
		u.CacheReadTokens = cached
		u.InputTokens = max(u.InputTokens-*cached, 0)
	}
	return u
}

func encode(v any) ([]byte, error) {
	out, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write message: %w", err)
	}
	return out, nil
}
