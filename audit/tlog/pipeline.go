package tlog

import (
	"encoding/json"
	"errors"
	"math"
	"slices"

	"github.com/sallyport-ai/sallyport/audit"
)

// gatherAt is how many records must wait before a batch that is being gathered
// while the disk is busy takes them in. To wake for each would cost the callers
// more than it saves.
const gatherAt = 16

// commitLoop writes one batch after the other until the log is closed.
func (l *Log) commitLoop() {
	defer close(l.done)
	for {
		f := l.nextBatch()
		if f == nil {
			return
		}
		l.finish(f)
	}
}

// gatherLoop helps the commit loop: while that waits for the disk, it signs the
// batch that is being synced, and gathers and hashes the next. It does nothing
// that the commit loop would not do itself, if it came too late.
func (l *Log) gatherLoop() {
	for {
		select {
		case <-l.ahead:
		case <-l.done:
			return
		}
		l.gathering.Lock()
		l.missed = l.unplanned == nil
		l.gather(false)
		l.gathering.Unlock()
	}
}

// nextBatch is the next batch to write, or nil once the log is closed and all is
// written. Now and then it looks for the log's files, so that their loss shows
// before a record is refused.
func (l *Log) nextBatch() *flight {
	for waited := false; ; waited = true {
		f, closed := l.takeOff(waited)
		if f != nil || closed {
			return f
		}
		select {
		case <-l.wake:
		case <-l.look.C:
			l.due = true
		}
	}
}

// takeOff is the batch that has been gathered, with what came since. Without one,
// it says whether the log is closed. The caller says if it had to wait for a
// record.
func (l *Log) takeOff(waited bool) (f *flight, closed bool) {
	l.gathering.Lock()
	defer l.gathering.Unlock()
	if l.free == nil {
		l.free, l.written = l.written, nil
	}
	for {
		l.tend()
		closing := l.gather(true)
		f := l.coming
		switch {
		case len(f.entries) > 0:
			l.coming = nil
			f.whole = l.sealed // nothing may come after it to sync its trailer
			l.seal(f)
			if l.missed || !waited { // else who brought the record has told the helper
				tell(l.ahead)
			}
			l.missed = false
			return f, false
		case f.roll:
			l.turn()
			l.coming = nil
		case !closing:
			return nil, false
		case l.end():
			return nil, true
		}
	}
}

// tend sees to the batch before, if that failed, and looks for the log's files.
// What has been gathered may then stand on another state, in another segment, or
// nowhere.
func (l *Log) tend() {
	if l.failed == nil && !l.due {
		return
	}
	if l.coming != nil {
		l.giveBack(l.coming)
		l.coming = nil
	}
	if l.due && l.failed == nil {
		l.due = false
		l.flush()
	}
	if l.failed != nil {
		l.mend()
		return
	}
	l.lookForFiles()
}

// turn goes on in the next segment, once all of this one is durable.
func (l *Log) turn() {
	if l.flush(); l.failed != nil {
		l.mend()
		return
	}
	if err := l.nextSegment(); err != nil {
		l.halt(nil, err)
	}
}

// end has the log write its last record, of an orderly shutdown, and then returns
// true. The caller has nothing else to write.
func (l *Log) end() bool {
	if l.sealed {
		return true
	}
	l.sealed = true
	err := l.note(&audit.Record{Kind: audit.KindSeal, ID: audit.NewID(), Event: json.RawMessage(`{"reason":"shutdown"}`)})
	return err != nil
}

// begin is a batch with nothing in it yet. The caller holds gathering.
func (l *Log) begin(buf []byte) *flight {
	if before := l.unplanned; before != nil {
		before.sign() // while it is being synced
		l.plan.state, l.unplanned = before.after, nil
	}
	seg := l.main.cur
	f := &flight{
		buf: buf, from: l.plan, now: l.plan.state, key: l.key,
		room: seg.size - l.plan.end - maxHeaderBytes - frameHead - sealSize - trailerFrame,
		left: min(maxBatchBytes, l.cfg.SegmentBytes/4),
	}
	if seg.full {
		f.room = 0
	}
	if l.plan.end == 0 {
		f.buf, f.err = f.now.appendHeader(f.buf, header{Origin: l.key.Name(), Key: l.key.VerifierKey(), Segment: seg.number, Poisoned: seg.replaces})
	}
	f.at = position{v: formatVersion, segment: seg.number, offset: l.plan.end + int64(len(f.buf)), chain: f.now.chain, next: f.now.tree.size}
	return f
}

