package export

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/export/format"
	"github.com/sallyport-ai/sallyport/audit/export/sink"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

// follower takes one sink along the log. A goroutine of its own reads and
// writes events down; run gathers them into batches and delivers these.
type follower struct {
	cfg    *Config
	sink   SinkConfig
	kind   sink.Kind
	format format.Format
	limit  int
	out    sink.Sink
	logger *slog.Logger

	// Owned by run.
	cursor    Cursor
	saved     time.Time
	noted     time.Time
	worth     bool // something was sent since noted that is worth a record
	failures  int  // in a row
	down      bool // and the log knows
	downSince time.Time
	deadRow   int    // records refused in a row
	trail     []mark // of a lossy sink, what it was sent lately

	placed    bool   // the cursor is right
	replaying uint64 // records before this one have been sent before
	now       func() time.Time

	mu  sync.Mutex // guards what follows
	st  Status
	due time.Time // of the first record that was read and not taken; zero: none
	all uint64    // bytes and number of the records read
	n   uint64
}

// item is one record as the reader has found it. Where the sink does not want
// it, there is no message.
type item struct {
	next    uint64
	pruned  uint64 // records before it that are not kept any more
	message *sink.Message
	link    format.Link
	bytes   int // of the leaf
	err     error
}

// readAhead bounds the items between reading and sending. A message has less
// than 140 KiB, so they hold less than 9 MiB.
const readAhead = 64

// run delivers until ctx ends.
func (f *follower) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := f.findPlace(ctx)
		if err == nil {
			break
		}
		f.failed(ctx, err)
	}
	f.noted = f.now() // and the cursor is saved after the first batch: who crashes each second must get on too
	for ctx.Err() == nil {
		f.rewind()
		if err := f.stream(ctx); err != nil && !errors.Is(err, errRewind) && ctx.Err() == nil {
			f.failed(ctx, err)
		}
	}
	if !f.placed {
		return
	}
	if err := f.cursor.write(f.cfg.Dir); err != nil {
		f.logger.Error("cursor not saved", "error", err)
	}
}

// stream reads from the cursor on and delivers until something fails that
// cannot be tried again from where it is.
func (f *follower) stream(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	items := make(chan item, readAhead)
	go f.read(ctx, f.cursor.place, f.replaying, items)
	defer func() {
		stop()
		for range items { // so that the reader ends before another begins
		}
	}()
	for {
		b, err := f.gather(ctx, items)
		if err != nil || b == nil {
			return err
		}
		if err := f.deliver(ctx, b); err != nil {
			return err
		}
		f.keep(ctx)
	}
}

// read sends what follows a place, until ctx ends or the log cannot be read.
func (f *follower) read(ctx context.Context, from place, replaying uint64, items chan<- item) {
	defer close(items)
	last, due := from.Last, from.Next
	send := func(i item) bool {
		select {
		case items <- i:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for entry, err := range tlog.Follow(ctx, f.cfg.Dir, f.cfg.Head, from.Next, f.cfg.pace.poll) {
		if err != nil {
			send(item{err: err})
			return
		}
		i := f.write(entry, last, entry.Index < replaying)
		i.pruned = entry.Index - due
		due = entry.Index + 1
		if i.message != nil {
			last = &i.link
		}
		if !send(i) || i.err != nil {
			return
		}
	}
}

// write makes of an entry what the sink is to have.
func (f *follower) write(entry tlog.Entry, last *format.Link, replayed bool) item {
	i := item{next: entry.Index + 1, bytes: len(entry.Leaf)}
	e, err := format.NewEvent(entry.Index, entry.Leaf)
	if err != nil {
		i.err = err
		return i
	}
	if !f.sink.wants(e.Record) {
		return i
	}
	e.Previous, e.Raw, e.Replayed = last, f.sink.Raw, replayed
	body, err := f.format.Event(e, f.limit)
	if err != nil {
		i.err = err
		return i
	}
	i.link = format.Link{Index: e.Index, Hash: e.Hash}
	i.message = &sink.Message{
		Index: e.Index, Time: e.Time(), Kind: string(e.Record.Kind), ID: e.UID(), Severity: e.Severity(), Replayed: replayed, Body: body,
	}
	return i
}

// batch is what is delivered together.
type batch struct {
	sink.Batch
	after   place // where the cursor is when all of it has been taken
	before  place
	links   []format.Link // of each message but the anchor
	records int
	leaves  int       // bytes
	worth   bool      // holds more than heartbeats and export records
	first   time.Time // of the first record
}

// gather makes the next batch of at least one record. It ends a batch when it is
// full, when nothing has come for a while, or where it ended before a crash.
func (f *follower) gather(ctx context.Context, items <-chan item) (*batch, error) {
	b := &batch{Batch: sink.Batch{Origin: f.cfg.Origin, First: f.cursor.Next}, before: f.cursor.place, after: f.cursor.place}
	size := 0
	var expired <-chan time.Time
	end := uint64(0)
	if s := f.cursor.Sending; s != nil && s.Next > f.cursor.Next {
		end = s.Next
	}
	for {
		select {
		case <-f.broken():
			if err := f.out.Close(); err != nil {
				f.logger.Warn("connection not closed", "error", err)
			}
			f.failed(ctx, errRewind)
			return nil, errRewind
		case i, ok := <-items:
			if !ok {
				return nil, nil
			}
			if i.err != nil {
				return nil, i.err
			}
			f.gap(ctx, b, i)
			size += b.add(i)
			f.reading(b, i)
			full := size >= f.kind.Batch || end != 0 && b.after.Next >= end
			if b.records == 0 {
				if len(items) == 0 || b.after.Next-b.First >= 4096 {
					f.cursor.place, b.First, b.before = b.after, b.after.Next, b.after // nothing in it for the sink
					f.publish()
					f.keep(ctx)
				}
				continue
			}
			if full {
				return f.close(b), nil
			}
			if expired == nil && end == 0 {
				timer := time.NewTimer(f.wait())
				defer timer.Stop()
				expired = timer.C
			}
		case <-expired:
			return f.close(b), nil
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// broken tells of a connection that ends while nothing is sent: what was written
// to it last may be lost.
func (f *follower) broken() <-chan struct{} {
	if w, ok := f.out.(sink.Watched); ok {
		return w.Broken()
	}
	return nil
}

func (f *follower) wait() time.Duration {
	if f.cfg.pace.wait > 0 {
		return f.cfg.pace.wait
	}
	return f.kind.Wait
}

// add returns how many bytes it added.
func (b *batch) add(i item) int {
	b.after.Next = i.next
	b.leaves += i.bytes
	if i.message == nil {
		return 0
	}
	if b.records == 0 {
		b.first = i.message.Time
	}
	b.records++
	link := i.link
	b.after.Last = &link
	b.links = append(b.links, link)
	b.Messages = append(b.Messages, *i.message)
	if k := i.message.Kind; k != string(audit.KindExport) && k != string(audit.KindHeartbeat) {
		b.worth = true
	}
	return len(i.message.Body)
}

// backoff is a random pause that grows with the failures in a row, so that
// gateways do not come back to a receiver all at once.
func (f *follower) backoff() time.Duration {
	most := f.cfg.pace.retryMax
	if n := f.failures - 1; n < 20 {
		most = min(most, f.cfg.pace.retryMin<<n)
	}
	return most/2 + rand.N(most/2+1)
}

// sleep waits, unless ctx ends before.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
