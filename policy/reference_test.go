package policy

import (
	"encoding/json"
	"io/fs"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/open-policy-agent/opa/v1/rego"

	"github.com/sallyport-ai/sallyport/policies"
)

// The vocabulary of random bundles and questions: small, so that matches
// happen, with values of each kind that the bundle does not know.
var (
	someModels  = []string{"small", "big", "ghost"}
	somePools   = []string{"p0", "p1", "p2", "p3", "p4"}
	someTenants = []string{"t0", "t1", "t2", "t3", "nobody", ""}
	someClasses = []string{"discovery", "chat", "embedding", "rag", "agent_tool_call", "unclassified", "poem"}
	someFacts   = []string{"remote_url", "remote_mcp", "tools_declared", "system_prompt"}
	someTools   = []string{"lookup", "shell", "search"}
	someScopes  = []string{"a", "b"}
	someRegions = []string{"eu-1", "us-1"}
	someLevels  = []string{"public", "internal", "confidential", "restricted"}
	someIDs     = []string{"e0", "e1", "e2"}
)

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// some keeps each item with that chance, in random order.
func some(r *rand.Rand, from []string, percent int) []string {
	out := []string{}
	for _, x := range from {
		if r.IntN(100) < percent {
			out = append(out, x)
		}
	}
	r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

func oneIn(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

// maybe sets key in m three times out of four.
func maybe(r *rand.Rand, m map[string]any, key string, value any) {
	if !oneIn(r, 4) {
		m[key] = value
	}
}

func randomRoute(r *rand.Rand) map[string]any {
	route := map[string]any{"pools": some(r, somePools, 60), "strategy": pick(r, strategies)}
	maybe(r, route, "cache_domain", pick(r, cacheDomains))
	maybe(r, route, "durability", pick(r, durabilities))
	maybe(r, route, "inspect", map[string]any{"request": some(r, someScopes, 50), "response": []string{}})
	return route
}

func randomTenant(r *rand.Rand, perLabel bool) map[string]any {
	classes := map[string]any{}
	for _, c := range some(r, someClasses[:5], 80) {
		grant := randomRoute(r)
		if oneIn(r, 3) {
			grant["scopes"] = some(r, someScopes, 40)
		}
		if perLabel && oneIn(r, 2) {
			labels := map[string]any{}
			for _, l := range some(r, someLevels, 40) {
				labels[l] = randomRoute(r)
			}
			grant["labels"] = labels
		}
		classes[c] = grant
	}
	t := map[string]any{"label_default": pick(r, someLevels), "models": some(r, someModels[:2], 80), "classes": classes}
	if oneIn(r, 3) {
		t["label_max"] = pick(r, someLevels)
	}
	if oneIn(r, 3) {
		t["facts_deny"] = some(r, someFacts, 40)
	}
	if oneIn(r, 3) {
		t["tools_allow"] = some(r, someTools, 60)
	}
	if oneIn(r, 4) {
		t["residency"] = pick(r, someRegions)
	}
	maybe(r, t, "cache_domain", pick(r, cacheDomains))
	maybe(r, t, "durability", pick(r, durabilities))
	maybe(r, t, "max_output_tokens", 1+r.IntN(100))
	maybe(r, t, "expose_cached_tokens", oneIn(r, 2))
	maybe(r, t, "region", pick(r, someRegions))
	maybe(r, t, "reauthorize_s", 1+r.IntN(1000))
	return t
}

// randomData is data.sallyport as an author could have written it.
func randomData(r *rand.Rand, perLabel bool) map[string]any {
	tenants, pools, exemptions := map[string]any{}, map[string]any{}, map[string]any{}
	for _, id := range someTenants[:4] {
		tenants[id] = randomTenant(r, perLabel)
	}
	for _, name := range somePools {
		kind := "internal"
		if oneIn(r, 5) {
			kind = "external"
		}
		pools[name] = map[string]any{
			"region": pick(r, someRegions), "kind": kind, "classes": some(r, someClasses[1:5], 80),
			"max_label": pick(r, someLevels), "models": some(r, someModels[:2], 85),
		}
	}
	for _, id := range someIDs[:2] {
		exemptions[id] = map[string]any{
			"approver": "x", "expires": "2030-01-01T00:00:00Z",
			"scope": map[string]any{"tenant": pick(r, someTenants[:4]), "facts": some(r, someFacts, 50)},
		}
	}
	return map[string]any{
		"tenants": tenants, "pools": pools, "exemptions": exemptions, "workloads": map[string]any{},
		"models": map[string]any{
			"small": map[string]any{"served": "s", "context_window": 100},
			"big":   map[string]any{"served": "b", "context_window": 0},
		},
	}
}

func randomInput(r *rand.Rand) Input {
	level := pick(r, someLevels)
	rank := slices.Index(someLevels, level)
	switch r.IntN(20) {
	case 0:
		level = "secret"
	case 1:
		rank = r.IntN(4)
	}
	in := Input{
		V:         1,
		Principal: InputPrincipal{Tenant: pick(r, someTenants[:4]), Subject: "s", Kind: "human", Scopes: some(r, someScopes, 70)},
		Request: InputRequest{
			Operation: "chat.completions", Model: pick(r, someModels[:2]), Tools: some(r, someTools, 15),
			PromptTokens: r.Int64N(120), PromptTokensBasis: pick(r, []string{"native", "engine", "estimate"}), Region: pick(r, someRegions),
		},
		Class:      InputClass{Name: pick(r, someClasses[1:5]), Facts: some(r, someFacts, 15)},
		Label:      InputLabel{Level: level, Rank: rank},
		Exemptions: some(r, someIDs, 30),
	}
	switch r.IntN(12) {
	case 0:
		in.Principal.Tenant = pick(r, someTenants)
	case 1:
		in.Class.Name = pick(r, someClasses)
	case 2, 3:
		in.Class.Name, in.Request.Operation = "discovery", "models.list"
	case 4:
		in.Request.Model = pick(r, someModels)
	case 5:
		in.Request.Operation = "models.list"
	}
	return in
}

// referenceDecision is decision.rego written by hand a second time, in Go and
// from the typed data. It gives no reasons for a denial.
func referenceDecision(d Data, in Input) Decision {
	tenant, known := d.Tenants[in.Principal.Tenant]
	grant, granted := tenant.Classes[in.Class.Name]
	level, err := ParseLevel(in.Label.Level)
	listing := in.Request.Operation == "models.list"
	if !known || !granted || err != nil || level.Rank() != in.Label.Rank || listing != (in.Class.Name == "discovery") {
		return Decision{}
	}
	if limit, err := ParseLevel(tenant.LabelMax); err == nil && level > limit {
		return Decision{}
	}
	if !listing && !referenceModel(d, tenant, in) || !referenceFacts(d, tenant, in) || !referenceTools(tenant, in) {
		return Decision{}
	}
	for _, scope := range grant.Scopes {
		if !slices.Contains(in.Principal.Scopes, scope) {
			return Decision{}
		}
	}
	route, special := grant.Labels[in.Label.Level]
	if !special {
		route = grant.Route
	}
	pools := []string{}
	for _, name := range route.Pools {
		if listing || referencePool(d.Pools[name], in, level) {
			pools = append(pools, name)
		}
	}
	if len(pools) == 0 {
		return Decision{}
	}
	return referenceTerms(tenant, route, pools, in)
}

func referenceModel(d Data, t Tenant, in Input) bool {
	model, known := d.Models[in.Request.Model]
	if !known || !slices.Contains(t.Models, in.Request.Model) {
		return false
	}
	return in.Request.PromptTokensBasis == "estimate" || model.ContextWindow == 0 || in.Request.PromptTokens <= model.ContextWindow
}

func referenceFacts(d Data, t Tenant, in Input) bool {
	for _, fact := range in.Class.Facts {
		exempt := slices.ContainsFunc(in.Exemptions, func(id string) bool {
			scope := d.Exemptions[id].Scope
			return scope.Tenant == in.Principal.Tenant && slices.Contains(scope.Facts, fact)
		})
		if slices.Contains(t.FactsDeny, fact) && !exempt {
			return false
		}
	}
	return true
}

func referenceTools(t Tenant, in Input) bool {
	for _, tool := range in.Request.Tools {
		if t.ToolsAllow != nil && !slices.Contains(t.ToolsAllow, tool) {
			return false
		}
	}
	return true
}

func referencePool(p Pool, in Input, level Level) bool {
	limit, err := ParseLevel(p.MaxLabel)
	return err == nil && level <= limit && slices.Contains(p.Classes, in.Class.Name) && slices.Contains(p.Models, in.Request.Model)
}

func referenceTerms(t Tenant, r Route, pools []string, in Input) Decision {
	or := func(values ...string) string {
		return values[slices.IndexFunc(values, func(s string) bool { return s != "" })]
	}
	d := Decision{
		Allow: true, Reasons: []string{"class_granted"}, Pools: pools, Strategy: r.Strategy,
		Prefer:      Prefer{Region: or(t.Region, in.Request.Region), Warm: true},
		CacheDomain: or(r.CacheDomain, t.CacheDomain, "tenant"), Inspect: Inspect{Request: []string{}, Response: []string{}},
		ToolsAllow: t.ToolsAllow, Limits: Limits{MaxOutputTokens: t.MaxOutputTokens},
		Durability: or(r.Durability, t.Durability, "strict"), ExposeCachedTokens: t.ExposeCachedTokens, ReauthorizeS: 300,
	}
	if r.Inspect != nil {
		d.Inspect = *r.Inspect
	}
	if t.ReauthorizeS != 0 {
		d.ReauthorizeS = t.ReauthorizeS
	}
	return d
}

// shippedOver is the Rego that ships over that data.
func shippedOver(t testing.TB, data map[string]any) *Snapshot {
	t.Helper()
	content, err := json.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	f := make(files)
	for _, l := range []fs.FS{policies.FS, fstest.MapFS{"sallyport/data.json": {Data: content}}} {
		if err := f.layer(l); err != nil {
			t.Fatal(err)
		}
	}
	b, err := f.parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := compile(t.Context(), b, f)
	if err != nil {
		t.Fatal(err)
	}
	s.timeout = 10 * DefaultTimeout // the machine may be busy
	return s
}

// TestShippedRegoAgreesWithASecondWriting compares Rego, with and without the
// rule index, with the hand-written reference over 40 random bundles of 100
// random questions each.
func TestShippedRegoAgreesWithASecondWriting(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	allowed, denied := 0, 0
	for range 40 {
		data := randomData(r, true)
		s := shippedOver(t, data)
		written, err := parseData(data) // without the defaults
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			if agree(t, s, written, randomInput(r)) {
				allowed++
			} else {
				denied++
			}
		}
	}
	t.Logf("%d allowed, %d denied", allowed, denied)
	if allowed < 500 || denied < 500 {
		t.Errorf("the questions are one-sided: %d allowed, %d denied", allowed, denied)
	}
}

func agree(t *testing.T, s *Snapshot, d Data, in Input) (allow bool) {
	t.Helper()
	q, err := newQuestion(in)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(options ...rego.EvalOption) Decision {
		results, err := s.query.Eval(t.Context(), append(options, rego.EvalParsedInput(q.value))...)
		if err != nil || len(results) != 1 {
			t.Fatalf("%v, %d results\n%s", err, len(results), q.json)
		}
		d, err := s.decode(results[0].Expressions[0].Value)
		if err != nil {
			t.Fatalf("%v\n%s", err, q.json)
		}
		return d
	}
	got, want := ask(), referenceDecision(d, in)
	if diff := Diff(got, ask(rego.EvalRuleIndexing(false), rego.EvalEarlyExit(false))); len(diff) > 0 {
		t.Fatalf("without the rule index: %v\n%s", diff, q.json)
	}
	if want.Allow {
		if diff := Diff(want, got); len(diff) > 0 || !slices.Equal(got.Reasons, want.Reasons) {
			t.Fatalf("%v, reasons %v\n%s", diff, got.Reasons, q.json)
		}
	} else if got.Allow || len(got.Pools) > 0 || len(got.Reasons) == 0 || slices.Contains(got.Reasons, "not_permitted") {
		t.Fatalf("allowed, or denied without a reason: %+v\n%s", got, q.json)
	}
	return want.Allow
}

// TestMoreDangerNeverWidens: more facts, or a higher label where the tenant has
// no routes per label, never turn a denial into an allowance nor add a pool.
// Whatever the data, no pool below the label, and no external one above
// internal, is ever permitted.
func TestMoreDangerNeverWidens(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	narrowed := 0
	for range 20 {
		s := shippedOver(t, randomData(r, false))
		for range 60 {
			in := randomInput(r)
			before, _, err := s.Decide(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			checkPoolsTakeLabel(t, s, in, before)
			more := moreDangerous(r, in)
			after, _, err := s.Decide(t.Context(), more)
			if err != nil {
				t.Fatal(err)
			}
			if len(after.Pools) < len(before.Pools) {
				narrowed++
			}
			for _, p := range after.Pools {
				if !slices.Contains(before.Pools, p) {
					t.Fatalf("pool %s appeared: %v → %v\n%+v\n%+v", p, before.Pools, after.Pools, in, more)
				}
			}
		}
	}
	if narrowed < 50 {
		t.Errorf("only %d questions were narrowed at all", narrowed)
	}
}

func moreDangerous(r *rand.Rand, in Input) Input {
	consistent := in.Label.Rank == slices.Index(someLevels, in.Label.Level)
	in.Class.Facts = append(slices.Clone(in.Class.Facts), some(r, someFacts, 30)...)
	if consistent {
		in.Label.Rank = min(3, in.Label.Rank+r.IntN(3))
		in.Label.Level = someLevels[in.Label.Rank]
	}
	return in
}

func checkPoolsTakeLabel(t *testing.T, s *Snapshot, in Input, d Decision) {
	t.Helper()
	if in.Class.Name == "discovery" {
		return
	}
	for _, name := range d.Pools {
		pool, _ := s.Pool(name)
		limit, err := ParseLevel(pool.MaxLabel)
		if err != nil || labelOf(in) > limit || pool.Kind == "external" && labelOf(in) > Internal {
			t.Fatalf("pool %s for label %s", name, in.Label.Level)
		}
	}
}
