package format

import (
	"strconv"

	"github.com/sallyport-ai/sallyport/audit"
)

// The parts of an object. Each adds a name, with the punctuation around it, and
// a value; those of opt… add nothing for an empty value.

func text[S ~string](b []byte, name string, s S) []byte {
	return audit.AppendText(append(b, name...), s)
}

func optText(b []byte, name, s string) []byte {
	if s == "" {
		return b
	}
	return text(b, name, s)
}

func num[N int | int64 | uint64](b []byte, name string, n N) []byte {
	if b = append(b, name...); n < 0 {
		return strconv.AppendInt(b, int64(n), 10)
	}
	return strconv.AppendUint(b, uint64(n), 10)
}

func optNum[N int | int64](b []byte, name string, n N) []byte {
	if n == 0 {
		return b
	}
	return num(b, name, n)
}

func boolean(b []byte, name string, is bool) []byte {
	return strconv.AppendBool(append(b, name...), is)
}

func texts(b []byte, name string, list []string) []byte {
	b = append(b, name...)
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = audit.AppendText(b, s)
	}
	return append(b, ']')
}

// opt adds an object that may be missing.
func opt[T any](b []byte, name string, v *T, add func(*T, []byte) []byte) []byte {
	if v == nil {
		return b
	}
	return add(v, append(b, name...))
}

func optList[T any](b []byte, name string, list []T, add func(*T, []byte) []byte) []byte {
	if len(list) == 0 {
		return b
	}
	b = append(b, name...)
	for i := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = add(&list[i], b)
	}
	return append(b, ']')
}

// fieldsFrom makes one of the fields from there on, each of which has a comma before
// it: for objects none of whose fields is always there.
func fieldsFrom(b []byte, from int) []byte {
	if len(b) == from {
		return append(b, "{}"...)
	}
	b[from] = '{'
	return append(b, '}')
}
