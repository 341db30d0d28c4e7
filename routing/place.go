package routing

import (
	"cmp"
	"errors"
	"slices"
	"sync"
)

const (
	// Candidates whose cost is within the larger of these of the least cost are
	// near ties.
	nearTieNS              = 2_000_000
	nearTieNum, nearTieDen = 2, 100

	// regionPenaltyNS is what serving from another region than the preferred
	// one costs: a round trip between continents.
	regionPenaltyNS = 50_000_000

	// keptCandidates is how many candidates a probabilistic placement keeps.
	keptCandidates = 8
)

// scored is a candidate's derived values, by index in the snapshot.
type scored struct {
	index     int
	predicted int64
	hit       int64
	lower     int64 // tokens to load from slower tiers
	computed  int64 // tokens to compute
	wait      int64 // until the first token
	cost      int64
	penalty   int64
	credits   bool
}

// scratch is working memory of Place, of *[]scored; nothing outlives a call.
var scratch = sync.Pool{New: func() any { return new([]scored) }}

// Place picks a candidate of s for q. The choice does not depend on the order
// of the candidates. Without an eligible one the error is a [NoReplicaError].
func Place(q Query, s Snapshot) (Placement, error) { return place(q, s, nil) }

// ErrNotAll says that a placement cannot be made again from the candidates that
// were kept, because one that was not could have been chosen.
var ErrNotAll = errors.New("a candidate that was not kept could have been chosen")

// Again makes a placement again that kept these candidates and left others out
// that cost no less, with the Others and Usual that it had.
func Again(q Query, kept Snapshot, others, usual int64) (Placement, error) {
	p, err := place(q, kept, &price{others, usual})
	if err != nil {
		return p, err
	}
	least, most := p.CostNS, int64(0)
	for i := range p.Candidates {
		least, most = min(least, p.Candidates[i].CostNS), max(most, p.Candidates[i].CostNS)
	}
	if most <= tieLimit(least) { // those that were left out may cost as much
		return p, ErrNotAll
	}
	return p, nil
}

// place is Place at a price that is given, or else follows from s.
func place(q Query, s Snapshot, given *price) (Placement, error) {
	excluded := make(map[Reason]int)
	work := scratch.Get().(*[]scored)
	defer scratch.Put(work)
	*work = slices.Grow((*work)[:0], len(s.Candidates))
	eligible := (*work)[:len(s.Candidates)]
	n := 0
	var z sizes
	var waiting crowd
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.Excluded != "" {
			excluded[c.Excluded]++
			continue
		}
		e := &eligible[n]
		e.score(&q, c, &z)
		if !fits(c, &z) {
			excluded[NoHeadroom]++
			continue
		}
		e.index = i
		n++
		waiting.add(c)
	}
	eligible = eligible[:n]
	if n == 0 {
		return Placement{}, &NoReplicaError{Considered: len(s.Candidates), Excluded: excluded}
	}
	at := waiting.price(int64(n))
	if given != nil {
		at = *given
	}
	least := at.charge(s, eligible)
	basis, why := basisOf(&q, s, eligible)
	best, because := choose(&q, s, eligible, least, basis, at)
	p := placement(&q, s, eligible, best, because, basis, why, excluded)
	p.Others, p.Usual = at.others, at.usual
	return p, nil
}

// placement writes down the choice.
func placement(q *Query, s Snapshot, eligible []scored, best int, because Because, basis Basis, why BasisReason, excluded map[Reason]int) Placement {
	e := &eligible[best]
	c := &s.Candidates[e.index]
	p := Placement{
		Strategy: q.Strategy, Basis: basis, BasisReason: why, Seed: q.Seed,
		Chosen: e.index, ID: c.ID, Pool: c.Pool, Epoch: c.Epoch, Rank: c.Rank,
		Predicted: int(e.predicted), BlockSize: c.BlockSize, LagMS: c.LagMS, CostNS: e.cost, WaitNS: e.wait,
		ChosenBecause: because, Considered: len(s.Candidates), Excluded: excluded,
	}
	if p.Strategy != Probabilistic {
		p.Strategy = Deterministic
	}
	if c.BlockSize > 0 {
		p.Blocks = max(q.PromptTokens, 0) / c.BlockSize
	}
	// The credit of the chosen replica says more about this placement than
	// what others hold.
	if e.predicted > 0 {
		p.Basis, p.BasisReason = creditOf(c)
	}
	p.Candidates = kept(q, s, eligible, best)
	return p
}

// kept are copies of the candidates that the placement carries: a few must not keep
// the whole snapshot in memory for as long as the request takes.
func kept(q *Query, s Snapshot, eligible []scored, best int) []Scored {
	if q.Strategy == Probabilistic {
		eligible = cheapest(s, eligible, best)
	}
	out, own := make([]Scored, len(eligible)), make([]Candidate, len(eligible))
	for i := range eligible {
		e := &eligible[i]
		own[i] = s.Candidates[e.index]
		out[i] = Scored{Candidate: &own[i], CostNS: e.cost, PenaltyNS: e.penalty}
	}
	return out
}

