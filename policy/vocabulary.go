package policy

import "fmt"

// Class is what a request is taken for. The zero value is Unclassified, which
// no shipped policy allows. A higher value is more dangerous: classifying can
// only raise.
type Class int

// The classes, from the least to the most dangerous. Unclassified is the zero
// value and yet the highest: see [Class.Rank].
const (
	Unclassified Class = iota
	Discovery
	Chat
	Embedding
	RAG
	AgentToolCall
)

var classNames = [...]string{
	Unclassified:  "unclassified",
	Discovery:     "discovery",
	Chat:          "chat",
	Embedding:     "embedding",
	RAG:           "rag",
	AgentToolCall: "agent_tool_call",
}

// String returns the name that policy and records use.
func (c Class) String() string {
	if c < 0 || int(c) >= len(classNames) {
		return classNames[Unclassified]
	}
	return classNames[c]
}

// Rank orders classes by danger; Unclassified ranks highest.
func (c Class) Rank() int {
	if c <= Unclassified || int(c) >= len(classNames) {
		return len(classNames)
	}
	return int(c)
}

// ParseClass returns the class of that name.
func ParseClass(name string) (Class, error) {
	for c, n := range classNames {
		if n == name {
			return Class(c), nil
		}
	}
	return Unclassified, fmt.Errorf("unknown class %q", name)
}

// MaxClass returns the more dangerous of a and b.
func MaxClass(a, b Class) Class {
	if b.Rank() > a.Rank() {
		return b
	}
	return a
}

// Level is a sensitivity level. The zero value means absent, and an absent
// label is Restricted.
type Level int

// The levels.
const (
	Absent Level = iota
	Public
	Internal
	Confidential
	Restricted
)

var levelNames = [...]string{Public: "public", Internal: "internal", Confidential: "confidential", Restricted: "restricted"}

// String returns the name that policy and records use.
func (l Level) String() string {
	if l <= Absent || int(l) >= len(levelNames) {
		return levelNames[Restricted]
	}
	return levelNames[l]
}

// Rank is 0 for public to 3 for restricted.
func (l Level) Rank() int {
	if l <= Absent || int(l) >= len(levelNames) {
		return int(Restricted) - 1
	}
	return int(l) - 1
}

// ParseLevel returns the level of that name.
func ParseLevel(name string) (Level, error) {
	for l, n := range levelNames {
		if n != "" && n == name {
			return Level(l), nil
		}
	}
	return Absent, fmt.Errorf("unknown label %q", name)
}

// Category is a kind of sensitive content.
type Category string

// The categories.
const (
	PII    Category = "pii"
	PCI    Category = "pci"
	PHI    Category = "phi"
	Secret Category = "secret"
)

// Fact is something that the body of a request shows. Facts are a monotone set:
// adding content can only add facts.
type Fact string

// The facts.
const (
	ToolsDeclared    Fact = "tools_declared"
	ToolChoiceForced Fact = "tool_choice_forced"
	ToolCallPresent  Fact = "tool_call_present"
	ToolResult       Fact = "tool_result_present"
	ActiveToolLoop   Fact = "active_tool_loop"
	ServerTool       Fact = "server_tool"
	RemoteMCP        Fact = "remote_mcp"
	RetrievedContent Fact = "retrieved_content"
	RetrievalTool    Fact = "retrieval_tool"
	ExternalState    Fact = "external_state"
	OpaqueMedia      Fact = "opaque_media"
	RemoteURL        Fact = "remote_url"
	StructuredOutput Fact = "structured_output"
	SystemPrompt     Fact = "system_prompt"
	UnknownType      Fact = "unknown_type"
)

// Source names where a contribution to a label came from.
type Source string

// The label sources.
const (
	WorkloadFloor Source = "workload_floor"
	TenantDefault Source = "tenant_default"
	TokenClaim    Source = "token_claim"
	ClientHint    Source = "client_hint"
	Detector      Source = "detector"
	Session       Source = "session"
	NotScanned    Source = "not_scanned"
)

// Contribution is one reason for a label.
type Contribution struct {
	Source Source
	Level  Level
	Detail string // a detector's name, for example; never matched text
}

// Label is the maximum over its contributions.
type Label struct {
	Level      Level
	Categories []Category // sorted, no duplicates
	Sources    []Contribution
}
