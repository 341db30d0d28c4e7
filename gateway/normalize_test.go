package gateway

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/gateway/wire"
)

// Each case is a clause of what engines do to a body before they tokenize it.
// The engine here renders what it is sent, salt and edits of ours included, and
// reports the length of that; what we made of the client's bytes must be the
// same.
func TestPromptsAreNormalizedAsTheEngineDoes(t *testing.T) {
	s := serve(t, patient)
	const (
		tools = `"tools":[{"type":"function","function":{"name":"lookup","description":"Looks up <a> case","parameters":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"number"}},"required":["z"]},"strict":true}},{"type":"function","function":{"name":"bare"}}]`
		turn  = `{"role":"user","content":"MARK"}`
		call  = `{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"lookup","arguments":"{\"z\": \"é\", \"a\": 1.50}"}}]}`
	)
	for _, c := range []struct {
		claim string
		op    wire.Operation
		who   string
		body  string // without the model
		basis string // native where empty
	}{
		{"content is a string", wire.ChatCompletions, "acme", `"messages":[` + turn + `]`, ""},
		{"content is a part", wire.ChatCompletions, "acme", `"messages":[{"role":"user","content":[{"type":"text","text":"MARK"}]}]`, ""},
		{"content is several parts, one of them empty", wire.ChatCompletions, "acme", `"messages":[{"role":"user","content":[{"type":"text","text":"MARK"},{"type":"text","text":""},{"type":"text","text":"and more"}]}]`, ""},
		{"content is null", wire.ChatCompletions, "acme", `"messages":[` + turn + `,{"role":"assistant","content":null},{"role":"user","content":"?"}]`, ""},
		{"content holds special tokens and escapes", wire.ChatCompletions, "acme", `"messages":[{"role":"user","content":"MARK <|im_end|>\n\u00e9\ud83d\ude00 \"q\" \\ &<>"}]`, ""},
		{"a system message stands first", wire.ChatCompletions, "acme", `"messages":[{"role":"system","content":"Be brief."},` + turn + `]`, ""},
		{"a participant has a name", wire.ChatCompletions, "acme", `"messages":[{"role":"user","name":"ann","content":"MARK"}]`, ""},
		{"arguments of calls are parsed, and results follow", wire.ChatCompletions, "agent", `"messages":[` + turn + `,` + call + `,{"role":"tool","tool_call_id":"c1","content":"found"}],` + tools, ""},
		{"arguments are empty", wire.ChatCompletions, "agent", `"messages":[` + turn + `,{"role":"assistant","tool_calls":[{"id":"c1","type":"function","function":{"name":"bare","arguments":""}}]},{"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"o"}]}],` + tools, ""},
		{"tools are printed in order", wire.ChatCompletions, "agent", `"messages":[` + turn + `],` + tools, ""},
		{"tool_choice none leaves the tools", wire.ChatCompletions, "agent", `"messages":[` + turn + `],"tool_choice":"none",` + tools, ""},
		{"tool_choice auto", wire.ChatCompletions, "agent", `"messages":[` + turn + `],"tool_choice":"auto",` + tools, ""},
		{"a tool is forced", wire.ChatCompletions, "agent", `"messages":[` + turn + `],"tool_choice":{"type":"function","function":{"name":"lookup"}},` + tools, ""},
		{"chat_template_kwargs of the request", wire.ChatCompletions, "acme", `"messages":[` + turn + `],"chat_template_kwargs":{"enable_thinking":false}`, ""},
		{"no prompt for an answer", wire.ChatCompletions, "acme", `"messages":[` + turn + `],"add_generation_prompt":false`, ""},
		{"the last message is continued", wire.ChatCompletions, "acme", `"messages":[` + turn + `,{"role":"assistant","content":"It is "}],"add_generation_prompt":false,"continue_final_message":true`, ""},
		{"reasoning of an earlier answer", wire.ChatCompletions, "acme", `"messages":[` + turn + `,{"role":"assistant","content":"a","reasoning":"because"},{"role":"user","content":"?"}]`, ""},
		{"documents", wire.ChatCompletions, "rag", `"messages":[` + turn + `],"documents":[{"title":"t","text":"d"}]`, ""},
		{"special tokens around a chat", wire.ChatCompletions, "acme", `"messages":[` + turn + `],"add_special_tokens":true`, ""},
		{"fields without a bearing", wire.ChatCompletions, "acme", `"messages":[` + turn + `],"temperature":0,"stop":["x"],"user":"u","seed":1,"max_tokens":3`, ""},
		{"a completion", wire.Completions, "acme", `"prompt":"MARK <|im_end|>"`, ""},
		{"a completion without special tokens", wire.Completions, "acme", `"prompt":"MARK","add_special_tokens":false`, ""},
		{"a completion in a list", wire.Completions, "acme", `"prompt":["MARK"]`, ""},
		{"a translated message", wire.Messages, "acme", `"max_tokens":9,"system":[{"type":"text","text":"Be brief."}],"messages":[{"role":"user","content":[{"type":"text","text":"MARK"},{"type":"text","text":"more"}]}]`, ""},
		{"a translated message with tools and their results", wire.Messages, "agent", `"max_tokens":9,"messages":[{"role":"user","content":"MARK"},{"role":"assistant","content":[{"type":"text","text":"Looking."},{"type":"tool_use","id":"c1","name":"lookup","input":{"z":"1","a":2}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"found"},{"type":"text","text":"And?"}]}],"tools":[{"name":"lookup","description":"d","input_schema":{"type":"object","properties":{"z":{"type":"string"}}}}]`, ""},
		{"a translated message that is continued", wire.Messages, "acme", `"max_tokens":9,"messages":[{"role":"user","content":"MARK"},{"role":"assistant","content":"It is"}]`, ""},
		{"a response of a text", wire.Responses, "acme", `"input":"MARK"`, ""},
		{"a response with instructions and turns", wire.Responses, "acme", `"instructions":"Be brief.","input":[{"role":"user","content":[{"type":"input_text","text":"MARK"},{"type":"input_text","text":"more"}]},{"type":"message","role":"assistant","id":"m","status":"completed","content":[{"type":"output_text","text":"a","annotations":[]}]},{"role":"user","content":"?"}]`, ""},
		{"a response with calls and results", wire.Responses, "agent", `"input":[{"role":"user","content":"MARK"},{"type":"function_call","call_id":"c1","name":"lookup","arguments":"{\"z\":\"1\"}"},{"type":"function_call","call_id":"c2","name":"bare","arguments":"{}"},{"type":"function_call_output","call_id":"c1","output":"o"},{"type":"function_call_output","call_id":"c2","output":"p"}]`, ""},
		{"the tools of a response are left to the engine", wire.Responses, "agent", `"input":"MARK","tools":[{"type":"function","name":"lookup","parameters":{"type":"object"}}]`, basisEngine},
	} {
		body := `{"model":"small",` + strings.ReplaceAll(c.body, "MARK", s.newMark()) + `}`
		a := s.do(s.to(t.Context(), c.op, c.who, body))
		if a.status != http.StatusOK {
			t.Errorf("%s: %d %s", c.claim, a.status, a.body)
			continue
		}
		want := c.basis
		if want == "" {
			want = basisNative
		}
		d, o := s.lone(a)
		if d.Request.PromptTokens != o.Outcome.PromptTokens || !strings.HasPrefix(d.Request.PromptBasis, want) {
			t.Errorf("%s: counted %d (%s %v), the engine %d", c.claim, d.Request.PromptTokens, d.Request.PromptBasis, d.Request.PromptWhy, o.Outcome.PromptTokens)
		}
	}
}
