package classify

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sallyport-ai/sallyport/gateway/detect"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/policy"
)

func decode(t interface{ Fatalf(string, ...any) }, messages, fields []string) *wire.Request {
	body := `{"model":"m","messages":[` + strings.Join(messages, ",") + `]`
	for _, f := range fields {
		body += "," + f
	}
	r, err := wire.Decode(wire.ChatCompletions, []byte(body+"}"), wire.Limits{})
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return r
}

const (
	user   = `{"role":"user","content":"hi"}`
	call   = `{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}`
	result = `{"role":"tool","tool_call_id":"1","content":"42"}`
	tools  = `"tools":[{"type":"function","function":{"name":"f"}}]`
)

func part(p string) string { return `{"role":"user","content":[` + p + `]}` }

func TestClassify(t *testing.T) {
	type facts = []policy.Fact
	chat := []string{user}
	cases := []struct {
		claim    string
		messages []string
		fields   string
		class    policy.Class
		facts    facts
	}{
		{"a user's message is chat", chat, "", policy.Chat, nil},
		{"instructions are chat", []string{`{"role":"developer","content":"x"}`, user}, "", policy.Chat, facts{policy.SystemPrompt}},
		{"an empty tool list is chat", chat, `"tools":[]`, policy.Chat, nil},
		{"a declared tool is an agent", chat, tools, policy.AgentToolCall, facts{policy.ToolsDeclared}},
		{"a declared tool is an agent although none may be called", chat, tools + `,"tool_choice":"none"`, policy.AgentToolCall, facts{policy.ToolsDeclared}},
		{"a forced tool", chat, tools + `,"tool_choice":"required"`, policy.AgentToolCall, facts{policy.ToolChoiceForced, policy.ToolsDeclared}},
		{"a named tool", chat, tools + `,"tool_choice":{"type":"function","function":{"name":"f"}}`, policy.AgentToolCall, facts{policy.ToolChoiceForced, policy.ToolsDeclared}},
		{"an old function", chat, `"functions":[{"name":"f"}],"function_call":"auto"`, policy.AgentToolCall, facts{policy.ToolsDeclared}},
		{"a tool inside a developer message", []string{`{"role":"developer","content":"","tools":[{"type":"function","function":{"name":"f"}}]}`}, "", policy.AgentToolCall, facts{policy.SystemPrompt, policy.ToolsDeclared}},
		{"a past call", []string{user, call}, "", policy.AgentToolCall, facts{policy.ToolCallPresent}},
		{"a result alone", []string{result}, "", policy.AgentToolCall, facts{policy.ToolResult}},
		{"an old function's result", []string{`{"role":"function","name":"f","content":"42"}`}, "", policy.AgentToolCall, facts{policy.ToolResult}},
		{"a loop", []string{user, call, result}, "", policy.AgentToolCall, facts{policy.ActiveToolLoop, policy.ToolCallPresent, policy.ToolResult}},
		{"a loop stays one when the user speaks again", []string{user, call, result, user}, "", policy.AgentToolCall, facts{policy.ActiveToolLoop, policy.ToolCallPresent, policy.ToolResult}},
		{"documents are retrieved content", chat, `"documents":[{"text":"x"}]`, policy.RAG, facts{policy.RetrievedContent}},
		{"no documents are chat", chat, `"documents":[]`, policy.Chat, nil},
		{"a file is retrieved content", []string{part(`{"type":"file","file":{"file_data":"data:,x"}}`)}, "", policy.RAG, facts{policy.OpaqueMedia, policy.RetrievedContent}},
		{"documents and a tool are an agent that also retrieves", chat, `"documents":[{"text":"x"}],` + tools, policy.AgentToolCall, facts{policy.RetrievedContent, policy.ToolsDeclared}},
		{"a search tool is an agent that retrieves", chat, `"tools":[{"type":"file_search"}]`, policy.AgentToolCall, facts{policy.RetrievalTool, policy.ServerTool, policy.ToolsDeclared}},
		{"an MCP server", chat, `"tools":[{"type":"mcp","server_url":"https://x"}]`, policy.AgentToolCall, facts{policy.RemoteMCP, policy.RemoteURL, policy.ServerTool, policy.ToolsDeclared}},
		{"a function called file_search is a function", chat, `"tools":[{"type":"function","function":{"name":"file_search"}}]`, policy.AgentToolCall, facts{policy.ToolsDeclared}},
		{"an unknown tool type", chat, `"tools":[{"type":"teleport"}]`, policy.Unclassified, facts{policy.ToolsDeclared, policy.UnknownType}},
		{"an unknown part type", []string{part(`{"type":"hologram"}`)}, "", policy.Unclassified, facts{policy.UnknownType}},
		{"an unknown role", []string{`{"role":"oracle","content":"x"}`}, "", policy.Unclassified, facts{policy.UnknownType}},
		{"a file that a server holds", []string{part(`{"type":"file","file":{"file_id":"x"}}`)}, "", policy.Unclassified, facts{policy.ExternalState, policy.OpaqueMedia, policy.RetrievedContent}},
		{"an image is chat", []string{part(`{"type":"image_url","image_url":{"url":"data:,x"}}`)}, "", policy.Chat, facts{policy.OpaqueMedia}},
		{"a linked image is chat", []string{part(`{"type":"image_url","image_url":{"url":"https://x"}}`)}, "", policy.Chat, facts{policy.OpaqueMedia, policy.RemoteURL}},
		{"an answer by schema is chat", chat, `"response_format":{"type":"json_schema","json_schema":{}}`, policy.Chat, facts{policy.StructuredOutput}},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			var fields []string
			if c.fields != "" {
				fields = []string{c.fields}
			}
			got := Classify(Subject{Operation: wire.ChatCompletions, Request: decode(t, c.messages, fields)})
			if got.Class != c.class || !reflect.DeepEqual(got.Facts, c.facts) || got.Mismatch {
				t.Errorf("got %s %v, want %s %v", got.Class, got.Facts, c.class, c.facts)
			}
		})
	}
}

