package prompt

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sallyport-ai/sallyport/routing/prompt/jinja"
)

// This file does to messages and tools what vLLM does between the body and
// the template (vllm/entrypoints/chat_utils.py: parse_chat_messages and
// _postprocess_messages; the pydantic models of chat_completion/protocol.py).
// Order matters: templates print these objects as JSON.

func (m *Model) messages(b *chatBody) (*jinja.List, error) {
	v, err := value(b.Messages, "messages")
	if err != nil {
		return nil, err
	}
	if b.said != nil {
		v = jinja.NewList(b.said...)
	}
	list, ok := v.(*jinja.List)
	if !ok || list.Len() == 0 {
		return nil, unsupported("messages is not a list of messages")
	}
	out := make([]jinja.Value, list.Len())
	for i := range out {
		message, ok := list.At(i).(*jinja.Dict)
		if !ok {
			return nil, unsupported("message %d is not an object", i)
		}
		if out[i], err = m.message(message); err != nil {
			return nil, unsupported("message %d: %w", i, err)
		}
	}
	return jinja.NewList(out...), nil
}

func (m *Model) message(in *jinja.Dict) (*jinja.Dict, error) {
	role, _ := in.Get("role")
	if _, ok := role.(string); !ok {
		return nil, errors.New("role is not a string")
	}
	if err := m.sameInAllVersions(in); err != nil {
		return nil, err
	}
	raw, _ := in.Get("content")
	content, err := m.content(raw, m.parts && role != "tool")
	if err != nil {
		return nil, err
	}
	out := &jinja.Dict{}
	out.Set("role", role)
	out.Set("content", content)
	switch role {
	case "assistant":
		err = assistant(out, in)
	case "tool":
		if id, ok := in.Get("tool_call_id"); ok {
			out.Set("tool_call_id", id)
		}
	case "developer":
		tools, _ := in.Get("tools")
		out.Set("tools", tools)
	}
	if name, _ := in.Get("name"); name != nil {
		if _, ok := name.(string); ok {
			out.Set("name", name)
		}
	}
	return out, err
}

// sameInAllVersions refuses a message that one vLLM renders differently from
// the next, if the template would show the difference.
func (m *Model) sameInAllVersions(in *jinja.Dict) error {
	for _, name := range []string{"reasoning_content", "task"} {
		if v, _ := in.Get(name); v != nil && m.template.Mentions(name) {
			return fmt.Errorf("vLLM's versions differ on %s", name)
		}
	}
	if v, _ := in.Get("reasoning_content"); v != nil && m.template.Mentions("reasoning") {
		return errors.New("vLLM's versions do or do not take reasoning_content for reasoning")
	}
	if content, _ := in.Get("content"); content != nil {
		if s, ok := content.(string); ok && strings.HasPrefix(s, billingHeader) {
			return fmt.Errorf("vLLM's versions differ on %s", billingHeader)
		}
	}
	return nil
}

// billingHeader begins a line that some clients put first in a system message
// and newer versions of vLLM drop.
const billingHeader = "x-anthropic-billing-header"

// content is a string: the text parts that are not empty joined by line ends.
// Templates that loop over content get a list of parts instead.
func (m *Model) content(v jinja.Value, parts bool) (jinja.Value, error) {
	var texts []string
	switch v := v.(type) {
	case nil:
	case string:
		texts = []string{v}
	case *jinja.List:
		for i := range v.Len() {
			text, err := partText(v.At(i))
			if err != nil {
				return nil, err
			}
			if text != "" || parts {
				texts = append(texts, text)
			}
		}
	default:
		return nil, errors.New("content is neither text nor parts")
	}
	if !parts {
		return strings.Join(texts, "\n"), nil
	}
	list := make([]jinja.Value, len(texts))
	for i, text := range texts {
		part := &jinja.Dict{}
		part.Set("type", "text")
		part.Set("text", text)
		list[i] = part
	}
	return jinja.NewList(list...), nil
}

func partText(v jinja.Value) (string, error) {
	part, ok := v.(*jinja.Dict)
	if !ok {
		return "", errors.New("a content part is not an object")
	}
	if kind, _ := part.Get("type"); kind != "text" {
		return "", fmt.Errorf("content part of type %v", kind)
	}
	text, _ := part.Get("text")
	s, ok := text.(string)
	if !ok {
		return "", errors.New("a text part has no text")
	}
	return s, nil
}

