package tlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

// writer is the part of a log that the commit loop owns.
type writer struct {
	key    *Key
	log    *slog.Logger
	main   *volume
	mirror *volume     // nil without a second directory, and after it failed
	single atomic.Bool // whether mirror is nil; for anyone to read
	state  state       // as of the last durable batch
	buf    []byte
}

// open makes the writer ready to go on after what recovery found. dirs are the
// locked directories.
func (w *writer) open(cfg Config, rec *recovered, dirs []*lock) (err error) {
	w.key, w.log, w.state = cfg.Key, cfg.Logger, rec.state
	if w.main, err = openVolume(cfg, dirs[0], rec.last+1); err != nil {
		return err
	}
	w.single.Store(len(dirs) == 1)
	if len(dirs) == 2 {
		if w.mirror, err = openVolume(cfg, dirs[1], rec.last+1); err != nil {
			return errors.Join(err, w.main.close())
		}
	}
	return nil
}

func (w *writer) close() error {
	err := w.main.close()
	if w.mirror != nil {
		err = errors.Join(err, w.mirror.close())
	}
	return err
}

// commitLoop writes batches until the log is closed. Batches form by
// themselves, of what arrives while the one before is being synced. Now and then
// it looks for its files, so that their loss shows before a record is refused.
func (l *Log) commitLoop() {
	defer close(l.done)
	look := time.NewTicker(l.cfg.CheckpointEvery)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			l.look()
			continue
		case <-l.wake:
		}
		if l.drain() {
			continue
		}
		// Closing, and the queue is empty.
		if err := l.note(&audit.Record{Kind: audit.KindSeal, ID: audit.NewID(), Event: json.RawMessage(`{"reason":"shutdown"}`)}); err == nil {
			l.drain()
		}
		return
	}
}

// look halts the log if it has been displaced, and gives up a second directory
// that has been.
func (l *Log) look() {
	if err := l.main.check(); err != nil && l.Err() == nil {
		l.halt(nil, err)
	}
	if !l.Short().IsZero() { // also in a segment that followed the reserve
		l.recoverSpace()
	}
	if l.mirror == nil {
		return
	}
	if err := l.mirror.check(); err != nil {
		l.dropMirror(err)
	}
}

// drain commits until the queue is empty. It returns false once the log is
// closing.
func (l *Log) drain() bool {
	for {
		batch, closing := l.take()
		if len(batch) == 0 {
			return !closing
		}
		l.commit(batch)
	}
}

// take removes the next batch from the queue.
func (l *Log) take() (batch []*entry, closing bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	size, n := 0, 0
	limit := min(maxBatchBytes, l.cfg.SegmentBytes/4)
	for n < len(l.queue) && (n == 0 || int64(size+len(l.queue[n].leaf)) <= limit) {
		size += len(l.queue[n].leaf)
		n++
		if l.queue[n-1].next != nil {
			break // it is the last that the key before it signs
		}
	}
	batch = l.queue[:n:n]
	l.queue = l.queue[n:]
	l.queueBytes -= size
	return batch, l.closing
}

// commit makes one batch durable and answers those who wait for it.
func (l *Log) commit(batch []*entry) {
	at, err := l.write(batch)
	if errors.Is(err, errDisplaced) {
		l.halt(batch, err) // a new segment would be made in a place that is not ours
		return
	}
	if err != nil {
		l.log.Error("audit log write failed, going on in a new segment", "error", err)
		for _, e := range batch {
			e.answer(fmt.Errorf("%w: %w", audit.ErrUnavailable, err))
		}
		if at, err = l.write(batch); err != nil {
			l.halt(batch, err)
			return
		}
	}
	mirrored := l.writeMirror()
	l.settle(batch, at)
	_ = l.cfg.reach("before ack") // what is durable cannot fail any more
	if l.main.cur.reserved && !l.main.cur.full {
		l.economize()
	}
	if next := batch[len(batch)-1].next; next != nil {
		l.key, l.main.cur.full = next, true
		l.signer.Store(next)
		if l.mirror != nil {
			l.mirror.cur.full = true
		}
	}
	for _, e := range batch {
		var err error
		if e.durable == audit.Strict2 && !mirrored {
			err = fmt.Errorf("%w: second directory failed", audit.ErrUnavailable)
		}
		e.answer(err)
		if f := e.fate.Load(); f.err != nil {
			l.owe(e.summary, f)
		}
	}
}

// write makes the batch durable in the first directory and moves the state
// past it. The state is as it was if it fails, and the next write then goes
// to a new segment.
func (w *writer) write(batch []*entry) (position, error) {
	if err := w.room(batch); err != nil {
		return position{}, err
	}
	next, buf := w.state, w.buf[:0]
	at := position{segment: w.main.cur.number, offset: w.main.cur.end}
	var err error
	if w.main.cur.end == 0 {
		h := header{Origin: w.key.Name(), Key: w.key.VerifierKey(), Segment: at.segment, Poisoned: w.main.cur.replaces}
		if buf, err = next.appendHeader(buf, h); err != nil {
			return position{}, err
		}
		at.offset = int64(len(buf))
	}
	at.chain, at.next = next.chain, next.tree.size
	for _, e := range batch {
		buf = next.appendRecord(buf, e.leaf)
	}
	if buf, err = next.appendTrailer(buf, w.key, time.Now().UnixMicro()); err != nil {
		return position{}, err
	}
	w.buf = buf
	if err := w.main.write(buf); err != nil {
		return position{}, err
	}
	w.state = next
	return at, nil
}

// room sees to it that the batch goes to a sound segment that it fits in.
func (w *writer) room(batch []*entry) error {
	need := 2*frameHead + trailerSize + maxHeaderBytes
	for _, e := range batch {
		need += frameHead + len(e.leaf)
	}
	if w.main.fits(need) {
		return nil
	}
	if err := w.main.roll(); err != nil {
		return err
	}
	if w.mirror != nil {
		if err := w.mirror.roll(); err != nil {
			w.dropMirror(err)
		}
	}
	return nil
}

// maxHeaderBytes is more than a segment header takes.
const maxHeaderBytes = 4 << 10

// writeMirror makes the bytes just written durable in the second directory as
// well. That it comes second means that it never holds more than the first.
func (w *writer) writeMirror() bool {
	if w.mirror == nil {
		return false
	}
	if err := w.mirror.write(w.buf); err != nil {
		w.dropMirror(err)
		return false
	}
	return true
}

// dropMirror gives up the second directory until the log is opened again.
func (w *writer) dropMirror(err error) {
	w.log.Error("second audit directory failed: strict-2 is refused from now on", "error", err)
	// Its files are closed for their descriptors' sake; it has failed already.
	_ = w.mirror.close()
	w.mirror = nil
	w.single.Store(true)
}

// settle makes a durable batch visible.
func (l *Log) settle(batch []*entry, at position) {
	l.head.Store(&Head{Size: l.state.tree.size, Root: l.state.tree.root(), key: l.key})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marks.add(at)
	for _, e := range batch {
		if e.loose {
			l.unsynced--
		}
	}
	if l.unsynced == 0 {
		return
	}
	for _, e := range l.queue {
		if e.loose {
			l.oldest = e.at
			return
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
