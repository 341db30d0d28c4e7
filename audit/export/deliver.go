package export

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/export/format"
	"github.com/sallyport-ai/sallyport/audit/export/sink"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

// close ends a batch with its anchor. If a batch of an exact sink was on its
// way before, this is that batch, with the same anchor.
func (f *follower) close(b *batch) *batch {
	b.Next = b.after.Next
	in := f.cursor.Sending
	if in == nil || in.Next != b.Next {
		in = &intent{Next: b.Next, Time: f.now().UnixMicro(), Checkpoint: f.checkpoint()}
	}
	f.cursor.Sending = nil
	if f.kind.Exact {
		f.cursor.Sending = in
	}
	digest := sha256.New()
	for _, l := range b.links {
		digest.Write(l.Hash[:])
	}
	a := &format.Anchor{
		Origin: f.cfg.Origin, Sink: f.sink.Name, Time: time.UnixMicro(in.Time), First: b.First, Next: b.Next, Records: b.records,
		Checkpoint: in.Checkpoint,
	}
	digest.Sum(a.Digest[:0])
	body, err := f.format.Anchor(a)
	if err != nil { // of our own plain data: it cannot be
		f.logger.Error("batch has no anchor", "error", err)
		return b
	}
	b.Messages = append(b.Messages, sink.Message{
		Index: b.Next, Time: a.Time, Kind: sink.KindAnchor, ID: a.UID(), Severity: 1, Body: body,
	})
	return b
}

// errRewind says that what a lossy sink was sent before must be sent again.
var errRewind = errors.New("the connection ended; what was written to it last may be lost")

// deliver gives a batch to the sink for as long as it takes. It returns only
// when the batch has been taken or refused, when ctx has ended, or, of a lossy
// sink, when something failed.
func (f *follower) deliver(ctx context.Context, b *batch) error {
	if f.kind.Exact {
		// The range is on disk before anything is written under its name.
		if err := f.cursor.write(f.cfg.Dir); err != nil {
			return err
		}
	}
	parts := []sink.Batch{b.Batch}
	for len(parts) > 0 && ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, f.cfg.pace.attempt)
		taken, err := f.out.Send(attempt, &parts[0])
		cancel()
		taken = min(max(taken, 0), len(parts[0].Messages))
		f.took(b, parts[0].Messages[:taken])
		parts[0].Messages = parts[0].Messages[taken:]
		if err == nil && len(parts[0].Messages) == 0 {
			parts = parts[1:]
			f.worked(ctx)
			continue
		}
		if err == nil {
			err = fmt.Errorf("only %d messages taken, and nothing said of the rest", taken)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var refused *sink.Refused
		if errors.As(err, &refused) && f.deadRow < deadLimit {
			parts = f.refuse(ctx, parts, refused, taken)
			continue
		}
		f.failed(ctx, err)
		if f.kind.Lossy {
			return errRewind
		}
	}
	if len(parts) > 0 {
		return ctx.Err()
	}
	f.cursor.place, f.cursor.Sending = b.after, nil
	f.worth = f.worth || b.worth
	f.remember(b)
	f.publish()
	f.delivered()
	return nil
}

// took moves the cursor over what was taken.
func (f *follower) took(b *batch, messages []sink.Message) {
	if len(messages) == 0 {
		return
	}
	f.deadRow = 0
	f.count(func(s *Status) {
		for _, m := range messages {
			s.SentBytes += uint64(len(m.Body))
			switch {
			case m.Kind == sink.KindAnchor:
			case m.Replayed:
				s.Replayed++
			default:
				s.Sent++
				f.cursor.Sent++
			}
		}
	})
	for _, m := range messages {
		f.passed(b, m)
	}
	f.publish()
}

// passed moves the cursor over one record of a batch. An exact sink's cursor
// stays at the beginning of the batch until all of it has been taken.
func (f *follower) passed(b *batch, m sink.Message) {
	if f.kind.Exact || m.Kind == sink.KindAnchor {
		return
	}
	for i := range b.links {
		if b.links[i].Index == m.Index {
			f.cursor.place = place{Next: m.Index + 1, Last: &b.links[i]}
			b.links = b.links[i:]
			return
		}
	}
}

// deadLimit is how many records in a row a sink may refuse. One that refuses
// more refuses everything, for a reason that is not in the records.
const deadLimit = 16

// refuse deals with a batch of which something is refused for good: where it is
// known what, that is put aside, and else the batch is cut in two until it is.
func (f *follower) refuse(ctx context.Context, parts []sink.Batch, r *sink.Refused, taken int) []sink.Batch {
	messages := parts[0].Messages
	at := r.At - taken
	if len(messages) == 1 {
		at = 0
	}
	if at >= 0 && at < len(messages) {
		f.dead(ctx, messages[at], r.Reason)
		rest := append(messages[:at:at], messages[at+1:]...)
		if len(rest) == 0 {
			return parts[1:]
		}
		parts[0].Messages = rest
		return parts
	}
	half := len(messages) / 2
	first, second := parts[0], parts[0]
	first.Messages, second.Messages = messages[:half], messages[half:]
	return append([]sink.Batch{first, second}, parts[1:]...)
}

