package jinja

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// methodEntry is one entry of the table of methods a template may call: the
// least and most arguments, and what it does on the types that have it.
type methodEntry struct {
	min, max int
	str      func(r *run, s string, args []Value) (Value, error)
	dict     func(r *run, d *Dict, args []Value) (Value, error)
}

var methods = map[string]methodEntry{
	"endswith":     {min: 1, max: 1, str: affix(strings.HasSuffix)},
	"find":         {min: 1, max: 1, str: strFind},
	"get":          {min: 1, max: 2, dict: dictGet},
	"items":        {dict: func(r *run, d *Dict, _ []Value) (Value, error) { return r.pairs(d, isView) }},
	"join":         {min: 1, max: 1, str: strJoin},
	"keys":         {dict: dictKeys},
	"lower":        {str: mapped(lower)},
	"lstrip":       {max: 1, str: stripped(true, false)},
	"removeprefix": {min: 1, max: 1, str: cutAffix(strings.TrimPrefix)},
	"removesuffix": {min: 1, max: 1, str: cutAffix(strings.TrimSuffix)},
	"replace":      {min: 2, max: 3, str: strReplace},
	"rsplit":       {max: 2, str: strSplit(true)},
	"rstrip":       {max: 1, str: stripped(false, true)},
	"split":        {max: 2, str: strSplit(false)},
	"startswith":   {min: 1, max: 1, str: affix(strings.HasPrefix)},
	"strip":        {max: 1, str: stripped(true, true)},
	"upper":        {str: mapped(upper)},
	"values":       {dict: dictValues},
}

func wantStr(v Value) (string, error) {
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("a str is required, not %s", typeName(v))
	}
	return s, nil
}

func affix(has func(s, affix string) bool) func(*run, string, []Value) (Value, error) {
	return func(_ *run, s string, args []Value) (Value, error) {
		choices := []Value{args[0]}
		if l, ok := args[0].(*List); ok && l.kind == isTuple {
			choices = l.items
		}
		for _, c := range choices {
			x, err := wantStr(c)
			if err != nil {
				return nil, err
			}
			if has(s, x) {
				return true, nil
			}
		}
		return false, nil
	}
}

func cutAffix(trim func(s, affix string) string) func(*run, string, []Value) (Value, error) {
	return func(_ *run, s string, args []Value) (Value, error) {
		x, err := wantStr(args[0])
		return trim(s, x), err
	}
}

func mapped(f func(string) string) func(*run, string, []Value) (Value, error) {
	return func(r *run, s string, _ []Value) (Value, error) {
		if err := r.pay(3 * len(s)); err != nil {
			return nil, err
		}
		return f(s), nil
	}
}

func stripped(left, right bool) func(*run, string, []Value) (Value, error) {
	return func(_ *run, s string, args []Value) (Value, error) {
		return strip(s, at(args, 0), left, right)
	}
}

func strFind(r *run, s string, args []Value) (Value, error) {
	x, err := wantStr(args[0])
	if err != nil {
		return nil, err
	}
	if err := r.scan(len(s)); err != nil {
		return nil, err
	}
	i := strings.Index(s, x)
	if i > 0 {
		i = utf8.RuneCountInString(s[:i])
	}
	return int64(i), nil
}

func strJoin(r *run, s string, args []Value) (Value, error) {
	items, err := r.iterate(args[0])
	if err != nil {
		return nil, err
	}
	for i, item := range items {
		if _, ok := item.(string); !ok {
			return nil, fmt.Errorf("sequence item %d: expected str instance, %s found", i, typeName(item))
		}
	}
	return filterJoin(r, &List{items: items}, []Value{s, nil})
}

func strReplace(r *run, s string, args []Value) (Value, error) {
	old, err := wantStr(args[0])
	if err != nil {
		return nil, err
	}
	by, err := wantStr(args[1])
	if err != nil {
		return nil, err
	}
	count := int64(-1)
	if len(args) == 3 {
		n, ok := args[2].(int64)
		if !ok {
			return nil, fmt.Errorf("%q object cannot be interpreted as an integer", typeName(args[2]))
		}
		count = n
	}
	return r.replace(s, old, by, count)
}

// strSplit is str.split, or str.rsplit, which differ when pieces are limited.
func strSplit(fromRight bool) func(*run, string, []Value) (Value, error) {
	return func(r *run, s string, args []Value) (Value, error) {
		limit := int64(-1)
		if len(args) == 2 {
			n, ok := args[1].(int64)
			if !ok {
				return nil, fmt.Errorf("%q object cannot be interpreted as an integer", typeName(args[1]))
			}
			limit = n
		}
		sep := at(args, 0)
		if sep == nil {
			if limit >= 0 {
				return nil, fmt.Errorf("%w: split on white space with a limit", ErrUnsupported)
			}
			return r.strings(strings.FieldsFunc(s, isSpace))
		}
		by, err := wantStr(sep)
		if err != nil {
			return nil, err
		}
		if by == "" {
			return nil, errors.New("empty separator")
		}
		if err := r.pay(16 * strings.Count(s, by)); err != nil {
			return nil, err
		}
		parts := strings.Split(s, by)
		if n := int64(len(parts)) - 1; limit >= 0 && n > limit {
			k := int(limit)
			if fromRight {
				k = len(parts) - k
				parts = append([]string{strings.Join(parts[:k], by)}, parts[k:]...)
			} else {
				parts = append(parts[:k:k], strings.Join(parts[k:], by))
			}
		}
		return r.strings(parts)
	}
}

func (r *run) strings(parts []string) (Value, error) {
	if err := r.pay(32 * len(parts)); err != nil {
		return nil, err
	}
	l := &List{items: make([]Value, len(parts))}
	for i, p := range parts {
		l.items[i] = p
	}
	return l, nil
}

func dictGet(_ *run, d *Dict, args []Value) (Value, error) {
	k, ok := args[0].(string)
	if v, found := d.Get(k); ok && found {
		return v, nil
	}
	switch args[0].(type) {
	case *List, *Dict:
		return nil, fmt.Errorf("unhashable type: %q", typeName(args[0]))
	}
	return at(args, 1), nil
}

func dictKeys(r *run, d *Dict, _ []Value) (Value, error) {
	items, err := r.iterate(d)
	return &List{items: items, kind: isView}, err
}

func dictValues(r *run, d *Dict, _ []Value) (Value, error) {
	if err := r.pay(16 * d.Len()); err != nil {
		return nil, err
	}
	return &List{items: append([]Value(nil), d.values...), kind: isView}, nil
}
