package fleet

import (
	"time"

	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/ledger"
)

// An engine with data-parallel ranks has a cache and a queue in each. Where a
// request can choose its rank, a replica stands in a placement as the best of
// its ranks would serve that request; where the engine chooses, as the least
// of them, because any may get it.

// rankWork is our own work on one rank. Guarded by Fleet.mu.
type rankWork struct {
	waiting int64 // prefill tokens
	running int64 // requests
}

// target is where a prefix is on its way to: a rank of a process of a replica.
type target struct {
	replica *replica
	epoch   string
	rank    int
}

// hold is what one rank holds of a prompt, in blocks.
type hold struct{ depth, any, overlay int }

// addressable says whether a request can choose r's rank.
func (r *replica) addressable() bool { return len(r.ranks) > 1 && r.hello.GetRanksAddressable() }

// hold is what a rank of the candidate at that place holds.
func (v *view) hold(at, rank int) *hold {
	if v.holds == nil {
		v.holds = make(map[int][]hold)
	}
	if v.holds[at] == nil {
		v.holds[at] = make([]hold, len(v.replicas[at].ranks))
	}
	return &v.holds[at][rank]
}

// settleRanks makes of each replica with several ranks one candidate.
func (v *view) settleRanks(now time.Time) {
	for at, r := range v.replicas {
		if len(r.ranks) < 2 {
			continue
		}
		c := &v.snapshot.Candidates[at]
		if !r.addressable() {
			r.share(c, c.WaitingTokens, c.Running)
			continue
		}
		rank := r.pick(c, v.holds[at], &v.query)
		c.Rank = rank
		work, all := r.onRank[rank], rankWork{}
		for _, w := range r.onRank {
			all.waiting += w.waiting
			all.running += w.running
		}
		// The work of other gateways is somewhere on the ranks.
		r.share(c, max(c.WaitingTokens-all.waiting, 0), max(c.Running-all.running, 0))
		c.WaitingTokens += work.waiting
		c.Load += work.waiting
		c.Running += work.running
		c.DecodeNS = c.Running * ledger.DecodeNS
		if _, why := r.withheld(); why == "" { // another rank's state is none of this one's
			c.Stream, c.StreamReason = r.streamOf(r.ranks[rank], now)
		}
		if h := v.holds[at]; h != nil && c.Stream.Credits() {
			c.Depth, c.Overlay, c.Lower = h[rank].depth, h[rank].overlay, 0
			if h[rank].any > h[rank].depth {
				c.Lower = h[rank].any
			}
		}
	}
}

// share gives c one rank's part of work that is spread over all.
func (r *replica) share(c *routing.Candidate, waiting, running int64) {
	n := int64(len(r.ranks))
	c.Load -= c.WaitingTokens
	c.WaitingTokens, c.Running, c.Waiting = (waiting+n-1)/n, (running+n-1)/n, (c.Waiting+n-1)/n
	c.Load += c.WaitingTokens
	c.DecodeNS = c.Running * ledger.DecodeNS
}

// nearTieNS is how much dearer than the cheapest a rank may be and still get
// the request, so that ranks fill evenly where little depends on it.
const nearTieNS = 2_000_000

// pick is the rank on which the request would wait and compute the least. Among
// equals the seed decides; under the probabilistic strategy among near ties.
func (r *replica) pick(c *routing.Candidate, holds []hold, q *routing.Query) int {
	prefill := c.PrefillPS / 1000 // ns a token: in ps the longest queues would overflow
	cost := func(k int) int64 {
		ns := r.onRank[k].waiting*prefill + r.onRank[k].running*ledger.DecodeNS
		if holds == nil || !r.ranks[k].stream.Credits() {
			return ns
		}
		tokens := int64(max(holds[k].depth, holds[k].overlay) * c.BlockSize)
		return ns - tokens*int64(c.Confidence)/1000*prefill
	}
	least := cost(0)
	for k := 1; k < len(r.ranks); k++ {
		least = min(least, cost(k))
	}
	if q.Strategy == routing.Probabilistic {
		least += nearTieNS
	}
	for i := range uint64(len(r.ranks)) {
		if k := int((q.Seed + i) % uint64(len(r.ranks))); cost(k) <= least {
			return k
		}
	}
	return 0
}

// begin and end count a request on its rank; first is its first token. The
// epoch must be the one that it was reserved in.
func (r *replica) begin(rank int, tokens int64) {
	if rank < len(r.onRank) {
		r.onRank[rank].waiting += tokens
		r.onRank[rank].running++
	}
}

func (r *replica) first(rank int, tokens int64) {
	if rank < len(r.onRank) {
		r.onRank[rank].waiting = max(0, r.onRank[rank].waiting-tokens)
	}
}

func (r *replica) end(rank int) {
	if rank < len(r.onRank) {
		r.onRank[rank].running = max(0, r.onRank[rank].running-1)
	}
}
