package lab

import (
	"encoding/binary"
	"errors"
	"strconv"
	"time"

	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/ledger"
)

// kv is our own placement: routing.Place on the index, with the accounts that
// package fleet keeps about replicas, per gateway.
type kv struct {
	mode  routing.Strategy
	ids   []string
	books []*book // by gateway
	deep  []int
	asked []uint64
	cands []routing.Candidate
}

// book is one gateway's knowledge.
type book struct {
	replicas []*known
	pool     ledger.Rate
	overlay  ledger.Overlay[int] // to the replica of that number
	flights  map[*call]*ledger.Flight[int]
}

// known is what a gateway knows of one replica, but for residency.
type known struct {
	rate   ledger.Rate
	claims ledger.Claims
	work   ledger.Work
	sent   map[*call]uint64 // the numbers of our calls that the relay has not reported
}

func newKV(w *world, mode routing.Strategy) *kv {
	s := &kv{mode: mode, deep: make([]int, w.setup.replicas), cands: make([]routing.Candidate, w.setup.replicas)}
	for r := range w.setup.replicas {
		s.ids = append(s.ids, "spiffe://lab/pool/lab/r"+strconv.Itoa(r))
	}
	for range w.gateways {
		b := &book{flights: map[*call]*ledger.Flight[int]{}}
		for range w.setup.replicas {
			b.replicas = append(b.replicas, &known{sent: map[*call]uint64{}})
		}
		s.books = append(s.books, b)
	}
	return s
}

// clock is a moment of the simulation as package ledger takes it.
func (w *world) clock() time.Time { return time.Unix(0, w.now) }

func (s *kv) pick(w *world, c *call) int {
	b := s.books[c.gateway]
	w.view.depths(s.deep, c.req)
	for r, k := range b.replicas {
		s.cands[r] = k.candidate(w, &b.pool, w.replicas[r].out)
		s.cands[r].ID, s.cands[r].Depth = s.ids[r], s.deep[r]
		if w.replicas[r].filler {
			s.cands[r].Stream = routing.StreamSuspect
		}
	}
	s.asked = w.view.name(s.asked[:0], c.req)
	b.overlay.Look(uint64(c.req.Tenant), w.trace.Block, s.asked, w.clock(), func(to, depth int, answered bool) {
		x := &s.cands[to]
		if !x.Stream.Credits() {
			return
		}
		if answered {
			x.Depth = max(x.Depth, depth)
		}
		x.Overlay = max(x.Overlay, depth)
	})
	q := routing.Query{Strategy: s.mode, PromptTokens: c.req.Prompt, TokensExact: true, Seed: w.rng.Uint64(), Affinity: affinity(c.req)}
	p, err := routing.Place(q, routing.Snapshot{Candidates: s.cands})
	if err != nil {
		if !errors.Is(err, routing.ErrNoReplica) {
			w.fail(err)
		}
		return nowhere
	}
	c.predicted, c.uncached = p.Predicted, max(c.req.Prompt-p.Predicted, 1)
	c.alone = s.cands[p.Chosen].Running == 0
	k := b.replicas[p.Chosen]
	k.sent[c] = k.work.Dispatch(int64(c.uncached))
	if s.cands[p.Chosen].Stream.Credits() && len(c.req.Blocks) > 0 {
		b.flights[c] = b.overlay.Add(uint64(c.req.Tenant), w.trace.Block, s.asked, p.Chosen, w.clock(), time.Duration(p.WaitNS))
	}
	return p.Chosen
}

// affinity stands for the digest of namespace and first user turn.
func affinity(r *Request) (a [32]byte) {
	for i := range 4 {
		binary.BigEndian.PutUint64(a[8*i:], mix(uint64(r.Tenant)<<40|uint64(r.Session)<<8|uint64(i)))
	}
	return a
}

func (k *known) candidate(w *world, pool *ledger.Rate, out bool) routing.Candidate {
	c := routing.Candidate{
		Pool: "lab", Stream: routing.StreamLive, BlockSize: w.trace.Block,
		Confidence: k.claims.PerMille(),
		PrefillPS:  k.rate.Over(pool),
		LowerPS:    ledger.LowerPS,
		KVTotal:    int64(w.blocks),
		LagMS:      eventLag / ms,
	}
	if out {
		c.Excluded = routing.Unhealthy
	}
	if k.claims.Doubted() {
		c.Confidence = 0
	}
	k.work.Fill(&c)
	return c
}

func (k *known) seen(c *call) {
	if n, ok := k.sent[c]; ok {
		delete(k.sent, c)
		k.work.Seen(n)
	}
}

func (s *kv) first(w *world, c *call) {
	b := s.books[c.gateway]
	k := b.replicas[c.replica]
	k.seen(c)
	if c.alone {
		c.belied = k.rate.First(&b.pool, int64(c.uncached), int64(c.predicted), time.Duration(w.now-c.placed))
	}
	if f := b.flights[c]; f != nil {
		f.Answered(w.clock(), time.Duration(eventLag))
	}
}

func (s *kv) end(_ *world, c *call) {
	b := s.books[c.gateway]
	k := b.replicas[c.replica]
	k.seen(c)
	f := b.flights[c]
	delete(b.flights, c)
	if c.first == 0 || c.failed {
		if f != nil {
			b.overlay.Remove(f)
		}
		return
	}
	if c.predicted > 0 {
		actual := c.job.hit
		if c.belied {
			actual = 0
		}
		k.claims.Judge(c.predicted, actual)
	}
}

func (s *kv) report(_ *world, replica int, r report) {
	for _, b := range s.books {
		k := b.replicas[replica]
		k.work.Told = ledger.Told{
			WaitingTokens: r.waitingTokens, Waiting: int64(r.waiting), Running: int64(r.running), UsedBlocks: int64(r.usedBlocks),
		}
		for c := range k.sent {
			if c.landed > 0 && c.landed <= r.at {
				k.seen(c)
			}
		}
	}
}