// gather moves to the open batch what waits for it and fits, and says whether the
// log is closing. With the disk free it asks to be told of whatever comes next.
// The caller holds gathering.
func (l *Log) gather(free bool) (closing bool) {
	if l.coming == nil {
		l.coming, l.free = l.begin(l.free[:0]), nil
	}
	f := l.coming
	l.mu.Lock()
	if !free && l.idle && len(l.queue) == 0 {
		l.mu.Unlock()
		return false // the commit loop waits to be told
	}
	n, size := f.fits(l.queue)
	taken := len(f.entries)
	f.entries = append(f.entries, l.queue[:n]...)
	rest := copy(l.queue, l.queue[n:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
	l.queueBytes -= size
	l.idle = free && len(f.entries) == 0
	switch {
	case l.idle:
		l.want = 1
	case f.full:
		l.want = math.MaxInt
	default:
		l.want = gatherAt
	}
	closing = l.closing
	l.mu.Unlock()
	for _, e := range f.entries[taken:] {
		f.add(e)
	}
	return closing
}

// giveBack puts what a batch has gathered back to the head of the queue.
func (l *Log) giveBack(f *flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range f.entries {
		l.queueBytes += len(e.leaf)
	}
	l.queue = append(f.entries, l.queue...)
	f.entries = nil
}

// finish writes a batch and answers those who wait for it.
func (l *Log) finish(f *flight) {
	if f.err = l.store(f); f.err != nil {
		l.failed = f
		return
	}
	l.written = f.buf[:0]
	l.settle(f)
	l.answer(f)
}

// lookForFiles halts the log if it has been displaced, and gives up a second
// directory that has been.
func (l *Log) lookForFiles() {
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

// mend refuses the batch that failed and writes it to a new segment, so that the
// tree does not fork; if that fails too, the log is halted. With it goes the batch
// before whose trailer may be lost with the segment.
func (l *Log) mend() {
	failed, first := l.failed, l.failed
	l.failed = nil
	if errors.Is(failed.err, errDisplaced) {
		l.halt(failed.entries, failed.err) // a new segment would be made in a place that is not ours
		return
	}
	l.log.Error("audit log write failed, going on in a new segment", "error", failed.err)
	failed.refuse(failed.err)
	_ = l.main.poison(failed.err) // also if it was no write that failed: what the segment ends with is replaced
	var durable []*entry
	if l.tail != nil {
		first, durable = l.tail, l.tail.entries
	}
	l.plan, l.key, l.unplanned, l.tail = first.from, first.key, nil, nil
	again, err := l.again(durable, failed.entries)
	if err != nil {
		l.halt(failed.entries, err)
		return
	}
	l.settle(again)
	l.answer(again)
}

// again writes entries to a new segment, as one whole batch: first those that
// were durable before.
func (l *Log) again(durable, failed []*entry) (*flight, error) {
	if err := l.roll(); err != nil {
		return nil, err
	}
	f := l.begin(nil)
	f.entries, f.old, f.whole = slices.Concat(durable, failed), len(durable), true
	for _, e := range f.entries {
		f.add(e)
	}
	l.seal(f)
	return f, l.store(f)
}

// nextSegment is roll that is tried again once, unless the log has been
// displaced.
func (l *Log) nextSegment() error {
	err := l.roll()
	if err == nil || errors.Is(err, errDisplaced) {
		return err
	}
	l.log.Error("audit log has no next segment, trying again", "error", err)
	return l.roll()
}

// roll goes on in a new segment, in both directories.
func (l *Log) roll() error {
	if err := l.main.roll(); err != nil {
		return err
	}
	l.plan.end = 0
	if l.mirror == nil {
		return nil
	}
	err := l.mirror.flush() // the batch that was synced after its last trailer may be in the first directory alone
	if err == nil {
		err = l.mirror.roll()
	}
	if err != nil {
		l.dropMirror(err)
	}
	return nil
}
