package wire

import (
	"bytes"
	"strconv"
)

// Bounds on what a body may hold. Every value and every message costs memory
// that has nothing to do with its length, so bytes alone bound nothing: a body
// of {} after {} would take a hundred times its size.
const (
	maxValues  = 100_000 // JSON values
	maxEntries = 10_000  // of messages, items, parts, calls, documents and prompts, of each in all
)

// count refuses a body of too many values before anything is made of it. It
// reads only strings and punctuation; whether they are JSON the decoder says.
func count(body []byte) error {
	var last, field []byte // strings of the outermost object
	values, depth := 0, 0
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '"':
			end := stringEnd(body, i)
			if depth == 1 {
				last = body[i:end]
			}
			i = end - 1
			continue
		case ':':
			if depth == 1 {
				field = last
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
			continue
		case ',':
		default:
			continue
		}
		if values++; values > maxValues {
			return invalid(string(bytes.Trim(field, `"`)), "the body holds more than "+strconv.Itoa(maxValues)+" values")
		}
	}
	return nil
}

// stringEnd returns what is past the string that begins at i.
func stringEnd(body []byte, i int) int {
	for first := i + 1; ; {
		quote := bytes.IndexByte(body[i+1:], '"')
		if quote < 0 {
			return len(body)
		}
		i += 1 + quote
		escapes := 0
		for i-escapes > first && body[i-escapes-1] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i + 1
		}
	}
}

// another counts one more entry of a kind.
func another(n *int, param string) error {
	if *n++; *n > maxEntries {
		return invalid(param, "at most "+strconv.Itoa(maxEntries)+" are taken")
	}
	return nil
}
