package tlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/durable"
)

// Rotate has another key of the same name sign the log from the next batch on.
// The record of it is signed by both, and is the last under the old key.
func (l *Log) Rotate(ctx context.Context, next *Key) (audit.Rotation, error) {
	l.pruning.Lock() // a prune record repeats the rotations
	defer l.pruning.Unlock()
	rot, err := signRotation(l.signer.Load(), next, l.Head().Size)
	if err != nil {
		return rot, err
	}
	raw, err := json.Marshal(rot)
	if err != nil {
		return rot, fmt.Errorf("encode key_rotation record: %w", err)
	}
	r := &audit.Record{Kind: audit.KindKeyRotation, ID: audit.NewID(), Gateway: &l.cfg.Boot, Event: raw}
	e, err := l.encode(r)
	if err != nil {
		return rot, err
	}
	e.next = next
	if err := l.enqueue(e, r, false); err != nil {
		return rot, err
	}
	// Not given up half way: whether the key changed must be known.
	if err := <-e.done; err != nil {
		return rot, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rotations = append(slices.Clone(l.rotations), audit.Turn{Rotation: rot, At: r.Log.Seq + 1})
	return rot, context.Cause(ctx)
}

func (l *Log) rotationsNow() []audit.Turn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rotations
}

// NextKeyFile is where a key waits that is about to take over from the one at
// path.
func NextKeyFile(path string) string { return path + ".next" }

// RotateKeyFile changes the key of the log that cfg describes, whose key is in a
// file, and returns the new verifier key. The new key is on disk before the log
// knows of it, and takes the old one's place after: if that is cut short, the
// next call finishes it. The log must not be open.
func RotateKeyFile(ctx context.Context, cfg Config, path string) (vkey string, err error) {
	old, err := ReadKeyFile(path)
	if err != nil {
		return "", err
	}
	next, err := nextKey(path, old.Name())
	if err != nil {
		return "", err
	}
	cfg.Key = old
	l, err := Open(cfg)
	var fault *Fault
	if errors.As(err, &fault) && fault.Code == KeyMismatch {
		// The log has turned already, if it opens with the key that waits.
		cfg.Key = next
		l, openErr := Open(cfg)
		if openErr != nil {
			return "", errors.Join(err, openErr)
		}
		return next.VerifierKey(), errors.Join(l.Close(), takeOver(path))
	}
	if err != nil {
		return "", err
	}
	if _, err := l.Rotate(ctx, next); err != nil {
		return "", errors.Join(err, l.Close())
	}
	return next.VerifierKey(), errors.Join(l.Close(), takeOver(path))
}

// nextKey reads the key that waits, or makes one.
func nextKey(path, name string) (*Key, error) {
	next, err := ReadKeyFile(NextKeyFile(path))
	if !errors.Is(err, fs.ErrNotExist) {
		return next, err
	}
	if _, err := CreateKeyFile(NextKeyFile(path), name); err != nil {
		return nil, err
	}
	return ReadKeyFile(NextKeyFile(path))
}

// takeOver puts the key that waits in the place of the old one, which is then
// gone.
func takeOver(path string) error {
	if err := os.Rename(NextKeyFile(path), path); err != nil {
		return fmt.Errorf("rotate key: %w", err)
	}
	return durable.SyncDir(filepath.Dir(path))
}
