package policy

import (
	"testing"

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
