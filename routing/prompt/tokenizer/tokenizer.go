// Package tokenizer turns text into a model's token ids exactly as the Hugging
// Face tokenizers library does, for the BPE models whose tokenizer.json it can
// load: byte-level ones whose pre-tokenizer expressions are among those of
// scan.go and scancase.go (Qwen, Llama 3, o200k, Mistral Nemo, DeepSeek), and
// those that came from SentencePiece as Gemma did (pieces.go).
//
// Start at [Parse] and [Tokenizer.AppendEncode]. The work is done in the
// order of the file's parts: added tokens are cut out of the text (added.go),
// what is between them is normalized (nfc.go), cut into words, and each word's
// bytes or characters are merged (merge.go).
//
// Exact or nothing: a file with a part, a flag or a pattern that this package
// does not implement to the letter is refused by [Parse], with its name. A
// router that guesses token ids predicts cache hits that never come.
package tokenizer

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// ErrWordTooLong is the error of text with a single word (a run without a
// place to cut) of more than MaxWord bytes, which would take too much memory
// to merge.
var ErrWordTooLong = errors.New("a word of the text is too long to encode")

// MaxWord is the longest word that is encoded, in bytes.
const MaxWord = 1 << 20

// Tokenizer is a loaded tokenizer.json. It does not change after Parse but for
// its cache, and may be used by many goroutines at once.
type Tokenizer struct {
	form
	ignoreMerges bool

	tokens    []string // text of each id; "" where the id is unused
	reachable bitset   // the ids that text can encode to by merging
	vocab     vocabulary
	bytes     [256]uint32
	merges    *merges

	// whole has the ids that their own text encodes to, so that a word found
	// in vocab need not be merged.
	whole bitset

	word  scanner
	runes *runeTable // of pieces, else nil
	seams *seams

	added      []addedToken
	raw        added // looked for in the text as it comes
	normalized added // looked for between those, after normalization
	cuts       added // those of raw at which text can be cut

	cache  *cache
	fronts *fronts
}

// VocabSize is the number of ids: one more than the highest.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

// AppendEncode appends the ids of text to dst. With special, special tokens
// spelled out in the text become their ids, which is what engines do with
// rendered prompts; without, they are text like any other (added tokens that
// are not special are found either way). Nothing is added before or after.
// Invalid UTF-8 is encoded byte by byte.
func (t *Tokenizer) AppendEncode(dst []uint32, text string, special bool) []uint32 {
	e := encoder{Tokenizer: t, special: special, dst: dst}
	if err := e.encode(text); err != nil {
		panic(err) // not without stop
	}
	return e.dst
}

// AppendEncodeContext is AppendEncode for text from strangers: it looks at the
// context on its way, and refuses with ErrWordTooLong what would take much
// memory. The ids appended up to an error are a prefix of the text's.
func (t *Tokenizer) AppendEncodeContext(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	e := encoder{Tokenizer: t, special: special, dst: dst, stop: ctx.Err}
	err := e.encode(text)
	return e.dst, err
}

// encoder is one encoding.
type encoder struct {
	*Tokenizer
	special bool
	dst     []uint32
	words   int
	stop    func() error // nil for no limits
	front   *front       // nil for none
}

func (e *encoder) encode(text string) error {
	e.front = e.fronts.take()
	defer e.fronts.give(e.front)
	return e.cut(text, &e.raw, e.segment)
}

// cut appends the ids of the added tokens in s and hands what is between them
// to rest.
func (e *encoder) cut(s string, tokens *added, rest func(string) error) error {
	start := 0
	for from := 0; ; {
		token, i, j := tokens.find(s, from)
		from = j
		if token < 0 {
			if start < len(s) {
				return rest(s[start:])
			}
			return nil
		}
		a := &e.Tokenizer.added[token]
		if a.special && !e.special {
			continue
		}
		if a.flagged() {
			var ok bool
			if i, j, ok = a.widen(s, start, i, j); !ok {
				continue
			}
		}
		if i > start {
			if err := rest(s[start:i]); err != nil {
				return err
			}
		}
		e.dst = append(e.dst, a.id)
		start = j
	}
}

func (e *encoder) segment(s string) error {
	s = e.normalize(s)
	if len(e.normalized.nodes) == 0 {
		return e.plain(s)
	}
	return e.cut(s, &e.normalized, e.plain)
}

// normalize is the text as the vocabulary spells it.
func (t *Tokenizer) normalize(s string) string {
	switch {
	case t.nfc:
		return nfc(s)
	case t.pieces:
		return fromMetaspace(s)
	}
	return s
}

// plain appends the ids of text without added tokens.
func (e *encoder) plain(s string) error {
	for i := 0; i < len(s); {
		j := e.word(s, i)
		if err := e.check(j - i); err != nil {
			return err
		}
		e.append(s[i:j])
		i = j
	}
	return nil
}

// stopEvery is how many words are encoded between two looks at stop: some
// tens of microseconds' work.
const stopEvery = 1024

func (e *encoder) check(word int) error {
	if e.stop == nil {
		return nil
	}
	if word > MaxWord {
		return fmt.Errorf("%w: %d bytes", ErrWordTooLong, word)
	}
	if e.words++; e.words%stopEvery == 0 {
		return e.stop()
	}
	return nil
}

// append appends the ids of a word.
func (e *encoder) append(w string) {
	if len(w) > frontText || e.front == nil {
		e.appendCached(w)
		return
	}
	lo, hi := pack(w)
	set, known := e.front.find(lo, hi)
	if known != nil {
		if known.n == 1 {
			e.dst = append(e.dst, known.ids[0])
			return
		}
		e.dst = append(e.dst, known.ids[:known.n]...)
		return
	}
	n := len(e.dst)
	e.appendCached(w)
	if ids := e.dst[n:]; len(ids) <= frontIDs {
		set[1] = set[0]
		set[0] = frontWord{lo: lo, hi: hi, n: uint32(len(ids))}
		copy(set[0].ids[:], ids)
	}
}

func (e *encoder) appendCached(w string) {
	if id, ok := e.lookup(w); ok && (e.ignoreMerges || e.whole.has(id)) {
		e.dst = append(e.dst, id)
		return
	}
	if len(w) > cachedWord {
		e.dst = e.appendWord(e.dst, w)
		return
	}
	slot, ids := e.cache.get(w)
	if ids != nil {
		e.dst = append(e.dst, ids...)
		return
	}
	n := len(e.dst)
	e.dst = e.appendWord(e.dst, w)
	e.cache.put(slot, w, e.dst[n:])
}

// Added is the id of the added token content, if there is one.
func (t *Tokenizer) Added(content string) (id uint32, ok bool) {
	if token, end := t.raw.longest(content, 0); token >= 0 && end == len(content) {
		return t.added[token].id, true
	}
	for i := range t.added {
		if a := &t.added[i]; a.normalized && a.content == content {
			return a.id, true
		}
	}
	return 0, false
}

// Decode is the text of ids, special tokens spelled out. The bytes are as they
// are: where ids cut a character, the result is not valid UTF-8. Ids that the
// model does not have are left out.
func (t *Tokenizer) Decode(ids []uint32) string {
	var b strings.Builder
	for _, id := range ids {
		if int(id) < len(t.tokens) {
			b.WriteString(t.tokens[id])
		}
	}
	return b.String()
}

// Around is what the file puts before and after a text that is to have special
// tokens added, as engines do with the prompt of a completion.
func (t *Tokenizer) Around() (prefix, suffix []uint32) { return t.prefix, t.suffix }
