package tlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Published returns the newest checkpoint of the log in dir and the tree that
// it is about. Nothing of it has been verified.
func Published(dir string) (text []byte, tree tlog.Tree, err error) {
	text, err = os.ReadFile(filepath.Join(dir, checkpointFile))
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
