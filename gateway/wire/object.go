package wire

import "strings"

// object is a JSON object being written, without its closing brace.
type object []byte

// add appends a member; value is JSON.
func (o *object) add(name string, value []byte) {
	if len(*o) == 0 {
		*o = append(*o, '{')
	} else {
		*o = append(*o, ',')
	}
	*o = append(*o, quote(name)...)
	*o = append(*o, ':')
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
	out := []byte{'['}
	for i, o := range objects {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, o.end()...)
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
