package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// wellFormed is an answer that allows; tests replace parts of it.
const wellFormed = `{
	"allow": true, "reasons": [], "pools": ["general"], "strategy": "probabilistic",
	"prefer": {"region": "", "warm": true}, "cache_domain": "tenant",
	"inspect": {"request": [], "response": []}, "tools_allow": null,
	"limits": {"max_output_tokens": null}, "durability": "strict",
	"expose_cached_tokens": false, "reauthorize_s": 300,
}`

// smallData has one tenant and pools that differ in one thing each.
const smallData = `{
	"tenants": {"acme": {"label_default": "internal", "models": ["small"]},
	            "stay": {"label_default": "internal", "residency": "eu-1"}},
	"workloads": {"batch": {"spiffe_id": "spiffe://td/batch", "tenant": "acme", "classes": ["chat"], "residency": "eu-1"},
		"short": {"client_id": "short", "tenant": "acme", "classes": ["chat", "rag"], "max_output_tokens": 9}},
	"pools": {
		"general": {"region": "eu-1", "kind": "internal", "classes": ["chat", "rag", "agent_tool_call"], "max_label": "restricted", "models": ["small"]},
		"far":     {"region": "us-1", "kind": "internal", "classes": ["chat"], "max_label": "restricted", "models": ["small"]},
		"hosted":  {"region": "eu-1", "kind": "external", "classes": ["chat"], "max_label": "restricted", "models": ["small"]},
		"low":     {"region": "eu-1", "kind": "internal", "classes": ["chat"], "max_label": "public", "models": ["small"]},
		"other":   {"region": "eu-1", "kind": "internal", "classes": ["chat"], "max_label": "restricted", "models": ["big"]},
		"ragonly": {"region": "eu-1", "kind": "internal", "classes": ["rag"], "max_label": "restricted", "models": ["small"]}
	},
	"models": {"small": {"served": "s", "context_window": 10, "aliases": ["tiny"]}, "big": {"served": "b", "context_window": 10}},
	"exemptions": {}
}`

// regoBundle is a bundle of one module with smallData.
func regoBundle(module string) fstest.MapFS {
	return fstest.MapFS{
		"sallyport/p.rego":    {Data: []byte("package sallyport\n\n" + module)},
		"sallyport/data.json": {Data: []byte(smallData)},
	}
}

// uncheckedSnapshot compiles without canaries: the test wants a policy that
// misbehaves.
func uncheckedSnapshot(t testing.TB, fsys fs.FS) *Snapshot {
	t.Helper()
	f := make(files)
	if err := f.layer(fsys); err != nil {
		t.Fatal(err)
	}
	b, err := f.parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := compile(context.Background(), b, f)
	if err != nil {
		t.Fatal(err)
	}
	s.timeout = DefaultTimeout
	return s
}

// burnsCPU counts for minutes.
const burnsCPU = `n := count([x | some a in numbers.range(1, 3000); some b in numbers.range(1, 3000); x := a * b; x == -1])`

