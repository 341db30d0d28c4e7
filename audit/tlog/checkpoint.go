package tlog

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// checkpoint is a verified signed note over a tree. The zero value is that of
// the empty tree, which every log extends.
type checkpoint struct {
	origin string
	size   uint64
	root   tlog.Hash
}

const checkpointFile = "checkpoint"

// readCheckpoint reads dir's checkpoint file, if there is one.
func readCheckpoint(dir string, pinned note.Verifier) (heldCheckpoint, error) {
	text, err := os.ReadFile(filepath.Join(dir, checkpointFile))
	if errors.Is(err, fs.ErrNotExist) {
		return heldCheckpoint{}, nil
	}
	if err != nil {
		return heldCheckpoint{}, fmt.Errorf("read checkpoint: %w", err)
	}
	return openCheckpoint(text, pinned)
}

// parseCheckpoint verifies a checkpoint in the form of
// https://c2sp.org/tlog-checkpoint:
//
//	<origin>
//	<tree size>
//	<base64 root>
//
//	— <key name> <base64 signature>
//
// The error is a *[Fault]. The origin line is compared too: a note's
// signature alone does not say which of a key's logs it is about.
func parseCheckpoint(text []byte, key note.Verifier) (checkpoint, error) {
	bad := func(code Code, format string, args ...any) (checkpoint, error) {
		return checkpoint{}, &Fault{Code: code, Detail: "checkpoint: " + fmt.Sprintf(format, args...)}
	}
	signed, err := note.Open(text, note.VerifierList(key))
	var unknown *note.UnverifiedNoteError
	if errors.As(err, &unknown) {
		return bad(KeyMismatch, "signed by other keys than %s+%08x", key.Name(), key.KeyHash())
	}
	if err != nil {
		return bad(BadCheckpoint, "%v", err)
	}
	for _, sig := range signed.Sigs {
		// Package note ignores the spare bits of the last digit.
		if _, err := base64.StdEncoding.Strict().DecodeString(sig.Base64); err != nil {
			return bad(BadCheckpoint, "%v", err)
		}
	}
	cp, err := parseTree(text)
	switch {
	case err != nil:
		return bad(BadCheckpoint, "%v", err)
	case cp.origin != key.Name():
		return bad(OriginMismatch, "of log %q, not %q", cp.origin, key.Name())
	}
	return cp, nil
}

// parseTree reads a checkpoint without verifying it.
func parseTree(text []byte) (checkpoint, error) {
	lines := bytes.SplitN(text, []byte("\n"), 4)
	if len(lines) < 4 {
		return checkpoint{}, errors.New("checkpoint of fewer than three lines")
	}
	size, err := strconv.ParseUint(string(lines[1]), 10, maxTreeHeight)
	if err != nil {
		return checkpoint{}, errors.New("checkpoint's second line is no tree size") // and any file's might be quoted
	}
	root, err := tlog.ParseHash(string(lines[2]))
	if err != nil {
		return checkpoint{}, fmt.Errorf("checkpoint's root: %w", err)
	}
	return checkpoint{origin: string(lines[0]), size: size, root: root}, nil
}

// signCheckpoint is the inverse of parseCheckpoint.
func signCheckpoint(key *Key, size uint64, root tlog.Hash) ([]byte, error) {
	text := fmt.Sprintf("%s\n%d\n%s\n", key.Name(), size, root)
	signed, err := note.Sign(&note.Note{Text: text}, key)
	if err != nil {
		return nil, fmt.Errorf("sign checkpoint: %w", err)
	}
	return signed, nil
}
