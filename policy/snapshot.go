package policy

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/util"

	"github.com/sallyport-ai/sallyport/policies"
)

// entrypoint is the one query.
const entrypoint = "data.sallyport.decision"

// Snapshot is one activated bundle: immutable, and safe for concurrent use. A
// request uses one throughout.
type Snapshot struct {
	revision string
	digest   string
	source   files // as read, for Archive
	timeout  time.Duration
	registry *registry
	compiler *ast.Compiler
	query    rego.PreparedEvalQuery

	shadow      *Snapshot // evaluated beside this one; nil for none
	shadowError string    // why there is none although one is configured
}

// Revision is the manifest's revision, or "unversioned".
func (s *Snapshot) Revision() string { return s.revision }

// Digest is the hex SHA-256 of the bundle's files.
func (s *Snapshot) Digest() string { return s.digest }

// Archive writes the bundle as it was read, signature included, as a tarball:
// what an auditor needs to ask the same questions again.
func (s *Snapshot) Archive(w io.Writer) error { return s.source.writeTarball(w) }

// compile makes a snapshot of a parsed bundle, ready to be asked.
func compile(ctx context.Context, b *bundle.Bundle, source files) (*Snapshot, error) {
	modules := make(map[string]*ast.Module, len(b.Modules))
	for _, m := range b.Modules {
		if !isTestFile(m.Path) {
			modules[m.Path] = m.Parsed
		}
	}
	compiler, err := newCompiler()
	if err != nil {
		return nil, err
	}
	if compiler.Compile(modules); compiler.Failed() {
		return nil, fmt.Errorf("compile rego: %w", compiler.Errors)
	}
	if len(compiler.GetRulesExact(ast.MustParseRef(entrypoint))) == 0 {
		return nil, fmt.Errorf("compile rego: no rule %s", entrypoint)
	}
	if err := refuseConflicts(compiler, b.Data); err != nil {
		return nil, err
	}
	registry, err := loadData(b.Data)
	if err != nil {
		return nil, err
	}
	query, err := rego.New(
		rego.Query(entrypoint),
		rego.Compiler(compiler),
		rego.Store(inmem.NewFromObjectWithOpts(b.Data, inmem.OptReturnASTValuesOnRead(true))),
		rego.StoreReadAST(true),
		rego.Strict(true),
		rego.StrictBuiltinErrors(true),
		rego.Capabilities(capabilities()),
	).PrepareForEval(ctx)
	if err != nil {
		return nil, fmt.Errorf("prepare %s: %w", entrypoint, err)
	}
	revision := b.Manifest.Revision
	if revision == "" {
		revision = unversioned
	}
	return &Snapshot{revision: revision, digest: source.digest(), source: source, registry: registry, compiler: compiler, query: query}, nil
}

// newCompiler is strict, knows the type of input, and lacks every built-in that
// reaches out or answers differently the next time.
func newCompiler() (*ast.Compiler, error) {
	raw, err := policies.FS.ReadFile("schema/input.json")
	if err != nil {
		return nil, fmt.Errorf("read input schema: %w", err)
	}
	var schema any
	if err := util.UnmarshalJSON(raw, &schema); err != nil {
		return nil, fmt.Errorf("read input schema: %w", err)
	}
	schemas := ast.NewSchemaSet()
	schemas.Put(ast.SchemaRootRef, schema)
	schemas.Put(ast.MustParseRef("schema.input"), schema)
	return ast.NewCompiler().
		WithStrict(true).
		WithSchemas(schemas).
		WithUseTypeCheckAnnotations(true).
		WithCapabilities(capabilities()), nil
}

// refused are built-ins that are deterministic by OPA's account and yet have no
// place in a decision: they reach the network, carry keys, or can be made to run
// for very long.
var refused = []string{"net.", "io.jwt.", "crypto.", "providers.", "regex.globs_match", "graphql."}

func capabilities() *ast.Capabilities {
	c := ast.CapabilitiesForThisVersion()
	kept := make([]*ast.Builtin, 0, len(c.Builtins))
	for _, b := range c.Builtins {
		if !b.Nondeterministic && !hasAnyPrefix(b.Name, refused) {
			kept = append(kept, b)
		}
	}
	c.Builtins = kept
	c.AllowNet = []string{}
	return c
}

func hasAnyPrefix(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// refuseConflicts finds data that stands where a rule stands. Rego would merge
// or shadow the two in silence.
func refuseConflicts(c *ast.Compiler, data map[string]any) error {
	errs := ast.CheckPathConflicts(c, func(path []string) (bool, error) {
		var at any = data
		for _, key := range path {
			m, ok := at.(map[string]any)
			if !ok {
				return false, nil
			}
			if at, ok = m[key]; !ok {
				return false, nil
			}
		}
		return true, nil
	})
	if len(errs) > 0 {
		return fmt.Errorf("compile rego: %w", errs)
	}
	return nil
}

// loadData reads data.sallyport, and replaces it in data by what Rego is to read:
// the same with its defaults filled in.
func loadData(data map[string]any) (*registry, error) {
	written, err := parseData(data["sallyport"])
	if err != nil {
		return nil, err
	}
	d := withDefaults(written)
	r, err := newRegistry(d)
	if err != nil {
		return nil, fmt.Errorf("data.sallyport: %w", err)
	}
	if data["sallyport"], err = d.document(); err != nil {
		return nil, err
	}
	return r, nil
}
