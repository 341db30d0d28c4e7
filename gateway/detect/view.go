package detect

import (
	"bytes"
	"unicode"
	"unicode/utf8"
)

// view is a text as the matchers read it: one byte for each visible character,
// ASCII where the character has a plain form, other otherwise.
type view struct {
	bytes   []byte
	offsets []int // of each byte in the text, with the text's length last; nil: the same
}

// other stands for a character that no detector knows.
const other = 0x80

// offset returns where the character at i begins in the text.
func (v view) offset(i int) int {
	if v.offsets == nil {
		return i
	}
	return v.offsets[i]
}

func normalize(text []byte) view {
	if isPlain(text) {
		return view{bytes: text}
	}
	v := view{
		bytes:   make([]byte, 0, len(text)),
		offsets: make([]int, 0, len(text)+1),
	}
	for i := 0; i < len(text); {
		r, size := decodeRune(text[i:])
		if b, visible := plainByte(r); visible {
			v.bytes = append(v.bytes, b)
			v.offsets = append(v.offsets, i)
		}
		i += size
	}
	v.offsets = append(v.offsets, len(text))
	return v
}

// isPlain reports whether text is its own view.
func isPlain(text []byte) bool {
	for _, b := range text {
		if b >= utf8.RuneSelf {
			return false
		}
	}
	return !bytes.Contains(text, []byte(`\u`))
}

// decodeRune reads one character, which may be written as \uXXXX.
func decodeRune(text []byte) (rune, int) {
	if len(text) >= 6 && text[0] == '\\' && text[1] == 'u' {
		if r, ok := hex4(text[2:6]); ok {
			return r, 6
		}
	}
	return utf8.DecodeRune(text)
}

func hex4(digits []byte) (r rune, ok bool) {
	for _, d := range digits {
		var n rune
		switch {
		case '0' <= d && d <= '9':
			n = rune(d - '0')
		case 'a' <= d|0x20 && d|0x20 <= 'f':
			n = rune(d|0x20-'a') + 10
		default:
			return 0, false
		}
		r = r<<4 | n
	}
	return r, true
}

// plainByte maps a character to its plain form; visible is false for those that
// show nothing.
func plainByte(r rune) (b byte, visible bool) {
	switch {
	case r < utf8.RuneSelf:
		return byte(r), true
	case r == '\u00A0':
		return ' ', true
	case r == '\u00AD': // soft hyphen
		return 0, false
	case r < 0x300, r >= 0x3041 && r <= 0x9FFF, r >= 0xAC00 && r <= 0xD7A3:
		return other, true // Latin, kana, Han and Hangul, which need no look-up
	case r >= 0xFF01 && r <= 0xFF5E: // full-width ASCII
		return byte(r - 0xFF01 + '!'), true
	case unicode.Is(unicode.Cf, r), unicode.Is(unicode.Mn, r), unicode.Is(unicode.Me, r):
		return 0, false
	case unicode.Is(unicode.Nd, r):
		return '0' + digitValue(r), true
	case unicode.Is(unicode.Zs, r):
		return ' ', true
	case unicode.Is(unicode.Pd, r), r == '\u2212':
		return '-', true
	}
	return other, true
}

// digitValue of a character in Nd: Unicode lays decimal digits out in runs of
// ten from zero, except that the mathematical ones follow each other directly,
// starting at a multiple of ten from the first.
func digitValue(r rune) byte {
	if r >= 0x1D7CE && r <= 0x1D7FF {
		return byte((r - 0x1D7CE) % 10)
	}
	n := byte(0)
	for n < 9 && unicode.Is(unicode.Nd, r-rune(n)-1) {
		n++
	}
	return n
}
