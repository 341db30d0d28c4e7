package routing

// crowded is the most requests that are counted as waiting at one replica.
const crowded = 63

// patience is for how many times the usual wait, beyond computing its prompt
// twice, a request may be asked to wait for a copy of it: what a bound on load
// is for, so that the price of copies cannot leave a queue at the only holder.
const patience = 2

// crowd counts what waits at the eligible replicas.
type crowd struct {
	replicas [crowded + 1]int64 // by requests waiting there
	waits    [crowded + 1]int64 // to compute what waits there, ns
}

func (c *crowd) add(x *Candidate) {
	w := min(max(x.Waiting, 0), crowded)
	c.replicas[w]++
	c.waits[w] = addSat(c.waits[w], milli(max(x.WaitingTokens, 0), x.PrefillPS))
}

// price is what computing a prompt costs others.
type price struct {
	others int64 // requests held up while it is computed, per mille
	usual  int64 // wait at a replica that is not crowded, ns
}

// price of computing where n replicas, at least 1, were added.
//
// In a queue that serves in order, work holds up everybody who comes until the
// queue is empty again. By Little's law about as many come while one waits as
// wait; and since those who come are placed where they wait least, it is the
// queue of the average replica that counts and not that of the one chosen. Those
// who queue for one hot prefix are not the average: nobody counts for more than
// one beyond twice the median, or a long queue at the only holder of a prefix
// would itself be the reason not to copy it.
func (c *crowd) price(n int64) price {
	median, below := 0, c.replicas[0]
	for below <= (n-1)/2 {
		median++
		below += c.replicas[median]
	}
	most := 1 + 2*median
	var waiting, usual, ordinary int64
	for w, k := range c.replicas {
		waiting += k * int64(min(w, most))
		if w <= most {
			ordinary += k
			usual = addSat(usual, c.waits[w])
		}
	}
	return price{others: 1000 + waiting*1000/n, usual: usual / ordinary}
}

// delay is what computing so many tokens, at a rate in picoseconds, makes others
// wait, in nanoseconds, as far as it is charged for. The usual wait is time and not
// tokens: of a fleet of unlike replicas, work at a fast one would else count for
// more at a slow one, and could win the fast one a request.
func (p price) delay(computed, ps int64) int64 {
	return min(milli(milli(computed, p.others), ps), addSat(milli(computed, ps), mulDiv(p.usual, patience, 1)))
}

// charge adds to each cost, which so far is what the request itself waits, what
// it makes others wait, and returns the first of the cheapest.
func (p price) charge(s Snapshot, eligible []scored) *scored {
	least := &eligible[0]
	for i := range eligible {
		e := &eligible[i]
		e.cost = addSat(e.cost, p.delay(e.computed, s.Candidates[e.index].PrefillPS))
		if e.cost < least.cost {
			least = e
		}
	}
	return least
}
