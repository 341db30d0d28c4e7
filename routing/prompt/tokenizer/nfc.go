package tokenizer

import (
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// nfc is NFC as the tokenizers library computes it, which differs from x/text
// in two ways: its Unicode tables are older (see inert), and it has no limit
// on the length of a run of combining marks, where x/text inserts a U+034F.
// So x/text answers the common question, whether s is NFC already, and lends
// its tables.
func nfc(s string) string {
	n := norm.NFC.QuickSpanString(s)
	if n == len(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + 8)
	for {
		b.WriteString(s[:n])
		if s = s[n:]; s == "" {
			return b.String()
		}
		// An ASCII character never changes by what stands before it.
		end := 1
		for end < len(s) && s[end] >= utf8.RuneSelf {
			end++
		}
		appendNFC(&b, s[:end])
		s = s[end:]
		n = norm.NFC.QuickSpanString(s)
	}
}

// appendNFC appends the NFC of s, character by character.
func appendNFC(b *strings.Builder, s string) {
	var run []rune // since the last boundary nothing crosses
	flush := func() {
		for _, r := range compose(reorder(run)) {
			b.WriteRune(r)
		}
		run = run[:0]
	}
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1: // not UTF-8: kept as it is
			flush()
			b.WriteByte(s[i])
		case in(inert, r):
			flush()
			b.WriteRune(r)
		default:
			p := norm.NFC.PropertiesString(s[i : i+n])
			if p.BoundaryBefore() {
				flush()
			}
			run = appendDecomposed(run, s[i:i+n], r)
		}
		i += n
	}
	flush()
}

func in(ranges []runeRange, r rune) bool {
	_, found := slices.BinarySearchFunc(ranges, r, func(rr runeRange, r rune) int {
		switch {
		case rr.hi < r:
			return -1
		case rr.lo > r:
			return 1
		}
		return 0
	})
	return found
}

func appendDecomposed(run []rune, s string, r rune) []rune {
	if d := norm.NFD.PropertiesString(s).Decomposition(); len(d) > 0 {
		return append(run, []rune(string(d))...)
	}
	return append(run, r)
}

func combiningClass(r rune) uint8 {
	if r < 0x300 {
		return 0
	}
	var buf [utf8.UTFMax]byte
	return norm.NFD.Properties(buf[:utf8.EncodeRune(buf[:], r)]).CCC()
}

// reorder puts each run of combining marks into canonical order, in place.
func reorder(run []rune) []rune {
	for i := 0; i < len(run); {
		j := i
		for j < len(run) && combiningClass(run[j]) > 0 {
			j++
		}
		if j-i > 1 {
			slices.SortStableFunc(run[i:j], func(a, b rune) int {
				return int(combiningClass(a)) - int(combiningClass(b))
			})
		}
		i = j + 1
	}
	return run
}

// compose is the canonical composition algorithm (Unicode 3.11, D117) on
// decomposed, ordered runes, in place.
func compose(run []rune) []rune {
	out := run[:0]
	starter := -1       // index in out
	var last int16 = -1 // class of the last rune kept after starter, -1 if none
	for _, r := range run {
		class := int16(combiningClass(r))
		if starter >= 0 && last < class {
			if c, ok := pair(out[starter], r); ok {
				out[starter] = c
				continue
			}
		}
		if class == 0 {
			starter = len(out)
			last = -1
		} else {
			last = class
		}
		out = append(out, r)
	}
	return out
}

// pair composes two runes, if they compose.
func pair(a, b rune) (rune, bool) {
	var buf [2 * utf8.UTFMax]byte
	p := utf8.AppendRune(utf8.AppendRune(buf[:0], a), b)
	q := norm.NFC.Bytes(p)
	r, n := utf8.DecodeRune(q)
	if n != len(q) || in(inert, r) {
		return 0, false
	}
	return r, true
}
