package jinja

import (
	"fmt"
	"slices"
	"strings"
)

// parser is recursive descent after jinja2/parser.py, precedence and all.
type parser struct {
	tokens []token
	pos    int
	depth  int
	loops  int  // for statements around, for break and continue
	soft   bool // see missing
	branch int  // if statements around, in this scope
	scopes scopes
	out    *Template
}

func (p *parser) fail(format string, args ...any) error {
	return fmt.Errorf("template line %d: %w", p.peek().line, fmt.Errorf(format, args...))
}

func (p *parser) unsupported(what string) error { return p.fail("%w: %s", ErrUnsupported, what) }

func (p *parser) peek() token { return p.tokens[p.pos] }

func (p *parser) next() token {
	t := p.tokens[p.pos]
	if t.kind != eof {
		p.pos++
	}
	return t
}

func (t token) is(o string) bool      { return t.kind == op && t.text == o }
func (t token) keyword(w string) bool { return t.kind == name && t.text == w }

func (p *parser) skip(o string) bool {
	if p.peek().is(o) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) skipKeyword(w string) bool {
	if p.peek().keyword(w) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) expect(o string) error {
	if !p.skip(o) {
		return p.fail("expected %q, got %q", o, p.peek().text)
	}
	return nil
}

func (p *parser) expectKind(k kind, what string) (token, error) {
	t := p.peek()
	if t.kind != k {
		return t, p.fail("expected %s, got %q", what, t.text)
	}
	return p.next(), nil
}

// enter is called by what recurses; the returned function leaves.
func (p *parser) enter() (func(), error) {
	if p.depth++; p.depth > maxNesting {
		return nil, p.fail("%w: nested too deeply", ErrBudget)
	}
	return func() { p.depth-- }, nil
}

// statements reads up to one of the tags in end, or the end of the template,
// and leaves the parser after the tag's name.
func (p *parser) statements(end []string) ([]stmt, error) {
	leave, err := p.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	var out []stmt
	for {
		t := p.next()
		switch t.kind {
		case eof:
			if end != nil {
				return nil, p.fail("expected %s before the end", strings.Join(end, " or "))
			}
			return out, nil
		case text:
			out = append(out, &textStmt{t.text})
		case varBegin:
			x, err := p.tuple(true, "")
			if err != nil {
				return nil, err
			}
			if _, err := p.expectKind(varEnd, "}}"); err != nil {
				return nil, err
			}
			out = append(out, &printStmt{x})
		case blockBegin:
			tag := p.peek()
			if tag.kind == name && slices.Contains(end, tag.text) {
				return out, nil
			}
			s, err := p.statement()
			if err != nil {
				return nil, err
			}
			out = append(out, s)
		}
	}
}

func (p *parser) statement() (stmt, error) {
	tag, err := p.expectKind(name, "a tag name")
	if err != nil {
		return nil, err
	}
	var s stmt
	switch tag.text {
	case "if":
		return p.ifTag()
	case "for":
		return p.forTag()
	case "set":
		return p.setTag()
	case "macro":
		return p.macroTag()
	case "generation":
		return p.generationTag()
	case "break":
		s = jumpStmt{errBreak}
	case "continue":
		s = jumpStmt{errContinue}
	default:
		p.pos--
		return nil, p.unsupported("tag " + tag.text)
	}
	if p.loops == 0 {
		return nil, p.fail("%s outside a loop", tag.text)
	}
	return s, p.endBlock()
}

func (p *parser) endBlock() error {
	_, err := p.expectKind(blockEnd, "%}")
	return err
}

// block reads the end of the current tag, then statements up to an end tag,
// whose name it returns.
func (p *parser) block(end ...string) ([]stmt, string, error) {
	if err := p.endBlock(); err != nil {
		return nil, "", err
	}
	body, err := p.statements(end)
	if err != nil {
		return nil, "", err
	}
	return body, p.next().text, nil
}

