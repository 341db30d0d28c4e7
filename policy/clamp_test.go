package policy

import (
	"slices"
	"strings"
	"testing"
)

// generous allows everything to everyone, with every pool: all that narrows is
// in code.
const generous = `decision := {
	"allow": true, "reasons": ["generous"], "pools": ["general", "far", "hosted", "low", "other", "ragonly"],
	"strategy": "probabilistic", "prefer": {"region": "", "warm": true}, "cache_domain": "public",
	"inspect": {"request": [], "response": []}, "tools_allow": null,
	"limits": {"max_output_tokens": null}, "durability": "bounded",
	"expose_cached_tokens": false, "reauthorize_s": 300,
}`

func TestCodeNarrowsWhatRegoAllows(t *testing.T) {
	s := uncheckedSnapshot(t, regoBundle(generous))
	model := func(name string) func(*Input) { return request(func(r *InputRequest) { r.Model = name }) }
	operation := func(name string) func(*Input) { return request(func(r *InputRequest) { r.Operation = name }) }
	for _, c := range []struct {
		claim      string
		in         Input
		pools      string // empty: denied
		durability string
		cache      string
		reason     string
		clamp      string
	}{
		{"a public chat keeps what fits", ask(label(Public)), "general far hosted low", "bounded", "public", "generous", "pool:other:model"},
		{"a pool below the label drops out", ask(), "general far hosted", "bounded", "tenant", "generous", "pool:low:label"},
		{"a cache is not public above public", ask(), "general far hosted", "bounded", "tenant", "generous", "cache_domain:public_above_label"},
		{"an external pool drops out above internal", ask(label(Confidential)), "general far", "strict", "tenant", "generous", "pool:hosted:external_above_internal"},
		{"a confidential record is strict", ask(label(Confidential)), "general far", "strict", "tenant", "generous", "durability:floor"},
		{"a restricted record is strict", ask(label(Restricted)), "general far", "strict", "tenant", "generous", "durability:floor"},
		{"an agent class's record is strict", ask(label(Public), class("agent_tool_call")), "general", "strict", "public", "generous", "durability:floor"},
		{"an agent's chat record is strict", ask(label(Public), func(in *Input) { in.Principal.Kind = "agent" }), "general far hosted low", "strict", "public", "generous", "durability:floor"},
		{"an administrative record is strict", ask(label(Public), operation("admin.reload")), "general far hosted low", "strict", "public", "generous", "durability:floor"},
		{"a tenant's residency drops pools elsewhere", ask(as("stay", "")), "general", "bounded", "tenant", "generous", "pool:far:residency"},
		{"an external pool cannot satisfy residency", ask(as("stay", "")), "general", "bounded", "tenant", "generous", "pool:hosted:external_residency"},
		{"a workload's residency drops pools elsewhere", ask(as("acme", "batch")), "general", "bounded", "tenant", "generous", "pool:far:residency"},
		{"a pool without the model drops out", ask(model("big")), "other", "bounded", "tenant", "generous", "pool:general:model"},
		{"an alias is its model", ask(model("tiny")), "general far hosted", "bounded", "tenant", "generous", "pool:other:model"},
		{"a model that nobody has is denied", ask(model("huge")), "", "", "", "no_permitted_pool", "pool:general:model"},
		{"a pool without the class drops out", ask(class("rag")), "general ragonly", "bounded", "tenant", "generous", "pool:far:class"},
		{"a listing shows pools of every label, class and model", ask(class("discovery"), operation("models.list"), model("")), "general far hosted low other ragonly", "bounded", "tenant", "generous", "cache_domain:public_above_label"},
		{"a completion of class discovery has no pool", ask(class("discovery")), "", "", "", "no_permitted_pool", "pool:general:class"},
		{"a class that the registration lacks is denied", ask(as("acme", "batch"), class("rag")), "", "", "", "class_not_registered", "class_not_registered"},
		{"a registration of another tenant is denied", ask(as("stay", "batch")), "", "", "", "registration_of_another_tenant", "registration_of_another_tenant"},
		{"an unknown registration is denied", ask(as("acme", "ghost")), "", "", "", "registration_unknown", "registration_unknown"},
		{"a class that the registration of the token's client lacks is denied", ask(as("acme", "short"), client("batch"), class("rag")), "", "", "", "class_not_registered", "class_not_registered"},
		{"a client of another tenant is denied", ask(as("stay", ""), client("short")), "", "", "", "registration_of_another_tenant", "registration_of_another_tenant"},
		{"a client of unknown registration is denied", ask(as("acme", "short"), client("ghost")), "", "", "", "registration_unknown", "registration_unknown"},
		{"a client's residency drops pools elsewhere", ask(as("acme", "short"), client("batch")), "general", "bounded", "tenant", "generous", "pool:far:residency"},
		{"a client's answer is as short as its registration says", ask(label(Public), client("short")), "general far hosted low", "bounded", "public", "generous", "max_output_tokens:short"},
		{"an actor that is registered for it acts", ask(acts("batch")), "general", "strict", "tenant", "generous", "pool:far:residency"},
		{"an actor's record is strict", ask(label(Public), acts("short")), "general far hosted low", "strict", "public", "generous", "durability:floor"},
		{"an actor's answer is as short as its registration says", ask(label(Public), acts("short")), "general far hosted low", "strict", "public", "generous", "max_output_tokens:short"},
		{"a caller's likewise", ask(label(Public), as("acme", "short")), "general far hosted low", "bounded", "public", "generous", "max_output_tokens:short"},
		{"an actor without a registration is denied", ask(acts("")), "", "", "", "actor_not_registered", "actor_not_registered"},
		{"an earlier actor without a registration is denied", ask(acts("", "short")), "", "", "", "actor_not_registered", "actor_not_registered"},
		{"an actor of unknown registration is denied", ask(acts("ghost", "short")), "", "", "", "registration_unknown", "registration_unknown"},
		{"an actor of another tenant is denied", ask(as("stay", ""), acts("short")), "", "", "", "registration_of_another_tenant", "registration_of_another_tenant"},
		{"a class that an earlier actor's registration lacks is denied", ask(acts("batch", "short"), class("rag")), "", "", "", "class_not_registered", "class_not_registered"},
		{"the unclassified is denied", ask(class("unclassified")), "", "", "", "unclassified", "unclassified"},
		{"a class of unknown name is denied", ask(class("poem")), "", "", "", "unclassified", "unclassified"},
		{"an unknown label counts as restricted", ask(func(in *Input) { in.Label = InputLabel{Level: "secret"} }), "general far", "strict", "tenant", "generous", "pool:low:label"},
		{"a label that contradicts its rank counts as restricted", ask(func(in *Input) { in.Label = InputLabel{Level: "public", Rank: 2} }), "general far", "strict", "tenant", "generous", "pool:low:label"},
	} {
		d, ev, err := s.Decide(t.Context(), c.in)
		if err != nil {
			t.Errorf("%s: %v", c.claim, err)
			continue
		}
		got := strings.Join(d.Pools, " ")
		if d.Allow != (c.pools != "") || got != c.pools || d.Durability != c.durability || d.CacheDomain != c.cache {
			t.Errorf("%s: allow %v, pools %q, durability %q, cache %q", c.claim, d.Allow, got, d.Durability, d.CacheDomain)
		}
		if !slices.Contains(d.Reasons, c.reason) || !slices.Contains(ev.Clamps, c.clamp) {
			t.Errorf("%s: reasons %v, clamps %v", c.claim, d.Reasons, ev.Clamps)
		}
		if !strings.Contains(string(ev.DecisionJSON), `"bounded"`) {
			t.Errorf("%s: the recorded answer is not Rego's: %s", c.claim, ev.DecisionJSON)
		}
	}
}

