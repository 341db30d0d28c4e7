package jinja

import "slices"

// tuple is an expression, or several with commas. end is a word that ends it
// besides the usual.
func (p *parser) tuple(conditional bool, end string) (expr, error) {
	first, err := p.expression(conditional)
	if err != nil || !p.peek().is(",") {
		return first, err
	}
	items := []expr{first}
	for p.skip(",") {
		t := p.peek()
		if t.kind == varEnd || t.kind == blockEnd || t.is(")") || end != "" && t.keyword(end) {
			break
		}
		x, err := p.expression(conditional)
		if err != nil {
			return nil, err
		}
		items = append(items, x)
	}
	return &listExpr{items, isTuple}, nil
}

func (p *parser) expression(conditional bool) (expr, error) {
	leave, err := p.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	soft := p.soft
	defer func() { p.soft = soft }()
	x, err := p.or()
	for n := 0; err == nil && conditional && p.skipKeyword("if"); n++ {
		if n > maxChain {
			return nil, p.fail("%w: expression too long", ErrBudget)
		}
		p.soft = true
		c := &condExpr{then: x}
		if c.test, err = p.or(); err != nil {
			return nil, err
		}
		if p.skipKeyword("else") {
			if c.orElse, err = p.expression(true); err != nil {
				return nil, err
			}
		}
		x = c
	}
	return x, err
}

// chain reads operand (operator operand)*, left-associative. operator moves
// over an operator and names it, or returns "".
func (p *parser) chain(operand func() (expr, error), operator func() string, join func(o string, a, b expr) expr) (expr, error) {
	x, err := operand()
	for n := 0; err == nil; n++ {
		if n > maxChain {
			return nil, p.fail("%w: expression too long", ErrBudget)
		}
		o := operator()
		if o == "" {
			return x, nil
		}
		var y expr
		if y, err = operand(); err == nil {
			x = join(o, x, y)
		}
	}
	return nil, err
}

func (p *parser) oneOf(ops ...string) func() string {
	return func() string {
		if t := p.peek(); t.kind == op && slices.Contains(ops, t.text) {
			p.pos++
			return t.text
		}
		return ""
	}
}

func (p *parser) word(w string) func() string {
	return func() string {
		if p.skipKeyword(w) {
			return w
		}
		return ""
	}
}

func joinBinary(o string, a, b expr) expr { return &binaryExpr{o, a, b} }

func joinLogic(o string, a, b expr) expr { return &logicExpr{o == "or", a, b} }

func (p *parser) or() (expr, error)  { return p.chain(p.and, p.word("or"), joinLogic) }
func (p *parser) and() (expr, error) { return p.chain(p.not, p.word("and"), joinLogic) }

func (p *parser) not() (expr, error) {
	if !p.skipKeyword("not") {
		return p.comparison()
	}
	leave, err := p.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	x, err := p.not()
	return &unaryExpr{"not", x}, err
}

func (p *parser) comparison() (expr, error) {
	first, err := p.sum()
	if err != nil {
		return nil, err
	}
	c := &compareExpr{first: first}
	for {
		o := p.oneOf("==", "!=", "<", "<=", ">", ">=")()
		switch {
		case o != "":
		case p.skipKeyword("in"):
			o = "in"
		case p.peek().keyword("not") && p.tokens[p.pos+1].keyword("in"):
			p.pos += 2
			o = "not in"
		case len(c.ops) == 0:
			return first, nil
		default:
			return c, nil
		}
		x, err := p.sum()
		if err != nil {
			return nil, err
		}
		c.ops, c.rest = append(c.ops, o), append(c.rest, x)
	}
}

func (p *parser) sum() (expr, error) { return p.chain(p.concat, p.oneOf("+", "-"), joinBinary) }

func (p *parser) concat() (expr, error) {
	return p.chain(p.product, p.oneOf("~"), joinBinary)
}

func (p *parser) product() (expr, error) {
	return p.chain(func() (expr, error) { return p.unary(true) }, p.oneOf("*", "/", "//", "%"), joinBinary)
}

func (p *parser) unary(filters bool) (expr, error) {
	leave, err := p.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	var x expr
	if o := p.oneOf("-", "+")(); o != "" {
		if x, err = p.unary(false); err == nil {
			x = &unaryExpr{o, x}
		}
	} else {
		x, err = p.primary()
	}
	for n := 0; err == nil; n++ {
		if n > maxChain {
			return nil, p.fail("%w: expression too long", ErrBudget)
		}
		t := p.peek()
		switch {
		case t.is("."):
			x, err = p.attribute(x)
		case t.is("["):
			x, err = p.subscript(x)
		case t.is("("):
			return nil, p.unsupported("call of an expression")
		case t.is("**"):
			return nil, p.unsupported("operator **")
		default:
			if filters {
				return p.filters(x)
			}
			return x, nil
		}
	}
	return nil, err
}

