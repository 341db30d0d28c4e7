package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/cover"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/tester"
)

// testTimeout bounds one Rego test.
const testTimeout = 5 * time.Second

// canaryTenants bounds how many tenants are tried on activation.
const canaryTenants = 32

// TestResult is one Rego test.
type TestResult struct {
	Name     string        `json:"name"` // package and rule
	File     string        `json:"file"`
	Passed   bool          `json:"passed"`
	Error    string        `json:"error,omitempty"`
	Duration time.Duration `json:"duration"`
}

// Report is the outcome of a bundle's tests.
type Report struct {
	Tests      []TestResult        `json:"tests"` // by file and name
	Coverage   float64             `json:"coverage"`
	NotCovered map[string][]string `json:"not_covered,omitempty"` // file → "first-last" lines
}

// Failed returns the tests that did not pass.
func (r Report) Failed() []TestResult {
	return slices.DeleteFunc(slices.Clone(r.Tests), func(t TestResult) bool { return t.Passed })
}

// RunTests compiles the layers as activation would and runs their Rego tests,
// with coverage of the rules that are not tests. A test that fails is in the
// report; an error means that they could not be run.
func RunTests(ctx context.Context, layers ...fs.FS) (Report, error) {
	f := make(files)
	for _, l := range layers {
		if err := f.layer(l); err != nil {
			return Report{}, err
		}
	}
	b, err := f.parse(nil)
	if err != nil {
		return Report{}, err
	}
	return runTests(ctx, b, cover.New())
}

// runTests runs with coverage only if it is asked for: tracing is slow.
func runTests(ctx context.Context, b *bundle.Bundle, coverage *cover.Cover) (Report, error) {
	modules := make(map[string]*ast.Module, len(b.Modules))
	rules := make(map[string]*ast.Module, len(b.Modules))
	for _, m := range b.Modules {
		modules[m.Path] = m.Parsed.Copy()
		if !isTestFile(m.Path) {
			rules[m.Path] = m.Parsed
		}
	}
	compiler, err := newCompiler()
	if err != nil {
		return Report{}, err
	}
	store := inmem.NewFromObject(b.Data)
	txn, err := store.NewTransaction(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("run rego tests: %w", err)
	}
	defer store.Abort(ctx, txn)
	runner := tester.NewRunner().
		SetCompiler(compiler).
		SetStore(store).
		SetModules(modules).
		RaiseBuiltinErrors(true).
		SetTimeout(testTimeout)
	if coverage != nil {
		runner.SetCoverageQueryTracer(coverage)
	}
	results, err := runner.RunTests(ctx, txn)
	if err != nil {
		return Report{}, fmt.Errorf("run rego tests: %w", err)
	}
	var report Report
	for r := range results {
		report.Tests = append(report.Tests, testResult(r))
	}
	slices.SortFunc(report.Tests, func(a, b TestResult) int {
		return strings.Compare(a.File+"\x00"+a.Name, b.File+"\x00"+b.Name)
	})
	if coverage != nil {
		report.cover(coverage.Report(rules))
	}
	return report, nil
}

func isTestFile(path string) bool { return strings.HasSuffix(path, "_test.rego") }

func testResult(r *tester.Result) TestResult {
	t := TestResult{Name: r.Package + "." + r.Name, Passed: r.Pass(), Duration: r.Duration}
	if r.Location != nil {
		t.File = r.Location.File
	}
	if r.Error != nil {
		t.Error = r.Error.Error()
	}
	return t
}

func (r *Report) cover(c cover.Report) {
	covered, missed := 0, 0
	for name, file := range c.Files {
		if isTestFile(name) {
			continue
		}
		covered += file.CoveredLines
		missed += file.NotCoveredLines
		for _, lines := range file.NotCovered {
			if r.NotCovered == nil {
				r.NotCovered = make(map[string][]string)
			}
			r.NotCovered[name] = append(r.NotCovered[name], fmt.Sprintf("%d-%d", lines.Start.Row, lines.End.Row))
		}
	}
	if covered+missed > 0 {
		r.Coverage = 100 * float64(covered) / float64(covered+missed)
	}
}

// passTests refuses a bundle whose own tests fail.
func passTests(ctx context.Context, b *bundle.Bundle) error {
	report, err := runTests(ctx, b, nil)
	if err != nil {
		return err
	}
	failed := report.Failed()
	if len(failed) == 0 {
		return nil
	}
	names := make([]string, len(failed))
	for i, t := range failed {
		names[i] = t.Name
	}
	return fmt.Errorf("rego tests fail: %s", strings.Join(names, ", "))
}

// canary asks questions whose answers must at least be well formed: nobody's,
// and every class of some tenants. Nobody, and what is unclassified, must be
// denied before clamps.
func (s *Snapshot) canary(ctx context.Context) error {
	if err := s.sing(ctx, Input{V: 1}, true); err != nil {
		return err
	}
	tenants := sortedKeys(s.registry.data.Tenants)
	for _, id := range tenants[:min(len(tenants), canaryTenants)] {
		for c := Unclassified; int(c) < len(classNames); c++ {
			if err := s.sing(ctx, s.canaryInput(id, c), c == Unclassified); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Snapshot) canaryInput(tenant string, c Class) Input {
	t := s.registry.data.Tenants[tenant]
	in := Input{
		V:         1,
		Principal: InputPrincipal{Tenant: tenant, Subject: "canary", Kind: "human", Method: "oidc", Scopes: []string{"canary"}},
		Request:   InputRequest{Operation: "chat.completions", PromptTokens: 1, PromptTokensBasis: "native"},
		Class:     InputClass{Name: c.String()},
		Label:     InputLabel{Level: t.LabelDefault},
	}
	if level, err := ParseLevel(t.LabelDefault); err == nil {
		in.Label.Rank = level.Rank()
	}
	if len(t.Models) > 0 {
		in.Request.Model = t.Models[0]
	}
	if c == Discovery {
		in.Request.Operation = "models.list"
	}
	return in
}

// sing asks one canary question, with time to spare: activation may run beside
// a full load.
func (s *Snapshot) sing(ctx context.Context, in Input, mustDeny bool) error {
	q, err := newQuestion(in)
	if err != nil {
		return fmt.Errorf("canary: %w", err)
	}
	value, _, err := s.eval(ctx, q, testTimeout)
	if err != nil {
		return fmt.Errorf("canary: tenant %q, class %s: %w", in.Principal.Tenant, in.Class.Name, err)
	}
	d, err := s.decode(value)
	if err != nil {
		return fmt.Errorf("canary: tenant %q, class %s: %w", in.Principal.Tenant, in.Class.Name, err)
	}
	if mustDeny && d.Allow {
		return errors.New("canary: policy allows " + who(in))
	}
	return nil
}

func who(in Input) string {
	if in.Principal.Tenant == "" {
		return "nobody"
	}
	return "unclassified requests of " + in.Principal.Tenant
}