func (p *parser) ifTag() (stmt, error) {
	s := &ifStmt{}
	soft := p.soft
	p.soft = true
	p.branch++
	defer func() { p.soft = soft; p.branch-- }()
	for {
		test, err := p.tuple(false, "")
		if err != nil {
			return nil, err
		}
		body, tag, err := p.block("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		s.tests, s.bodies = append(s.tests, test), append(s.bodies, body)
		if tag == "elif" {
			continue
		}
		if tag == "else" {
			if s.orElse, _, err = p.block("endif"); err != nil {
				return nil, err
			}
		}
		return s, p.endBlock()
	}
}

func (p *parser) forTag() (stmt, error) {
	s := &forStmt{}
	var err error
	if s.targets, err = p.targets(); err != nil {
		return nil, err
	}
	if !p.skipKeyword("in") {
		return nil, p.fail("expected in, got %q", p.peek().text)
	}
	if s.over, err = p.tuple(false, "recursive"); err != nil {
		return nil, err
	}
	if p.skipKeyword("if") {
		leave := p.enterScope()
		for _, t := range s.targets {
			p.scopes.write(t) // nothing was read in this frame yet
		}
		s.filter, err = p.expression(true)
		leave()
		if err != nil {
			return nil, err
		}
	}
	if p.peek().keyword("recursive") {
		return nil, p.unsupported("recursive loop")
	}
	leave := p.enterScope()
	p.loops++
	for _, t := range s.targets {
		p.scopes.write(t) // nothing was read in this frame yet
	}
	var tag string
	s.body, tag, err = p.block("else", "endfor")
	p.loops--
	if err == nil && tag == "else" {
		s.orElse, _, err = p.block("endfor")
	}
	leave()
	if err != nil {
		return nil, err
	}
	p.out.loops = append(p.out.loops, s)
	return s, p.endBlock()
}

// reserved are the names a template may read but not set, since we answer for
// them ourselves.
var reserved = []string{"loop", "range", "namespace", "raise_exception", "strftime_now", "true", "false", "none", "True", "False", "None"}

// targets is "a" or "a, b" or "(a, b)".
func (p *parser) targets() ([]string, error) {
	paren := p.skip("(")
	var out []string
	for {
		t, err := p.expectKind(name, "a name")
		if err != nil {
			return nil, err
		}
		if slices.Contains(reserved, t.text) {
			return nil, p.unsupported("setting " + t.text)
		}
		out = append(out, t.text)
		if !p.skip(",") {
			break
		}
		if t := p.peek(); t.keyword("in") || t.is("=") || t.is(")") {
			return nil, p.unsupported("tuple of one as target")
		}
	}
	if paren {
		return out, p.expect(")")
	}
	return out, nil
}

func (p *parser) setTag() (stmt, error) {
	s := &setStmt{}
	if p.tokens[p.pos+1].is(".") && p.peek().kind == name {
		s.names = []string{p.next().text}
		p.pos++
		attr, err := p.expectKind(name, "a name")
		if err != nil {
			return nil, err
		}
		s.attr = attr.text
	} else {
		var err error
		if s.names, err = p.targets(); err != nil {
			return nil, err
		}
	}
	if !p.skip("=") {
		return s, p.setBlock(s)
	}
	var err error
	if s.value, err = p.tuple(true, ""); err != nil {
		return nil, err
	}
	p.out.sets = append(p.out.sets, s)
	if err := p.written(s); err != nil {
		return nil, err
	}
	return s, p.endBlock()
}

// written notes what a set tag sets, once its value was read.
func (p *parser) written(s *setStmt) error {
	for _, n := range s.names {
		if s.attr == "" {
			if err := p.write(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// ownBlock is a block that no break or continue can leave, with its own names.
func (p *parser) ownBlock(end string) ([]stmt, error) {
	leave := p.enterScope()
	defer leave()
	around := p.loops
	p.loops = 0
	defer func() { p.loops = around }()
	body, _, err := p.block(end)
	return body, err
}

// setBlock reads the rest of a set tag without value.
func (p *parser) setBlock(s *setStmt) error {
	if p.peek().is("|") {
		return p.unsupported("filter on a set block")
	}
	if len(s.names) != 1 || s.attr != "" {
		return p.unsupported("set block with this target")
	}
	var err error
	if s.block, err = p.ownBlock("endset"); err != nil {
		return err
	}
	if err := p.written(s); err != nil {
		return err
	}
	return p.endBlock()
}
