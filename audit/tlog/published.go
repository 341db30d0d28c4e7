package tlog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/sallyport-ai/sallyport/audit/durable"
)

// Published returns the newest checkpoint of the log in dir and the tree that
// it is about. Nothing of it has been verified.
func Published(dir string) (text []byte, tree tlog.Tree, err error) {
	return readTree(dir, checkpointFile)
}

// Anchored is like Published, of the newest checkpoint that enough witnesses
// cosigned. [ErrNotFound]: there is none.
func Anchored(dir string) (text []byte, tree tlog.Tree, err error) {
	return readTree(dir, anchoredFile)
}

// Covering returns a checkpoint that covers so many records: one that enough
// witnesses cosigned if there is such, else the newest. Nothing of it has been
// verified.
func Covering(dir string, records uint64) (text []byte, tree tlog.Tree, err error) {
	if text, tree, err = Anchored(dir); err == nil && uint64(tree.N) >= records {
		return text, tree, nil
	}
	return Published(dir)
}

func readTree(dir, file string) (text []byte, tree tlog.Tree, err error) {
	text, err = os.ReadFile(filepath.Join(dir, file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, tree, fmt.Errorf("%w: no checkpoint yet", ErrNotFound)
	}
	if err != nil {
		return nil, tree, fmt.Errorf("read checkpoint: %w", err)
	}
	cp, err := parseTree(text)
	if err != nil {
		return nil, tree, err
	}
	return text, tlog.Tree{N: int64(cp.size), Hash: cp.root}, nil
}

// maxCheckpointFile bounds what is taken for a checkpoint: a dozen cosignatures
// of ML-DSA-44 have 40 KiB.
const maxCheckpointFile = 256 << 10

// ReadCheckpointFile reads a checkpoint from a file, with the name of the log
// that it says it is of. The error says that the file holds none. Nothing of it
// has been verified.
func ReadCheckpointFile(path string) (origin string, text []byte, err error) {
	if text, err = durable.ReadRegular(path, maxCheckpointFile); err != nil {
		return "", nil, fmt.Errorf("read checkpoint: %w", err)
	}
	cp, err := parseTree(text)
	if err == nil && !bytes.Contains(text, []byte("\n\n\u2014 ")) {
		err = errors.New("not a signed note")
	}
	if err != nil {
		return "", nil, fmt.Errorf("%s is no checkpoint: %w", path, err)
	}
	return cp.origin, text, nil
}

// Hashes reads the hashes of a published tree from the tiles in dir, and holds
// each against the tree's root.
func Hashes(dir string, tree tlog.Tree) tlog.HashReader {
	return tlog.TileHashReader(tree, tileDir(dir))
}

// OpenCheckpoint verifies a checkpoint against a pinned key, and returns its
// tree. The error is a *[Fault].
func OpenCheckpoint(text []byte, key note.Verifier) (tlog.Tree, error) {
	cp, err := parseCheckpoint(text, key)
	return tlog.Tree{N: int64(cp.size), Hash: cp.root}, err
}
