package tlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/durable"
)

// PruneOptions say what may go. At least one bound is needed; a record goes only
// if all allow it.
type PruneOptions struct {
	Before time.Time // records that are older
	Below  uint64    // records with a smaller index
	Reason string    // for the record
	By     string    // who asked for it, for the record
}

// ErrNothingToPrune says that there is no whole segment of such records.
var ErrNothingToPrune = errors.New("nothing to prune")

// Prune destroys the leaves of the oldest segments, in both directories, and the
// entry bundles that hold nothing else. Their hashes stay, so that proofs of
// what is kept and consistency with old checkpoints go on to work. A record of
// it is durable before anything is gone; if the log then stops half way, opening
// it finishes the work.
//
// Whole segments go, never the newest two, and none that holds a record which
// the options protect.
func (l *Log) Prune(ctx context.Context, o PruneOptions) (audit.Prune, error) {
	if o.Before.IsZero() && o.Below == 0 {
		return audit.Prune{}, errors.New("prune: nothing says how far")
	}
	l.pruning.Lock()
	defer l.pruning.Unlock()
	segs, err := listSegments(l.cfg.Dir)
	if err != nil {
		return audit.Prune{}, err
	}
	size, err := l.prunable(segs, o)
	if err != nil {
		return audit.Prune{}, err
	}
	edge, err := edgeAt(l.cfg.Dir, size)
	if err != nil {
		return audit.Prune{}, fmt.Errorf("prune: %w", err)
	}
	if err := syncTiles(l.cfg.Dir, l.begins.Load(), size); err != nil {
		return audit.Prune{}, err
	}
	before := o.Before
	if before.IsZero() {
		before = time.Now()
	}
	event := audit.Prune{
		From: l.begins.Load(), Size: size, Root: edge.root().String(), Before: before.UnixMicro(),
		Reason: o.Reason, By: o.By, Rotations: l.rotationsNow(),
	}
	raw, err := json.Marshal(event)
	if err != nil {
		return audit.Prune{}, fmt.Errorf("encode prune record: %w", err)
	}
	if _, err := l.Append(ctx, &audit.Record{Kind: audit.KindPrune, ID: audit.NewID(), Gateway: &l.cfg.Boot, Event: raw}); err != nil {
		return audit.Prune{}, err
	}
	l.begins.Store(size)
	if err := l.cfg.reach("prune recorded"); err != nil {
		return event, err
	}
	return event, l.cfg.destroy(size)
}

// prunable is the size of the tree where the oldest segment begins that stays.
func (l *Log) prunable(segs []int, o PruneOptions) (uint64, error) {
	published := l.publishedSize.Load()
	var size uint64
	for i := 1; i < len(segs)-1; i++ {
		h, first, err := beginning(l.cfg.Dir, segs[i])
		if err != nil {
			if replaced, nextErr := isReplaced(l.cfg.Dir, segs[i+1], h); replaced || nextErr != nil {
				if nextErr != nil {
					return 0, fmt.Errorf("prune: %w", errors.Join(err, nextErr))
				}
				continue
			}
			return 0, fmt.Errorf("prune: %w", err)
		}
		switch {
		case h.Poisoned: // the segment before it is part of what it says
			continue
		case h.Size > published, o.Below > 0 && h.Size > o.Below:
		case !o.Before.IsZero() && time.UnixMicro(first.wall).After(o.Before):
		default:
			if h.Size > 0 {
				size = h.Size
			}
			continue
		}
		break
	}
	if size <= l.begins.Load() {
		return 0, ErrNothingToPrune
	}
	// What the tiles say must be what the first batch that stays was built on.
	return size, l.checkEdge(segs, size)
}

// beginning reads a segment's header and the trailer of its first batch. If only
// the second cannot be read, the header is returned with the error.
func beginning(dir string, number int) (header, trailer, error) {
	r, err := openSegment(dir, number)
	if err != nil {
		return header{}, trailer{}, err
	}
	first, err := r.next()
	if err := errors.Join(err, r.Close()); err != nil {
		return r.header, trailer{}, err
	}
	return r.header, first.trailer, nil
}

// isReplaced says whether the segment after one whose beginning cannot be read,
// but for its header maybe, replaces all of it: it failed with its first batch.
func isReplaced(dir string, next int, h header) (bool, error) {
	r, err := openSegment(dir, next)
	if err != nil {
		return false, err
	}
	return r.header.Poisoned && (h.V == 0 || r.header.Size == h.Size), r.Close()
}

