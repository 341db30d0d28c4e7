package wire

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

// ask is a body for the messages route with one user message and more members.
func ask(members string) string {
	if members != "" {
		members = "," + members
	}
	return `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]` + members + `}`
}

// talk is a body for the messages route with these messages.
func talk(messages string) string {
	return `{"model":"m","max_tokens":9,"messages":[` + messages + `]}`
}

func TestMessagesBecomeChat(t *testing.T) {
	const hi = `"messages":[{"role":"user","content":"hi"}]`
	head := `{"model":"m","max_tokens":9,`
	asked := func(members string) string { return head + members + "," + hi + "}" }
	talked := func(messages string) string { return head + `"messages":[` + messages + `]}` }
	cases := []struct {
		claim string
		body  string
		want  string
	}{
		{"a question", ask(""), head + hi + "}"},
		{"numbers keep their digits", ask(`"temperature":0.70,"top_p":1.0,"top_k":40`), asked(`"temperature":0.70,"top_p":1.0,"top_k":40`)},
		{"stop sequences", ask(`"stop_sequences":["a","b"]`), asked(`"stop":["a","b"]`)},
		{"nulls are left out", ask(`"temperature":null,"system":null,"tools":null,"tool_choice":null,"thinking":null,"metadata":null,"container":null`), head + hi + "}"},
		{"the user", ask(`"metadata":{"user_id":"u"}`), asked(`"user":"u"`)},
		{"instructions", ask(`"system":"s"`), head + `"messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"}]}`},
		{"instructions in blocks", ask(`"system":[{"type":"text","text":"a"},{"type":"text","text":"b","cache_control":{"type":"ephemeral"}}]`), head + `"messages":[{"role":"system","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"user","content":"hi"}]}`},
		{"one block is a string", talk(`{"role":"user","content":[{"type":"text","text":"a\u00e9\n\"","citations":null}]}`), talked(`{"role":"user","content":"aé\n\""}`)},
		{"an image", talk(`{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}},{"type":"text","text":"?"}]}`), talked(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}},{"type":"text","text":"?"}]}`)},
		{"a linked image", talk(`{"role":"user","content":[{"source":{"url":"https://x/a.png","type":"url"},"type":"image"}]}`), talked(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x/a.png"}}]}`)},
		{"a tool", ask(`"tools":[{"name":"f","description":"d","input_schema":{"type":"object","ID":1,"id":1.50},"type":"custom","strict":true,"cache_control":null}]`), head + hi + `,"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","ID":1,"id":1.50},"strict":true}}]}`},
		{"any tool", ask(`"tool_choice":{"type":"any","disable_parallel_tool_use":true}`), asked(`"parallel_tool_calls":false,"tool_choice":"required"`)},
		{"a tool by choice", ask(`"tool_choice":{"type":"auto"}`), asked(`"tool_choice":"auto"`)},
		{"no tool", ask(`"tool_choice":{"type":"none"}`), asked(`"tool_choice":"none"`)},
		{"this tool", ask(`"tool_choice":{"name":"f","type":"tool"}`), asked(`"tool_choice":{"type":"function","function":{"name":"f"}}`)},
		{"thinking", ask(`"thinking":{"type":"enabled","budget_tokens":1024}`), asked(`"thinking_token_budget":1024,"chat_template_kwargs":{"enable_thinking":true}`)},
		{"no thinking", ask(`"thinking":{"type":"disabled"}`), asked(`"chat_template_kwargs":{"enable_thinking":false}`)},
		{
			"a call and its result",
			talk(`{"role":"user","content":"?"},{"role":"assistant","content":[{"type":"text","text":"ok"},{"type":"tool_use","id":"1","name":"f","input":{ "a" : "\u0041", "n": 1.50 }}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"42"}]}`),
			talked(`{"role":"user","content":"?"},{"role":"assistant","content":"ok","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":\"A\",\"n\":1.50}"}}]},{"role":"tool","tool_call_id":"1","content":"42"}`),
		},
		{
			"calls without words, results in blocks, and more words",
			talk(`{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}},{"type":"tool_use","id":"2","name":"g","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"type":"tool_result","tool_use_id":"2"},{"type":"text","text":"go on"}]}`),
			talked(`{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"2","type":"function","function":{"name":"g","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"tool","tool_call_id":"2","content":""},{"role":"user","content":"go on"}`),
		},
		{
			"a tool that failed says so in words",
			talk(`{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","is_error":true,"content":"no such file"},{"type":"tool_result","tool_use_id":"2","is_error":true}]}`),
			talked(`{"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"Error:"},{"type":"text","text":"no such file"}]},{"role":"tool","tool_call_id":"2","content":"Error:"}`),
		},
		{
			"thoughts",
			talk(`{"role":"user","content":"?"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"a"}]},{"role":"user","content":"!"}`),
			talked(`{"role":"user","content":"?"},{"role":"assistant","content":"a","reasoning":"hm"},{"role":"user","content":"!"}`),
		},
		{
			"an answer that is begun",
			talk(`{"role":"user","content":"?"},{"role":"assistant","content":"The answer is"}`),
			head + `"messages":[{"role":"user","content":"?"},{"role":"assistant","content":"The answer is"}],"continue_final_message":true,"add_generation_prompt":false}`,
		},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			r, err := Decode(Messages, []byte(c.body), Limits{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := r.Upstream(Edits{})
			if err != nil || string(got) != c.want {
				t.Errorf("%v, got\n%s\nwant\n%s", err, got, c.want)
			}
			if r.Operation != "messages" || len(r.Unknown) > 0 {
				t.Errorf("read %+v", r)
			}
		})
	}
}

