package relay

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sallyport-ai/sallyport/identity/workload"
)

// A draining relay asks gateways, on their Watch, to send it nothing new. What
// is under way goes on, and so does what was sent before they knew: nothing is
// refused. It drains when an operator says so, until he says otherwise, and
// once it is to stop.

const (
	// drainGrace is how long a relay that is to stop lets requests end, unless
	// the configuration says.
	drainGrace = 20 * time.Second
	// drainTold is how long gateways have to learn of it, and what they had
	// sent by then to arrive.
	drainTold = 250 * time.Millisecond
)

// drain is whether the relay drains. The zero drain does not.
type drain struct {
	mu      sync.Mutex
	on      bool
	changed chan struct{} // closed when on changes; nil while nobody has asked
}

// state is whether the relay drains, and a channel that is closed when that
// changes.
func (d *drain) state() (on bool, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.changed == nil {
		d.changed = make(chan struct{})
	}
	return d.on, d.changed
}

func (d *drain) set(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.on == on {
		return
	}
	d.on = on
	if d.changed != nil {
		close(d.changed)
		d.changed = nil
	}
}

// drainTo is the operator's switch.
func (r *Relay) drainTo(on bool) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		r.drain.set(on)
		who := "on this host"
		if req.TLS != nil {
			id, _ := workload.PeerID(*req.TLS) // forOperators has looked
			who = id.String()
		}
		r.log.Info("told by the operator", "draining", on, "operator", who)
		if on {
			say(w, http.StatusOK, "draining\n")
			return
		}
		say(w, http.StatusOK, "serving\n")
	}
}

// drainOut drains and returns once nothing is under way, or when the time for
// that is over.
func (r *Relay) drainOut() {
	r.drain.set(true)
	end := time.Now().Add(r.cfg.Drain)
	told := time.Now()
	if r.hub.subscribers() > 0 {
		told = told.Add(drainTold)
	}
	for now := time.Now(); now.Before(end) && (now.Before(told) || r.underWay.Load() > 0); now = time.Now() {
		time.Sleep(10 * time.Millisecond)
	}
	if n := r.underWay.Load(); n > 0 {
		r.log.Warn("requests are cut", "requests", n, "after", r.cfg.Drain)
	}
}

// inFlight counts the requests under way.
func inFlight(n *atomic.Int64, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		n.Add(1)
		defer n.Add(-1)
		h(w, req)
	}
}
