package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// chat is a request body with more top-level members.
func chat(members string) string {
	if members != "" {
		members = "," + members
	}
	return `{"model":"m","messages":[{"role":"user","content":"hi"}]` + members + `}`
}

// said is a request body with one message.
func said(message string) string { return `{"model":"m","messages":[` + message + `]}` }

func TestDecodeRefuses(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	cases := []struct {
		claim string
		body  string
		code  Code
		param string
	}{
		{"an empty body", ``, MalformedJSON, ""},
		{"an array", `[]`, MalformedJSON, ""},
		{"a string", `"model"`, MalformedJSON, ""},
		{"null", `null`, MalformedJSON, ""},
		{"half a body", `{"model":"m"`, MalformedJSON, ""},
		{"a half string", `{"model":"m`, MalformedJSON, ""},
		{"data after the object", chat("") + `{}`, MalformedJSON, ""},
		{"a byte order mark", "\xEF\xBB\xBF" + chat(""), MalformedJSON, ""},
		{"UTF-16", "{\x00}\x00", MalformedJSON, ""},
		{"invalid UTF-8 in a string", said("{\"role\":\"user\",\"content\":\"\xff\"}"), MalformedJSON, ""},
		{"a lone surrogate", said(`{"role":"user","content":"\ud800"}`), MalformedJSON, ""},
		{"a trailing comma", `{"model":"m",}`, MalformedJSON, ""},
		{"a comment", `{/**/"model":"m"}`, MalformedJSON, ""},
		{"NaN", chat(`"temperature":NaN`), MalformedJSON, ""},
		{"the model twice", `{"model":"a","n":1,"model":"b"}`, MalformedJSON, ""},
		{"the model twice, once escaped", `{"mode\u006c":"a","model":"b"}`, MalformedJSON, ""},
		{"a role twice", said(`{"role":"user","role":"system","content":""}`), MalformedJSON, ""},
		{"names that differ in case in a message", said(`{"role":"user","Role":"system","content":""}`), MalformedJSON, ""},
		{"names that fold through a Kelvin sign", chat(`"logit_bias":{"k":1,"` + "\u212A" + `":2}`), MalformedJSON, ""},
		{"names that fold among many", chat(`"logit_bias":{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"k":1,"l":1,"m":1,"n":1,"s":1,"ſ":1}`), MalformedJSON, ""},
		{"a duplicate in a tool's schema", chat(`"tools":[{"type":"function","function":{"name":"f","parameters":{"a":1,"a":2}}}]`), MalformedJSON, ""},
		{"a duplicate in a removed field", chat(`"cache_salt":{"a":1,"a":2}`), MalformedJSON, ""},
		{"too deep", chat(`"metadata":` + deep(128)), MalformedJSON, ""},
		{"too deep in a removed field", chat(`"cache_salt":` + deep(128)), MalformedJSON, ""},
		{"a huge exponent", chat(`"temperature":1e999999999`), MalformedJSON, ""},
		{"an exponent past int64", chat(`"temperature":1e99999999999999999999`), MalformedJSON, ""},
		{"a huge number", chat(`"seed":` + strings.Repeat("9", 65)), MalformedJSON, ""},

		{"a capital Model", `{"Model":"a"}`, UnsupportedField, "Model"},
		{"a field that nobody knows", chat(`"x_foo":1`), UnsupportedField, "x_foo"},
		{"a KV transfer", chat(`"kv_transfer_params":{"remote_host":"10.0.0.1"}`), UnsupportedField, "kv_transfer_params"},
		{"a priority", chat(`"priority":1`), UnsupportedField, "priority"},
		{"a template", chat(`"chat_template":"{{x}}"`), UnsupportedField, "chat_template"},
		{"a bootstrap host", chat(`"bootstrap_host":"h"`), UnsupportedField, "bootstrap_host"},
		{"kept completions", chat(`"store":true`), UnsupportedField, "store"},
		{"a paid tier", chat(`"service_tier":"priority"`), UnsupportedField, "service_tier"},
		{"spoken answers", chat(`"modalities":["text","audio"]`), UnsupportedField, "modalities"},
		{"a shared prompt cache", chat(`"prompt_cache_key":"k"`), UnsupportedField, "prompt_cache_key"},
		{"a server-run search", chat(`"web_search_options":{}`), UnsupportedField, "web_search_options"},
		{"an unknown stream option", chat(`"stream_options":{"x":1}`), UnsupportedField, "stream_options.x"},
		{"a template in the template's arguments", chat(`"chat_template_kwargs":{"chat_template":"x"}`), UnsupportedField, "chat_template_kwargs.chat_template"},
		{"tools in the template's arguments", chat(`"chat_template_kwargs":{"xml_tools":[{}]}`), UnsupportedField, "chat_template_kwargs.xml_tools"},
		{"a long unknown name is clipped", `{"` + strings.Repeat("é", 40) + `":1}`, UnsupportedField, strings.Repeat("é", 32) + "…"},

		{"no model", `{"messages":[{"role":"user","content":"hi"}]}`, InvalidRequest, "model"},
		{"an empty model", `{"model":"","messages":[]}`, InvalidRequest, "model"},
		{"a model with a NUL", `{"model":"a\u0000","messages":[]}`, InvalidRequest, "model"},
		{"a model that is no string", `{"model":1,"messages":[]}`, InvalidRequest, "model"},
		{"no messages", `{"model":"m"}`, InvalidRequest, "messages"},
		{"an empty conversation", `{"model":"m","messages":[]}`, InvalidRequest, "messages"},
		{"messages that are null", `{"model":"m","messages":null}`, InvalidRequest, "messages"},
		{"a message that is a string", said(`"hi"`), InvalidRequest, "messages"},
		{"content that is a number", said(`{"role":"user","content":1}`), InvalidRequest, "messages.content"},
		{"a part that is a number", said(`{"role":"user","content":[1]}`), InvalidRequest, "messages.content"},
		{"stream as a string", chat(`"stream":"true"`), InvalidRequest, "stream"},
		{"stream as a number", chat(`"stream":1`), InvalidRequest, "stream"},
		{"no answers", chat(`"n":0`), InvalidRequest, "n"},
		{"a negative limit", chat(`"max_tokens":-1`), InvalidRequest, "max_tokens"},
		{"a limit that is a fraction", chat(`"max_tokens":1.5`), InvalidRequest, "max_tokens"},
		{"a limit past int64", chat(`"max_tokens":9223372036854775808`), InvalidRequest, "max_tokens"},
		{"a limit as a string", chat(`"max_completion_tokens":"5"`), InvalidRequest, "max_completion_tokens"},
		{"a tool without a type", chat(`"tools":[{"function":{"name":"f"}}]`), InvalidRequest, "tools.name"},
		{"tools as an object", chat(`"tools":{}`), InvalidRequest, "tools"},
		{"a tool that is a string", chat(`"tools":["f"]`), InvalidRequest, "tools"},
		{"a tool call that is a string", said(`{"role":"assistant","tool_calls":["f"]}`), InvalidRequest, "messages.tool_calls"},
		{"a function without a name", chat(`"tools":[{"type":"function","function":{}}]`), InvalidRequest, "tools.name"},
		{"a function with its name in the wrong place", chat(`"tools":[{"type":"function","name":"f"}]`), InvalidRequest, "tools.name"},
		{"a tool with a line feed in its name", chat(`"tools":[{"type":"function","function":{"name":"a\n"}}]`), InvalidRequest, "tools.name"},
		{"a tool with a long name", chat(`"functions":[{"name":"` + strings.Repeat("f", 129) + `"}]`), InvalidRequest, "tools.name"},
		{"documents as an object", chat(`"documents":{}`), InvalidRequest, "documents"},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			_, err := Decode(ChatCompletions, []byte(c.body), Limits{})
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v", err)
			}
			if e.Code != c.code || e.Param != c.param {
				t.Errorf("got %s of %q (%s), want %s of %q", e.Code, e.Param, e.Message, c.code, c.param)
			}
		})
	}
}

