package tokenizer

import (
	"sync"
	"unicode/utf8"
)

// class is what the scanner needs to know of a character.
type class uint8

const (
	other class = iota
	letter
	number
	space
)

type runeRange struct{ lo, hi rune }

// classTable holds the class of every code point in pages of 256, equal pages
// shared.
type classTable struct {
	page  [(utf8.MaxRune + 1) >> 8]uint16
	pages [][256]class
}

// classes unfolds the generated ranges once; looking a rune up in the result
// costs two loads, where a search in the ranges would cost ten.
var classes = sync.OnceValue(func() *classTable {
	t := &classTable{}
	seen := map[[256]class]uint16{}
	ranges := [...]struct {
		of   class
		left []runeRange
	}{{of: letter, left: letters}, {of: number, left: numbers}, {of: space, left: spaces}}
	for p := range t.page {
		var page [256]class
		lo := rune(p) << 8
		for i := range ranges {
			r := &ranges[i]
			for len(r.left) > 0 && r.left[0].hi < lo {
				r.left = r.left[1:]
			}
			for _, rr := range r.left {
				if rr.lo > lo+255 {
					break
				}
				for c := max(rr.lo, lo); c <= min(rr.hi, lo+255); c++ {
					page[c-lo] = r.of
				}
			}
		}
		n, ok := seen[page]
		if !ok {
			n = uint16(len(t.pages))
			seen[page] = n
			t.pages = append(t.pages, page)
		}
		t.page[p] = n
	}
	return t
})

// at is the class and width in bytes of the character at s[i:]. A byte that is
// not part of valid UTF-8 is a character of class other.
func (t *classTable) at(s string, i int) (class, int) {
	if b := s[i]; b < utf8.RuneSelf {
		return t.pages[0][b], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	if r == utf8.RuneError {
		return other, n
	}
	return t.pages[t.page[r>>8]][r&255], n
}
