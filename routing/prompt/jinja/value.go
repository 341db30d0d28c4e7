package jinja

import (
	"fmt"
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
	case markup:
		return "markup"
	case *macro:
		return "macro"
	case builtin:
		return "function"
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
	case markup:
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
	case markup:
		return nil, unmarked(v, "iteration")
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
