package tokenizer

import (
	"hash/maphash"
	"math/bits"
)

// vocabulary finds the id of a token by its text. It is an open-addressing
// table of ids that compares with the list of tokens: a quarter of the memory
// of a map, and it is filled in milliseconds. The hash is seeded per process.
type vocabulary struct {
	seed  maphash.Seed
	slots []uint32 // id + 1, 0 for none
}

func newVocabulary(n int) vocabulary {
	return vocabulary{seed: maphash.MakeSeed(), slots: make([]uint32, 1<<bits.Len(uint(2*n+1)))}
}

// slot is where the text is, or where it would go.
func (v *vocabulary) slot(tokens []string, text string) *uint32 {
	mask := len(v.slots) - 1
	for i := int(maphash.String(v.seed, text)) & mask; ; i = (i + 1) & mask {
		if s := &v.slots[i]; *s == 0 || tokens[*s-1] == text {
			return s
		}
	}
}

// lookup is the id of the token that text can become, if there is one.
func (t *Tokenizer) lookup(text string) (uint32, bool) {
	s := *t.vocab.slot(t.tokens, text)
	return s - 1, s != 0
}

// bitset has a bit for each id.
type bitset []uint64

func newBitset(n int) bitset { return make(bitset, (n+63)/64) }

func (b bitset) set(id uint32)      { b[id/64] |= 1 << (id % 64) }
func (b bitset) has(id uint32) bool { return b[id/64]&(1<<(id%64)) != 0 }
