package tlog

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/sallyport-ai/sallyport/audit"
)

// writer is the part of a log that belongs to its commit loop and to the helper
// that gathers for it.
type writer struct {
	log *slog.Logger

	gathering sync.Mutex // guards what follows; comes before the log's mu
	key       *Key       // of the next batch
	plan      plan       // where the next batch begins
	unplanned *flight    // the batch before it, while the plan lacks the state after its trailer
	coming    *flight    // what has been gathered; nil if nothing has
	free      []byte     // to gather in
	missed    bool       // the helper came when there was nothing to sign

	// What follows is the commit loop's own; the helper reads which segment is
	// written to, and its key and size, which change under gathering.
	main    *volume
	mirror  *volume      // nil without a second directory, and after it failed
	failed  *flight      // the batch that could not be written
	tail    *flight      // the batch whose trailer is written and not synced
	written []byte       // the buffer of the last batch
	sealed  bool         // the record of an orderly shutdown has been appended
	look    *time.Ticker // when to look for the files
	due     bool         // it is time to

	single atomic.Bool // whether mirror is nil; for anyone to read
}

// plan is where a batch begins: after this state, and so far into the segment.
type plan struct {
	state
	end int64
}

// open makes the writer ready to go on after what recovery found. dirs are the
// locked directories.
func (w *writer) open(cfg Config, rec *recovered, dirs []*lock) (err error) {
	w.key, w.log, w.plan.state = cfg.Key, cfg.Logger, rec.state
	if w.main, err = openVolume(cfg, dirs[0], rec.last+1); err != nil {
		return err
	}
	w.single.Store(len(dirs) == 1)
	if len(dirs) == 2 {
		if w.mirror, err = openVolume(cfg, dirs[1], rec.last+1); err != nil {
			return errors.Join(err, w.main.close())
		}
	}
	w.look = time.NewTicker(cfg.CheckpointEvery)
	return nil
}

func (w *writer) close() error {
	w.look.Stop()
	err := w.main.close()
	if w.mirror != nil {
		err = errors.Join(err, w.mirror.close())
	}
	return err
}

// flight is a batch on its way to disk.
type flight struct {
	entries []*entry
	key     *Key
	from    plan     // where it begins, with the segment's header if it is the first
	at      position // of its first record
	now     state    // after its last frame in buf
	buf     []byte   // its frames: all of them if it is whole, else up to its seal
	whole   bool     // it is signed before it is written
	old     int      // so many entries of it were durable before, in another segment

	signing  sync.Once
	trailer  []byte
	root     tlog.Hash // as it is signed
	after    state     // after the trailer
	unsigned error     // why there is none

	room int64 // for further frames in the segment
	left int64 // for further leaves in the batch
	full bool  // nothing more is to be added
	roll bool  // not even the first record fits: the segment is full

	err      error // why it is not durable
	mirrored bool  // in the second directory as well
}

// fits says how many of the entries can be added to the batch, and how large
// their leaves are.
func (f *flight) fits(queue []*entry) (n, size int) {
	for _, e := range queue {
		first, leaf := len(f.entries)+n == 0, int64(len(e.leaf))
		if f.roll = first && f.room < frameHead+leaf; f.roll || f.room < frameHead+leaf || !first && f.left < leaf {
			f.full = true
		}
		if f.full {
			break
		}
		n, size, f.room, f.left = n+1, size+len(e.leaf), f.room-frameHead-leaf, f.left-leaf
		f.full = e.next != nil // it is the last that the key before it signs
	}
	return n, size
}

// add appends the frame of an entry that fits.
func (f *flight) add(e *entry) { f.buf = f.now.appendRecord(f.buf, e.leaf) }

// next is the key that signs what follows the batch, if it is another.
func (f *flight) next() *Key { return f.entries[len(f.entries)-1].next }

// refuse tells those who wait that the batch is not durable.
func (f *flight) refuse(err error) {
	for _, e := range f.entries {
		e.answer(fmt.Errorf("%w: %w", audit.ErrUnavailable, err))
	}
}

// sign makes the trailer of a batch, once; whoever comes second waits.
func (f *flight) sign() {
	f.signing.Do(func() {
		f.root, f.after = f.now.tree.root(), f.now
		f.trailer, f.unsigned = f.after.appendTrailer(make([]byte, 0, trailerFrame), f.key, f.root, time.Now().UnixMicro())
	})
}

