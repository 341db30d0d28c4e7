package wire

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// parser reads one body. All reading goes through the few methods here, so that
// no path can forget depth, folded names or numbers.
type parser struct {
	dec     *jsontext.Decoder
	body    []byte
	depth   int // deepest nesting allowed
	req     *Request
	unknown map[string]bool
	message int   // index of the message being read, or -1
	under   int32 // span of the name whose free content is being read, or -1
	last    span  // where the name, string or number read last stands

	entries struct{ messages, parts, calls, prompts int } // in all

	into *translation // of a body that is translated; nil otherwise
}

// object reads an object and calls member after each name, with the value still
// to be read. With fold, names that differ only in case are refused.
func (p *parser) object(fold bool, member func(name string) error) error {
	if err := p.open('{'); err != nil {
		return err
	}
	var names foldSet
	for p.dec.PeekKind() != '}' {
		raw, err := p.dec.ReadValue()
		if err != nil {
			return err
		}
		p.mark(raw)
		name := string(unquote(raw))
		if fold && names.size() == maxEntries {
			return invalid("", "an object has more than "+strconv.Itoa(maxEntries)+" names")
		}
		if fold && !names.add(name) {
			return &Error{MalformedJSON, "", "an object has two names that differ only in case"}
		}
		if err := member(name); err != nil {
			return err
		}
	}
	_, err := p.dec.ReadToken()
	return err
}

// array reads an array and calls element for each value still to be read.
func (p *parser) array(element func(i int) error) error {
	if err := p.open('['); err != nil {
		return err
	}
	for i := 0; p.dec.PeekKind() != ']'; i++ {
		if p.dec.PeekKind() == 0 { // an error, which reading reports
			_, err := p.dec.ReadToken()
			return err
		}
		if err := element(i); err != nil {
			return err
		}
	}
	_, err := p.dec.ReadToken()
	return err
}

func (p *parser) open(kind jsontext.Kind) error {
	tok, err := p.dec.ReadToken()
	if err != nil {
		return err
	}
	if tok.Kind() != kind {
		return invalid("", "an object or a list was expected")
	}
	if p.dec.StackDepth() > p.depth {
		return &Error{MalformedJSON, "", "the body is nested too deeply"}
	}
	return nil
}

// str reads a string and returns its text, which may alias the body.
func (p *parser) str(param string) ([]byte, error) {
	if k := p.dec.PeekKind(); k != '"' && k != 0 {
		return nil, invalid(param, "this must be a string")
	}
	raw, err := p.dec.ReadValue()
	if err != nil {
		return nil, err
	}
	p.mark(raw)
	return unquote(raw), nil
}

// text reads a string and records it for scanning.
func (p *parser) text(param string, from Origin) ([]byte, error) {
	data, err := p.str(param)
	if err == nil {
		p.record(from, plainText)
	}
	return data, err
}

// mark remembers where the value that was just read stands.
func (p *parser) mark(raw jsontext.Value) {
	end := p.dec.InputOffset()
	p.last = span{start: uint32(end - int64(len(raw))), end: uint32(end)}
}

// record keeps what was marked last as a text.
func (p *parser) record(from Origin, role spanRole) {
	if p.body[p.last.start] == '"' && p.last.end-p.last.start == 2 {
		return // nothing between the quotes
	}
	s := p.last
	s.message, s.under, s.origin, s.role = int32(p.message), p.under, from, role
	p.req.spans = append(p.req.spans, s)
}

// boolean reads true or false; null counts as false.
func (p *parser) boolean(param string) (bool, error) {
	tok, err := p.dec.ReadToken()
	if err != nil {
		return false, err
	}
	switch tok.Kind() {
	case 't':
		return true, nil
	case 'f', 'n':
		return false, nil
	}
	return false, invalid(param, "this must be true or false")
}

// integer reads a whole number of at least least; ok is false for null.
func (p *parser) integer(param string, least int64) (v int64, ok bool, err error) {
	raw, err := p.dec.ReadValue()
	if err != nil {
		return 0, false, err
	}
	if raw.Kind() == 'n' {
		return 0, false, nil
	}
	v, perr := strconv.ParseInt(string(raw), 10, 64)
	if raw.Kind() != '0' || perr != nil || v < least {
		return 0, false, invalid(param, "this must be a whole number of at least "+strconv.FormatInt(least, 10))
	}
	return v, true, nil
}

// null reads a null if the next value is one.
func (p *parser) null() bool {
	if p.dec.PeekKind() != 'n' {
		return false
	}
	_, err := p.dec.ReadToken()
	return err == nil
}

// number reads a number literal and refuses those that readers round, overflow
// or spend time on.
func (p *parser) number() ([]byte, error) {
	raw, err := p.dec.ReadValue()
	if err != nil {
		return nil, err
	}
	p.mark(raw)
	if len(raw) > maxNumberBytes {
		return nil, &Error{MalformedJSON, "", "a number is too long"}
	}
	if i := bytes.IndexAny(raw, "eE"); i >= 0 {
		exp, err := strconv.Atoi(string(raw[i+1:]))
		if err != nil || exp > maxExponent || exp < -maxExponent {
			return nil, &Error{MalformedJSON, "", "a number's exponent is out of range"}
		}
	}
	return raw, nil
}

// walk reads any value and records its strings. In free content, names may
// differ in case, and names and numbers are recorded too, since they can
// carry what a string could.
func (p *parser) walk(from Origin, free bool) error {
	switch p.dec.PeekKind() {
	case '{':
		return p.object(!free, func(name string) error {
			if free {
				return p.unlisted(from, name)
			}
			return p.walk(from, false)
		})
	case '[':
		return p.array(func(int) error { return p.walk(from, free) })
	case '"':
		_, err := p.text("", from)
		return err
	case '0':
		raw, err := p.number()
		if err == nil && free && len(raw) >= shortestTellingNumber {
			p.record(from, plainText)
		} else if err == nil && free && p.under >= 0 {
			p.record(from, shortNumber)
		}
		return err
	default:
		_, err := p.dec.ReadToken()
		return err
	}
}

// unlisted reads the value of a name that no table lists: both are content. The
// name must be what was read last.
func (p *parser) unlisted(from Origin, name string) error {
	outer := p.under
	if name != "" {
		p.record(from, memberName)
		p.under = int32(len(p.req.spans) - 1)
	}
	err := p.walk(from, true)
	p.under = outer
	return err
}

// shortestTellingNumber is the length of a social security number, the shortest
// number that a detector knows without a word beside it.
const shortestTellingNumber = 9

// skip reads any value and records nothing.
func (p *parser) skip() error {
	texts := len(p.req.spans)
	err := p.walk(FromField, false)
	p.req.spans = p.req.spans[:texts]
	return err
}

// unquote returns the text of a valid JSON string, without a copy where it has
// no escapes.
func unquote(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1]
	}
	text, err := jsontext.AppendUnquote(make([]byte, 0, len(raw)), raw)
	if err != nil { // the decoder has validated raw
		return raw[1 : len(raw)-1]
	}
	return text
}
