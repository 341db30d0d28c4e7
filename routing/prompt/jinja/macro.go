package jinja

import (
	"fmt"
	"slices"
	"strings"
)

type (
	// macroStmt defines a macro; params that have a default come last.
	macroStmt struct {
		name     string
		params   []string
		defaults []expr
		body     []stmt
	}

	// generationStmt is {% generation %}, by which transformers marks what an
	// assistant said. It only keeps the names set inside for itself.
	generationStmt struct{ body []stmt }

	// macroCall calls what a name is at the time.
	macroCall struct {
		fn    *nameExpr
		args  []expr // the last len(names) have names
		names []string
	}
)

// macro is a macro and the scope it was defined in.
type macro struct {
	*macroStmt
	scope *scope
}

func (p *parser) macroTag() (stmt, error) {
	t, err := p.expectKind(name, "a macro's name")
	if err != nil {
		return nil, err
	}
	if slices.Contains(reserved, t.text) || slices.Contains(foreign, t.text) {
		return nil, p.unsupported("setting " + t.text)
	}
	s := &macroStmt{name: t.text}
	if err := p.write(t.text); err != nil {
		return nil, err
	}
	leave := p.enterScope()
	defer leave()
	if err := p.macroParams(s); err != nil {
		return nil, err
	}
	if s.body, err = p.ownBlock("endmacro"); err != nil {
		return nil, err
	}
	return s, p.endBlock()
}

func (p *parser) macroParams(s *macroStmt) error {
	if err := p.expect("("); err != nil {
		return err
	}
	for !p.skip(")") {
		if len(s.params) > 0 {
			if err := p.expect(","); err != nil {
				return err
			}
		}
		t, err := p.expectKind(name, "a parameter's name")
		if err != nil {
			return err
		}
		if slices.Contains(reserved, t.text) || slices.Contains(foreign, t.text) || slices.Contains(s.params, t.text) {
			return p.unsupported("parameter " + t.text)
		}
		s.params = append(s.params, t.text)
		switch {
		case p.skip("="):
			x, err := p.expression(true)
			if err != nil {
				return err
			}
			s.defaults = append(s.defaults, x)
		case len(s.defaults) > 0:
			return p.fail("parameter without default after one that has one")
		}
		p.scopes.write(t.text) // nothing inside has read it yet
	}
	return nil
}

func (p *parser) generationTag() (stmt, error) {
	body, err := p.ownBlock("endgeneration")
	if err != nil {
		return nil, err
	}
	return &generationStmt{body}, p.endBlock()
}

func (s *macroStmt) exec(r *run) error {
	r.scope.set(s.name, &macro{s, r.scope})
	return nil
}

func (s *generationStmt) exec(r *run) error {
	outer := r.scope
	r.scope = &scope{up: outer}
	err := r.all(s.body)
	r.scope = outer
	return err
}

func (x *macroCall) eval(r *run) (Value, error) {
	v, err := x.fn.eval(r)
	if err != nil {
		return nil, err
	}
	args, err := r.values(x.args)
	if err != nil {
		return nil, err
	}
	switch m := v.(type) {
	case *macro:
		return r.call(m, args[:len(args)-len(x.names)], x.names, args[len(args)-len(x.names):])
	case undefined:
		return nil, m.err()
	}
	return nil, fmt.Errorf("%q object is not callable", typeName(v))
}

// call is what the macro writes.
func (r *run) call(m *macro, args []Value, names []string, named []Value) (Value, error) {
	if len(args) > len(m.params) {
		return nil, fmt.Errorf("macro %s takes not more than %d arguments", m.name, len(m.params))
	}
	inner := &scope{up: m.scope}
	for i, p := range m.params {
		switch at := slices.Index(names, p); {
		case i < len(args) && at >= 0:
			return nil, fmt.Errorf("macro %s got two values for %s", m.name, p)
		case i < len(args):
			inner.set(p, args[i])
		case at >= 0:
			inner.set(p, named[at])
		}
	}
	for _, n := range names {
		if !slices.Contains(m.params, n) {
			return nil, fmt.Errorf("macro %s takes no argument %s", m.name, n)
		}
	}
	if r.calls++; r.calls > maxCalls {
		return nil, fmt.Errorf("%w: macros call one another too deeply", ErrBudget)
	}
	defer func() { r.calls-- }()
	out, outer := r.out, r.scope
	r.out, r.scope = &strings.Builder{}, inner
	defer func() { r.out, r.scope = out, outer }()
	if err := r.fill(m, inner); err != nil {
		return nil, err
	}
	if err := r.all(m.body); err != nil {
		return nil, err
	}
	return r.out.String(), nil
}

// fill gives the parameters that were not given their defaults, which may read
// those before them.
func (r *run) fill(m *macro, inner *scope) error {
	first := len(m.params) - len(m.defaults)
	for i, p := range m.params {
		if slices.Contains(inner.names, p) {
			continue
		}
		if i < first {
			inner.set(p, undefined{"parameter " + p})
			continue
		}
		v, err := m.defaults[i-first].eval(r)
		if err != nil {
			return err
		}
		inner.set(p, v)
	}
	return nil
}
