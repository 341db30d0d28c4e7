package tokenizer

// This file has the scanners of the expressions that part words where lower
// case turns into upper.

const (
	head = upper | caseless | mark // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
	tail = lower | caseless | mark // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
)

// caseScanner is O200kPattern, or without contractions and with one digit to a
// word NemoPattern.
func caseScanner(t *classTable, digits int, contractions bool) scanner {
	return func(s string, i int) int {
		c, n := t.at(s, i)
		if c&number != 0 {
			return t.numberEnd(s, i+n, digits)
		}
		end := t.casedEnd(s, i, c, n)
		if end < 0 {
			return t.rest(s, i, c, n, true)
		}
		if contractions && end < len(s) && s[end] == '\'' {
			if long := contraction(s, end); long > 0 {
				return long
			}
		}
		return end
	}
}

// casedEnd is the first two alternatives, each tried with its optional first
// character before without; -1 is no match.
func (t *classTable) casedEnd(s string, i int, c class, n int) int {
	after := -1 // where the word starts after [^\r\n\p{L}\p{N}]
	if c&(letter|number) == 0 && s[i] != '\r' && s[i] != '\n' {
		after = i + n
	}
	for _, start := range [2]int{after, i} {
		if start >= 0 {
			if end := t.headTail(s, start); end >= 0 {
				return end
			}
		}
	}
	for _, start := range [2]int{after, i} {
		if start >= 0 {
			if end := t.end(s, start, head); end > start {
				return end // nothing of tail follows, or headTail would match
			}
		}
	}
	return -1
}

// headTail is [head]*[tail]+ at s[i:], -1 if it does not match. If no tail
// follows the heads, the expression gives heads back up to the last that can
// be a tail too.
func (t *classTable) headTail(s string, i int) int {
	both := -1
	for i < len(s) {
		c, n := t.at(s, i)
		if c&head == 0 {
			break
		}
		i += n
		if c&tail != 0 {
			both = i
		}
	}
	if end := t.end(s, i, tail); end > i {
		return end
	}
	return both
}

// deepSeekScanner is DeepSeekPatterns: numbers by up to three and runs of
// Chinese and Japanese are pieces of their own, and the last expression sees
// each piece as if there were nothing after it. What it does not match between
// its matches is a word too.
func deepSeekScanner(t *classTable) scanner {
	return func(s string, i int) int {
		c, n := t.at(s, i)
		switch {
		case c&number != 0:
			return t.numberEnd(s, i+n, 3)
		case c&cjk != 0:
			return t.pieceWord(s[:t.end(s, i, cjk)], i, 0)
		}
		return t.pieceWord(s, i, number|cjk)
	}
}

// pieceWord is the end of the word at s[i] in the piece that ends before the
// next character of class stop.
func (t *classTable) pieceWord(s string, i int, stop class) int {
	c, n := t.at(s, i)
	next, m := t.before(s, i+n, stop)
	switch {
	case asciiSymbol(c, s[i]) && asciiLetter(s, i+1):
		for i++; asciiLetter(s, i); i++ {
		}
		return i
	case c&(letter|mark) != 0:
		return t.lettersMarks(s, i+n, stop)
	case c&symbol == 0 && next&(letter|mark) != 0 && s[i] != '\r' && s[i] != '\n':
		return t.lettersMarks(s, i+n+m, stop)
	case c&symbol != 0:
		return t.symbolRun(s, i+n, stop)
	case s[i] == ' ' && next&symbol != 0:
		return t.symbolRun(s, i+n+m, stop)
	case c&space != 0:
		return t.spacesEnd(s, i, stop)
	}
	return t.gapEnd(s, i+n, stop)
}

// before is at, with nothing to see at a stop or the end.
func (t *classTable) before(s string, i int, stop class) (class, int) {
	if i >= len(s) {
		return 0, 0
	}
	c, n := t.at(s, i)
	if c&stop != 0 {
		return 0, 0
	}
	return c, n
}

func (t *classTable) lettersMarks(s string, i int, stop class) int {
	for {
		c, n := t.before(s, i, stop)
		if c&(letter|mark) == 0 {
			return i
		}
		i += n
	}
}

// symbolRun is the end of [\p{P}\p{S}]*[\r\n]*.
func (t *classTable) symbolRun(s string, i int, stop class) int {
	for {
		c, n := t.before(s, i, stop)
		if c&symbol == 0 {
			return lineEnds(s, i, false)
		}
		i += n
	}
}

// gapEnd is the end of a run of characters that start no match.
func (t *classTable) gapEnd(s string, i int, stop class) int {
	for {
		c, n := t.before(s, i, stop)
		if n == 0 || c&^cjk != 0 {
			return i
		}
		if next, _ := t.before(s, i+n, stop); next&(letter|mark) != 0 {
			return i // the character is the first of that match
		}
		i += n
	}
}

func asciiSymbol(c class, b byte) bool { return c&symbol != 0 && b < 0x80 }

func asciiLetter(s string, i int) bool {
	return i < len(s) && (s[i]|0x20) >= 'a' && (s[i]|0x20) <= 'z'
}
