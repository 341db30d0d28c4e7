package audit

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/bits"
	"strconv"
	"unicode/utf8"
)

// The parts of a leaf. Each adds a name, with the punctuation around it, and a
// value; those of opt… add nothing for an empty value.

// maxDigits is the length of the longest 64-bit integer.
const maxDigits = 20

func appendInt(b []byte, n int64) []byte   { return strconv.AppendInt(b, n, 10) }
func appendUint(b []byte, n uint64) []byte { return strconv.AppendUint(b, n, 10) }

func num[N int | int64](b []byte, name string, n N) []byte {
	return appendInt(append(b, name...), int64(n))
}

func optNum[N int | int64](b []byte, name string, n N) []byte {
	if n == 0 {
		return b
	}
	return num(b, name, n)
}

func optTrue(b []byte, name string, is bool) []byte {
	if !is {
		return b
	}
	return append(b, name...)
}

func text[S ~string](b []byte, name string, s S) []byte {
	return appendQuoted(append(b, name...), string(s))
}

func optText[S ~string](b []byte, name string, s S) []byte {
	if s == "" {
		return b
	}
	return text(b, name, s)
}

func texts(b []byte, name string, list []string) []byte {
	b = append(b, name...)
	if list == nil {
		return append(b, "null"...)
	}
	b = append(b, '[')
	for i, s := range list {
		b = text(b, between(i, ""), s)
	}
	return append(b, ']')
}

func optTexts(b []byte, name string, list []string) []byte {
	if len(list) == 0 {
		return b
	}
	return texts(b, name, list)
}

func optList[T any](b []byte, name string, list []T, add func([]byte, *T) []byte) []byte {
	if len(list) == 0 {
		return b
	}
	b = append(b, name...)
	for i := range list {
		b = add(append(b, between(i, "")...), &list[i])
	}
	return append(b, ']')
}

// between is what stands before element i of a list that begins with first.
func between(i int, first string) string {
	if i == 0 {
		return first
	}
	return ","
}

// raw adds JSON that is there already, without white space between its tokens.
// Nothing else of it changes.
func raw(b []byte, name string, v json.RawMessage) ([]byte, error) {
	if len(v) == 0 {
		return b, nil
	}
	b = append(b, name...)
	if compact(v) {
		return append(b, v...), nil
	}
	buf := bytes.NewBuffer(b)
	err := json.Compact(buf, v)
	return buf.Bytes(), err
}

// appendQuoted adds s as a JSON string: control characters, quotes, U+2028 and
// U+2029 escaped, what is not UTF-8 replaced.
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	at := len(b)
	b = append(b, s...)
	if !plain(b[at:]) {
		b = appendEscaped(b[:at], s)
	}
	return append(b, '"')
}

// plain says whether s is ASCII of which nothing is escaped in a JSON string.
func plain(s []byte) bool {
	for len(s) >= 8 {
		if special(binary.LittleEndian.Uint64(s))|binary.LittleEndian.Uint64(s)&highs != 0 {
			return false
		}
		s = s[8:]
	}
	for _, c := range s {
		if escapes(c) || c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// escapes says whether an ASCII character cannot stand in a JSON string as it is.
func escapes(c byte) bool { return c < ' ' || c == '"' || c == '\\' }

const (
	ones  = 0x0101010101010101
	highs = 0x80 * ones
)

// special marks the bytes of w for which escapes holds by their highest bit. A
// mark above the lowest one may be wrong.
func special(w uint64) uint64 {
	quote, slash := w^'"'*ones, w^'\\'*ones
	return ((w-' '*ones)&^w | (quote-ones)&^quote | (slash-ones)&^slash) & highs
}

const hex = "0123456789abcdef"

func appendEscaped(b []byte, s string) []byte {
	from := 0 // of what can be taken as it is
	for i := 0; i < len(s); {
		c, size := rune(s[i]), 1
		if c >= utf8.RuneSelf {
			c, size = utf8.DecodeRuneInString(s[i:])
		}
		if !stands(c, size) {
			b = appendEscape(append(b, s[from:i]...), c)
			from = i + size
		}
		i += size
	}
	return append(b, s[from:]...)
}

// stands says whether a character, of so many bytes, can stand in our strings
// as it is.
func stands(c rune, size int) bool {
	switch c {
	case '\u2028', '\u2029':
		return false
	case utf8.RuneError:
		return size > 1 // else it is not UTF-8
	default:
		return c >= utf8.RuneSelf || !escapes(byte(c))
	}
}

func appendEscape(b []byte, c rune) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', byte(c))
	case '\b':
		return append(b, `\b`...)
	case '\f':
		return append(b, `\f`...)
	case '\n':
		return append(b, `\n`...)
	case '\r':
		return append(b, `\r`...)
	case '\t':
		return append(b, `\t`...)
	default:
		return append(b, '\\', 'u', hex[c>>12&15], hex[c>>8&15], hex[c>>4&15], hex[c&15])
	}
}

