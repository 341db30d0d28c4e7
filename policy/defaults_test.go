package policy

import (
	"encoding/json"
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/sallyport-ai/sallyport/policies"
)

func TestTermsLeftOutTakeTheSafeDefault(t *testing.T) {
	e, err := Load(t.Context(), Config{Layers: []fs.FS{policies.FS, fstest.MapFS{"sallyport/data.json": {Data: []byte(`{
		"tenants": {"plain": {"label_default": "public", "models": ["small"],
			"classes": {"chat": {"pools": ["general"], "strategy": "probabilistic", "cache_domain": "conversation",
				"labels": {"internal": {"pools": ["general"], "strategy": "deterministic"}}}}}},
		"pools": {"general": {"region": "eu-1", "kind": "internal", "classes": ["chat"], "max_label": "restricted", "models": ["small"]}},
		"models": {"small": {"served": "s", "context_window": 1000}}
	}`)}}}})
	if err != nil {
		t.Fatal(err)
	}
	s := e.Snapshot()
	for _, c := range []struct {
		claim string
		in    Input
		want  string
	}{
		{
			"the grant's own route", ask(as("plain", ""), label(Public)),
			`{"allow":true,"cache_domain":"conversation","durability":"strict","expose_cached_tokens":false,` +
				`"inspect":{"request":[],"response":[]},"limits":{"max_output_tokens":null},"pools":["general"],` +
				`"prefer":{"region":"eu-1","warm":true},"reasons":["class_granted"],"reauthorize_s":300,"strategy":"probabilistic","tools_allow":null}`,
		},
		{
			"a route per label takes the tenant's terms, not the grant's", ask(as("plain", "")),
			`{"allow":true,"cache_domain":"tenant","durability":"strict","expose_cached_tokens":false,` +
				`"inspect":{"request":[],"response":[]},"limits":{"max_output_tokens":null},"pools":["general"],` +
				`"prefer":{"region":"eu-1","warm":true},"reasons":["class_granted"],"reauthorize_s":300,"strategy":"deterministic","tools_allow":null}`,
		},
	} {
		_, ev, err := s.Decide(t.Context(), c.in)
		if err != nil || string(ev.DecisionJSON) != c.want {
			t.Errorf("%s: %v\n got %s\nwant %s", c.claim, err, ev.DecisionJSON, c.want)
		}
	}
	tenant, _ := s.Tenant("plain")
	if tenant.LabelMax != "restricted" || tenant.SubjectMode != "clear" || tenant.ToolsAllow != nil || len(tenant.Classes["chat"].Labels) != 4 {
		t.Errorf("%+v", tenant)
	}
}

func TestRegoReadsNoAbsentField(t *testing.T) {
	doc, err := withDefaults(Data{Tenants: map[string]Tenant{"t": {Classes: map[string]Grant{"chat": {}}}}}).document()
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(doc["tenants"])
	if err != nil {
		t.Fatal(err)
	}
	route := `"cache_domain":"tenant","durability":"strict","inspect":{"request":[],"response":[]},`
	rest := `"pools":[],`
	plain := `{` + route + `"pools":[],"strategy":""}`
	want := `{"t":{"cache_domain":"tenant","classes":{"chat":{` + route +
		`"labels":{"confidential":` + plain + `,"internal":` + plain + `,"public":` + plain + `,"restricted":` + plain + `},` + rest +
		`"scopes":[],"strategy":""}},"durability":"strict","expose_cached_tokens":false,"extra":{},"facts_deny":[],` +
		`"label_default":"","label_max":"restricted","max_output_tokens":null,"models":[],"reauthorize_s":300,"region":"",` +
		`"residency":"","subject_mode":"clear","tools_allow":null}}`
	if string(got) != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}
