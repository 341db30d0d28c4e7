package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/open-policy-agent/opa/v1/ast"
)

// question is an Input in the three forms that deciding needs. They say the
// same: value is json parsed, and json is input encoded.
type question struct {
	input Input
	json  []byte
	value ast.Value
}

// newQuestion makes absent lists empty, as policies/schema/input.json has them,
// and refuses text that is not UTF-8, which JSON could not record faithfully.
func newQuestion(in Input) (question, error) {
	in = withLists(in)
	w := &valueWriter{}
	value := w.input(in)
	if w.invalid != "" {
		return question{}, fmt.Errorf("%w: input holds text that is not UTF-8: %q", ErrMalformed, w.invalid)
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(in); err != nil {
		return question{}, fmt.Errorf("%w: encode input: %w", ErrMalformed, err)
	}
	return question{input: in, json: bytes.TrimSuffix(buf.Bytes(), []byte("\n")), value: value}, nil
}

func withLists(in Input) Input {
	in.Principal.Groups = notNil(in.Principal.Groups)
	in.Principal.Scopes = notNil(in.Principal.Scopes)
	in.Principal.Chain = notNil(in.Principal.Chain)
	in.Request.Tools = notNil(in.Request.Tools)
	in.Class.Facts = notNil(in.Class.Facts)
	in.Label.Categories = notNil(in.Label.Categories)
	in.Label.Sources = notNil(in.Label.Sources)
	in.Exemptions = notNil(in.Exemptions)
	return in
}

func notNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// The keys of the input document, interned once.
var (
	keyV          = ast.StringTerm("v")
	keyPrincipal  = ast.StringTerm("principal")
	keyRequest    = ast.StringTerm("request")
	keyClass      = ast.StringTerm("class")
	keyLabel      = ast.StringTerm("label")
	keyExemptions = ast.StringTerm("exemptions")

	keyTenant       = ast.StringTerm("tenant")
	keySubject      = ast.StringTerm("subject")
	keyKind         = ast.StringTerm("kind")
	keyMethod       = ast.StringTerm("method")
	keyIssuer       = ast.StringTerm("issuer")
	keyGroups       = ast.StringTerm("groups")
	keyScopes       = ast.StringTerm("scopes")
	keyChain        = ast.StringTerm("chain")
	keyWorkload     = ast.StringTerm("workload")
	keyRegistration = ast.StringTerm("registration")
	keyClient       = ast.StringTerm("client_registration")
	keyType         = ast.StringTerm("type")

	keyOperation = ast.StringTerm("operation")
	keyModel     = ast.StringTerm("model")
	keyStream    = ast.StringTerm("stream")
	keyTools     = ast.StringTerm("tools")
	keyMaxTokens = ast.StringTerm("max_tokens")
	keyPrompt    = ast.StringTerm("prompt_tokens")
	keyBasis     = ast.StringTerm("prompt_tokens_basis")
	keyRegion    = ast.StringTerm("region")

	keyName       = ast.StringTerm("name")
	keyFacts      = ast.StringTerm("facts")
	keyMismatch   = ast.StringTerm("mismatch")
	keyTable      = ast.StringTerm("table")
	keyLevel      = ast.StringTerm("level")
	keyRank       = ast.StringTerm("rank")
	keyCategories = ast.StringTerm("categories")
	keySources    = ast.StringTerm("sources")
	keySource     = ast.StringTerm("source")
	keyDetail     = ast.StringTerm("detail")
)

// valueWriter builds the document that Rego reads without a detour through
// JSON, which would take several times as long.
type valueWriter struct{ invalid string }

type pair = [2]*ast.Term

func (w *valueWriter) input(in Input) ast.Value {
	return ast.NewObject(
		pair{keyV, number(int64(in.V))},
		pair{keyPrincipal, w.principal(in.Principal)},
		pair{keyRequest, w.request(in.Request)},
		pair{keyClass, object(
			pair{keyName, w.text(in.Class.Name)},
			pair{keyFacts, w.list(in.Class.Facts)},
			pair{keyMismatch, ast.InternedTerm(in.Class.Mismatch)},
			pair{keyTable, w.text(in.Class.Table)},
		)},
		pair{keyLabel, w.label(in.Label)},
		pair{keyExemptions, w.list(in.Exemptions)},
	)
}

func (w *valueWriter) principal(p InputPrincipal) *ast.Term {
	chain := make([]*ast.Term, len(p.Chain))
	for i, a := range p.Chain {
		chain[i] = object(pair{keyType, w.text(a.Type)}, pair{keySubject, w.text(a.Subject)}, pair{keyRegistration, w.text(a.Registration)})
	}
	pairs := []pair{
		{keyTenant, w.text(p.Tenant)},
		{keySubject, w.text(p.Subject)},
		{keyKind, w.text(p.Kind)},
		{keyMethod, w.text(p.Method)},
		{keyIssuer, w.text(p.Issuer)},
		{keyGroups, w.list(p.Groups)},
		{keyScopes, w.list(p.Scopes)},
		{keyChain, ast.ArrayTerm(chain...)},
		{keyWorkload, w.text(p.Workload)},
		{keyRegistration, w.text(p.Registration)},
	}
	if p.Client != "" {
		pairs = append(pairs, pair{keyClient, w.text(p.Client)})
	}
	return object(pairs...)
}

func (w *valueWriter) request(r InputRequest) *ast.Term {
	limit := ast.InternedNullTerm
	if r.MaxTokens != nil {
		limit = number(*r.MaxTokens)
	}
	return object(
		pair{keyOperation, w.text(r.Operation)},
		pair{keyModel, w.text(r.Model)},
		pair{keyStream, ast.InternedTerm(r.Stream)},
		pair{keyTools, w.list(r.Tools)},
		pair{keyMaxTokens, limit},
		pair{keyPrompt, number(r.PromptTokens)},
		pair{keyBasis, w.text(r.PromptTokensBasis)},
		pair{keyRegion, w.text(r.Region)},
	)
}

func (w *valueWriter) label(l InputLabel) *ast.Term {
	sources := make([]*ast.Term, len(l.Sources))
	for i, s := range l.Sources {
		sources[i] = object(
			pair{keySource, w.text(s.Source)},
			pair{keyLevel, w.text(s.Level)},
			pair{keyDetail, w.text(s.Detail)},
		)
	}
	return object(
		pair{keyLevel, w.text(l.Level)},
		pair{keyRank, number(int64(l.Rank))},
		pair{keyCategories, w.list(l.Categories)},
		pair{keySources, ast.ArrayTerm(sources...)},
	)
}

func (w *valueWriter) text(s string) *ast.Term {
	if !utf8.ValidString(s) {
		w.invalid = s
	}
	return ast.StringTerm(s)
}

func (w *valueWriter) list(items []string) *ast.Term {
	terms := make([]*ast.Term, len(items))
	for i, s := range items {
		terms[i] = w.text(s)
	}
	return ast.ArrayTerm(terms...)
}

func object(pairs ...pair) *ast.Term { return ast.NewTerm(ast.NewObject(pairs...)) }

func number(n int64) *ast.Term { return ast.NumberTerm(json.Number(strconv.FormatInt(n, 10))) }
