package tokenizer

import "math/bits"

// merges maps a pair of token ids to the rank of its merge, and the rank to the
// id it makes. It is an open-addressing table: a lookup is one multiplication
// and mostly one cache line, and lookups are where encoding spends its time. A
// slot is both ids and the rank plus one, which are small enough to share it.
type merges struct {
	slots []uint64
	shift uint
	makes []uint32 // by rank
}

const (
	idBits   = 22
	rankBits = 64 - 2*idBits

	maxID     = 1<<idBits - 1
	maxMerges = 1<<rankBits - 1
)

// noMerge ranks behind every merge.
const noMerge = ^uint32(0)

func newMerges(n int) *merges {
	size := 1 << bits.Len(uint(2*n+1))
	return &merges{slots: make([]uint64, size), shift: uint(64 - bits.Len(uint(size-1))), makes: make([]uint32, n)}
}

func pairOf(a, b uint32) uint64 { return uint64(a)<<idBits | uint64(b) }

// add reports whether the pair was new. The ids are at most maxID, and rank is
// below the n of newMerges, itself at most maxMerges.
func (m *merges) add(a, b uint32, rank int, id uint32) bool {
	p := pairOf(a, b)
	for i := m.home(p); ; i = (i + 1) & (len(m.slots) - 1) {
		switch s := &m.slots[i]; {
		case *s == 0:
			*s = p<<rankBits | uint64(rank+1)
			m.makes[rank] = id
			return true
		case *s>>rankBits == p:
			return false
		}
	}
}

// merge is two ids and the one they make.
type merge struct{ a, b, id uint32 }

// list is the merges by rank.
func (m *merges) list() []merge {
	out := make([]merge, len(m.makes))
	used := make([]bool, len(m.makes))
	for _, s := range m.slots {
		if s != 0 {
			rank := s&maxMerges - 1
			out[rank], used[rank] = merge{uint32(s >> (rankBits + idBits)), uint32(s >> rankBits & maxID), m.makes[rank]}, true
		}
	}
	n := 0
	for i, u := range used { // some ranks may have been left out
		if u {
			out[n] = out[i]
			n++
		}
	}
	return out[:n]
}

func (m *merges) home(p uint64) int { return int((p * 0x9e3779b97f4a7c15) >> m.shift) }

// find is the rank of the pair's merge, or noMerge.
func (m *merges) find(a, b uint32) uint32 {
	p := pairOf(a, b)
	for i := m.home(p); ; i = (i + 1) & (len(m.slots) - 1) {
		s := m.slots[i]
		if s>>rankBits == p && s != 0 {
			return uint32(s&maxMerges) - 1
		}
		if s == 0 {
			return noMerge
		}
	}
}

// shortWord is the longest word, in bytes, whose merges are found by looking
// at all pairs; longer ones use a heap.
const shortWord = 48

// appendWord appends the ids of the word w: the pair whose merge has the lowest
// rank is merged, the leftmost of equals first, until no pair has a merge.
func (t *Tokenizer) appendWord(dst []uint32, w string) []uint32 {
	if len(w) > shortWord {
		return t.appendLongWord(dst, w)
	}
	var ids [shortWord]uint32
	var next [shortWord]uint32 // rank of the merge of ids[i] with ids[i+1]
	n := t.symbols(ids[:], w)
	for i := range n - 1 {
		next[i] = t.merges.find(ids[i], ids[i+1])
	}
	for n > 1 {
		best, at := noMerge, 0
		for i, v := range next[:n-1] {
			if v < best {
				best, at = v, i
			}
		}
		if best == noMerge {
			break
		}
		ids[at] = t.merges.makes[best]
		copy(ids[at+1:n-1], ids[at+2:n])
		copy(next[at:n-2], next[at+1:n-1])
		n--
		if at > 0 {
			next[at-1] = t.merges.find(ids[at-1], ids[at])
		}
		if at < n-1 {
			next[at] = t.merges.find(ids[at], ids[at+1])
		}
	}
	return append(dst, ids[:n]...)
}

// link is a token of a long word in a linked list.
type link struct {
	id         uint32
	prev, next int32  // indices, -1 at the ends
	rank       uint32 // of the merge with the next symbol; noMerge once absorbed
}

func (t *Tokenizer) appendLongWord(dst []uint32, w string) []uint32 {
	ids := make([]uint32, len(w))
	syms := make([]link, t.symbols(ids, w))
	for i := range syms {
		syms[i] = link{id: ids[i], prev: int32(i) - 1, next: int32(i) + 1, rank: noMerge}
	}
	syms[len(syms)-1].next = -1
	var queue candidates
	rate := func(i int32) {
		s := &syms[i]
		s.rank = noMerge
		if s.next >= 0 {
			if s.rank = t.merges.find(s.id, syms[s.next].id); s.rank != noMerge {
				queue.push(candidate{s.rank, i})
			}
		}
	}
	for i := range syms {
		rate(int32(i))
	}
	for len(queue) > 0 {
		c := queue.pop()
		s := &syms[c.at]
		if s.rank != c.rank {
			continue // superseded since it was queued
		}
		gone := &syms[s.next]
		s.id = t.merges.makes[c.rank]
		s.next = gone.next
		gone.rank = noMerge
		if s.next >= 0 {
			syms[s.next].prev = c.at
		}
		rate(c.at)
		if s.prev >= 0 {
			rate(s.prev)
		}
	}
	for i := int32(0); i >= 0; i = syms[i].next {
		dst = append(dst, syms[i].id)
	}
	return dst
}

type candidate struct {
	rank uint32
	at   int32
}

func (a candidate) before(b candidate) bool {
	return a.rank < b.rank || a.rank == b.rank && a.at < b.at
}

// candidates is a binary min-heap.
type candidates []candidate

func (h *candidates) push(c candidate) {
	q := append(*h, c)
	i := len(q) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !c.before(q[up]) {
			break
		}
		q[i] = q[up]
		i = up
	}
	q[i] = c
	*h = q
}

func (h *candidates) pop() candidate {
	q := *h
	top, c := q[0], q[len(q)-1]
	q = q[:len(q)-1]
	*h = q
	if len(q) == 0 {
		return top
	}
	i := 0
	for {
		down := 2*i + 1
		if down >= len(q) {
			break
		}
		if down+1 < len(q) && q[down+1].before(q[down]) {
			down++
		}
		if !q[down].before(c) {
			break
		}
		q[i] = q[down]
		i = down
	}
	q[i] = c
	return top
}
