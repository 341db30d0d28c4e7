package jinja

import (
	"slices"
	"strings"
)

func (p *parser) attribute(of expr) (expr, error) {
	p.pos++
	t := p.next()
	switch {
	case t.kind == integer:
		return &itemExpr{of, &constExpr{t.value}}, nil
	case t.kind != name:
		return nil, p.fail("expected a name after the dot, got %q", t.text)
	case strings.HasPrefix(t.text, "__"):
		return nil, p.unsupported("attribute " + t.text)
	}
	if n, ok := of.(*nameExpr); ok && n.name == "loop" && loopAttributes[t.text] == nil {
		return nil, p.unsupported("loop." + t.text)
	}
	p.out.names[t.text] = true
	if !p.peek().is("(") {
		return &attrExpr{of, t.text}, nil
	}
	m, ok := methods[t.text]
	if !ok {
		return nil, p.unsupported("method " + t.text)
	}
	args, names, err := p.args()
	if err != nil {
		return nil, err
	}
	if len(names) > 0 || len(args) < m.min || len(args) > m.max {
		return nil, p.unsupported("these arguments for the method " + t.text)
	}
	return &callExpr{of, t.text, args}, nil
}

func (p *parser) subscript(of expr) (expr, error) {
	p.pos++
	var parts [3]expr
	n := 0
	for ; n < 3; n++ {
		if t := p.peek(); !t.is(":") && !t.is("]") {
			x, err := p.expression(true)
			if err != nil {
				return nil, err
			}
			parts[n] = x
		}
		if !p.skip(":") {
			break
		}
	}
	if err := p.expect("]"); err != nil {
		return nil, err
	}
	if n == 0 {
		if parts[0] == nil {
			return nil, p.fail("empty subscript")
		}
		return &itemExpr{of, parts[0]}, nil
	}
	return &sliceExpr{of, parts}, nil
}

func (p *parser) filter(of expr) (expr, error) {
	p.pos++
	t, err := p.expectKind(name, "a filter's name")
	if err != nil {
		return nil, err
	}
	var args []expr
	var names []string
	if p.peek().is("(") {
		if args, names, err = p.args(); err != nil {
			return nil, err
		}
	}
	f, ok := filters[t.text]
	switch {
	case !ok:
		return p.missing("filter", t.text, jinjaFilters)
	case t.text == "map" && len(args) > len(names):
		return p.mapFilter(of, args, names)
	case f.variadic:
		if len(names) > 0 {
			return nil, p.unsupported("named arguments for the filter " + t.text)
		}
		return &filterExpr{of, f, args}, nil
	}
	bound, ok := bind(f.params, args, names)
	if !ok || f.form == namedOnly && len(args) > len(names) || f.form == positionalOnly && len(names) > 0 || !p.namesTest(f, bound) {
		return nil, p.unsupported("these arguments for the filter " + t.text)
	}
	return &filterExpr{of, f, bound}, nil
}

// missing is a filter or test that is not implemented. One that Jinja does not
// have either fails a template when it is compiled, but inside an if, or an
// if-expression, only when it is reached.
func (p *parser) missing(what, name string, has []string) (expr, error) {
	switch {
	case slices.Contains(has, name):
		return nil, p.unsupported(what + " " + name)
	case p.soft:
		return &failExpr{p.fail("no %s named %q", what, name)}, nil
	}
	return nil, p.fail("no %s named %q", what, name)
}

// mapFilter is map with a filter's name and that filter's arguments.
func (p *parser) mapFilter(of expr, args []expr, names []string) (expr, error) {
	c, _ := args[0].(*constExpr)
	if c == nil {
		return nil, p.unsupported("map with this argument")
	}
	name, _ := c.v.(string)
	f, ok := filters[name]
	if !ok || f.variadic || f.test > 0 || name == "map" {
		return nil, p.unsupported("map of this filter")
	}
	bound, ok := bind(f.params, args[1:], names)
	if !ok || f.form == namedOnly && len(args)-1 > len(names) {
		return nil, p.unsupported("these arguments for the filter " + name)
	}
	return &mapExpr{of, f, bound}, nil
}

// namesTest checks the argument of a filter that names a test.
func (p *parser) namesTest(f filter, bound []expr) bool {
	if f.test == 0 || bound[f.test] == nil {
		return f.test == 0 || bound[0] != nil
	}
	c, ok := bound[f.test].(*constExpr)
	if !ok {
		return false
	}
	name, ok := c.v.(string)
	check, known := tests[name]
	return ok && known && (check.args == 1) == (bound[f.test+1] != nil)
}

// bind puts arguments in the order of params; those not given stay nil.
func bind(params []string, args []expr, names []string) ([]expr, bool) {
	if len(args) > len(params) {
		return nil, false
	}
	bound := make([]expr, len(params))
	positional := len(args) - len(names)
	copy(bound, args[:positional])
	for i, n := range names {
		at := slices.Index(params, n)
		if at < positional {
			return nil, false
		}
		bound[at] = args[positional+i]
	}
	return bound, true
}

func (p *parser) test(of expr) (expr, error) {
	p.pos++
	negated := p.skipKeyword("not")
	t, err := p.expectKind(name, "a test's name")
	if err != nil {
		return nil, err
	}
	check, ok := tests[t.text]
	if !ok {
		return p.missing("test", t.text, jinjaTests)
	}
	x := &testExpr{of: of, check: check}
	switch next := p.peek(); {
	case next.is("("):
		var names []string
		if x.args, names, err = p.args(); err != nil {
			return nil, err
		}
		if len(names) > 0 {
			return nil, p.unsupported("named argument of a test")
		}
	case next.keyword("else") || next.keyword("or") || next.keyword("and"):
	case next.keyword("is"):
		return nil, p.fail("tests cannot be chained with is")
	case next.kind == name, next.kind == str, next.kind == integer, next.kind == float, next.is("["), next.is("{"):
		arg, err := p.testArgument()
		if err != nil {
			return nil, err
		}
		x.args = []expr{arg}
	}
	if len(x.args) != check.args {
		return nil, p.unsupported("these arguments for the test " + t.text)
	}
	if negated {
		return &unaryExpr{"not", x}, nil
	}
	return x, nil
}

// testArgument is the one argument of a test written without parentheses: a
// primary with its attributes and subscripts.
func (p *parser) testArgument() (expr, error) {
	x, err := p.primary()
	for err == nil {
		switch t := p.peek(); {
		case t.is("."):
			x, err = p.attribute(x)
		case t.is("["):
			x, err = p.subscript(x)
		default:
			return x, nil
		}
	}
	return nil, err
}