// seal ends what a batch says, and plans where the next begins.
//
// A batch after which another key signs is whole: whoever opens the log next may
// not have the key that could check its seal.
func (l *Log) seal(f *flight) {
	next := f.next()
	if f.whole = f.whole || next != nil; f.whole {
		f.sign()
		f.buf, f.err = append(f.buf, f.trailer...), cmp.Or(f.err, f.unsigned)
		l.plan = plan{f.after, f.from.end + int64(len(f.buf))}
		l.unplanned = nil
	} else {
		f.buf = f.now.appendSeal(f.buf, f.key)
		l.plan.end = f.from.end + int64(len(f.buf)) + trailerFrame
		l.unplanned = f
	}
	if next != nil {
		l.key, l.main.cur.full = next, true
	}
}

// store makes a batch durable and signs it, in the second directory after the
// first, so that it never holds more.
//
// The signature is made while the disk is busy with the records and their seal,
// and written before the batch is acknowledged. It is synced with what comes
// next. Until then a power cut may take it, but not the seal, by which it can be
// made again.
func (w *writer) store(f *flight) error {
	if f.err != nil {
		return f.err
	}
	if err := w.main.write(f.buf); err != nil {
		return err
	}
	w.tail = nil // its trailer is durable now
	f.sign()
	if f.unsigned != nil {
		return w.main.poison(f.unsigned) // what is in it now is not to be followed
	}
	if err := w.main.follow(f); err != nil {
		return err
	}
	if !f.whole {
		w.tail = f
	}
	if w.mirror == nil {
		return nil
	}
	err := w.mirror.write(f.buf)
	if err == nil {
		err = w.mirror.follow(f)
	}
	if err != nil {
		w.dropMirror(err)
	}
	f.mirrored = w.mirror != nil
	return nil
}

// flush makes the last trailer durable, if it is not.
func (l *Log) flush() {
	if l.tail == nil {
		return
	}
	if err := l.main.flush(); err != nil {
		l.failed = &flight{err: err}
		return
	}
	l.tail = nil
	if l.mirror != nil {
		if err := l.mirror.flush(); err != nil {
			l.dropMirror(err)
		}
	}
}

// maxHeaderBytes is more than a segment header takes.
const maxHeaderBytes = 4 << 10

// dropMirror gives up the second directory until the log is opened again.
func (w *writer) dropMirror(err error) {
	w.log.Error("second audit directory failed: strict-2 is refused from now on", "error", err)
	// Its files are closed for their descriptors' sake; it has failed already.
	_ = w.mirror.close()
	w.mirror = nil
	w.single.Store(true)
}

// settle makes a durable batch visible.
func (l *Log) settle(f *flight) {
	l.head.Store(&Head{Size: f.now.tree.size, Root: f.root, key: f.key})
	if next := f.next(); next != nil {
		l.signer.Store(next)
	}
	l.marking.Lock()
	l.marks.add(f.at)
	l.marking.Unlock()
	loose := 0
	for _, e := range f.entries[f.old:] {
		if e.loose {
			loose++
		}
	}
	if loose > 0 {
		l.mu.Lock()
		l.loose = slices.Delete(l.loose, 0, loose)
		l.mu.Unlock()
	}
	_ = l.cfg.reach("before ack") // what is durable cannot fail any more
	if l.main.cur.reserved && !l.main.cur.full {
		l.economize()
	}
}

// answer tells those who wait for a batch that it is durable.
func (l *Log) answer(f *flight) {
	for _, e := range f.entries[f.old:] {
		var err error
		if e.durable == audit.Strict2 && !f.mirrored {
			err = fmt.Errorf("%w: second directory failed", audit.ErrUnavailable)
		}
		e.answer(err)
		if f := e.fate.Load(); f.err != nil {
			l.owe(e.summary, f)
		}
	}
}

// owe records that a decision which is in the log was not acted on.
func (l *Log) owe(s summary, f *fate) {
	if s.Kind != audit.KindDecision || s.Status != audit.StatusAllowed {
		return
	}
	if err := l.note(l.outcome(s, audit.StatusNotForwarded, f.reason(), f.detail())); err != nil {
		l.log.Error("audit log cannot record that a decision was not forwarded", "id", s.ID, "attempt", s.Attempt, "error", err)
	}
}

// halt stops the log for good: every append fails until it is opened again.
func (l *Log) halt(batch []*entry, err error) {
	l.log.Error("audit log halted", "error", err)
	l.mu.Lock()
	l.halted = err
	batch = append(batch, l.queue...)
	l.queue, l.queueBytes = nil, 0
	l.mu.Unlock()
	lost := 0
	for _, e := range batch {
		e.answer(fmt.Errorf("%w: halted: %w", audit.ErrUnavailable, err))
		if e.loose {
			lost++
		}
	}
	if lost > 0 {
		l.log.Error("bounded audit records were lost", "records", lost)
		l.rememberLost(lost)
	}
}
