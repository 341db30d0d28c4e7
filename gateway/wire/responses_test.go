package wire

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
)

// respond is a body for the responses route with a text and more members.
func respond(members string) string {
	if members != "" {
		members = "," + members
	}
	return `{"model":"m","input":"hi"` + members + `}`
}

// items is a body for the responses route with these input items.
func items(list string) string { return `{"model":"m","input":[` + list + `]}` }

func TestResponsesRefused(t *testing.T) {
	cases := []struct {
		claim string
		body  string
		code  Code
		param string
	}{
		{"no input", `{"model":"m"}`, InvalidRequest, "input"},
		{"input that is null", `{"model":"m","input":null}`, InvalidRequest, "input"},
		{"no items", items(``), InvalidRequest, "input"},
		{"an item that is a string", items(`"x"`), InvalidRequest, "input"},
		{"an earlier response", respond(`"previous_response_id":"resp_1"`), UnsupportedField, "previous_response_id"},
		{"a kept conversation", respond(`"conversation":"conv_1"`), UnsupportedField, "conversation"},
		{"a stored prompt", respond(`"prompt":{"id":"p"}`), UnsupportedField, "prompt"},
		{"storing the answer", respond(`"store":true`), UnsupportedField, "store"},
		{"work in the background", respond(`"background":true`), UnsupportedField, "background"},
		{"an item by reference", items(`{"type":"item_reference","id":"m"}`), UnsupportedField, "input"},
		{"an item by its id alone", items(`{"id":"m"}`), UnsupportedField, "input"},
		{"an item by reference, its type null", items(`{"id":"m","type":null}`), UnsupportedField, "input"},
		{"a field of chat", respond(`"messages":[]`), UnsupportedField, "messages"},
		{"a limit of chat", respond(`"max_tokens":5`), UnsupportedField, "max_tokens"},
		{"a field that shows the engine's prompt", respond(`"enable_response_messages":true`), UnsupportedField, "enable_response_messages"},
		{"a priority", respond(`"priority":1`), UnsupportedField, "priority"},
		{"a function without a name", respond(`"tools":[{"type":"function"}]`), InvalidRequest, "tools.name"},
		{"a function with its name in the wrong place", respond(`"tools":[{"type":"function","function":{"name":"f"}}]`), InvalidRequest, "tools.name"},
		{"content that is a number", items(`{"role":"user","content":1}`), InvalidRequest, "input.content"},
		{"a role twice", items(`{"role":"user","role":"system","content":"x"}`), MalformedJSON, ""},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			_, err := Decode(Responses, []byte(c.body), Limits{})
			var e *Error
			if !errors.As(err, &e) || e.Code != c.code || e.Param != c.param {
				t.Errorf("got %v, want %s of %s", err, c.code, c.param)
			}
		})
	}
}

