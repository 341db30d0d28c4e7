package tlog

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"
)

// Tiles are 256 hashes wide, as https://c2sp.org/tlog-tiles has them.
const (
	tileHeight = 8
	tileWidth  = 1 << tileHeight
)

// publishLoop keeps the published form of the log, tiles and checkpoint, up
// with it. It reads the segments as any follower would, so that publishing
// costs the commit loop nothing and can always be done again.
func (l *Log) publishLoop(ctx context.Context, rec *recovered) {
	p := &publisher{dir: l.cfg.Dir, reach: l.cfg.reach, start: rec.start}
	p.reset()
	if rec.clean {
		p.resume(rec.published)
	}
	tick := time.NewTicker(l.cfg.CheckpointEvery)
	defer tick.Stop()
	publish := func(last bool) {
		err := p.publish(l, last)
		switch {
		case err == nil:
			l.unpublished.Store(0)
		case l.unpublished.Add(1) == 1:
			l.cfg.Logger.Error("audit log checkpoint not published", "error", err)
		}
	}
	for publish(false); ; {
		select {
		case <-tick.C:
			publish(false)
		case <-ctx.Done():
			<-l.done
			publish(true)
			return
		}
	}
}

// publisher derives tiles from leaves.
type publisher struct {
	dir    string
	reach  func(point string) error
	start  uint64        // leaves below it are gone: their hashes are on disk
	size   uint64        // leaves taken in
	levels [][]tlog.Hash // the open tile of each level
	bundle []byte        // the open entry bundle
	// partial says that the open bundle lacks leaves, which were pruned: it is
	// then left as it is on disk.
	partial bool
	signed  uint64 // size of the last checkpoint written
}

// publish brings the published form up to the log's head.
func (p *publisher) publish(l *Log, last bool) error {
	head, at := l.Head(), time.Now()
	if head.Size == p.signed {
		return nil
	}
	if err := l.inPlace(); err != nil {
		return err
	}
	if err := p.read(l, head.Size); err != nil {
		p.reset() // what is on disk is as it was; the next attempt starts over
		return err
	}
	root, err := p.root()
	if err == nil && root != head.Root {
		err = fmt.Errorf("tiles of %d records give root %s, not %s", head.Size, root, head.Root)
	}
	if err != nil {
		p.reset()
		return err
	}
	if err := p.writePartial(last); err != nil {
		return err
	}
	note, err := signCheckpoint(head.key, head.Size, head.Root)
	if err != nil {
		return err
	}
	if err := p.reach("checkpoint"); err != nil {
		return err
	}
	l.checkpointing.Lock()
	err = replaceFile(filepath.Join(p.dir, checkpointFile), note, true)
	l.checkpointing.Unlock()
	if err != nil {
		return err
	}
	p.signed = head.Size
	l.publishedSize.Store(head.Size)
	l.announce(head.Size, at)
	return nil
}

// announce tells who waits for it that a checkpoint of the log as it was at a
// time has been published.
func (l *Log) announce(size uint64, at time.Time) {
	if l.anchorer == nil {
		return
	}
	l.published.add(size, at)
	select {
	case l.anchorer.wake <- struct{}{}:
	default: // it has been told already
	}
}

// inPlace returns [errDisplaced] if the directory is not, or was not, the log's
// own any more. Nothing may then be put there.
func (l *Log) inPlace() error {
	if err := l.Err(); errors.Is(err, errDisplaced) {
		return err
	}
	return l.main.lock.check()
}

// reset starts over, from the first leaf that there is.
func (p *publisher) reset() {
	*p = publisher{dir: p.dir, reach: p.reach, start: p.start, signed: p.signed}
	if err := p.from(p.start); err != nil {
		p.size, p.levels = p.start, nil // the root will not be right, and says so
	}
}

// from goes on at a size, with the tiles that are on disk.
func (p *publisher) from(size uint64) error {
	p.size, p.levels, p.partial = size, nil, size%tileWidth > 0
	for level := 0; size>>(tileHeight*level) > 0; level++ {
		hashes, err := readTile(p.dir, p.openTile(level))
		if err != nil {
			return err
		}
		p.levels = append(p.levels, hashes)
	}
	return nil
}

