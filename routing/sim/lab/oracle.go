package lab

// oracle forks the engine of each replica, gives the fork the request and
// everything that is on its way, runs it until the request's first token, and
// takes the replica where that comes soonest; then the one that finds more of
// the prompt, then the one that computes less. It knows what nobody can: the
// length of answers. It does not know what will be asked next, so it is the best
// choice for each request and not for all of them.
type oracle struct {
	tallies
	fork *engine
}

func newOracle(w *world) *oracle {
	return &oracle{tallies: newTallies(w), fork: newEngine(w.limits, w.blocks, w.trace.Blocks())}
}

func (s *oracle) pick(w *world, c *call) int {
	best := nowhere
	var soonest int64
	var hit, queue int
	for r, x := range w.replicas {
		if x.out {
			continue
		}
		s.fork.copyFrom(x.engine)
		var coming []landing
		for _, l := range x.coming {
			j := *l.job
			j.slots = nil
			coming = append(coming, landing{l.at, &j})
		}
		j := &job{contents: c.req.Blocks, prompt: c.req.Prompt, output: c.req.Output}
		coming = append(coming, landing{w.now + network, j})
		at := s.fork.firstToken(coming)
		n := len(x.engine.running) + len(x.engine.waiting)
		if best == nowhere || at < soonest || at == soonest && (j.hit > hit || j.hit == hit && n < queue) {
			best, soonest, hit, queue = r, at, j.hit, n
		}
	}
	if best != nowhere {
		s.take(c, best)
	}
	return best
}
