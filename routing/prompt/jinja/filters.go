package jinja

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// filter is one entry of the filter table. apply gets an argument per
// parameter; one that was not given is notGiven.
type filter struct {
	params []string
	form   argForm
	test   int // index of the parameter that names a test, if not 0

	variadic bool // takes any number of positional arguments
	apply    func(r *run, v Value, args []Value) (Value, error)
}

type argForm uint8

const (
	anyForm argForm = iota
	namedOnly
	positionalOnly
)

type notGiven struct{}

func given(v Value, otherwise Value) Value {
	if _, missing := v.(notGiven); missing {
		return otherwise
	}
	return v
}

var filters = map[string]filter{
	"capitalize": {apply: filterCapitalize},
	"count":      {apply: filterLength},
	"d":          {params: []string{"default_value", "boolean"}, apply: filterDefault},
	"default":    {params: []string{"default_value", "boolean"}, apply: filterDefault},
	"dictsort":   {params: []string{"case_sensitive", "by", "reverse"}, apply: filterDictsort},
	"first":      {apply: filterFirst},
	"float":      {params: []string{"default"}, apply: filterFloat},
	"format":     {variadic: true, apply: filterFormat},
	"int":        {params: []string{"default", "base"}, apply: filterInt},
	"items":      {apply: filterItems},
	"join":       {params: []string{"d", "attribute"}, apply: filterJoin},
	"last":       {apply: filterLast},
	"length":     {apply: filterLength},
	"list":       {apply: filterList},
	"lower":      {apply: onString(lower)},
	"map":        {params: []string{"attribute"}, form: namedOnly, apply: filterMap},
	"rejectattr": {params: []string{"attribute", "test", "value"}, form: positionalOnly, test: 1, apply: pickAttr(false)},
	"replace":    {params: []string{"old", "new", "count"}, apply: filterReplace},
	"reverse":    {apply: filterReverse},
	"selectattr": {params: []string{"attribute", "test", "value"}, form: positionalOnly, test: 1, apply: pickAttr(true)},
	"safe":       {apply: filterSafe},
	"sort":       {params: []string{"reverse", "case_sensitive", "attribute"}, apply: filterSort},
	"string":     {apply: onString(func(s string) string { return s })},
	"tojson":     {params: []string{"ensure_ascii", "indent", "separators", "sort_keys"}, form: namedOnly, apply: filterJSON},
	"trim":       {params: []string{"chars"}, apply: filterTrim},
	"upper":      {apply: onString(upper)},
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func lower(s string) string {
	if ascii(s) {
		return strings.ToLower(s)
	}
	return cases.Lower(language.Und).String(s)
}

func upper(s string) string {
	if ascii(s) {
		return strings.ToUpper(s)
	}
	return cases.Upper(language.Und).String(s)
}

func onString(f func(string) string) func(*run, Value, []Value) (Value, error) {
	return func(r *run, v Value, _ []Value) (Value, error) {
		s, err := r.str(v)
		if err != nil {
			return nil, err
		}
		if err := r.pay(3 * len(s)); err != nil { // as much as a mapping of case can grow
			return nil, err
		}
		return f(s), nil
	}
}

func filterLength(r *run, v Value, _ []Value) (Value, error) {
	if s, ok := v.(string); ok {
		if err := r.scan(len(s)); err != nil {
			return nil, err
		}
	}
	n, err := length(v)
	return int64(n), err
}

func filterDefault(_ *run, v Value, args []Value) (Value, error) {
	_, missing := v.(undefined)
	if missing || truth(given(args[1], false)) && !truth(v) {
		return given(args[0], ""), nil
	}
	return v, nil
}

func filterFirst(r *run, v Value, _ []Value) (Value, error) {
	items, err := r.iterate(v)
	if err != nil || len(items) > 0 {
		return at(items, 0), err
	}
	return undefined{"first item of an empty sequence"}, nil
}

func at(items []Value, i int) Value {
	if i < 0 || i >= len(items) {
		return nil
	}
	return items[i]
}

func filterLast(r *run, v Value, _ []Value) (Value, error) {
	if l, ok := v.(*List); ok && l.kind == isGenerator {
		return nil, errors.New("'generator' object is not reversible")
	}
	items, err := r.iterate(v)
	if err != nil || len(items) > 0 {
		return at(items, len(items)-1), err
	}
	return undefined{"last item of an empty sequence"}, nil
}

// pairs are the items of a dict.
func (r *run) pairs(d *Dict, kind listKind) (*List, error) {
	if err := r.pay(64 * d.Len()); err != nil {
		return nil, err
	}
	l := &List{kind: kind}
	for i, k := range d.keys {
		l.items = append(l.items, &List{kind: isTuple, items: []Value{k, d.values[i]}})
	}
	return l, nil
}

func filterItems(r *run, v Value, _ []Value) (Value, error) {
	switch v := v.(type) {
	case undefined:
		return &List{kind: isGenerator}, nil
	case *Dict:
		return r.pairs(v, isGenerator)
	}
	return nil, errors.New("can only get item pairs from a mapping")
}

func filterJoin(r *run, v Value, args []Value) (Value, error) {
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	sep, err := r.str(given(args[0], ""))
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for i, item := range items {
		if by := given(args[1], nil); by != nil {
			if item, err = r.path(item, by); err != nil {
				return nil, err
			}
		}
		s, err := r.str(item)
		if err != nil {
			return nil, err
		}
		if err := r.pay(len(sep) + len(s)); err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteString(sep)
		}
		b.WriteString(s)
	}
	return b.String(), r.step()
}

