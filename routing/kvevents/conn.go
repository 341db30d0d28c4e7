package kvevents

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"sync"
	"time"
)

// Options tune a connection. The zero value is ready for use.
type Options struct {
	// Handshake bounds the time from connection to READY; 0 is 5 s.
	Handshake time.Duration

	// Heartbeat, if positive, is how often an idle peer is sent a PING. A
	// connection that is silent for three heartbeats is lost. Peers of ZMTP
	// 3.0 have no PING and are neither asked nor timed.
	Heartbeat time.Duration

	// Write bounds the time a peer may take to accept one message; 0 is 10 s.
	Write time.Duration

	// SocketMode is the file mode of the ipc:// sockets we create; 0 is 0600.
	// The socket has the process's default mode for an instant, so it belongs
	// in a directory that strangers cannot enter.
	SocketMode fs.FileMode
}

func (o Options) withDefaults() Options {
	if o.Handshake <= 0 {
		o.Handshake = 5 * time.Second
	}
	if o.Write <= 0 {
		o.Write = 10 * time.Second
	}
	if o.SocketMode == 0 {
		o.SocketMode = 0o600
	}
	return o
}

// A Conn is one ZMTP connection after its handshake. It never reconnects: the
// first error of Recv is its end. Recv is for one goroutine; the other methods
// are for any.
type Conn struct {
	endpoint string
	kind     SocketKind
	peer     peer
	opts     Options
	c        net.Conn
	r        *bufio.Reader // owned by Recv
	stop     chan struct{} // closed by Close; ends the heartbeat
	closing  sync.Once
	closeErr error      // set inside closing
	wmu      sync.Mutex // held while writing to c
	beat     sync.WaitGroup
}

// Dial connects to the endpoint and completes the handshake. ctx bounds only
// that; afterwards the connection lives until Close.
func Dial(ctx context.Context, endpoint string, kind SocketKind, opts Options) (*Conn, error) {
	e, err := parseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	if !kind.valid() {
		return nil, fmt.Errorf("dial %s: no socket kind given", endpoint)
	}
	opts = opts.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, opts.Handshake)
	defer cancel()
	nc, err := e.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", endpoint, err)
	}
	interrupt := context.AfterFunc(ctx, func() { _ = nc.Close() }) // seen as the error of the handshake
	c, err := newConn(nc, endpoint, kind, opts)
	if !interrupt() {
		if err == nil {
			err = c.Close()
		}
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return nil, fmt.Errorf("dial %s: handshake: %w", endpoint, err)
	}
	return c, nil
}

// newConn takes over nc, closing it on error.
func newConn(nc net.Conn, endpoint string, kind SocketKind, opts Options) (*Conn, error) {
	c := &Conn{endpoint: endpoint, kind: kind, opts: opts, c: nc, stop: make(chan struct{})}
	c.r = bufio.NewReaderSize(silenceReader{c}, 64<<10)
	err := nc.SetDeadline(time.Now().Add(opts.Handshake))
	if err == nil {
		c.peer, err = handshake(c.r, nc, kind)
	}
	if err == nil {
		err = nc.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, errors.Join(err, ignoreClosed(nc.Close()))
	}
	if c.beats() {
		c.beat.Go(c.heartbeat)
	}
	return c, nil
}

// beats reports whether the peer is asked for signs of life; never before the
// handshake has told its version.
func (c *Conn) beats() bool { return c.opts.Heartbeat > 0 && c.peer.minor >= 1 }

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// silenceReader gives up on a peer that was silent for three heartbeats.
type silenceReader struct{ c *Conn }

func (s silenceReader) Read(p []byte) (int, error) {
	if s.c.beats() {
		if err := s.c.c.SetReadDeadline(time.Now().Add(3 * s.c.opts.Heartbeat)); err != nil {
			return 0, err
		}
	}
	return s.c.c.Read(p)
}

func (c *Conn) heartbeat() {
	t := time.NewTicker(c.opts.Heartbeat)
	defer t.Stop()
	// TTL in tenths of a second, then an empty context.
	ttl := uint16(min(3*c.opts.Heartbeat/(100*time.Millisecond), 0xffff))
	ping := appendCommand(nil, "PING", []byte{byte(ttl >> 8), byte(ttl)})
	for {
		select {
		case <-c.stop:
			return
		case <-t.C:
			if c.write(ping) != nil {
				return // Recv reports the loss
			}
		}
	}
}

// Endpoint is the endpoint the connection was dialled at or accepted on.
func (c *Conn) Endpoint() string { return c.endpoint }

