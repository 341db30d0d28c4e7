package wire

import (
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// object is a JSON object being written, without its closing brace.
type object []byte

// add appends a member; value is JSON.
func (o *object) add(name string, value []byte) {
	o.name(name, len(value))
	*o = append(*o, value...)
}

// name begins a member whose value takes about size bytes.
func (o *object) name(name string, size int) {
	*o = slices.Grow(*o, len(name)+size+6) // with the brace of the end
	if len(*o) == 0 {
		*o = append(*o, '{')
	} else {
		*o = append(*o, ',')
	}
	*o = append(*o, '"')
	*o = append(*o, name...) // ours: nothing to escape
	*o = append(*o, '"', ':')
}

// str appends a member that is a string.
func (o *object) str(name, value string) { o.text(name, []byte(value)) }

// text appends a member that is a string, which may be long.
func (o *object) text(name string, value []byte) {
	o.name(name, len(value)+len(value)/16+2)
	// The value came out of JSON, so it is UTF-8; what is not would be replaced.
	*o, _ = jsontext.AppendQuote(*o, value)
}

// list appends a member that is a list of finished objects.
func (o *object) list(name string, objects []object) {
	size := 2
	for _, each := range objects {
		size += len(each) + 3
	}
	o.name(name, size)
	*o = appendList(*o, objects)
}

// end returns the finished object.
func (o object) end() []byte {
	if len(o) == 0 {
		return []byte("{}")
	}
	return append(o, '}')
}

// appendList appends the JSON array of finished objects.
func appendList(out []byte, objects []object) []byte {
	out = append(out, '[')
	for i, o := range objects {
		if i > 0 {
			out = append(out, ',')
		}
		if len(o) == 0 {
			out = append(out, '{')
		}
		out = append(append(out, o...), '}')
	}
	return append(out, ']')
}

func boolean(v bool) []byte {
	if v {
		return []byte("true")
	}
	return []byte("false")
}

func hasAnyPrefix(s string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(s, prefix) {
			return true
		}
	}
	return false
}
