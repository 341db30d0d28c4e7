package routing

import (
	"cmp"
	"slices"
	"sync"
)

const (
	// betaNum/betaDen is 1+β: nobody takes more than this times the mean load.
	betaNum, betaDen = 5, 4

	// boundFloor is the load, in tokens, that is never over the bound: what one
	// scheduler step of an engine takes is no queue.
	boundFloor = 8192

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
	cost      int64
	penalty   int64
	load      int64
	credits   bool
	overBound bool
}

// scratch is working memory of Place, of *[]scored; nothing outlives a call.
var scratch = sync.Pool{New: func() any { return new([]scored) }}

// Place picks a candidate of s for q. The choice does not depend on the order
// of the candidates. Without an eligible one the error is a [NoReplicaError].
func Place(q Query, s Snapshot) (Placement, error) {
	excluded := make(map[Reason]int)
	work := scratch.Get().(*[]scored)
	defer scratch.Put(work)
	*work = slices.Grow((*work)[:0], len(s.Candidates))
	eligible := (*work)[:len(s.Candidates)]
	n := 0
	var z sizes
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.Excluded != "" {
			excluded[c.Excluded]++
			continue
		}
		e := &eligible[n]
		e.score(&q, c, &z)
		if !headroom(c, &z, e.hit) {
			excluded[NoHeadroom]++
			continue
		}
		e.index = i
		n++
	}
	eligible = eligible[:n]
	if n == 0 {
		return Placement{}, &NoReplicaError{Considered: len(s.Candidates), Excluded: excluded}
	}
	if n := markOverBound(&q, eligible); n > 0 {
		excluded[OverBound] = n
	}
	basis, why := basisOf(&q, s, eligible)
	best, because := choose(&q, s, eligible, basis)
	return placement(&q, s, eligible, best, because, basis, why, excluded), nil
}

// placement writes down the choice.
func placement(q *Query, s Snapshot, eligible []scored, best int, because Because, basis Basis, why BasisReason, excluded map[Reason]int) Placement {
	e := &eligible[best]
	c := &s.Candidates[e.index]
	p := Placement{
		Strategy: q.Strategy, Basis: basis, BasisReason: why, Seed: q.Seed,
		Chosen: e.index, ID: c.ID, Pool: c.Pool, Epoch: c.Epoch,
		Predicted: int(e.predicted), BlockSize: c.BlockSize, LagMS: c.LagMS, CostNS: e.cost,
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

// kept are the candidates that the placement carries.
func kept(q *Query, s Snapshot, eligible []scored, best int) []Scored {
	if q.Strategy == Probabilistic {
		eligible = cheapest(s, eligible, best)
	}
	out := make([]Scored, len(eligible))
	for i := range eligible {
		e := &eligible[i]
		out[i] = Scored{Candidate: &s.Candidates[e.index], CostNS: e.cost, PenaltyNS: e.penalty, OverBound: e.overBound}
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
// decided. Candidates over the bound are passed over; there is always one that
// is not, because not everybody can be above the mean.
func choose(q *Query, s Snapshot, eligible []scored, basis Basis) (int, Because) {
	if basis == Affinity && q.Affinity != [32]byte{} {
		return chooseAffine(q, s, eligible), sole(eligible, ByAffinity)
	}
	if q.Strategy == Probabilistic {
		return chooseNearTie(q, s, eligible)
	}
	best, tied := -1, false
	for i := range eligible {
		e := &eligible[i]
		switch {
		case e.overBound:
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

// chooseAffine takes the first in the order of the affinity digest, of those in
// the preferred region if there are any.
func chooseAffine(q *Query, s Snapshot, eligible []scored) int {
	best := -1
	for i := range eligible {
		e := &eligible[i]
		switch {
		case e.overBound:
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

// chooseNearTie draws two of the near ties and takes the better.
func chooseNearTie(q *Query, s Snapshot, eligible []scored) (int, Because) {
	least := int64(-1)
	for i := range eligible {
		if e := &eligible[i]; !e.overBound && (least < 0 || e.cost < least) {
			least = e.cost
		}
	}
	limit := addSat(least, max(nearTieNS, mulDiv(least, nearTieNum, nearTieDen)))
	// The two are those with the smallest hash of seed and ID, so that the draw
	// does not depend on the order of the candidates.
	first, second, ties := -1, -1, 0
	var h1, h2 uint64
	for i := range eligible {
		e := &eligible[i]
		if e.overBound || e.cost > limit {
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
		if e.overBound || e.cost > limit {
			continue
		}
		if best < 0 || e.hit > eligible[best].hit || e.hit == eligible[best].hit && byCost(s, e, &eligible[best]) < 0 {
			best = i
		}
	}
	return best
}

// markOverBound marks the candidates that already carry more than (1+β) of the
// mean load and returns how many. The mean includes the request to be placed.
func markOverBound(q *Query, eligible []scored) int {
	if len(eligible) < 2 {
		return 0
	}
	total := int64(max(q.PromptTokens, 0))
	for i := range eligible {
		total = addSat(total, eligible[i].load)
	}
	bound := max(boundFloor, mulDiv(total, betaNum, int64(betaDen*len(eligible))))
	marked := 0
	for i := range eligible {
		if eligible[i].load > bound {
			eligible[i].overBound = true
			marked++
		}
	}
	if marked == len(eligible) { // only a saturated sum can say so
		for i := range eligible {
			eligible[i].overBound = false
		}
		return 0
	}
	return marked
}