func TestResponsesRequest(t *testing.T) {
	nine := int64(9)
	cases := []struct {
		claim string
		body  string
		get   func(*Request) any
		want  any
	}{
		{"nulls, as SDKs send for unset fields", respond(`"previous_response_id":null,"conversation":null,"prompt":null,"store":null,"background":null,"text":null,"tools":null,"include":null,"instructions":null,"max_output_tokens":null`), func(r *Request) any { return r.Unknown }, []string(nil)},
		{"the limit", respond(`"max_output_tokens":9`), func(r *Request) any { return r.MaxTokens }, &nine},
		{"a shared prompt cache is taken out", respond(`"prompt_cache_key":"k"`), func(r *Request) any { return r.Removed }, []string{"prompt_cache_key"}},
		{"tools", respond(`"tools":[{"type":"function","name":"f"},{"type":"custom","name":"c"},{"type":"mcp","server_label":"s"},{"type":"web_search"}]`), func(r *Request) any { return r.Tools }, []Tool{{"function", "f"}, {"custom", "c"}, {"mcp", "s"}, {"web_search", "web_search"}}},
		{"a function beside the name does not hide it", respond(`"tools":[{"type":"function","name":"f","function":{"name":"g"}}]`), func(r *Request) any { return []any{r.Tools, r.Unknown} }, []any{[]Tool{{"function", "f"}}, []string{"tool.field"}}},
		{"a tool choice by name", respond(`"tool_choice":{"type":"function","name":"f"}`), func(r *Request) any { return r.ToolChoice }, ToolChoiceNamed},
		{"a call and its result", items(`{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"42"}`), func(r *Request) any {
			return []any{r.Messages[0].ToolCalls, r.Messages[1].Role, r.Messages[1].ToolCallID, r.Items}
		}, []any{[]ToolCall{{"1", "function_call", "f"}}, "tool", "1", []string{"function_call", "function_call_output"}}},
		{"an unknown item", items(`{"type":"hologram","x":"y"}`), func(r *Request) any { return []any{r.Unknown, r.Items} }, []any{[]string{"item.type"}, []string{""}}},
		{"an unknown field of an item", items(`{"type":"function_call","call_id":"1","name":"f","arguments":"{}","x":1}`), func(r *Request) any { return r.Unknown }, []string{"item.field"}},
		{"an unknown role", items(`{"role":"oracle","content":"x"}`), func(r *Request) any { return r.Unknown }, []string{"message.role"}},
		{"an unknown part", items(`{"role":"user","content":[{"type":"hologram"}]}`), func(r *Request) any { return r.Unknown }, []string{"part.type"}},
		{"a part that is also another", items(`{"role":"user","content":[{"type":"input_text","text":"x","image_url":"data:,"}]}`), func(r *Request) any { return r.Unknown }, []string{"part.field"}},
		{"an unknown wish", respond(`"include":["everything"]`), func(r *Request) any { return r.Unknown }, []string{"include"}},
		{"an unknown form", respond(`"text":{"format":{"type":"x"}}`), func(r *Request) any { return r.Unknown }, []string{"response_format.type"}},
		{"an image that is not there is no media", items(`{"role":"user","content":[{"type":"input_image","image_url":"https://x","file_id":null}]}`), func(r *Request) any { return []bool{r.Media, r.RemoteURL, r.ExternalState} }, []bool{true, true, false}},
		{"a kept image", items(`{"role":"user","content":[{"type":"input_image","file_id":"f"}]}`), func(r *Request) any { return r.ExternalState }, true},
		{"a screenshot", items(`{"type":"computer_call_output","call_id":"1","output":{"type":"computer_screenshot","image_url":"data:,x"}}`), func(r *Request) any { return []any{r.Media, r.RemoteURL, r.Unknown} }, []any{true, false, []string(nil)}},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			r, err := Decode(Responses, []byte(c.body), Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if got := c.get(r); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestEveryStringOfAResponseIsScanned(t *testing.T) {
	for _, body := range []string{
		`{"model":"m","input":"MARK"}`,
		respond(`"instructions":"MARK"`),
		respond(`"tools":[{"type":"function","name":"f","description":"MARK"}]`),
		respond(`"tools":[{"type":"custom","name":"f","format":{"definition":"MARK"}}]`),
		respond(`"tools":[{"type":"mcp","server_label":"s","headers":{"x":"MARK"}}]`),
		respond(`"text":{"format":{"type":"json_schema","schema":{"MARK":{}}}}`),
		respond(`"metadata":{"k":"MARK"}`),
		respond(`"reasoning":{"effort":"MARK"}`),
		items(`{"role":"user","content":"MARK"}`),
		items(`{"type":"message","role":"user","content":[{"type":"input_text","text":"MARK"}]}`),
		items(`{"type":"message","role":"assistant","content":[{"type":"output_text","text":"","annotations":[{"title":"MARK"}]}]}`),
		items(`{"type":"message","role":"assistant","content":[{"type":"refusal","refusal":"MARK"}]}`),
		items(`{"type":"reasoning","summary":[{"type":"summary_text","text":"MARK"}]}`),
		items(`{"type":"function_call","call_id":"1","name":"f","arguments":"{\"a\":\"MARK\"}"}`),
		items(`{"type":"function_call","call_id":"MARK","name":"f","arguments":"{}"}`),
		items(`{"type":"function_call_output","call_id":"1","output":"MARK"}`),
		items(`{"type":"function_call_output","call_id":"1","output":[{"type":"input_text","text":"MARK"}]}`),
		items(`{"type":"custom_tool_call","call_id":"1","name":"f","input":"MARK"}`),
		items(`{"type":"file_search_call","queries":["MARK"]}`),
		items(`{"type":"file_search_call","results":[{"text":"MARK"}]}`),
		items(`{"type":"web_search_call","action":{"query":"MARK"}}`),
		items(`{"type":"code_interpreter_call","code":"MARK"}`),
		items(`{"type":"shell_call","action":{"commands":["MARK"]}}`),
		items(`{"type":"mcp_call","output":"MARK"}`),
		items(`{"type":"hologram","x":"MARK"}`),
		items(`{"role":"user","content":[{"type":"input_file","filename":"MARK"}]}`),
		items(`{"role":"user","content":[{"type":"input_image","image_url":"https://MARK/"}]}`),
		items(`{"role":"user","content":[{"type":"hologram","x":"MARK"}]}`),
	} {
		r, err := Decode(Responses, []byte(body), Limits{})
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		found := false
		for text := range r.Texts() {
			found = found || strings.Contains(string(text.Data), "MARK")
		}
		if !found {
			t.Errorf("not scanned: %s", body)
		}
	}
}

func TestResponsesUpstream(t *testing.T) {
	ten := int64(10)
	cases := []struct{ claim, body, want string }{
		{"nothing is stored", respond(``), `{"model":"b","input":"hi","max_output_tokens":10,"store":false}`},
		{"a client that says so keeps its bytes", respond(`"store":false,"max_output_tokens":5,"stream":true`), `{"model":"b","input":"hi","store":false,"max_output_tokens":5,"stream":true}`},
		{"a null is no answer", respond(`"store":null,"max_output_tokens":50`), `{"model":"b","input":"hi","store":false,"max_output_tokens":10}`},
		{"what steers a cache is taken out", respond(`"prompt_cache_key":"k","cache_salt":"s","max_output_tokens":1`), `{"model":"b","input":"hi","max_output_tokens":1,"store":false}`},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			r, err := Decode(Responses, []byte(c.body), Limits{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := r.Upstream(Edits{Model: "b", MaxOutputTokens: &ten})
			if err != nil || string(got) != c.want {
				t.Errorf("%v, got %s, want %s", err, got, c.want)
			}
		})
	}
}

// golden reads a stream from testdata: the events of a response in the order of
// the reference.
func golden(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestResponseStream(t *testing.T) {
	for name, finish := range map[string]string{"response-text.sse": "completed", "response-tool.sse": "completed", "response-cut.sse": "max_output_tokens"} {
		stream := golden(t, name)
		t.Run(name, func(t *testing.T) {
			a := Responses.Answer(&Request{})
			a.CachedTokens = true
			if got, err := pass(t, a, stream); err != nil || got != stream {
				t.Errorf("%v, who may see all got\n%s", err, got)
			}
			if a.Finish != finish || a.Failed || a.Usage == nil || a.Usage.PromptTokens != 36 || a.Usage.CompletionTokens != 5 || *a.Usage.CachedTokens != 32 {
				t.Errorf("learnt %+v %+v", a, a.Usage)
			}
			b := Responses.Answer(&Request{})
			want := strings.Replace(stream, `"input_tokens_details":{"cached_tokens":32}`, `"input_tokens_details":{}`, 1)
			if got, err := pass(t, b, stream); err != nil || got != want {
				t.Errorf("%v, who may not see cached tokens got\n%s", err, got)
			}
		})
	}
}

func TestResponseStreamEnds(t *testing.T) {
	whole := golden(t, "response-text.sse")
	last := strings.LastIndex(whole, "event: ")
	a := Responses.Answer(&Request{})
	if _, err := pass(t, a, whole[:last]); !errors.Is(err, ErrTruncated) {
		t.Errorf("without its closing event: %v", err)
	}
	if got, want := string(a.ErrorEvent(OpenAIResponses, "server_error", "upstream_error", "m")), "event: error\ndata: "+`{"type":"error","code":"upstream_error","message":"m","param":null,"sequence_number":8}`+"\n\n"; got != want {
		t.Errorf("the error continues the sequence: got %s", got)
	}
	if _, err := pass(t, Responses.Answer(&Request{}), whole[:last]+done); !errors.Is(err, ErrTruncated) {
		t.Errorf("[DONE] in place of the closing event: %v", err)
	}
	if got, err := pass(t, Responses.Answer(&Request{}), whole+done); err != nil || !strings.HasSuffix(got, done) {
		t.Errorf("B011: a closing event decides, with or without [DONE]: %v", err)
	}
	for claim, event := range map[string]string{
		"B014: an error event": `data: {"type":"error","code":"insufficient_quota","message":"x","sequence_number":1}` + "\n\n",
		"a failed response":    `data: {"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"x"}}}` + "\n\n",
		"a cancelled response": `data: {"type":"response.cancelled","response":{"status":"cancelled"}}` + "\n\n",
		"an error as in chat":  `data: {"error":{"message":"x"}}` + "\n\n",
	} {
		a := Responses.Answer(&Request{})
		if _, err := pass(t, a, whole[:last]+event); err == nil || !a.Failed || a.Done {
			t.Errorf("%s: %v, %+v", claim, err, a)
		}
	}
}

func TestResponseBody(t *testing.T) {
	body := `{"id":"resp_1","object":"response","status":"incomplete","error":null,"incomplete_details":{"reason":"max_output_tokens"},"output":[],"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":8,"cached_tokens_per_turn":[8],"input_tokens_per_turn":[9]},"output_tokens":3,"total_tokens":12}}`
	want := `{"id":"resp_1","object":"response","status":"incomplete","error":null,"incomplete_details":{"reason":"max_output_tokens"},"output":[],"usage":{"input_tokens":9,"input_tokens_details":{"input_tokens_per_turn":[9]},"output_tokens":3,"total_tokens":12}}`
	a := Responses.Answer(&Request{})
	got, err := a.Body([]byte(body))
	if err != nil || string(got) != want || a.Finish != "max_output_tokens" || a.Failed || *a.Usage.CachedTokens != 8 {
		t.Errorf("%v, got %s, learnt %+v", err, got, a)
	}
	b := Responses.Answer(&Request{})
	if _, err := b.Body([]byte(`{"object":"response","status":"failed","error":{"code":"x"}}`)); err != nil || !b.Failed {
		t.Errorf("a failure: %v, %+v", err, b)
	}
}
