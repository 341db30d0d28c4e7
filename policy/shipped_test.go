package policy

import (
	"bytes"
	"io/fs"
	"slices"
	"testing"

	"github.com/open-policy-agent/opa/v1/format"

	"github.com/sallyport-ai/sallyport/policies"
)

func TestShippedRegoPassesItsTestsAndIsCovered(t *testing.T) {
	report, err := RunTests(t.Context(), policies.FS)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Failed() {
		t.Errorf("%s: %s", f.Name, f.Error)
	}
	if len(report.Tests) < 30 {
		t.Errorf("only %d Rego tests ran", len(report.Tests))
	}
	if report.Coverage < 98 {
		t.Errorf("coverage %.1f %%, not covered: %v", report.Coverage, report.NotCovered)
	}
}

func TestShippedRegoPassesItsTestsUnderTheDemoData(t *testing.T) {
	report, err := RunTests(t.Context(), demoLayers(t)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Failed() {
		t.Errorf("%s: %s", f.Name, f.Error)
	}
}

func TestShippedRegoIsFormatted(t *testing.T) {
	names, err := fs.Glob(policies.FS, "sallyport/*.rego")
	if err != nil || len(names) < 3 {
		t.Fatalf("%v, %v", names, err)
	}
	for _, name := range names {
		source, err := policies.FS.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		formatted, err := format.Source(name, source)
		if err != nil || !bytes.Equal(source, formatted) {
			t.Errorf("%s is not as `opa fmt` writes it: %v", name, err)
		}
	}
}

func TestRecordNamesTheRuleThatAnswered(t *testing.T) {
	s := demoSnapshot(t)
	listing := request(func(r *InputRequest) { r.Operation, r.Model = "models.list", "" })
	for want, in := range map[string]Input{
		"allow.content": ask(),
		"allow.listing": ask(class("discovery"), listing),
		"refuse":        ask(as("hooli", "")),
	} {
		_, ev, err := s.Decide(t.Context(), in)
		if err != nil || !slices.Equal(ev.Rules, []string{want}) {
			t.Errorf("rules %v, want %s: %v", ev.Rules, want, err)
		}
	}
}
