package kvevents

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// maxHandshakes bounds the connections that are made but not yet accepted;
// further ones wait in the kernel's backlog.
const maxHandshakes = 64

// A Listener is a bound socket. Each peer that connects is a Conn of its own,
// so that its loss is seen and a reply goes to whoever asked: what libzmq's
// ROUTER does with routing ids, which a peer may choose, is here the identity
// of the connection, which it may not.
type Listener struct {
	kind  SocketKind
	opts  Options
	l     net.Listener
	ready chan *Conn
	slots chan struct{} // one for each connection in its handshake or unaccepted
	stop  chan struct{} // closed by Close
	wg    sync.WaitGroup

	mu      sync.Mutex
	closed  bool                  // guarded by mu
	shaking map[net.Conn]struct{} // guarded by mu; in their handshake
}

// Listen binds the endpoint. A tcp host or port may be "*". It is meant for
// loopback: whoever can connect can read what is sent.
func Listen(endpoint string, kind SocketKind, opts Options) (*Listener, error) {
	e, err := parseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	if !kind.valid() {
		return nil, fmt.Errorf("listen on %s: no socket kind given", endpoint)
	}
	opts = opts.withDefaults()
	nl, err := e.listen(opts.SocketMode)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", endpoint, err)
	}
	l := &Listener{
		kind: kind, opts: opts, l: nl,
		ready:   make(chan *Conn),
		slots:   make(chan struct{}, maxHandshakes),
		stop:    make(chan struct{}),
		shaking: make(map[net.Conn]struct{}),
	}
	l.wg.Go(l.serve)
	return l, nil
}

// Addr is the endpoint as bound, with its real port.
func (l *Listener) Addr() string { return endpointOf(l.l.Addr()) }

// Accept returns the next peer that completed its handshake, or
// [net.ErrClosed] after Close. The connection outlives the listener.
func (l *Listener) Accept() (*Conn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case <-l.stop:
		return nil, fmt.Errorf("accept on %s: %w", l.Addr(), net.ErrClosed)
	}
}

// Close stops listening and ends every goroutine and unaccepted connection.
func (l *Listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	close(l.stop)
	err := l.l.Close()
	for c := range l.shaking {
		err = errors.Join(err, ignoreClosed(c.Close()))
	}
	l.mu.Unlock()
	l.wg.Wait()
	return err
}

func (l *Listener) serve() {
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.stop:
			return
		}
		nc, err := l.l.Accept()
		switch {
		case err == nil:
			l.wg.Go(func() {
				l.welcome(nc)
				<-l.slots
			})
		case errors.Is(err, net.ErrClosed):
			return
		default: // out of descriptors, most likely: try again, gently
			<-l.slots
			select {
			case <-time.After(50 * time.Millisecond):
			case <-l.stop:
				return
			}
		}
	}
}

// welcome completes a handshake and offers the connection to Accept. A peer
// that fails is dropped in silence: it is the peer that learns of it.
func (l *Listener) welcome(nc net.Conn) {
	l.mu.Lock()
	l.shaking[nc] = struct{}{}
	closed := l.closed
	l.mu.Unlock()
	if closed {
		_ = nc.Close() // never used
	}
	c, err := newConn(nc, l.Addr(), l.kind, l.opts)
	l.mu.Lock()
	delete(l.shaking, nc)
	l.mu.Unlock()
	if err != nil {
		return
	}
	select {
	case l.ready <- c:
	case <-l.stop:
		_ = c.Close() // never used
	}
}
