package wire

import (
	"slices"
	"strings"
)

// object is a JSON object being written, without its closing brace.
type object []byte

// add appends a member; value is JSON.
func (o *object) add(name string, value []byte) {
	*o = slices.Grow(*o, len(name)+len(value)+5)
	if len(*o) == 0 {
		*o = append(*o, '{')
	} else {
		*o = append(*o, ',')
	}
	*o = append(*o, '"')
	*o = append(*o, name...) // ours: nothing to escape
	*o = append(*o, '"', ':')
	*o = append(*o, value...)
}

// str appends a member that is a string.
func (o *object) str(name, value string) { o.add(name, quote(value)) }

// end returns the finished object.
func (o object) end() []byte {
	if len(o) == 0 {
		return []byte("{}")
	}
	return append(o[:len(o):len(o)], '}')
}

// list returns the JSON array of finished objects.
func list(objects []object) []byte {
	size := 2
	for _, o := range objects {
		size += len(o) + 2
	}
	out := append(make([]byte, 0, size), '[')
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
