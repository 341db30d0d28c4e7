package prompt

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sallyport-ai/sallyport/routing/prompt/jinja"
)

// responseBody is what of a /v1/responses body has a bearing on the prompt.
type responseBody struct {
	Instructions *string        `json:"instructions"`
	Input        jsontext.Value `json:"input"`
	Tools        jsontext.Value `json:"tools"`
	ToolChoice   jsontext.Value `json:"tool_choice"`
	TemplateArgs jsontext.Value `json:"chat_template_kwargs"`
	Truncation   *string        `json:"truncation"`
	Previous     jsontext.Value `json:"previous_response_id"`
	Reasoning    struct {
		Effort jsontext.Value `json:"effort"`
	} `json:"reasoning"`
}

// Response is the prompt of a /v1/responses body: that of the chat that vLLM
// makes of it (vllm/entrypoints/openai/responses/utils.py,
// construct_input_messages). Tools are ErrUnsupported, since its versions print
// their members in different orders. Errors are those of Chat.
func (m *Model) Response(ctx context.Context, body []byte) (Prompt, error) {
	return m.respond(ctx, body, m.prompt)
}

// Response is [Model.Response] for a request of the cache domain.
func (y *Memory) Response(ctx context.Context, domain string, body []byte) (Prompt, error) {
	return y.model.respond(ctx, body, y.encoding(domain))
}

func (m *Model) respond(ctx context.Context, body []byte, encode encoding) (Prompt, error) {
	b, err := readResponse(body)
	if err != nil {
		return Prompt{}, err
	}
	text, messages, err := m.render(ctx, b, m.limits(body))
	if err != nil {
		return Prompt{}, err
	}
	return encode(ctx, text, firstUserText(messages), false)
}

// readResponse is the chat that has the same prompt.
func readResponse(body []byte) (*chatBody, error) {
	var b responseBody
	if err := json.Unmarshal(body, &b); err != nil {
		return nil, fmt.Errorf("read response body: %w", err)
	}
	switch {
	case !empty(b.Tools):
		return nil, unsupported("tools of a response")
	case !empty(b.TemplateArgs):
		return nil, unsupported("chat_template_kwargs, which vLLM's versions do or do not take for a response")
	case b.Truncation != nil && *b.Truncation != "disabled":
		return nil, unsupported("truncation")
	case isSet(b.Previous):
		return nil, unsupported("previous_response_id")
	}
	var c turns
	if b.Instructions != nil && *b.Instructions != "" {
		c.say("system", *b.Instructions)
	}
	open, err := c.input(b.Input)
	if err != nil {
		return nil, unsupported("input: %w", err)
	}
	generate := !open
	return &chatBody{
		said: c.messages, AddGenerationPrompt: &generate, ContinueFinalMessage: open, ReasoningEffort: b.Reasoning.Effort,
	}, nil
}

func empty(v jsontext.Value) bool {
	return !isSet(v) || string(v) == "[]" || string(v) == "{}"
}

// turns gathers messages. What an assistant says, calls and thinks may
// come as items of their own; it is one message as long as nobody else speaks.
type turns struct {
	messages []jinja.Value
	last     *jinja.Dict // the message that is being made, if it is the assistant's
}

func (c *turns) add(m *jinja.Dict) {
	c.messages, c.last = append(c.messages, m), nil
	if role, _ := m.Get("role"); role == "assistant" {
		c.last = m
	}
}

func (c *turns) say(role string, content jinja.Value) {
	m := &jinja.Dict{}
	m.Set("role", role)
	m.Set("content", content)
	c.add(m)
}

// assistant sets a member of the assistant's message, or begins another one if
// it has it.
func (c *turns) assistant(name string, v jinja.Value) {
	if c.last != nil {
		if old, _ := c.last.Get(name); old == nil {
			c.last.Set(name, v)
			return
		}
	}
	m := &jinja.Dict{}
	m.Set("role", "assistant")
	m.Set(name, v)
	c.add(m)
}

