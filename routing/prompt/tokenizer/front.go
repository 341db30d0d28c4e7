package tokenizer

import (
	"math/bits"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
)

// front remembers the ids of short words for one encoder at a time. Most words
// of a text are few, short and seen before; to find one here touches one cache
// line, where the vocabulary costs three.
//
// It is 2 MiB: with half of it a third more words of source code were missed. The
// hash is keyed, so nobody can choose words that evict one another.
type front struct {
	key  [2]uint64
	sets [frontSets][2]frontWord // the second is older
}

const (
	frontSets = 1 << 15
	frontText = 15 // bytes of a word, at most
	frontIDs  = 3
)

// frontWord is half a cache line: a word's bytes, zeroes and, in the last byte,
// its length, then its ids and how many they are.
type frontWord struct {
	lo, hi uint64
	ids    [frontIDs]uint32
	n      uint32
}

// pack is the two words of a text of 1 to frontText bytes.
func pack(s string) (lo, hi uint64) {
	n := len(s)
	switch {
	case n >= 8:
		lo, hi = le64(s), le64(s[n-8:])>>(8*(16-n))
	case n >= 4:
		lo = le32(s) | le32(s[n-4:])<<(8*(n-4)) // where they overlap they are the same
	default:
		lo = uint64(s[0]) | uint64(s[n/2])<<(8*(n/2)) | uint64(s[n-1])<<(8*(n-1))
	}
	return lo, hi | uint64(n)<<56
}

func le32(s string) uint64 {
	_ = s[3]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24
}

func le64(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

func (f *front) set(lo, hi uint64) *[2]frontWord {
	a, b := bits.Mul64(lo^f.key[0], hi^f.key[1])
	return &f.sets[(a^b)%frontSets]
}

// find is the set of a word, and the word if it is there.
func (f *front) find(lo, hi uint64) (*[2]frontWord, *frontWord) {
	s := f.set(lo, hi)
	if s[0].lo == lo && s[0].hi == hi {
		return s, &s[0]
	}
	if s[1].lo == lo && s[1].hi == hi {
		s[0], s[1] = s[1], s[0]
		return s, &s[0]
	}
	return s, nil
}

// fronts are the fronts that no encoder is using: as many as can run at once,
// at most 4, made when first wanted. Who finds none goes without.
type fronts struct {
	idle [4]atomic.Pointer[front]
	made atomic.Int32
}

func (p *fronts) take() *front {
	for i := range p.idle {
		if p.idle[i].Load() != nil {
			if f := p.idle[i].Swap(nil); f != nil {
				return f
			}
		}
	}
	if n := p.made.Add(1); int(n) > min(len(p.idle), runtime.GOMAXPROCS(0)) {
		p.made.Add(-1)
		return nil
	}
	return &front{key: [2]uint64{rand.Uint64(), rand.Uint64()}}
}

func (p *fronts) give(f *front) {
	if f == nil {
		return
	}
	for i := range p.idle {
		if p.idle[i].CompareAndSwap(nil, f) {
			return
		}
	}
}
