// Package test holds what no single package can test: the layering of the
// packages, and the real binary from end to end.
package test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/sallyport-ai/sallyport/"

// allowed says, for each package or tree ("…/*"), which of our own packages it
// may import. The most specific row counts. Everybody may import its parents.
var allowed = map[string][]string{
	"cmd/*":               {"*"},
	"test/*":              {"*"},
	"gateway":             {"gateway/*", "identity", "policy", "routing/*", "audit"},
	"gateway/*":           {"gateway/*", "identity", "policy", "routing/*", "audit"},
	"gateway/upstream":    {"gateway/*", "identity", "policy", "routing/*", "audit", "identity/workload"},
	"policy":              {"policies", "audit/durable"},
	"policies":            {},
	"identity":            {},
	"identity/*":          {"identity/jws", "identity/atomicfile"}, // one strict reading of JWTs, one way to change a store
	"identity/jws":        {},
	"identity/atomicfile": {"audit/durable"},
	"identity/valkey":     {"identity/dpop", "identity/revocation"},
	"identity/svid":       {"identity/jws", "identity/workload"},
	"routing":             {},
	"routing/*":           {"routing/*"},
	"routing/relay":       {"routing/*", "identity/workload", "audit", "audit/inbox", "audit/tlog"},
	"routing/residency":   {"routing/*", "identity/workload"},
	"audit":               {},
	"audit/*":             {"audit/*"},
	"audit/durable":       {},
}

type listedPackage struct {
	ImportPath  string
	Imports     []string
	TestImports []string
}

func TestPackagesImportOnlyWhatTheirLayerMay(t *testing.T) {
	packages := list(t)
	if len(packages) < 20 {
		t.Fatalf("looked at %d packages only; the rule would hold of anything", len(packages))
	}
	for _, p := range packages {
		from := strings.TrimPrefix(p.ImportPath, module)
		for _, imp := range p.Imports {
			to, ours := strings.CutPrefix(imp, module)
			if ours && !mayImport(from, to) {
				t.Errorf("%s imports %s", from, to)
			}
		}
	}
}

func TestLayeringRuleRefusesWhatItShould(t *testing.T) {
	for _, c := range []struct{ from, to string }{
		{"identity", "policy"},
		{"identity/oidc", "identity/workload"},
		{"identity/jws", "identity/oidc"},
		{"identity/oidc", "identity/svid"},
		{"routing", "gateway"},
		{"audit", "routing"},
		{"audit", "audit/durable"},
		{"audit/durable", "audit/tlog"},
		{"policy", "audit/tlog"},
		{"policy", "gateway"},
		{"routing/fleet", "identity/workload"},
		{"gateway", "identity/oidc"},
		{"gateway", "audit/tlog"},
		{"routing/sim", "audit/tlog"},
		{"policies", "policy"},
		{"nowhere", "audit"},
	} {
		if mayImport(c.from, c.to) {
			t.Errorf("%s could import %s", c.from, c.to)
		}
	}
}

func mayImport(from, to string) bool {
	if strings.HasPrefix(from, to+"/") {
		return true
	}
	return slices.ContainsFunc(rowOf(from), func(pattern string) bool { return matches(pattern, to) })
}

// rowOf finds the row of a package: its own, else that of the nearest tree.
func rowOf(pkg string) []string {
	if row, ok := allowed[pkg]; ok {
		return row
	}
	for tree := pkg; ; {
		i := strings.LastIndexByte(tree, '/')
		if i < 0 {
			return nil
		}
		tree = tree[:i]
		if row, ok := allowed[tree+"/*"]; ok {
			return row
		}
	}
}

func matches(pattern, pkg string) bool {
	if pattern == "*" || pattern == pkg {
		return true
	}
	tree, ok := strings.CutSuffix(pattern, "/*")
	return ok && (pkg == tree || strings.HasPrefix(pkg, tree+"/"))
}

func list(t *testing.T) []listedPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,TestImports", module+"...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []listedPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listedPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}
