package gateway

import "sync"

// blindAfter is how many requests in a row must have found something cached that
// was not foretold, while events came, for an alarm.
const blindAfter = 20

// overlap watches for what fails silently everywhere: events arrive, engines
// find prefixes cached, and nothing that the events told ever overlaps with a
// prompt of ours. The zero value is ready.
type overlap struct {
	mu    sync.Mutex
	blind map[string]int // requests in a row, by model
}

// saw takes one request of which the engine found a block or more cached, and
// reports the beginning or end of an alarm.
func (o *overlap) saw(model string, foretold bool) (changed, alarm bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.blind == nil {
		o.blind = make(map[string]int)
	}
	before := o.blind[model] >= blindAfter
	if foretold {
		o.blind[model] = 0
	} else {
		o.blind[model]++
	}
	after := o.blind[model] >= blindAfter
	return before != after, after
}

// alarms lists the models that there is an alarm for, and those without.
func (o *overlap) alarms() map[string]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make(map[string]bool, len(o.blind))
	for model, n := range o.blind {
		out[model] = n >= blindAfter
	}
	return out
}

// checkOverlap looks for cached blocks that nothing foretold although the
// replica's events are followed.
func (x *exchange) checkOverlap(e ended) {
	p := &x.reservation.Placement
	cached := e.usage.CachedTokens
	if cached == nil || p.BlockSize == 0 || *cached < p.BlockSize || !exact(x.tokens.basis) || !followed(p.Basis) {
		return
	}
	changed, alarm := x.g.overlap.saw(x.base(), x.reservation.Indexed > 0)
	if !changed {
		return
	}
	n := PromptNotice{Model: x.base(), Doubt: NoOverlap, Over: !alarm, Detail: "engines find prefixes cached that were not foretold"}
	if m := x.live.Prompts[x.base()]; m != nil {
		n.Digest = m.Model().Digest()
	}
	x.g.tell(n)
}
