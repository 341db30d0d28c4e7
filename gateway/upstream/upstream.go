// Package upstream sends a request to one replica over SPIFFE mTLS and hands
// back its answer as it comes.
//
// Start at [Client.Do]. Each replica has a transport of its own whose dial
// authorises exactly that replica's SPIFFE ID: a transport shared between
// replicas would pool connections by address and could hand one replica's
// connection to another. Inference uses HTTP/1.1, so that a stream that breaks
// breaks alone.
package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"syscall"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/identity/workload"
)

// Errors that a caller acts on. Before the first response byte all of them
// permit another attempt elsewhere; afterwards none does.
var (
	// ErrIdentity says that the peer is not the replica that was asked for, or
	// that it does not accept us.
	ErrIdentity = errors.New("replica identity")
	// ErrUnreachable says that no connection could be made or that it broke
	// before an answer.
	ErrUnreachable = errors.New("replica unreachable")
	// ErrConnect says that no connection could be made, so that nothing of the
	// request was sent. It comes with one of the others.
	ErrConnect = errors.New("no connection")
	// ErrTimeout says that the replica did not answer in time.
	ErrTimeout = errors.New("replica timed out")
)

// Replica is where a request goes. Both fields are required.
type Replica struct {
	Address string // host:port
	ID      string // SPIFFE ID that the peer must prove
}

// Config holds what a Client needs. Own is required.
type Config struct {
	Own workload.Material // our SVID and the bundles to check replicas by

	DialTimeout   time.Duration // TCP and handshake; 0 means 5 s
	HeaderTimeout time.Duration // from the request's last byte to the answer's header; 0 means 120 s
	IdleTimeout   time.Duration // between two reads of the body; 0 means 60 s
}

// Client sends requests to replicas. It is safe for concurrent use.
type Client struct {
	cfg Config

	mu    sync.Mutex
	peers map[Replica]*peer
}

// New returns a client that has made no connection yet.
func New(cfg Config) (*Client, error) {
	if cfg.Own == nil {
		return nil, errors.New("upstream: Own is required")
	}
	cfg.DialTimeout = orDefault(cfg.DialTimeout, 5*time.Second)
	cfg.HeaderTimeout = orDefault(cfg.HeaderTimeout, 120*time.Second)
	cfg.IdleTimeout = orDefault(cfg.IdleTimeout, 60*time.Second)
	return &Client{cfg: cfg, peers: make(map[Replica]*peer)}, nil
}

func orDefault(d, def time.Duration) time.Duration {
	if d <= 0 {
		return def
	}
	return d
}

// Response is a replica's answer. The caller must close Body.
type Response struct {
	Status int
	Header http.Header
	Body   io.ReadCloser
	Peer   string // the SPIFFE ID seen on the connection
}

// Request is one attempt at one replica.
type Request struct {
	Method string
	Path   string
	Header http.Header // sent as it is: the caller has chosen every field
	Body   []byte
}

// Prepare makes sure that a connection to r is ready or being made, so that the
// handshake can overlap other work. It sends no request bytes and reports
// nothing: [Client.Do] meets the same error again if there is one.
func (c *Client) Prepare(ctx context.Context, r Replica) {
	p, err := c.peer(r)
	if err != nil {
		return
	}
	p.prepare(ctx)
}

// Do sends req to r and returns once the answer's header has arrived. Cancelling
// ctx ends the exchange in every phase, also while the body is being read.
func (c *Client) Do(ctx context.Context, r Replica, req Request) (*Response, error) {
	p, err := c.peer(r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var seen string
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		if cn, ok := got.Conn.(*conn); ok {
			seen = cn.peer
		}
	}})
	hr, err := http.NewRequestWithContext(ctx, req.Method, "https://"+r.Address+req.Path, bytes.NewReader(req.Body))
	if err != nil {
		cancel(nil)
		return nil, fmt.Errorf("build request: %w", err)
	}
	// Without GetBody the transport cannot send the request again by itself: a
	// second attempt is ours to decide and to record.
	hr.GetBody = nil
	hr.Header = req.Header

	p.busy.Add(1)
	watch := time.AfterFunc(c.cfg.HeaderTimeout, func() { cancel(ErrTimeout) })
	resp, err := p.current(time.Now()).RoundTrip(hr)
	if !watch.Stop() && err == nil {
		_ = resp.Body.Close() // the timer won: the answer is already lost
		err = ErrTimeout
	}
	if err != nil {
		p.busy.Add(-1)
		err = c.explain(ctx, r, err)
		cancel(nil)
		return nil, err
	}
	return &Response{
		Status: resp.StatusCode,
		Header: resp.Header,
		Peer:   seen,
		Body: &body{
			rc:     resp.Body,
			idle:   c.cfg.IdleTimeout,
			timer:  time.AfterFunc(c.cfg.IdleTimeout, func() { cancel(ErrTimeout) }),
			cancel: cancel,
			done:   func() { p.busy.Add(-1) },
			reason: func(err error) error {
				// A replica told of a cancellation may still end its answer
				// properly before the connection is gone. That is no end.
				if errors.Is(err, io.EOF) && context.Cause(ctx) == nil {
					return io.EOF
				}
				return c.explain(ctx, r, err)
			},
		},
	}, nil
}

// explain sorts an error of a connection into the three kinds that callers know.
func (c *Client) explain(ctx context.Context, r Replica, err error) error {
	var ne net.Error
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, ErrTimeout):
		return fmt.Errorf("%s: %w", r.ID, ErrTimeout)
	case cause != nil:
		return cause // the caller's own cancellation
	case workload.IsIdentityError(err):
		return fmt.Errorf("%s: %w: %w", r.ID, ErrIdentity, err)
	case errors.Is(err, syscall.ETIMEDOUT): // nothing was acknowledged, so nothing is being worked on
		return fmt.Errorf("%s: %w: %w", r.ID, ErrUnreachable, err)
	case errors.As(err, &ne) && ne.Timeout():
		return fmt.Errorf("%s: %w: %w", r.ID, ErrTimeout, err)
	default:
		return fmt.Errorf("%s: %w: %w", r.ID, ErrUnreachable, err)
	}
}

// Retain closes the transports of all replicas that keep does not report, with
// their idle connections. Requests that are running go on.
func (c *Client) Retain(keep func(Replica) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r, p := range c.peers {
		if !keep(r) {
			p.close()
			delete(c.peers, r)
		}
	}
}

// Close closes all idle connections.
func (c *Client) Close() { c.Retain(func(Replica) bool { return false }) }

func (c *Client) peer(r Replica) (*peer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.peers[r]; p != nil {
		return p, nil
	}
	id, err := spiffeid.FromString(r.ID)
	if err != nil {
		return nil, fmt.Errorf("%q: %w: %w", r.ID, ErrIdentity, err)
	}
	p := newPeer(r, workload.Dialer(c.cfg.Own, workload.ExactID(id)), c.cfg.DialTimeout)
	c.peers[r] = p
	return p, nil
}
