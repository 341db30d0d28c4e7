package jinja

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Value is a template value: nil (None), bool, int64, float64, string, *List,
// *Dict, or one of this package's own.
type Value any

// List is a Python sequence.
type List struct {
	items []Value
	kind  listKind
	used  bool // a generator that was iterated
}

type listKind uint8

const (
	isList listKind = iota
	isTuple
	isRange
	isView // dict.items() and its like: sized, but not indexed
	isGenerator
)

var listNames = [...]string{"list", "tuple", "range", "dict view", "generator"}

// NewList is a Python list of items.
func NewList(items ...Value) *List { return &List{items: items} }

// Len is the number of items.
func (l *List) Len() int { return len(l.items) }

// At is item i, counted from 0.
func (l *List) At(i int) Value { return l.items[i] }

// Dict is a Python dict with strings for keys, in the order they were set.
// The zero value is empty.
type Dict struct {
	keys   []string
	values []Value
	index  map[string]int // once there are many
}

// indexFrom is the size from which a Dict has an index.
const indexFrom = 12

// Len is the number of members.
func (d *Dict) Len() int { return len(d.keys) }

// At is member i in order.
func (d *Dict) At(i int) (string, Value) { return d.keys[i], d.values[i] }

func (d *Dict) find(key string) int {
	if d.index != nil {
		if i, ok := d.index[key]; ok {
			return i
		}
		return -1
	}
	for i, k := range d.keys {
		if k == key {
			return i
		}
	}
	return -1
}

// Get is the value of key, and whether there is one.
func (d *Dict) Get(key string) (Value, bool) {
	if i := d.find(key); i >= 0 {
		return d.values[i], true
	}
	return nil, false
}

// Set gives key a value; a new key goes last, an old one keeps its place.
func (d *Dict) Set(key string, v Value) {
	if i := d.find(key); i >= 0 {
		d.values[i] = v
		return
	}
	d.keys = append(d.keys, key)
	d.values = append(d.values, v)
	switch {
	case d.index != nil:
		d.index[key] = len(d.keys) - 1
	case len(d.keys) >= indexFrom:
		d.index = make(map[string]int, 2*len(d.keys))
		for i, k := range d.keys {
			d.index[k] = i
		}
	}
}

// undefined is the value of a name or member that is not there.
type undefined struct{ name string }

func (u undefined) err() error { return fmt.Errorf("%q is undefined", u.name) }

// namespace is the one value a template can change.
type namespace struct{ attrs Dict }

// method is a bound method that was not called yet.
type method struct {
	of   Value
	name string
}

func typeName(v Value) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return "bool"
	case int64:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case *List:
		return listNames[v.kind]
	case *Dict:
		return "dict"
	case undefined:
		return "undefined"
	case *namespace:
		return "namespace"
	case *loop:
		return "loop"
	}
	return "method"
}

func truth(v Value) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case *List:
		return len(v.items) > 0 || v.kind == isGenerator
	case *Dict:
		return v.Len() > 0
	}
	return true
}

// number is v as an int64 or float64; bool counts as int, as in Python.
func number(v Value) (i int64, f float64, isFloat, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, 0, false, true
		}
		return 0, 0, false, true
	case int64:
		return v, 0, false, true
	case float64:
		return 0, v, true, true
	}
	return 0, 0, false, false
}

