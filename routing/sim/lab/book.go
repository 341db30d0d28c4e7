package lab

import (
	"encoding/binary"
	"errors"
	"strconv"
	"time"

	"github.com/sallyport-ai/sallyport/routing"
)

// The constants of package fleet that a placement depends on.
const (
	priorPS         = 62_500_000 // picoseconds per prompt token before anything is known
	decodeNS        = 250_000    // by a request that is being answered
	lowerPS         = 20_000_000 // picoseconds to load a token from a slower tier
	minSampleTokens = 1024
	maxFlights      = 128
	doubtBelow      = 0.25 // share of claims that came true
	trustAbove      = 0.5
	doubtAfter      = 8
	timedAfter      = 8
	leastGap        = 50 * ms
)

// kv is our own placement: routing.Place on the index, with what package fleet
// keeps about replicas, per gateway.
type kv struct {
	mode  routing.Strategy
	ids   []string
	books []*book // by gateway
	deep  []int
	cands []routing.Candidate
}

// book is one gateway's knowledge.
type book struct {
	replicas []*known
	pool     rate
	flights  map[int32][]*flight // by tenant: prefixes whose prefill is in flight
	byCall   map[*call]*flight
}

// known is what a gateway knows of one replica, but for residency.
type known struct {
	rate      rate
	report    report
	unacked   map[*call]int64 // prefill tokens of our calls that the relay has not reported
	unackedIn int64
	hit       float64 // smoothed share of predicted tokens that were cached
	claims    int
	doubted   bool // its claims keep missing
}

// rate is a learned prefill rate, as package fleet learns it.
type rate struct {
	ps      float64
	samples int
}

func (r *rate) add(tokens, ns int64) {
	ps := min(max(float64(ns)*1000/float64(tokens), priorPS/1000), priorPS*1000)
	if r.samples == 0 {
		r.ps = ps
	}
	r.ps += (ps - r.ps) / 8
	r.samples++
}

func (r *rate) over(pool *rate) int64 {
	const trust = 8
	assumed := float64(priorPS)
	for _, x := range [...]*rate{pool, r} {
		n := float64(min(x.samples, 8*trust))
		assumed = (assumed*trust + x.ps*n) / (trust + n)
	}
	return int64(assumed)
}

// flight is one prefix on its way.
type flight struct {
	replica  int
	blocks   []int32
	until    int64
	answered bool
}

