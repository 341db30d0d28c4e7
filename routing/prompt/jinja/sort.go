package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// mapExpr is map with a filter.
type mapExpr struct {
	of   expr
	f    filter
	args []expr
}

func (x *mapExpr) eval(r *run) (Value, error) {
	v, args, err := r.filtered(x.of, x.args)
	if err != nil {
		return nil, err
	}
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	out := &List{kind: isGenerator}
	for _, item := range items {
		if err := errors.Join(r.pay(16), r.step(), unmarked(item, "a filter")); err != nil {
			return nil, err
		}
		y, err := x.f.apply(r, item, args)
		if err != nil {
			return nil, err
		}
		out.items = append(out.items, y)
	}
	return out, nil
}

// sorted sorts items by keys as Python's sorted does, which only asks whether
// one key is less than another. fold compares strings in lower case.
func (r *run) sorted(items, keys []Value, fold, reverse bool) ([]Value, error) {
	if err := r.pay(64 * len(items)); err != nil {
		return nil, err
	}
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
		if s, ok := keys[i].(string); ok && fold {
			if err := r.pay(3 * len(s)); err != nil {
				return nil, err
			}
			keys[i] = lower(s)
		}
	}
	var failed error
	slices.SortStableFunc(order, func(i, j int) int {
		if failed != nil {
			return 0
		}
		c, err := r.order(keys[i], keys[j])
		failed = err
		if reverse {
			return -c
		}
		return c
	})
	if failed != nil {
		return nil, failed
	}
	out := make([]Value, len(items))
	for i, at := range order {
		out[i] = items[at]
	}
	return out, nil
}

// order compares as a list of one would be: equal first.
func (r *run) order(a, b Value) (int, error) {
	if err := errors.Join(unmarked(a, "sorting"), unmarked(b, "sorting")); err != nil {
		return 0, err
	}
	if same, err := r.equal(a, b, 0); same || err != nil {
		return 0, err
	}
	c, ordered, err := r.compare(a, b)
	if err == nil && !ordered {
		err = fmt.Errorf("%w: sorting NaN", ErrUnsupported)
	}
	return c, err
}

func filterSort(r *run, v Value, args []Value) (Value, error) {
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	keys := slices.Clone(items)
	if by := given(args[2], nil); by != nil {
		if s, ok := by.(string); !ok || strings.Contains(s, ",") {
			return nil, fmt.Errorf("%w: sort by this attribute", ErrUnsupported)
		}
		for i := range keys {
			if keys[i], err = r.path(items[i], by); err != nil {
				return nil, err
			}
		}
	}
	items, err = r.sorted(items, keys, !truth(given(args[1], false)), truth(given(args[0], false)))
	return &List{items: items}, err
}

func filterDictsort(r *run, v Value, args []Value) (Value, error) {
	d, ok := v.(*Dict)
	if !ok {
		if u, ok := v.(undefined); ok {
			return nil, u.err()
		}
		return nil, fmt.Errorf("%q object has no attribute 'items'", typeName(v))
	}
	by := given(args[1], "key")
	if by != "key" && by != "value" {
		return nil, errors.New(`you can only sort by either "key" or "value"`)
	}
	pairs, err := r.pairs(d, isList)
	if err != nil {
		return nil, err
	}
	keys := make([]Value, d.Len())
	for i, k := range d.keys {
		if keys[i] = k; by == "value" {
			keys[i] = d.values[i]
		}
	}
	items, err := r.sorted(pairs.items, keys, !truth(given(args[0], false)), truth(given(args[2], false)))
	return &List{items: items}, err
}

// numeral is a Python numeral without its white space and underscores.
func numeral(s string) (string, error) {
	s = Strip(s, true, true)
	if !ascii(s) {
		return "", fmt.Errorf("%w: numeral that is not ASCII", ErrUnsupported)
	}
	for i := range len(s) {
		if s[i] == '_' && (i == 0 || i+1 == len(s) || !alphanumeric(s[i-1]) || !alphanumeric(s[i+1])) {
			return "", strconv.ErrSyntax
		}
	}
	return strings.ReplaceAll(s, "_", ""), nil
}

