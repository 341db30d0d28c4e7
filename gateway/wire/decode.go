package wire

import (
	"bytes"
	"errors"
	"io"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// Decode reads the body of a request of op. The error is always an [*Error].
// The request aliases body, which must not change afterwards.
func Decode(op Operation, body []byte, limits Limits) (*Request, error) {
	limits = limits.withDefaults()
	if op.translate != nil {
		return op.translate(op, body, limits)
	}
	return decode(op, body, limits)
}

func decode(op Operation, body []byte, limits Limits) (*Request, error) {
	if err := limits.check(body); err != nil {
		return nil, err
	}
	return parse(op, body, limits)
}

// parse reads a body that was checked.
func parse(op Operation, body []byte, limits Limits) (*Request, error) {
	p := newParser(op, body, limits)
	if err := p.top(op); err != nil {
		return nil, refusal(err)
	}
	p.req.Prompts = p.entries.prompts
	p.req.Unknown = sortedNames(p.unknown)
	slices.Sort(p.req.Removed)
	return p.req, nil
}

func newParser(op Operation, body []byte, limits Limits) *parser {
	return &parser{
		dec:     jsontext.NewDecoder(bytes.NewBuffer(body)),
		body:    body,
		depth:   limits.Depth,
		req:     &Request{Operation: op.Name, Body: body, N: 1, op: op, maxTokens: map[string]int64{}},
		unknown: map[string]bool{},
		message: -1, under: -1,
	}
}

// refusal returns err as an [*Error].
func refusal(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return malformed(err)
}

// malformed turns a reader's error, which may quote the body, into a refusal
// that does not.
func malformed(err error) *Error {
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return &Error{MalformedJSON, "", "an object has the same name twice"}
	}
	return &Error{MalformedJSON, "", "the body is not one valid JSON object in UTF-8"}
}

// field reads the value of one top-level field.
type field func(p *parser, name string) error

func (p *parser) top(op Operation) error {
	if p.dec.PeekKind() != '{' {
		return &Error{MalformedJSON, "", "the body must be one JSON object"}
	}
	seen := map[string]bool{}
	err := p.object(true, func(name string) error {
		seen[name] = true
		read, ok := op.fields[name]
		switch {
		case slices.Contains(removed, name):
			p.req.Removed = append(p.req.Removed, name)
			return p.skip()
		case !ok:
			return unsupported(name, "this field is not supported here")
		default:
			return read(p, name)
		}
	})
	if err != nil {
		return err
	}
	if _, err := p.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return &Error{MalformedJSON, "", "there is data after the JSON object"}
	}
	return complete(op, seen)
}

// complete checks what only the whole body can show.
func complete(op Operation, seen map[string]bool) error {
	for _, name := range op.required {
		if !seen[name] {
			return invalid(name, "this field is required")
		}
	}
	return nil
}

func unsupported(param, message string) *Error {
	return &Error{UnsupportedField, clip(param), message}
}

func invalid(param, message string) *Error {
	return &Error{InvalidRequest, clip(param), message}
}

// clip bounds a client's name before it is sent back.
func clip(name string) string {
	const most = 64
	if len(name) > most {
		return string(bytes.ToValidUTF8([]byte(name[:most]), nil)) + "…"
	}
	return name
}

// quote returns s as a JSON string.
func quote[T ~string | ~[]byte](s T) []byte {
	raw, err := jsontext.AppendQuote(make([]byte, 0, len(s)+len(s)/16+2), s)
	if err != nil { // s is not UTF-8: raw holds replacement characters, as for any reader
		return raw
	}
	return raw
}
