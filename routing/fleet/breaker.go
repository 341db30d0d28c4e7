package fleet

import (
	"time"

	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/blockid"
)

const (
	// breakFirst and breakMost are how long a breaker stays open: the first
	// time, and at most. It doubles in between.
	breakFirst = time.Second
	breakMost  = 30 * time.Second
	// busyFirst is how long a replica that has no room is left alone if it does
	// not say; busyMost is the most that it can ask for.
	busyFirst = 250 * time.Millisecond
	busyMost  = 30 * time.Second
	// errorsInRow is how many answers in a row must fail to open the breaker.
	// One is not enough: a request may be such that no replica can answer it.
	errorsInRow = 5
)

// breaker keeps requests from a replica that fails. It opens when a connection
// fails, or when several answers in a row do; after a while it lets one request
// through, and what becomes of that decides. Guarded by Fleet.mu.
type breaker struct {
	opened  int       // times in a row; 0: it is closed
	errors  int       // answers that failed in a row
	until   time.Time // nobody gets through
	probing bool      // one request has got through, and is not over

	busyUntil time.Time
	limited   bool // busy as in 429, not 503
}

// state says why the replica should not be tried now, or nothing.
func (b *breaker) state(now time.Time) routing.Reason {
	switch {
	case b.opened > 0 && (b.probing || now.Before(b.until)):
		return routing.Breaker
	case now.Before(b.busyUntil):
		return routing.NoHeadroom
	}
	return ""
}

// pass lets a request through and reports whether it is the one that decides.
func (b *breaker) pass() (probe bool) {
	probe = b.opened > 0
	b.probing = b.probing || probe
	return probe
}

// trip opens the breaker. What was under way when it opened says nothing new.
func (b *breaker) trip(now time.Time) {
	if now.Before(b.until) {
		return
	}
	b.until = now.Add(min(breakFirst<<min(b.opened, 5), breakMost))
	b.opened++
}

// failed counts an answer that failed, of which most in a row are borne. It
// reports whether the breaker opened.
func (b *breaker) failed(now time.Time, most int) bool {
	b.errors++
	if b.errors < most && b.opened == 0 {
		return false
	}
	b.trip(now)
	return true
}

// works closes the breaker.
func (b *breaker) works() { *b = breaker{busyUntil: b.busyUntil, limited: b.limited} }

// ReportFailure says that a connection to the replica failed: because it
// proved another identity, or for any other reason. The replica takes no
// requests until it has proven its identity anew, or for a while that doubles
// from 1 s to 30 s; after that, one request is let through to find out.
func (f *Fleet) ReportFailure(replicaID string, identity bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.byID(replicaID)
	if r == nil {
		return
	}
	r.gen++
	if identity {
		r.down, r.detail = routing.SVIDMismatch, "a connection proved another identity"
		r.redial()
		return
	}
	r.breaker.trip(time.Now())
	r.detail = "a connection failed"
}

// ReportBusy says that the replica's engine has no room: it gets no requests for
// as long as it asked for, at most 30 s, or for a moment where it did not say.
// limited says that it spoke of too many requests, not of being overloaded.
func (f *Fleet) ReportBusy(replicaID string, limited bool, wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.byID(replicaID)
	if r == nil {
		return
	}
	if wait <= 0 {
		wait = busyFirst
	}
	r.gen++
	r.breaker.busyUntil, r.breaker.limited = time.Now().Add(min(wait, busyMost)), limited
	r.detail = "the engine has no room"
}

// Wait is how long until a replica of these pools that is only busy or broken
// may be tried again; 0 if there is none. limited says that all of those that
// could serve otherwise have too many requests.
func (f *Fleet) Wait(r Request) (wait time.Duration, limited bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	limited = true
	sole := blockid.Sole(&f.key, r.Domain)
	for _, p := range r.Pools {
		for _, x := range f.pools[p] {
			if !x.serves(&r) || !x.isolates(&r, sole) {
				continue
			}
			until := x.breaker.busyUntil
			switch x.state(now) {
			case routing.Breaker:
				until, limited = x.breaker.until, false
			case routing.NoHeadroom:
				limited = limited && x.breaker.limited
			default:
				limited = false
				continue
			}
			if left := max(until.Sub(now), 1); wait == 0 || left < wait {
				wait = left
			}
		}
	}
	return wait, limited && wait > 0
}
