package oracle

import (
	"math/rand/v2"
	"strings"
)

var fragments = []string{
	"the account holder", "Überweisung", "naïve café", "don't", "DON'T", "we'Ll", "it'\u017f", "'s", "I'M", "they've", "x'd", "''re",
	"func main() {\n\tfmt.Println(\"hi\")\n}\n", "for i := 0; i < n; i++ {", "SELECT * FROM t WHERE a >= 3;\r\n", "{\"a\": [1, 2.5e-3, null]}",
	"    indented", "\t\t\ttabs", "\n\n\n", "\r\n\r\n", " \n \n", "  ", " ", "   \t \n", "\u00a0", "\u2003\u2003", "\u0085", "\u2028", "\ufeff", "\u1680", "\u200b", "\u3000",
	"12345", "3.14159", "٣٤٥", "Ⅻ", "½", "²", "一二三", "你好,世界。", "こんにちは", "한국어 텍스트", "Привет мир", "Γειά σου", "שלום", "مرحبا", "हिन्दी पाठ", "ไทย", "Tiếng Việt",
	"e\u0301", "A\u030a", "\u1100\u1161\u11a8", "가\u11a8", "\u212b", "\u2126", "\u0344", "\u0958", "\ufb1d", "q\u0307\u0323", "\u0d4a\u0d3e", "\U00011935\U00011930", "a\u0315\u0300\u05ae\u08cab",
	"😀", "👩‍👩‍👧‍👦", "🇩🇪", "\U0001f1e6", "\U0001fbf0", "\U00013460", "\U0001e5f1", "\u1c89", "\U0002ebf0",
	"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>", "<|im_", "<|im_start|", "<<|im_end|>>", "<think>", "</think>",
	"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "--------", "!!!???...", "=====\n", "$%^&*()", "\\n", "#!/bin/sh\n", "\x00", "\x1b[31m", "\x7f",
	"https://example.org/a?b=c&d=%20", "user@example.org", "snake_case_name", "camelCaseName", "SCREAMING_CASE", "0x7fff", "v1.2.3-rc.4",
}

// corpus is n strings, the same for the same seed: joined fragments, single
// code points of all planes, random code points, and white space.
func corpus(seed uint64, n int) []string {
	r := rand.New(rand.NewPCG(seed, 1))
	out := append([]string(nil), fragments...)
	for len(out) < n {
		var b strings.Builder
		switch len(out) % 6 {
		case 0, 1:
			for range 1 + r.IntN(12) {
				b.WriteString(fragments[r.IntN(len(fragments))])
				if r.IntN(2) == 0 {
					b.WriteByte(' ')
				}
			}
		case 2:
			for range 1 + r.IntN(40) {
				b.WriteRune(anyRune(r))
			}
		case 3:
			for range 1 + r.IntN(20) {
				b.WriteRune([]rune(" \t\n\r\v\f\u0085\u00a0\u2028a1.'s")[r.IntN(14)])
			}
		case 4: // letters and the marks that combine with them
			for range 1 + r.IntN(20) {
				b.WriteRune([]rune("aeoAEO가\u1100\u1161\u11a8क\u09c7\u0dd9")[r.IntN(13)])
				for range r.IntN(4) {
					b.WriteRune([]rune("\u0300\u0301\u0323\u0327\u0338\u093c\u09be\u0dcf\u0345\u05b0\u3099\u08d3\u1ac1")[r.IntN(13)])
				}
			}
		case 5: // what the expressions tell apart, one beside the other
			for range 1 + r.IntN(16) {
				b.WriteRune([]rune("aBc\u01c5\u02b0\u00aa\u0301\u093e1٣½ 中の゛\u3040\u30fbー龦/'sS.,_\x00\u200d\u00ad\t\n\r  \u2581")[r.IntN(35)])
			}
		}
		out = append(out, b.String())
	}
	return out
}

// sweep is every code point once, in short strings.
func sweep() []string {
	var out []string
	var b strings.Builder
	for c := rune(0); c <= 0x10ffff; c++ {
		if c >= 0xd800 && c < 0xe000 || c >= 0x30000 && c < 0xe0000 || c >= 0xf0000 {
			continue
		}
		b.WriteRune(c)
		if c%4 == 0 {
			b.WriteByte("a 1."[(c>>2)%4])
		}
		if c%64 == 63 {
			out = append(out, b.String())
			b.Reset()
		}
	}
	return out
}

func anyRune(r *rand.Rand) rune {
	for {
		var c rune
		switch r.IntN(4) {
		case 0:
			c = r.Int32N(0x80)
		case 1:
			c = r.Int32N(0x3000)
		case 2:
			c = r.Int32N(0x10000)
		default:
			c = r.Int32N(0x30000)
		}
		if c < 0xd800 || c > 0xdfff {
			return c
		}
	}
}
