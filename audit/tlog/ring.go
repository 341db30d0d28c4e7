package tlog

import (
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/mod/sumdb/note"

	"github.com/sallyport-ai/sallyport/audit"
)

// ring is the keys that sign a log, one after the other, as a reader learns of
// them: the first from the first segment, each further one from a key_rotation
// record that both it and the one before have signed. Nothing of it counts
// until the pinned key is among them.
type ring struct {
	pinned note.Verifier
	met    bool
	held   []heldKey
	// rotations are those seen, first those that a prune record repeats.
	rotations []audit.Turn
}

// heldKey signs the trees of sizes above from, up to where the next one starts.
type heldKey struct {
	verifier note.Verifier
	vkey     string
	from     uint64
}

// parse reads a key of the log. One whose hash is the pinned key's is the pinned
// key: the hash is short, and another key with the same must not pass for it.
func (r *ring) parse(vkey string) (note.Verifier, error) {
	v, err := note.NewVerifier(vkey)
	switch {
	case err != nil:
		return nil, fmt.Errorf("verifier key %q: %w", vkey, err)
	case v.Name() != r.pinned.Name():
		return nil, fmt.Errorf("verifier key %q is of another log than %s", vkey, r.pinned.Name())
	case v.KeyHash() == r.pinned.KeyHash():
		r.met = true
		return r.pinned, nil
	}
	return v, nil
}

// start takes the key that a log begins with, or what a pruned log still has of
// it.
func (r *ring) start(vkey string, from uint64) error {
	v, err := r.parse(vkey)
	if err != nil {
		return err
	}
	r.held = []heldKey{{v, vkey, from}}
	return nil
}

// current signs what comes next.
func (r *ring) current() heldKey { return r.held[len(r.held)-1] }

// turn takes a rotation that stands at the end of a batch: the tree has size
// records.
func (r *ring) turn(rot audit.Rotation, size uint64) error {
	if rot.Old != r.current().vkey {
		return errors.New("the rotation is away from a key that does not sign the log")
	}
	if rot.Size >= size {
		return errors.New("the rotation was signed for a later place")
	}
	next, err := r.check(rot)
	if err != nil {
		return err
	}
	r.held = append(r.held, heldKey{next, rot.New, size})
	r.rotations = append(r.rotations, audit.Turn{Rotation: rot, At: size})
	return nil
}

// check verifies both signatures of a rotation, and returns the new key.
func (r *ring) check(rot audit.Rotation) (note.Verifier, error) {
	old, err := r.parse(rot.Old)
	if err != nil {
		return nil, err
	}
	next, err := r.parse(rot.New)
	if err != nil {
		return nil, err
	}
	msg := rotationMessage(rot)
	if !old.Verify(msg, rot.OldSig) || !next.Verify(msg, rot.NewSig) {
		return nil, errors.New("the rotation is not signed by both keys")
	}
	return next, nil
}

// recall takes the rotations before a pruned log begins, from a prune record.
// They must lead to the key that it begins with.
func (r *ring) recall(turns []audit.Turn) error {
	begins := r.held[0]
	if len(r.rotations) >= len(r.held) || begins.from == 0 {
		return nil // they are known
	}
	r.held[0].from = 0
	if len(turns) == 0 || turns[0].Old == begins.vkey {
		return nil // there were none
	}
	var older []audit.Turn
	var keys []heldKey
	from := uint64(0)
	for i, turn := range turns {
		if i > 0 && (turn.Old != turns[i-1].New || turn.At < from) {
			return errors.New("the rotations do not follow each other")
		}
		if _, err := r.check(turn.Rotation); err != nil {
			return err
		}
		old, err := r.parse(turn.Old)
		if err != nil {
			return err
		}
		older, keys = append(older, turn), append(keys, heldKey{old, turn.Old, from})
		if from = turn.At; turn.New != begins.vkey {
			continue
		}
		r.held[0].from = from
		r.held, r.rotations = append(keys, r.held...), append(older, r.rotations...)
		return nil
	}
	return errors.New("the rotations do not lead to the key that the log begins with")
}

// foresee takes rotations that come after a log of that size.
func (r *ring) foresee(turns []audit.Turn, size uint64) error {
	for _, turn := range turns {
		if len(r.held) == 0 || turn.At <= size || turn.Old != r.current().vkey {
			continue
		}
		next, err := r.check(turn.Rotation)
		if err != nil {
			return err
		}
		r.held = append(r.held, heldKey{next, turn.New, turn.At})
	}
	return nil
}

// of returns the keys that may have signed a tree of that size.
func (r *ring) of(size uint64) []note.Verifier {
	var out []note.Verifier
	for i, k := range r.held {
		if size > k.from && (i+1 == len(r.held) || size <= r.held[i+1].from) {
			out = append(out, k.verifier)
		}
	}
	return out
}

// rotationMessage is what both keys sign.
func rotationMessage(rot audit.Rotation) []byte {
	return fmt.Appendf(nil, "sallyport-key-rotation-v1\x00%s\x00%s\x00%d", rot.Old, rot.New, rot.Size)
}

// parseRotation reads the event of a key_rotation record.
func parseRotation(leaf []byte) (rot audit.Rotation, err error) {
	r, err := audit.Decode(leaf)
	if err != nil {
		return rot, err
	}
	if err := json.Unmarshal(r.Event, &rot); err != nil {
		return rot, fmt.Errorf("key_rotation record: %w", err)
	}
	return rot, nil
}

// signRotation makes the event by which next takes over.
func signRotation(old, next *Key, size uint64) (audit.Rotation, error) {
	rot := audit.Rotation{Old: old.VerifierKey(), New: next.VerifierKey(), Size: size}
	if old.Name() != next.Name() {
		return rot, fmt.Errorf("rotate key: the new key is of %q, not %q", next.Name(), old.Name())
	}
	if rot.Old == rot.New {
		return rot, errors.New("rotate key: the new key is the old one")
	}
	msg := rotationMessage(rot)
	var err, err2 error
	rot.OldSig, err = old.Sign(msg)
	rot.NewSig, err2 = next.Sign(msg)
	return rot, errors.Join(err, err2)
}
