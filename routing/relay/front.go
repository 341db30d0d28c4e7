package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// The protocols of the listener, by ALPN. A client that offers none speaks
// HTTP/1.1.
const (
	alpnGRPC = "h2"
	alpnHTTP = "http/1.1"
)

const (
	handshakeTimeout = 10 * time.Second
	// maxHandshakes bounds the connections that have not said who they are.
	maxHandshakes = 256
)

// front accepts connections, completes their handshake and hands them to the
// server of their protocol. Nobody else is spoken to.
type front struct {
	tcp   net.Listener
	conf  *tls.Config
	log   *slog.Logger
	http  *door
	grpc  *door
	slots chan struct{} // one for each connection that is not yet handed over
	work  sync.WaitGroup
}

func newFront(tcp net.Listener, conf *tls.Config, log *slog.Logger) *front {
	return &front{
		tcp: tcp, conf: conf, log: log, http: newDoor(tcp.Addr()), grpc: newDoor(tcp.Addr()),
		slots: make(chan struct{}, maxHandshakes),
	}
}

// run accepts until the listener is closed.
func (f *front) run(ctx context.Context) error {
	defer f.work.Wait()
	for {
		f.slots <- struct{}{}
		c, err := f.tcp.Accept()
		switch {
		case err == nil:
			f.work.Go(func() {
				defer func() { <-f.slots }()
				f.welcome(ctx, tls.Server(c, f.conf))
			})
		case errors.Is(err, net.ErrClosed):
			return err
		default: // out of descriptors, most likely
			<-f.slots
			f.log.Error("accept failed", "error", err)
			if !sleep(ctx, 50*time.Millisecond) {
				return err
			}
		}
	}
}

// welcome completes one handshake.
func (f *front) welcome(ctx context.Context, c *tls.Conn) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := c.HandshakeContext(ctx); err != nil {
		f.log.Warn("handshake refused", "remote", c.RemoteAddr().String(), "error", err)
		_ = c.Close() // its end is what the peer learns
		return
	}
	to := f.http
	if c.ConnectionState().NegotiatedProtocol == alpnGRPC {
		to = f.grpc
	}
	to.enter(c)
}

func (f *front) close() {
	_ = f.tcp.Close() // run returns it
	// A door's Close does not fail.
	_ = f.http.Close()
	_ = f.grpc.Close()
}

// door is the listener of one protocol, fed by the front.
type door struct {
	addr  net.Addr
	conns chan net.Conn
	stop  chan struct{}
	once  sync.Once
}

func newDoor(addr net.Addr) *door {
	return &door{addr: addr, conns: make(chan net.Conn), stop: make(chan struct{})}
}

func (d *door) enter(c net.Conn) {
	select {
	case d.conns <- c:
	case <-d.stop:
		_ = c.Close() // never used
	}
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	select {
	case c := <-d.conns:
		return c, nil
	case <-d.stop:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (d *door) Close() error {
	d.once.Do(func() { close(d.stop) })
	return nil
}

// Addr implements net.Listener.
func (d *door) Addr() net.Addr { return d.addr }

// handshaken tells gRPC of the TLS that the front has completed.
type handshaken struct{}

// ServerHandshake implements credentials.TransportCredentials.
func (handshaken) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	t, ok := c.(*tls.Conn)
	if !ok {
		return nil, nil, fmt.Errorf("connection is %T, not TLS", c)
	}
	return c, credentials.TLSInfo{
		State:          t.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// ClientHandshake implements credentials.TransportCredentials.
func (handshaken) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("the relay dials nobody")
}

// Info implements credentials.TransportCredentials.
func (handshaken) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (h handshaken) Clone() credentials.TransportCredentials { return h }

// OverrideServerName implements credentials.TransportCredentials.
func (handshaken) OverrideServerName(string) error { return nil }