func TestDecodeAccepts(t *testing.T) {
	cases := []struct{ claim, body string }{
		{"nulls, as SDKs send for unset fields", chat(`"max_tokens":null,"n":null,"tools":null,"tool_choice":null,"stream":null,"stream_options":null,"response_format":null,"store":null,"documents":null,"guided_json":null,"chat_template_kwargs":null,"modalities":null`)},
		{"the sampling parameters", chat(`"temperature":0.7,"top_p":1,"top_k":-1,"min_p":0.0,"seed":9007199254740993,"stop":["a"],"logit_bias":{"50256":-100},"stop_token_ids":[1,2],"repetition_penalty":1.1,"bad_words":["x"]`)},
		{"store when it is false", chat(`"store":false`)},
		{"text as the only modality", chat(`"modalities":[ "text" ]`)},
		{"a schema with names that differ in case", chat(`"tools":[{"type":"function","function":{"name":"f","parameters":{"$schema":"s","properties":{"id":{},"ID":{}}}}}]`)},
		{"nesting at the limit", chat(`"metadata":` + strings.Repeat("[", 127) + strings.Repeat("]", 127))},
		{"an assistant message echoed as it came", said(`{"role":"assistant","content":null,"refusal":null,"annotations":[],"audio":null,"function_call":null,"tool_calls":[],"reasoning_content":"hm"}`)},
		{"template switches", chat(`"chat_template_kwargs":{"enable_thinking":false,"budget":5,"mode":"x"}`)},
		{"white space around", " \r\n" + chat("") + "\n"},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			r, err := Decode(ChatCompletions, []byte(c.body), Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Unknown) > 0 {
				t.Errorf("unknown: %v", r.Unknown)
			}
		})
	}
}

