package tokenizer

import "strings"

// findCuts finds the special tokens at which a text can be cut: whatever stands
// before and after, what is on one side encodes alike with the other side and
// without. A token is such a place if no other can begin before it and reach
// into it. Tokens that take white space from their surroundings spoil all.
func (t *Tokenizer) findCuts() {
	for i := range t.added {
		if t.added[i].flagged() && !t.added[i].normalized {
			return
		}
	}
	for i := range t.added {
		if a := &t.added[i]; a.special && !a.normalized && !t.reachesInto(a.content) {
			t.cuts.add(a.content, i)
		}
	}
}

// reachesInto reports whether some token that begins before content can
// overlap it.
func (t *Tokenizer) reachesInto(content string) bool {
	for i := range t.added {
		other := t.added[i].content
		if t.added[i].normalized {
			continue // looked for in what is left between the others
		}
		for k := 1; k < len(other); k++ {
			if other[k] != content[0] {
				continue
			}
			if rest := other[k:]; strings.HasPrefix(rest, content) || strings.HasPrefix(content, rest) {
				return true
			}
		}
	}
	return false
}

// CanCut reports whether text can be cut at i, see [Tokenizer.Cut].
func (t *Tokenizer) CanCut(text string, i int) bool {
	token, _ := t.cuts.longest(text, i)
	return token >= 0
}

// Cut is the first place at or after from, but not 0, where text can be cut:
// the ids of text (with special tokens) are those of text[:Cut] and then those
// of text[Cut:]. It is len(text) if there is none.
func (t *Tokenizer) Cut(text string, from int) int {
	_, at, _ := t.cuts.find(text, max(from, 1))
	return at
}