// dead puts a message aside.
func (f *follower) dead(ctx context.Context, m sink.Message, reason string) {
	f.deadRow++
	f.cursor.Dead++
	f.count(func(s *Status) { s.Dead++ })
	f.logger.Error("record refused by a sink, put aside", "index", m.Index, "kind", m.Kind, "reason", reason)
	if err := f.writeDead(m, reason); err != nil {
		f.logger.Error("dead letter not written", "index", m.Index, "error", err)
	}
	// A sink that refuses what the exporter says of it would make it say more.
	if m.Kind != string(audit.KindExport) && m.Kind != sink.KindAnchor {
		first := m.Index
		f.record(ctx, note{Action: actionDeadLetter, First: &first, Next: m.Index + 1, Count: 1, Detail: reason})
	}
}

// deadLetter is a line of the dead-letter file.
type deadLetter struct {
	Time    int64           `json:"time"` // µs since the Unix epoch
	Index   uint64          `json:"index"`
	Reason  string          `json:"reason"`
	Message string          `json:"message"` // as the sink refused it
	Leaf    json.RawMessage `json:"leaf,omitempty"`
}

func (f *follower) writeDead(m sink.Message, reason string) error {
	d := deadLetter{Time: f.now().UnixMicro(), Index: m.Index, Reason: reason, Message: string(m.Body)}
	if m.Kind != sink.KindAnchor {
		for e, err := range tlog.Read(f.cfg.Dir, m.Index) {
			if err == nil && e.Index == m.Index {
				d.Leaf = e.Leaf
			}
			break
		}
	}
	line, err := json.Marshal(d)
	if err != nil {
		return err
	}
	path := filepath.Join(f.cfg.Dir, folder, f.sink.Name+".dead.jsonl")
	h, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = h.Write(append(line, '\n'))
	return errors.Join(err, h.Sync(), h.Close())
}

// gap notes records that were pruned before the sink had them.
func (f *follower) gap(ctx context.Context, b *batch, i item) {
	if i.pruned == 0 {
		return
	}
	first := i.next - 1 - i.pruned
	f.cursor.Lost += i.pruned
	f.count(func(s *Status) { s.Lost += i.pruned })
	f.logger.Error("records were pruned before a sink had them", "first", first, "next", i.next-1)
	f.record(ctx, note{Action: actionGap, First: &first, Next: i.next - 1, Count: int(i.pruned)})
	if b.records == 0 {
		b.First = i.next - 1
	}
}

// downAfter is how long a sink may fail before the log is told.
const downAfter = time.Minute

// failed notes a failure and waits before the next attempt.
func (f *follower) failed(ctx context.Context, err error) {
	f.failures++
	if f.failures == 1 {
		f.downSince = f.now()
		f.logger.Warn("sink does not take records; trying again", "error", err)
	}
	f.count(func(s *Status) { s.Errors, s.Failing, s.LastError = s.Errors+1, true, err.Error() })
	if !f.down && f.now().Sub(f.downSince) >= downAfter {
		f.down = true
		f.record(ctx, note{Action: actionDown, Next: f.cursor.Next, Detail: err.Error()})
	}
	pause := f.backoff()
	var busy *sink.Busy
	if errors.As(err, &busy) {
		pause = max(pause, min(busy.After, maxBusy))
	}
	sleep(ctx, pause)
}

// maxBusy bounds what a receiver may ask for.
const maxBusy = 5 * time.Minute

// worked notes that a sink takes records.
func (f *follower) worked(ctx context.Context) {
	if f.failures == 0 {
		return
	}
	f.logger.Info("sink takes records again", "failures", f.failures)
	if f.down {
		f.record(ctx, note{Action: actionUp, Next: f.cursor.Next})
	}
	f.failures, f.down = 0, false
	f.count(func(s *Status) { s.Failing, s.LastError = false, "" })
}

// keep saves the cursor from time to time, on disk and in the log.
func (f *follower) keep(ctx context.Context) {
	now := f.now()
	if now.Sub(f.saved) >= f.cfg.pace.save {
		f.saved = now
		f.cursor.Time = now.UnixMicro()
		if err := f.cursor.write(f.cfg.Dir); err != nil {
			f.logger.Error("cursor not saved", "error", err)
		}
	}
	if f.worth && now.Sub(f.noted) >= f.cfg.pace.record {
		f.noted, f.worth = now, false
		c := f.cursor
		c.Sending, c.Time = nil, now.UnixMicro()
		f.record(ctx, note{Action: actionCursor, Cursor: &c, Next: c.Next})
	}
}
