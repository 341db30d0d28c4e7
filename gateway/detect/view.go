package detect

import "unicode/utf8"

// view is a text as the matchers read it: one byte for each visible character,
// ASCII where the character has a plain form, other otherwise. A long text is
// seen through a window that moves along it.
type view struct {
	bytes   []byte
	offsets []int // of each byte in the text, with where the window ends last; nil: the same
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

// The window: matches are tried in its middle, and look neither further behind
// nor further ahead than its margins.
const (
	behind = 256
	step   = 64 << 10
	ahead  = 4 * mostJWT
)

// views calls see with windows over text: the places from begin to end are to
// be tried. moved is by how many places the view was shifted since the last.
func views(text []byte, see func(v view, begin, end, moved int)) {
	if isPlain(text) {
		see(view{bytes: text}, 0, len(text), 0)
		return
	}
	size := min(len(text), behind+step+ahead)
	v := view{bytes: make([]byte, 0, size), offsets: make([]int, 0, size+1)}
	for pos, begin, moved := 0, 0, 0; ; {
		for pos < len(text) && len(v.bytes) < size {
			r, n := decodeRune(text[pos:])
			if b, visible := plainByte(r); visible {
				v.bytes = append(v.bytes, b)
				v.offsets = append(v.offsets, pos)
			}
			pos += n
		}
		v.offsets = append(v.offsets, pos)
		if pos == len(text) {
			see(v, begin, len(v.bytes), moved)
			return
		}
		end := len(v.bytes) - ahead
		see(v, begin, end, moved)
		moved, begin = end-behind, behind
		v.offsets = append(v.offsets[:0], v.offsets[moved:len(v.bytes)]...)
		v.bytes = append(v.bytes[:0], v.bytes[moved:]...)
	}
}

// isPlain reports whether text is its own view.
func isPlain(text []byte) bool {
	for i, b := range text {
		if b >= utf8.RuneSelf {
			return false
		}
		if b == '\\' || b == '&' || b == '%' {
			if _, _, ok := escape(text[i:]); ok {
				return false
			}
		}
	}
	return true
}

// decodeRune reads one character, which may be written as an escape.
func decodeRune(text []byte) (rune, int) {
	if r, size, ok := escape(text); ok {
		return r, size
	}
	return utf8.DecodeRune(text)
}

// escape reads \uXXXX, &#52; &#x34; &nbsp; or %34 at the start of text. Of the
// last, only characters that a detector looks for are taken: in prose, % is a
// percent sign.
func escape(text []byte) (r rune, size int, ok bool) {
	switch {
	case text[0] == '\\' && len(text) >= 6 && text[1] == 'u':
		r, ok = hexadecimal(text[2:6])
		return r, 6, ok
	case text[0] == '%' && len(text) >= 3:
		r, ok = hexadecimal(text[1:3])
		return r, 3, ok && r < utf8.RuneSelf && (isAlnum(byte(r)) || isSeparator(byte(r)) || r == '@')
	case text[0] == '&' && len(text) >= 4:
		return entity(text)
	}
	return 0, 0, false
}

const (
	nonBreaking = "&nbsp;"
	maxEntity   = 12 // bytes, with some leading zeros
)

func entity(text []byte) (r rune, size int, ok bool) {
	if hasFold(text, 0, nonBreaking) {
		return ' ', len(nonBreaking), true
	}
	if text[1] != '#' {
		return 0, 0, false
	}
	i, base := 2, rune(10)
	if text[2]|0x20 == 'x' {
		i, base = 3, 16
	}
	first := i
	for ; i < len(text) && i < maxEntity; i++ {
		d, isHex := hexDigit(text[i])
		if !isHex || d >= base {
			break
		}
		r = r*base + d
	}
	if i == first || r > utf8.MaxRune {
		return 0, 0, false
	}
	if at(text, i) == ';' {
		i++
	}
	return r, i, true
}

func hexadecimal(digits []byte) (r rune, ok bool) {
	for _, b := range digits {
		d, ok := hexDigit(b)
		if !ok {
			return 0, false
		}
		r = r<<4 | d
	}
	return r, true
}

func hexDigit(b byte) (rune, bool) {
	switch {
	case isDigit(b):
		return rune(b - '0'), true
	case 'a' <= b|0x20 && b|0x20 <= 'f':
		return rune(b|0x20-'a') + 10, true
	}
	return 0, false
}
