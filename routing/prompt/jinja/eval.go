package jinja

import (
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"
)

// expr is an expression.
type expr interface{ eval(r *run) (Value, error) }

type (
	constExpr struct{ v Value }
	nameExpr  struct{ name string }
	listExpr  struct {
		items []expr
		kind  listKind
	}
	dictExpr  struct{ keys, values []expr }
	unaryExpr struct {
		op string
		x  expr
	}
	binaryExpr struct {
		op   string
		a, b expr
	}
	logicExpr struct {
		or   bool
		a, b expr
	}
	compareExpr struct {
		first expr
		ops   []string
		rest  []expr
	}
	condExpr struct{ test, then, orElse expr }
	attrExpr struct {
		of   expr
		name string
	}
	itemExpr  struct{ of, key expr }
	sliceExpr struct {
		of    expr
		parts [3]expr
	}
	callExpr struct {
		of   expr
		name string
		args []expr
	}
	filterExpr struct {
		of   expr
		f    filter
		args []expr
	}
	testExpr struct {
		of    expr
		check test
		args  []expr
	}
	namespaceExpr struct {
		names  []string
		values []expr
	}
	rangeExpr struct{ args []expr }
	raiseExpr struct{ message expr }
)

func (x *constExpr) eval(r *run) (Value, error) { return x.v, r.step() }

func (x *nameExpr) eval(r *run) (Value, error) { return r.lookup(x.name), r.step() }