func TestRequest(t *testing.T) {
	five, nine := int64(5), int64(9)
	image := `{"type":"image_url","image_url":{"url":"%s"}}`
	user := func(parts string) string { return said(`{"role":"user","content":[` + parts + `]}`) }
	cases := []struct {
		claim string
		body  string
		get   func(*Request) any
		want  any
	}{
		{"the model is read", chat(""), func(r *Request) any { return r.Model }, "m"},
		{"the model may come last", `{"messages":[{"role":"user","content":"hi"}],"model":"\u006d"}`, func(r *Request) any { return r.Model }, "m"},
		{"the higher limit counts", chat(`"max_tokens":5,"max_completion_tokens":9`), func(r *Request) any { return r.MaxTokens }, &nine},
		{"a null limit does not count", chat(`"max_tokens":5,"max_completion_tokens":null`), func(r *Request) any { return r.MaxTokens }, &five},
		{"one answer is the default", chat(""), func(r *Request) any { return r.N }, int64(1)},
		{"a client's salt is removed", chat(`"cache_salt":"x"`), func(r *Request) any { return r.Removed }, []string{"cache_salt"}},
		{"usage asked for", chat(`"stream":true,"stream_options":{"include_usage":true}`), func(r *Request) any { return r.IncludeUsage && r.Stream }, true},
		{"tools by name and type", chat(`"tools":[{"type":"function","function":{"name":"f"}},{"type":"custom","custom":{"name":"c"}},{"type":"mcp","server_label":"s"},{"type":"file_search"}]`), func(r *Request) any { return r.Tools }, []Tool{{"function", "f"}, {"custom", "c"}, {"mcp", "s"}, {"file_search", "file_search"}}},
		{"a name beside a function does not hide the function's", chat(`"tools":[{"name":"good","type":"function","function":{"name":"evil"}}]`), func(r *Request) any { return []any{r.Tools, r.Unknown} }, []any{[]Tool{{"function", "evil"}}, []string{"tool.field"}}},
		{"a second body does not hide the first", chat(`"tools":[{"custom":{"name":"good"},"type":"function","function":{"name":"evil"}}]`), func(r *Request) any { return []any{r.Tools, r.Unknown} }, []any{[]Tool{{"function", "evil"}}, []string{"tool.field"}}},
		{"old functions are tools", chat(`"functions":[{"name":"f"}]`), func(r *Request) any { return r.Tools }, []Tool{{"function", "f"}}},
		{"tools in a developer message are tools", said(`{"role":"developer","content":"","tools":[{"type":"function","function":{"name":"f"}}]}`), func(r *Request) any { return r.Tools }, []Tool{{"function", "f"}}},
		{"a tool choice by word", chat(`"tool_choice":"required"`), func(r *Request) any { return r.ToolChoice }, ToolChoiceRequired},
		{"a tool choice by name", chat(`"tool_choice":{"type":"function","function":{"name":"f"}}`), func(r *Request) any { return r.ToolChoice }, ToolChoiceNamed},
		{"an unknown tool choice", chat(`"tool_choice":"maybe"`), func(r *Request) any { return r.Unknown }, []string{"tool_choice"}},
		{"tool calls", said(`{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}`), func(r *Request) any { return r.Messages[0].ToolCalls }, []ToolCall{{"1", "function", "f"}}},
		{"an old function call", said(`{"role":"assistant","function_call":{"name":"f","arguments":"{}"}}`), func(r *Request) any { return r.Messages[0].ToolCalls }, []ToolCall{{"", "function", "f"}}},
		{"documents are counted", chat(`"documents":[{"text":"a"},{"text":"b"}]`), func(r *Request) any { return r.Documents }, 2},
		{"a JSON answer is structured", chat(`"response_format":{"type":"json_object"}`), func(r *Request) any { return r.StructuredOutput }, true},
		{"a text answer is not", chat(`"response_format":{"type":"text"}`), func(r *Request) any { return r.StructuredOutput }, false},
		{"a grammar is structured", chat(`"guided_regex":"a*"`), func(r *Request) any { return r.StructuredOutput }, true},
		{"an unknown answer format", chat(`"response_format":{"type":"x"}`), func(r *Request) any { return r.Unknown }, []string{"response_format.type"}},
		{"a capital role is unknown", said(`{"role":"System","content":""}`), func(r *Request) any { return r.Unknown }, []string{"message.role"}},
		{"no role is unknown", said(`{"content":""}`), func(r *Request) any { return r.Unknown }, []string{"message.role"}},
		{"an unknown message field", said(`{"role":"user","content":"","prefix":true}`), func(r *Request) any { return r.Unknown }, []string{"message.field"}},
		{"an unknown part type", user(`{"type":"image_embeds","image_embeds":"x"}`), func(r *Request) any { return r.Unknown }, []string{"part.field", "part.type"}},
		{"a part without a type", user(`{"text":"x"}`), func(r *Request) any { return r.Unknown }, []string{"part.field", "part.type"}},
		{"an image under the type text", user(`{"type":"text","text":"x","image_url":"data:,"}`), func(r *Request) any { return r.Unknown }, []string{"part.field"}},
		{"an inline image is media", user(fmt.Sprintf(image, "DATA:image/png;base64,AAAA")), func(r *Request) any { return []bool{r.Media, r.RemoteURL} }, []bool{true, false}},
		{"a linked image is remote", user(fmt.Sprintf(image, "http://169.254.169.254/")), func(r *Request) any { return []bool{r.Media, r.RemoteURL} }, []bool{true, true}},
		{"a file scheme is remote", user(fmt.Sprintf(image, "file:///etc/passwd")), func(r *Request) any { return r.RemoteURL }, true},
		{"a file by id is external state", user(`{"type":"file","file":{"file_id":"f"}}`), func(r *Request) any { return r.ExternalState }, true},
		{"a kept spoken answer is external state", said(`{"role":"assistant","audio":{"id":"a"}}`), func(r *Request) any { return r.ExternalState }, true},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			r, err := Decode(ChatCompletions, []byte(c.body), Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if got := c.get(r); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// TestEveryStringIsScanned plants a mark in every place of a body that can hold
// text and looks for it among the texts.
func TestEveryStringIsScanned(t *testing.T) {
	places := []string{
		said(`{"role":"user","content":"MARK"}`),
		said(`{"role":"system","content":[{"type":"text","text":"MA\u0052K"}]}`),
		said(`{"role":"user","content":["MARK"]}`),
		said(`{"role":"assistant","content":[{"type":"refusal","refusal":"MARK"}]}`),
		said(`{"role":"assistant","refusal":"MARK"}`),
		said(`{"role":"assistant","reasoning_content":"MARK"}`),
		said(`{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":\"MARK\"}"}}]}`),
		said(`{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{"MARK":1}}}]}`),
		said(`{"role":"assistant","tool_calls":[{"id":"MARK","type":"function","function":{"name":"f"}}]}`),
		said(`{"role":"assistant","function_call":{"name":"MARK"}}`),
		said(`{"role":"tool","tool_call_id":"MARK","content":""}`),
		said(`{"role":"user","name":"MARK","content":""}`),
		said(`{"role":"user","content":"","surprise":{"MARK":1}}`),
		said(`{"role":"user","content":[{"type":"surprise","x":["MARK"]}]}`),
		said(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://MARK/"}}]}`),
		said(`{"role":"user","content":[{"type":"file","file":{"filename":"MARK"}}]}`),
		chat(`"tools":[{"type":"function","function":{"name":"f","description":"MARK"}}]`),
		chat(`"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"MARK":{}}}}}]`),
		chat(`"tools":[{"type":"surprise","MARK":1}]`),
		chat(`"tools":[{"type":"mcp","server_label":"MARK"}]`),
		chat(`"functions":[{"name":"f","description":"MARK"}]`),
		chat(`"tool_choice":{"type":"function","function":{"name":"MARK"}}`),
		chat(`"documents":[{"title":"MARK"}]`),
		chat(`"metadata":{"MARK":"v"}`),
		chat(`"metadata":{"k":"MARK"}`),
		chat(`"user":"MARK"`),
		chat(`"stop":["MARK"]`),
		chat(`"prediction":{"type":"content","content":"MARK"}`),
		chat(`"response_format":{"type":"json_schema","json_schema":{"name":"MARK"}}`),
		chat(`"structured_outputs":{"choice":["MARK"]}`),
		chat(`"chat_template_kwargs":{"mode":"MARK"}`),
	}
	for _, body := range places {
		r, err := Decode(ChatCompletions, []byte(body), Limits{})
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		found := false
		for text := range r.Texts() {
			found = found || bytes.Contains(text.Data, []byte("MARK"))
		}
		if !found {
			t.Errorf("not scanned: %s", body)
		}
	}
}

func TestLongNumbersInFreeContentAreScanned(t *testing.T) {
	r, err := Decode(ChatCompletions, []byte(chat(`"metadata":{"card":4111111111111111},"seed":4111111111111111`)), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for text := range r.Texts() {
		if string(text.Data) == "4111111111111111" {
			count++
		}
	}
	if count != 1 {
		t.Errorf("scanned %d numbers, want the one in metadata", count)
	}
}

func TestMediaPayloadsAreNotTexts(t *testing.T) {
	body := said(`{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"PAYLOAD","format":"wav"}},{"type":"image_url","image_url":"data:PAYLOAD"},{"type":"file","file":{"file_data":"PAYLOAD"}}]}`)
	r, err := Decode(ChatCompletions, []byte(body), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for text := range r.Texts() {
		if bytes.Contains(text.Data, []byte("PAYLOAD")) {
			t.Errorf("payload among the texts: %q", text.Data)
		}
	}
	if !r.Media {
		t.Error("media not noted")
	}
}

func TestUpstream(t *testing.T) {
	ten := int64(10)
	cases := []struct {
		claim string
		body  string
		edits Edits
		want  string
	}{
		{"no edit sends the client's bytes", chat(`"seed":9007199254740993,"temperature":1.50`), Edits{}, chat(`"seed":9007199254740993,"temperature":1.50`)},
		{"an alias becomes the served name", chat(""), Edits{Model: "org/m"}, strings.Replace(chat(""), `"m"`, `"org/m"`, 1)},
		{"a stream asks for usage", chat(`"stream":true`), Edits{}, chat(`"stream":true,"stream_options":{"include_usage":true}`)},
		{"a stream that refuses usage asks for it", chat(`"stream":true,"stream_options":{"include_usage":false}`), Edits{}, chat(`"stream":true,"stream_options":{"include_usage":true}`)},
		{"null options are replaced", chat(`"stream":true,"stream_options":null`), Edits{}, chat(`"stream":true,"stream_options":{"include_usage":true}`)},
		{"a stream that asks is unchanged", chat(`"stream":true,"stream_options":{"include_usage":true}`), Edits{}, chat(`"stream":true,"stream_options":{"include_usage":true}`)},
		{"an answer in one piece asks for nothing", chat(`"stream":false`), Edits{}, chat(`"stream":false`)},
		{"a client's salt is taken out", chat(`"cache_salt":"x","seed":1`), Edits{}, chat(`"seed":1`)},
		{"a limit is imposed where there is none", chat(""), Edits{MaxOutputTokens: &ten}, chat(`"max_tokens":10`)},
		{"a null limit is replaced", chat(`"max_tokens":null`), Edits{MaxOutputTokens: &ten}, chat(`"max_tokens":10`)},
		{"a higher limit is lowered", chat(`"max_completion_tokens":11`), Edits{MaxOutputTokens: &ten}, chat(`"max_completion_tokens":10`)},
		{"a lower limit stays", chat(`"max_completion_tokens":9`), Edits{MaxOutputTokens: &ten}, chat(`"max_completion_tokens":9`)},
		{"each limit is lowered", chat(`"max_tokens":20,"max_completion_tokens":30`), Edits{MaxOutputTokens: &ten}, chat(`"max_tokens":10,"max_completion_tokens":10`)},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			r, err := Decode(ChatCompletions, []byte(c.body), Limits{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := r.Upstream(c.edits)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if string(r.Body) != c.body {
				t.Error("the client's body was changed")
			}
		})
	}
}

func TestLimits(t *testing.T) {
	body := []byte(chat(`"metadata":[[]]`))
	if _, err := Decode(ChatCompletions, body, Limits{BodyBytes: len(body), Depth: 3}); err != nil {
		t.Errorf("at the limits: %v", err)
	}
	for _, l := range []Limits{{BodyBytes: len(body) - 1}, {Depth: 2}} {
		if _, err := Decode(ChatCompletions, body, l); err == nil {
			t.Errorf("accepted past %+v", l)
		}
	}
}

func TestOperationsAreDistinctAndCanonical(t *testing.T) {
	seen := map[string]bool{}
	for _, op := range Operations() {
		route := op.Method + " " + op.Path
		if seen[route] || seen[op.Name] || !strings.HasPrefix(op.Path, "/v1/") || strings.HasSuffix(op.Path, "/") {
			t.Errorf("bad route %s (%s)", route, op.Name)
		}
		seen[route], seen[op.Name] = true, true
		if op.HasBody() != (op.Method == "POST") {
			t.Errorf("%s: body and method disagree", route)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(chat(`"stream":true,"cache_salt":"x","max_tokens":5`)))
	f.Add([]byte(said(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}},"x"]}`)))
	f.Add([]byte(chat(`"tools":[{"type":"function","function":{"name":"f","parameters":{"a":1e5}}}],"tool_choice":"none"`)))
	f.Add([]byte(chat(`"chat_template_kwargs":{"a":1},"response_format":{"type":"text"},"modalities":["text"]`)))
	ten := int64(10)
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := Decode(ChatCompletions, body, Limits{})
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("not a wire.Error: %v", err)
			}
			return
		}
		if !jsontext.Value(body).IsValid() {
			t.Fatalf("accepted what is not JSON: %q", body)
		}
		out, err := r.Upstream(Edits{Model: "served", MaxOutputTokens: &ten})
		if err != nil {
			t.Fatalf("accepted, but cannot be edited: %v", err)
		}
		up, err := Decode(ChatCompletions, out, Limits{BodyBytes: len(out)})
		if err != nil {
			t.Fatalf("%q made the unacceptable %q: %v", body, out, err)
		}
		if up.Model != "served" || up.MaxTokens == nil || *up.MaxTokens > ten || up.Stream && !up.IncludeUsage || len(up.Removed) > 0 {
			t.Fatalf("%q made %q", body, out)
		}
		if !reflect.DeepEqual(up.Messages, r.Messages) || !reflect.DeepEqual(up.Tools, r.Tools) {
			t.Fatalf("%q made %q, which says something else", body, out)
		}
	})
}

// BenchmarkDecode decodes conversations that differ in length and content.
func BenchmarkDecode(b *testing.B) {
	for _, size := range []int{2 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			bodies := make([][]byte, 8)
			for i := range bodies {
				bodies[i] = conversation(rand.New(rand.NewPCG(uint64(i), 7)), size)
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := Decode(ChatCompletions, bodies[i%len(bodies)], Limits{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func conversation(r *rand.Rand, size int) []byte {
	words := strings.Fields("ledger patient the où claim 42 \"quoted\" account note\n policy für reserve")
	var messages []map[string]any
	for n := 0; n < size; {
		var text strings.Builder
		for range 20 + r.IntN(150) {
			text.WriteString(words[r.IntN(len(words))])
			text.WriteByte(' ')
		}
		n += text.Len() + 60
		messages = append(messages, map[string]any{"role": []string{"user", "assistant"}[len(messages)%2], "content": text.String()})
	}
	body, err := json.Marshal(map[string]any{"model": "small", "messages": slices.Clip(messages), "stream": true, "max_tokens": 100 + r.IntN(100)})
	if err != nil {
		panic(err)
	}
	return body
}
