package tlog

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

// entry is a record on its way to disk.
type entry struct {
	summary summary
	durable audit.Durability
	at      time.Time
	draft   *audit.Draft // of the leaf, until the entry gets its index
	leaf    []byte       // set when the entry gets its index
	size    int          // of the leaf
	loose   bool         // bounded: the caller went on without waiting
	next    *Key         // signs the log after the batch that this entry ends

	// fate decides between an acknowledgement and a caller that gives up. It is
	// nil while someone waits to hear.
	fate atomic.Pointer[fate]
	done chan error
}

// fate is what the caller of an entry believes.
type fate struct {
	err  error // why the record is not in the log; nil: it is
	left bool  // the caller stopped waiting because of err
}

// settled is the fate of an entry that is durable, or that nobody waits for.
var settled = new(fate)

// answer tells the caller how it ended, if it has not heard yet.
func (e *entry) answer(err error) {
	f := settled
	if err != nil {
		f = &fate{err: err}
	}
	if e.fate.CompareAndSwap(nil, f) {
		e.done <- err
	}
}

// reason is the code for which a decision was not acted on.
func (f *fate) reason() string {
	switch {
	case !f.left:
		return "audit_unavailable"
	case errors.Is(f.err, context.DeadlineExceeded):
		return "audit_timeout"
	case errors.Is(f.err, context.Canceled):
		return "client_gone"
	default:
		return "cancelled"
	}
}

// detail says the same to the operator.
func (f *fate) detail() string {
	s := f.err.Error()
	if f.left {
		s = "the decision was not durable before its caller left: " + s
	}
	return s[:min(len(s), maxDetail)]
}

// maxDetail bounds the text of an error in a record, in bytes.
const maxDetail = 256

// Append adds r to the log. It sets r's V, Log, Salt and Time.
//
// By r.Durability it returns once the record is synced and signed (strict, and
// the empty value), synced in both directories (strict-2), or at once while
// few enough such records are unsynced (bounded). All errors but those of a
// record that cannot be encoded wrap [audit.ErrUnavailable]. If ctx ends first
// the record may still become durable; if it is an allowed decision, a
// not_forwarded outcome then follows it.
func (l *Log) Append(ctx context.Context, r *audit.Record) (audit.Position, error) {
	switch r.Durability {
	case "", audit.Strict, audit.Bounded:
	case audit.Strict2:
		if l.cfg.Dir2 == "" {
			return audit.Position{}, fmt.Errorf("%w: %s asked of a log with one directory", audit.ErrUnavailable, r.Durability)
		}
	default:
		return audit.Position{}, fmt.Errorf("%w: unknown durability %q", audit.ErrUnavailable, r.Durability)
	}
	if ctx.Err() != nil {
		return audit.Position{}, fmt.Errorf("%w: %w", audit.ErrUnavailable, context.Cause(ctx))
	}
	e, err := l.encode(r)
	if err != nil {
		return audit.Position{}, err
	}
	if err := l.enqueue(e, r, false); err != nil {
		return audit.Position{}, err
	}
	at := audit.Position{Index: r.Log.Seq, Bytes: e.size}
	if e.loose {
		return at, nil
	}
	select {
	case err = <-e.done:
	case <-ctx.Done():
		if cause := context.Cause(ctx); e.fate.CompareAndSwap(nil, &fate{err: cause, left: true}) {
			return audit.Position{}, fmt.Errorf("%w: %w", audit.ErrUnavailable, cause)
		}
		err = <-e.done
	}
	if err != nil {
		return audit.Position{}, err
	}
	return at, nil
}

// note appends a record of the log's own that nobody waits for.
func (l *Log) note(r *audit.Record) error {
	e, err := l.encode(r)
	if err != nil {
		return err
	}
	e.fate.Store(settled)
	return l.enqueue(e, r, true)
}