func (p *parser) filters(x expr) (expr, error) {
	var err error
	for n := 0; err == nil; n++ {
		if n > maxChain {
			return nil, p.fail("%w: expression too long", ErrBudget)
		}
		switch t := p.peek(); {
		case t.is("|"):
			x, err = p.filter(x)
		case t.keyword("is"):
			x, err = p.test(x)
		case t.is("("):
			return nil, p.unsupported("call of an expression")
		case t.is("**"):
			return nil, p.unsupported("operator **")
		default:
			return x, nil
		}
	}
	return nil, err
}

// foreign are names that Jinja or transformers define and we do not, or that
// are functions: not to be read as variables.
var foreign = []string{
	"range", "namespace", "raise_exception", "dict", "lipsum", "cycler", "joiner",
	"self", "super", "caller", "varargs", "kwargs",
}

func (p *parser) primary() (expr, error) {
	t := p.next()
	switch t.kind {
	case name:
		return p.name(t)
	case str:
		s := t.text
		for p.peek().kind == str {
			s += p.next().text
		}
		p.out.names[s] = true // it may be used as a key
		return &constExpr{s}, nil
	case integer, float:
		return &constExpr{t.value}, nil
	case op:
		switch t.text {
		case "(":
			return p.parens()
		case "[":
			items, err := p.items("]")
			return &listExpr{items, isList}, err
		case "{":
			return p.dict()
		}
	}
	p.pos = max(0, p.pos-1)
	return nil, p.fail("unexpected %q", t.text)
}

func (p *parser) name(t token) (expr, error) {
	switch t.text {
	case "true", "True":
		return &constExpr{true}, nil
	case "false", "False":
		return &constExpr{false}, nil
	case "none", "None":
		return &constExpr{nil}, nil
	}
	if p.peek().is("(") {
		return p.callName(t.text)
	}
	if slices.Contains(foreign, t.text) {
		return nil, p.unsupported(t.text)
	}
	if t.text == "strftime_now" {
		return &constExpr{builtin(t.text)}, nil
	}
	p.out.names[t.text] = true
	p.scopes.read(t.text)
	return &nameExpr{t.text}, nil
}

func (p *parser) callName(fn string) (expr, error) {
	args, names, err := p.args()
	if err != nil {
		return nil, err
	}
	switch {
	case fn == "namespace" && len(args) == len(names):
		return &namespaceExpr{names, args}, nil
	case fn == "range" && len(names) == 0 && len(args) >= 1 && len(args) <= 3:
		return &rangeExpr{args}, nil
	case fn == "raise_exception" && len(names) == 0 && len(args) == 1:
		return &raiseExpr{args[0]}, nil
	}
	if fn == "strftime_now" && len(names) == 0 && len(args) == 1 {
		return &timeExpr{args[0]}, nil
	}
	if slices.Contains(foreign, fn) || fn == "strftime_now" || fn == "loop" {
		return nil, p.unsupported("function " + fn + " or these arguments for it")
	}
	p.out.names[fn] = true
	p.scopes.read(fn)
	return &macroCall{&nameExpr{fn}, args, names}, nil
}

func (p *parser) parens() (expr, error) {
	if p.skip(")") {
		return &listExpr{nil, isTuple}, nil
	}
	x, err := p.tuple(true, "")
	if err != nil {
		return nil, err
	}
	return x, p.expect(")")
}

// items reads expressions up to the closing bracket; a last comma may stand.
func (p *parser) items(closing string) ([]expr, error) {
	var out []expr
	for !p.skip(closing) {
		if len(out) > 0 {
			if err := p.expect(","); err != nil {
				return nil, err
			}
			if p.skip(closing) {
				break
			}
		}
		x, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	return out, nil
}

func (p *parser) dict() (expr, error) {
	d := &dictExpr{}
	for !p.skip("}") {
		if len(d.keys) > 0 {
			if err := p.expect(","); err != nil {
				return nil, err
			}
			if p.skip("}") {
				break
			}
		}
		k, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		if err := p.expect(":"); err != nil {
			return nil, err
		}
		v, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		d.keys, d.values = append(d.keys, k), append(d.values, v)
	}
	return d, nil
}

// args reads "(a, b, c=d)"; the last len(names) of args have names.
func (p *parser) args() (args []expr, names []string, err error) {
	if err := p.expect("("); err != nil {
		return nil, nil, err
	}
	for first := true; !p.skip(")"); first = false {
		if !first {
			if err := p.expect(","); err != nil {
				return nil, nil, err
			}
			if p.skip(")") {
				break
			}
		}
		switch t := p.peek(); {
		case t.is("*") || t.is("**"):
			return nil, nil, p.unsupported("* in arguments")
		case t.kind == name && p.tokens[p.pos+1].is("="):
			if slices.Contains(names, t.text) {
				return nil, nil, p.fail("argument %s is repeated", t.text)
			}
			names = append(names, t.text)
			p.pos += 2
		case len(names) > 0:
			return nil, nil, p.fail("positional argument after a named one")
		}
		x, err := p.expression(true)
		if err != nil {
			return nil, nil, err
		}
		args = append(args, x)
	}
	return args, names, nil
}