// compact says whether v is one JSON value without white space between its
// tokens. What it does not understand, such as more than 64 levels, it denies.
func compact(v []byte) bool { return endOfValue(v, 0) == len(v) }

// endOfValue returns the index after the JSON value at i, or -1 if there is
// none, or none that is compact.
func endOfValue(v []byte, i int) int {
	var (
		objects uint64 // which of the open levels are objects, the innermost lowest
		depth   int
		key     bool // the next token is the name of a field
	)
	for {
		// A value, or a name, begins at i.
		if i >= len(v) {
			return -1
		}
		switch c := v[i]; {
		case c == '"':
			i = endOfString(v, i+1)
			if key {
				if i < 0 || i >= len(v) || v[i] != ':' {
					return -1
				}
				i, key = i+1, false
				continue
			}
		case key:
			return -1
		case c == '{', c == '[':
			if i++; i >= len(v) {
				return -1
			}
			if v[i] == c+2 { // the bracket that closes it
				i++
				break
			}
			if depth++; depth > 64 {
				return -1
			}
			objects <<= 1
			if c == '{' {
				objects |= 1
			}
			key = c == '{'
			continue
		case c == '-', '0' <= c && c <= '9':
			i = endOfNumber(v, i)
		default:
			i = endOfWord(v, i)
		}
		if i < 0 {
			return -1
		}
		// A value ends before i.
		for depth > 0 && i < len(v) && v[i] == closing(objects) {
			objects >>= 1
			depth--
			i++
		}
		if depth == 0 {
			return i
		}
		if i >= len(v) || v[i] != ',' {
			return -1
		}
		i++
		key = objects&1 == 1
	}
}

// closing is the bracket that ends the innermost level.
func closing(objects uint64) byte {
	if objects&1 == 1 {
		return '}'
	}
	return ']'
}

// endOfString returns the index after the string whose text begins at i, or -1.
func endOfString(v []byte, i int) int {
	for {
		for len(v)-i >= 8 {
			if m := special(binary.LittleEndian.Uint64(v[i:])); m != 0 {
				i += bits.TrailingZeros64(m) / 8
				break
			}
			i += 8
		}
		for i < len(v) && !escapes(v[i]) {
			i++
		}
		switch {
		case i >= len(v), v[i] < ' ':
			return -1
		case v[i] == '"':
			return i + 1
		}
		if i = endOfEscape(v, i+1); i < 0 {
			return -1
		}
	}
}

// endOfEscape returns the index after the escape whose backslash is before i,
// or -1.
func endOfEscape(v []byte, i int) int {
	if i >= len(v) {
		return -1
	}
	switch v[i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 1
	case 'u':
		if len(v)-i < 5 {
			return -1
		}
		for _, c := range v[i+1 : i+5] {
			if !('0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f') {
				return -1
			}
		}
		return i + 5
	}
	return -1
}

// endOfNumber returns the index after the number at i, or -1.
func endOfNumber(v []byte, i int) int {
	if v[i] == '-' {
		i++
	}
	if i < len(v) && v[i] == '0' {
		i++
	} else if i = endOfDigits(v, i); i < 0 {
		return -1
	}
	if i < len(v) && v[i] == '.' {
		if i = endOfDigits(v, i+1); i < 0 {
			return -1
		}
	}
	if i < len(v) && v[i]|0x20 == 'e' {
		if i++; i < len(v) && (v[i] == '+' || v[i] == '-') {
			i++
		}
		return endOfDigits(v, i)
	}
	return i
}

// endOfDigits returns the index after the digits at i, of which there must be
// one, or -1.
func endOfDigits(v []byte, i int) int {
	from := i
	for i < len(v) && '0' <= v[i] && v[i] <= '9' {
		i++
	}
	if i == from {
		return -1
	}
	return i
}

// endOfWord returns the index after true, false or null at i, or -1.
func endOfWord(v []byte, i int) int {
	for _, w := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(v[i:], []byte(w)) {
			return i + len(w)
		}
	}
	return -1
}