// client has the caller's token issued to a client of that registration.
func client(registration string) func(*Input) {
	return func(in *Input) { in.Principal.Client = registration }
}

// acts makes the caller somebody for whom actors with those registrations act.
func acts(registrations ...string) func(*Input) {
	return func(in *Input) {
		in.Principal.Chain = []InputActor{{Type: "user", Subject: in.Principal.Subject}}
		for _, name := range registrations {
			in.Principal.Chain = append(in.Principal.Chain, InputActor{Type: "agent", Subject: "a", Registration: name})
		}
	}
}

func TestTheShorterOfTwoLimitsHolds(t *testing.T) {
	for answer, want := range map[string]int64{"null": 9, "5": 5, "50": 9} {
		s := uncheckedSnapshot(t, regoBundle(strings.Replace(generous, `"max_output_tokens": null`, `"max_output_tokens": `+answer, 1)))
		d, _, err := s.Decide(t.Context(), ask(acts("short")))
		if err != nil || d.Limits.MaxOutputTokens == nil || *d.Limits.MaxOutputTokens != want {
			t.Errorf("of %s and 9: %v, %v", answer, d.Limits.MaxOutputTokens, err)
		}
	}
}

func TestAPoolNamedTwiceIsOne(t *testing.T) {
	twice := strings.Replace(generous, `"general", "far"`, `"far", "general", "far"`, 1)
	d, _, err := uncheckedSnapshot(t, regoBundle(twice)).Decide(t.Context(), ask())
	if want := []string{"far", "general", "hosted"}; err != nil || !slices.Equal(d.Pools, want) {
		t.Errorf("pools %v, want %v, in the order of the answer", d.Pools, want)
	}
}

func TestADenialCarriesNoPools(t *testing.T) {
	deny := strings.Replace(generous, `"allow": true`, `"allow": false`, 1)
	d, _, err := uncheckedSnapshot(t, regoBundle(deny)).Decide(t.Context(), ask())
	if err != nil || d.Allow || d.Pools != nil {
		t.Errorf("%+v, %v", d, err)
	}
}
