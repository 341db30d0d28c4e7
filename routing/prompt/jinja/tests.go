package jinja

import "errors"

// test is one entry of the table of what may follow is.
type test struct {
	args  int
	holds func(r *run, v Value, args []Value) (Value, error)
}

var tests = map[string]test{
	"==":        {1, isEqual},
	"boolean":   {0, kindTest(func(v Value) bool { _, ok := v.(bool); return ok })},
	"defined":   {0, kindTest(func(v Value) bool { _, ok := v.(undefined); return !ok })},
	"eq":        {1, isEqual},
	"equalto":   {1, isEqual},
	"even":      {0, parity(0)},
	"false":     {0, kindTest(func(v Value) bool { return v == false })},
	"float":     {0, kindTest(func(v Value) bool { _, ok := v.(float64); return ok })},
	"in":        {1, func(r *run, v Value, args []Value) (Value, error) { return r.contains(args[0], v) }},
	"integer":   {0, kindTest(func(v Value) bool { _, ok := v.(int64); return ok })},
	"iterable":  {0, kindTest(isIterable)},
	"mapping":   {0, kindTest(func(v Value) bool { _, ok := v.(*Dict); return ok })},
	"ne":        {1, isNotEqual},
	"none":      {0, kindTest(func(v Value) bool { return v == nil })},
	"number":    {0, kindTest(func(v Value) bool { _, _, _, ok := number(v); return ok })},
	"odd":       {0, parity(1)},
	"sequence":  {0, kindTest(isSequence)},
	"string":    {0, kindTest(func(v Value) bool { _, ok := v.(string); return ok })},
	"true":      {0, kindTest(func(v Value) bool { return v == true })},
	"undefined": {0, kindTest(func(v Value) bool { _, ok := v.(undefined); return ok })},
}

func kindTest(f func(Value) bool) func(*run, Value, []Value) (Value, error) {
	return func(_ *run, v Value, _ []Value) (Value, error) { return f(v), nil }
}

func isEqual(r *run, v Value, args []Value) (Value, error) { return r.equal(v, args[0], 0) }

func isNotEqual(r *run, v Value, args []Value) (Value, error) {
	same, err := r.equal(v, args[0], 0)
	return !same, err
}

func isIterable(v Value) bool {
	switch v.(type) {
	case string, *List, *Dict, undefined, *loop:
		return true
	}
	return false
}

// isSequence is true of what has a length and an index operator, as Python
// looks for them; an undefined value has both, to raise when they are used.
func isSequence(v Value) bool {
	switch v := v.(type) {
	case string, *Dict, undefined:
		return true
	case *List:
		return v.kind <= isRange
	}
	return false
}

func parity(want int64) func(*run, Value, []Value) (Value, error) {
	return func(_ *run, v Value, _ []Value) (Value, error) {
		m, err := (&run{}).binary("%", v, int64(2))
		if err != nil {
			return nil, err
		}
		c, _ := compareNumbers(m, want)
		if _, _, _, ok := number(m); !ok {
			return nil, errors.New("odd and even want a number")
		}
		return c == 0, nil
	}
}
