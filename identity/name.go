package identity

import (
	"strings"
	"unicode"
)

// maxName bounds a name, in bytes.
const maxName = 512

// IsName reports whether s is a name that records and policies can hold:
// bounded, not empty, nothing unprintable.
func IsName(s string) bool {
	return s != "" && len(s) <= maxName && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// IsIdentifier reports whether s is short printable ASCII without spaces.
func IsIdentifier(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
