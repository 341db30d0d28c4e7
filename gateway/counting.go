package gateway

import (
	"maps"
	"sync"
	"time"

	"github.com/sallyport-ai/sallyport/routing"
)

const (
	// mostCounts is how many prompts may be counted by engines at once. Each takes
	// from an engine's front end what inference needs too.
	mostCounts = 32
	// countErrors is how many counts in a row a replica may fail before it is not
	// asked for a while: countRest, doubled each time up to countRestMost.
	countErrors              = 5
	countRest, countRestMost = time.Second, time.Minute
	// countForget is after how long without another failure a replica is forgotten:
	// it may be asked no more because it is gone.
	countForget = 10 * time.Minute
)

// counters bounds the counts under way, and remembers which replicas fail them.
// It is apart from the breaker for inference: an engine may be slow to count and
// well otherwise. The zero value is ready.
type counters struct {
	mu     sync.Mutex
	inside int
	bad    map[string]*rest // by SPIFFE ID of those that failed last time
}

// rest is a replica that fails counts.
type rest struct {
	failed int           // in a row
	until  time.Time     // not asked before
	last   time.Duration // of the rest; 0: it has had none
	at     time.Time     // of the last failure
}

// enter takes one of the places, if there is one.
func (c *counters) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inside >= mostCounts {
		return false
	}
	c.inside++
	return true
}

func (c *counters) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inside--
}

// open lists the replicas that are not to be asked now.
func (c *counters) open(now time.Time) map[string]routing.Reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out map[string]routing.Reason
	for id, r := range c.bad {
		if now.Before(r.until) {
			if out == nil {
				out = make(map[string]routing.Reason, len(c.bad))
			}
			out[id] = routing.Breaker
		}
	}
	return out
}

// over takes the end of a count. After a rest the first failure begins another
// one, twice as long.
func (c *counters) over(id string, ok bool, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ok {
		delete(c.bad, id)
		return
	}
	if c.bad == nil {
		c.bad = make(map[string]*rest)
	}
	r := c.bad[id]
	if r == nil {
		maps.DeleteFunc(c.bad, func(_ string, r *rest) bool { return now.Sub(r.at) > countForget })
		r = new(rest)
		c.bad[id] = r
	}
	r.at = now
	r.failed++
	if r.failed >= countErrors && !now.Before(r.until) {
		r.last = min(max(2*r.last, countRest), countRestMost)
		r.until = now.Add(r.last)
	}
}
