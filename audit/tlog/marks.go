package tlog

import "sort"

// marks are batch positions, one for every markEvery records or so, from which
// a record can be found by reading on.
type marks []position

const markEvery = 256

// add notes a batch; batches come in order.
func (m *marks) add(at position) {
	if n := len(*m); n == 0 || at.next >= (*m)[n-1].next+markEvery || at.segment != (*m)[n-1].segment {
		*m = append(*m, at)
	}
}

// before returns the last mark at or before a record.
func (m marks) before(index uint64) (position, bool) {
	i := sort.Search(len(m), func(i int) bool { return m[i].next > index })
	if i == 0 {
		return position{}, false
	}
	return m[i-1], true
}
