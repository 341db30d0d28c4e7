// Package query picks records out of a log.
//
// Start at [Select]. It reads a log once, in order, in memory that does not
// grow with the log: only the attempts that have no outcome yet are remembered.
package query

import (
	"bytes"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

// Filter says which records are wanted; an empty field does not matter. What
// the caller, the class, the label, the model or the pool of an outcome was
// stands in its decision, and counts for both.
type Filter struct {
	ID      string
	Tenant  string
	Subject string // as recorded: perhaps a pseudonym
	Class   string
	Label   string
	Model   string // as asked or as served
	Pool    string
	Replica string

	Kind   audit.Kind
	Status string
	Reason string
	Since  time.Time
	Until  time.Time // exclusive
}

// Match is one record that was wanted.
type Match struct {
	Index  uint64
	Leaf   []byte
	Record *audit.Record
}

// Select returns the records that f wants.
func Select(records iter.Seq2[tlog.Entry, error], f Filter) iter.Seq2[Match, error] {
	return func(yield func(Match, error) bool) {
		s := selector{f: f, needles: f.needles(), open: make(map[attempt]bool)}
		for e, err := range records {
			if err != nil {
				yield(Match{}, err)
				return
			}
			r, err := s.read(e)
			if err != nil {
				yield(Match{}, err)
				return
			}
			if r != nil && !yield(Match{e.Index, e.Leaf, r}, nil) {
				return
			}
		}
	}
}

// attempt names the decision that an outcome is of.
type attempt struct {
	id string
	n  int
}

type selector struct {
	f       Filter
	needles [][]byte
	open    map[attempt]bool // allowed decisions whose caller and request are wanted
}

// read returns a record that is wanted, or nil.
func (s *selector) read(e tlog.Entry) (*audit.Record, error) {
	outcome := bytes.HasPrefix(e.Leaf, outcomePrefix)
	if outcome && len(s.open) == 0 && s.f.inherits() || !outcome && !containsAll(e.Leaf, s.needles) {
		return nil, nil
	}
	r, err := audit.Decode(e.Leaf)
	if err != nil {
		return nil, fmt.Errorf("record %d: %w", e.Index, err)
	}
	wanted := s.about(r)
	if wanted && s.f.own(r) {
		return r, nil
	}
	return nil, nil
}

// about says whether the caller and the request are those that are wanted.
func (s *selector) about(r *audit.Record) bool {
	at := attempt{r.ID, r.Attempt}
	switch r.Kind {
	case audit.KindBoot:
		clear(s.open) // what was open has been answered
	case audit.KindOutcome:
		known := s.open[at]
		delete(s.open, at)
		return known || !s.f.inherits()
	case audit.KindDecision:
		ok := s.f.request(r)
		if ok && r.Status == audit.StatusAllowed && s.f.inherits() {
			at.id = strings.Clone(at.id) // and not all of the leaf
			s.open[at] = true
		}
		return ok
	}
	return s.f.request(r)
}

// outcomePrefix is how the leaf of an outcome begins: its fields have a fixed
// order.
var outcomePrefix = []byte(`{"v":1,"kind":"outcome"`)

// inherits says whether an outcome has to be judged by its decision.
func (f *Filter) inherits() bool {
	return f.Tenant+f.Subject+f.Class+f.Label+f.Model+f.Pool != ""
}

// needles are what must stand in the leaf of a record other than an outcome for
// it to be wanted. To look for them costs less than to decode it.
func (f *Filter) needles() [][]byte {
	var out [][]byte
	for _, v := range []string{f.ID, f.Tenant, f.Subject, f.Class, f.Label, f.Model, f.Pool, f.Replica} {
		if v == "" {
			continue
		}
		out = append(out, audit.AppendText(nil, v))
	}
	return out
}

func containsAll(leaf []byte, needles [][]byte) bool {
	for _, n := range needles {
		if !bytes.Contains(leaf, n) {
			return false
		}
	}
	return true
}

// request holds what an outcome has from its decision against the filter.
func (f *Filter) request(r *audit.Record) bool {
	var tenant, subject, class, label, model, served, pool string
	if r.Caller != nil {
		tenant, subject = r.Caller.Tenant, r.Caller.Ref
	}
	if r.Class != nil {
		class = r.Class.Name
	}
	if r.Label != nil {
		label = r.Label.Level
	}
	if r.Request != nil {
		model, served = r.Request.Model, r.Request.Served
	}
	if r.Placement != nil {
		pool = r.Placement.Pool
	}
	return is(f.Tenant, tenant) && is(f.Subject, subject) && is(f.Class, class) && is(f.Label, label) &&
		(is(f.Model, model) || is(f.Model, served)) && is(f.Pool, pool)
}

// own holds what every record says itself against the filter.
func (f *Filter) own(r *audit.Record) bool {
	replica := ""
	switch {
	case r.Outcome != nil:
		replica = r.Outcome.Replica
	case r.Placement != nil:
		replica = r.Placement.Replica
	}
	at := time.UnixMicro(r.Time.Wall)
	return is(f.ID, r.ID) && is(f.Replica, replica) && is(string(f.Kind), string(r.Kind)) && is(f.Status, r.Status) && is(f.Reason, r.Reason) &&
		!at.Before(f.Since) && (f.Until.IsZero() || at.Before(f.Until))
}

func is(want, got string) bool { return want == "" || want == got }
