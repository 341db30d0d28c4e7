// Package classify says what a decoded request is: its facts, its class and its
// label.
//
// Start at [Classify] for the class and [Label] for the sensitivity. Both are
// pure functions of their inputs.
//
// # Laws
//
// Facts are a monotone set: content can add facts, never take one away. Each
// rule asks whether something exists in the request, never whether it is last
// or absent, and a class is the most dangerous of those that its facts give it.
// So more content can only raise. A hint of the client can only raise as well;
// a lower one is recorded as a mismatch. An unknown type makes a request
// unclassified, which no shipped policy allows.
//
// # What cannot be seen
//
// Retrieved text that a service pastes into a prompt looks like any text. Such
// a service has its class and its label floor from its registration.
package classify

import (
	"slices"

	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/policy"
)

// Table is the version of the rules; it is part of every record. A change of
// what any rule gives is a new version.
const Table = "2026.11.2"

// Subject is what is classified.
type Subject struct {
	Operation    wire.Operation
	Request      *wire.Request // nil for an operation without a body
	Registration string        // class that the caller's registration raises to, or empty
	Hint         string        // the Sallyport-Class header, or empty
}

// Result is what a request was taken for. The zero value is unclassified.
type Result struct {
	Class    policy.Class
	Facts    []policy.Fact // sorted
	Mismatch bool          // the client claimed less than its request shows
}

// Classify applies the rules in [Rules] order. An operation that is not in the
// table, one without its body, and a name that is no class are unclassified.
func Classify(s Subject) Result {
	r := Result{Class: s.Operation.Class}
	if s.Operation.HasBody() && s.Request == nil {
		r.Class = policy.Unclassified
	}
	if s.Request != nil {
		r.read(s.Request)
	}
	if s.Registration != "" {
		r.Class = policy.MaxClass(r.Class, class(s.Registration))
	}
	if s.Hint != "" {
		hint := class(s.Hint)
		r.Mismatch = hint.Rank() < r.Class.Rank()
		r.Class = policy.MaxClass(r.Class, hint)
	}
	return r
}

func (r *Result) read(req *wire.Request) {
	for _, rule := range Rules() {
		if !rule.holds(req) {
			continue
		}
		if !slices.Contains(r.Facts, rule.Fact) {
			r.Facts = append(r.Facts, rule.Fact)
		}
		if rule.Raises {
			r.Class = policy.MaxClass(r.Class, rule.Class)
		}
	}
	slices.Sort(r.Facts)
}

// class returns the class of that name, and unclassified for a name that is
// none.
func class(name string) policy.Class {
	c, err := policy.ParseClass(name)
	if err != nil {
		return policy.Unclassified
	}
	return c
}
