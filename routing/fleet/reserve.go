package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/blockid"
	"github.com/sallyport-ai/sallyport/routing/ledger"
)

// Request is one attempt to place a request.
type Request struct {
	Pools       []string // permitted
	Model       string   // served name
	Adapter     string
	Domain      string // cache domain
	Operation   string // "POST /v1/chat/completions"; its isolation must be proven
	Tokens      []uint32
	TokensExact bool // Tokens are exactly what the engine will see
	// AppendBlocks appends the ids under a key of the full blocks of Tokens, of
	// so many each, for who has them at hand; nil computes them.
	AppendBlocks func([]uint64, *blockid.Key, int) []uint64
	// PromptTokens is the length of the prompt. Tokens may be only its beginning,
	// or not known at all.
	PromptTokens int
	Affinity     [32]byte // of namespace and first user turn; zero for none
	Strategy     routing.Strategy
	Seed         uint64
	MaxOutput    int    // tokens; 0 unknown
	Region       string // preferred
	Warm         bool
	Exclude      map[string]routing.Reason // replicas not to use, by ID: those already tried
}

func (r *Request) appendBlocks(dst []uint64, key *blockid.Key, size int) []uint64 {
	if r.AppendBlocks != nil {
		return r.AppendBlocks(dst, key, size)
	}
	return blockid.Append(slices.Grow(dst, len(r.Tokens)/size), key, r.Tokens, size)
}

// Replica is the replica of a reservation.
type Replica struct {
	ID        string
	Address   string
	Pool      string
	Epoch     string // its relay process
	Rank      int    // data-parallel rank
	BlockSize int
}

// Result is how a reserved request ended.
type Result struct {
	PromptTokens int  // as the engine counted; 0 unknown
	CachedTokens *int // nil where the engine does not say
	Err          error
	Blame        bool // Err is the replica's fault
	Aside        bool // it was no inference: nothing is learned of the replica
}

// Reservation is one placed attempt. Exactly one of Finish (something was
// sent) and Release (nothing was) ends it; the first call wins. Safe for
// concurrent use.
type Reservation struct {
	Placement  routing.Placement
	Replica    Replica
	Counter    uint64 // the ticket's n: per relay process, from 1
	Tokens     int    // of the prompt that the replica is expected to compute; at least 1
	HolderDown bool   // a replica that held more of the prompt than any other is lost
	Indexed    int    // blocks of the prompt that the replica's events said it holds, speculation apart

	fleet    *Fleet
	replica  *replica
	flight   *ledger.Flight[target] // nil where residency does not count
	alone    bool                   // nothing was ahead of it
	probe    bool                   // it decides whether the breaker closes
	reserved time.Time

	// Guarded by Fleet.mu.
	answered bool
	computed bool // it is no longer counted as waiting on its rank
	belied   bool // the first token came too late for what was predicted
	ended    bool
}

// Reserve places r and takes the load into account until the reservation ends.
// It places once more if the chosen replica changed meanwhile. Without an
// eligible replica the error is a [routing.NoReplicaError].
func (f *Fleet) Reserve(ctx context.Context, r Request) (*Reservation, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	look := f.look(&r)
	defer f.looks.Put(look)
	v := f.room(look)
	defer f.views.Put(v)
	f.read(v, &r, look)
	p, err := routing.Place(v.query, v.snapshot)
	if err != nil {
		return nil, err
	}
	return f.commit(&r, look, v, p)
}

// read makes the snapshot of v. A panic that somebody recovers from leaves the lock
// to others.
func (f *Fleet) read(v *view, r *Request, look *lookup) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	f.view(v, r, look)
}

// commit reserves what p chose in v, if nothing has changed there since, else
// what a second placement chooses while nothing can change.
func (f *Fleet) commit(r *Request, look *lookup, v *view, p routing.Placement) (*Reservation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v.replicas[p.Chosen].gen != v.gens[p.Chosen] {
		v = f.view(f.room(look), r, look)
		defer f.views.Put(v)
		var err error
		if p, err = routing.Place(v.query, v.snapshot); err != nil {
			return nil, err
		}
	}
	return f.reserve(r, look, v, p), nil
}

// Snapshot is what Reserve would decide on for r at this moment.
func (f *Fleet) Snapshot(r Request) (routing.Query, routing.Snapshot) {
	look := f.look(&r)
	defer f.looks.Put(look)
	f.mu.RLock()
	defer f.mu.RUnlock()
	v := f.view(&view{}, &r, look) // the caller keeps it
	return v.query, v.snapshot
}