func TestEveryFailureDenies(t *testing.T) {
	with := func(old, replacement string) string {
		if !strings.Contains(wellFormed, old) {
			t.Fatalf("wellFormed has no %s", old)
		}
		return "decision := " + strings.Replace(wellFormed, old, replacement, 1)
	}
	for _, c := range []struct {
		claim, module string
		want          error
	}{
		{"no rule matches", `decision := ` + wellFormed + ` if input.v == 2`, ErrUndefined},
		{"a built-in fails", `decision := ` + wellFormed + " if not bad\nbad if to_number(input.principal.subject) > 0", ErrEvaluation},
		{"a division by zero", `decision := ` + wellFormed + ` if 1 / (input.v - 1) != 0`, ErrEvaluation},
		{"rules conflict", "decision := " + wellFormed + " if input.v == 1\ndecision := false if input.v > 0", ErrEvaluation},
		{"evaluation takes too long", "decision := " + wellFormed + " if {\n" + burnsCPU + "\nn == 0\n}", ErrTimeout},
		{"the answer is true", `decision := true`, ErrMalformed},
		{"the answer is a string", `decision := "allow"`, ErrMalformed},
		{"the answer is null", `decision := null`, ErrMalformed},
		{"the answer is empty", `decision := {}`, ErrMalformed},
		{"an unknown field", with(`"allow": true,`, `"allow": true, "alow": true,`), ErrMalformed},
		{"no allow", with(`"allow": true,`, ``), ErrMalformed},
		{"no reasons", with(`"reasons": [],`, ``), ErrMalformed},
		{"no pools", with(`"pools": ["general"],`, ``), ErrMalformed},
		{"no tools_allow", with(`"tools_allow": null,`, ``), ErrMalformed},
		{"no reauthorize_s", with(`"reauthorize_s": 300,`, ``), ErrMalformed},
		{"allow is a string", with(`"allow": true`, `"allow": "true"`), ErrMalformed},
		{"allow is a number", with(`"allow": true`, `"allow": 1`), ErrMalformed},
		{"allow is null", with(`"allow": true`, `"allow": null`), ErrMalformed},
		{"pools is an object", with(`["general"]`, `{"general": true}`), ErrMalformed},
		{"pools is a string", with(`["general"]`, `"general"`), ErrMalformed},
		{"pools is null", with(`["general"]`, `null`), ErrMalformed},
		{"a pool is a number", with(`["general"]`, `[1]`), ErrMalformed},
		{"a pool is unknown", with(`["general"]`, `["general", "ghost"]`), ErrMalformed},
		{"a strategy is unknown", with(`"probabilistic"`, `"random"`), ErrMalformed},
		{"a cache domain is unknown", with(`"cache_domain": "tenant"`, `"cache_domain": "everyone"`), ErrMalformed},
		{"a durability is unknown", with(`"durability": "strict"`, `"durability": "off"`), ErrMalformed},
		{"a durability is empty", with(`"durability": "strict"`, `"durability": ""`), ErrMalformed},
		{"prefer lacks a field", with(`{"region": "", "warm": true}`, `{"region": ""}`), ErrMalformed},
		{"prefer has a field too many", with(`"warm": true`, `"warm": true, "cold": true`), ErrMalformed},
		{"prefer is null", with(`{"region": "", "warm": true}`, `null`), ErrMalformed},
		{"inspect lacks a direction", with(`{"request": [], "response": []}`, `{"request": []}`), ErrMalformed},
		{"limits is empty", with(`{"max_output_tokens": null}`, `{}`), ErrMalformed},
		{"a limit is negative", with(`{"max_output_tokens": null}`, `{"max_output_tokens": -1}`), ErrMalformed},
		{"a limit is zero", with(`{"max_output_tokens": null}`, `{"max_output_tokens": 0}`), ErrMalformed},
		{"a limit is a fraction", with(`{"max_output_tokens": null}`, `{"max_output_tokens": 1.5}`), ErrMalformed},
		{"a limit overflows", with(`{"max_output_tokens": null}`, `{"max_output_tokens": 1e30}`), ErrMalformed},
		{"reauthorize_s is zero", with(`"reauthorize_s": 300`, `"reauthorize_s": 0`), ErrMalformed},
		{"reauthorize_s is a string", with(`"reauthorize_s": 300`, `"reauthorize_s": "300"`), ErrMalformed},
		{"tools_allow is a string", with(`"tools_allow": null`, `"tools_allow": "all"`), ErrMalformed},
	} {
		s := uncheckedSnapshot(t, regoBundle(c.module))
		d, ev, err := s.Decide(t.Context(), ask())
		if !errors.Is(err, c.want) {
			t.Errorf("%s: error %v, want %v", c.claim, err, c.want)
		}
		if d.Allow || len(d.Pools) != 0 || len(d.Reasons) != 1 {
			t.Errorf("%s: %+v", c.claim, d)
		}
		if len(ev.InputJSON) == 0 {
			t.Errorf("%s: the question is not recorded", c.claim)
		}
	}
	s := uncheckedSnapshot(t, regoBundle("decision := "+wellFormed))
	if d, _, err := s.Decide(t.Context(), ask()); err != nil || !d.Allow {
		t.Errorf("the answer that the cases break is not well formed: %+v, %v", d, err)
	}
}

func TestTimeoutEndsEvaluation(t *testing.T) {
	s := uncheckedSnapshot(t, regoBundle("decision := "+wellFormed+" if {\n"+burnsCPU+"\nn == 0\n}"))
	start := time.Now()
	_, _, err := s.Decide(t.Context(), ask())
	if took := time.Since(start); !errors.Is(err, ErrTimeout) || took > 30*time.Second {
		t.Errorf("%v after %v", err, took)
	}
}

