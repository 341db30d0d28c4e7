package classify

import (
	"slices"

	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/policy"
)

// Rule gives a fact, and where Raises is set a class, to a request in which it
// holds. holds must be monotone: true for a request stays true for the same
// request with more content.
type Rule struct {
	Name   string
	Fact   policy.Fact
	Class  policy.Class
	Raises bool

	holds func(*wire.Request) bool
}

// Rules returns the table.
func Rules() []Rule {
	return []Rule{
		// What cannot be told is the most dangerous.
		{"a type or field that the tables do not list", policy.UnknownType, policy.Unclassified, true, hasUnknown},
		{"a tool of a type that the tables do not list", policy.UnknownType, policy.Unclassified, true, hasUnknownTool},
		{"content that a server holds", policy.ExternalState, policy.Unclassified, true, hasExternalState},

		// The model may act, or has acted.
		{"a tool is declared, whatever tool_choice says", policy.ToolsDeclared, policy.AgentToolCall, true, hasTools},
		{"a tool is forced", policy.ToolChoiceForced, policy.AgentToolCall, true, hasForcedTool},
		{"a message calls a tool", policy.ToolCallPresent, policy.AgentToolCall, true, hasToolCall},
		{"a message is a tool's result", policy.ToolResult, policy.AgentToolCall, true, hasToolResult},
		{"a tool's result follows a call", policy.ActiveToolLoop, policy.AgentToolCall, true, hasToolLoop},
		{"a tool that the server runs", policy.ServerTool, policy.AgentToolCall, true, hasToolOf(serverTools)},
		{"a tool on a remote MCP server", policy.RemoteMCP, policy.AgentToolCall, true, hasToolOf(mcpTools)},
		{"what a tool that the server runs has left", policy.ServerTool, policy.AgentToolCall, true, hasItemOf(serverItems)},
		{"what a remote MCP server has left", policy.RemoteMCP, policy.AgentToolCall, true, hasItemOf(mcpItems)},

		// Retrieved content is in it, or will be.
		{"documents for the template", policy.RetrievedContent, policy.RAG, true, hasDocuments},
		{"an attached file", policy.RetrievedContent, policy.RAG, true, hasPart("file", "input_file")},
		{"what a search has left", policy.RetrievedContent, policy.RAG, true, hasItemOf(retrievalItems)},
		{"a tool that retrieves", policy.RetrievalTool, policy.RAG, true, hasToolOf(retrievalTools)},

		// Facts that raise no class; labels and policy use them.
		{"media that no detector reads", policy.OpaqueMedia, 0, false, hasMedia},
		{"content that the engine would fetch", policy.RemoteURL, 0, false, hasRemoteURL},
		{"an answer of a given form", policy.StructuredOutput, 0, false, hasStructuredOutput},
		{"instructions above the user's", policy.SystemPrompt, 0, false, hasSystemPrompt},
	}
}

// The types of tools that the API references document. Names of function tools
// are the client's own words and say nothing.
var (
	clientTools    = []string{"function", "custom"}
	retrievalTools = []string{
		"file_search", "retrieval", "web_search", "web_search_preview",
		"web_search_2025_08_26", "web_search_preview_2025_03_11",
	}
	mcpTools    = []string{"mcp"}
	actingTools = []string{
		"code_interpreter", "computer", "computer_use_preview", "local_shell", "shell",
		"apply_patch", "image_generation",
	}
	serverTools = slices.Concat(retrievalTools, mcpTools, actingTools)
)

// The types of input items of the responses route that stand for the work of
// such tools. That they are calls, or results, package wire says.
var (
	retrievalItems = []string{"file_search_call", "web_search_call"}
	mcpItems       = []string{"mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "mcp_call"}
	serverItems    = slices.Concat(retrievalItems, mcpItems, []string{
		"code_interpreter_call", "computer_call", "computer_call_output", "local_shell_call", "local_shell_call_output",
		"shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output", "image_generation_call",
	})
)

func hasItemOf(types []string) func(*wire.Request) bool {
	return func(r *wire.Request) bool {
		return slices.ContainsFunc(r.Items, func(kind string) bool { return slices.Contains(types, kind) })
	}
}

func hasToolOf(types []string) func(*wire.Request) bool {
	return func(r *wire.Request) bool {
		return slices.ContainsFunc(r.Tools, func(t wire.Tool) bool { return slices.Contains(types, t.Type) })
	}
}

func hasUnknownTool(r *wire.Request) bool {
	return slices.ContainsFunc(r.Tools, func(t wire.Tool) bool {
		return !slices.Contains(clientTools, t.Type) && !slices.Contains(serverTools, t.Type)
	})
}

func hasUnknown(r *wire.Request) bool          { return len(r.Unknown) > 0 }
func hasExternalState(r *wire.Request) bool    { return r.ExternalState }
func hasTools(r *wire.Request) bool            { return len(r.Tools) > 0 }
func hasDocuments(r *wire.Request) bool        { return r.Documents > 0 }
func hasMedia(r *wire.Request) bool            { return r.Media }
func hasRemoteURL(r *wire.Request) bool        { return r.RemoteURL }
func hasStructuredOutput(r *wire.Request) bool { return r.StructuredOutput }

func hasForcedTool(r *wire.Request) bool {
	return r.ToolChoice == wire.ToolChoiceRequired || r.ToolChoice == wire.ToolChoiceNamed
}

func isToolResult(m wire.Message) bool { return m.Role == "tool" || m.Role == "function" }

func hasToolCall(r *wire.Request) bool {
	return slices.ContainsFunc(r.Messages, func(m wire.Message) bool { return len(m.ToolCalls) > 0 })
}

func hasToolResult(r *wire.Request) bool { return slices.ContainsFunc(r.Messages, isToolResult) }

// hasToolLoop asks whether a result ever followed a call. That the loop is over
// by now cannot be seen: a message after it does not make the request a chat.
func hasToolLoop(r *wire.Request) bool {
	called := false
	for _, m := range r.Messages {
		if called && isToolResult(m) {
			return true
		}
		called = called || len(m.ToolCalls) > 0
	}
	return false
}

func hasPart(kinds ...string) func(*wire.Request) bool {
	return func(r *wire.Request) bool {
		return slices.ContainsFunc(r.Messages, func(m wire.Message) bool {
			return slices.ContainsFunc(m.Parts, func(p wire.Part) bool { return slices.Contains(kinds, p.Type) })
		})
	}
}

func hasSystemPrompt(r *wire.Request) bool {
	return slices.ContainsFunc(r.Messages, func(m wire.Message) bool {
		return m.Role == "system" || m.Role == "developer"
	})
}
