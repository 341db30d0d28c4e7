package workload

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"
)

// Dialer returns a DialTLSContext for an http.Transport that talks to peers
// admitted by authorize. Its connections are [*Conn], so http.Response.TLS is
// nil; httptrace.GotConn gives the connection, and it the peer.
func Dialer(own Material, authorize Authorizer) func(ctx context.Context, network, address string) (net.Conn, error) {
	config := ClientConfig(own, authorize)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		var d net.Dialer
		raw, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		conn, err := Handshake(ctx, raw, config)
		if err != nil {
			return nil, errors.Join(err, raw.Close())
		}
		return conn, nil
	}
}

// Handshake makes raw a connection that config describes, as its client.
func Handshake(ctx context.Context, raw net.Conn, config *tls.Config) (*Conn, error) {
	var shown *x509.Certificate
	if get := config.GetClientCertificate; get != nil {
		config = config.Clone()
		config.GetClientCertificate = func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			c, err := get(r)
			if err == nil {
				shown = c.Leaf
			}
			return c, err
		}
	}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return &Conn{Conn: conn, expires: earliest(shown, conn.ConnectionState().PeerCertificates)}, nil
}

// earliest is when the first of the certificates expires.
func earliest(own *x509.Certificate, peer []*x509.Certificate) (at time.Time) {
	if own != nil {
		at = own.NotAfter
	}
	for _, c := range peer {
		if at.IsZero() || c.NotAfter.Before(at) {
			at = c.NotAfter
		}
	}
	return at
}

// Renewal is when to connect again, so that newer certificates are proven
// before one of the present ones expires.
func Renewal(expires, now time.Time) time.Time {
	left := expires.Sub(now)
	return now.Add(left - min(left/4, 30*time.Second))
}

// Conn is a client's connection whose failed writes say whether the server
// refused our identity.
//
// A TLS 1.3 server judges our certificate after our side of the handshake is
// over. If it refuses and closes, a write may meet the closed socket while the
// alert that explains it lies unread, or was read by somebody who then closed
// the connection under the writer.
type Conn struct {
	*tls.Conn
	expires time.Time
}

// Expires is when the first certificate that either side showed expires, and
// with it what the handshake proved.
func (c *Conn) Expires() time.Time { return c.expires }

// alertWait is how long a failed write waits for its explanation.
const alertWait = 100 * time.Millisecond

// Write writes to the connection. After a refusal by the server its error is an
// [ErrPeerIdentity].
func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err == nil {
		return n, nil
	}
	// An alert ends reading for good: crypto/tls returns it from every later
	// Read, even on a closed connection. What this Read may take from a living
	// one is lost with it anyway. A closed one refuses the deadline and blocks
	// in no Read.
	if deadline := c.SetReadDeadline(time.Now().Add(alertWait)); deadline != nil && !errors.Is(deadline, net.ErrClosed) {
		return n, err
	}
	if _, alert := c.Read(make([]byte, 1)); isCertificateAlert(alert) {
		return n, &PeerIdentityError{Err: fmt.Errorf("our own identity was refused: %w", alert)}
	}
	return n, err
}
