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

// Diverge asks the replica of a reservation where the prompt of r, which a
// ticket of that id took there, parts from what the engine stored for it.
func (res *Reservation) Diverge(ctx context.Context, ticketID string, r *Request) (Divergence, error) {
	f := res.fleet
	f.mu.Lock()
	conn, epoch := res.replica.conn, res.replica.epoch
	f.mu.Unlock()
	if conn == nil || epoch != res.Replica.Epoch {
		return Divergence{}, ErrGone
	}
	d := Divergence{BlockSize: res.Replica.BlockSize}
	if d.BlockSize <= 0 || len(r.Tokens) < d.BlockSize {
		return d, nil
	}
	ids := r.appendBlocks(make([]uint64, 0, len(r.Tokens)/d.BlockSize), &f.key, d.BlockSize)
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
func (res *Reservation) Lag() time.Duration {
	res.fleet.mu.Lock()
	defer res.fleet.mu.Unlock()
	return 2*time.Duration(res.replica.lagMS)*time.Millisecond + 40*time.Millisecond
}