// Close ends the connection and its goroutines. A Recv or Send in progress
// fails with [net.ErrClosed].
func (c *Conn) Close() error {
	c.closing.Do(func() {
		close(c.stop)
		c.closeErr = c.c.Close()
		c.beat.Wait()
	})
	return c.closeErr
}

// Send writes one message. If it fails part way the connection is closed,
// since nothing sensible can follow.
func (c *Conn) Send(parts [][]byte) error {
	b, err := appendMessage(nil, parts)
	if err != nil {
		return fmt.Errorf("send to %s: %w", c.endpoint, err)
	}
	if err := c.write(b); err != nil {
		return fmt.Errorf("send to %s: %w", c.endpoint, err)
	}
	return nil
}

func (c *Conn) write(b []byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if err := c.c.SetWriteDeadline(time.Now().Add(c.opts.Write)); err != nil {
		return err
	}
	if _, err := c.c.Write(b); err != nil {
		return errors.Join(err, ignoreClosed(c.c.Close()))
	}
	return nil
}

// Subscribe asks a publisher for messages whose first part begins with prefix;
// the empty prefix asks for all.
func (c *Conn) Subscribe(prefix string) error {
	return c.sendSubscription("SUBSCRIBE", 1, prefix)
}

// Unsubscribe takes back one Subscribe with the same prefix.
func (c *Conn) Unsubscribe(prefix string) error {
	return c.sendSubscription("CANCEL", 0, prefix)
}

// A subscription is a command since ZMTP 3.1, and was a message before it.
func (c *Conn) sendSubscription(command string, first byte, prefix string) error {
	if c.kind != SUB {
		return fmt.Errorf("%s socket cannot subscribe", c.kind)
	}
	if len(prefix) > maxPrefix {
		return fmt.Errorf("subscription of %d bytes, at most %d", len(prefix), maxPrefix)
	}
	if c.peer.minor == 0 {
		return c.Send([][]byte{append([]byte{first}, prefix...)})
	}
	if err := c.write(appendCommand(nil, command, []byte(prefix))); err != nil {
		return fmt.Errorf("subscribe at %s: %w", c.endpoint, err)
	}
	return nil
}

// Recv returns the parts of the next message in memory that the caller owns.
// It waits until there is one, the connection is lost, or Close. On a PUB
// connection the messages are the peer's subscriptions: a single part, 1 or 0
// (subscribe or cancel) and then the prefix.
func (c *Conn) Recv() ([][]byte, error) {
	parts, err := c.recv()
	if err == nil {
		return parts, nil
	}
	select {
	case <-c.stop:
		err = net.ErrClosed
	default:
		if errors.Is(err, net.ErrClosed) {
			err = errors.New("peer accepts no more data") // a write gave up
		}
		// The stream has no way back to a frame boundary.
		err = errors.Join(err, ignoreClosed(c.c.Close()))
	}
	return nil, fmt.Errorf("receive from %s: %w", c.endpoint, err)
}

func (c *Conn) recv() ([][]byte, error) {
	var parts [][]byte
	for room := MaxFrame; ; {
		f, err := readFrame(c.r, room)
		if err != nil {
			if len(parts) > 0 {
				err = unexpected(err)
			}
			return nil, err
		}
		if f.command() {
			// libzmq's heartbeats may fall between the parts of a message.
			sub, err := c.obey(f.body)
			if err != nil {
				return nil, err
			}
			if sub != nil && parts == nil {
				return [][]byte{sub}, nil
			}
			continue
		}
		if len(parts) == MaxParts {
			return nil, errPartCount
		}
		parts = append(parts, f.body)
		room -= len(f.body)
		if !f.more() {
			return parts, nil
		}
	}
}

// obey acts on a command. A subscription is returned in its message form;
// commands we do not know are ignored, as the protocol asks.
func (c *Conn) obey(body []byte) (subscription []byte, err error) {
	name, data, err := parseCommand(body)
	if err != nil {
		return nil, err
	}
	switch name {
	case "PING":
		const ttl, maxContext = 2, 16
		if len(data) < ttl || len(data) > ttl+maxContext {
			return nil, errors.New("zmtp: malformed PING")
		}
		return nil, c.write(appendCommand(nil, "PONG", data[ttl:]))
	case "SUBSCRIBE", "CANCEL":
		if c.kind != PUB {
			return nil, fmt.Errorf("zmtp: %s from a peer of type %s", name, c.peer.kind)
		}
		first := byte(0)
		if name == "SUBSCRIBE" {
			first = 1
		}
		return append([]byte{first}, data...), nil
	case "ERROR":
		return nil, fmt.Errorf("zmtp: peer gave up: %q", data)
	}
	return nil, nil
}