func TestClassifyRaisesOnly(t *testing.T) {
	plain := decode(t, []string{user}, nil)
	agent := decode(t, []string{user}, []string{tools})
	cases := []struct {
		claim    string
		subject  Subject
		class    policy.Class
		mismatch bool
	}{
		{"listing models is discovery", Subject{Operation: wire.ModelsList}, policy.Discovery, false},
		{"no operation is unclassified", Subject{}, policy.Unclassified, false},
		{"a body that was not decoded is unclassified", Subject{Operation: wire.ChatCompletions}, policy.Unclassified, false},
		{"a registration raises", Subject{Operation: wire.ChatCompletions, Request: plain, Registration: "rag"}, policy.RAG, false},
		{"a registration does not lower", Subject{Operation: wire.ChatCompletions, Request: agent, Registration: "rag"}, policy.AgentToolCall, false},
		{"a registered name that is no class is unclassified", Subject{Operation: wire.ChatCompletions, Request: plain, Registration: "x"}, policy.Unclassified, false},
		{"a hint raises", Subject{Operation: wire.ChatCompletions, Request: plain, Hint: "rag"}, policy.RAG, false},
		{"a hint that agrees is no mismatch", Subject{Operation: wire.ChatCompletions, Request: agent, Hint: "agent_tool_call"}, policy.AgentToolCall, false},
		{"a lower hint is a mismatch and does not lower", Subject{Operation: wire.ChatCompletions, Request: agent, Hint: "chat"}, policy.AgentToolCall, true},
		{"a hint below the registration is a mismatch", Subject{Operation: wire.ChatCompletions, Request: plain, Registration: "rag", Hint: "chat"}, policy.RAG, true},
		{"a hint that is no class is unclassified", Subject{Operation: wire.ChatCompletions, Request: plain, Hint: "CHAT"}, policy.Unclassified, false},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			if got := Classify(c.subject); got.Class != c.class || got.Mismatch != c.mismatch {
				t.Errorf("got %s, mismatch %v", got.Class, got.Mismatch)
			}
		})
	}
}

// pieces of requests, for composing many.
var (
	allMessages = []string{
		user, call, result,
		`{"role":"system","content":"x"}`,
		`{"role":"oracle","content":"x"}`,
		part(`{"type":"text","text":"x"}`),
		part(`{"type":"file","file":{"file_data":"data:,x"}}`),
		part(`{"type":"image_url","image_url":{"url":"https://x"}}`),
		part(`{"type":"hologram"}`),
		`{"role":"assistant","audio":{"id":"a"}}`,
	}
	allFields = []string{
		`"functions":[{"name":"f"}]`,
		`"tool_choice":"required"`,
		`"documents":[{"text":"x"}]`,
		`"response_format":{"type":"json_object"}`,
		`"metadata":{"k":"v"}`,
		`"temperature":1`,
	}
	allTools = []string{
		`{"type":"function","function":{"name":"f"}}`, `{"type":"mcp"}`, `{"type":"file_search"}`,
		`{"type":"code_interpreter"}`, `{"type":"teleport"}`,
	}
)

