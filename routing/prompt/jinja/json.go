package jinja

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// FromJSON reads one JSON value as Python's json.loads does: members in order
// (of a repeated one the last value counts), integers apart from floats. An
// integer beyond 64 bits is ErrUnsupported. Invalid UTF-8 and lone surrogates
// are errors.
func FromJSON(data []byte) (Value, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true))
	v, err := readJSON(d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.ReadToken(); err == nil {
		return nil, errors.New("more than one JSON value")
	}
	return v, nil
}

func readJSON(d *jsontext.Decoder, depth int) (Value, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%w: JSON is nested too deeply", ErrBudget)
	}
	tok, err := d.ReadToken()
	if err != nil {
		return nil, err
	}
	switch tok.Kind() {
	case 'n':
		return nil, nil
	case 't', 'f':
		return tok.Bool(), nil
	case '"':
		return tok.String(), nil
	case '0':
		return readNumber(tok.String())
	case '[':
		return readArray(d, depth)
	}
	return readObject(d, depth)
}

func readArray(d *jsontext.Decoder, depth int) (Value, error) {
	l := &List{}
	for d.PeekKind() != ']' {
		v, err := readJSON(d, depth+1)
		if err != nil {
			return nil, err
		}
		l.items = append(l.items, v)
	}
	_, err := d.ReadToken()
	return l, err
}

func readObject(d *jsontext.Decoder, depth int) (Value, error) {
	o := &Dict{}
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		key := name.String()
		v, err := readJSON(d, depth+1)
		if err != nil {
			return nil, err
		}
		o.Set(key, v)
	}
	_, err := d.ReadToken()
	return o, err
}

func readNumber(s string) (Value, error) {
	if !strings.ContainsAny(s, ".eE") {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: integer beyond 64 bits", ErrUnsupported)
		}
		return n, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(f, 0) {
		return nil, err
	}
	return f, nil
}

// dumper is json.dumps(ensure_ascii=False).
type dumper struct {
	*run
	b      strings.Builder
	indent int // -1 for one line
	sort   bool
}

func (d *dumper) write(s string) error {
	d.b.WriteString(s)
	return d.pay(len(s))
}

func (d *dumper) dump(v Value, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: a value is nested too deeply for tojson", ErrBudget)
	}
	if err := d.step(); err != nil {
		return err
	}
	switch v := plain(v).(type) {
	case nil:
		return d.write("null")
	case bool:
		return d.write(strconv.FormatBool(v))
	case int64:
		return d.write(strconv.FormatInt(v, 10))
	case float64:
		return d.write(floatJSON(v))
	case string:
		return d.dumpString(v)
	case *List:
		if v.kind <= isTuple {
			return d.dumpList(v, depth)
		}
	case *Dict:
		return d.dumpDict(v, depth)
	}
	return fmt.Errorf("object of type %s is not JSON serializable", typeName(v))
}

func floatJSON(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return floatRepr(f)
}

func (d *dumper) dumpList(l *List, depth int) error {
	if len(l.items) == 0 {
		return d.write("[]")
	}
	if err := d.write("["); err != nil {
		return err
	}
	for i, item := range l.items {
		if err := d.separate(i, depth+1); err != nil {
			return err
		}
		if err := d.dump(item, depth+1); err != nil {
			return err
		}
	}
	return d.close("]", depth)
}

func (d *dumper) dumpDict(o *Dict, depth int) error {
	if o.Len() == 0 {
		return d.write("{}")
	}
	if err := d.write("{"); err != nil {
		return err
	}
	order := o.keys
	if d.sort {
		order = slices.Sorted(slices.Values(o.keys))
	}
	for i, k := range order {
		if err := d.separate(i, depth+1); err != nil {
			return err
		}
		if err := d.dumpString(k); err != nil {
			return err
		}
		if err := d.write(": "); err != nil {
			return err
		}
		v, _ := o.Get(k)
		if err := d.dump(v, depth+1); err != nil {
			return err
		}
	}
	return d.close("}", depth)
}

func (d *dumper) separate(i, depth int) error {
	switch {
	case d.indent >= 0 && i == 0:
		return d.newline(depth)
	case d.indent >= 0:
		if err := d.write(","); err != nil {
			return err
		}
		return d.newline(depth)
	case i > 0:
		return d.write(", ")
	}
	return nil
}

func (d *dumper) close(bracket string, depth int) error {
	if d.indent >= 0 {
		if err := d.newline(depth); err != nil {
			return err
		}
	}
	return d.write(bracket)
}

func (d *dumper) newline(depth int) error {
	if err := d.pay(1 + depth*d.indent); err != nil {
		return err
	}
	d.b.WriteByte('\n')
	d.b.WriteString(strings.Repeat(" ", depth*d.indent))
	return nil
}

func (d *dumper) dumpString(s string) error {
	if err := d.pay(len(s) + 2); err != nil {
		return err
	}
	d.b.WriteByte('"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		d.b.WriteString(s[start:i])
		start = i + 1
		if j := strings.IndexByte("\"\\\n\r\t\f\b", c); j >= 0 {
			d.b.WriteByte('\\')
			d.b.WriteByte(`"\nrtfb`[j])
		} else {
			fmt.Fprintf(&d.b, `\u%04x`, c)
		}
	}
	d.b.WriteString(s[start:])
	d.b.WriteByte('"')
	return nil
}