func alphanumeric(b byte) bool {
	return b >= '0' && b <= '9' || b|0x20 >= 'a' && b|0x20 <= 'z'
}

// parseFloat is Python's float(s).
func parseFloat(s string) (float64, error) {
	n, err := numeral(s)
	if err != nil {
		return 0, err
	}
	if strings.ContainsAny(n, "xXpP") {
		return 0, strconv.ErrSyntax
	}
	f, err := strconv.ParseFloat(n, 64)
	if errors.Is(err, strconv.ErrRange) {
		err = nil // infinite, as in Python
	}
	return f, err
}

func filterFloat(_ *run, v Value, args []Value) (Value, error) {
	switch x := v.(type) {
	case undefined:
		return nil, x.err()
	case string:
		f, err := parseFloat(x)
		switch {
		case errors.Is(err, ErrUnsupported):
			return nil, err
		case err != nil:
			return given(args[0], 0.0), nil
		}
		return f, nil
	}
	if i, f, isFloat, ok := number(v); ok {
		if isFloat {
			return f, nil
		}
		return float64(i), nil
	}
	return given(args[0], 0.0), nil
}

func filterInt(_ *run, v Value, args []Value) (Value, error) {
	base, ok := given(args[1], int64(10)).(int64)
	if !ok || base != 10 && base != 16 {
		return nil, fmt.Errorf("%w: int with this base", ErrUnsupported)
	}
	switch x := v.(type) {
	case undefined:
		return nil, x.err()
	case string:
		return intOf(x, int(base), given(args[0], int64(0)))
	}
	if i, f, isFloat, ok := number(v); ok {
		if isFloat {
			return truncated(f)
		}
		return i, nil
	}
	return given(args[0], int64(0)), nil
}

// intOf is int(s, base), else int(float(s)), else otherwise.
func intOf(s string, base int, otherwise Value) (Value, error) {
	n, err := numeral(s)
	if errors.Is(err, ErrUnsupported) {
		return nil, err
	}
	if base == 16 {
		sign := strings.TrimRight(n[:min(len(n), 1)], "0123456789abcdefABCDEFxX")
		rest := n[len(sign):]
		if len(rest) > 2 && (rest[:2] == "0x" || rest[:2] == "0X") {
			n = sign + rest[2:]
		}
	}
	if err == nil {
		i, err := strconv.ParseInt(n, base, 64)
		if errors.Is(err, strconv.ErrRange) {
			return nil, errOverflow
		}
		if err == nil {
			return i, nil
		}
	}
	f, err := parseFloat(s)
	switch {
	case errors.Is(err, ErrUnsupported):
		return nil, err
	case err != nil:
		return otherwise, nil
	}
	return truncated(f)
}

// truncated is int(f).
func truncated(f float64) (Value, error) {
	if !(f > -1<<63 && f < 1<<63) {
		return nil, errOverflow
	}
	return int64(f), nil
}

func filterCapitalize(r *run, v Value, _ []Value) (Value, error) {
	s, err := r.str(v)
	if err != nil {
		return nil, err
	}
	if !ascii(s) {
		return nil, fmt.Errorf("%w: capitalize of what is not ASCII", ErrUnsupported)
	}
	if err := r.pay(2 * len(s)); err != nil || s == "" {
		return s, err
	}
	return strings.ToUpper(s[:1]) + strings.ToLower(s[1:]), nil
}

func filterFormat(r *run, v Value, args []Value) (Value, error) {
	s, err := r.str(v)
	if err != nil {
		return nil, err
	}
	return r.format(s, args)
}

func filterSafe(r *run, v Value, _ []Value) (Value, error) {
	s, err := r.str(v)
	return markup(s), err
}