func newKV(w *world, mode routing.Strategy) *kv {
	s := &kv{mode: mode, deep: make([]int, w.setup.replicas), cands: make([]routing.Candidate, w.setup.replicas)}
	for r := range w.setup.replicas {
		s.ids = append(s.ids, "spiffe://lab/pool/lab/r"+strconv.Itoa(r))
	}
	for range w.gateways {
		b := &book{flights: map[int32][]*flight{}, byCall: map[*call]*flight{}}
		for range w.setup.replicas {
			b.replicas = append(b.replicas, &known{unacked: map[*call]int64{}, hit: 1})
		}
		s.books = append(s.books, b)
	}
	return s
}

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
	b.overlay(w, c.req, s.cands)
	q := routing.Query{Strategy: s.mode, PromptTokens: c.req.Prompt, TokensExact: true, Seed: w.rng.Uint64(), Affinity: affinity(c.req)}
	p, err := routing.Place(q, routing.Snapshot{Candidates: s.cands})
	if err != nil {
		if !errors.Is(err, routing.ErrNoReplica) {
			w.fail(err)
		}
		return nowhere
	}
	k := b.replicas[p.Chosen]
	c.predicted, c.uncached = p.Predicted, max(c.req.Prompt-p.Predicted, 1)
	c.alone = s.cands[p.Chosen].Running == 0
	k.unacked[c] = int64(c.uncached)
	k.unackedIn += int64(c.uncached)
	if s.cands[p.Chosen].Stream.Credits() && len(c.req.Blocks) > 0 {
		b.fly(c, &flight{replica: p.Chosen, blocks: c.req.Blocks, until: w.now + 1000*ms + 2*min(p.WaitNS, int64(time.Minute))})
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

func (k *known) candidate(w *world, pool *rate, out bool) routing.Candidate {
	block := int64(w.trace.Block)
	used := int64(k.report.usedBlocks)
	c := routing.Candidate{
		Pool: "lab", Stream: routing.StreamLive, BlockSize: w.trace.Block,
		Confidence:    int(k.hit*1000 + 0.5),
		WaitingTokens: k.report.waitingTokens + k.unackedIn,
		PrefillPS:     k.rate.over(pool),
		LowerPS:       lowerPS,
		KVTotal:       int64(w.blocks),
		KVFree:        max(0, int64(w.blocks)-used-(k.unackedIn+block-1)/block),
		Running:       int64(k.report.running + k.report.waiting + len(k.unacked)),
		Waiting:       int64(k.report.waiting + len(k.unacked)),
		LagMS:         eventLag / ms,
	}
	if out {
		c.Excluded = routing.Unhealthy
	}
	if k.doubted {
		c.Confidence = 0
	}
	c.DecodeNS = c.Running * decodeNS
	c.Load = c.WaitingTokens + used*block
	return c
}

func (b *book) fly(c *call, f *flight) {
	list := b.flights[c.req.Tenant]
	if len(list) >= maxFlights {
		list = append(list[:0], list[1:]...)
	}
	b.flights[c.req.Tenant] = append(list, f)
	b.byCall[c] = f
}

// overlay credits prefixes in flight.
func (b *book) overlay(w *world, r *Request, cands []routing.Candidate) {
	list := b.flights[r.Tenant]
	kept := list[:0]
	for _, f := range list {
		if w.now > f.until {
			continue
		}
		kept = append(kept, f)
		depth := common(f.blocks, r.Blocks)
		if c := &cands[f.replica]; depth > 0 && c.Stream.Credits() {
			if f.answered {
				c.Depth = max(c.Depth, depth)
			}
			c.Overlay = max(c.Overlay, depth)
		}
	}
	b.flights[r.Tenant] = kept
}

func common(a, b []int32) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func (k *known) seen(c *call) {
	if tokens, ok := k.unacked[c]; ok {
		delete(k.unacked, c)
		k.unackedIn -= tokens
	}
}

func (s *kv) first(w *world, c *call) {
	b := s.books[c.gateway]
	k := b.replicas[c.replica]
	k.seen(c)
	if took := w.now - c.placed; c.alone {
		c.belied = c.predicted > 0 && belied(c, took, &k.rate)
		if c.uncached >= max(minSampleTokens, c.predicted) && !c.belied {
			k.rate.add(int64(c.uncached), took)
			b.pool.add(int64(c.uncached), took)
		}
	}
	if f := b.byCall[c]; f != nil {
		f.answered, f.until = true, w.now+min(2*eventLag+40*ms, 500*ms)
	}
}

func (s *kv) end(w *world, c *call) {
	b := s.books[c.gateway]
	k := b.replicas[c.replica]
	k.seen(c)
	f := b.byCall[c]
	delete(b.byCall, c)
	if c.first == 0 || c.failed {
		if f != nil {
			f.until = 0
		}
		return
	}
	if c.predicted > 0 {
		k.judge(c)
	}
}

// belied says whether a first token came as late as if nothing had been cached.
func belied(c *call, took int64, own *rate) bool {
	if own.samples < timedAfter {
		return false
	}
	computed := int64(float64(c.uncached+c.predicted) * own.ps / 1000)
	saved := int64(float64(c.predicted) * own.ps / 1000)
	return saved > leastGap && took > computed-saved/4
}

// judge holds what was claimed against what was there.
func (k *known) judge(c *call) {
	actual := float64(c.job.hit)
	if c.belied {
		actual = 0
	}
	k.hit += (min(actual/float64(c.predicted), 1) - k.hit) / 8
	k.claims++
	switch {
	case !k.doubted && k.claims >= doubtAfter && k.hit < doubtBelow:
		k.doubted = true
	case k.doubted && k.hit > trustAbove:
		k.doubted = false
	}
}

func (s *kv) report(_ *world, replica int, r report) {
	for _, b := range s.books {
		k := b.replicas[replica]
		k.report = r
		for c := range k.unacked {
			if c.landed > 0 && c.landed <= r.at {
				k.seen(c)
			}
		}
	}
}
