package tlog

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

const proofHeader = "c2sp.org/tlog-proof@v1"

// Prove returns a self-contained proof that the record at index is in the
// published tree of the log in dir, in the form of
// https://c2sp.org/tlog-proof:
//
//	c2sp.org/tlog-proof@v1
//	index <index>
//	<base64 hash>, from the leaf's sibling to the root's child
//
//	<checkpoint>
//
// It reads tiles and checkpoints only, so a record can be proven once it is
// covered by a checkpoint, within a second of its append. If one that witnesses
// cosigned covers it, the proof bears that.
func Prove(dir string, index uint64) ([]byte, error) {
	text, tree, err := Covering(dir, index+1)
	if err != nil {
		return nil, fmt.Errorf("prove record %d: %w", index, err)
	}
	if index >= uint64(tree.N) {
		return nil, fmt.Errorf("%w: index %d is not below the checkpoint's %d", ErrNotFound, index, tree.N)
	}
	proof, err := tlog.ProveRecord(tree.N, int64(index), Hashes(dir, tree))
	if err != nil {
		return nil, fmt.Errorf("prove record %d: %w", index, err)
	}
	out := fmt.Appendf(nil, "%s\nindex %d\n", proofHeader, index)
	for _, h := range proof {
		out = fmt.Appendf(out, "%s\n", h)
	}
	return append(append(out, '\n'), text...), nil
}

// CheckProof checks a proof against a pinned key, and returns the index that
// it proves leaf to have.
func CheckProof(proof, leaf []byte, key note.Verifier) (index uint64, err error) {
	if key == nil {
		return 0, ErrNoKey
	}
	head, text, ok := bytes.Cut(proof, []byte("\n\n"))
	lines := strings.Split(string(head), "\n")
	if !ok || lines[0] != proofHeader {
		return 0, fmt.Errorf("proof does not start with %s", proofHeader)
	}
	lines = lines[1:]
	if len(lines) > 0 && strings.HasPrefix(lines[0], "extra ") {
		lines = lines[1:] // opaque, and authenticated by nothing
	}
	if len(lines) == 0 {
		return 0, errors.New("proof has no index")
	}
	digits, ok := strings.CutPrefix(lines[0], "index ")
	index, err = strconv.ParseUint(digits, 10, 63)
	if !ok || err != nil || strconv.FormatUint(index, 10) != digits {
		return 0, fmt.Errorf("proof has index line %q", lines[0])
	}
	path := make(tlog.RecordProof, 0, len(lines)-1)
	for _, line := range lines[1:] {
		h, err := base64.StdEncoding.Strict().DecodeString(line)
		if err != nil || len(h) != tlog.HashSize {
			return 0, fmt.Errorf("proof has hash line %q", line)
		}
		path = append(path, tlog.Hash(h))
	}
	cp, err := parseCheckpoint(text, key)
	if err != nil {
		return 0, err
	}
	if index >= cp.size {
		return 0, fmt.Errorf("proof is of record %d in a tree of %d", index, cp.size)
	}
	if err := tlog.CheckRecord(path, int64(cp.size), cp.root, int64(index), tlog.RecordHash(leaf)); err != nil {
		return 0, fmt.Errorf("proof does not hold: %w", err)
	}
	return index, nil
}

// tileDir reads the tiles in a log directory. It is a [tlog.TileReader].
type tileDir string

func (d tileDir) Height() int { return tileHeight }

func (d tileDir) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	data := make([][]byte, len(tiles))
	for i, t := range tiles {
		hashes, err := readTile(string(d), t)
		if err != nil {
			return nil, err
		}
		data[i] = hashBytes(hashes)
	}
	return data, nil
}

// SaveTiles has nothing to do: the tiles are files already.
func (d tileDir) SaveTiles([]tlog.Tile, [][]byte) {}
