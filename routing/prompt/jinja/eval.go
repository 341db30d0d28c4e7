package jinja

import (
	"errors"
	"fmt"
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
	a, b = plain(a), plain(b)
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

// applied is what a method, a filter or a test is applied to, and the arguments.
func (r *run) applied(of expr, to []expr) (v Value, args []Value, err error) {
	if v, err = of.eval(r); err != nil {
		return nil, nil, err
	}
	args, err = r.values(to)
	return v, args, err
}

// filtered is applied for a filter, which has an argument for each parameter.
func (r *run) filtered(of expr, to []expr) (v Value, args []Value, err error) {
	if v, args, err = r.applied(of, to); err != nil {
		return nil, nil, err
	}
	for i, a := range to {
		if a == nil {
			args[i] = notGiven{}
		}
	}
	return v, args, nil
}

func (x *callExpr) eval(r *run) (Value, error) {
	v, args, err := r.applied(x.of, x.args)
	if err != nil {
		return nil, err
	}
	if u, ok := v.(undefined); ok {
		return nil, u.err()
	}
	if err := unmarkedAll(v, args, "a method"); err != nil {
		return nil, err
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
	v, args, err := r.filtered(x.of, x.args)
	if err != nil {
		return nil, err
	}
	if err := unmarkedAll(v, args, "a filter"); err != nil {
		return nil, err
	}
	return x.f.apply(r, v, args)
}

func (x *testExpr) eval(r *run) (Value, error) {
	v, args, err := r.applied(x.of, x.args)
	if err != nil {
		return nil, err
	}
	return x.check.holds(r, plain(v), args)
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
