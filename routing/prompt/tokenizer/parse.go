package tokenizer

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
)

// maxVocab bounds what a file can make us allocate; the largest vocabularies
// have about 2^18 tokens.
const maxVocab = 1 << 22

// Parse reads the contents of a tokenizer.json. The error of a file that uses
// something this package does not implement names it.
func Parse(data []byte) (*Tokenizer, error) {
	var f file
	if err := json.Unmarshal(data, &f, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("read tokenizer.json: %w", err)
	}
	kind, err := f.check()
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	t := newTokenizer(kind, f.Model.IgnoreMerges)
	if err := errors.Join(
		t.loadVocab(f.Model.Vocab),
		t.loadMerges(f.Model.Vocab, f.Model.Merges),
		t.loadAdded(f.Model.Vocab, f.AddedTokens),
		t.checkAround(),
	); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	t.findSeams()
	t.ready()
	t.findWhole()
	return t, nil
}

// newTokenizer is a tokenizer without vocabulary.
func newTokenizer(kind form, ignoreMerges bool) *Tokenizer {
	t := &Tokenizer{form: kind, ignoreMerges: ignoreMerges, cache: newCache(), fronts: &fronts{}}
	if kind.pieces {
		t.runes, t.seams = &runeTable{}, &seams{}
		t.word = t.seams.word
	} else {
		t.word = scanners[kind.patterns](classes())
	}
	return t
}

// loadVocab fills tokens, which of them are reachable, and bytes.
func (t *Tokenizer) loadVocab(vocab map[string]uint32) error {
	highest := uint32(0)
	for token, id := range vocab {
		if id >= maxVocab {
			return fmt.Errorf("id %d of token %q is too high", id, token)
		}
		highest = max(highest, id)
	}
	t.tokens = make([]string, highest+1)
	t.reachable = newBitset(len(t.tokens))
	var haveByte [256]bool
	for token, id := range vocab {
		if token == "" {
			return errors.New("unsupported: empty token in vocab")
		}
		if t.tokens[id] != "" {
			return fmt.Errorf("two tokens have the id %d", id)
		}
		text, ok := t.text(token)
		t.tokens[id] = text
		if ok {
			t.reachable.set(id)
		}
		if b, ok := t.byteOf(token); ok {
			t.bytes[b], haveByte[b] = id, true
		}
	}
	for b, ok := range haveByte {
		if !ok {
			return fmt.Errorf("unsupported: no token for byte 0x%02x", b)
		}
	}
	return nil
}

// text is what a token decodes to, and whether that text can encode to it.
func (t *Tokenizer) text(token string) (text string, ok bool) {
	if t.pieces {
		if b, isByte := byteToken(token); isByte {
			return string([]byte{b}), false
		}
		text := fromMetaspace(token)
		return text, utf8.ValidString(token) && !containsSpace(token)
	}
	if text, ok = fromByteLevel(token); !ok {
		text = token
	}
	return text, ok
}

// containsSpace: after normalization no text has a space (see metaspace).
func containsSpace(token string) bool {
	for i := range len(token) {
		if token[i] == ' ' {
			return true
		}
	}
	return false
}

// byteOf is the byte that the token is for.
func (t *Tokenizer) byteOf(token string) (byte, bool) {
	if t.pieces {
		return byteToken(token)
	}
	text, ok := fromByteLevel(token)
	if !ok || len(text) != 1 {
		return 0, false
	}
	return text[0], true
}

