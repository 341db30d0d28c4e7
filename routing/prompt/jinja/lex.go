package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type kind uint8

const (
	eof kind = iota
	text
	varBegin
	varEnd
	blockBegin
	blockEnd
	name
	integer
	float
	str
	op
)

type token struct {
	kind  kind
	text  string // of a str its value
	value Value  // of integer and float
	line  int
}

// isSpace is Python's str.isspace for one character, and \s of its re.
func isSpace(c rune) bool {
	return c >= 0x1c && c <= 0x1f || unicode.Is(unicode.White_Space, c)
}

// lexer cuts a template into tokens, with Jinja's rules for the white space
// around tags: {%- and -%} take all of it, a block tag alone on its line loses
// the indentation (lstrip_blocks) and the line end (trim_blocks), + keeps.
type lexer struct {
	src    string
	pos    int
	line   int
	tokens []token

	// lineStart: what was read last ended a line, as Jinja's lexer sees it.
	lineStart bool
}

func lex(source string) ([]token, error) {
	source = strings.ReplaceAll(source, "\r\n", "\n")
	source = strings.ReplaceAll(source, "\r", "\n")
	source = strings.TrimSuffix(source, "\n")
	l := &lexer{src: source, line: 1, lineStart: true}
	for l.pos < len(l.src) {
		if err := l.root(); err != nil {
			return nil, err
		}
	}
	l.emit(token{kind: eof})
	return l.tokens, nil
}

func (l *lexer) emit(t token) {
	t.line = l.line
	l.tokens = append(l.tokens, t)
}

func (l *lexer) fail(format string, args ...any) error {
	return fmt.Errorf("template line %d: %w", l.line, fmt.Errorf(format, args...))
}

// advance moves over n bytes and counts lines.
func (l *lexer) advance(n int) {
	l.line += strings.Count(l.src[l.pos:l.pos+n], "\n")
	l.pos += n
}

// root reads text and the tag after it.
func (l *lexer) root() error {
	rest := l.src[l.pos:]
	at := tagStart(rest)
	if at < 0 {
		l.emit(token{kind: text, text: rest})
		l.advance(len(rest))
		return nil
	}
	tag := rest[at+1]
	before, sign := rest[:at], byte(0)
	if at+2 < len(rest) && (rest[at+2] == '-' || rest[at+2] == '+') {
		sign = rest[at+2]
	}
	switch {
	case sign == '-':
		before = strings.TrimRightFunc(before, isSpace)
	case sign == 0 && tag != '{':
		before = l.withoutIndent(before)
	}
	if before != "" {
		l.emit(token{kind: text, text: before})
	}
	l.advance(at + 2)
	if sign != 0 {
		l.advance(1)
	}
	switch tag {
	case '#':
		return l.comment()
	case '%':
		l.emit(token{kind: blockBegin})
		return l.inside('%', blockEnd)
	}
	l.emit(token{kind: varBegin})
	return l.inside('}', varEnd)
}

func tagStart(s string) int {
	for i := 0; ; i++ {
		j := strings.IndexByte(s[i:], '{')
		if j < 0 || i+j+1 >= len(s) {
			return -1
		}
		i += j
		if c := s[i+1]; c == '{' || c == '%' || c == '#' {
			return i
		}
	}
}

func (l *lexer) withoutIndent(before string) string {
	line := strings.LastIndexByte(before, '\n') + 1
	if line == 0 && !l.lineStart {
		return before
	}
	if strings.TrimFunc(before[line:], isSpace) != "" {
		return before
	}
	return before[:line]
}

func (l *lexer) comment() error {
	end := strings.Index(l.src[l.pos:], "#}")
	if end < 0 {
		return l.fail("comment without end")
	}
	l.advance(end)
	l.endTag(end > 0 && l.src[l.pos-1] == '-', end > 0 && l.src[l.pos-1] == '+', true)
	return nil
}

// endTag moves over the two bytes that end a tag and the white space that
// goes with them.
func (l *lexer) endTag(strip, keep, block bool) {
	l.advance(2)
	rest := l.src[l.pos:]
	n := 0
	switch {
	case strip:
		n = len(rest) - len(strings.TrimLeftFunc(rest, isSpace))
	case block && !keep && strings.HasPrefix(rest, "\n"):
		n = 1
	}
	l.advance(n)
	l.lineStart = n > 0 && l.src[l.pos-1] == '\n'
}

// inside reads the tokens of a tag that ends with first and '}'. Inside
// brackets the end of the tag is not looked for, so {{ {"a": {}} }} works.
func (l *lexer) inside(first byte, end kind) error {
	for depth := 0; ; {
		rest := l.src[l.pos:]
		if rest == "" {
			return l.fail("tag without end")
		}
		if depth == 0 {
			if n, ok := tagEnd(rest, first); ok {
				sign := rest[0]
				l.emit(token{kind: end})
				l.advance(n - 2)
				l.endTag(n == 3 && sign == '-', n == 3 && sign == '+', end == blockEnd)
				return nil
			}
		}
		c, size := utf8.DecodeRuneInString(rest)
		var err error
		switch {
		case isSpace(c):
			l.advance(size)
		case c >= '0' && c <= '9':
			err = l.number()
		case c == '_' || unicode.IsLetter(c):
			err = l.name()
		case c == '"' || c == '\'':
			err = l.string(byte(c))
		default:
			depth, err = l.operator(depth)
		}
		if err != nil {
			return err
		}
	}
}

