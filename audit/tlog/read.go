package tlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"
)

// Entry is a record as it is stored.
type Entry struct {
	Index uint64
	Leaf  []byte
}

// ErrNotFound says that a log has no such record.
var ErrNotFound = errors.New("no such record")

// Read returns the records of the log in dir from index from on, or from the
// first that is kept, up to the last complete batch. It checks the chain from
// where it starts reading and no signature: [Verify] does. It may be used while
// another process appends.
func Read(dir string, from uint64) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		f := follower{dir: dir, next: from}
		defer f.close()
		if err := f.read(yield); err != nil {
			yield(Entry{}, err)
		}
	}
}

// Follow is Read of a log that this process has open, and does not end: at the end
// of the log it looks again after each poll interval, until ctx is done. It reads
// the files once there is more, and from where the log ended.
//
// It returns no record that size, the size of the log's [Head], does not count: a
// batch that is signed before it is written can be read before it is durable, and
// a power cut may yet take it.
func Follow(ctx context.Context, dir string, size func() uint64, from uint64, poll time.Duration) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		f := follower{dir: dir, next: from, size: size}
		defer f.close()
		tick := time.NewTicker(poll)
		defer tick.Stop()
		stopped := false
		more := func(e Entry, err error) bool {
			stopped = ctx.Err() != nil || !yield(e, err)
			return !stopped
		}
		for {
			if err := f.read(more); err != nil {
				yield(Entry{}, err)
				return
			}
			if stopped {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}
}

// Find returns the records from index from on that have an id: a decision and
// its outcomes, in order. It scans.
func Find(dir, id string, from uint64) ([]Entry, error) {
	var (
		found []Entry
		z     summarizer
	)
	for e, err := range Read(dir, from) {
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(e.Leaf, []byte(id)) {
			continue // cheaper than finding the field
		}
		s, err := z.read(e.Leaf)
		if err != nil {
			return nil, fmt.Errorf("record %d: %w", e.Index, err)
		}
		if s.ID == id {
			found = append(found, e)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	return found, nil
}

// Get returns the leaf of a durable record.
func (l *Log) Get(index uint64) ([]byte, error) {
	if index >= l.Head().Size {
		return nil, fmt.Errorf("%w: index %d", ErrNotFound, index)
	}
	if index < l.begins.Load() {
		return nil, fmt.Errorf("%w: index %d was pruned", ErrNotFound, index)
	}
	w, err := l.walkTo(index)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	for {
		b, err := w.batch()
		if err != nil {
			return nil, fmt.Errorf("read record %d: %w", index, err)
		}
		if i := index - b.at.next; i < uint64(len(b.leaves)) {
			return bytes.Clone(b.leaves[i]), nil
		}
	}
}

// walkTo returns a walker at or not far before a record of an open log.
func (l *Log) walkTo(index uint64) (*walker, error) {
	l.marking.Lock()
	at, ok := l.marks.before(index)
	l.marking.Unlock()
	if !ok {
		return nil, fmt.Errorf("%w: index %d", ErrNotFound, index)
	}
	segs, err := listSegments(l.cfg.Dir)
	if err != nil {
		return nil, err
	}
	for len(segs) > 0 && segs[0] <= at.segment {
		segs = segs[1:]
	}
	return walkFrom(l.cfg.Dir, segs, at)
}

// follower reads a log that may grow, and keeps its place between reads.
type follower struct {
	dir  string
	next uint64        // index of the record that is due
	size func() uint64 // how many it may read; nil if all
	w    *walker       // nil until there is something to read
}

func (f *follower) close() {
	if f.w != nil {
		_ = f.w.Close() // of files that were only read
	}
}

// mayRead says whether the record that is due may be read yet.
func (f *follower) mayRead() bool { return f.size == nil || f.next < f.size() }

// open finds the record that is due, or sees what has come since the last read.
func (f *follower) open() error {
	if f.w == nil {
		if err := regularSegments(f.dir); err != nil {
			return err
		}
		segs, err := listSegments(f.dir)
		if err != nil || len(segs) == 0 {
			return err
		}
		if f.w, err = walkNear(f.dir, segs, f.next); err == nil {
			f.next = max(f.next, f.w.pos.next) // what is before it is not kept
		}
		return err
	}
	if err := f.w.reopen(); err != nil {
		return err
	}
	segs, err := segmentsAfter(f.dir, f.w.pos.segment)
	f.w.segs, f.w.unbegun = segs, nil
	return err
}

// read yields the records from the one that is due up to the last that is
// complete, or until it is told to stop.
func (f *follower) read(yield func(Entry, error) bool) error {
	if !f.mayRead() {
		return nil
	}
	if err := f.open(); err != nil || f.w == nil {
		return err
	}
	for f.mayRead() {
		b, err := f.w.batch()
		if errors.Is(err, io.EOF) || isTorn(err) {
			return nil
		}
		if err != nil {
			moved, moveErr := f.replaced()
			if moveErr != nil || !moved {
				return errors.Join(err, moveErr)
			}
			continue
		}
		for i, leaf := range b.leaves {
			if b.at.next+uint64(i) != f.next {
				continue // before the first that is asked for
			}
			if !f.mayRead() { // the rest of a batch that is written anew
				f.close()
				f.w = nil
				return nil
			}
			f.next++
			if !yield(Entry{Index: f.next - 1, Leaf: bytes.Clone(leaf)}, nil) {
				return nil
			}
		}
	}
	return nil
}

// replaced goes on in a segment that replaces the end of the one being read, if
// there is one. It begins with the batch that was durable last, if its trailer was
// not, and that had been read by then: so no header states the chain that the
// reader has reached.
func (f *follower) replaced() (bool, error) {
	segs, err := listSegments(f.dir)
	if err != nil || len(segs) == 0 {
		return false, err
	}
	w, err := walkNear(f.dir, segs, f.next)
	if err != nil {
		return false, err
	}
	if w.pos.segment <= f.w.pos.segment || !w.cur.header.Poisoned {
		return false, w.Close()
	}
	f.close()
	f.w = w
	return true, nil
}

// isTorn says whether an error is only the end of what is complete.
func isTorn(err error) bool {
	var fault *Fault
	return errors.As(err, &fault) && fault.torn
}

// walkNear starts in the last segment that can hold a record.
func walkNear(dir string, segs []int, index uint64) (*walker, error) {
	for i := len(segs) - 1; i > 0; i-- {
		r, err := openSegment(dir, segs[i])
		if err != nil {
			continue // its turn comes when the walk gets there
		}
		h, at := r.header, r.pos
		if err := r.Close(); err != nil {
			return nil, fmt.Errorf("close segment: %w", err)
		}
		if h.Poisoned && i == len(segs)-1 && beginsTorn(dir, segs[i]) != nil {
			continue
		}
		if h.Size <= index {
			w, err := walkFrom(dir, segs[i+1:], at)
			if err == nil {
				w.cur.header = h
			}
			return w, err
		}
	}
	r, err := openSegment(dir, segs[0])
	if err != nil {
		return nil, err
	}
	return &walker{dir: dir, cur: r, pos: r.pos, segs: segs[1:]}, nil
}
