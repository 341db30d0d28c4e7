package tokenizer

import (
	"sync"
	"unicode/utf8"
)

// class is what the scanners need to know of a character, as a set.
type class uint8

const (
	upper    class = 1 << iota // Lu, Lt
	lower                      // Ll
	caseless                   // Lm, Lo
	mark                       // M
	number                     // N
	symbol                     // P, S
	space                      // White_Space
	cjk                        // what DeepSeek's expression takes for Chinese and Japanese

	letter = upper | lower | caseless
)

// cjks are the code points of the second expression of [deepSeekPattern].
var cjks = []runeRange{{0x3040, 0x30ff}, {0x4e00, 0x9fa5}}

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
	}{{upper, uppers}, {lower, lowers}, {caseless, caselesses}, {mark, marks}, {number, numbers}, {symbol, symbols}, {space, spaces}, {cjk, cjks}}
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
					page[c-lo] |= r.of
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
// not part of valid UTF-8 is a character of no class.
func (t *classTable) at(s string, i int) (class, int) {
	if b := s[i]; b < utf8.RuneSelf {
		return t.pages[0][b], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	if r == utf8.RuneError {
		if n == 1 {
			return 0, 1
		}
	}
	return t.pages[t.page[r>>8]][r&255], n
}

// end is the end of the run of characters at s[i:] that have a class of set.
func (t *classTable) end(s string, i int, set class) int {
	for i < len(s) {
		c, n := t.at(s, i)
		if c&set == 0 {
			break
		}
		i += n
	}
	return i
}

// endOfOthers is the end of the run at s[i:] that have none of set.
func (t *classTable) endOfOthers(s string, i int, set class) int {
	for i < len(s) {
		c, n := t.at(s, i)
		if c&set != 0 {
			break
		}
		i += n
	}
	return i
}
