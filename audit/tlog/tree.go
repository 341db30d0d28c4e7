package tlog

import (
	"math/bits"

	"golang.org/x/mod/sumdb/tlog"
)

// tree is the right edge of an RFC 6962 tree: enough to add leaves and to
// compute the root, in constant space. The zero value is the empty tree.
type tree struct {
	size uint64
	// edge[i] is the root of the complete subtree of 2^i leaves that ends
	// where bit i of size says, and means nothing where that bit is 0.
	edge [maxTreeHeight]tlog.Hash
}

// maxTreeHeight bounds a log to 2^48 records.
const maxTreeHeight = 48

// add grows the tree by one leaf hash.
func (t *tree) add(h tlog.Hash) {
	level := 0
	for ; t.size>>level&1 == 1; level++ {
		h = tlog.NodeHash(t.edge[level], h)
	}
	t.edge[level] = h
	t.size++
}

// root is the tree's Merkle tree hash.
func (t *tree) root() tlog.Hash {
	if t.size == 0 {
		empty, _ := tlog.TreeHash(0, nil) // size 0 reads no hashes and cannot fail
		return empty
	}
	level := bits.TrailingZeros64(t.size)
	h := t.edge[level]
	for level++; level < bits.Len64(t.size); level++ {
		if t.size>>level&1 == 1 {
			h = tlog.NodeHash(t.edge[level], h)
		}
	}
	return h
}
