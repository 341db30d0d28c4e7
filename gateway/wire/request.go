package wire

import (
	"fmt"
	"strconv"

	"github.com/sallyport-ai/sallyport/routing/splice"
)

// Request is a decoded body: what classification, detection and policy need,
// and the bytes themselves.
type Request struct {
	Operation string // name in the table, "chat.completions"
	Body      []byte // as the client sent it, or its translation

	Translated bool // the client spoke another protocol than the engine

	Model        string
	Stream       bool
	IncludeUsage bool   // the client asked for the usage chunk of a stream
	MaxTokens    *int64 // the highest output limit that the client named; nil: none
	N            int64  // answers asked for, at least 1

	Tools      []Tool
	ToolChoice ToolChoice
	Messages   []Message
	Items      []string // types of the input items of a response, "" for one that is not known
	Documents  int      // entries of documents[]
	Prompts    int      // where a list of them was sent, each of which meets the window by itself; else 0

	StructuredOutput bool // the answer's form is constrained
	Media            bool // images, audio or files, which no detector can read
	RemoteURL        bool // content that the engine would fetch
	ExternalState    bool // content that a server holds, named by id

	Removed []string // fields taken out, sorted
	Unknown []string // places of unknown types and fields, from a fixed set, sorted

	op        Operation
	lost      string           // place of something that could not be translated
	thinking  bool             // the client wants to see reasoning
	maxTokens map[string]int64 // limits that the client named, by field
	spans     []span           // texts
}

// Tool is a tool that the request declares.
type Tool struct {
	Type string
	Name string
}

// ToolChoice is how the request steers the use of tools.
type ToolChoice string

// The tool choices. A named one stands for every object form.
const (
	ToolChoiceUnset    ToolChoice = ""
	ToolChoiceNone     ToolChoice = "none"
	ToolChoiceAuto     ToolChoice = "auto"
	ToolChoiceRequired ToolChoice = "required"
	ToolChoiceNamed    ToolChoice = "named"
)

// Message is one entry of messages[].
type Message struct {
	Role       string
	Name       string
	Parts      []Part
	ToolCalls  []ToolCall
	ToolCallID string
}

// Part is one piece of a message's content. Plain string content is one part of
// type text.
type Part struct {
	Type string
	Text []byte // of a text or refusal part, unescaped
}

// ToolCall is a call that an assistant message holds.
type ToolCall struct {
	ID   string
	Type string
	Name string
}

// Edits are what the gateway changes in a body on its way to the engine.
type Edits struct {
	Model           string // served name; empty leaves the client's
	MaxOutputTokens *int64 // limit that policy imposes
}

// Upstream returns the body for the engine: the client's bytes but for the
// fields that the gateway owns. The result may be the client's own slice.
func (r *Request) Upstream(e Edits) ([]byte, error) {
	if r.lost != "" {
		return nil, unsupported(r.lost, "this is not known and has no translation")
	}
	var edits []splice.Edit
	if e.Model != "" && e.Model != r.Model {
		edits = append(edits, splice.Set("model", quote(e.Model)))
	}
	if r.op.asksUsage && r.Stream && !r.IncludeUsage {
		edits = append(edits, splice.SetIn("stream_options", "include_usage", []byte("true")))
	}
	edits = append(edits, r.limitEdits(e.MaxOutputTokens)...)
	if r.op.stateless {
		edits = append(edits, splice.Set("store", boolean(false)))
	}
	if !r.Translated { // a translation leaves them out
		for _, name := range r.Removed {
			edits = append(edits, splice.Delete(name))
		}
	}
	if len(edits) == 0 {
		return r.Body, nil
	}
	out, err := splice.Apply(make([]byte, 0, len(r.Body)+256), r.Body, edits...)
	if err != nil {
		return nil, fmt.Errorf("make upstream body: %w", err)
	}
	return out, nil
}

// limitEdits lowers each limit that the client named to at most limit, and sets
// one where there is none.
func (r *Request) limitEdits(limit *int64) []splice.Edit {
	if limit == nil || len(r.op.limits) == 0 {
		return nil
	}
	value := strconv.AppendInt(nil, *limit, 10)
	if len(r.maxTokens) == 0 {
		return []splice.Edit{splice.Set(r.op.limits[0], value)}
	}
	var edits []splice.Edit
	for _, name := range r.op.limits {
		if asked, ok := r.maxTokens[name]; ok && asked > *limit {
			edits = append(edits, splice.Set(name, value))
		}
	}
	return edits
}
