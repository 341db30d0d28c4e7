package tokenizer

import (
	"hash/maphash"
	"sync/atomic"
)

// cache remembers the ids of words that are several tokens. It is a fixed
// array of slots, one word each, the newest winning: no lock, no list, and a
// bound on its size that needs no counting. The hash is seeded per process, so
// nobody can choose words that evict one another.
//
// Bound: cacheSlots × (8-byte pointer + entry of at most 48 + cachedWord +
// 4·cachedWord bytes), 6 MiB.
type cache struct {
	seed  maphash.Seed
	slots [cacheSlots]atomic.Pointer[cachedIDs]
}

const (
	cacheSlots = 1 << 14
	cachedWord = 64 // bytes; longer words are rarely seen twice
)

type cachedIDs struct {
	word string
	ids  []uint32
}

func newCache() *cache { return &cache{seed: maphash.MakeSeed()} }

func (c *cache) slot(word string) *atomic.Pointer[cachedIDs] {
	return &c.slots[maphash.String(c.seed, word)%cacheSlots]
}

// get returns the slot of the word too, for put.
func (c *cache) get(word string) (*atomic.Pointer[cachedIDs], []uint32) {
	slot := c.slot(word)
	if e := slot.Load(); e != nil && e.word == word {
		return slot, e.ids
	}
	return slot, nil
}

// put copies both, since word is part of a prompt and ids part of its result.
func (c *cache) put(slot *atomic.Pointer[cachedIDs], word string, ids []uint32) {
	slot.Store(&cachedIDs{word: string([]byte(word)), ids: append([]uint32(nil), ids...)})
}