// TestContentOnlyRaises composes a request, adds messages anywhere, tools and
// fields, and expects every fact to stay and the class not to fall.
func TestContentOnlyRaises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		messages := rapid.SliceOfN(rapid.SampledFrom(allMessages), 1, 5).Draw(t, "messages")
		fields := rapid.SliceOfNDistinct(rapid.SampledFrom(allFields), 0, 4, rapid.ID[string]).Draw(t, "fields")
		tools := rapid.SliceOfN(rapid.SampledFrom(allTools), 0, 2).Draw(t, "tools")
		before := classify(t, messages, fields, tools)

		more := slices.Clone(messages)
		for _, m := range rapid.SliceOfN(rapid.SampledFrom(allMessages), 0, 3).Draw(t, "more messages") {
			more = slices.Insert(more, rapid.IntRange(0, len(more)).Draw(t, "at"), m)
		}
		for _, f := range rapid.SliceOfNDistinct(rapid.SampledFrom(allFields), 0, 3, rapid.ID[string]).Draw(t, "more fields") {
			if !slices.Contains(fields, f) {
				fields = append(fields, f)
			}
		}
		tools = append(tools, rapid.SliceOfN(rapid.SampledFrom(allTools), 0, 2).Draw(t, "more tools")...)
		after := classify(t, more, fields, tools)

		if after.Class.Rank() < before.Class.Rank() {
			t.Fatalf("%s fell to %s", before.Class, after.Class)
		}
		for _, f := range before.Facts {
			if !slices.Contains(after.Facts, f) {
				t.Fatalf("fact %s was lost: %v, then %v", f, before.Facts, after.Facts)
			}
		}
	})
}

func classify(t *rapid.T, messages, fields, tools []string) Result {
	all := append(slices.Clone(fields), `"tools":[`+strings.Join(tools, ",")+`]`)
	return Classify(Subject{Operation: wire.ChatCompletions, Request: decode(t, messages, all)})
}

func TestRulesAreOrderedByDanger(t *testing.T) {
	last := policy.Unclassified.Rank()
	seen := map[string]bool{}
	for _, r := range Rules() {
		if seen[r.Name] {
			t.Errorf("rule %q twice", r.Name)
		}
		seen[r.Name] = true
		rank := 0
		if r.Raises {
			rank = r.Class.Rank()
		}
		if rank > last {
			t.Errorf("rule %q stands below a less dangerous one", r.Name)
		}
		last = rank
	}
}

func TestLabel(t *testing.T) {
	hit := func(detector string, c policy.Category) detect.Report {
		return detect.Report{Hits: []detect.Hit{{Detector: detector, Category: c, Count: 1}}}
	}
	cases := []struct {
		claim    string
		in       Sensitivity
		level    policy.Level
		mismatch bool
	}{
		{"nothing known is restricted", Sensitivity{}, policy.Restricted, false},
		{"the tenant's default counts", Sensitivity{TenantDefault: "internal"}, policy.Internal, false},
		{"a floor raises", Sensitivity{TenantDefault: "internal", WorkloadFloor: "confidential"}, policy.Confidential, false},
		{"a floor does not lower", Sensitivity{TenantDefault: "confidential", WorkloadFloor: "public"}, policy.Confidential, false},
		{"a signed claim raises", Sensitivity{TenantDefault: "internal", TokenClaim: "restricted"}, policy.Restricted, false},
		{"a signed claim does not lower", Sensitivity{TenantDefault: "internal", TokenClaim: "public"}, policy.Internal, false},
		{"a conversation raises", Sensitivity{TenantDefault: "public", Session: "confidential"}, policy.Confidential, false},
		{"a conversation is no ground to stand on", Sensitivity{Session: "public"}, policy.Restricted, false},
		{"a hint raises", Sensitivity{TenantDefault: "public", Hint: "internal"}, policy.Internal, false},
		{"a lower hint is a mismatch and does not lower", Sensitivity{TenantDefault: "internal", Hint: "public"}, policy.Internal, true},
		{"a hint below a finding is a mismatch", Sensitivity{TenantDefault: "public", Hint: "public", Scan: hit("us_ssn", policy.PII)}, policy.Confidential, true},
		{"a hint is no ground to stand on", Sensitivity{Hint: "public"}, policy.Restricted, true},
		{"a name that is no level is restricted", Sensitivity{TenantDefault: "secret"}, policy.Restricted, false},
		{"a hint that is no level is restricted", Sensitivity{TenantDefault: "public", Hint: "PUBLIC"}, policy.Restricted, false},
		{"personal data are confidential", Sensitivity{TenantDefault: "public", Scan: hit("us_ssn", policy.PII)}, policy.Confidential, false},
		{"payment data are restricted", Sensitivity{TenantDefault: "public", Scan: hit("payment_card", policy.PCI)}, policy.Restricted, false},
		{"health data are restricted", Sensitivity{TenantDefault: "public", Scan: hit("medical_record_number", policy.PHI)}, policy.Restricted, false},
		{"secrets are restricted", Sensitivity{TenantDefault: "public", Scan: hit("provider_key", policy.Secret)}, policy.Restricted, false},
		{"a category without an effect is restricted", Sensitivity{TenantDefault: "public", Scan: hit("x", "itar")}, policy.Restricted, false},
		{"what was not scanned is confidential", Sensitivity{TenantDefault: "public", Scan: detect.Report{NotScanned: true}}, policy.Confidential, false},
		{"what no detector reads is confidential", Sensitivity{TenantDefault: "public", Unscannable: true}, policy.Confidential, false},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			got, mismatch := Label(c.in)
			if got.Level != c.level || mismatch != c.mismatch {
				t.Errorf("got %s, mismatch %v; sources %v", got.Level, mismatch, got.Sources)
			}
		})
	}
}