func tagEnd(s string, first byte) (n int, ok bool) {
	if len(s) > 2 && (s[0] == '-' || s[0] == '+' && first == '%') && s[1] == first && s[2] == '}' {
		return 3, true
	}
	return 2, len(s) > 1 && s[0] == first && s[1] == '}'
}

func (l *lexer) name() error {
	rest := l.src[l.pos:]
	n := strings.IndexFunc(rest, func(c rune) bool { return c != '_' && !unicode.IsLetter(c) && !unicode.IsDigit(c) })
	if n < 0 {
		n = len(rest)
	}
	for i := range n {
		if rest[i] >= utf8.RuneSelf {
			return l.fail("%w: name %q", ErrUnsupported, rest[:n])
		}
	}
	l.emit(token{kind: name, text: rest[:n]})
	l.advance(n)
	return nil
}

func (l *lexer) number() error {
	rest := l.src[l.pos:]
	n := digits(rest)
	isFloat := false
	// After a dot, as in a.0.1, only an integer can follow.
	if l.pos == 0 || l.src[l.pos-1] != '.' {
		m := n
		if m+1 < len(rest) && rest[m] == '.' && digits(rest[m+1:]) > 0 {
			m += 1 + digits(rest[m+1:])
			n, isFloat = m, true
		}
		if m < len(rest) && rest[m]|0x20 == 'e' {
			e := m + 1
			if e < len(rest) && (rest[e] == '+' || rest[e] == '-') {
				e++
			}
			if d := digits(rest[e:]); d > 0 {
				n, isFloat = e+d, true
			}
		}
	}
	lit := rest[:n]
	if n < len(rest) && (rest[n] == '_' || unicode.IsLetter(rune(rest[n]))) || !isFloat && n > 1 && lit[0] == '0' {
		return l.fail("%w: number %q", ErrUnsupported, rest[:min(len(rest), n+1)])
	}
	t := token{kind: integer, text: lit}
	var err error
	if isFloat {
		t.kind = float
		t.value, err = strconv.ParseFloat(lit, 64)
	} else {
		t.value, err = strconv.ParseInt(lit, 10, 64)
	}
	if err != nil {
		return l.fail("%w: number %s", ErrUnsupported, lit)
	}
	l.emit(t)
	l.advance(n)
	return nil
}

func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

func (l *lexer) string(quote byte) error {
	rest := l.src[l.pos:]
	n := 1
	for n < len(rest) && rest[n] != quote {
		if rest[n] == '\\' {
			n++
		}
		n++
	}
	if n >= len(rest) {
		return l.fail("string without end")
	}
	value, err := unescape(rest[1:n])
	if err != nil {
		return l.fail("%w", err)
	}
	l.emit(token{kind: str, text: value})
	l.advance(n + 1)
	return nil
}

// unescape is Python's unicode-escape codec. A backslash before anything it
// does not know stays.
func unescape(s string) (string, error) {
	var b strings.Builder
	for s != "" {
		i := strings.IndexByte(s, '\\')
		if i < 0 || i+1 == len(s) {
			b.WriteString(s)
			break
		}
		b.WriteString(s[:i])
		c := s[i+1]
		s = s[i+2:]
		if j := strings.IndexByte(`\'"abfnrtv`, c); j >= 0 {
			b.WriteByte("\\'\"\a\b\f\n\r\t\v"[j])
			continue
		}
		switch {
		case c == '\n':
		case c == 'x' || c == 'u' || c == 'U':
			n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			if len(s) < n {
				return "", fmt.Errorf(`%w: escape \%c%s`, ErrUnsupported, c, s)
			}
			v, err := strconv.ParseUint(s[:n], 16, 32)
			if err != nil || v > unicode.MaxRune || !utf8.ValidRune(rune(v)) {
				return "", fmt.Errorf(`%w: escape \%c%s`, ErrUnsupported, c, s[:n])
			}
			b.WriteRune(rune(v))
			s = s[n:]
		case c == 'N' || c >= '0' && c <= '7' || c >= utf8.RuneSelf:
			return "", fmt.Errorf(`%w: escape \%c`, ErrUnsupported, c)
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return b.String(), nil
}

func (l *lexer) operator(depth int) (int, error) {
	rest := l.src[l.pos:]
	n := 1
	if len(rest) > 1 {
		switch rest[:2] {
		case "//", "**", "==", "!=", ">=", "<=":
			n = 2
		}
	}
	o := rest[:n]
	switch o {
	case "(", "[", "{":
		depth++
	case ")", "]", "}":
		if depth--; depth < 0 {
			return 0, l.fail("unexpected %q", o)
		}
	default:
		if n == 1 && !strings.Contains("+-/*%~><=.:|,", o) {
			return 0, l.fail("unexpected %q", o)
		}
	}
	l.emit(token{kind: op, text: o})
	l.advance(n)
	return depth, nil
}