// path is item.a.b for the attribute "a.b"; parts that are digits are indices.
func (r *run) path(item, attribute Value) (Value, error) {
	s, ok := attribute.(string)
	if !ok {
		return nil, fmt.Errorf("%w: attribute of type %s", ErrUnsupported, typeName(attribute))
	}
	for part := range strings.SplitSeq(s, ".") {
		var key Value = part
		if part != "" && digits(part) == len(part) {
			n, err := strconv.ParseInt(part, 10, 64)
			if err != nil {
				return nil, errOverflow
			}
			key = n
		}
		if err := r.step(); err != nil {
			return nil, err
		}
		var err error
		if item, err = r.item(item, key); err != nil {
			return nil, err
		}
	}
	return item, nil
}

func filterList(r *run, v Value, _ []Value) (Value, error) {
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	if err := r.pay(16 * len(items)); err != nil {
		return nil, err
	}
	return &List{items: append([]Value(nil), items...)}, nil
}

func filterMap(r *run, v Value, args []Value) (Value, error) {
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	if err := r.pay(16 * len(items)); err != nil {
		return nil, err
	}
	out := &List{kind: isGenerator}
	for _, item := range items {
		x, err := r.path(item, args[0])
		if err != nil {
			return nil, err
		}
		out.items = append(out.items, x)
	}
	return out, nil
}

// pickAttr is selectattr, or rejectattr if keep is false.
func pickAttr(keep bool) func(*run, Value, []Value) (Value, error) {
	return func(r *run, v Value, args []Value) (Value, error) {
		items, err := r.iterate(v)
		if err != nil {
			return nil, err
		}
		out := &List{kind: isGenerator}
		for _, item := range items {
			x, err := r.path(item, args[0])
			if err != nil {
				return nil, err
			}
			ok := truth(x)
			if name, named := args[1].(string); named {
				check := tests[name]
				checked, err := check.holds(r, x, args[2:2+check.args])
				if err != nil {
					return nil, err
				}
				ok = truth(checked)
			}
			if ok != keep {
				continue
			}
			if err := r.pay(16); err != nil {
				return nil, err
			}
			out.items = append(out.items, item)
		}
		return out, nil
	}
}

func filterReplace(r *run, v Value, args []Value) (Value, error) {
	var s [3]string
	for i, x := range []Value{v, args[0], args[1]} {
		if _, missing := x.(notGiven); missing {
			return nil, errors.New("replace needs two arguments")
		}
		var err error
		if s[i], err = r.str(x); err != nil {
			return nil, err
		}
	}
	count := int64(-1)
	if c := given(args[2], nil); c != nil {
		n, ok := c.(int64)
		if !ok {
			return nil, fmt.Errorf("%q object cannot be interpreted as an integer", typeName(c))
		}
		count = n
	}
	return r.replace(s[0], s[1], s[2], count)
}

func (r *run) replace(s, old, by string, count int64) (Value, error) {
	n := int64(strings.Count(s, old))
	if count >= 0 {
		n = min(n, count)
	}
	if err := r.pay(len(s)); err != nil {
		return nil, err
	}
	for left := n; left > 0 && len(by) > 0; left -= 1 << 16 {
		if err := r.pay(int(min(left, 1<<16)) * len(by)); err != nil {
			return nil, err
		}
	}
	return strings.Replace(s, old, by, int(n)), nil
}

func filterReverse(r *run, v Value, _ []Value) (Value, error) {
	if s, ok := v.(string); ok {
		if err := r.pay(5 * len(s)); err != nil {
			return nil, err
		}
		cut, err := slice([]rune(s), []Value{nil, nil, int64(-1)})
		return string(cut), err
	}
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	if err := r.pay(16 * len(items)); err != nil {
		return nil, err
	}
	cut, err := slice(items, []Value{nil, nil, int64(-1)})
	return &List{items: cut, kind: isGenerator}, err
}

// maxIndent is far above what a template asks for.
const maxIndent = 64

func filterJSON(r *run, v Value, args []Value) (Value, error) {
	if truth(given(args[0], false)) {
		return nil, fmt.Errorf("%w: tojson(ensure_ascii=true)", ErrUnsupported)
	}
	if given(args[2], nil) != nil {
		return nil, fmt.Errorf("%w: tojson(separators=…)", ErrUnsupported)
	}
	d := &dumper{run: r, indent: -1, sort: truth(given(args[3], false))}
	if x := given(args[1], nil); x != nil {
		n, ok := x.(int64)
		if !ok || n < 0 || n > maxIndent {
			return nil, fmt.Errorf("%w: tojson with this indent", ErrUnsupported)
		}
		d.indent = int(n)
	}
	err := d.dump(v, 0)
	return d.b.String(), err
}

func filterTrim(r *run, v Value, args []Value) (Value, error) {
	s, err := r.str(v)
	if err != nil {
		return nil, err
	}
	return strip(s, given(args[0], nil), true, true)
}

// Strip is Python's str.strip, or lstrip or rstrip if only one side is asked
// for.
func Strip(s string, left, right bool) string {
	if left {
		s = strings.TrimLeftFunc(s, isSpace)
	}
	if right {
		s = strings.TrimRightFunc(s, isSpace)
	}
	return s
}

// strip is Strip of the characters in chars, white space if that is nil.
func strip(s string, chars Value, left, right bool) (Value, error) {
	if chars == nil {
		return Strip(s, left, right), nil
	}
	set, ok := chars.(string)
	if !ok {
		return nil, errors.New("strip arg must be None or str")
	}
	drop := func(c rune) bool { return strings.ContainsRune(set, c) }
	if left {
		s = strings.TrimLeftFunc(s, drop)
	}
	if right {
		s = strings.TrimRightFunc(s, drop)
	}
	return s, nil
}