// str is Python's str(v).
func (r *run) str(v Value) (string, error) {
	if s, ok := v.(string); ok {
		return s, nil
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

// equal is Python's a == b.
func (r *run) equal(a, b Value, depth int) (bool, error) {
	if depth > maxDepth {
		return false, fmt.Errorf("%w: a value is nested too deeply to compare", ErrBudget)
	}
	if err := r.step(); err != nil {
		return false, err
	}
	if _, _, _, ok := number(a); ok {
		if _, _, _, ok := number(b); !ok {
			return false, nil
		}
		c, ordered := compareNumbers(a, b)
		return ordered && c == 0, nil
	}
	switch a := a.(type) {
	case nil:
		return b == nil, nil
	case string:
		b, ok := b.(string)
		return ok && a == b, nil
	case undefined:
		_, ok := b.(undefined)
		return ok, nil
	case *List:
		return r.equalLists(a, b, depth)
	case *Dict:
		return r.equalDicts(a, b, depth)
	case method:
		return false, fmt.Errorf("%w: comparing a method", ErrUnsupported)
	}
	if _, ok := b.(method); ok {
		return false, fmt.Errorf("%w: comparing a method", ErrUnsupported)
	}
	return a == b, nil
}

func (r *run) equalLists(a *List, v Value, depth int) (bool, error) {
	b, ok := v.(*List)
	switch {
	case !ok || a.kind != b.kind:
		return false, nil
	case a == b:
		return true, nil
	case a.kind == isView:
		return false, fmt.Errorf("%w: comparing a dict view", ErrUnsupported)
	case a.kind == isGenerator || len(a.items) != len(b.items):
		return false, nil
	}
	for i := range a.items {
		if same, err := r.equal(a.items[i], b.items[i], depth+1); !same || err != nil {
			return false, err
		}
	}
	return true, nil
}

func (r *run) equalDicts(a *Dict, v Value, depth int) (bool, error) {
	b, ok := v.(*Dict)
	if !ok || a.Len() != b.Len() {
		return false, nil
	}
	for i, k := range a.keys {
		other, ok := b.Get(k)
		if !ok {
			return false, nil
		}
		if same, err := r.equal(a.values[i], other, depth+1); !same || err != nil {
			return false, err
		}
	}
	return true, nil
}

// compareNumbers compares exactly; not ordered means that one is NaN.
func compareNumbers(a, b Value) (c int, ordered bool) {
	ai, af, aFloat, _ := number(a)
	bi, bf, bFloat, _ := number(b)
	if aFloat && math.IsNaN(af) || bFloat && math.IsNaN(bf) {
		return 0, false
	}
	x, y := new(big.Float).SetInt64(ai), new(big.Float).SetInt64(bi)
	if aFloat {
		x = big.NewFloat(af)
	}
	if bFloat {
		y = big.NewFloat(bf)
	}
	if !aFloat && !bFloat {
		switch {
		case ai < bi:
			return -1, true
		case ai > bi:
			return 1, true
		}
		return 0, true
	}
	return x.Cmp(y), true
}

// compare is -1, 0 or 1 as a is less than, equal to or greater than b. Python
// raises for what has no order.
func (r *run) compare(a, b Value) (c int, ordered bool, err error) {
	if _, _, _, ok := number(a); ok {
		if _, _, _, ok := number(b); ok {
			c, ordered = compareNumbers(a, b)
			return c, ordered, nil
		}
	}
	if x, ok := a.(string); ok {
		if y, ok := b.(string); ok {
			return strings.Compare(x, y), true, nil
		}
	}
	if u, ok := firstUndefined(a, b); ok {
		return 0, false, u.err()
	}
	x, okX := a.(*List)
	y, okY := b.(*List)
	if !okX || !okY || x.kind != y.kind || x.kind > isTuple {
		return 0, false, fmt.Errorf("'<' not supported between instances of %q and %q", typeName(a), typeName(b))
	}
	for i := 0; i < len(x.items) && i < len(y.items); i++ {
		same, err := r.equal(x.items[i], y.items[i], 1)
		if err != nil {
			return 0, false, err
		}
		if !same {
			return r.compare(x.items[i], y.items[i])
		}
	}
	return len(x.items) - len(y.items), true, nil
}

func firstUndefined(values ...Value) (undefined, bool) {
	for _, v := range values {
		if u, ok := v.(undefined); ok {
			return u, true
		}
	}
	return undefined{}, false
}

// contains is Python's item in v.
func (r *run) contains(v, item Value) (bool, error) {
	switch v := v.(type) {
	case string:
		s, ok := item.(string)
		if !ok {
			return false, fmt.Errorf("'in <string>' requires string as left operand, not %s", typeName(item))
		}
		if err := r.scan(len(v)); err != nil {
			return false, err
		}
		return strings.Contains(v, s), nil
	case *Dict:
		switch k := item.(type) {
		case string:
			_, ok := v.Get(k)
			return ok, nil
		case *List:
			if k.kind != isTuple {
				return false, errors.New("unhashable type: 'list'")
			}
		case *Dict:
			return false, errors.New("unhashable type: 'dict'")
		}
		return false, nil
	}
	items, err := r.iterate(v)
	if err != nil {
		return false, err
	}
	for _, x := range items {
		if same, err := r.equal(x, item, 0); same || err != nil {
			return same, err
		}
	}
	return false, nil
}

// iterate is list(v).
func (r *run) iterate(v Value) ([]Value, error) {
	switch v := v.(type) {
	case undefined:
		return nil, nil
	case *List:
		if v.kind == isGenerator {
			if v.used {
				return nil, fmt.Errorf("%w: iterating twice over a generator", ErrUnsupported)
			}
			v.used = true
		}
		return v.items, nil
	case *Dict:
		if err := r.pay(16 * v.Len()); err != nil {
			return nil, err
		}
		items := make([]Value, v.Len())
		for i, k := range v.keys {
			items[i] = k
		}
		return items, nil
	case string:
		if err := r.pay(32 * len(v)); err != nil {
			return nil, err
		}
		items := make([]Value, 0, len(v))
		for _, c := range v {
			items = append(items, string(c))
		}
		return items, nil
	}
	return nil, fmt.Errorf("%q object is not iterable", typeName(v))
}

// length is len(v).
func length(v Value) (int, error) {
	switch v := v.(type) {
	case undefined:
		return 0, nil
	case string:
		return utf8.RuneCountInString(v), nil
	case *Dict:
		return v.Len(), nil
	case *List:
		if v.kind != isGenerator {
			return len(v.items), nil
		}
	case *loop:
		return len(v.items), nil
	}
	return 0, fmt.Errorf("object of type %q has no len()", typeName(v))
}
