package policy

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"pgregory.net/rapid"

	"github.com/sallyport-ai/sallyport/policies"
)

// TestValueIsTheJSON: what Rego reads is exactly what the record says it read,
// whatever the strings are.
func TestValueIsTheJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.Make[Input]().Draw(t, "input")
		q, err := newQuestion(in)
		if errors.Is(err, ErrMalformed) {
			return // not UTF-8
		}
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := ast.ValueFromReader(strings.NewReader(string(q.json)))
		if err != nil {
			t.Fatalf("%v: %s", err, q.json)
		}
		if parsed.Compare(q.value) != 0 {
			t.Fatalf("value %v\njson %s", q.value, q.json)
		}
		var back Input
		if err := json.Unmarshal(q.json, &back); err != nil {
			t.Fatal(err)
		}
		again, err := newQuestion(back)
		if err != nil || string(again.json) != string(q.json) {
			t.Fatalf("a recorded question replays as another: %s\n%s", q.json, again.json)
		}
	})
}

func TestAbsentListsAreEmpty(t *testing.T) {
	q, err := newQuestion(Input{})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(q.json), "null"); got != 1 || !strings.Contains(string(q.json), `"max_tokens":null`) {
		t.Errorf("only max_tokens may be null: %s", q.json)
	}
}

// matches validates doc against a schema that ships, with OPA's validator.
func matches(t testing.TB, schema string, doc any) (bool, any) {
	t.Helper()
	raw, err := policies.FS.ReadFile("schema/" + schema + ".json")
	if err != nil {
		t.Fatal(err)
	}
	content, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	results, err := rego.New(
		rego.Query("json.match_schema(json.unmarshal(input.doc), json.unmarshal(input.schema))"),
		rego.Input(map[string]any{"doc": string(content), "schema": string(raw)}),
		rego.StrictBuiltinErrors(true),
	).Eval(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pair := results[0].Expressions[0].Value.([]any)
	return pair[0].(bool), pair[1]
}

func TestSchemasDescribeWhatTheCodeReadsAndWrites(t *testing.T) {
	s := demoSnapshot(t)
	for claim, in := range map[string]Input{"allowed": ask(), "denied": ask(as("hooli", "")), "full": ask(
		func(in *Input) { in.Principal.Chain = []InputActor{{Type: "user", Subject: "u"}} },
		func(in *Input) { in.Label.Sources = []InputSource{{Source: "detector", Level: "internal"}} },
		request(func(r *InputRequest) { r.MaxTokens = new(int64) }),
	)} {
		_, ev, err := s.Decide(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		if ok, why := matches(t, "input", json.RawMessage(ev.InputJSON)); !ok {
			t.Errorf("%s: input: %v", claim, why)
		}
		if ok, why := matches(t, "decision", json.RawMessage(ev.DecisionJSON)); !ok {
			t.Errorf("%s: decision: %v", claim, why)
		}
	}
	f := make(files)
	for _, l := range demoLayers(t) {
		if err := f.layer(l); err != nil {
			t.Fatal(err)
		}
	}
	b, err := f.parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	if ok, why := matches(t, "data", b.Data["sallyport"]); !ok {
		t.Errorf("demo data: %v", why)
	}
}

func TestSchemasRefuseWhatTheCodeRefuses(t *testing.T) {
	for _, c := range []struct{ claim, schema, doc string }{
		{"an input with a prompt", "input", `{"prompt": "x"}`},
		{"an answer with one field", "decision", `{"allow": true}`},
		{"an answer with a field too many", "decision", strings.Replace(strings.Replace(wellFormed, `"allow": true`, `"allow": true, "x": 1`, 1), "300,", "300", 1)},
		{"an unknown tenant field", "data", `{"tenants": {"a": {"label_default": "public", "modles": []}}}`},
		{"an unknown level", "data", `{"tenants": {"a": {"label_default": "secret"}}}`},
		{"a grant of the unclassified is a class", "data", `{"workloads": {"a": {"tenant": "a", "classes": ["unclassified"]}}}`},
		{"a pool without a region", "data", `{"pools": {"a": {"kind": "internal", "classes": [], "max_label": "public", "models": []}}}`},
	} {
		if ok, _ := matches(t, c.schema, json.RawMessage(c.doc)); ok {
			t.Errorf("%s: taken", c.claim)
		}
	}
}
