package tlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/mod/sumdb/tlog"
)

// published is a closed log of n decisions, boot and seal.
func published(t *testing.T, n int) (Config, [][]byte) {
	t.Helper()
	cfg := testConfig(t, testKey(t))
	l := mustOpen(t, cfg)
	done := make(chan error)
	for i := range n {
		go func() {
			_, err := l.Append(noDeadline{}, decision(i))
			done <- err
		}()
	}
	for range n {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, l)
	return cfg, leavesOf(t, cfg.Dir)
}

func leavesOf(t *testing.T, dir string) (leaves [][]byte) {
	t.Helper()
	for e, err := range Read(dir, 0) {
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, e.Leaf)
	}
	return leaves
}

func TestEveryRecordIsProvenFromTiles(t *testing.T) {
	for _, n := range []int{1, 253, 254, 255, 700} {
		cfg, leaves := published(t, n)
		for i, leaf := range leaves {
			proof, err := Prove(cfg.Dir, uint64(i))
			if err != nil {
				t.Fatal(err)
			}
			index, err := CheckProof(proof, leaf, cfg.Key.Verifier())
			if err != nil || index != uint64(i) {
				t.Fatalf("proof of record %d of %d: %d, %v", i, len(leaves), index, err)
			}
			if _, err := CheckProof(proof, append(bytes.Clone(leaf), ' '), cfg.Key.Verifier()); err == nil {
				t.Fatalf("proof of record %d holds for another leaf", i)
			}
		}
		if _, err := Prove(cfg.Dir, uint64(len(leaves))); !errors.Is(err, ErrNotFound) {
			t.Errorf("proof beyond the end: %v", err)
		}
		proof, err := Prove(cfg.Dir, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := CheckProof(proof, leaves[0], testKey(t).Verifier()); err == nil {
			t.Error("proof holds under another key")
		}
	}
}

func TestEntryBundlesHoldTheLeaves(t *testing.T) {
	cfg, leaves := published(t, 600)
	var got [][]byte
	for n := int64(0); len(got) < len(leaves); n++ {
		w := min(tileWidth, len(leaves)-len(got))
		data, err := os.ReadFile(filepath.Join(cfg.Dir, tilePath(tlog.Tile{H: tileHeight, L: -1, N: n, W: w})))
		if err != nil {
			t.Fatal(err)
		}
		for len(data) > 0 {
			size := int(binary.BigEndian.Uint16(data))
			got, data = append(got, data[2:2+size]), data[2+size:]
		}
	}
	for i := range leaves {
		if !bytes.Equal(got[i], leaves[i]) {
			t.Fatalf("entry %d is not the leaf", i)
		}
	}
}

func TestTilesAreMadeAgainFromTheLog(t *testing.T) {
	cases := []struct {
		name string
		harm func(t *testing.T, cfg Config)
	}{
		{"all present", func(*testing.T, Config) {}},
		{"all lost", func(t *testing.T, cfg Config) { remove(t, cfg.Dir, "tile") }},
		{"checkpoint lost", func(t *testing.T, cfg Config) { remove(t, cfg.Dir, checkpointFile) }},
		{"right edge damaged", func(t *testing.T, cfg Config) {
			flip(t, filepath.Join(cfg.Dir, "tile/1/000.p/2"), 33)
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cfg, _ := published(t, 600)
			c.harm(t, cfg)
			l := mustOpen(t, cfg)
			mustAppend(t, l, decision(1))
			mustClose(t, l)
			// A damaged edge shows at the first attempt and is mended by the next.
			l = mustOpen(t, cfg)
			mustClose(t, l)
			leaves := leavesOf(t, cfg.Dir)
			for _, i := range []int{0, 255, 256, 511, 512, len(leaves) - 1} {
				proof, err := Prove(cfg.Dir, uint64(i))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := CheckProof(proof, leaves[i], cfg.Key.Verifier()); err != nil {
					t.Errorf("record %d: %v", i, err)
				}
			}
		})
	}
}

func TestTilePathsAreThoseOfC2SP(t *testing.T) {
	for want, tile := range map[string]tlog.Tile{
		"tile/0/000":                {H: 8, L: 0, N: 0, W: 256},
		"tile/2/x001/x234/067":      {H: 8, L: 2, N: 1234067, W: 256},
		"tile/0/273.p/112":          {H: 8, L: 0, N: 273, W: 112},
		"tile/entries/x001/234.p/5": {H: 8, L: -1, N: 1234, W: 5},
	} {
		if got := tilePath(tile); got != want {
			t.Errorf("tilePath(%+v) = %s, want %s", tile, got, want)
		}
	}
}
