package jinja

import (
	"errors"
	"fmt"
	"strings"
)

// stmt is a part of a template that writes or sets something.
type stmt interface{ exec(r *run) error }

type (
	textStmt  struct{ text string }
	printStmt struct{ x expr }
	jumpStmt  struct{ err error }
	ifStmt    struct {
		tests  []expr
		bodies [][]stmt
		orElse []stmt
	}
	forStmt struct {
		targets      []string
		over, filter expr
		body, orElse []stmt
	}
	setStmt struct {
		names []string
		attr  string // of the namespace names[0], if not empty
		value expr
		block []stmt // instead of value
	}
)

// A jump travels up as an error to the loop that takes it.
var (
	errBreak    = errors.New("break")
	errContinue = errors.New("continue")
)

func (r *run) all(body []stmt) error {
	for _, s := range body {
		if err := r.step(); err != nil {
			return err
		}
		if err := s.exec(r); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) write(s string) error {
	if err := r.pay(len(s)); err != nil {
		return err
	}
	r.out.WriteString(s)
	return nil
}

func (s *textStmt) exec(r *run) error { return r.write(s.text) }

func (s *printStmt) exec(r *run) error {
	v, err := s.x.eval(r)
	if err != nil {
		return err
	}
	text, err := r.str(v)
	if err != nil {
		return err
	}
	return r.write(text)
}

func (s jumpStmt) exec(*run) error { return s.err }

func (s *ifStmt) exec(r *run) error {
	for i, test := range s.tests {
		v, err := test.eval(r)
		if err != nil {
			return err
		}
		if truth(v) {
			return r.all(s.bodies[i])
		}
	}
	return r.all(s.orElse)
}

func (s *setStmt) exec(r *run) error {
	v, err := s.evaluate(r)
	if err != nil {
		return err
	}
	if s.attr != "" {
		ns, ok := r.lookup(s.names[0]).(*namespace)
		if !ok {
			return fmt.Errorf("cannot assign attribute %s on a non-namespace object", s.attr)
		}
		ns.attrs.Set(s.attr, v)
		return nil
	}
	return r.assign(s.names, v)
}

func (s *setStmt) evaluate(r *run) (Value, error) {
	if s.value != nil {
		return s.value.eval(r)
	}
	out, outer := r.out, r.scope
	r.out, r.scope = &strings.Builder{}, &scope{up: outer}
	err := r.all(s.block)
	text := r.out.String()
	r.out, r.scope = out, outer
	return text, err
}

// assign sets one name to v, or several to its items.
func (r *run) assign(names []string, v Value) error {
	if len(names) == 1 {
		r.scope.set(names[0], v)
		return nil
	}
	items, err := r.iterate(v)
	if err != nil {
		return err
	}
	if len(items) != len(names) {
		return fmt.Errorf("%d values to unpack into %d names", len(items), len(names))
	}
	for i, n := range names {
		r.scope.set(n, items[i])
	}
	return nil
}

// loop is the variable loop inside a for.
type loop struct {
	items []Value
	at    int
}

var loopAttributes = map[string]func(l *loop) Value{
	"index":     func(l *loop) Value { return int64(l.at + 1) },
	"index0":    func(l *loop) Value { return int64(l.at) },
	"revindex":  func(l *loop) Value { return int64(len(l.items) - l.at) },
	"revindex0": func(l *loop) Value { return int64(len(l.items) - l.at - 1) },
	"first":     func(l *loop) Value { return l.at == 0 },
	"last":      func(l *loop) Value { return l.at == len(l.items)-1 },
	"length":    func(l *loop) Value { return int64(len(l.items)) },
	"previtem":  func(l *loop) Value { return l.item(l.at-1, "there is no previous item") },
	"nextitem":  func(l *loop) Value { return l.item(l.at+1, "there is no next item") },
}

func (l *loop) item(i int, missing string) Value {
	if i < 0 || i >= len(l.items) {
		return undefined{missing}
	}
	return l.items[i]
}

func (s *forStmt) exec(r *run) error {
	over, err := s.over.eval(r)
	if err != nil {
		return err
	}
	items, err := r.iterate(over)
	if err != nil {
		return err
	}
	outer := r.scope
	defer func() { r.scope = outer }()
	if s.filter != nil {
		if items, err = s.keep(r, items); err != nil {
			return err
		}
	}
	l := &loop{items: items}
	inner := &scope{up: outer}
	for l.at = range items {
		inner.names, inner.values = inner.names[:0], inner.values[:0]
		r.scope = inner
		if err := r.assign(s.targets, items[l.at]); err != nil {
			return err
		}
		inner.set("loop", l)
		if err := r.all(s.body); errors.Is(err, errBreak) {
			break
		} else if err != nil && !errors.Is(err, errContinue) {
			return err
		}
	}
	if len(items) == 0 {
		r.scope = &scope{up: outer}
		return r.all(s.orElse)
	}
	return nil
}

// keep is the items that pass the loop's filter.
func (s *forStmt) keep(r *run, items []Value) ([]Value, error) {
	if err := r.pay(16 * len(items)); err != nil {
		return nil, err
	}
	var kept []Value
	outer := r.scope
	for _, item := range items {
		r.scope = &scope{up: outer}
		if err := r.assign(s.targets, item); err != nil {
			return nil, err
		}
		v, err := s.filter.eval(r)
		if err != nil {
			return nil, err
		}
		if truth(v) {
			kept = append(kept, item)
		}
	}
	r.scope = outer
	return kept, nil
}