// values evaluates several; one that is nil stays nil.
func (r *run) values(xs []expr) ([]Value, error) {
	if err := r.step(); err != nil {
		return nil, err
	}
	if err := r.pay(16 * len(xs)); err != nil {
		return nil, err
	}
	out := make([]Value, len(xs))
	for i, x := range xs {
		if x == nil {
			continue
		}
		v, err := x.eval(r)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

func (x *listExpr) eval(r *run) (Value, error) {
	items, err := r.values(x.items)
	return &List{items: items, kind: x.kind}, err
}

func (x *dictExpr) eval(r *run) (Value, error) {
	d := &Dict{}
	for i := range x.keys {
		k, err := x.keys[i].eval(r)
		if err != nil {
			return nil, err
		}
		key, ok := k.(string)
		if !ok {
			return nil, fmt.Errorf("%w: dict key of type %s", ErrUnsupported, typeName(k))
		}
		v, err := x.values[i].eval(r)
		if err != nil {
			return nil, err
		}
		if err := r.pay(64); err != nil {
			return nil, err
		}
		d.Set(key, v)
	}
	return d, r.step()
}

func (x *unaryExpr) eval(r *run) (Value, error) {
	v, err := x.x.eval(r)
	if err != nil {
		return nil, err
	}
	if x.op == "not" {
		return !truth(v), r.step()
	}
	return sign(x.op, v)
}

func (x *binaryExpr) eval(r *run) (Value, error) {
	a, err := x.a.eval(r)
	if err != nil {
		return nil, err
	}
	b, err := x.b.eval(r)
	if err != nil {
		return nil, err
	}
	if err := r.step(); err != nil {
		return nil, err
	}
	return r.binary(x.op, a, b)
}

func (x *logicExpr) eval(r *run) (Value, error) {
	a, err := x.a.eval(r)
	if err != nil || truth(a) == x.or {
		return a, err
	}
	return x.b.eval(r)
}

func (x *compareExpr) eval(r *run) (Value, error) {
	a, err := x.first.eval(r)
	if err != nil {
		return nil, err
	}
	for i, o := range x.ops {
		b, err := x.rest[i].eval(r)
		if err != nil {
			return nil, err
		}
		ok, err := r.holds(o, a, b)
		if err != nil || !ok {
			return false, err
		}
		a = b
	}
	return true, nil
}

func (r *run) holds(o string, a, b Value) (bool, error) {
	if err := r.step(); err != nil {
		return false, err
	}
	switch o {
	case "==":
		return r.equal(a, b, 0)
	case "!=":
		same, err := r.equal(a, b, 0)
		return !same, err
	case "in":
		return r.contains(b, a)
	case "not in":
		found, err := r.contains(b, a)
		return !found, err
	}
	c, ordered, err := r.compare(a, b)
	if err != nil || !ordered {
		return false, err
	}
	switch o {
	case "<":
		return c < 0, nil
	case "<=":
		return c <= 0, nil
	case ">":
		return c > 0, nil
	}
	return c >= 0, nil
}

func (x *condExpr) eval(r *run) (Value, error) {
	v, err := x.test.eval(r)
	if err != nil {
		return nil, err
	}
	switch {
	case truth(v):
		return x.then.eval(r)
	case x.orElse != nil:
		return x.orElse.eval(r)
	}
	return undefined{"the inline if-expression evaluated to false and no else section was defined"}, r.step()
}

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
	case method:
		return nil, fmt.Errorf("%w: attribute of a method", ErrUnsupported)
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

func (x *callExpr) eval(r *run) (Value, error) {
	v, err := x.of.eval(r)
	if err != nil {
		return nil, err
	}
	args, err := r.values(x.args)
	if err != nil {
		return nil, err
	}
	if u, ok := v.(undefined); ok {
		return nil, u.err()
	}
	if !hasAttribute(v, x.name) {
		return nil, fmt.Errorf("%q has no method %s", typeName(v), x.name)
	}
	m := methods[x.name]
	switch v := v.(type) {
	case string:
		if m.str != nil {
			return m.str(r, v, args)
		}
	case *Dict:
		if m.dict != nil {
			return m.dict(r, v, args)
		}
	}
	return nil, fmt.Errorf("%w: method %s of %s", ErrUnsupported, x.name, typeName(v))
}

func (x *filterExpr) eval(r *run) (Value, error) {
	v, err := x.of.eval(r)
	if err != nil {
		return nil, err
	}
	args, err := r.values(x.args)
	if err != nil {
		return nil, err
	}
	for i, a := range x.args {
		if a == nil {
			args[i] = notGiven{}
		}
	}
	return x.f.apply(r, v, args)
}

func (x *testExpr) eval(r *run) (Value, error) {
	v, err := x.of.eval(r)
	if err != nil {
		return nil, err
	}
	args, err := r.values(x.args)
	if err != nil {
		return nil, err
	}
	return x.check.holds(r, v, args)
}

func (x *namespaceExpr) eval(r *run) (Value, error) {
	values, err := r.values(x.values)
	if err != nil {
		return nil, err
	}
	ns := &namespace{}
	for i, n := range x.names {
		ns.attrs.Set(n, values[i])
	}
	return ns, nil
}

// maxRange is the sandbox's limit on range().
const maxRange = 100_000

func (x *rangeExpr) eval(r *run) (Value, error) {
	args, err := r.values(x.args)
	if err != nil {
		return nil, err
	}
	from, to, step := int64(0), int64(0), int64(1)
	for i, a := range args {
		n, _, isFloat, ok := number(a)
		if !ok || isFloat {
			return nil, fmt.Errorf("%q object cannot be interpreted as an integer", typeName(a))
		}
		switch {
		case len(args) == 1:
			to = n
		default:
			*[]*int64{&from, &to, &step}[i] = n
		}
	}
	if step == 0 {
		return nil, errors.New("range() arg 3 must not be zero")
	}
	l := &List{kind: isRange}
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		if len(l.items) == maxRange {
			return nil, fmt.Errorf("range too big: more than %d", maxRange)
		}
		if err := r.pay(24); err != nil {
			return nil, err
		}
		l.items = append(l.items, i)
		if i > 0 && step > 0 && i+step < i || i < 0 && step < 0 && i+step > i {
			break
		}
	}
	return l, nil
}

func (x *raiseExpr) eval(r *run) (Value, error) {
	v, err := x.message.eval(r)
	if err != nil {
		return nil, err
	}
	text, err := r.str(v)
	if err != nil {
		return nil, err
	}
	return nil, &RaisedError{text}
}
