package tokenizer

import (
	"errors"
	"fmt"

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
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	t := &Tokenizer{
		normalize:    f.Normalizer != nil,
		ignoreMerges: f.Model.IgnoreMerges,
		word:         scanners[*f.PreTokenizer.PreTokenizers[0].Pattern.Regex],
		classes:      classes(),
		cache:        newCache(),
	}
	if err := t.loadVocab(f.Model.Vocab); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	if err := t.loadMerges(f.Model.Vocab, f.Model.Merges); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	if err := t.loadAdded(f.Model.Vocab, f.AddedTokens); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	t.findWhole()
	return t, nil
}

func (t *Tokenizer) loadVocab(vocab map[string]uint32) error {
	highest := uint32(0)
	for token, id := range vocab {
		if id >= maxVocab {
			return fmt.Errorf("id %d of token %q is too high", id, token)
		}
		highest = max(highest, id)
	}
	t.tokens = make([]string, highest+1)
	t.vocab = make(map[string]uint32, len(vocab))
	for token, id := range vocab {
		if token == "" {
			return errors.New("unsupported: empty token in vocab")
		}
		if t.tokens[id] != "" {
			return fmt.Errorf("two tokens have the id %d", id)
		}
		text, ok := fromByteLevel(token)
		if !ok {
			t.tokens[id] = token // no text encodes to it, but it decodes
			continue
		}
		t.tokens[id] = text
		t.vocab[text] = id
	}
	for b := range 256 {
		id, ok := t.vocab[string([]byte{byte(b)})]
		if !ok {
			return fmt.Errorf("unsupported: no token for byte 0x%02x", b)
		}
		t.bytes[b] = id
	}
	return nil
}

func (t *Tokenizer) loadMerges(vocab map[string]uint32, list []fileMerge) error {
	t.merges = newMerges(len(list))
	for rank, m := range list {
		a, okA := vocab[m[0]]
		b, okB := vocab[m[1]]
		id, ok := vocab[m[0]+m[1]]
		if !okA || !okB || !ok {
			return fmt.Errorf("merge %d (%q, %q) makes or takes a token that is not in the vocabulary", rank, m[0], m[1])
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
		content, trie := a.Content, &t.raw
		if a.Normalized {
			trie = &t.normalized
			if t.normalize {
				content = nfc(content)
			}
		}
		trie.add(content, len(t.added))
		t.added = append(t.added, addedToken{id: id, special: a.Special})
	}
	return nil
}

// setToken records what id decodes to: like any token, an added one goes
// through the byte-level decoder if all its characters stand for bytes.
func (t *Tokenizer) setToken(id uint32, content string) {
	for int(id) >= len(t.tokens) {
		t.tokens = append(t.tokens, "")
	}
	if text, ok := fromByteLevel(content); ok {
		content = text
	}
	t.tokens[id] = content
}

// findWhole merges every token's bytes once, to learn which tokens a word that
// equals them encodes to.
func (t *Tokenizer) findWhole() {
	t.whole = make([]uint64, (len(t.tokens)+63)/64)
	var ids []uint32
	for text, id := range t.vocab {
		if ids = t.appendWord(ids[:0], text); len(ids) == 1 && ids[0] == id {
			t.whole[id/64] |= 1 << (id % 64)
		}
	}
}
