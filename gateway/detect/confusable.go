package detect

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// lookalikes are characters of other alphabets that read as ASCII letters, each
// before the letter: those that confusables.txt of UTS #39 gives for them and
// that a word in context could be written with.
var lookalikes = func() map[rune]byte {
	const pairs = `` +
		`АA ВB СC ЕE НH ІI ЈJ КK МM ОO РP ЅS ТT УY ХX ҮY ԌG ԜW Ӏl ` + // Cyrillic
		`аa вb сc еe нh іi јj кk мm оo рp ѕs тt уy хx үy һh ӏl ԁd ԛq ԝw пn гr ` +
		`ΑA ΒB ΕE ΖZ ΗH ΙI ΚK ΜM ΝN ΟO ΡP ΤT ΥY ΧX ϹC ϺM ` + // Greek
		`αa ιi κk νv οo ρp τt υu χx ϲc ϳj ηn ` +
		`օo ոn հh ցg ` + // Armenian
		`ᎪA ᏴB ᏟC ᎬE ᏀG ᎻH ᎥI ᎫJ ᏦK ᏞL ᎷM ᏢP ᎡR ᏚS ᎢT ᏙV ᎳW ᏃZ ` + // Cherokee
		`ꓐB ꓑP ꓓD ꓔT ꓖG ꓗK ꓙJ ꓚC ꓜZ ꓝF ꓟM ꓠN ꓡL ꓢS ꓣR ꓦV ꓧH ꓪW ꓫX ꓬY ꓮA ꓰE ꓲI ꓳO ꓴU ` + // Lisu
		`ɑa ɡg ıi ɪI ɴN ʀR ʏY ʙB ʜH ʟL ɢG ` + // small capitals and the like
		`ᴀA ᴄC ᴅD ᴇE ᴊJ ᴋK ᴍM ᴏO ᴘP ᴛT ᴜU ᴠV ᴡW ᴢZ ꜰF ꜱS`
	table := map[rune]byte{}
	for _, pair := range strings.Fields(pairs) {
		r, size := utf8.DecodeRuneInString(pair)
		table[r] = pair[size]
	}
	return table
}()

// enclosed are runs of digits and letters in circles, squares and brackets that
// have no decomposition of one character.
var enclosed = []struct {
	from, to rune
	first    byte // the run goes on from it
}{
	{0x2474, 0x247C, '1'},
	{0x2488, 0x2490, '1'},
	{0x249C, 0x24B5, 'a'},
	{0x24F5, 0x24FD, '1'},
	{0x24FF, 0x24FF, '0'},
	{0x2776, 0x277E, '1'},
	{0x2780, 0x2788, '1'},
	{0x278A, 0x2792, '1'},
	{0x1F101, 0x1F10A, '0'},
	{0x1F10B, 0x1F10B, '0'},
	{0x1F10C, 0x1F10C, '0'},
	{0x1F110, 0x1F129, 'A'},
	{0x1F150, 0x1F169, 'A'},
	{0x1F170, 0x1F189, 'A'},
	{0x1F1E6, 0x1F1FF, 'A'},
}

// low is the plain form of the characters before lowEnd, among which are most of
// those that texts hold; 0 for those that show nothing.
var low = func() (table [lowEnd]byte) {
	for r := range table {
		if b, visible := plain(rune(r)); visible {
			table[r] = b
		}
	}
	return table
}()

const lowEnd = 0x530 // past Latin, Greek and Cyrillic

// plainByte maps a character to its plain form; visible is false for those that
// show nothing.
func plainByte(r rune) (b byte, visible bool) {
	switch {
	case r < utf8.RuneSelf:
		return byte(r), true
	case r < lowEnd:
		return low[r], low[r] != 0
	case r >= 0x3041 && r <= 0x9FFF, r >= 0xAC00 && r <= 0xD7A3:
		return other, true // kana, Han and Hangul, which need no look-up
	case r >= 0xFF01 && r <= 0xFF5E: // full-width ASCII
		return byte(r - 0xFF01 + '!'), true
	}
	return plain(r)
}

// plain is plainByte without its short cuts.
func plain(r rune) (b byte, visible bool) {
	switch {
	case r < utf8.RuneSelf:
		return byte(r), true
	case unicode.Is(unicode.Cf, r), unicode.Is(unicode.Mn, r), unicode.Is(unicode.Me, r):
		return 0, false
	case unicode.Is(unicode.Nd, r):
		return '0' + digitValue(r), true
	case unicode.Is(unicode.Zs, r):
		return ' ', true
	case unicode.Is(unicode.Pd, r), r == '\u2212':
		return '-', true
	}
	if b, ok := lookalikes[r]; ok {
		return b, true
	}
	if b, ok := decomposed(r); ok {
		return b, true
	}
	for _, run := range enclosed {
		if run.from <= r && r <= run.to {
			return run.first + byte(r-run.from), true
		}
	}
	return other, true
}

// decomposed returns the letter or digit that a character is a variant of:
// mathematical, superscript, circled, or with marks (UAX #15, NFKD).
func decomposed(r rune) (byte, bool) {
	form := norm.NFKD.PropertiesString(string(r)).Decomposition()
	if len(form) == 0 {
		return 0, false
	}
	first, size := utf8.DecodeRune(form)
	for _, mark := range string(form[size:]) {
		if !unicode.Is(unicode.Mn, mark) {
			return 0, false
		}
	}
	if b, ok := lookalikes[first]; ok {
		return b, true // such as a Cyrillic letter with a mark
	}
	if first < utf8.RuneSelf && isAlnum(byte(first)) {
		return byte(first), true
	}
	return 0, false
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
