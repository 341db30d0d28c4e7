package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// byteRune is the printable character that stands for byte b in the
// vocabulary of a byte-level model: itself where Latin-1 prints it, else
// U+0100 onwards in order.
func byteRune(b byte) rune {
	switch {
	case b <= ' ':
		return 0x100 + rune(b)
	case b < 0x7f, b > 0xa0 && b != 0xad:
		return rune(b)
	case b == 0xad:
		return 0x143
	}
	return 0x121 + rune(b) - 0x7f
}

// ByteLevel spells the bytes of s as a byte-level vocabulary does.
func ByteLevel(s string) string {
	var b strings.Builder
	for i := range len(s) {
		b.WriteRune(byteRune(s[i]))
	}
	return b.String()
}

// fromByteLevel undoes ByteLevel. It reports false for a token with a
// character that stands for no byte.
func fromByteLevel(token string) (string, bool) {
	out := make([]byte, 0, len(token))
	for _, r := range token {
		b, ok := runeByte(r)
		if !ok {
			return "", false
		}
		out = append(out, b)
	}
	return string(out), true
}

func runeByte(r rune) (byte, bool) {
	switch {
	case r == utf8.RuneError:
		return 0, false
	case r > ' ' && r < 0x7f, r > 0xa0 && r <= 0xff && r != 0xad:
		return byte(r), true
	case r >= 0x100 && r <= 0x120:
		return byte(r - 0x100), true
	case r >= 0x121 && r <= 0x142:
		return byte(r - 0x121 + 0x7f), true
	case r == 0x143:
		return 0xad, true
	}
	return 0, false
}
