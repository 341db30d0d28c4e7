// Package splice edits single members of a JSON object and leaves every other
// byte as it is.
//
// Start at [Apply]. The gateway and the relay own a few fields of a request
// body (the served model, the cache salt); everything else belongs to the
// client and must reach the engine byte for byte: number spelling, member
// order, white space, escapes. Decoding and re-marshalling cannot promise that,
// cutting and pasting can.
//
// # What an edit owns
//
// Replacing a member owns the bytes of its value. Adding one owns what is
// written after the last member. Deleting one owns the member and one comma
// with the white space beside it.
//
// # Names
//
// Names are compared after unescaping: "\u006dodel" is the member model. A body
// in which a name appears twice at any depth is refused, because two readers
// could take different members.
package splice

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Errors that a caller acts on. Each is wrapped with where it happened.
var (
	// ErrSyntax says that the body is not exactly one valid JSON value: bad
	// grammar, a duplicate name, invalid UTF-8 or trailing data.
	ErrSyntax = errors.New("not valid JSON")
	// ErrNotObject says that the body, or the parent of a nested edit, is not an
	// object.
	ErrNotObject = errors.New("not a JSON object")
	// ErrEdit says that the edits contradict one another or hold a value that is
	// not JSON.
	ErrEdit = errors.New("bad edit")
)

// Edit is one change; make it with [Set], [SetIn], [Delete] or [DeleteIn].
type Edit struct {
	path  []string
	value []byte // nil deletes
}

// Set makes raw, a JSON value, the value of the top-level member name.
func Set(name string, raw []byte) Edit { return Edit{[]string{name}, nonNil(raw)} }

// SetIn makes raw the value of member name in the top-level object parent. A
// parent that is absent or null becomes an object of that one member.
func SetIn(parent, name string, raw []byte) Edit {
	return Edit{[]string{parent, name}, nonNil(raw)}
}

// Delete takes out the top-level member name. A member that is absent is no
// error.
func Delete(name string) Edit { return Edit{[]string{name}, nil} }

// DeleteIn takes out the member at path, outermost name first. Where a parent
// is absent or not an object there is nothing to delete.
func DeleteIn(path ...string) Edit { return Edit{slices.Clone(path), nil} }

func nonNil(raw []byte) []byte {
	if raw == nil {
		return []byte{} // not JSON, and so refused; nil would delete
	}
	return raw
}

// Apply appends body with all edits made to dst and returns the result. The
// order of edits decides only the order in which new members are added. dst
// must not overlap body. On error the result is nil.
func Apply(dst, body []byte, edits ...Edit) ([]byte, error) {
	for _, e := range edits {
		if err := e.check(); err != nil {
			return nil, err
		}
	}
	return apply(dst, body, edits)
}

// Has reports whether the top-level object body has a member of that name.
func Has(body []byte, name string) (bool, error) {
	obj, err := scan(body)
	if err != nil {
		return false, err
	}
	return obj.index(name) >= 0, nil
}

func (e Edit) check() error {
	if len(e.path) == 0 {
		return fmt.Errorf("%w: empty path", ErrEdit)
	}
	if e.value != nil && !jsontext.Value(e.value).IsValid() {
		return fmt.Errorf("%w: value of %q is not valid JSON", ErrEdit, e.path[len(e.path)-1])
	}
	return nil
}

// member is where one member stands in the body.
type member struct {
	name               string
	start, value, past int // of the name's quote, of the value, past the value
}

type object struct {
	open    int // past the opening brace
	members []member
}

func (o *object) index(name string) int {
	return slices.IndexFunc(o.members, func(m member) bool { return m.name == name })
}

// scan finds the members of the one object that body must be.
func scan(body []byte) (*object, error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(body))
	if k := dec.PeekKind(); k != '{' && k > 0 {
		if !jsontext.Value(body).IsValid() {
			return nil, fmt.Errorf("scan body: %w", ErrSyntax)
		}
		return nil, fmt.Errorf("scan body: %w", ErrNotObject)
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, syntax(dec, err)
	}
	o := &object{open: int(dec.InputOffset())}
	for dec.PeekKind() != '}' {
		m, err := readMember(dec)
		if err != nil {
			return nil, err
		}
		o.members = append(o.members, m)
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, syntax(dec, err)
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("scan body: %w: data after the object", ErrSyntax)
	}
	return o, nil
}

func readMember(dec *jsontext.Decoder) (member, error) {
	raw, err := dec.ReadValue()
	if err != nil {
		return member{}, syntax(dec, err)
	}
	name, err := jsontext.AppendUnquote(nil, raw)
	if err != nil {
		return member{}, syntax(dec, err)
	}
	m := member{name: string(name), start: int(dec.InputOffset()) - len(raw)}
	if raw, err = dec.ReadValue(); err != nil {
		return member{}, syntax(dec, err)
	}
	m.past = int(dec.InputOffset())
	m.value = m.past - len(raw)
	return m, nil
}

// syntax reports where reading stopped; the reader's own text may quote the
// body and stays out.
func syntax(dec *jsontext.Decoder, err error) error {
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return fmt.Errorf("scan body: %w: duplicate name before byte %s", ErrSyntax, offset(dec))
	}
	return fmt.Errorf("scan body: %w: stopped at byte %s", ErrSyntax, offset(dec))
}

func offset(dec *jsontext.Decoder) string { return strconv.FormatInt(dec.InputOffset(), 10) }