// encode prepares the leaf of r but for what only its place in the log
// decides. Callers do this, side by side, so that the log does not have to.
func (l *Log) encode(r *audit.Record) (*entry, error) {
	var salt [16]byte
	if _, err := rand.Read(salt[:]); err != nil {
		return nil, fmt.Errorf("%w: salt: %w", audit.ErrUnavailable, err)
	}
	r.V = audit.Version
	r.Log = audit.LogRef{Origin: l.cfg.Key.Name(), Boot: l.boot}
	r.Salt = base64.RawURLEncoding.EncodeToString(salt[:])
	r.Time = audit.Time{}
	draft, _ := drafts.Get().(*audit.Draft) // of nothing else
	if err := draft.Encode(r); err != nil {
		drafts.Put(draft)
		return nil, err
	}
	return &entry{
		summary: summary{Kind: r.Kind, ID: r.ID, Attempt: r.Attempt, Status: r.Status},
		durable: r.Durability, draft: draft, leaf: make([]byte, 0, draft.Size()),
		done: make(chan error, 1),
	}, nil
}

// drafts are of leaves that have no place yet.
var drafts = sync.Pool{New: func() any { return new(audit.Draft) }}

// finish writes the leaf, now that its place and time are known.
func (e *entry) finish(r *audit.Record) {
	e.leaf = e.draft.AppendLeaf(e.leaf, r.Log.Seq, r.Time)
	drafts.Put(e.draft)
	e.draft = nil
}

// enqueue gives the entry its index and time, and hands it to the commit loop.
// The log's own records may pass a full queue and a closing log.
func (l *Log) enqueue(e *entry, r *audit.Record, own bool) error {
	if size := cap(e.leaf); size > maxPayload {
		return fmt.Errorf("%w: %w: about %d bytes, over the limit of %d", audit.ErrUnavailable, audit.ErrTooLarge, size, maxPayload)
	}
	tell, err := l.sequence(e, r, own)
	if tell {
		l.signal()
	}
	return err
}

// sequence also says whether it is worth waking someone.
func (l *Log) sequence(e *entry, r *audit.Record, own bool) (tell bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.halted != nil:
		return false, fmt.Errorf("%w: halted: %w", audit.ErrUnavailable, l.halted)
	case l.closing && !own:
		return false, fmt.Errorf("%w: %w", audit.ErrUnavailable, errClosed)
	case l.admits(e.summary.Kind, own) != nil:
		return false, fmt.Errorf("%w: %w", audit.ErrUnavailable, errNoSpace)
	case l.queueBytes >= maxQueueBytes && !own:
		return false, fmt.Errorf("%w: %d bytes are waiting to be written", audit.ErrUnavailable, l.queueBytes)
	}
	e.at = time.Now()
	r.Log.Seq = l.next
	r.Time = audit.Time{Wall: e.at.UnixMicro(), MonoNS: e.at.Sub(l.start).Nanoseconds()}
	l.next++
	e.finish(r)
	e.size = len(e.leaf)
	if e.durable == audit.Bounded && !own && l.admitLoose(e.at) {
		e.loose = true
		e.fate.Store(settled)
	}
	l.queue = append(l.queue, e)
	l.queueBytes += len(e.leaf)
	if tell = len(l.queue) >= l.want; tell {
		l.want = math.MaxInt // once is enough
	}
	return tell, nil
}

var errClosed = errors.New("log is closed")

// admitLoose says whether one more bounded record may go unsynced.
func (l *Log) admitLoose(now time.Time) bool {
	if n := len(l.loose); n >= l.cfg.BoundedRecords || n > 0 && now.Sub(l.loose[0]) >= l.cfg.BoundedInterval {
		return false
	}
	l.loose = append(l.loose, now)
	return true
}

// signal wakes the commit loop, and its helper.
func (l *Log) signal() {
	tell(l.wake)
	tell(l.ahead)
}

// tell wakes who waits, unless it has been told already.
func tell(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