func (t *Tokenizer) loadMerges(vocab map[string]uint32, list []fileMerge) error {
	if len(list) > maxMerges {
		return unsupported("number of merges", len(list))
	}
	if len(t.tokens) > maxID {
		return unsupported("number of tokens", len(t.tokens))
	}
	t.merges = newMerges(len(list))
	for rank, m := range list {
		a, okA := vocab[m[0]]
		b, okB := vocab[m[1]]
		id, ok := vocab[m[0]+m[1]]
		if !okA || !okB || !ok {
			return fmt.Errorf("merge %d (%q, %q) makes or takes a token that is not in the vocabulary", rank, m[0], m[1])
		}
		if t.pieces && !(t.reachable.has(a) && t.reachable.has(b) && t.reachable.has(id)) {
			if containsSpace(m[0] + m[1]) {
				continue // it never applies
			}
			return fmt.Errorf("unsupported: merge %d (%q, %q) is of the spelling of a byte", rank, m[0], m[1])
		}
		if !t.merges.add(a, b, rank, id) {
			return fmt.Errorf("unsupported: merge %d (%q, %q) is a repetition", rank, m[0], m[1])
		}
	}
	return nil
}

// loadAdded gives each added token the id that the library would, and refuses
// the file if it says otherwise.
func (t *Tokenizer) loadAdded(vocab map[string]uint32, list []fileAdded) error {
	next := uint32(len(vocab))
	seen := make(map[string]bool, len(list))
	for i := range list {
		a := &list[i]
		if seen[a.Content] {
			return fmt.Errorf("unsupported: added token %q is a repetition", a.Content)
		}
		seen[a.Content] = true
		id, inVocab := vocab[a.Content]
		if !inVocab {
			id = next
		}
		if a.ID != id {
			return fmt.Errorf("unsupported: added token %q has id %d where %d is its turn", a.Content, a.ID, id)
		}
		if id >= next {
			next = id + 1
		}
		t.setToken(id, a.Content)
		t.added = append(t.added, addedToken{
			id: id, content: a.Content, special: a.Special, normalized: a.Normalized,
			singleWord: a.SingleWord, lstrip: a.LStrip, rstrip: a.RStrip,
		})
	}
	for len(t.reachable) < (len(t.tokens)+63)/64 {
		t.reachable = append(t.reachable, 0)
	}
	return nil
}

// setToken records what id decodes to: like any token, an added one goes
// through the decoder.
func (t *Tokenizer) setToken(id uint32, content string) {
	for int(id) >= len(t.tokens) {
		t.tokens = append(t.tokens, "")
	}
	t.tokens[id], _ = t.text(content)
}

// checkAround: what goes around a text must be ids that there are.
func (t *Tokenizer) checkAround() error {
	for _, ids := range [][]uint32{t.prefix, t.suffix} {
		for _, id := range ids {
			if int(id) >= len(t.tokens) {
				return fmt.Errorf("post_processor adds the id %d, which there is not", id)
			}
		}
	}
	return nil
}

// findSeams learns from the merges over which pairs of characters one reaches.
func (t *Tokenizer) findSeams() {
	if !t.pieces {
		return
	}
	for _, m := range t.merges.list() {
		last, _ := utf8.DecodeLastRuneInString(t.tokens[m.a])
		first, _ := utf8.DecodeRuneInString(t.tokens[m.b])
		t.seams.add(last, first)
	}
}

// ready builds what is made of tokens, merges and added tokens to look things
// up in.
func (t *Tokenizer) ready() {
	t.vocab = newVocabulary(len(t.tokens))
	for id, text := range t.tokens {
		if !t.reachable.has(uint32(id)) {
			continue
		}
		*t.vocab.slot(t.tokens, text) = uint32(id) + 1
		if t.pieces {
			if r, n := decodeRune(text, 0); n == len(text) && r != noRune {
				t.runes.set(r, uint32(id))
			}
		}
	}
	for i := range t.added {
		a := &t.added[i]
		if a.normalized {
			t.normalized.add(t.normalize(a.content), i)
		} else {
			t.raw.add(a.content, i)
		}
	}
	t.findCuts()
}

// findWhole merges every token's text once, to learn which tokens a word that
// equals them encodes to.
func (t *Tokenizer) findWhole() {
	t.whole = newBitset(len(t.tokens))
	var ids []uint32
	for id, text := range t.tokens {
		if !t.reachable.has(uint32(id)) {
			continue
		}
		if ids = t.appendWord(ids[:0], text); len(ids) == 1 && ids[0] == uint32(id) {
			t.whole.set(uint32(id))
		}
	}
}
