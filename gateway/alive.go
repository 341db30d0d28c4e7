package gateway

import (
	"sync"
	"time"
)

// outgoing is a stream of whole events to a client. Between two that are far
// apart it says that the stream lives.
type outgoing struct {
	write func([]byte) error
	alive []byte // an event that says nothing
	every time.Duration

	mu      sync.Mutex // of the connection, and of what follows
	timer   *time.Timer
	stopped bool
}

// pass writes events.
func (e *outgoing) pass(b []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.timer == nil {
		e.timer = time.AfterFunc(e.every, e.fill)
	} else {
		e.timer.Reset(e.every)
	}
	return e.write(b)
}

// fill breaks a silence.
func (e *outgoing) fill() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped || e.write(e.alive) != nil {
		return // a client that has gone is noticed where its events are written
	}
	e.timer.Reset(e.every)
}

// stop returns once nothing more is written.
func (e *outgoing) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopped = true
	if e.timer != nil {
		e.timer.Stop()
	}
}
