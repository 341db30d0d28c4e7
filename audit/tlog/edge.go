package tlog

import (
	"fmt"
	"math/bits"

	"golang.org/x/mod/sumdb/tlog"
)

// edgeAt is the tree of the first size records, from the tiles in dir. That it
// is theirs, a root that somebody signed must say.
func edgeAt(dir string, size uint64) (tree, error) {
	t := tree{size: size}
	for level := range bits.Len64(size) {
		if size>>level&1 == 0 {
			continue
		}
		index := tlog.StoredHashIndex(level, int64(size>>level)-1)
		tile := tlog.TileForIndex(tileHeight, index)
		hashes, err := readTile(dir, tile)
		if err != nil {
			return tree{}, err
		}
		if t.edge[level], err = tlog.HashFromTile(tile, hashBytes(hashes), index); err != nil {
			return tree{}, fmt.Errorf("tree of %d records: %w", size, err)
		}
	}
	return t, nil
}