// reserve takes the load of a placement. The caller holds f.mu.
func (f *Fleet) reserve(req *Request, look *lookup, v *view, p routing.Placement) *Reservation {
	r := v.replicas[p.Chosen]
	now := time.Now()
	tokens := max(v.query.PromptTokens-p.Predicted, 1)
	res := &Reservation{
		Placement:  p,
		Replica:    Replica{ID: r.id, Address: r.target.Address, Pool: r.target.Pool, Epoch: r.epoch, Rank: p.Rank, BlockSize: p.BlockSize},
		HolderDown: p.Excluded[routing.HolderDown] > 0,
		Indexed:    f.indexed(look, r, p.BlockSize),
		Tokens:     tokens,
		fleet:      f, replica: r, reserved: now,
		alone: v.snapshot.Candidates[p.Chosen].Running == 0,
	}
	f.lookedUp(r.target.Pool, look)
	res.probe = r.breaker.pass()
	r.gen++
	res.Counter = r.work.Dispatch(int64(tokens))
	r.begin(p.Rank, int64(tokens))
	if ids := look.ids(p.BlockSize); len(ids) > 0 && v.snapshot.Candidates[p.Chosen].Stream.Credits() {
		res.flight = f.overlay.Add(look.ns, p.BlockSize, ids, target{r, r.epoch, p.Rank}, now, time.Duration(p.WaitNS))
	}
	return res
}

// Stands says whether the replica is still what was decided on: one of the
// targets, and the same relay process. It is for the moment before anything is
// sent; that a replica is busier than it was does not matter then.
func (r *Reservation) Stands() bool {
	r.fleet.mu.RLock()
	defer r.fleet.mu.RUnlock()
	return !r.replica.gone && r.replica.epoch == r.Replica.Epoch
}

// FirstToken says that the replica began to answer at that time.
func (r *Reservation) FirstToken(at time.Time) {
	r.fleet.mu.Lock()
	defer r.fleet.mu.Unlock()
	if r.answered || r.ended {
		return
	}
	r.answered = true
	r.done()
	r.replica.breaker.works()
	if r.alone {
		r.belied = r.replica.rate.First(r.replica.pool, int64(r.Tokens), int64(r.Placement.Predicted), at.Sub(r.reserved))
	}
	if r.flight != nil {
		r.flight.Answered(time.Now(), time.Duration(r.replica.lagMS)*time.Millisecond)
	}
}

// Finish ends a reservation whose request was sent.
func (r *Reservation) Finish(res Result) {
	defer r.fleet.send() // after the lock is given back
	r.fleet.mu.Lock()
	defer r.fleet.mu.Unlock()
	if r.ended {
		return
	}
	r.ended = true
	r.done()
	if r.flight != nil && !r.answered {
		r.fleet.overlay.Remove(r.flight)
	}
	if res.Aside {
		return
	}
	if res.Err != nil {
		if res.Blame && r.replica.breaker.failed(time.Now(), r.fleet.cfg.ErrorsInRow) {
			r.replica.detail = "answers failed"
		}
		return
	}
	r.replica.breaker.works()
	if res.CachedTokens == nil {
		return
	}
	predicted, actual := r.Placement.Predicted, max(*res.CachedTokens, 0)
	r.replica.predicted += uint64(predicted)
	r.replica.cached += uint64(actual)
	r.replica.prompt += uint64(max(res.PromptTokens, 0))
	if predicted == 0 {
		return
	}
	if r.belied {
		actual = 0 // whatever the engine says
	}
	r.fleet.judge(r.replica, predicted, actual)
}

// Release ends a reservation whose request was never sent. Its counter is used
// again, so that the relay waits for no ticket that never comes.
func (r *Reservation) Release() {
	r.fleet.mu.Lock()
	defer r.fleet.mu.Unlock()
	if r.ended {
		return
	}
	r.ended = true
	r.done()
	if r.replica.epoch == r.Replica.Epoch {
		r.replica.work.Unused(r.Counter)
	}
	if r.flight != nil {
		r.fleet.overlay.Remove(r.flight)
	}
}

// done takes the prefill off what the relay has not seen, and ends a probe. The
// caller holds Fleet.mu.
func (r *Reservation) done() {
	if r.probe {
		r.probe, r.replica.breaker.probing = false, false
		r.replica.gen++
	}
	if r.replica.epoch == r.Replica.Epoch {
		r.replica.work.Seen(r.Counter)
		if !r.computed {
			r.computed = true
			r.replica.first(r.Replica.Rank, int64(r.Tokens))
		}
		if r.ended {
			r.replica.end(r.Replica.Rank)
		}
		r.replica.gen++
	}
}
