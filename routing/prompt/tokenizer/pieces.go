package tokenizer

import (
	"math/bits"
	"strings"
	"unicode/utf8"
)

// This file has what differs in the models that came from SentencePiece
// (Gemma): a word starts from characters, not bytes, a character that is not
// in the vocabulary is the tokens of its bytes, and the text is not cut into
// words at all.
//
// Such a file writes a space as U+2581 and its normalizer makes one the other.
// Here it is the other way about, on both sides: tokens are kept with spaces,
// and text has its rare U+2581 replaced. What is one is the other, but text
// need not be copied.

const metaspace = "\u2581"

func fromMetaspace(s string) string { return strings.ReplaceAll(s, metaspace, " ") }

// byteToken is the byte b of a token "<0x0A>".
func byteToken(token string) (b byte, ok bool) {
	if len(token) != 6 || token[:3] != "<0x" || token[5] != '>' {
		return 0, false
	}
	for _, c := range []byte(token[3:5]) {
		d := strings.IndexByte("0123456789ABCDEF", c)
		if d < 0 {
			return 0, false
		}
		b = b<<4 | byte(d)
	}
	return b, true
}

// runeTable is the id of each character that is a token, in pages of 256.
type runeTable [(utf8.MaxRune + 1) >> 8]*[256]uint32

func (t *runeTable) set(r rune, id uint32) {
	if t[r>>8] == nil {
		t[r>>8] = new([256]uint32)
	}
	t[r>>8][r&255] = id + 1
}

func (t *runeTable) get(r rune) (uint32, bool) {
	if page := t[r>>8]; page != nil && page[r&255] != 0 {
		return page[r&255] - 1, true
	}
	return 0, false
}

// seams are the pairs of characters over which a merge can reach: the last of
// one token and the first of another that have a merge. Between two characters
// that are no such pair nothing ever merges, so text may be cut there, and the
// words are short.
type seams struct {
	ascii [128][2]uint64
	slots []uint64 // pairs that are not ASCII, 0 for none
	used  int
}

func (s *seams) add(a, b rune) {
	if a < 128 && b < 128 {
		s.ascii[a][b>>6] |= 1 << (b & 63)
		return
	}
	if 2*s.used >= len(s.slots) {
		old := s.slots
		s.slots = make([]uint64, max(1024, 2*len(old)))
		for _, p := range old {
			if p != 0 {
				*s.slot(p) = p
			}
		}
	}
	p := uint64(a)<<32 | uint64(b)
	if slot := s.slot(p); *slot == 0 {
		*slot = p
		s.used++
	}
}

// each calls f with every pair.
func (s *seams) each(f func(a, b rune)) {
	for a := range s.ascii {
		for b := range 128 {
			if s.has(rune(a), rune(b)) {
				f(rune(a), rune(b))
			}
		}
	}
	for _, p := range s.slots {
		if p != 0 {
			f(rune(p>>32), rune(uint32(p)))
		}
	}
}

func (s *seams) slot(p uint64) *uint64 {
	mask := len(s.slots) - 1
	for i := int((p*0x9e3779b97f4a7c15)>>bits.LeadingZeros64(uint64(mask))) & mask; ; i = (i + 1) & mask {
		if q := &s.slots[i]; *q == 0 || *q == p {
			return q
		}
	}
}

func (s *seams) has(a, b rune) bool {
	if a < 128 && b < 128 {
		return s.ascii[a][b>>6]&(1<<(b&63)) != 0
	}
	return len(s.slots) > 0 && *s.slot(uint64(a)<<32 | uint64(b)) != 0
}

// word is a scanner.
func (s *seams) word(text string, i int) int {
	a, n := decodeRune(text, i)
	i += n
	for i < len(text) {
		b, n := decodeRune(text, i)
		if !s.has(a, b) {
			break
		}
		a = b
		i += n
	}
	return i
}

// noRune stands for a byte that is not part of valid UTF-8. No merge has it,
// since U+10FFFF is no character.
const noRune = utf8.MaxRune

func decodeRune(s string, i int) (rune, int) {
	if b := s[i]; b < utf8.RuneSelf {
		return rune(b), 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	if r == utf8.RuneError && n == 1 {
		return noRune, 1
	}
	return r, n
}

// symbols puts the ids that the word w starts from into ids, which must have
// room for one per byte, and returns how many there are.
func (t *Tokenizer) symbols(ids []uint32, w string) int {
	if t.runes == nil {
		for i := range len(w) {
			ids[i] = t.bytes[w[i]]
		}
		return len(w)
	}
	n := 0
	for i := 0; i < len(w); {
		r, size := decodeRune(w, i)
		if id, ok := t.runes.get(r); ok && r != noRune {
			ids[n] = id
			n++
		} else {
			for j := range size {
				ids[n] = t.bytes[w[i+j]]
				n++
			}
		}
		i += size
	}
	return n
}
