package policy

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func testRegistry(t *testing.T, d Data) *Snapshot {
	t.Helper()
	setNames(&d)
	r, err := newRegistry(d)
	if err != nil {
		t.Fatal(err)
	}
	return &Snapshot{registry: r}
}

func TestMostSpecificRegistrationWins(t *testing.T) {
	s := testRegistry(t, Data{Workloads: map[string]Registration{
		"all":     {SPIFFEID: "spiffe://td/*"},
		"acme":    {SPIFFEID: "spiffe://td/acme/*"},
		"batch":   {SPIFFEID: "spiffe://td/acme/batch"},
		"batches": {SPIFFEID: "spiffe://td/acme/batch/*"},
		"app":     {ClientID: "app"},
		"app-idp": {ClientID: "app", Issuer: "https://idp"},
	}})
	for _, c := range []struct{ claim, id, issuer, client, want string }{
		{"an exact ID beats every pattern", "spiffe://td/acme/batch", "", "", "batch"},
		{"the longest pattern wins", "spiffe://td/acme/batch/7", "", "", "batches"},
		{"a pattern covers every depth", "spiffe://td/acme/a/b/c", "", "", "acme"},
		{"a pattern ends at a segment", "spiffe://td/acme/batch-evil", "", "", "acme"},
		{"a longer tenant is another tenant", "spiffe://td/acme-evil/x", "", "", "all"},
		{"a pattern does not cover its own root", "spiffe://td/acme", "", "", "all"},
		{"a trailing slash is no segment", "spiffe://td/acme/", "", "", "all"},
		{"another trust domain has none", "spiffe://td2/acme/batch", "", "", ""},
		{"a trust domain that begins alike has none", "spiffe://td.evil/acme/batch", "", "", ""},
		{"a trust domain alone has none", "spiffe://td", "", "", ""},
		{"nothing has none", "", "", "", ""},
		{"a client of the named issuer is that one", "", "https://idp", "app", "app-idp"},
		{"a client of another issuer is the general one", "", "https://other", "app", "app"},
		{"an unknown client has none", "", "https://idp", "ghost", ""},
		{"a proven SPIFFE ID decides over the client", "spiffe://td/acme/batch", "https://idp", "app", "batch"},
		{"a SPIFFE ID without an entry leaves it to the client", "spiffe://td2/x", "https://idp", "app", "app-idp"},
	} {
		got, ok := s.Registration(c.id, c.issuer, c.client)
		if got.Name != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q, %v", c.claim, got.Name, ok)
		}
	}
}

func TestExemptionsEndAndBelongToOneTenant(t *testing.T) {
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	s := testRegistry(t, Data{Exemptions: map[string]Exemption{
		"b-later": {Expires: now.Add(time.Second), Scope: Scope{Tenant: "acme"}},
		"a-later": {Expires: now.Add(time.Hour), Scope: Scope{Tenant: "acme"}},
		"ended":   {Expires: now, Scope: Scope{Tenant: "acme"}},
		"other":   {Expires: now.Add(time.Hour), Scope: Scope{Tenant: "globex"}},
	}})
	if got := s.ExemptionsInForce("acme", now); !slices.Equal(got, []string{"a-later", "b-later"}) {
		t.Errorf("in force: %v", got)
	}
	if got := s.ExemptionsInForce("nobody", now); got == nil || len(got) != 0 {
		t.Errorf("nobody's: %#v", got)
	}
}

func TestPoolsStandInBothPlacesOrFail(t *testing.T) {
	s := demoSnapshot(t)
	for _, c := range []struct {
		claim string
		pools []string
		want  string
	}{
		{"the same pools in any order", []string{"restricted", "general", "agents"}, ""},
		{"one only in the configuration", []string{"restricted", "general", "agents", "extra"}, `"extra" is configured but not in the policy bundle`},
		{"one only in the bundle", []string{"restricted", "general"}, `"agents" is in the policy bundle but not configured`},
		{"none configured", nil, "not configured"},
	} {
		err := s.CheckPools(c.pools)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.claim, err)
		}
	}
	if _, err := Load(t.Context(), Config{Layers: demoLayers(t), Pools: []string{"general"}}); err == nil {
		t.Error("a bundle with more pools than the configuration activated")
	}
}

func TestLookUpsInTheDemoData(t *testing.T) {
	s := demoSnapshot(t)
	if m, ok := s.Model("small-latest"); !ok || m.Name != "small" || m.Served != "small" || m.ContextWindow != 8192 {
		t.Errorf("alias: %+v, %v", m, ok)
	}
	if m, ok := s.Model("ghost"); ok || m.Name != "" {
		t.Errorf("unknown model: %+v", m)
	}
	if p, ok := s.Pool("restricted"); !ok || p.Region != "eu-1" || p.MaxLabel != "restricted" {
		t.Errorf("pool: %+v, %v", p, ok)
	}
	if p, ok := s.Pool("ghost"); ok || p.Name != "" {
		t.Errorf("unknown pool: %+v", p)
	}
	if r, ok := s.Registration("spiffe://demo.sallyport/tenant/acme/batch", "", ""); !ok || r.Tenant != "acme" {
		t.Errorf("batch: %+v, %v", r, ok)
	}
	if r, ok := s.Registration("", "https://127.0.0.1:1234", "acme-rag"); !ok || r.Class != "rag" || r.LabelFloor != "internal" {
		t.Errorf("rag: %+v, %v", r, ok)
	}
	if tenant, ok := s.Tenant("initech"); !ok || len(tenant.Classes) != 0 {
		t.Errorf("initech: %+v, %v", tenant, ok)
	}
	if _, ok := s.Tenant("hooli"); ok {
		t.Error("hooli exists")
	}
}