func assistant(out, in *jinja.Dict) error {
	if v, _ := in.Get("tool_calls"); v != nil {
		list, ok := v.(*jinja.List)
		if !ok {
			return errors.New("tool_calls is not a list")
		}
		calls := make([]jinja.Value, list.Len())
		for i := range calls {
			call, err := toolCall(list.At(i))
			if err != nil {
				return err
			}
			calls[i] = call
		}
		if len(calls) > 0 {
			out.Set("tool_calls", jinja.NewList(calls...))
		}
	}
	if reasoning, _ := in.Get("reasoning"); reasoning != nil {
		out.Set("reasoning", reasoning)
		out.Set("reasoning_content", reasoning)
	}
	return nil
}

// toolCall orders a call's members as the protocol's type does, drops others,
// and parses its arguments.
func toolCall(v jinja.Value) (jinja.Value, error) {
	in, ok := v.(*jinja.Dict)
	if !ok {
		return nil, errors.New("a tool call is not an object")
	}
	fv, _ := in.Get("function")
	fn, ok := fv.(*jinja.Dict)
	if !ok {
		return nil, errors.New("a tool call without function")
	}
	raw, _ := fn.Get("arguments")
	arguments, err := toolArguments(raw)
	if err != nil {
		return nil, err
	}
	name, ok := fn.Get("name")
	if _, isString := name.(string); !ok || !isString {
		return nil, errors.New("a tool call without name")
	}
	function := &jinja.Dict{}
	function.Set("arguments", arguments)
	function.Set("name", name)
	if kind, ok := in.Get("type"); ok && kind != "function" {
		return nil, errors.New("a tool call that is not of a function")
	}
	call := &jinja.Dict{}
	for _, k := range []string{"id", "function", "type"} {
		if v, ok := in.Get(k); ok {
			call.Set(k, v)
		}
	}
	call.Set("function", function)
	return call, nil
}

// toolArguments is the object that a call's arguments, JSON in a string, hold.
// What holds no object is an error to older versions and empty to newer ones.
func toolArguments(v jinja.Value) (jinja.Value, error) {
	switch v := v.(type) {
	case nil:
		return &jinja.Dict{}, nil
	case string:
		if v == "" {
			return &jinja.Dict{}, nil
		}
		parsed, err := jinja.FromJSON([]byte(v))
		if err != nil {
			return nil, fmt.Errorf("arguments of a tool call: %w", err)
		}
		if _, ok := parsed.(*jinja.Dict); ok {
			return parsed, nil
		}
	}
	return nil, errors.New("arguments of a tool call are not an object in a string")
}

// toolList gives each tool the members its type has, absent ones as null, in
// their order; others follow as they came.
func toolList(raw jsontext.Value) (jinja.Value, error) {
	v, err := value(raw, "tools")
	if v == nil || err != nil {
		return nil, err
	}
	list, ok := v.(*jinja.List)
	if !ok {
		return nil, unsupported("tools is not a list")
	}
	out := make([]jinja.Value, list.Len())
	for i := range out {
		in, ok := list.At(i).(*jinja.Dict)
		if !ok {
			return nil, unsupported("a tool is not an object")
		}
		fv, _ := in.Get("function")
		fn, ok := fv.(*jinja.Dict)
		if !ok {
			return nil, unsupported("a tool without function")
		}
		if kind, ok := in.Get("type"); ok && kind != "function" {
			return nil, unsupported("a tool that is not a function")
		}
		tool := ordered(in, "type", "function")
		tool.Set("type", "function")
		tool.Set("function", ordered(fn, "name", "description", "parameters"))
		out[i] = tool
	}
	return jinja.NewList(out...), nil
}

func ordered(in *jinja.Dict, first ...string) *jinja.Dict {
	out := &jinja.Dict{}
	for _, k := range first {
		v, _ := in.Get(k)
		out.Set(k, v)
	}
	for i := range in.Len() {
		out.Set(in.At(i))
	}
	return out
}
