package tlog

import (
	"errors"
	"fmt"
	"io"
)

// walker reads the batches of a log in order, across segments. Which segment
// follows is decided by the chain: the one whose header states the chain that
// has been reached. So the tail of a poisoned segment, written but never
// acknowledged, is passed over without a rule of its own.
type walker struct {
	dir  string
	deep bool // fault on bytes that no frame accounts for
	pos  position
	cur  *segmentReader // nil before the first segment
	segs []int          // not yet looked at
	// ahead holds the next two segments: the second may replace the first.
	ahead []candidate
	// unbegun is why the last segment does not replace the one before it yet.
	unbegun *Fault
}

// candidate is a segment that may be next, or why it cannot be read.
type candidate struct {
	number int
	r      *segmentReader
	err    error
}

// walk starts where a log of this origin begins: at its genesis or, once it has
// been pruned, where the first segment says. Whether it may is for the caller.
func walk(dir string, segs []int, origin string) *walker {
	w := &walker{dir: dir, segs: segs, pos: position{segment: -1, chain: genesis(origin)}}
	if len(segs) == 0 || segs[0] == 0 {
		return w
	}
	r, err := openSegment(dir, segs[0])
	if err != nil {
		return w // the walk gets there, and says so
	}
	defer r.Close()
	if h := r.header; h.Size > 0 {
		w.pos = position{segment: segs[0] - 1, chain: h.Prev, next: h.Size}
	}
	return w
}

// walkFrom goes on from a position in a segment; segs are those after it.
func walkFrom(dir string, segs []int, at position) (*walker, error) {
	r, err := openSegmentAt(dir, at)
	if err != nil {
		return nil, err
	}
	return &walker{dir: dir, segs: segs, cur: r, pos: at}, nil
}

// Close closes what is open.
func (w *walker) Close() error {
	var errs []error
	if w.cur != nil {
		errs = append(errs, w.cur.Close())
	}
	for _, c := range w.ahead {
		if c.r != nil {
			errs = append(errs, c.r.Close())
		}
	}
	return errors.Join(errs...)
}

// batch returns the next batch, io.EOF after the last one, or a *[Fault].
//
// A log that is being written can be caught in the middle of a write. If
// a trailer or seal is found beyond what looks damaged, that write may just have
// ended: what is then still damaged is.
func (w *walker) batch() (*batch, error) {
	before := int64(-1)
	for {
		b, err := w.attempt()
		var fault *Fault
		if !errors.As(err, &fault) || !fault.Code.torn() || fault == w.unbegun {
			return b, err
		}
		more, readErr := w.endsBeyond(fault)
		if readErr != nil {
			return nil, errors.Join(err, readErr)
		}
		if fault.torn = !more; fault.torn || fault.Offset == before {
			fault.torn = fault.torn && (w.unbegun == nil || w.unbegun.torn)
			return nil, err
		}
		before = fault.Offset // what is still damaged there is
		if err := w.reopen(); err != nil {
			return nil, err
		}
	}
}

// sealed is the batch that w could read up to its seal when it met a fault, or
// nil.
func (w *walker) sealed() *batch {
	if w.cur == nil || w.cur.sealed == nil || w.cur.sealed.at != w.pos {
		return nil
	}
	return w.cur.sealed
}

// attempt reads one batch. It moves pos only if there is one.
func (w *walker) attempt() (*batch, error) {
	for {
		w.look()
		i := w.follower()
		if i < 0 {
			break
		}
		if err := w.advance(i); err != nil {
			return nil, err
		}
	}
	if w.cur == nil {
		return nil, w.end()
	}
	b, err := w.cur.next()
	if errors.Is(err, io.EOF) {
		return nil, w.end()
	}
	if err == nil {
		w.pos = b.after
	}
	return b, err
}

// reopen forgets what has been read beyond pos.
func (w *walker) reopen() error {
	var ahead []int
	for _, c := range w.ahead {
		ahead = append(ahead, c.number)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("close segments: %w", err)
	}
	w.ahead, w.segs = nil, append(ahead, w.segs...)
	if w.cur == nil {
		return nil
	}
	cur, err := openSegmentAt(w.dir, w.pos)
	if err != nil {
		return err
	}
	cur.header = w.cur.header
	w.cur = cur
	return nil
}

// endsBeyond says whether a whole trailer or seal follows a fault.
func (w *walker) endsBeyond(fault *Fault) (bool, error) {
	numbers := []int{fault.Segment}
	for _, c := range w.ahead {
		if c.number > fault.Segment {
			numbers = append(numbers, c.number)
		}
	}
	offset := fault.Offset
	for _, number := range append(numbers, w.segs...) {
		if more, err := endsBeyond(w.dir, number, offset); err != nil || more {
			return more, err
		}
		offset = 0
	}
	return false, nil
}

