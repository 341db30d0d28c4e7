package tokenizer

import (
	"iter"
	"strings"
)

// The pre-tokenizer expressions that can be loaded, as the tokenizer.json of
// these families spell them; the scanners are the same, written out by hand.
const (
	// QwenPattern is that of Qwen2, Qwen2.5 and Qwen3.
	QwenPattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

	// LlamaPattern is that of Llama 3 and of many after it.
	LlamaPattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

	// O200kPattern is that of GPT-4o, gpt-oss and Llama 4.
	O200kPattern = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`

	// NemoPattern is that of Mistral Nemo and other Tekken models.
	NemoPattern = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// DeepSeekPatterns are those of DeepSeek V3 and R1: each cuts the pieces that
// the one before it left.
var DeepSeekPatterns = []string{
	`\p{N}{1,3}`,
	`[一-龥぀-ゟ゠-ヿ]+`,
	"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
}

// A scanner returns the end of the word that starts at s[i], i < len(s). It
// may look ahead but not back, and s ends where the text does.
type scanner func(s string, i int) int

// scanners lists the chains of expressions that can be loaded.
var scanners = map[string]func(t *classTable) scanner{
	chain(QwenPattern):         func(t *classTable) scanner { return clScanner(t, 1) },
	chain(LlamaPattern):        func(t *classTable) scanner { return clScanner(t, 3) },
	chain(O200kPattern):        func(t *classTable) scanner { return caseScanner(t, 3, true) },
	chain(NemoPattern):         func(t *classTable) scanner { return caseScanner(t, 1, false) },
	chain(DeepSeekPatterns...): deepSeekScanner,
}

// chain is the key of a chain of expressions.
func chain(patterns ...string) string { return strings.Join(patterns, "\x00") }

// Words yields the words into which the chain of expressions cuts s; joined
// they are s. It yields nothing for expressions that are not implemented.
func Words(s string, patterns ...string) iter.Seq[string] {
	return func(yield func(string) bool) {
		build := scanners[chain(patterns...)]
		if build == nil {
			return
		}
		word := build(classes())
		for i := 0; i < len(s); {
			j := word(s, i)
			if !yield(s[i:j]) {
				return
			}
			i = j
		}
	}
}

// clScanner is QwenPattern or, with up to three digits to a word,
// LlamaPattern: their alternatives in their order.
func clScanner(t *classTable, digits int) scanner {
	return func(s string, i int) int {
		c, n := t.at(s, i)
		switch {
		case c&letter != 0:
			return t.end(s, i+n, letter)
		case c&number != 0:
			return t.numberEnd(s, i+n, digits)
		}
		if s[i] == '\'' {
			if end := contraction(s, i); end > 0 {
				return end
			}
		}
		// [^\r\n\p{L}\p{N}]?\p{L}+ with its first part present.
		if s[i] != '\r' && s[i] != '\n' && i+n < len(s) {
			if next, m := t.at(s, i+n); next&letter != 0 {
				return t.end(s, i+n+m, letter)
			}
		}
		return t.rest(s, i, c, n, false)
	}
}

// numberEnd is the end of up to digits numbers, of which one ends at s[i].
func (t *classTable) numberEnd(s string, i, digits int) int {
	for ; digits > 1 && i < len(s); digits-- {
		c, n := t.at(s, i)
		if c&number == 0 {
			break
		}
		i += n
	}
	return i
}

// rest is the end of what the last four alternatives match at s[i], a
// character of class c and n bytes that is neither letter nor number:
// ` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`, or with [\r\n/].
func (t *classTable) rest(s string, i int, c class, n int, slash bool) int {
	if c&space == 0 {
		return t.symbolsEnd(s, i+n, slash)
	}
	if s[i] == ' ' && i+1 < len(s) {
		if next, m := t.at(s, i+1); next&(letter|number|space) == 0 {
			return t.symbolsEnd(s, i+1+m, slash)
		}
	}
	return t.spacesEnd(s, i, 0)
}

// symbolsEnd is the end of [^\s\p{L}\p{N}]*[\r\n]* at s[i:], or of
// [^\s\p{L}\p{N}]*[\r\n/]*.
func (t *classTable) symbolsEnd(s string, i int, slash bool) int {
	return lineEnds(s, t.endOfOthers(s, i, letter|number|space), slash)
}

func lineEnds(s string, i int, slash bool) int {
	for i < len(s) && (s[i] == '\r' || s[i] == '\n' || slash && s[i] == '/') {
		i++
	}
	return i
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

// spacesEnd is \s*[\r\n]+|\s+(?!\S)|\s+ at a space: up to the last line end of
// the run if it has one; else the run, less its last character if a word
// follows and anything is left. The text ends at a character of class stop.
func (t *classTable) spacesEnd(s string, i int, stop class) int {
	start, newline, last := i, 0, i
	for i < len(s) {
		c, n := t.at(s, i)
		if c&space == 0 {
			if c&stop != 0 {
				s = s[:i]
			}
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
