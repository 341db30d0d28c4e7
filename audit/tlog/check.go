package tlog

import (
	"fmt"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// checker follows batches as a verifier does: leaves into a tree, the tree
// against each trailer and against checkpoints.
type checker struct {
	key  note.Verifier
	vkey string // if known, what segment headers must name
	at   []checkpoint
	tree tree
}

// check checks everything of a batch but its signature. The error is a
// *[Fault].
func (c *checker) check(h header, b *batch) error {
	if h.Origin != c.key.Name() {
		return b.fault(OriginMismatch, "segment is of log %q, not %q", h.Origin, c.key.Name())
	}
	if c.vkey != "" && h.Key != c.vkey {
		return b.fault(KeyMismatch, "segment is signed by %s", h.Key)
	}
	for i, leaf := range b.leaves {
		c.tree.add(tlog.RecordHash(leaf))
		for _, cp := range c.at {
			if c.tree.size == cp.size && c.tree.root() != cp.root {
				return b.faultAt(i, RootMismatch, "the tree is not that of the checkpoint of this size")
			}
		}
	}
	switch {
	case b.trailer.size != c.tree.size:
		return b.fault(SizeMismatch, "trailer counts %d records where there are %d", b.trailer.size, c.tree.size)
	case b.trailer.root != c.tree.root():
		return b.fault(RootMismatch, "trailer's root is not that of the records")
	}
	return nil
}

// end checks that the log reaches its checkpoints.
func (c *checker) end() error {
	for _, cp := range c.at {
		if c.tree.size < cp.size {
			return &Fault{Code: CheckpointAhead, Index: c.tree.size, Detail: fmt.Sprintf(
				"a signed checkpoint covers %d records and the log holds %d: it was cut back or replaced", cp.size, c.tree.size)}
		}
	}
	return nil
}

// faultAt is damage to a record of a batch.
func (b *batch) faultAt(i int, code Code, detail string) *Fault {
	return &Fault{Code: code, Index: b.at.next + uint64(i), Segment: b.at.segment, Offset: b.at.offset, Detail: detail}
}

// fault is damage to the trailer of a batch.
func (b *batch) fault(code Code, format string, args ...any) *Fault {
	index := b.at.next + uint64(len(b.leaves))
	return &Fault{
		Code: code, Index: max(index, 1) - 1, Segment: b.at.segment, Offset: b.after.offset - frameHead - trailerSize,
		Detail: "batch trailer after the record: " + fmt.Sprintf(format, args...),
	}
}

// signedBy checks a batch's signature.
func signedBy(key note.Verifier, b *batch) bool {
	return key.Verify(b.trailer.message(key.Name(), b.signed), b.trailer.sig[:])
}
