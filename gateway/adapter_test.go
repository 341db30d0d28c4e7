package gateway

import (
	"net/http"
	"strings"
	"testing"
	"testing/fstest"
)

func dataFile(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }

// An adapter is a model of its own: granted by its own name, sent to replicas
// that have loaded it under the name that engines know, and its cache is not its
// base's.
func TestAnAdapterIsAModelOfItsOwn(t *testing.T) {
	layer := editable(t)
	layer.set("acme", "models", []string{"small", "legal"})
	layer.MapFS["sallyport/models/data.json"] = dataFile(`{
		"small": {"served": "small", "context_window": 8192},
		"legal": {"served": "small-legal-v3", "base": "small", "context_window": 8192, "aliases": ["contracts"]},
		"absent": {"served": "small-absent", "base": "small", "context_window": 8192}}`)
	layer.MapFS["sallyport/pools/data.json"] = dataFile(`{
		"general": {"region": "eu-1", "kind": "internal", "classes": ["chat"], "max_label": "internal", "models": ["small", "legal", "absent"]},
		"agents": {"region": "eu-1", "kind": "internal", "classes": ["agent_tool_call"], "max_label": "internal", "models": ["small"]},
		"restricted": {"region": "eu-1", "kind": "internal", "classes": ["rag"], "max_label": "restricted", "models": ["small"]}}`)
	engine, err := loadPolicy(t.Context(), layer)
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, func(c *Config) { c.Policy = engine })
	for _, name := range []string{"legal", "contracts"} {
		mark := s.newMark()
		a := s.post("acme", strings.Replace(chat(mark), `"small"`, `"`+name+`"`, 1))
		if a.status != http.StatusOK {
			t.Fatalf("%s: %d %s", name, a.status, a.body)
		}
		got := s.engine.got(mark)
		if len(got) != 1 || !strings.Contains(got[0].body, `"model":"small-legal-v3"`) {
			t.Errorf("%s: the engine got %+v", name, got)
		}
		d, o := s.lone(a)
		if d.Request.Model != name || d.Request.Served != "small-legal-v3" || !strings.HasPrefix(d.Request.PromptBasis, basisNative) || d.Request.PromptTokens != o.Outcome.PromptTokens {
			t.Errorf("%s: decision %+v, outcome %+v", name, d.Request, o.Outcome)
		}
	}
	for name, c := range map[string]struct {
		who    string
		status int
		code   string
	}{
		"legal":          {"globex", http.StatusForbidden, "policy_denied"}, // granted the base alone
		"small-legal-v3": {"acme", http.StatusForbidden, "policy_denied"},   // the engine's name is no name here
		"absent":         {"acme", http.StatusForbidden, "policy_denied"},
	} {
		s.want(s.post(c.who, strings.Replace(chat(s.newMark()), `"small"`, `"`+name+`"`, 1)), c.status, c.code)
	}
	layer.set("acme", "models", []string{"small", "legal", "absent"})
	if engine, err = loadPolicy(t.Context(), layer); err != nil {
		t.Fatal(err)
	}
	s = serve(t, func(c *Config) { c.Policy = engine })
	// No replica has loaded it, so none is asked, although its base is there.
	s.want(s.post("acme", strings.Replace(chat(s.newMark()), `"small"`, `"absent"`, 1)), http.StatusServiceUnavailable, "no_replica")
}
