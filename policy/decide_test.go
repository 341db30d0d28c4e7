package policy

import (
	"context"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/policies"
)

// demoLayers is what `sallyport demo` runs on.
func demoLayers(t testing.TB) []fs.FS {
	t.Helper()
	demo, err := policies.Demo()
	if err != nil {
		t.Fatal(err)
	}
	return []fs.FS{policies.FS, demo}
}

func demoSnapshot(t testing.TB) *Snapshot {
	t.Helper()
	e, err := Load(context.Background(), Config{Layers: demoLayers(t)})
	if err != nil {
		t.Fatal(err)
	}
	return e.Snapshot()
}

// ask is a well-formed question of acme's chat user.
func ask(edit ...func(*Input)) Input {
	in := Input{
		V:         1,
		Principal: InputPrincipal{Tenant: "acme", Subject: "u1", Kind: "human", Method: "oidc", Issuer: "https://idp.example"},
		Request:   InputRequest{Operation: "chat.completions", Model: "small", PromptTokens: 100, PromptTokensBasis: "native", Region: "eu-1"},
		Class:     InputClass{Name: "chat", Table: "2026.11"},
		Label:     InputLabel{Level: "internal", Rank: 1},
	}
	for _, f := range edit {
		f(&in)
	}
	return in
}

func as(tenant, registration string) func(*Input) {
	return func(in *Input) { in.Principal.Tenant, in.Principal.Registration = tenant, registration }
}

func class(name string, facts ...string) func(*Input) {
	return func(in *Input) { in.Class.Name, in.Class.Facts = name, facts }
}

func label(l Level) func(*Input) {
	return func(in *Input) { in.Label.Level, in.Label.Rank = l.String(), l.Rank() }
}

func request(edit func(*InputRequest)) func(*Input) {
	return func(in *Input) { edit(&in.Request) }
}

func TestDemoPolicy(t *testing.T) {
	s := demoSnapshot(t)
	listing := request(func(r *InputRequest) { r.Operation, r.Model = "models.list", "" })
	for _, c := range []struct {
		claim    string
		in       Input
		pools    string // empty: denied
		strategy string
		reason   string
	}{
		{"acme's chat runs in general", ask(), "general", "probabilistic", "class_granted"},
		{"acme's confidential chat runs in restricted", ask(label(Confidential)), "restricted", "deterministic", "class_granted"},
		{"acme's restricted chat runs in restricted", ask(label(Restricted)), "restricted", "deterministic", "class_granted"},
		{"acme's agent runs in agents", ask(as("acme", "acme-agent"), class("agent_tool_call", "tools_declared")), "agents", "deterministic", "class_granted"},
		{"acme's agent with a restricted label runs in restricted", ask(as("acme", "acme-agent"), class("agent_tool_call"), label(Restricted)), "restricted", "deterministic", "class_granted"},
		{"acme's rag service runs in restricted", ask(as("acme", "acme-rag"), class("rag")), "restricted", "deterministic", "class_granted"},
		{"acme's rag service may not run agents", ask(as("acme", "acme-rag"), class("agent_tool_call")), "", "", "class_not_registered"},
		{"acme's embeddings run in general", ask(class("embedding")), "general", "probabilistic", "class_granted"},
		{"confidential embeddings have no pool", ask(class("embedding"), label(Confidential)), "", "", "no_permitted_pool"},
		{"acme may list models", ask(class("discovery"), listing), "general agents restricted", "probabilistic", "class_granted"},
		{"globex's chat runs in general", ask(as("globex", "")), "general", "probabilistic", "class_granted"},
		{"globex has no agents", ask(as("globex", ""), class("agent_tool_call")), "", "", "class_not_permitted"},
		{"globex ends at internal", ask(as("globex", ""), label(Confidential)), "", "", "label_above_tenant"},
		{"initech may do nothing", ask(as("initech", "")), "", "", "class_not_permitted"},
		{"initech may not even list", ask(as("initech", ""), class("discovery"), listing), "", "", "class_not_permitted"},
		{"an unknown tenant may do nothing", ask(as("hooli", "")), "", "", "tenant_unknown"},
		{"nobody may do nothing", Input{}, "", "", "tenant_unknown"},
		{"unclassified is never allowed", ask(class("unclassified")), "", "", "unclassified"},
		{"a remote URL is refused", ask(class("chat", "remote_url")), "", "", "fact_not_permitted"},
		{"an unknown model is refused", ask(request(func(r *InputRequest) { r.Model = "huge" })), "", "", "model_not_permitted"},
		{"a prompt beyond the window is refused", ask(request(func(r *InputRequest) { r.PromptTokens = 8193 })), "", "", "prompt_too_long"},
		{"an estimate beyond the window is not", ask(request(func(r *InputRequest) { r.PromptTokens, r.PromptTokensBasis = 8193, "estimate" })), "general", "probabilistic", "class_granted"},
		{"a registration of another tenant is refused", ask(as("globex", "acme-agent")), "", "", "registration_of_another_tenant"},
		{"an unknown registration is refused", ask(as("acme", "ghost")), "", "", "registration_unknown"},
		{"a class cannot pose as a listing", ask(class("discovery")), "", "", "operation_mismatch"},
		{"a level that contradicts its rank is refused", ask(func(in *Input) { in.Label = InputLabel{Level: "restricted", Rank: 0} }), "", "", "label_malformed"},
	} {
		d, ev, err := s.Decide(t.Context(), c.in)
		if err != nil {
			t.Errorf("%s: %v", c.claim, err)
			continue
		}
		if d.Allow != (c.pools != "") || strings.Join(d.Pools, " ") != c.pools {
			t.Errorf("%s: allow %v, pools %v, reasons %v, clamps %v", c.claim, d.Allow, d.Pools, d.Reasons, ev.Clamps)
		}
		if !slices.Contains(d.Reasons, c.reason) {
			t.Errorf("%s: reasons %v, want %s", c.claim, d.Reasons, c.reason)
		}
		if c.pools != "" && d.Strategy != c.strategy {
			t.Errorf("%s: strategy %s, want %s", c.claim, d.Strategy, c.strategy)
		}
	}
}
