package jinja

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"strings"
)

var errOverflow = fmt.Errorf("%w: integer beyond 64 bits", ErrUnsupported)

// sign is +v or -v.
func sign(o string, v Value) (Value, error) {
	if u, ok := v.(undefined); ok {
		return nil, u.err()
	}
	i, f, isFloat, ok := number(v)
	switch {
	case !ok:
		return nil, fmt.Errorf("bad operand type for unary %s: %q", o, typeName(v))
	case isFloat && o == "-":
		return -f, nil
	case isFloat:
		return f, nil
	case o == "+":
		return i, nil
	case i == math.MinInt64:
		return nil, errOverflow
	}
	return -i, nil
}

// binary is a op b for the operators that make a new value.
func (r *run) binary(o string, a, b Value) (Value, error) {
	if o == "~" {
		return r.concat(a, b)
	}
	if unmarked(a, o) != nil || unmarked(b, o) != nil {
		if o == "+" {
			return r.addMarkup(a, b)
		}
		return nil, fmt.Errorf("%w: %s of what was marked safe", ErrUnsupported, o)
	}
	if u, ok := firstUndefined(a, b); ok {
		return nil, u.err()
	}
	ai, af, aFloat, okA := number(a)
	bi, bf, bFloat, okB := number(b)
	switch {
	case !okA || !okB:
		return r.sequence(o, a, b)
	case aFloat || bFloat:
		if !aFloat {
			af = float64(ai)
		}
		if !bFloat {
			bf = float64(bi)
		}
		return floats(o, af, bf)
	}
	return integers(o, ai, bi)
}

func (r *run) concat(a, b Value) (Value, error) {
	x, err := r.str(a)
	if err != nil {
		return nil, err
	}
	y, err := r.str(b)
	if err != nil {
		return nil, err
	}
	if err := r.pay(len(x) + len(y)); err != nil {
		return nil, err
	}
	return x + y, nil
}

// sequence is a op b where not both are numbers.
func (r *run) sequence(o string, a, b Value) (Value, error) {
	switch o {
	case "+":
		if x, ok := a.(string); ok {
			if y, ok := b.(string); ok {
				return r.concat(x, y)
			}
		}
		x, okX := a.(*List)
		y, okY := b.(*List)
		if okX && okY && x.kind == y.kind && x.kind <= isTuple {
			if err := r.pay(16 * (len(x.items) + len(y.items))); err != nil {
				return nil, err
			}
			return &List{items: append(x.items[:len(x.items):len(x.items)], y.items...), kind: x.kind}, nil
		}
	case "*":
		if _, _, isFloat, ok := number(a); ok && !isFloat {
			a, b = b, a
		}
		if n, _, isFloat, ok := number(b); ok && !isFloat {
			return r.repeat(a, n)
		}
	case "%":
		if s, ok := a.(string); ok {
			if t, ok := b.(*List); ok && t.kind == isTuple {
				return r.format(s, t.items)
			}
			if _, isDict := b.(*Dict); isDict {
				return nil, fmt.Errorf("%w: %% of a dict", ErrUnsupported)
			}
			return r.format(s, []Value{b})
		}
	}
	return nil, fmt.Errorf("unsupported operand types for %s: %q and %q", o, typeName(a), typeName(b))
}

func (r *run) repeat(v Value, n int64) (Value, error) {
	n = max(n, 0)
	size := 1
	switch v := v.(type) {
	case string:
		size = len(v)
	case *List:
		size = 16 * len(v.items)
	}
	if hi, lo := bits.Mul64(uint64(size), uint64(n)); hi != 0 || lo > math.MaxInt32 {
		return nil, fmt.Errorf("%w: too many bytes", ErrBudget)
	}
	if err := r.pay(size * int(n)); err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case string:
		return strings.Repeat(v, int(n)), nil
	case *List:
		if v.kind <= isTuple {
			out := &List{kind: v.kind}
			for len(v.items) > 0 && len(out.items) < len(v.items)*int(n) {
				out.items = append(out.items, v.items...)
			}
			return out, nil
		}
	}
	return nil, fmt.Errorf("unsupported operand types for *: %q and int", typeName(v))
}

func integers(o string, a, b int64) (Value, error) {
	switch o {
	case "+":
		c := a + b
		if (c > a) != (b > 0) && b != 0 {
			return nil, errOverflow
		}
		return c, nil
	case "-":
		c := a - b
		if (c < a) != (b > 0) && b != 0 {
			return nil, errOverflow
		}
		return c, nil
	case "*":
		c := new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
		if !c.IsInt64() {
			return nil, errOverflow
		}
		return c.Int64(), nil
	}
	if b == 0 {
		return nil, errors.New("division by zero")
	}
	if o == "/" {
		f, _ := new(big.Rat).SetFrac(big.NewInt(a), big.NewInt(b)).Float64()
		if a == 0 && b < 0 {
			f = math.Copysign(0, -1)
		}
		return f, nil
	}
	q, m := a/b, a%b
	if m != 0 && (m < 0) != (b < 0) {
		q, m = q-1, m+b
	}
	if o == "%" {
		return m, nil
	}
	if a == math.MinInt64 && b == -1 {
		return nil, errOverflow
	}
	return q, nil
}

func floats(o string, a, b float64) (Value, error) {
	switch o {
	case "+":
		return a + b, nil
	case "-":
		return a - b, nil
	case "*":
		return a * b, nil
	}
	if b == 0 {
		return nil, errors.New("float division by zero")
	}
	if o == "/" {
		return a / b, nil
	}
	// As CPython's float_divmod.
	m := math.Mod(a, b)
	q := (a - m) / b
	if m != 0 {
		if (b < 0) != (m < 0) {
			m += b
			q--
		}
	} else {
		m = math.Copysign(0, b)
	}
	if o == "%" {
		return m, nil
	}
	if q == 0 {
		return math.Copysign(0, a/b), nil
	}
	f := math.Floor(q)
	if q-f > 0.5 {
		f++
	}
	return f, nil
}
