package jinja

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// str is Python's str(v).
func (r *run) str(v Value) (string, error) {
	switch s := v.(type) {
	case string:
		return s, nil
	case markup:
		return string(s), nil
	}
	var b strings.Builder
	if err := r.repr(&b, v, 0); err != nil {
		return "", err
	}
	return b.String(), nil
}

// repr is Python's repr(v) for all but undefined, which prints as nothing at
// the top.
func (r *run) repr(b *strings.Builder, v Value, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: a value is nested too deeply to print", ErrBudget)
	}
	if err := r.step(); err != nil {
		return err
	}
	before := b.Len()
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case bool:
		b.WriteString(map[bool]string{true: "True", false: "False"}[v])
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		b.WriteString(floatRepr(v))
	case string:
		strRepr(b, v)
	case undefined:
		if depth > 0 {
			b.WriteString("Undefined")
		}
	case *List:
		return r.reprList(b, v, depth)
	case *Dict:
		return r.reprDict(b, v, depth)
	default:
		return fmt.Errorf("%w: printing a %s", ErrUnsupported, typeName(v))
	}
	return r.pay(b.Len() - before)
}

func (r *run) reprList(b *strings.Builder, l *List, depth int) error {
	ends := "[]"
	switch l.kind {
	case isList:
	case isTuple:
		ends = "()"
	default:
		return fmt.Errorf("%w: printing a %s", ErrUnsupported, typeName(l))
	}
	b.WriteByte(ends[0])
	for i, item := range l.items {
		if i > 0 {
			b.WriteString(", ")
		}
		if err := r.repr(b, item, depth+1); err != nil {
			return err
		}
	}
	if l.kind == isTuple && len(l.items) == 1 {
		b.WriteByte(',')
	}
	b.WriteByte(ends[1])
	return r.pay(2 + 2*len(l.items))
}

func (r *run) reprDict(b *strings.Builder, d *Dict, depth int) error {
	b.WriteByte('{')
	for i, k := range d.keys {
		if i > 0 {
			b.WriteString(", ")
		}
		if err := r.repr(b, k, depth+1); err != nil {
			return err
		}
		b.WriteString(": ")
		if err := r.repr(b, d.values[i], depth+1); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	return r.pay(2 + 4*d.Len())
}

// floatRepr is repr(float): the shortest digits that read back, with an
// exponent below 1e-4 and from 1e16.
func floatRepr(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

func strRepr(b *strings.Builder, s string) {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	b.WriteByte(quote)
	for _, c := range s {
		switch {
		case c == rune(quote) || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(c):
			b.WriteRune(c)
		case c < 0x100:
			fmt.Fprintf(b, `\x%02x`, c)
		case c < 0x10000:
			fmt.Fprintf(b, `\u%04x`, c)
		default:
			fmt.Fprintf(b, `\U%08x`, c)
		}
	}
	b.WriteByte(quote)
}
