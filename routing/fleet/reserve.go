package fleet

import (
	"context"
	"errors"
	"time"

	"github.com/sallyport-ai/sallyport/routing"
)

// Reservation is one placed attempt. Its ticket is not on its way until the
// caller sends it: exactly one of Finish (something was sent) and Release
// (nothing was) ends it; the first call wins. Safe for concurrent use.
type Reservation struct {
	Placement  routing.Placement
	Replica    Replica
	Counter    uint64 // the ticket's n: per relay process, from 1
	HolderDown bool   // the replica that last held most of the prompt is lost
}

// Reserve places r and takes the load into account until the reservation ends.
// Without an eligible replica the error is a [routing.NoReplicaError].
func (f *Fleet) Reserve(ctx context.Context, r Request) (*Reservation, error) {
	return nil, errors.New("not running")
}

// FirstToken says that the replica began to answer at that time.
func (r *Reservation) FirstToken(at time.Time) {}

// Finish ends a reservation whose request was sent.
func (r *Reservation) Finish(res Result) {}

// Release ends a reservation whose request was never sent.
func (r *Reservation) Release() {}

// Fleet is the replicas. Safe for concurrent use.
type Fleet struct{}

// New returns the fleet of the targets in c; none is eligible before Run.
func New(c Config) (*Fleet, error) { return &Fleet{}, nil }

// Run keeps the replicas watched until ctx ends.
func (f *Fleet) Run(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// Ready is nil once 90 % of the replicas' streams are live or Settle has
// passed, and stays so.
func (f *Fleet) Ready() error { return errors.New("not running") }

// Snapshot is what Reserve would decide on for r at this moment.
func (f *Fleet) Snapshot(r Request) (routing.Query, routing.Snapshot) {
	return routing.Query{}, routing.Snapshot{}
}

// ReportFailure says that a connection to the replica failed: because it
// proved another identity, or for any other reason.
func (f *Fleet) ReportFailure(replicaID string, identity bool) {}

// Drain makes a replica ineligible for new requests, or eligible again.
func (f *Fleet) Drain(replicaID string, drain bool) {}

// Status is a replica as the console shows it.
type Status struct {
	Target     Target
	ID         string         // proven or configured
	Excluded   routing.Reason // why it takes no requests; empty: it does
	Detail     string         // what went wrong last
	Epoch      string
	Engine     string
	Models     []string
	Stream     routing.Stream
	BlockSize  int
	Blocks     int // resident blocks indexed
	KVTotal    int64
	KVUsed     int64
	Running    int64
	Waiting    int64 // prefill tokens, the relay's and our own
	Confidence int   // per mille
	PrefillPS  int64
	LagMS      int64
}

// Replicas is the state of every target, in their configured order.
func (f *Fleet) Replicas() []Status { return nil }
