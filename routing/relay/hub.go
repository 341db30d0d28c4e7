package relay

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sallyport-ai/sallyport/routing/blockid"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

const (
	// flushEvery is how long a change may wait for others to travel with.
	flushEvery = 10 * time.Millisecond
	// flushAt is the number of touched blocks that is told at once.
	flushAt = 16 << 10
	// queueChanges and queueBlocks bound what waits for one subscriber.
	queueChanges = 1024
	queueBlocks  = 512 << 10
)

// hub joins the streams of one engine to the subscribers. Its lock guards the
// streams and their mirrors.
type hub struct {
	mu      sync.Mutex
	streams []*stream
	subs    map[*subscriber]struct{}
	armed   bool // a flush is due
	closed  bool
	lag     time.Duration // from the engine's batch to its application, smoothed
	restart func()        // called without the lock when an engine seems to have restarted
	traces  traces
}

// subscriber is one Watch. Its queue is bounded: one that does not keep up is
// ended, and gets a new snapshot when it comes back.
type subscriber struct {
	changes chan *change
	waiting atomic.Int64  // blocks in changes
	behind  chan struct{} // closed once, under the hub's lock, when the queue overflowed
	over    bool          // behind is closed
}

func newHub(ranks int, replayable bool, cfg mirrorConfig, restart func()) *hub {
	h := &hub{subs: make(map[*subscriber]struct{}), restart: restart}
	for r := range ranks {
		h.streams = append(h.streams, newStream(r, replayable, cfg))
	}
	return h
}

// update lets f act on the stream of a rank and tells subscribers of what came
// of it: state at once, blocks soon.
func (h *hub) update(rank int, f func(*stream)) {
	h.mu.Lock()
	s := h.streams[rank]
	before, reborn, hidden := s.state, s.reborn, s.m.saltHidden
	f(s)
	if s.state != before {
		after := s.state
		// What was told must be complete when it is said to be believed, and
		// doubt must not wait for it.
		if after.code != residencyv1.State_SUSPECT && after.code != residencyv1.State_REPLAYING {
			h.flushStream(s)
		}
		h.send(&change{rank: rank, state: &after})
	}
	switch {
	case len(s.m.dirty) >= flushAt || s.m.cleared:
		h.flushStream(s)
	case len(s.m.dirty) > 0 && !h.armed && !h.closed:
		h.armed = true
		time.AfterFunc(flushEvery, h.flush)
	}
	again := s.reborn != reborn || s.m.saltHidden != hidden
	h.mu.Unlock()
	if again && h.restart != nil {
		h.restart()
	}
}

// asleep says that the engine sleeps. It has dropped its cache, and says so only
// once it works again.
func (h *hub) asleep() {
	for rank := range h.streams {
		h.update(rank, (*stream).asleep)
	}
}

// flush is run by the timer.
func (h *hub) flush() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.armed = false
	for _, s := range h.streams {
		h.flushStream(s)
	}
}

func (h *hub) flushStream(s *stream) {
	if c := s.m.flush(); c != nil {
		c.rank = s.rank
		h.traces.note(s.rank, c.stored, s.m, time.Now())
		h.send(c)
	}
	if pct := s.m.orphansPct(); pct/5 != s.state.orphans/5 {
		s.state.orphans = pct
		after := s.state
		h.send(&change{rank: s.rank, state: &after})
	}
}

// send queues c for every subscriber.
func (h *hub) send(c *change) {
	for sub := range h.subs {
		size := int64(c.size())
		if w := sub.waiting.Add(size); w > queueBlocks && w > size {
			h.drop(sub)
			continue
		}
		select {
		case sub.changes <- c:
		default:
			h.drop(sub)
		}
	}
}

func (h *hub) drop(sub *subscriber) {
	delete(h.subs, sub)
	if !sub.over {
		sub.over = true
		close(sub.behind)
	}
}

// picture is the state of one rank as a new subscriber learns it.
type picture struct {
	rank  int
	state streamState
	nodes []stored
}

// subscribe returns the state as of now and a subscriber that gets every
// change after it.
func (h *hub) subscribe() (*subscriber, []picture) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var pics []picture
	for _, s := range h.streams {
		h.flushStream(s)
		pics = append(pics, picture{s.rank, s.state, s.m.snapshot()})
	}
	sub := &subscriber{changes: make(chan *change, queueChanges), behind: make(chan struct{})}
	h.subs[sub] = struct{}{}
	return sub, pics
}

func (h *hub) unsubscribe(sub *subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.subs, sub)
}

// subscribers is how many Watches there are.
func (h *hub) subscribers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.subs)
}

// close ends the timer's work.
func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
}

// observe notes how long a batch took from the engine to here, by its clock.
func (h *hub) observe(lag time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lag += (max(lag, 0) - h.lag) / 8
}

func (h *hub) eventLag() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lag
}

// saltHidden reports whether the engine's events have no place for a salt.
func (h *hub) saltHidden() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.streams {
		if s.m.saltHidden {
			return true
		}
	}
	return false
}

// summary is a rank for the metrics page.
type summary struct {
	rank     int
	state    string
	blocks   int
	adrift   int
	restarts uint64
	skipped  map[string]uint64
}

func (h *hub) summaries() (out []summary) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.streams {
		out = append(out, summary{
			rank: s.rank, state: s.state.code.String(), blocks: s.m.copies[0],
			adrift: s.m.adrift, restarts: s.restarts, skipped: maps.Clone(s.m.skipped),
		})
	}
	return out
}

// match follows ids, which are in the caller's key, from the beginning of a
// prompt in one namespace, through blocks that the mirror knows whether or not
// they are still held, and returns how many it could follow.
func (h *hub) match(rank int, key *blockid.Key, ns namespace, ids []uint64) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if rank >= len(h.streams) {
		return 0
	}
	m := h.streams[rank].m
	at := uint32(0)
	for depth, id := range ids {
		at = m.childWithID(at, key, ns, id)
		if at == 0 {
			return depth
		}
	}
	return len(ids)
}

// namespace is what a prefix is shared within.
type namespace struct{ model, adapter, domain string }

// childWithID returns the child of node n whose block has this id, or 0.
func (m *mirror) childWithID(n uint32, key *blockid.Key, ns namespace, id uint64) uint32 {
	for c := m.nodes[n].child; c != 0; c = m.nodes[c].next {
		b := &m.nodes[c]
		if b.adrift || b.hidden || !b.space.reported {
			continue
		}
		if b.space.namespace() == ns && blockid.Tokens(key, b.tokens, b.extra) == id {
			return c
		}
	}
	return 0
}

func (s *space) namespace() namespace { return namespace{s.model, s.adapter, s.domain} }
