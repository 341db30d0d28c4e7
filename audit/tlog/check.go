package tlog

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/sallyport-ai/sallyport/audit"
)

// checker follows batches as a verifier does: leaves into a tree, the tree
// against each trailer and against checkpoints, the keys from one to the next.
type checker struct {
	ring   ring
	at     []heldCheckpoint
	tree   tree
	start  uint64 // where the leaves begin: not at 0 once the log has been pruned
	pruned uint64 // where prune records say that they may
}

// heldCheckpoint is one that the log must extend.
type heldCheckpoint struct {
	checkpoint
	text []byte // as it was signed; nil if the checkpoint was computed
}

// newChecker begins where the leaves of a log do. The tiles give the hashes of
// what was pruned before; the first trailer's root vouches for them.
func newChecker(pinned note.Verifier, w *walker, tiles string, at ...heldCheckpoint) (*checker, error) {
	c := &checker{ring: ring{pinned: pinned}, at: at, start: w.pos.next}
	if c.start == 0 {
		return c, nil
	}
	edge, err := edgeAt(tiles, c.start)
	if err != nil {
		return nil, &Fault{Code: MissingSegment, Detail: fmt.Sprintf("the log begins at record %d, and nothing tells of those before: %v", c.start, err)}
	}
	c.tree = edge
	return c, nil
}

// check checks everything of a batch but its signature, and says whose that
// must be. The error is a *[Fault].
func (c *checker) check(h header, b *batch) error {
	if h.Origin != c.ring.pinned.Name() {
		return b.fault(OriginMismatch, "segment is of log %q, not %q", h.Origin, c.ring.pinned.Name())
	}
	if len(c.ring.held) == 0 {
		if err := c.ring.start(h.Key, c.start); err != nil {
			return b.fault(KeyMismatch, "%v", err)
		}
	}
	if now := c.ring.current(); h.Key != now.vkey {
		return b.fault(KeyMismatch, "segment is signed by %s where the log's key is %s", h.Key, now.vkey)
	}
	b.key = c.ring.current().verifier
	for i := range b.leaves {
		c.tree.add(b.leafHash(i))
		for _, cp := range c.at {
			if c.tree.size == cp.size && c.tree.root() != cp.root {
				if err := c.signed(cp); err != nil {
					return err // it proves nothing
				}
				return b.faultAt(i, RootMismatch, "the tree is not that of the checkpoint of this size")
			}
		}
	}
	switch {
	case b.bare:
	case b.trailer.size != c.tree.size:
		return b.fault(SizeMismatch, "trailer counts %d records where there are %d", b.trailer.size, c.tree.size)
	case b.trailer.root != c.tree.root():
		return b.fault(RootMismatch, "trailer's root is not that of the records")
	}
	return c.heed(b)
}

// A record's fields have a fixed order.
var (
	rotationPrefix = []byte(`{"v":1,"kind":"` + audit.KindKeyRotation + `"`)
	prunePrefix    = []byte(`{"v":1,"kind":"` + audit.KindPrune + `"`)
)

// heed does what the records of a batch say of the log itself.
func (c *checker) heed(b *batch) error {
	for i, leaf := range b.leaves {
		switch {
		case bytes.HasPrefix(leaf, rotationPrefix):
			rot, err := parseRotation(leaf)
			if err == nil && i != len(b.leaves)-1 {
				err = errors.New("records follow under the old key")
			}
			if err == nil {
				err = c.ring.turn(rot, c.tree.size)
			}
			if err != nil {
				return b.faultAt(i, BadRotation, err.Error())
			}
		case bytes.HasPrefix(leaf, prunePrefix):
			prune, err := parsePrune(leaf)
			if err == nil && prune.Size > c.tree.size {
				err = errors.New("records are pruned that there are not")
			}
			if err == nil {
				err = c.ring.recall(prune.Rotations)
			}
			if err != nil {
				return b.faultAt(i, BadRotation, err.Error())
			}
			c.pruned = max(c.pruned, prune.Size)
		}
	}
	return nil
}

// end checks what only the whole log can tell: that it begins where it may, is
// signed by the pinned key or one that follows from it, and reaches its
// checkpoints.
func (c *checker) end() error {
	if c.start > c.pruned {
		return &Fault{Code: MissingSegment, Detail: fmt.Sprintf("the log begins at record %d, and no prune record says so", c.start)}
	}
	if len(c.ring.held) > 0 && !c.ring.met {
		return &Fault{Code: KeyMismatch, Detail: fmt.Sprintf("signed by %s, and no rotation leads to the pinned key", c.ring.current().vkey)}
	}
	for _, cp := range c.at {
		if err := c.signed(cp); err != nil {
			return err
		}
		if c.tree.size < cp.size {
			return &Fault{Code: CheckpointAhead, Index: c.tree.size, Detail: fmt.Sprintf(
				"a signed checkpoint covers %d records and the log holds %d: it was cut back or replaced", cp.size, c.tree.size)}
		}
	}
	return nil
}

// signed checks a checkpoint against the keys of its time. One that is ahead of
// the log may also be under the pinned key: of a later rotation the log may have
// lost the record.
func (c *checker) signed(cp heldCheckpoint) error {
	if cp.text == nil {
		return nil
	}
	keys := c.ring.of(cp.size)
	if cp.size > c.tree.size || len(c.ring.held) == 0 {
		keys = append(keys, c.ring.pinned)
	}
	err := error(&Fault{Code: KeyMismatch, Index: cp.size, Detail: "checkpoint: no key of the log signed trees of its size"})
	for _, key := range keys {
		if _, err = parseCheckpoint(cp.text, key); err == nil {
			return nil
		}
	}
	return err
}

// openCheckpoint reads a checkpoint that the pinned key need not have signed:
// [checker.end] says whether another key may have. The error is a *[Fault].
func openCheckpoint(text []byte, pinned note.Verifier) (heldCheckpoint, error) {
	cp, err := parseCheckpoint(text, pinned)
	var fault *Fault
	if errors.As(err, &fault) && fault.Code == KeyMismatch {
		if cp, err = parseTree(text); err != nil {
			err = &Fault{Code: BadCheckpoint, Detail: err.Error()}
		} else if cp.origin != pinned.Name() {
			err = &Fault{Code: OriginMismatch, Detail: fmt.Sprintf("checkpoint: of log %q, not %q", cp.origin, pinned.Name())}
		}
	}
	return heldCheckpoint{cp, text}, err
}

// leafHash is the hash of a leaf in the tree. It uses the byte before the leaf,
// of which nothing else is needed any more, and so hashes in one piece.
func (b *batch) leafHash(i int) tlog.Hash {
	if b.hashes != nil {
		return b.hashes[i]
	}
	from, to := b.bounds[2*i], b.bounds[2*i+1]
	b.arena[from-1] = 0
	return sha256.Sum256(b.arena[from-1 : to])
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

// isSigned checks a batch's signature.
func (b *batch) isSigned() bool {
	return b.key.Verify(b.trailer.message(b.key.Name(), b.signed), b.trailer.sig[:])
}

// parsePrune reads the event of a prune record.
func parsePrune(leaf []byte) (p audit.Prune, err error) {
	r, err := audit.Decode(leaf)
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(r.Event, &p); err != nil {
		return p, fmt.Errorf("prune record: %w", err)
	}
	return p, nil
}
