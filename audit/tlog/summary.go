package tlog

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sallyport-ai/sallyport/audit"
)

// summary is what the log itself needs to know of a leaf.
type summary struct {
	Kind    audit.Kind
	ID      string
	Attempt int
	Status  string
}

// attempt is what an outcome answers: a decision id and the attempt's number.
type attempt struct {
	id string
	n  int
}

func (s summary) attempt() attempt { return attempt{s.ID, s.Attempt} }

// summarizer reads summaries. It passes over everything else in a leaf
// without decoding it.
type summarizer struct {
	buf bytes.Buffer
	dec jsontext.Decoder
}

// read summarizes one leaf.
func (z *summarizer) read(leaf []byte) (summary, error) {
	if s, ok := glance(leaf); ok {
		return s, nil
	}
	z.buf.Reset()
	z.buf.Write(leaf)
	z.dec.Reset(&z.buf)
	s, err := z.object()
	if err != nil {
		return summary{}, fmt.Errorf("summarize record: %w", err)
	}
	return s, nil
}

// glance summarizes a leaf that has the very form that [audit.Encode] gives it.
// It is many times faster than reading the JSON.
//
// What it looks for cannot be inside a string, where quotes are escaped. Of the
// fields after status and attempt none has a field of these names, so that the
// last of each is the record's own.
func glance(leaf []byte) (s summary, ok bool) {
	rest, ok := bytes.CutPrefix(leaf, []byte(`{"v":1,"kind":"`))
	if !ok {
		return s, false
	}
	kind, rest, ok := bytes.Cut(rest, []byte(`","id":"`))
	id, _, ok2 := bytes.Cut(rest, []byte(`","log":{`))
	if !ok || !ok2 || bytes.ContainsAny(kind, `"\\`) || bytes.ContainsAny(id, `"\\`) {
		return s, false
	}
	switch k := audit.Kind(kind); k {
	case audit.KindDecision:
		s.Kind = audit.KindDecision
	case audit.KindOutcome:
		s.Kind = audit.KindOutcome
	default: // their events may hold any name
		return summary{Kind: k, ID: string(id)}, !bytes.Contains(leaf, []byte(`"status":`)) && !bytes.Contains(leaf, []byte(`"attempt":`))
	}
	s.ID = string(id)
	at := bytes.LastIndex(leaf, []byte(`,"status":"`))
	if at < 0 {
		return s, false
	}
	status, after, ok := bytes.Cut(leaf[at+len(`,"status":"`):], []byte(`"`))
	if !ok || !followsStatus(after) {
		return s, false
	}
	s.Status = statusOf(status)
	before := leaf[:at]
	if at = bytes.LastIndex(before, []byte(`,"attempt":`)); at < 0 {
		return s, true
	}
	number, rest, _ := bytes.Cut(before[at+len(`,"attempt":`):], []byte(","))
	n, err := strconv.Atoi(string(number))
	s.Attempt = n
	return s, err == nil && !bytes.ContainsAny(rest, "{}[]")
}

// followsStatus says whether a record can go on like this after its status.
func followsStatus(rest []byte) bool {
	for _, next := range []string{"}", `,"http":`, `,"detail":"`, `,"outcome":{`, `,"denials":[`, `,"event":`} {
		if bytes.HasPrefix(rest, []byte(next)) {
			return next != "}" || len(rest) == 1
		}
	}
	return false
}

// statusOf spares a copy of what there are few of.
func statusOf(b []byte) string {
	switch string(b) {
	case audit.StatusAllowed:
		return audit.StatusAllowed
	case audit.StatusOK:
		return audit.StatusOK
	}
	return string(b)
}

func (z *summarizer) object() (s summary, err error) {
	if _, err := z.dec.ReadToken(); err != nil {
		return s, err
	}
	for z.dec.PeekKind() != '}' {
		name, err := z.dec.ReadValue()
		if err != nil {
			return s, err
		}
		field := s.field(string(name))
		value, err := z.dec.ReadValue()
		if err != nil {
			return s, err
		}
		if field != nil {
			if err := field(value); err != nil {
				return s, err
			}
		}
	}
	return s, nil
}

// field returns what to do with the value of a name, or nil.
func (s *summary) field(name string) func(jsontext.Value) error {
	text := func(to *string) func(jsontext.Value) error {
		return func(v jsontext.Value) error {
			b, err := jsontext.AppendUnquote(nil, v)
			*to = string(b)
			return err
		}
	}
	switch name {
	case `"kind"`:
		return text((*string)(&s.Kind))
	case `"id"`:
		return text(&s.ID)
	case `"status"`:
		return text(&s.Status)
	case `"attempt"`:
		return func(v jsontext.Value) error {
			_, err := fmt.Sscan(string(v), &s.Attempt)
			return err
		}
	}
	return nil
}

// openDecisions are allowed decisions that have no outcome yet, in memory
// proportional to how many requests were in flight at once.
type openDecisions struct {
	open  map[attempt]summary
	order []attempt // may hold attempts that have since been answered
}

// see takes one record into account.
func (o *openDecisions) see(s summary) {
	if o.open == nil {
		o.open = make(map[attempt]summary)
	}
	switch {
	case s.Kind == audit.KindDecision && s.Status == audit.StatusAllowed:
		o.open[s.attempt()] = s
		o.order = append(o.order, s.attempt())
		o.compact()
	case s.Kind == audit.KindOutcome:
		delete(o.open, s.attempt())
	}
}

// compact keeps order within twice the number of open decisions.
func (o *openDecisions) compact() {
	if len(o.order) < 2*len(o.open)+64 {
		return
	}
	kept := o.order[:0]
	for _, a := range o.order {
		if _, ok := o.open[a]; ok {
			kept = append(kept, a)
		}
	}
	o.order = kept
}

// list returns the open decisions, oldest first.
func (o *openDecisions) list() []summary {
	out := make([]summary, 0, len(o.open))
	for _, a := range o.order {
		if s, ok := o.open[a]; ok {
			out = append(out, s)
			delete(o.open, a)
		}
	}
	return out
}