// input reads the input, a text or a list of items, and reports whether the last
// message is to be continued.
func (c *turns) input(raw jsontext.Value) (open bool, err error) {
	v, err := value(raw, "input")
	if err != nil {
		return false, err
	}
	switch v := v.(type) {
	case string:
		c.say("user", v)
		return false, nil
	case *jinja.List:
		for i := range v.Len() {
			it, ok := v.At(i).(*jinja.Dict)
			if !ok {
				return false, fmt.Errorf("item %d is not an object", i)
			}
			if err := c.item(it); err != nil {
				return false, fmt.Errorf("item %d: %w", i, err)
			}
			status, _ := it.Get("status")
			kind := word(it, "type")
			open = (status == "in_progress" || status == "incomplete") && (kind == "" || kind == "message" || kind == "reasoning")
		}
		return open, nil
	}
	return false, errors.New("neither a text nor a list of items")
}

func word(d *jinja.Dict, name string) string {
	v, _ := d.Get(name)
	s, _ := v.(string)
	return s
}

func (c *turns) item(it *jinja.Dict) error {
	switch kind := word(it, "type"); kind {
	case "", "message":
		return c.message(it)
	case "function_call":
		if word(it, "namespace") != "" {
			return errors.New("a call in a namespace")
		}
		c.call(it)
	case "function_call_output":
		content, err := itemParts(it, "output")
		if err != nil {
			return err
		}
		m := &jinja.Dict{}
		m.Set("role", "tool")
		m.Set("content", content)
		m.Set("tool_call_id", word(it, "call_id"))
		c.add(m)
	case "reasoning":
		return c.reasoning(it)
	default:
		return errors.New("an item of another type")
	}
	return nil
}

func (c *turns) message(it *jinja.Dict) error {
	content, err := itemParts(it, "content")
	if err != nil {
		return err
	}
	role := word(it, "role")
	if role != "assistant" {
		c.say(role, content)
		return nil
	}
	text, err := onlyText(content)
	if err != nil {
		return err
	}
	c.assistant("content", text)
	return nil
}

func (c *turns) call(it *jinja.Dict) {
	function, call := &jinja.Dict{}, &jinja.Dict{}
	for _, name := range []string{"name", "arguments"} {
		v, _ := it.Get(name)
		function.Set(name, v)
	}
	call.Set("id", word(it, "call_id"))
	call.Set("function", function)
	call.Set("type", "function")
	if c.last != nil {
		if calls, _ := c.last.Get("tool_calls"); calls != nil {
			list := calls.(*jinja.List) // only set here
			all := make([]jinja.Value, 0, list.Len()+1)
			for i := range list.Len() {
				all = append(all, list.At(i))
			}
			c.last.Set("tool_calls", jinja.NewList(append(all, call)...))
			return
		}
	}
	c.assistant("tool_calls", jinja.NewList(call))
}

func (c *turns) reasoning(it *jinja.Dict) error {
	if word(it, "encrypted_content") != "" {
		return errors.New("encrypted reasoning")
	}
	for _, name := range []string{"content", "summary"} {
		content, err := itemParts(it, name)
		if err != nil {
			return err
		}
		if list, ok := content.(*jinja.List); ok && list.Len() == 0 || content == nil {
			continue
		}
		text, err := onlyText(content)
		if err != nil {
			return err
		}
		c.assistant("reasoning", text)
		return nil
	}
	c.assistant("reasoning", "")
	return nil
}

// partTypes are the parts that hold a text.
var partTypes = map[string]bool{
	"text": true, "input_text": true, "output_text": true, "reasoning_text": true, "summary_text": true,
}

// itemParts is a text, nil, or a list of text parts as chat has them.
func itemParts(it *jinja.Dict, name string) (jinja.Value, error) {
	v, _ := it.Get(name)
	switch v := v.(type) {
	case nil, string:
		return v, nil
	case *jinja.List:
		out := make([]jinja.Value, v.Len())
		for i := range out {
			in, ok := v.At(i).(*jinja.Dict)
			if !ok || !partTypes[word(in, "type")] {
				return nil, errors.New("a content part that is not text")
			}
			text, _ := in.Get("text")
			part := &jinja.Dict{}
			part.Set("type", "text")
			part.Set("text", text)
			out[i] = part
		}
		return jinja.NewList(out...), nil
	}
	return nil, errors.New("content is neither text nor parts")
}

// onlyText is the text of content that has no more than one part: of several,
// vLLM's versions take the first or all.
func onlyText(content jinja.Value) (string, error) {
	switch v := content.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case *jinja.List:
		switch v.Len() {
		case 0:
			return "", nil
		case 1:
			part, _ := v.At(0).(*jinja.Dict)
			return partText(part)
		}
	}
	return "", errors.New("an assistant's content in several parts")
}