func TestMessagesRefused(t *testing.T) {
	user := func(blocks string) string { return talk(`{"role":"user","content":[` + blocks + `]}`) }
	assistant := func(blocks string) string { return talk(`{"role":"assistant","content":[` + blocks + `]}`) }
	cases := []struct {
		claim string
		body  string
		code  Code
		param string
	}{
		{"no limit", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`, InvalidRequest, "max_tokens"},
		{"a limit that is null", `{"model":"m","max_tokens":null,"messages":[{"role":"user","content":"hi"}]}`, InvalidRequest, "max_tokens"},
		{"no messages", talk(``), InvalidRequest, "messages"},
		{"instructions alone", `{"model":"m","max_tokens":9,"messages":[],"system":"s"}`, InvalidRequest, "messages"},
		{"a role twice", talk(`{"role":"user","role":"assistant","content":"x"}`), MalformedJSON, ""},
		{"names that differ in case", talk(`{"role":"user","Role":"assistant","content":"x"}`), MalformedJSON, ""},
		{"a duplicate in a tool's input", assistant(`{"type":"tool_use","id":"1","name":"f","input":{"a":1,"a":2}}`), MalformedJSON, ""},
		{"a huge number in a schema", ask(`"tools":[{"name":"f","input_schema":{"a":1e999999}}]`), MalformedJSON, ""},
		{"a field of chat", ask(`"n":2`), UnsupportedField, "n"},
		{"a field that nobody knows", ask(`"x":1`), UnsupportedField, "x"},
		{"a KV transfer", ask(`"kv_transfer_params":{}`), UnsupportedField, "kv_transfer_params"},
		{"remote tool servers", ask(`"mcp_servers":[{"url":"https://x"}]`), UnsupportedField, "mcp_servers"},
		{"a kept container", ask(`"container":"c"`), UnsupportedField, "container"},
		{"a tool of the provider", ask(`"tools":[{"type":"web_search_20250305","name":"web_search"}]`), UnsupportedField, "tools.type"},
		{"a tool without a name", ask(`"tools":[{"input_schema":{}}]`), InvalidRequest, "tools.name"},
		{"thinking of another kind", ask(`"thinking":{"type":"maybe"}`), UnsupportedField, "thinking.type"},
		{"thinking that is hidden", ask(`"thinking":{"type":"adaptive","display":"omitted"}`), UnsupportedField, "thinking.display"},
		{"a document", user(`{"type":"document","source":{"type":"text","media_type":"text/plain","data":"x"}}`), UnsupportedField, "messages.content"},
		{"hidden thoughts", assistant(`{"type":"redacted_thinking","data":"x"}`), UnsupportedField, "messages.content"},
		{"citations", user(`{"type":"text","text":"x","citations":[{"type":"char_location"}]}`), UnsupportedField, "messages.content.citations"},
		{"a kept image", user(`{"type":"image","source":{"type":"file","file_id":"f"}}`), UnsupportedField, "messages.content.source.file_id"},
		{"an image of another type", user(`{"type":"image","source":{"type":"base64","media_type":"text/html","data":"x"}}`), UnsupportedField, "messages.content.source.media_type"},
		{"an image in a result", user(`{"type":"tool_result","tool_use_id":"1","content":[{"type":"image","source":{"type":"url","url":"u"}}]}`), UnsupportedField, "messages.content.content"},
		{"an image that the model made", assistant(`{"type":"image","source":{"type":"url","url":"u"}}`), UnsupportedField, "messages.content"},
		{"a result after words", user(`{"type":"text","text":"x"},{"type":"tool_result","tool_use_id":"1"}`), InvalidRequest, "messages.content"},
		{"a call by the user", user(`{"type":"tool_use","id":"1","name":"f","input":{}}`), InvalidRequest, "messages.content"},
		{"words after a call", assistant(`{"type":"tool_use","id":"1","name":"f","input":{}},{"type":"text","text":"x"}`), UnsupportedField, "messages.content"},
		{"a call without input", assistant(`{"type":"tool_use","id":"1","name":"f"}`), InvalidRequest, "messages.content.input"},
		{"a call with a list as input", assistant(`{"type":"tool_use","id":"1","name":"f","input":[]}`), InvalidRequest, "messages.content.input"},
		{"a text block without text", user(`{"type":"text"}`), InvalidRequest, "messages.content.text"},
		{"an image as instructions", ask(`"system":[{"type":"image","source":{"type":"url","url":"u"}}]`), UnsupportedField, "system"},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			_, err := Decode(Messages, []byte(c.body), Limits{})
			var e *Error
			if !errors.As(err, &e) || e.Code != c.code || e.Param != c.param {
				t.Errorf("got %v, want %s of %s", err, c.code, c.param)
			}
		})
	}
}

// TestMessagesUnknown shows that what nobody knows makes the request
// unclassified, and is not sent on even where policy would let it.
func TestMessagesUnknown(t *testing.T) {
	user := func(blocks string) string { return talk(`{"role":"user","content":[` + blocks + `]}`) }
	cases := []struct{ claim, body, place string }{
		{"a block", user(`{"type":"hologram","text":"x"}`), "part.type"},
		{"a block without a type", user(`{"text":"x"}`), "part.type"},
		{"a field of a block", user(`{"type":"text","text":"x","tone":"y"}`), "part.field"},
		{"a text that is also an image", user(`{"type":"text","text":"x","source":{"type":"url","url":"u"}}`), "part.field"},
		{"a field of a source", user(`{"type":"image","source":{"type":"url","url":"u","x":1}}`), "part.field"},
		{"a kind of source", user(`{"type":"image","source":{"type":"cloud"}}`), "part.type"},
		{"a role", talk(`{"role":"oracle","content":"x"}`), "message.role"},
		{"a field of a message", talk(`{"role":"user","content":"x","x":1}`), "message.field"},
		{"a type of tool", ask(`"tools":[{"type":"teleport","name":"f"}]`), "tool.type"},
		{"a field of a tool", ask(`"tools":[{"name":"f","x":1}]`), "tool.field"},
		{"a tool choice", ask(`"tool_choice":{"type":"maybe"}`), "tool_choice"},
		{"a field of metadata", ask(`"metadata":{"x":1}`), "metadata.field"},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			r, err := Decode(Messages, []byte(c.body), Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(r.Unknown, []string{c.place}) {
				t.Errorf("unknown: %v", r.Unknown)
			}
			if _, err := r.Upstream(Edits{}); err == nil {
				t.Error("it would be sent without what could not be translated")
			}
		})
	}
}

func TestMessagesFacts(t *testing.T) {
	body := `{"model":"m","max_tokens":9,"stream":true,"cache_salt":"x","cache_control":{"type":"ephemeral"},"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],` +
		`"tools":[{"name":"f","input_schema":{"description":"MARK3"}}],"tool_choice":{"type":"any"},"messages":[` +
		`{"role":"user","content":[{"type":"image","source":{"type":"url","url":"https://x"}},{"type":"text","text":"MARK1"}]},` +
		`{"role":"assistant","content":[{"type":"thinking","thinking":"MARK4","signature":"x"},{"type":"tool_use","id":"1","name":"f","input":{"a":"M\u0041RK2"}}]},` +
		`{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"MARK5"}]}]}`
	r, err := Decode(Messages, []byte(body), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Media || !r.RemoteURL || !r.Stream || r.IncludeUsage || r.ToolChoice != ToolChoiceRequired || *r.MaxTokens != 9 {
		t.Errorf("read %+v", r)
	}
	if want := []Tool{{"function", "f"}}; !reflect.DeepEqual(r.Tools, want) {
		t.Errorf("tools %v", r.Tools)
	}
	if want := []string{"cache_control", "cache_salt", "messages.content.signature", "system.cache_control"}; !reflect.DeepEqual(r.Removed, want) {
		t.Errorf("removed %v", r.Removed)
	}
	var roles []string
	for _, m := range r.Messages {
		roles = append(roles, m.Role)
	}
	if want := []string{"system", "user", "assistant", "tool"}; !reflect.DeepEqual(roles, want) {
		t.Errorf("roles %v", roles)
	}
	var all strings.Builder
	for text := range r.Texts() {
		all.Write(text.Data)
	}
	for _, mark := range []string{"MARK1", "MARK2", "MARK3", "MARK4", "MARK5", "https://x"} {
		if !strings.Contains(all.String(), mark) {
			t.Errorf("not scanned: %s", mark)
		}
	}
	ten := int64(3)
	up, err := r.Upstream(Edits{Model: "served", MaxOutputTokens: &ten})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`{"model":"served","max_tokens":3,"stream":true,`, `"stream_options":{"include_usage":true}`} {
		if !strings.Contains(string(up), want) {
			t.Errorf("%s is not in %s", want, up)
		}
	}
	if strings.Contains(string(up), "cache_salt") {
		t.Errorf("a client's salt is in %s", up)
	}
}

func TestMessagesLimits(t *testing.T) {
	deep := func(n int) string {
		return ask(`"tools":[{"name":"f","input_schema":` + strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) + `}]`)
	}
	// tools, the tool and its schema take one level each.
	if _, err := Decode(Messages, []byte(deep(125)), Limits{}); err != nil {
		t.Errorf("a schema as deep as chat takes it: %v", err)
	}
	if _, err := Decode(Messages, []byte(deep(200)), Limits{}); err == nil {
		t.Error("a schema that is too deep")
	}
	quotes := talk(`{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"a":"` + strings.Repeat(`\"`, 500) + `"}}]}`)
	var e *Error
	if _, err := Decode(Messages, []byte(quotes), Limits{BodyBytes: len(quotes)}); !errors.As(err, &e) || e.Code != TooLarge {
		t.Errorf("a body whose translation is too large: %v", err)
	}
}

func TestMessagesShowThoughtsToWhoAsked(t *testing.T) {
	const answer = `{"choices":[{"message":{"reasoning":"hm","content":"x"},"finish_reason":"stop"}]}`
	for more, shown := range map[string]bool{"": false, `"thinking":{"type":"disabled"}`: false, `"thinking":{"type":"adaptive"}`: true} {
		r, err := Decode(Messages, []byte(ask(more)), Limits{})
		if err != nil {
			t.Fatal(err)
		}
		body, err := Messages.Answer(r).Body([]byte(answer))
		if err != nil || strings.Contains(string(body), "hm") != shown {
			t.Errorf("with %s: %v %s", more, err, body)
		}
	}
}
