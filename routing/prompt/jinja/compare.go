package jinja

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
)

// equal is Python's a == b.
func (r *run) equal(a, b Value, depth int) (bool, error) {
	if depth > maxDepth {
		return false, fmt.Errorf("%w: a value is nested too deeply to compare", ErrBudget)
	}
	if err := r.step(); err != nil {
		return false, err
	}
	a, b = plain(a), plain(b)
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
