package fleet

import (
	"context"
	"errors"
	"time"
)

// Divergence is where a prompt's blocks first differ from what a replica's
// engine stored.
type Divergence struct {
	Known     bool // false: the replica cannot say
	Index     int  // of the first block that differs; Blocks where none does
	Blocks    int  // full blocks of the prompt that were looked at
	BlockSize int  // tokens
}

// Same reports whether the engine stored exactly this.
func (d Divergence) Same() bool { return d.Known && d.Index == d.Blocks }

// mostDiverge is how many blocks of a prompt are looked at: relays remember no
// more than the beginning of what was stored.
const mostDiverge = 1024

// ErrGone says that the relay process that served a reservation is not watched
// any more.
var ErrGone = errors.New("the replica's relay is another one now")

// Diverge asks the replica of a reservation where the prompt of ask, which a
// ticket of that id took there, parts from what the engine stored for it.
func (r *Reservation) Diverge(ctx context.Context, ticketID string, ask *Request) (Divergence, error) {
	f := r.fleet
	f.mu.Lock()
	conn, epoch := r.replica.conn, r.replica.epoch
	f.mu.Unlock()
	if conn == nil || epoch != r.Replica.Epoch {
		return Divergence{}, ErrGone
	}
	d := Divergence{BlockSize: r.Replica.BlockSize}
	if d.BlockSize <= 0 || len(ask.Tokens) < d.BlockSize {
		return d, nil
	}
	ids := ask.appendBlocks(make([]uint64, 0, len(ask.Tokens)/d.BlockSize), &f.key, d.BlockSize)
	ids = ids[:min(len(ids), mostDiverge)]
	d.Blocks = len(ids)
	var err error
	d.Index, d.Known, err = conn.Diverge(ctx, ticketID, ids)
	return d, err
}

// indexed is how many blocks of the prompt any rank of r holds, by its events.
// The caller holds f.mu.
func (f *Fleet) indexed(look *lookup, r *replica, block int) (depth int) {
	for i := range look.sizes {
		if look.sizes[i].block != block {
			continue
		}
		for _, m := range look.sizes[i].matches {
			if m.Replica < len(f.owners) && f.owners[m.Replica].replica == r {
				depth = max(depth, m.Depth)
			}
		}
	}
	return depth
}

// Lag is how long it takes until what the replica's engine stored is known here,
// about.
func (r *Reservation) Lag() time.Duration {
	r.fleet.mu.Lock()
	defer r.fleet.mu.Unlock()
	return 2*time.Duration(r.replica.lagMS)*time.Millisecond + 40*time.Millisecond
}
