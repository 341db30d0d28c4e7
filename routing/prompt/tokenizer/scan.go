package tokenizer

import "iter"

// QwenPattern is the pre-tokenizer expression of Qwen2, Qwen2.5 and Qwen3, as
// their tokenizer.json spells it. The scanner below is this expression written
// out by hand.
const QwenPattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// A scanner returns the end of the word that starts at s[i], i < len(s).
type scanner func(t *classTable, s string, i int) int

// scanners lists the pre-tokenizer expressions that can be loaded.
var scanners = map[string]scanner{
	QwenPattern: qwenWord,
}

// Words yields the words into which [QwenPattern] cuts s; joined they are s.
func Words(s string) iter.Seq[string] {
	return func(yield func(string) bool) {
		t := classes()
		for i := 0; i < len(s); {
			j := qwenWord(t, s, i)
			if !yield(s[i:j]) {
				return
			}
			i = j
		}
	}
}

// qwenWord tries the alternatives of QwenPattern in their order.
func qwenWord(t *classTable, s string, i int) int {
	c, n := t.at(s, i)
	switch c {
	case letter:
		return lettersEnd(t, s, i+n)
	case number:
		return i + n
	}
	if s[i] == '\'' {
		if end := contraction(s, i); end > 0 {
			return end
		}
	}
	// [^\r\n\p{L}\p{N}]?\p{L}+ with its first part present.
	if s[i] != '\r' && s[i] != '\n' && i+n < len(s) {
		if next, m := t.at(s, i+n); next == letter {
			return lettersEnd(t, s, i+n+m)
		}
	}
	if c == other {
		return symbolsEnd(t, s, i+n)
	}
	if s[i] == ' ' && i+1 < len(s) {
		if next, m := t.at(s, i+1); next == other {
			return symbolsEnd(t, s, i+1+m)
		}
	}
	return spacesEnd(t, s, i)
}

// contraction is (?i:'s|'t|'re|'ve|'m|'ll|'d) at s[i] == '\”; 0 is no match.
func contraction(s string, i int) int {
	at := func(j int) byte {
		if j < len(s) {
			return s[j] | 0x20
		}
		return 0
	}
	switch at(i + 1) {
	case 's', 't', 'm', 'd':
		if s[i+1] >= 'A' {
			return i + 2
		}
	case 'r', 'v':
		if at(i+2) == 'e' {
			return i + 3
		}
	case 'l':
		if at(i+2) == 'l' {
			return i + 3
		}
	}
	// The long s, U+017F, folds to s.
	if i+2 < len(s) && s[i+1] == 0xc5 && s[i+2] == 0xbf {
		return i + 3
	}
	return 0
}

// lettersEnd is the end of \p{L}* at s[i:].
func lettersEnd(t *classTable, s string, i int) int {
	for i < len(s) {
		c, n := t.at(s, i)
		if c != letter {
			break
		}
		i += n
	}
	return i
}

// symbolsEnd is the end of [^\s\p{L}\p{N}]*[\r\n]* at s[i:].
func symbolsEnd(t *classTable, s string, i int) int {
	for i < len(s) {
		c, n := t.at(s, i)
		if c != other {
			break
		}
		i += n
	}
	for i < len(s) && (s[i] == '\r' || s[i] == '\n') {
		i++
	}
	return i
}

// spacesEnd is \s*[\r\n]+|\s+(?!\S)|\s+ at a space: up to the last line end of
// the run if it has one; else the run, less its last character if a word
// follows and anything is left.
func spacesEnd(t *classTable, s string, i int) int {
	start, newline, last := i, 0, i
	for i < len(s) {
		c, n := t.at(s, i)
		if c != space {
			break
		}
		last = i
		i += n
		if s[last] == '\r' || s[last] == '\n' {
			newline = i
		}
	}
	switch {
	case newline > 0:
		return newline
	case i < len(s) && last > start:
		return last
	}
	return i
}