// read takes in the leaves up to size.
func (p *publisher) read(l *Log, size uint64) error {
	w, err := l.walkTo(p.size)
	if err != nil {
		return err
	}
	defer w.Close()
	for p.size < size {
		b, err := w.batch()
		if err != nil {
			return fmt.Errorf("read back record %d: %w", p.size, err)
		}
		for i, leaf := range b.leaves {
			if b.at.next+uint64(i) != p.size {
				continue // before where we stopped
			}
			if err := p.add(leaf, b.leafHash(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// add takes in one leaf, and its hash in the tree.
func (p *publisher) add(leaf []byte, hash tlog.Hash) error {
	p.bundle = binary.BigEndian.AppendUint16(p.bundle, uint16(len(leaf)))
	p.bundle = append(p.bundle, leaf...)
	p.size++
	if p.size%tileWidth == 0 {
		if err := p.writeBundle(tlog.Tile{H: tileHeight, L: -1, N: int64(p.size/tileWidth) - 1, W: tileWidth}); err != nil {
			return err
		}
		p.bundle, p.partial = p.bundle[:0], false
	}
	return p.push(0, hash)
}

// push adds a hash to the open tile of a level, and the root of a full tile to
// the level above.
func (p *publisher) push(level int, h tlog.Hash) error {
	if level == len(p.levels) {
		p.levels = append(p.levels, nil)
	}
	p.levels[level] = append(p.levels[level], h)
	if len(p.levels[level]) < tileWidth {
		return nil
	}
	data := hashBytes(p.levels[level])
	n := int64(p.size>>(tileHeight*(level+1))) - 1
	if err := p.writeTile(tlog.Tile{H: tileHeight, L: level, N: n, W: tileWidth}, data); err != nil {
		return err
	}
	var top tree
	for _, h := range p.levels[level] {
		top.add(h)
	}
	p.levels[level] = p.levels[level][:0]
	return p.push(level+1, top.root())
}

// writePartial writes the open tiles, and at the end the open bundle.
func (p *publisher) writePartial(last bool) error {
	for level, hashes := range p.levels {
		if err := p.writeTile(p.openTile(level), hashBytes(hashes)); err != nil {
			return err
		}
	}
	if last {
		t := p.openTile(0)
		t.L = -1
		return p.writeBundle(t)
	}
	return nil
}

// writeBundle writes the open bundle, if it is whole.
func (p *publisher) writeBundle(t tlog.Tile) error {
	if p.partial {
		return nil
	}
	return p.writeTile(t, p.bundle)
}

// openTile is the tile of a level that is not full yet; its width may be 0.
func (p *publisher) openTile(level int) tlog.Tile {
	n := p.size >> (tileHeight * level)
	return tlog.Tile{H: tileHeight, L: level, N: int64(n / tileWidth), W: int(n % tileWidth)}
}

// root is the tree's root as the open tiles have it.
func (p *publisher) root() (tlog.Hash, error) {
	return tlog.TreeHash(int64(p.size), tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(indexes))
		for i, index := range indexes {
			level := tlog.TileForIndex(tileHeight, index).L
			t := p.openTile(level)
			h, err := tlog.HashFromTile(t, hashBytes(p.levels[level]), index)
			if err != nil {
				return nil, fmt.Errorf("right edge: %w", err)
			}
			out[i] = h
		}
		return out, nil
	}))
}

// writeTile writes one tile or bundle, unless it is there already, and removes
// the partial ones that a full one replaces.
func (p *publisher) writeTile(t tlog.Tile, data []byte) error {
	if t.W == 0 {
		return nil
	}
	path := filepath.Join(p.dir, tilePath(t))
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("write tile: %w", err)
	}
	if err := p.reach("tile"); err != nil {
		return err
	}
	if err := replaceFile(path, data, false); err != nil {
		return err
	}
	if t.W < tileWidth {
		return nil
	}
	if err := os.RemoveAll(path + ".p"); err != nil {
		return fmt.Errorf("remove partial tiles: %w", err)
	}
	return nil
}

// resume goes on from the tiles of an earlier run, from the last full tile of
// leaves. If they are not what they should be, the first root says so and
// publishing starts over.
func (p *publisher) resume(size uint64) {
	size, p.signed = max(size, p.start), size
	if at := size &^ (tileWidth - 1); at >= p.start {
		size = at
	}
	if p.from(size) != nil {
		p.reset()
	}
}

// readTile reads the hashes of a tile, from a wider one if that is all there
// is.
func readTile(dir string, t tlog.Tile) ([]tlog.Hash, error) {
	if t.W == 0 {
		return nil, nil
	}
	path, err := tileFile(dir, t)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read tile: %w", err)
	}
	if len(data) < t.W*tlog.HashSize {
		return nil, fmt.Errorf("read tile %s: %w", tilePath(t), io.ErrUnexpectedEOF)
	}
	hashes := make([]tlog.Hash, t.W)
	for i := range hashes {
		hashes[i] = tlog.Hash(data[i*tlog.HashSize:])
	}
	return hashes, nil
}

// tileFile is the file that holds a tile: its own, that of a wider partial one,
// or that of the full one.
func tileFile(dir string, t tlog.Tile) (string, error) {
	full := t
	full.W = tileWidth
	for _, path := range []string{tilePath(t), tilePath(full)} {
		path = filepath.Join(dir, path)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	partial := filepath.Join(dir, tilePath(full)) + ".p"
	entries, err := os.ReadDir(partial)
	if err != nil {
		return "", fmt.Errorf("read tile: %w", err)
	}
	for _, e := range entries {
		if w, err := strconv.Atoi(e.Name()); err == nil && w >= t.W {
			return filepath.Join(partial, e.Name()), nil
		}
	}
	return "", fmt.Errorf("read tile: %w: %s", fs.ErrNotExist, tilePath(t))
}

func hashBytes(hashes []tlog.Hash) []byte {
	b := make([]byte, 0, len(hashes)*tlog.HashSize)
	for _, h := range hashes {
		b = append(b, h[:]...)
	}
	return b
}

// tilePath is the C2SP path of a tile: that of package sumdb/tlog without the
// height, and with the level of entry bundles by its other name.
func tilePath(t tlog.Tile) string {
	path := strings.TrimPrefix(t.Path(), fmt.Sprintf("tile/%d/", tileHeight))
	if rest, ok := strings.CutPrefix(path, "data/"); ok {
		path = "entries/" + rest
	}
	return "tile/" + path
}
