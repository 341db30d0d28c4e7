// Package sink delivers written-down events to the systems that collect them.
//
// Start at [Sink], the contract, and [Kinds], the table of what there is. A new
// kind of sink is one file and one entry in that table.
package sink

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// Attempt is how long one Send may take before it is given up.
const Attempt = 2 * time.Minute

// KindAnchor is the kind of a message that holds no record but what proves those
// of its batch.
const KindAnchor = "anchor"

// Message is one event, or the anchor that ends a batch.
type Message struct {
	Index    uint64 // of the record; of an anchor, of the record after its batch
	Time     time.Time
	Kind     string // of the record, or [KindAnchor]
	ID       string // the same each time that this message is sent
	Severity int    // 1 informational, 2 low, 3 medium, 4 high
	Replayed bool   // the receiver may have it already
	Body     []byte // one line
}

// Batch is a run of messages, of all that a part of the log has for a sink.
type Batch struct {
	Origin   string
	First    uint64 // the records First ≤ index < Next of the log
	Next     uint64
	Messages []Message
}

// Sink delivers to one receiver. It is used by one goroutine.
//
// Send delivers messages in order and returns how many of the first ones the
// receiver has taken, as far as its protocol can say so. It MUST NOT count a
// message before one that was not taken. It returns an error if not all were,
// and it MUST return soon after ctx ends. What was not taken is sent again, and
// may reach the receiver twice. Errors other than [*Refused] mean that it may
// go better later; [*Busy] says when.
type Sink interface {
	Send(ctx context.Context, b *Batch) (taken int, err error)
	Close() error
}

// Watched is a lossy sink that sees its connection end while it is idle.
type Watched interface {
	// Broken returns a channel that is closed when the connection of the last
	// Send has ended, or nil if there is none.
	Broken() <-chan struct{}
}

// Refused says that the receiver will never take a message.
type Refused struct {
	At     int // which of the batch; negative if it is not known which
	Reason string
}

func (r *Refused) Error() string {
	if r.At < 0 {
		return "refused: " + r.Reason
	}
	return fmt.Sprintf("message %d refused: %s", r.At, r.Reason)
}

// Busy says when the receiver wants to be asked again.
type Busy struct {
	After time.Duration
	Err   error
}

func (b *Busy) Error() string { return fmt.Sprintf("%v; asked to wait %v", b.Err, b.After) }

func (b *Busy) Unwrap() error { return b.Err }

// Options are what every sink is made with.
type Options struct {
	Name        string
	Origin      string // of the log
	ContentType string // of one message
	Logger      *slog.Logger
}

// Kind is a kind of sink.
type Kind struct {
	Name string
	// Lossy kinds cannot tell what was taken: after a failure, what they sent
	// last is sent once more.
	Lossy bool
	// Exact kinds name what they write by the range of a batch: after a crash
	// the same batch must be made again.
	Exact bool
	// Batch bounds a batch, and Wait how long its first message waits for more.
	Batch int
	Wait  time.Duration
	// Limit is the longest message; 0 is none. The configuration may set another.
	Limit int

	has   func(c *Config) bool
	check func(c *Config, p *problems)
	paths func(c *Config) []*string
	wait  func(c *Config) time.Duration // where the configuration can set another
	open  func(ctx context.Context, c *Config, o Options) (Sink, error)
}
