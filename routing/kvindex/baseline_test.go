package kvindex

import (
	"math/bits"
	"slices"
	"sync"
	"testing"
	"time"
)

// table is the index that one would write first: the hash of each prefix to
// the bitset of the replicas that hold it, in shards with a lock each.
type table struct {
	shards [256]struct {
		mu sync.RWMutex
		m  map[uint64]bitset
	}
}

type bitset [16]uint64 // 1,024 replicas

func newTable() *table {
	t := new(table)
	for i := range t.shards {
		t.shards[i].m = make(map[uint64]bitset)
	}
	return t
}

// prefixes turns the block ids of a prompt into the hashes of its prefixes.
func prefixes(ids []uint64) []uint64 {
	out := make([]uint64, len(ids))
	h := uint64(1)
	for i, id := range ids {
		hi, lo := bits.Mul64(h^0x9e3779b97f4a7c15, id|1)
		h = hi ^ lo ^ id
		out[i] = h
	}
	return out
}

func (t *table) hold(replica int, path []uint64, from int) {
	for _, h := range prefixes(path)[from:] {
		s := &t.shards[h>>56]
		s.mu.Lock()
		set := s.m[h]
		set[replica/64] |= 1 << (replica % 64)
		s.m[h] = set
		s.mu.Unlock()
	}
}

func (t *table) match(dst []Match, hashes []uint64) []Match {
	var alive bitset
	for depth, h := range hashes {
		s := &t.shards[h>>56]
		s.mu.RLock()
		set := s.m[h]
		s.mu.RUnlock()
		some := uint64(0)
		for w := range alive {
			if depth > 0 {
				if gone := alive[w] &^ set[w]; gone != 0 {
					dst = takeWord(dst, w, gone, depth)
				}
				set[w] &= alive[w]
			}
			some |= set[w]
		}
		if alive = set; some == 0 {
			return dst
		}
	}
	return takeAll(dst, alive[:], len(hashes))
}

// TestMatchIsSixtyTimesFasterThanATableOfPrefixes gates on the ratio of two
// medians of one run, taken in turns: it holds on any machine, however busy.
func TestMatchIsSixtyTimesFasterThanATableOfPrefixes(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("a measurement: not in short mode nor under the race detector")
	}
	const replicas, blocks, least = 1000, 2048, 60
	ix, tab := newIndex(t, Config{}), newTable()
	prompts := conversations(t, ix, replicas, 1000, blocks, tab.hold)
	var ours, theirs []time.Duration
	a, b := make([]Match, 0, replicas), make([]Match, 0, replicas)
	ids := make([]uint64, blocks)
	for i := range min(len(prompts), 300) {
		copy(ids, prompts[i])
		at := time.Now()
		a = ix.Match(a[:0], 1, ids)
		ours = append(ours, time.Since(at))
		hashes := prefixes(prompts[i])
		at = time.Now()
		b = tab.match(b[:0], hashes)
		theirs = append(theirs, time.Since(at))
		if !sameMatches(a, b) {
			t.Fatalf("prompt %d: the index says %v, the table %v", i, a, b)
		}
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	x, y := ours[len(ours)/2], theirs[len(theirs)/2]
	t.Logf("median %v against %v: %.0f times", x, y, float64(y)/float64(x))
	if y < least*x {
		t.Errorf("median %v, table of prefixes %v: %.0f times, want %d", x, y, float64(y)/float64(x), least)
	}
}

func sameMatches(a, b []Match) bool {
	am, bm := depths(a), depths(b)
	if len(am) != len(bm) {
		return false
	}
	for r, d := range am {
		if bm[r] != d {
			return false
		}
	}
	return true
}