func TestCancelledCallerIsDenied(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d, _, err := demoSnapshot(t).Decide(ctx, ask())
	if !errors.Is(err, ErrTimeout) || d.Allow {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestTextThatIsNotUTF8IsDenied(t *testing.T) {
	d, _, err := demoSnapshot(t).Decide(t.Context(), ask(func(in *Input) { in.Principal.Subject = "a\xff" }))
	if !errors.Is(err, ErrMalformed) || d.Allow {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestPanicDenies(t *testing.T) {
	s := uncheckedSnapshot(t, regoBundle("decision := "+wellFormed))
	s.compiler = nil // dereferenced while evaluating
	d, _, err := s.Decide(t.Context(), ask())
	if !errors.Is(err, ErrEvaluation) || d.Allow {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestDangerousBuiltinsDoNotCompile(t *testing.T) {
	for _, call := range []string{
		`http.send({"method": "get", "url": "http://127.0.0.1"})`, `opa.runtime()`, `time.now_ns()`,
		`rand.intn("x", 3)`, `uuid.rfc4122("x")`, `net.lookup_ip_addr("localhost")`, `net.cidr_contains("10.0.0.0/8", "10.0.0.1")`,
		`io.jwt.decode("a.b.c")`, `io.jwt.verify_hs256("a", "b")`, `crypto.hmac.sha256("a", "b")`,
	} {
		_, err := Load(t.Context(), Config{Layers: []fs.FS{regoBundle("decision := x if x := " + call)}})
		if err == nil || !strings.Contains(err.Error(), "undefined function") {
			t.Errorf("%s: %v", call, err)
		}
	}
}

func TestActivationRefuses(t *testing.T) {
	good := "decision := object.union(" + wellFormed + `, {"allow": false})`
	data := func(old, replacement string) fstest.MapFS {
		if !strings.Contains(smallData, old) {
			t.Fatalf("smallData has no %s", old)
		}
		b := regoBundle(good)
		b["sallyport/data.json"] = &fstest.MapFile{Data: []byte(strings.Replace(smallData, old, replacement, 1))}
		return b
	}
	plus := func(name, content string) fstest.MapFS {
		b := regoBundle(good)
		b[name] = &fstest.MapFile{Data: []byte(content)}
		return b
	}
	for _, c := range []struct {
		claim  string
		bundle fs.FS
		want   string
	}{
		{"an entry point of another name", regoBundle("decison := " + wellFormed), "no rule data.sallyport.decision"},
		{"an unused variable", regoBundle(good + " if x := 1"), "unused"},
		{"a misspelt input field", regoBundle(good + ` if input.principal.tenent == "a"`), "undefined ref"},
		{"a comparison that can never hold", regoBundle(good + ` if input.request.stream == "yes"`), "match error"},
		{"a syntax error", regoBundle("decision :="), "parse"},
		{"a policy that allows nobody", regoBundle("decision := " + wellFormed), "allows nobody"},
		{"a policy that allows the unclassified", regoBundle(good + " if input.principal.tenant != \"acme\"\ndecision := " + wellFormed + ` if input.principal.tenant == "acme"`), "allows unclassified requests of acme"},
		{"a policy that is undefined for a class", regoBundle(good + ` if input.class.name != "rag"`), "canary: tenant \"acme\", class rag"},
		{"a failing test", plus("sallyport/p_test.rego", "package sallyport_test\n\ntest_false if 1 == 2"), "rego tests fail: data.sallyport_test.test_false"},
		{"a test with an error", plus("sallyport/p_test.rego", "package sallyport_test\n\ntest_error if not to_number(\"x\")"), "rego tests fail"},
		{"data where a rule stands", plus("sallyport/decision/data.json", `{"allow": true}`), "conflict"},
		{"a key twice", plus("sallyport/tenants/data.json", `{"a": {}, "a": {}}`), "a key twice"},
		{"an unknown tenant field", data(`"models": ["small"]}`, `"modles": ["small"]}`), "modles"},
		{"an unknown level", data(`"label_default": "internal", "models"`, `"label_default": "secret", "models"`), "tenants.acme.label_default"},
		{"a missing level", data(`"label_default": "internal", "models": ["small"]`, ``), "tenants.acme.label_default"},
		{"a tenant's unknown model", data(`["small"]},`, `["huge"]},`), `no model "huge"`},
		{"a registration without a tenant", data(`"tenant": "acme"`, `"tenant": "hooli"`), `no tenant "hooli"`},
		{"a registration of everything", data(`"spiffe_id": "spiffe://td/batch"`, `"spiffe_id": "spiffe://td/*/x"`), "last segment"},
		{"a registration of a trust domain", data(`"spiffe_id": "spiffe://td/batch"`, `"spiffe_id": "spiffe://td"`), "a path"},
		{"a registration of an ID that nobody can have", data(`"spiffe_id": "spiffe://td/batch"`, `"spiffe_id": "spiffe://TD/batch"`), "workloads.batch.spiffe_id"},
		{"a registration of an encoded path", data(`"spiffe_id": "spiffe://td/batch"`, `"spiffe_id": "spiffe://td/%62atch"`), "workloads.batch.spiffe_id"},
		{"a registration of a path with dots", data(`"spiffe_id": "spiffe://td/batch"`, `"spiffe_id": "spiffe://td/a/../batch/*"`), "workloads.batch.spiffe_id"},
		{"a registration of a path that ends in a slash", data(`"spiffe_id": "spiffe://td/batch"`, `"spiffe_id": "spiffe://td/batch/"`), "workloads.batch.spiffe_id"},
		{"a registration of an ID in another scheme", data(`"spiffe_id": "spiffe://td/batch"`, `"spiffe_id": "https://td/batch"`), "workloads.batch.spiffe_id"},
		{"a registration by ID and client", data(`"spiffe_id": "spiffe://td/batch"`, `"spiffe_id": "spiffe://td/batch", "client_id": "b"`), "exactly one of"},
		{"a registration by ID with an issuer", data(`"spiffe_id": "spiffe://td/batch"`, `"spiffe_id": "spiffe://td/batch", "issuer": "i"`), "issuer belongs to client_id"},
		{"a registration of an unknown kind", data(`"spiffe_id": "spiffe://td/batch"`, `"spiffe_id": "spiffe://td/batch", "kind": "robot"`), "workloads.batch.kind"},
		{"a registration with an unknown floor", data(`"spiffe_id": "spiffe://td/batch"`, `"spiffe_id": "spiffe://td/batch", "label_floor": "secret"`), "workloads.batch.label_floor"},
		{"a registration without any tokens", data(`"max_output_tokens": 9`, `"max_output_tokens": 0`), "workloads.short.max_output_tokens"},
		{"a registration by nothing", data(`"spiffe_id": "spiffe://td/batch",`, ``), "exactly one of"},
		{"a registration for the unclassified", data(`"classes": ["chat"], "residency"`, `"classes": ["unclassified"], "residency"`), "cannot be granted"},
		{"a pool of unknown kind", data(`"external"`, `"hosted"`), "pools.hosted.kind"},
		{"a pool without a region", data(`"region": "us-1"`, `"region": ""`), "needs a region"},
		{"an alias that is a name", data(`"tiny"`, `"big"`), "ambiguous model"},
		{"an exemption without an approver", data(`"exemptions": {}`, `"exemptions": {"e": {"approver": "", "expires": "2030-01-01T00:00:00Z", "scope": {"tenant": "acme"}}}`), "approver"},
		{"an exemption without an end", data(`"exemptions": {}`, `"exemptions": {"e": {"approver": "x", "scope": {"tenant": "acme"}}}`), "needs expires"},
		{"an exemption whose end is no time", data(`"exemptions": {}`, `"exemptions": {"e": {"approver": "x", "expires": "soon", "scope": {"tenant": "acme"}}}`), "expires"},
		{"a grant of the unclassified", data(`"models": ["small"]}`, `"classes": {"unclassified": {"pools": [], "strategy": "deterministic"}}}`), "cannot be granted"},
		{"a grant of an unknown pool", data(`"models": ["small"]}`, `"classes": {"chat": {"pools": ["ghost"], "strategy": "deterministic"}}}`), `no pool "ghost"`},
		{"a grant without a strategy", data(`"models": ["small"]}`, `"classes": {"chat": {"pools": []}}}`), "strategy"},
	} {
		_, err := Load(t.Context(), Config{Layers: []fs.FS{c.bundle}})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.claim, err, c.want)
		}
	}
	if _, err := Load(t.Context(), Config{Layers: []fs.FS{regoBundle(good)}}); err != nil {
		t.Errorf("the bundle that the cases break does not activate: %v", err)
	}
}

func TestAmbiguousRegistrationsDoNotActivate(t *testing.T) {
	for _, pair := range []string{
		`"a": {"spiffe_id": "spiffe://td/x", %[1]s}, "b": {"spiffe_id": "spiffe://td/x", %[1]s}`,
		`"a": {"spiffe_id": "spiffe://td/x/*", %[1]s}, "b": {"spiffe_id": "spiffe://td/x/*", %[1]s}`,
		`"a": {"client_id": "x", %[1]s}, "b": {"client_id": "x", %[1]s}`,
		`"a": {"client_id": "x", "issuer": "i", %[1]s}, "b": {"client_id": "x", "issuer": "i", %[1]s}`,
	} {
		b := regoBundle("decision := object.union(" + wellFormed + `, {"allow": false})`)
		workloads := fmt.Sprintf(pair, `"tenant": "acme", "classes": ["chat"]`)
		start := strings.Index(smallData, `"workloads"`)
		end := strings.Index(smallData, `"pools"`)
		b["sallyport/data.json"] = &fstest.MapFile{Data: []byte(smallData[:start] + `"workloads": {` + workloads + "},\n" + smallData[end:])}
		if _, err := Load(t.Context(), Config{Layers: []fs.FS{b}}); err == nil || !strings.Contains(err.Error(), "ambiguous registration") {
			t.Errorf("%s: %v", workloads, err)
		}
	}
}
