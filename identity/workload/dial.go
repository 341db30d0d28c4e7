package workload

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"syscall"
)

// Dialer returns a DialTLSContext for an http.Transport that talks to peers
// admitted by authorize. Connections are *tls.Conn with the handshake done.
//
// A TLS 1.3 server judges our certificate after our side of the handshake is
// over. If it refuses and closes, our first write may meet the closed socket
// while the alert that explains it lies unread. These connections let the read
// speak first, so that [IsIdentityError] recognises the refusal.
func Dialer(own Material, authorize Authorizer) func(ctx context.Context, network, address string) (net.Conn, error) {
	config := ClientConfig(own, authorize)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		var dialer net.Dialer
		raw, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		conn := tls.Client(readFirst{raw}, config)
		if err := conn.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(err, raw.Close())
		}
		return conn, nil
	}
}

// readFirst leaves it to Read to report that the peer has closed the
// connection: whatever the peer said before is then read first, and after it
// the same failure.
type readFirst struct{ net.Conn }

func (c readFirst) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return len(b), nil
	}
	return n, err
}
