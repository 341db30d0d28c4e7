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

// work is one of the two workers. They take turns: while one writes and syncs a
// batch, the other gathers the next, hashes it, and has it ready when the disk
// is. One sync is under way at a time.
func (l *Log) work() {
	var buf []byte
	for {
		l.baton.Lock()
		f := l.build(buf[:0])
		l.baton.Unlock()
		if f == nil {
			return
		}
		l.finish(f)
		buf = f.buf
	}
}

// build gathers the next batch until the disk is free for it, which the caller
// then holds. It returns nil once the log is closed and all is written. The
// caller holds the baton.
//
// Now and then it looks for the log's files, so that their loss shows before a
// record is refused.
func (l *Log) build(buf []byte) *flight {
	if l.ended {
		return nil
	}
	f := l.begin(buf)
	for disk := l.disk; ; {
		free := disk == nil
		if free {
			f = l.tend(f)
		}
		closing := l.gather(f, free)
		switch {
		case free && len(f.entries) > 0:
			f.whole = l.sealed // nothing may come after it to sync its trailer
			l.seal(f)
			return f
		case free && f.roll:
			l.turn()
			f = l.begin(f.buf[:0])
			continue
		case free && closing && l.end():
			return nil
		case free && closing:
			continue
		}
		select {
		case <-disk:
			disk = nil
		case <-l.wake:
		case <-l.look.C:
			l.due = true
		}
	}
}

// tend does what has to wait for the disk: it sees to the batch before if that
// failed, and looks for the log's files. It returns the batch to gather on.
func (l *Log) tend(f *flight) *flight {
	if l.due {
		l.due = false
		if l.failed == nil && len(f.entries) == 0 {
			l.flush() // else it is synced with what comes
		}
		if l.failed == nil {
			l.lookForFiles()
		}
	}
	if l.failed == nil {
		return f
	}
	// It will stand on another state, and in another segment.
	l.giveBack(f)
	l.mend()
	return l.begin(f.buf[:0])
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

// end has the log write its last record, of an orderly shutdown. Once that is
// done it returns true. The caller has nothing to write, and holds the disk.
func (l *Log) end() bool {
	if l.last != nil {
		<-l.last.answered
		if l.waiting() {
			return false // what it owes for those who had left
		}
	}
	if !l.sealed {
		l.sealed = true
		err := l.note(&audit.Record{Kind: audit.KindSeal, ID: audit.NewID(), Event: json.RawMessage(`{"reason":"shutdown"}`)})
		if err == nil {
			return false
		}
	}
	l.ended = true
	return true
}

// waiting says whether there is something in the queue.
func (l *Log) waiting() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) > 0
}

// begin is a batch with nothing in it yet. The caller holds the baton.
func (l *Log) begin(buf []byte) *flight {
	if before := l.unplanned; before != nil {
		before.sign() // while it is being synced
		l.plan.state, l.unplanned = before.after, nil
	}
	seg := l.main.cur
	f := &flight{
		buf: buf, from: l.plan, now: l.plan.state, key: l.key, answered: make(chan struct{}),
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

// gather moves to the batch what waits for it and fits, and says whether the log
// is closing. With the disk free it asks to be told of whatever comes next.
func (l *Log) gather(f *flight, free bool) (closing bool) {
	l.mu.Lock()
	n, size := f.fits(l.queue)
	taken := len(f.entries)
	f.entries = append(f.entries, l.queue[:n]...)
	rest := copy(l.queue, l.queue[n:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
	l.queueBytes -= size
	switch {
	case free && len(f.entries) == 0:
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

// finish writes a batch and answers those who wait for it. The caller holds the
// disk, and the next batch gets it as soon as this one is visible.
func (l *Log) finish(f *flight) {
	if f.err = l.store(f); f.err != nil {
		l.failed = f // who gathers the next batch sees to it
		l.disk <- struct{}{}
		return
	}
	l.settle(f)
	l.disk <- struct{}{}
	l.answer(f)
}

// lookForFiles halts the log if it has been displaced, and gives up a second
// directory that has been. The caller holds the baton and the disk.
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
// before whose trailer may be lost with the segment. The caller holds the baton
// and the disk.
func (l *Log) mend() {
	failed, first := l.failed, l.failed
	l.failed = nil
	defer close(failed.answered)
	if errors.Is(failed.err, errDisplaced) {
		l.halt(failed.entries, failed.err) // a new segment would be made in a place that is not ours
		return
	}
	l.log.Error("audit log write failed, going on in a new segment", "error", failed.err)
	failed.refuse(failed.err)
	var durable []*entry
	if l.tail != nil {
		first, durable = l.tail, l.tail.entries
	}
	l.plan, l.key, l.unplanned, l.tail = first.from, first.key, nil, nil
	again, err := l.again(durable, failed.entries)
	if err != nil {
		l.last = failed
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

// roll goes on in a new segment, in both directories. The caller holds the baton
// and the disk.
func (l *Log) roll() error {
	if err := l.main.roll(); err != nil {
		return err
	}
	l.plan.end = 0
	if l.mirror != nil {
		if err := l.mirror.roll(); err != nil {
			l.dropMirror(err)
		}
	}
	return nil
}
