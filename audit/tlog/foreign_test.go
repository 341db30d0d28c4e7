package tlog

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	tfl "github.com/transparency-dev/formats/log"
	tfp "github.com/transparency-dev/formats/proof"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// foreignTiles reads tiles by the paths of the specification, with nothing of
// this package's own.
type foreignTiles struct {
	t   *testing.T
	dir string
}

func (f foreignTiles) Height() int { return 8 }

func (f foreignTiles) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	var out [][]byte
	for _, tile := range tiles {
		path := strings.Replace(tile.Path(), "tile/8/", "tile/", 1)
		data, err := os.ReadFile(filepath.Join(f.dir, filepath.FromSlash(path)))
		if err != nil && tile.W < 256 { // a full one replaces those that are not
			whole := tile
			whole.W = 256
			data, err = os.ReadFile(filepath.Join(f.dir, filepath.FromSlash(strings.Replace(whole.Path(), "tile/8/", "tile/", 1))))
			data = data[:min(len(data), tile.W*tlog.HashSize)]
		}
		if err != nil {
			return nil, err
		}
		out = append(out, data)
	}
	return out, nil
}

func (foreignTiles) SaveTiles([]tlog.Tile, [][]byte) {}

// The log as people with other code see it: checkpoint, tiles, entry bundles,
// consistency with an older checkpoint, and proofs.
func TestCodeThatIsNotOursVerifiesTheLog(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	l := mustOpen(t, cfg)
	for i := range 300 {
		mustAppend(t, l, decision(i))
	}
	mustClose(t, l)
	read := func() (*tfl.Checkpoint, []byte) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(cfg.Dir, "checkpoint"))
		if err != nil {
			t.Fatal(err)
		}
		verifier, err := note.NewVerifier(cfg.Key.VerifierKey())
		if err != nil {
			t.Fatal(err)
		}
		cp, _, _, err := tfl.ParseCheckpoint(text, origin, verifier)
		if err != nil {
			t.Fatal(err)
		}
		return cp, text
	}
	old, _ := read()
	l = mustOpen(t, cfg)
	for i := range 700 {
		mustAppend(t, l, decision(i))
	}
	mustClose(t, l)
	cp, text := read()
	if old.Size < 300 || cp.Size <= old.Size {
		t.Fatalf("checkpoints of %d and %d records", old.Size, cp.Size)
	}
	tree := tlog.Tree{N: int64(cp.Size), Hash: tlog.Hash(cp.Hash)}
	hashes := tlog.TileHashReader(tree, foreignTiles{t, cfg.Dir})

	// The root follows from the tiles, and the new tree extends the old one.
	if root, err := tlog.TreeHash(tree.N, hashes); err != nil || root != tree.Hash {
		t.Errorf("root of the tiles %s, %v; the checkpoint's is %s", root, err, tree.Hash)
	}
	consistency, err := tlog.ProveTree(tree.N, int64(old.Size), hashes)
	if err == nil {
		err = tlog.CheckTree(consistency, tree.N, tree.Hash, int64(old.Size), tlog.Hash(old.Hash))
	}
	if err != nil {
		t.Errorf("consistency: %v", err)
	}
	// Each record of the log is in the tree where it says, and in its bundle.
	for e, err := range Read(cfg.Dir, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Index%37 != 0 && e.Index != cp.Size-1 {
			continue
		}
		inclusion, err := tlog.ProveRecord(tree.N, int64(e.Index), hashes)
		if err == nil {
			err = tlog.CheckRecord(inclusion, tree.N, tree.Hash, int64(e.Index), tlog.RecordHash(e.Leaf))
		}
		if err != nil {
			t.Errorf("record %d: %v", e.Index, err)
		}
		// And the self-contained proof, as others parse it.
		raw, err := Prove(cfg.Dir, e.Index)
		if err != nil {
			t.Fatal(err)
		}
		var proof tfp.TLogProof
		if err := proof.Unmarshal(raw); err != nil {
			t.Fatalf("proof of record %d: %v\n%s", e.Index, err, raw)
		}
		if proof.Index != e.Index || !bytes.Equal(proof.Checkpoint, text) {
			t.Errorf("proof of record %d is of %d under\n%s", e.Index, proof.Index, proof.Checkpoint)
		}
		if !bytes.Equal(proof.Marshal(), raw) {
			t.Errorf("proof of record %d is written otherwise:\n%s\n%s", e.Index, raw, proof.Marshal())
		}
		var path tlog.RecordProof
		for _, h := range proof.Hashes {
			path = append(path, tlog.Hash(h[:]))
		}
		if err := tlog.CheckRecord(path, tree.N, tree.Hash, int64(proof.Index), tlog.RecordHash(e.Leaf)); err != nil {
			t.Errorf("proof of record %d: %v", e.Index, err)
		}
	}
}