// checkEdge checks the tiles of a size against the segment that begins there.
func (l *Log) checkEdge(segs []int, size uint64) error {
	edge, err := edgeAt(l.cfg.Dir, size)
	if err != nil {
		return fmt.Errorf("prune: %w", err)
	}
	for _, number := range segs {
		r, err := openSegment(l.cfg.Dir, number)
		var fault *Fault
		if errors.As(err, &fault) {
			continue // it failed as it was begun
		}
		if err != nil {
			return err
		}
		if r.header.Size != size {
			if err := r.Close(); err != nil {
				return err
			}
			continue
		}
		b, err := r.next()
		if err != nil {
			return errors.Join(err, r.Close())
		}
		for i := range b.leaves {
			edge.add(b.leafHash(i))
		}
		if edge.root() != b.trailer.root {
			return errors.Join(fmt.Errorf("prune: the tiles of %d records are not those of the log", size), r.Close())
		}
		return r.Close()
	}
	return fmt.Errorf("prune: no segment begins at record %d", size)
}

// destroy removes what holds only records below size.
func (c Config) destroy(size uint64) error {
	for _, dir := range []string{c.Dir, c.Dir2} {
		if dir == "" {
			continue
		}
		if err := removeBelow(dir, size); err != nil {
			return err
		}
		if err := c.reach("segments pruned"); err != nil {
			return err
		}
	}
	return removeBundles(c.Dir, size)
}

// removeBelow removes the segments that end at or before a size, oldest first.
func removeBelow(dir string, size uint64) error {
	segs, err := listSegments(dir)
	if err != nil {
		return err
	}
	for i := 0; i+1 < len(segs); i++ {
		next, err := sizeBefore(dir, segs[i+1:])
		if err != nil {
			return err
		}
		if next > size {
			break
		}
		if err := os.Remove(segmentPath(dir, segs[i])); err != nil {
			return fmt.Errorf("prune: %w", err)
		}
	}
	return durable.SyncDir(filepath.Join(dir, walDir))
}

// sizeBefore is the size of the tree where the first of these segments begins
// whose header can be read: one that failed as it was begun has none.
func sizeBefore(dir string, segs []int) (size uint64, err error) {
	for _, number := range segs {
		r, openErr := openSegment(dir, number)
		var fault *Fault
		if err = openErr; errors.As(err, &fault) {
			continue
		}
		if err != nil {
			break
		}
		return r.header.Size, r.Close()
	}
	return 0, fmt.Errorf("prune: %w", err)
}

// removeBefore removes the segments with numbers below the first of those to be
// kept.
func removeBefore(dir string, kept []int) error {
	segs, err := listSegments(dir)
	if err != nil || len(kept) == 0 {
		return err
	}
	for _, number := range segs {
		if number >= kept[0] {
			break
		}
		if err := os.Remove(segmentPath(dir, number)); err != nil {
			return fmt.Errorf("prune: %w", err)
		}
	}
	return nil
}

// removeBundles removes the entry bundles that lie wholly below a size. They go
// from there downwards until one is missing, which an earlier time removed.
func removeBundles(dir string, size uint64) error {
	for n := int64(size/tileWidth) - 1; n >= 0; n-- {
		path := filepath.Join(dir, tilePath(tlog.Tile{H: tileHeight, L: -1, N: n, W: tileWidth}))
		err := os.Remove(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("prune entry bundle: %w", err)
		}
	}
	return nil
}

// syncTiles makes the hash tiles durable that will be all there is of some
// records.
func syncTiles(dir string, from, size uint64) error {
	for level := 0; size>>(tileHeight*level) > 0; level++ {
		shift := tileHeight * (level + 1)
		for n := from >> shift; n <= size>>shift; n++ {
			t := tlog.Tile{H: tileHeight, L: level, N: int64(n), W: int(min(tileWidth, size>>(tileHeight*level)-n<<tileHeight))}
			if t.W == 0 {
				continue
			}
			path, err := tileFile(dir, t)
			if err != nil {
				return err
			}
			f, err := os.Open(path)
			if err != nil {
				return fmt.Errorf("prune: %w", err)
			}
			if err := errors.Join(f.Sync(), f.Close(), durable.SyncDir(filepath.Dir(path))); err != nil {
				return fmt.Errorf("prune: sync tile: %w", err)
			}
		}
	}
	return nil
}

// retain prunes what has been kept for long enough, each hour, until ctx is
// done.
func (l *Log) retain(ctx context.Context) {
	tick := time.NewTicker(retainEvery)
	defer tick.Stop()
	for {
		o := PruneOptions{Before: time.Now().Add(-l.cfg.Retention), Reason: "retention", By: l.cfg.Boot.SPIFFE}
		if l.cfg.Needed != nil {
			o.Below = l.cfg.Needed()
		}
		if l.cfg.Needed == nil || o.Below > 0 {
			if done, err := l.Prune(ctx, o); err == nil {
				l.cfg.Logger.Info("audit log pruned", "below", done.Size, "before", o.Before)
				if l.cfg.Pruned != nil {
					l.cfg.Pruned()
				}
			} else if !errors.Is(err, ErrNothingToPrune) {
				l.cfg.Logger.Error("audit log not pruned", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

const retainEvery = time.Hour
