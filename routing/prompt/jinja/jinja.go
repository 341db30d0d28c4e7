// Package jinja renders chat templates as Jinja2 does in the environment that
// Hugging Face transformers builds for them: immutable sandbox, trim_blocks,
// lstrip_blocks, tojson as json.dumps(ensure_ascii=False), raise_exception.
//
// Start at [Parse] and [Template.Render]; [FromJSON] makes values that keep
// what Python's json keeps (the order of members, 1 apart from 1.0).
//
// # Exact or nothing
//
// It is the part of Jinja that chat templates use, not all of it. What is
// missing (includes, recursive loops, call blocks, many filters) is an error of
// Parse that names it, so that a template either renders to the engine's bytes
// or does not load.
// Where Python would raise, Render returns an error.
//
// # Budgets
//
// A template comes from a model's files, a request's values from its caller;
// neither may stop the process. Every step, byte of text made and level of
// nesting is counted against [Limits], and the context is looked at on the
// way.
package jinja

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

var (
	// ErrUnsupported is in the chain of every error about a part of Jinja or
	// Python that this package leaves out.
	ErrUnsupported = errors.New("unsupported")

	// ErrBudget is returned when a limit was reached.
	ErrBudget = errors.New("template exceeds its budget")
)

// RaisedError is what raise_exception in a template makes: the template's way
// to refuse a conversation.
type RaisedError struct{ Message string }

// Error is the template's own message.
func (e *RaisedError) Error() string { return "template raised: " + e.Message }

// Limits bounds one rendering.
type Limits struct {
	Steps int // expressions and statements evaluated
	Bytes int // of output and of all intermediate values together

	// Now is the time for strftime_now, in the time zone of the engine. If it
	// is zero, a template that asks for the time is refused.
	Now time.Time
}

// The limits of Parse.
const (
	maxSource  = 1 << 20 // bytes of template
	maxNesting = 200     // of expressions and statements in one another
	maxChain   = 2000    // operators at one level, a+b+c or a.b.c
)

// maxCalls bounds the nesting of macro calls.
const maxCalls = 100

// maxDepth bounds the nesting of a value that is printed, compared or read
// from JSON. Python gives up at about 1,000.
const maxDepth = 400

// Template is a parsed template, ready to be rendered by many goroutines.
type Template struct {
	body  []stmt
	names map[string]bool
	late  map[string]bool // names undefined until they are set, see scopes
	sets  []*setStmt
	loops []*forStmt
}

// Parse reads a template. Its errors say the line.
func Parse(source string) (*Template, error) {
	if len(source) > maxSource {
		return nil, fmt.Errorf("%w: template of %d bytes", ErrBudget, len(source))
	}
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens, out: &Template{names: map[string]bool{}, late: map[string]bool{}}}
	p.scopes.enter()
	if p.out.body, err = p.statements(nil); err != nil {
		return nil, err
	}
	return p.out, nil
}

// Mentions reports whether the template reads a variable or a member of that
// name anywhere.
func (t *Template) Mentions(name string) bool { return t.names[name] }

// Render renders the template with vars as its variables. A name that is
// neither there nor set by the template is undefined, which is not the same
// as nil.
func (t *Template) Render(ctx context.Context, vars *Dict, limits Limits) (string, error) {
	r := &run{steps: limits.Steps, bytes: limits.Bytes, vars: vars, late: t.late, now: limits.Now, nextLook: limits.Steps}
	r.scope = &scope{}
	r.out = &strings.Builder{}
	r.done = ctx.Done()
	err := r.all(t.body)
	if errors.Is(err, errStopped) {
		return "", ctx.Err()
	}
	if err != nil {
		return "", err
	}
	return r.out.String(), nil
}

// run is one rendering.
type run struct {
	steps    int
	bytes    int
	nextLook int // steps left when the context is looked at again
	done     <-chan struct{}
	vars     *Dict
	late     map[string]bool
	now      time.Time
	calls    int // macros being called
	scope    *scope
	out      *strings.Builder
}

var errStopped = errors.New("rendering was stopped")

// step pays for one evaluation.
func (r *run) step() error {
	r.steps--
	if r.steps < 0 {
		return fmt.Errorf("%w: too many steps", ErrBudget)
	}
	if r.steps < r.nextLook {
		r.nextLook = r.steps - 1024
		select {
		case <-r.done:
			return errStopped
		default:
		}
	}
	return nil
}

// scan pays for looking through n bytes.
func (r *run) scan(n int) error {
	r.steps -= n / 64
	return r.step()
}

// pay pays for n bytes, before they are made.
func (r *run) pay(n int) error {
	if n > r.bytes {
		return fmt.Errorf("%w: too many bytes", ErrBudget)
	}
	r.bytes -= n
	return nil
}

// scope holds the names set in a template, a loop's body or a set block. An
// if is not a scope.
type scope struct {
	names  []string
	values []Value
	up     *scope
}

func (s *scope) set(name string, v Value) {
	for i, n := range s.names {
		if n == name {
			s.values[i] = v
			return
		}
	}
	s.names = append(s.names, name)
	s.values = append(s.values, v)
}

func (r *run) lookup(name string) Value {
	for s := r.scope; s != nil; s = s.up {
		for i, n := range s.names {
			if n == name {
				return s.values[i]
			}
		}
	}
	if v, ok := r.vars.Get(name); ok && !r.late[name] {
		return v
	}
	return undefined{name}
}
