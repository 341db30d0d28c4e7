package gateway

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/gateway/wire"
)

const module = "github.com/sallyport-ai/sallyport/"

// cannotReach are exported sentinels of packages that the gateway is built from
// which no request can end with, and why. Everything else needs a row.
var cannotReach = map[string]string{
	"identity.ErrProduction":   "refuses at start",
	"gateway.ErrNotRecorded":   "of auditors who make a placement again",
	"routing.ErrNotAll":        "as ErrNotRecorded",
	"workload.ErrPeerIdentity": "upstream makes it ErrIdentity; of callers, the handshake fails",
	"workload.ErrExpired":      "upstream makes it ErrIdentity",
	"workload.ErrStale":        "svid makes it ErrUnavailable, upstream ErrIdentity",
	"splice.ErrSyntax":         "the body passed the strict decoder before it is edited; if not, it is a fault of ours: internal",
	"splice.ErrNotObject":      "as ErrSyntax",
	"splice.ErrEdit":           "edits are ours; a bad one is internal",
	"kvindex.ErrOrdinal":       "ends a replica's residency stream inside the fleet",
	"kvindex.ErrNode":          "as ErrOrdinal",
	"kvindex.ErrReused":        "as ErrOrdinal",
	"kvindex.ErrParent":        "as ErrOrdinal",
	"kvindex.ErrTier":          "as ErrOrdinal",
	"kvindex.ErrTwice":         "as ErrOrdinal",
	"residency.ErrHandshake":   "makes a replica no candidate",
	"residency.ErrProtocol":    "as ErrHandshake",
	"residency.ErrSilent":      "as ErrHandshake",
	"fleet.ErrGone":            "of a look beside a request, which then shows nothing",
	"fleet.ErrNotReady":        "shown by /readyz alone",
	"prompt.ErrUnsupported":    "the prompt is estimated instead, and the record says so",
	"prompt.ErrLeftToEngine":   "the model is not loaded, at start",
	"jinja.ErrUnsupported":     "as prompt.ErrUnsupported",
	"jinja.ErrBudget":          "as prompt.ErrUnsupported",
	"tokenizer.ErrWordTooLong": "as prompt.ErrUnsupported",
	"tokenizer.ErrTables":      "kept tables are made anew at start",
	"wire.ErrAnswer":           "of the engine's answer: back.go makes it errAnswer",
	"wire.ErrTruncated":        "as ErrAnswer",
	"wire.ErrEventTooLarge":    "as ErrAnswer",
	"durable.ErrNotRegular":    "of files that auditors read",
	"durable.ErrTooLong":       "as ErrNotRegular",
	"ticket.ErrMissing":        "the relay's refusal, which we see as a status",
	"ticket.ErrMalformed":      "as ErrMissing",
	"ticket.ErrUnknownGateway": "as ErrMissing",
	"ticket.ErrLog":            "as ErrMissing",
	"ticket.ErrSignature":      "as ErrMissing",
	"ticket.ErrExpired":        "as ErrMissing",
	"ticket.ErrTooFarAhead":    "as ErrMissing",
	"ticket.ErrAudience":       "as ErrMissing",
	"ticket.ErrEpoch":          "as ErrMissing",
	"ticket.ErrPool":           "as ErrMissing",
	"ticket.ErrOperation":      "as ErrMissing",
	"ticket.ErrBody":           "as ErrMissing",
	"ticket.ErrReplayed":       "as ErrMissing",
	"ticket.ErrReplayFull":     "as ErrMissing",
}

func TestEveryExportedSentinelHasARow(t *testing.T) {
	sentinels, rows := map[string]bool{}, rowsOfTable(t)
	packages := ownDependencies(t)
	if len(packages) < 15 {
		t.Fatalf("looked at %d packages only; the rule would hold of anything", len(packages))
	}
	for _, p := range packages {
		for _, name := range sentinelsOf(t, p) {
			sentinels[name] = true
		}
	}
	if len(sentinels) < 30 {
		t.Fatalf("found %d sentinels only: %v", len(sentinels), slices.Sorted(maps.Keys(sentinels)))
	}
	for name := range sentinels {
		switch why, exempt := cannotReach[name]; {
		case exempt && rows[name]:
			t.Errorf("%s has a row, yet is said not to reach the gateway: %s", name, why)
		case !exempt && !rows[name]:
			t.Errorf("%s has no row in the fault table", name)
		}
	}
	for name := range cannotReach {
		if !sentinels[name] {
			t.Errorf("%s is exempt but does not exist", name)
		}
	}
}

func TestEveryCodeOfTheDecoderHasAStatus(t *testing.T) {
	codes := 0
	for _, p := range ownDependencies(t) {
		if p.ImportPath != module+"gateway/wire" {
			continue
		}
		for _, spec := range specs(t, p) {
			typ, ok := spec.Type.(*ast.Ident)
			if !ok || typ.Name != "Code" {
				continue
			}
			for i, name := range spec.Names {
				codes++
				text := strings.Trim(spec.Values[i].(*ast.BasicLit).Value, `"`)
				if _, ok := wireStatus[wire.Code(text)]; !ok {
					t.Errorf("wire.%s (%s) has no status", name.Name, text)
				}
			}
		}
	}
	if codes != len(wireStatus) {
		t.Errorf("%d codes in source, %d in the table", codes, len(wireStatus))
	}
}

// rowsOfTable reads the error of each row from the source of the table.
func rowsOfTable(t *testing.T) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "fault.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Names[0].Name != "faults" {
			return true
		}
		for _, row := range spec.Values[0].(*ast.CompositeLit).Elts {
			if sel, ok := row.(*ast.CompositeLit).Elts[0].(*ast.SelectorExpr); ok {
				rows[sel.X.(*ast.Ident).Name+"."+sel.Sel.Name] = true
			}
		}
		return false
	})
	if len(rows) < 10 {
		t.Fatalf("read %d rows only", len(rows))
	}
	return rows
}

type listed struct {
	ImportPath, Name, Dir string
	GoFiles               []string
}

// ownDependencies lists the packages of this module that the gateway is built
// from.
func ownDependencies(t *testing.T) []listed {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Name,Dir,GoFiles", ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var own []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return own
		} else if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(p.ImportPath, module) {
			own = append(own, p)
		}
	}
}

// sentinelsOf names the exported errors of p: package variables Err… and
// constants Err… of an error type.
func sentinelsOf(t *testing.T, p listed) []string {
	t.Helper()
	var names []string
	for _, spec := range specs(t, p) {
		for _, name := range spec.Names {
			if strings.HasPrefix(name.Name, "Err") {
				names = append(names, p.Name+"."+name.Name)
			}
		}
	}
	return names
}

// specs are the constants and variables that p declares at package level.
func specs(t *testing.T, p listed) []*ast.ValueSpec {
	t.Helper()
	var out []*ast.ValueSpec
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != token.VAR && gen.Tok != token.CONST {
				continue
			}
			for _, spec := range gen.Specs {
				out = append(out, spec.(*ast.ValueSpec))
			}
		}
	}
	return out
}
