package jinja

import (
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"
)

// attributes are the public attributes of Python's types, which hide dict
// members of the same name from a dot.
var attributes = map[string][]string{
	"dict": {"clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"},
	"list": {"append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"},
	"str": {
		"capitalize", "casefold", "center", "count", "encode", "endswith", "expandtabs", "find", "format", "format_map",
		"index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric",
		"isprintable", "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "maketrans", "partition",
		"removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split",
		"splitlines", "startswith", "strip", "swapcase", "title", "translate", "upper", "zfill",
	},
	"tuple":     {"count", "index"},
	"range":     {"count", "index", "start", "step", "stop"},
	"dict view": {"isdisjoint", "mapping"},
	"generator": {"close", "gi_code", "gi_frame", "gi_running", "gi_suspended", "gi_yieldfrom", "send", "throw"},
	"int":       {"as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes", "imag", "is_integer", "numerator", "real", "to_bytes"},
	"float":     {"as_integer_ratio", "conjugate", "fromhex", "hex", "imag", "is_integer", "real"},
}

func hasAttribute(v Value, name string) bool {
	kind := typeName(v)
	if kind == "bool" {
		kind = "int"
	}
	return slices.Contains(attributes[kind], name)
}

// attribute is v.name: first Python's attribute, then the member.
func (r *run) attribute(v Value, name string) (Value, error) {
	switch v := v.(type) {
	case undefined:
		return nil, v.err()
	case *namespace:
		if x, ok := v.attrs.Get(name); ok {
			return x, nil
		}
		return undefined{name}, nil
	case *loop:
		if f := loopAttributes[name]; f != nil {
			return f(v), nil
		}
		return nil, fmt.Errorf("%w: loop.%s", ErrUnsupported, name)
	case method, markup, *macro, builtin:
		return nil, fmt.Errorf("%w: attribute of a %s", ErrUnsupported, typeName(v))
	}
	if hasAttribute(v, name) {
		return method{v, name}, nil
	}
	if d, ok := v.(*Dict); ok {
		if x, ok := d.Get(name); ok {
			return x, nil
		}
	}
	return undefined{name}, nil
}

func (x *attrExpr) eval(r *run) (Value, error) {
	v, err := x.of.eval(r)
	if err != nil {
		return nil, err
	}
	if err := r.step(); err != nil {
		return nil, err
	}
	return r.attribute(v, x.name)
}

func (x *itemExpr) eval(r *run) (Value, error) {
	v, err := x.of.eval(r)
	if err != nil {
		return nil, err
	}
	k, err := x.key.eval(r)
	if err != nil {
		return nil, err
	}
	if err := r.step(); err != nil {
		return nil, err
	}
	return r.item(v, k)
}

// item is v[k]: first the member, then Python's attribute.
func (r *run) item(v, k Value) (Value, error) {
	if u, ok := v.(undefined); ok {
		return nil, u.err()
	}
	switch v.(type) {
	case markup, *macro, builtin:
		return nil, fmt.Errorf("%w: item of a %s", ErrUnsupported, typeName(v))
	}
	if i, _, isFloat, ok := number(k); ok && !isFloat {
		if s, ok := v.(string); ok {
			if err := r.scan(len(s)); err != nil {
				return nil, err
			}
		}
		return indexed(v, i), nil
	}
	key, ok := k.(string)
	if !ok {
		return undefined{"item"}, nil
	}
	switch v := v.(type) {
	case *Dict:
		if x, ok := v.Get(key); ok {
			return x, nil
		}
	case *namespace, *loop:
		return r.attribute(v, key)
	case method:
		return nil, fmt.Errorf("%w: item of a method", ErrUnsupported)
	}
	if hasAttribute(v, key) {
		return method{v, key}, nil
	}
	if len(key) > 1 && key[:2] == "__" {
		return nil, fmt.Errorf("%w: item %s", ErrUnsupported, key)
	}
	return undefined{key}, nil
}

func indexed(v Value, i int64) Value {
	switch v := v.(type) {
	case *List:
		if v.kind > isRange {
			break
		}
		if i < 0 {
			i += int64(len(v.items))
		}
		if i >= 0 && i < int64(len(v.items)) {
			return v.items[i]
		}
	case string:
		if i < 0 {
			i += int64(utf8.RuneCountInString(v))
		}
		for _, c := range v {
			if i == 0 {
				return string(c)
			}
			i--
		}
	}
	return undefined{"item"}
}

func (x *sliceExpr) eval(r *run) (Value, error) {
	v, err := x.of.eval(r)
	if err != nil {
		return nil, err
	}
	parts, err := r.values(x.parts[:])
	if err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case undefined:
		return nil, v.err()
	case markup:
		return nil, unmarked(v, "a slice")
	case string:
		if err := r.pay(5 * len(v)); err != nil {
			return nil, err
		}
		cut, err := slice([]rune(v), parts)
		return string(cut), err
	case *List:
		if v.kind <= isTuple {
			if err := r.pay(16 * len(v.items)); err != nil {
				return nil, err
			}
			cut, err := slice(v.items, parts)
			return &List{items: cut, kind: v.kind}, err
		}
		if v.kind == isRange {
			return nil, fmt.Errorf("%w: slice of a range", ErrUnsupported)
		}
	}
	return nil, fmt.Errorf("%q object is not subscriptable", typeName(v))
}

// slice is s[from:to:step] with Python's rules for what is missing, negative
// or beyond the ends.
func slice[T any](s []T, parts []Value) ([]T, error) {
	var n [3]int64
	for i, p := range parts {
		if p == nil {
			continue
		}
		v, _, isFloat, ok := number(p)
		if !ok || isFloat {
			return nil, errors.New("slice indices must be integers or None")
		}
		n[i] = v
	}
	size, step := int64(len(s)), int64(1)
	if parts[2] != nil {
		if step = n[2]; step == 0 {
			return nil, errors.New("slice step cannot be zero")
		}
	}
	low, high := int64(0), size
	if step < 0 {
		low, high = -1, size-1
	}
	bound := func(i int, missing int64) int64 {
		if parts[i] == nil {
			return missing
		}
		v := n[i]
		if v < 0 {
			v += size
		}
		return min(max(v, low), high)
	}
	var out []T
	if step > 0 {
		for i, to := bound(0, low), bound(1, high); i < to; i += step {
			out = append(out, s[i])
			if step > size {
				break
			}
		}
		return out, nil
	}
	for i, to := bound(0, high), bound(1, low); i > to; i += step {
		out = append(out, s[i])
		if step < -size {
			break
		}
	}
	return out, nil
}