// cheapest are the best and the cheapest of the others, cheapest first.
func cheapest(s Snapshot, eligible []scored, best int) []scored {
	top := make([]scored, 0, keptCandidates)
	insert := func(e *scored) {
		at := len(top)
		for at > 0 && byCost(s, e, &top[at-1]) < 0 {
			at--
		}
		top = slices.Insert(top, at, *e)
	}
	for i := range eligible {
		e := &eligible[i]
		switch full := len(top) == keptCandidates-1; {
		case i == best:
		case !full:
			insert(e)
		case e.cost <= top[len(top)-1].cost && byCost(s, e, &top[len(top)-1]) < 0:
			top = top[:len(top)-1]
			insert(e)
		}
	}
	insert(&eligible[best])
	return top
}

func byCost(s Snapshot, a, b *scored) int {
	if c := cmp.Compare(a.cost, b.cost); c != 0 {
		return c
	}
	return cmp.Compare(s.Candidates[a.index].ID, s.Candidates[b.index].ID)
}

// choose returns the index in eligible of the candidate to use, and what
// decided.
func choose(q *Query, s Snapshot, eligible []scored, least *scored, basis Basis, p price) (int, Because) {
	if basis == Affinity && q.Affinity != [32]byte{} {
		return chooseAffine(q, s, eligible, least, p), sole(eligible, ByAffinity)
	}
	if q.Strategy == Probabilistic {
		return chooseNearTie(q, s, eligible, least.cost)
	}
	best, tied := -1, false
	for i := range eligible {
		e := &eligible[i]
		switch {
		case best < 0 || e.cost < eligible[best].cost:
			best, tied = i, false
		case e.cost == eligible[best].cost:
			tied = true
			if drawn(q, &s.Candidates[e.index], &s.Candidates[eligible[best].index]) {
				best = i
			}
		}
	}
	if tied {
		return best, TieBreak
	}
	return best, sole(eligible, LeastCost)
}

// chooseAffine takes the first in the order of the affinity digest that is worth
// it: whose cost exceeds the least by no more than computing the prompt costs,
// which is all that going back to where it was computed can spare. So a
// conversation that too many ask about moves on, to the next in its order.
func chooseAffine(q *Query, s Snapshot, eligible []scored, least *scored, p price) int {
	ps := s.Candidates[least.index].PrefillPS
	limit := addSat(least.cost, addSat(milli(least.computed, ps), p.delay(least.computed, ps)))
	best := -1
	for i := range eligible {
		e := &eligible[i]
		switch {
		case e.cost > limit:
		case best < 0 || e.penalty < eligible[best].penalty:
			best = i
		case e.penalty == eligible[best].penalty && prefer(q, &s.Candidates[e.index], &s.Candidates[eligible[best].index]):
			best = i
		}
	}
	return best
}

// sole replaces because where there was nothing to choose from.
func sole(eligible []scored, because Because) Because {
	if len(eligible) == 1 {
		return OnlyCandidate
	}
	return because
}

// tieLimit is the most that a near tie costs.
func tieLimit(least int64) int64 {
	return addSat(least, max(nearTieNS, mulDiv(least, nearTieNum, nearTieDen)))
}

// chooseNearTie draws two of the near ties and takes the better.
func chooseNearTie(q *Query, s Snapshot, eligible []scored, least int64) (int, Because) {
	limit := tieLimit(least)
	// The two are those with the smallest hash of seed and ID, so that the draw
	// does not depend on the order of the candidates.
	first, second, ties := -1, -1, 0
	var h1, h2 uint64
	for i := range eligible {
		e := &eligible[i]
		if e.cost > limit {
			continue
		}
		ties++
		id := s.Candidates[e.index].ID
		h := hashID(q.Seed, id)
		switch {
		case first < 0 || before(h, id, h1, s.Candidates[eligible[first].index].ID):
			first, second, h1, h2 = i, first, h, h1
		case second < 0 || before(h, id, h2, s.Candidates[eligible[second].index].ID):
			second, h2 = i, h
		}
	}
	if ties == 1 {
		return first, sole(eligible, LeastCost)
	}
	if q.Warm {
		return warmest(s, eligible, limit), NearTie
	}
	a, b := &s.Candidates[eligible[first].index], &s.Candidates[eligible[second].index]
	switch d := cmp.Compare(a.Load, b.Load); {
	case d > 0, d == 0 && eligible[second].cost < eligible[first].cost:
		return second, NearTie
	}
	return first, NearTie
}

func before(h uint64, id string, h2 uint64, id2 string) bool {
	return h < h2 || h == h2 && id < id2
}

// warmest is the near tie with the largest hit.
func warmest(s Snapshot, eligible []scored, limit int64) int {
	best := -1
	for i := range eligible {
		e := &eligible[i]
		if e.cost > limit {
			continue
		}
		if best < 0 || e.hit > eligible[best].hit || e.hit == eligible[best].hit && byCost(s, e, &eligible[best]) < 0 {
			best = i
		}
	}
	return best
}
