package upstream

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sallyport-ai/sallyport/identity/workload"
)

// maxHeaderBytes bounds an answer's header: ours are short.
const maxHeaderBytes = 64 << 10

// spareAge bounds how long a connection may wait for its first request: a
// server gives up on one that stays silent.
const spareAge = 4 * time.Second

// unacked is how long a replica's machine may leave what it is sent
// unacknowledged.
const unacked = 10 * time.Second

// peer is the one transport to one replica.
type peer struct {
	replica Replica
	dialTLS dialFunc
	timeout time.Duration

	mu        sync.Mutex // guards the next two
	transport *http.Transport
	renew     time.Time // when its connections stop taking requests; zero: it has none

	open  atomic.Int64 // connections that exist, whether idle or in use
	busy  atomic.Int64 // exchanges that run
	spare chan *conn   // made ahead of time, at most one
	ahead atomic.Bool  // one is being made

	closed atomic.Bool // nothing may be kept any more
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

func newPeer(r Replica, dial dialFunc, timeout time.Duration) *peer {
	p := &peer{replica: r, dialTLS: dial, timeout: timeout, spare: make(chan *conn, 1)}
	p.transport = p.newTransport()
	return p
}

func (p *peer) newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                  nil,
		DialTLSContext:         p.dial,
		DisableCompression:     true, // bytes pass as they are
		MaxIdleConnsPerHost:    64,
		IdleConnTimeout:        30 * time.Second,
		MaxResponseHeaderBytes: maxHeaderBytes,
		Protocols:              http1(),
	}
}

// current is the transport for a request that begins now. Connections are left
// to what runs on them before a certificate behind one of them expires: what a
// connection proved, it proved for as long as that lasts.
func (p *peer) current(now time.Time) *http.Transport {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.renew.IsZero() && !now.Before(p.renew) {
		p.transport.CloseIdleConnections()
		p.dropSpare()
		p.transport, p.renew = p.newTransport(), time.Time{}
	}
	return p.transport
}

// expect notes that a connection stops taking requests at some time.
func (p *peer) expect(renew time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.renew.IsZero() || renew.Before(p.renew) {
		p.renew = renew
	}
}

func http1() *http.Protocols {
	var ps http.Protocols
	ps.SetHTTP1(true)
	return &ps
}

// dial is the only way to a connection of this peer.
func (p *peer) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	select {
	case c := <-p.spare:
		if time.Since(c.made) < spareAge {
			return c, nil
		}
		_ = c.Close() // the replica may be about to close it
	default:
	}
	return p.connect(ctx)
}

func (p *peer) connect(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	c, err := p.dialTLS(ctx, "tcp", p.replica.Address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConnect, err)
	}
	secure := c.(*workload.Conn)
	id, err := workload.PeerID(secure.ConnectionState())
	if err == nil {
		err = boundUnacked(secure.NetConn(), unacked)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	p.expect(workload.Renewal(secure.Expires(), time.Now()))
	p.open.Add(1)
	return &conn{Conn: c, peer: id.String(), made: time.Now(), closed: func() { p.open.Add(-1) }}, nil
}

// prepare dials one connection ahead unless an idle one should exist.
func (p *peer) prepare(ctx context.Context) {
	if p.open.Load() > p.busy.Load() || len(p.spare) > 0 || !p.ahead.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer p.ahead.Store(false)
		c, err := p.connect(context.WithoutCancel(ctx))
		if err != nil {
			return
		}
		select {
		case p.spare <- c:
		default:
			_ = c.Close() // somebody else's is already waiting
		}
		if p.closed.Load() {
			p.dropSpare()
		}
	}()
}

func (p *peer) close() {
	p.closed.Store(true)
	p.mu.Lock()
	p.transport.CloseIdleConnections()
	p.mu.Unlock()
	p.dropSpare()
}

func (p *peer) dropSpare() {
	select {
	case c := <-p.spare:
		_ = c.Close()
	default:
	}
}

// conn counts itself out once.
type conn struct {
	net.Conn
	peer   string // SPIFFE ID that it proved
	made   time.Time
	once   sync.Once
	closed func()
}

func (c *conn) Close() error {
	c.once.Do(c.closed)
	return c.Conn.Close()
}

// body ends the exchange when it is closed, and breaks it when the replica
// says nothing for too long.
type body struct {
	rc     io.ReadCloser
	idle   time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
	once   sync.Once
	done   func()
	reason func(error) error
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.rc.Read(p)
	if err == nil {
		b.timer.Reset(b.idle)
		return n, nil
	}
	b.timer.Stop()
	return n, b.reason(err)
}

func (b *body) Close() error {
	b.timer.Stop()
	err := b.rc.Close()
	b.once.Do(func() {
		b.cancel(nil)
		b.done()
	})
	return err
}
