package classify

import (
	"reflect"
	"testing"

	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/policy"
)

// TestRoutes classifies what only the other routes can say.
func TestRoutes(t *testing.T) {
	type facts = []policy.Fact
	input := func(items string) string { return `{"model":"m","input":[` + items + `]}` }
	tooled := func(tool string) string { return `{"model":"m","input":"x","tools":[` + tool + `]}` }
	ask := func(blocks string) string {
		return `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[` + blocks + `]}]}`
	}
	const (
		said   = `{"role":"user","content":"x"}`
		called = `{"type":"function_call","call_id":"1","name":"f","arguments":"{}"}`
		result = `{"type":"function_call_output","call_id":"1","output":"42"}`
	)
	cases := []struct {
		claim string
		op    wire.Operation
		body  string
		class policy.Class
		facts facts
	}{
		{"a completion is chat", wire.Completions, `{"model":"m","prompt":"x"}`, policy.Chat, nil},
		{"an embedding is embedding", wire.Embeddings, `{"model":"m","input":"x"}`, policy.Embedding, nil},

		{"a text is chat", wire.Responses, `{"model":"m","input":"x"}`, policy.Chat, nil},
		{"instructions", wire.Responses, `{"model":"m","input":"x","instructions":"y"}`, policy.Chat, facts{policy.SystemPrompt}},
		{"a developer's item", wire.Responses, input(`{"role":"developer","content":"x"}`), policy.Chat, facts{policy.SystemPrompt}},
		{"an earlier answer is chat", wire.Responses, input(said + `,{"type":"reasoning","id":"r","summary":[]},{"type":"message","role":"assistant","id":"m","content":[{"type":"output_text","text":"x","annotations":[]}]},` + said), policy.Chat, nil},
		{"a declared function", wire.Responses, tooled(`{"type":"function","name":"f"}`), policy.AgentToolCall, facts{policy.ToolsDeclared}},
		{"a past call", wire.Responses, input(said + "," + called), policy.AgentToolCall, facts{policy.ToolCallPresent}},
		{"a loop", wire.Responses, input(said + "," + called + "," + result), policy.AgentToolCall, facts{policy.ActiveToolLoop, policy.ToolCallPresent, policy.ToolResult}},
		{"a search tool", wire.Responses, tooled(`{"type":"web_search_2025_08_26"}`), policy.AgentToolCall, facts{policy.RetrievalTool, policy.ServerTool, policy.ToolsDeclared}},
		{"an MCP server", wire.Responses, tooled(`{"type":"mcp","server_label":"s","server_url":"https://x"}`), policy.AgentToolCall, facts{policy.RemoteMCP, policy.RemoteURL, policy.ServerTool, policy.ToolsDeclared}},
		{"what a search has left", wire.Responses, input(`{"type":"file_search_call","id":"1","queries":["q"],"results":[]}`), policy.AgentToolCall, facts{policy.RetrievedContent, policy.ServerTool, policy.ToolCallPresent}},
		{"what an MCP server has left", wire.Responses, input(`{"type":"mcp_call","id":"1","server_label":"s","name":"f","arguments":"{}","output":"x"}`), policy.AgentToolCall, facts{policy.RemoteMCP, policy.ServerTool, policy.ToolCallPresent}},
		{"an attached file", wire.Responses, input(`{"role":"user","content":[{"type":"input_file","file_data":"data:,x","filename":"a"}]}`), policy.RAG, facts{policy.OpaqueMedia, policy.RetrievedContent}},
		{"a linked image", wire.Responses, input(`{"role":"user","content":[{"type":"input_image","image_url":"https://x"}]}`), policy.Chat, facts{policy.OpaqueMedia, policy.RemoteURL}},
		{"thoughts that nobody can read", wire.Responses, input(`{"type":"reasoning","id":"r","summary":[],"encrypted_content":"x"}`), policy.Chat, facts{policy.OpaqueMedia}},
		{"a form of the answer", wire.Responses, `{"model":"m","input":"x","text":{"format":{"type":"json_schema","name":"n","schema":{}}}}`, policy.Chat, facts{policy.StructuredOutput}},
		{"a file that a server holds", wire.Responses, input(`{"role":"user","content":[{"type":"input_file","file_id":"f"}]}`), policy.Unclassified, facts{policy.ExternalState, policy.OpaqueMedia, policy.RetrievedContent}},
		{"an unknown item", wire.Responses, input(`{"type":"hologram"}`), policy.Unclassified, facts{policy.UnknownType}},
		{"an unknown tool", wire.Responses, tooled(`{"type":"teleport"}`), policy.Unclassified, facts{policy.ToolsDeclared, policy.UnknownType}},

		{"a message is chat", wire.Messages, ask(`{"type":"text","text":"x"}`), policy.Chat, nil},
		{"a result", wire.Messages, ask(`{"type":"tool_result","tool_use_id":"1","content":"x"}`), policy.AgentToolCall, facts{policy.ToolResult}},
		{"an unknown block", wire.Messages, ask(`{"type":"hologram"}`), policy.Unclassified, facts{policy.UnknownType}},
	}
	for _, c := range cases {
		t.Run(c.op.Name+": "+c.claim, func(t *testing.T) {
			r, err := wire.Decode(c.op, []byte(c.body), wire.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			got := Classify(Subject{Operation: c.op, Request: r})
			if got.Class != c.class || !reflect.DeepEqual(got.Facts, c.facts) {
				t.Errorf("got %s %v, want %s %v", got.Class, got.Facts, c.class, c.facts)
			}
		})
	}
}
