package wire

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// bothSay draws a conversation that both protocols can hold, as chat and as
// Anthropic's messages.
func bothSay(t *rapid.T) (chat, anthropic map[string]any) {
	type m = map[string]any
	text := func(name string) string { return rapid.String().Draw(t, name) }
	chat = m{"model": "m", "max_tokens": json.Number("9")}
	anthropic = m{"model": "m", "max_tokens": json.Number("9")}
	var chatMessages, messages []any
	if rapid.Bool().Draw(t, "system") {
		s := text("system")
		chatMessages, anthropic["system"] = append(chatMessages, m{"role": "system", "content": s}), s
	}
	for i, n := 0, rapid.IntRange(1, 4).Draw(t, "turns"); i < n; i++ {
		switch rapid.IntRange(0, 2).Draw(t, "turn") {
		case 0:
			s := text("user")
			chatMessages = append(chatMessages, m{"role": "user", "content": s})
			messages = append(messages, m{"role": "user", "content": s})
		case 1:
			a, b := text("part"), text("url")
			chatMessages = append(chatMessages, m{"role": "user", "content": []any{m{"type": "image_url", "image_url": m{"url": b}}, m{"type": "text", "text": a}}})
			messages = append(messages, m{"role": "user", "content": []any{m{"type": "image", "source": m{"type": "url", "url": b}}, m{"type": "text", "text": a}}})
		case 2:
			s, id, name, value, result := text("assistant"), text("id"), text("name"), text("value"), text("result")
			arguments, _ := json.Marshal(m{"v": "x"})
			arguments = []byte(strings.Replace(string(arguments), `"x"`, string(quote(value)), 1))
			chatMessages = append(chatMessages,
				m{"role": "assistant", "content": s, "tool_calls": []any{m{"id": id, "type": "function", "function": m{"name": name, "arguments": string(arguments)}}}},
				m{"role": "tool", "tool_call_id": id, "content": result})
			messages = append(messages,
				m{"role": "assistant", "content": []any{m{"type": "text", "text": s}, m{"type": "tool_use", "id": id, "name": name, "input": m{"v": value}}}},
				m{"role": "user", "content": []any{m{"type": "tool_result", "tool_use_id": id, "content": result}}})
		}
	}
	chat["messages"], anthropic["messages"] = chatMessages, messages
	if rapid.Bool().Draw(t, "tools") {
		schema := m{"type": "object", "properties": m{text("property"): m{}}}
		d := text("description")
		chat["tools"] = []any{m{"type": "function", "function": m{"name": "f", "description": d, "parameters": schema}}}
		anthropic["tools"] = []any{m{"name": "f", "description": d, "input_schema": schema}}
		chat["tool_choice"], anthropic["tool_choice"] = "required", m{"type": "any"}
	}
	return chat, anthropic
}

// TestTranslationKeepsWhatBothCanSay says the same in both protocols and expects
// the same request.
func TestTranslationKeepsWhatBothCanSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chat, anthropic := bothSay(t)
		body, err := json.Marshal(anthropic)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Decode(Messages, body, Limits{})
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		up, err := r.Upstream(Edits{})
		if err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(chat)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := generic(t, up), generic(t, want); !reflect.DeepEqual(got, want) {
			t.Fatalf("got  %v\nwant %v", got, want)
		}
		direct, err := Decode(ChatCompletions, want, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(r.Messages, direct.Messages) || !reflect.DeepEqual(r.Tools, direct.Tools) || r.ToolChoice != direct.ToolChoice || r.Media != direct.Media || r.RemoteURL != direct.RemoteURL {
			t.Fatalf("translated it reads %+v, directly %+v", r, direct)
		}
	})
}

func generic(t *rapid.T, body []byte) (v any) {
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return v
}

// FuzzDecodeRoutes holds each route to the same: a request is refused by a
// wire.Error, or the body for the engine is one that the engine's own route
// accepts, with the model and the limit that we set.
func FuzzDecodeRoutes(f *testing.F) {
	f.Add([]byte(ask(`"system":[{"type":"text","text":"s","cache_control":{}}],"stream":true`)))
	f.Add([]byte(talk(`{"role":"assistant","content":[{"type":"thinking","thinking":"h","signature":""},{"type":"tool_use","id":"1","name":"f","input":{"a":[1]}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","is_error":true,"content":[{"type":"text","text":"x"}]}]}`)))
	f.Add([]byte(ask(`"tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"tool","name":"f"},"thinking":{"type":"enabled","budget_tokens":1024}`)))
	f.Add([]byte(`{"model":"m","prompt":["a","b"],"stream":true,"max_tokens":99,"cache_salt":1}`))
	f.Add([]byte(`{"model":"m","input":"a","encoding_format":"base64"}`))
	f.Add([]byte(`{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"}],"tools":[{"type":"function","name":"f"}],"store":false}`))
	ten := int64(10)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, op := range Operations() {
			if !op.HasBody() {
				continue
			}
			r, err := Decode(op, body, Limits{})
			if err != nil {
				var e *Error
				if !errors.As(err, &e) {
					t.Fatalf("%s: not a wire.Error: %v", op.Name, err)
				}
				continue
			}
			out, err := r.Upstream(Edits{Model: "served", MaxOutputTokens: &ten})
			if err != nil {
				if r.lost == "" {
					t.Fatalf("%s: accepted, but cannot be edited: %v", op.Name, err)
				}
				continue
			}
			engine := op
			if r.Translated {
				engine = ChatCompletions
			}
			up, err := Decode(engine, out, Limits{BodyBytes: len(out), Depth: 200})
			if err != nil {
				t.Fatalf("%s: %q made the unacceptable %q: %v", op.Name, body, out, err)
			}
			if up.Model != "served" || len(op.limits) > 0 && *up.MaxTokens > ten || engine.asksUsage && up.Stream && !up.IncludeUsage {
				t.Fatalf("%s: %q made %q", op.Name, body, out)
			}
			if !reflect.DeepEqual(up.Messages, r.Messages) || !reflect.DeepEqual(up.Tools, r.Tools) || up.Stream != r.Stream {
				t.Fatalf("%s: %q made %q, which says something else", op.Name, body, out)
			}
		}
	})
}