func TestLabelNamesEverySource(t *testing.T) {
	got, _ := Label(Sensitivity{
		WorkloadFloor: "internal", TenantDefault: "public", TokenClaim: "public", Session: "internal", Hint: "public",
		Scan: detect.Report{Hits: []detect.Hit{
			{Detector: "payment_card", Category: policy.PCI, Count: 2}, {Detector: "us_ssn", Category: policy.PII, Count: 1},
		}, NotScanned: true},
	})
	want := policy.Label{
		Level:      policy.Restricted,
		Categories: []policy.Category{policy.PCI, policy.PII},
		Sources: []policy.Contribution{
			{Source: policy.WorkloadFloor, Level: policy.Internal},
			{Source: policy.TenantDefault, Level: policy.Public},
			{Source: policy.TokenClaim, Level: policy.Public},
			{Source: policy.Session, Level: policy.Internal},
			{Source: policy.Detector, Level: policy.Restricted, Detail: "payment_card"},
			{Source: policy.Detector, Level: policy.Confidential, Detail: "us_ssn"},
			{Source: policy.NotScanned, Level: policy.Confidential, Detail: "budget"},
			{Source: policy.ClientHint, Level: policy.Public},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestContributionsOnlyRaise adds one contribution to random ones.
func TestContributionsOnlyRaise(t *testing.T) {
	name := rapid.SampledFrom([]string{"public", "internal", "confidential", "restricted", "?"})
	maybe := rapid.OneOf(rapid.Just(""), name)
	rapid.Check(t, func(t *rapid.T) {
		s := Sensitivity{
			WorkloadFloor: maybe.Draw(t, "floor"), TenantDefault: name.Draw(t, "default"), TokenClaim: maybe.Draw(t, "claim"),
			Session: maybe.Draw(t, "session"), Hint: maybe.Draw(t, "hint"), Unscannable: rapid.Bool().Draw(t, "media"),
		}
		before, _ := Label(s)
		for _, field := range []*string{&s.WorkloadFloor, &s.TokenClaim, &s.Session, &s.Hint} {
			if *field == "" {
				*field = maybe.Draw(t, "added")
			}
		}
		s.Unscannable = true
		if after, _ := Label(s); after.Level.Rank() < before.Level.Rank() {
			t.Fatalf("%s fell to %s", before.Level, after.Level)
		}
	})
}

func TestScanReadsEveryOrigin(t *testing.T) {
	req := decode(t,
		[]string{user, part(`{"type":"text","text":"4111 1111 "},{"type":"text","text":"1111 1111"}`), call},
		[]string{`"tools":[{"type":"function","function":{"name":"f","description":"SSN 536-90-4399"}}]`, `"metadata":{"mail":"a@example.org"}`, `"documents":[{"text":"MRN 00123456"}]`})
	r := Scan(detect.Scanner{}, req)
	if want := []policy.Category{policy.PCI, policy.PHI, policy.PII}; !reflect.DeepEqual(r.Categories(), want) || len(r.Hits) != 4 {
		t.Errorf("got %+v", r)
	}
}