// look opens the segments ahead.
func (w *walker) look() {
	for len(w.ahead) < 2 && len(w.segs) > 0 {
		c := candidate{number: w.segs[0]}
		c.r, c.err = openSegment(w.dir, c.number)
		w.segs = w.segs[1:]
		if c.r != nil && c.r.header.Poisoned && len(w.segs) == 0 {
			if w.unbegun = beginsTorn(w.dir, c.number); w.unbegun != nil {
				_ = c.r.Close() // of a file that was only read
				return
			}
		}
		w.ahead = append(w.ahead, c)
	}
}

// beginsTorn returns what is wrong with the first batch of a segment, or nil if
// that is there up to its seal or trailer.
//
// The last segment of a log, if it replaces the end of the one before, does so
// from then on: what it repeats was acknowledged, and is still in the other. It is
// asked once, as the walk comes near, and holds for all of it.
func beginsTorn(dir string, number int) *Fault {
	fault := firstFault(dir, number)
	if fault == nil || !fault.Code.torn() {
		return fault
	}
	more, err := endsBeyond(dir, number, 0)
	if more && err == nil { // it may just have been finished
		if fault = firstFault(dir, number); fault == nil {
			return nil
		}
	}
	fault.torn = !more && err == nil
	return fault
}

// firstFault returns the damage in the first batch of a segment. What cannot be
// read at all shows when its turn comes.
func firstFault(dir string, number int) (fault *Fault) {
	if _, sealed, err := firstBatch(dir, number); sealed == nil {
		errors.As(err, &fault)
	}
	return fault
}

// firstBatch returns no error if a segment starts with a whole batch, and also
// that batch if it has its seal and no trailer.
func firstBatch(dir string, number int) (h header, sealed *batch, err error) {
	r, err := openSegment(dir, number)
	if err != nil {
		return header{}, nil, err
	}
	defer r.Close()
	_, err = r.next()
	if errors.Is(err, io.EOF) {
		err = r.fault(Truncated, frameHeader, "no batch follows")
	}
	return r.header, r.sealed, err
}

// follower returns which of the segments ahead continues from here, or -1. If
// the very first batch of a segment failed, the one after it does as well, and
// replaces it.
func (w *walker) follower() int {
	for i := len(w.ahead) - 1; i >= 0; i-- {
		c := w.ahead[i]
		if c.r == nil || c.number != w.pos.segment+1 && !c.r.header.Poisoned {
			continue
		}
		if c.r.header.Prev == w.pos.chain {
			return i
		}
	}
	return -1
}

// advance moves to ahead[i].
func (w *walker) advance(i int) error {
	next := w.ahead[i].r
	if next.header.Size != w.pos.next {
		return next.fault(BadHeader, frameHeader, "starts at record %d where %d is due", next.header.Size, w.pos.next)
	}
	var errs []error
	if w.cur != nil {
		if w.deep && !next.header.Poisoned {
			errs = append(errs, w.cur.rest())
		}
		errs = append(errs, w.cur.Close())
	}
	for _, skipped := range w.ahead[:i] {
		if skipped.r != nil {
			errs = append(errs, skipped.r.Close())
		}
	}
	w.cur, w.pos, w.ahead = next, next.pos, w.ahead[i+1:]
	return errors.Join(errs...)
}

// end says how a walk with no batch left has ended.
func (w *walker) end() error {
	if len(w.ahead) == 0 && w.unbegun != nil {
		return w.unbegun
	}
	if len(w.ahead) == 0 {
		if w.deep && w.cur != nil {
			if err := w.cur.rest(); err != nil {
				return err
			}
		}
		return io.EOF
	}
	c := w.ahead[0]
	fault := &Fault{Code: ChainBroken, Index: w.pos.next, Segment: c.number, Detail: fmt.Sprintf("does not follow segment %d", w.pos.segment)}
	switch {
	case c.number != w.pos.segment+1:
		fault.Code = MissingSegment
	case c.err != nil:
		if errors.As(c.err, &fault) {
			fault.Index = w.pos.next // the header may not say
		} else {
			return c.err
		}
	case c.r.header.Size != w.pos.next:
		fault.Code = SequenceGap
		fault.Detail = fmt.Sprintf("segment starts at record %d where %d is due", c.r.header.Size, w.pos.next)
	}
	return fault
}
