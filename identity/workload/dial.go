package workload

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"
)

// Dialer returns a DialTLSContext for an http.Transport that talks to peers
// admitted by authorize. Its connections are [*Conn], so http.Response.TLS is
// nil; httptrace.GotConn gives the connection, and it the peer.
func Dialer(own Material, authorize Authorizer) func(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &tls.Dialer{Config: ClientConfig(own, authorize)}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return ExplainRefusal(conn.(*tls.Conn)), nil
	}
}

// Conn is a client's connection whose failed writes say whether the server
// refused our identity.
//
// A TLS 1.3 server judges our certificate after our side of the handshake is
// over. If it refuses and closes, a write may meet the closed socket while the
// alert that explains it lies unread, or was read by somebody who then closed
// the connection under the writer.
type Conn struct{ *tls.Conn }

// ExplainRefusal makes the failed writes of a client's connection look for the
// alert behind them.
func ExplainRefusal(conn *tls.Conn) *Conn { return &Conn{conn} }

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
