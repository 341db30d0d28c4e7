package wire

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// foldSet holds the names of one object, equal under simple Unicode case
// folding. Most objects have few names, so it starts as a list.
type foldSet struct {
	list []string
	set  map[string]struct{}
}

const foldListMax = 12

func (s *foldSet) size() int { return max(len(s.list), len(s.set)) }

// add reports whether name is new.
func (s *foldSet) add(name string) bool {
	if s.set != nil {
		return s.insert(name)
	}
	for _, have := range s.list {
		if strings.EqualFold(have, name) {
			return false
		}
	}
	s.list = append(s.list, name)
	if len(s.list) > foldListMax {
		s.set = make(map[string]struct{}, 2*len(s.list))
		for _, have := range s.list {
			s.insert(have)
		}
	}
	return true
}

func (s *foldSet) insert(name string) bool {
	key := foldKey(name)
	_, have := s.set[key]
	s.set[key] = struct{}{}
	return !have
}

// foldKey maps names that strings.EqualFold calls equal to the same key: each
// rune becomes the smallest of its orbit, or for ASCII the lower-case letter's
// orbit minimum, which is the upper-case letter.
func foldKey(name string) string {
	var b strings.Builder
	b.Grow(len(name))
	for _, r := range name {
		b.WriteRune(foldRune(r))
	}
	return b.String()
}

func foldRune(r rune) rune {
	if r < utf8.RuneSelf {
		if 'a' <= r && r <= 'z' {
			return r - ('a' - 'A')
		}
		return r
	}
	least := r
	for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
		least = min(least, next)
	}
	return least
}
