package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// addedToken is a token that is found in text before anything else is done
// with it.
type addedToken struct {
	id      uint32
	content string
	special bool

	normalized bool // looked for after normalization
	singleWord bool // only where no word character stands beside it
	lstrip     bool // takes the white space before it
	rstrip     bool // takes the white space after it
}

func (a *addedToken) flagged() bool { return a.singleWord || a.lstrip || a.rstrip }

// widen is where the token found at s[i:j] starts and ends by its flags, and
// whether it counts. What is before start is taken.
func (a *addedToken) widen(s string, start, i, j int) (from, to int, ok bool) {
	if a.singleWord {
		before, _ := utf8.DecodeLastRuneInString(s[:i])
		after, _ := utf8.DecodeRuneInString(s[j:])
		if i > 0 && in(words, before) || j < len(s) && in(words, after) {
			return 0, 0, false
		}
	}
	for a.lstrip && i > start {
		r, n := utf8.DecodeLastRuneInString(s[:i])
		if !in(spaces, r) {
			break
		}
		i -= n
	}
	for a.rstrip && j < len(s) {
		r, n := utf8.DecodeRuneInString(s[j:])
		if !in(spaces, r) {
			break
		}
		j += n
	}
	return i, j, true
}

// added finds added tokens in text, the leftmost first and the longest of
// those that start at one place, as a byte trie.
type added struct {
	nodes  []addedNode
	first  [256]bool
	single byte // the first byte of all tokens, if they share one
	shared bool
}

type addedNode struct {
	edges []addedEdge
	token int32 // index of the token that ends here, -1 if none
}

type addedEdge struct {
	b  byte
	to int32
}

func (a *added) add(content string, token int) {
	if len(a.nodes) == 0 {
		a.nodes = []addedNode{{token: -1}}
		a.single, a.shared = content[0], true
	}
	a.first[content[0]] = true
	a.shared = a.shared && content[0] == a.single
	at := int32(0)
	for i := range len(content) {
		to := a.step(at, content[i])
		if to < 0 {
			to = int32(len(a.nodes))
			a.nodes = append(a.nodes, addedNode{token: -1})
			a.nodes[at].edges = append(a.nodes[at].edges, addedEdge{content[i], to})
		}
		at = to
	}
	a.nodes[at].token = int32(token)
}

func (a *added) step(at int32, b byte) int32 {
	for _, e := range a.nodes[at].edges {
		if e.b == b {
			return e.to
		}
	}
	return -1
}

// find is the first token in s[from:]: its index, where it starts and ends.
// The index is -1 if there is none.
func (a *added) find(s string, from int) (token, start, end int) {
	for i := from; ; i++ {
		if i = a.candidate(s, i); i < 0 {
			return -1, len(s), len(s)
		}
		if token, end := a.longest(s, i); token >= 0 {
			return token, i, end
		}
	}
}

// candidate is the first place at or after i where a token could start, or -1.
func (a *added) candidate(s string, i int) int {
	if len(a.nodes) == 0 || i >= len(s) {
		return -1
	}
	if a.shared {
		if j := strings.IndexByte(s[i:], a.single); j >= 0 {
			return i + j
		}
		return -1
	}
	for ; i < len(s); i++ {
		if a.first[s[i]] {
			return i
		}
	}
	return -1
}

func (a *added) longest(s string, i int) (token, end int) {
	token = -1
	if len(a.nodes) == 0 {
		return token, 0
	}
	at := int32(0)
	for ; i < len(s); i++ {
		if at = a.step(at, s[i]); at < 0 {
			break
		}
		if n := a.nodes[at].token; n >= 0 {
			token, end = int(n), i+1
		}
	}
	return token, end
}
