package policy

import (
	"cmp"
	"fmt"
	"strings"
	"unicode"
)

// unversioned is the revision of a bundle without a manifest.
const unversioned = "unversioned"

// refuseOlder compares a bundle with the newest one known. Taking a signed but
// older bundle would let whoever can serve files undo a policy change.
func refuseOlder(next, newest string) error {
	if newest == "" || newest == unversioned {
		return nil
	}
	if next == unversioned {
		return fmt.Errorf("bundle has no revision, but %s was active", newest)
	}
	if compareRevisions(next, newest) < 0 {
		return fmt.Errorf("bundle revision %s is older than %s", next, newest)
	}
	return nil
}

// compareRevisions compares part by part, numbers as numbers: 9 < 10,
// 2026.11.30 < 2026.12.1, 7 < 7.1.
func compareRevisions(a, b string) int {
	as, bs := revisionParts(a), revisionParts(b)
	for i := range min(len(as), len(bs)) {
		if c := comparePart(as[i], bs[i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(as), len(bs))
}

func revisionParts(r string) []string {
	return strings.FieldsFunc(r, func(c rune) bool { return !unicode.IsLetter(c) && !unicode.IsDigit(c) })
}

func comparePart(a, b string) int {
	if isNumber(a) && isNumber(b) {
		a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	}
	return strings.Compare(a, b)
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
