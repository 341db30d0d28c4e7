// Package residency is the gateway's side of the residency protocol: one
// connection to one relay, on which the relay tells which prompt blocks its
// engine holds.
//
// Start at [Connect], then [Conn.Watch]. The protocol is in the v1 folder.
//
// # What is checked
//
// A relay is authenticated, but may be broken or lie. Watch ends with
// [ErrProtocol] on a hole in the sequence, a change of epoch, frames out of
// order, a rank, tier or node out of bounds, or a frame above 1 MiB, and with
// [ErrSilent] when nothing comes. The caller must then credit nothing until
// another Watch has given it a snapshot.
package residency

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sallyport-ai/sallyport/identity/workload"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

const (
	// Stale is how long after the last frame residency may still be credited.
	// A relay sends a heartbeat each second.
	Stale = 3 * time.Second
	// MaxRanks, MaxTiers and MaxBlocks bound what a relay may announce.
	MaxRanks  = 64
	MaxTiers  = 8
	MaxBlocks = 1 << 27

	// silence is how long a Watch waits for a frame. It is longer than Stale,
	// so that a pause costs the credit but not a new snapshot.
	silence = 10 * time.Second
)

// Errors that a caller acts on.
var (
	// ErrHandshake says that the peer was reached but proved no identity that
	// is good enough; what the TLS configuration said is wrapped too.
	ErrHandshake = errors.New("handshake")
	ErrProtocol  = errors.New("residency protocol broken")
	ErrSilent    = errors.New("no frame for 10 s")
)

// Conn is a connection to one relay, whose identity is proven.
type Conn struct {
	state   tls.ConnectionState
	expires time.Time
	cc      *grpc.ClientConn
	silence time.Duration // how long Watch waits for a frame
}

// Connect dials a relay. config decides which peers are good; its application
// protocol is set here. The connection is made once: when it breaks, Watch
// ends and nothing dials again behind the caller's back, so that everything a
// Conn says comes from the peer that State describes.
func Connect(ctx context.Context, address string, config *tls.Config) (*Conn, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	config = config.Clone()
	config.NextProtos = []string{"h2"}
	conn, err := workload.Handshake(ctx, raw, config)
	if err != nil {
		raw.Close()
		return nil, fmt.Errorf("%w with %s: %w", ErrHandshake, address, err)
	}
	var taken atomic.Bool
	cc, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // conn is TLS already
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if taken.Swap(true) {
				return nil, net.ErrClosed
			}
			return conn, nil
		}),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithInitialWindowSize(4*residencyv1.MaxFrame), grpc.WithInitialConnWindowSize(4*residencyv1.MaxFrame),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(residencyv1.MaxFrame)),
	)
	if err != nil {
		raw.Close()
		return nil, fmt.Errorf("residency client for %s: %w", address, err)
	}
	return &Conn{state: conn.ConnectionState(), expires: conn.Expires(), cc: cc, silence: silence}, nil
}

// State is what the handshake proved.
func (c *Conn) State() tls.ConnectionState { return c.state }

// Renewal is when to connect again, before what the handshake proved expires.
func (c *Conn) Renewal() time.Time { return workload.Renewal(c.expires, time.Now()) }

// Close ends the connection and everything on it.
func (c *Conn) Close() error { return c.cc.Close() }

// Diverge asks where a block path first differs from what was stored for one
// of our tickets; known is false where the relay does not remember it.
func (c *Conn) Diverge(ctx context.Context, ticketID string, ids []uint64) (index int, known bool, err error) {
	r, err := residencyv1.NewResidencyClient(c.cc).Diverge(ctx, &residencyv1.DivergeRequest{TicketId: ticketID, Ids: ids})
	if err != nil {
		return 0, false, fmt.Errorf("diverge: %w", err)
	}
	return int(min(r.GetIndex(), uint32(len(ids)))), r.GetKnown(), nil
}

// Request is what a gateway says of itself.
type Request struct {
	BlockKey [16]byte // random per process
	KeyID    string   // names BlockKey
	LogVKey  string   // verifier key of the log that signs our tickets
}

// Sink takes the frames of a Watch, one at a time and in order, after they
// were checked. Frames without a body that we know are left out. An error ends
// the Watch.
type Sink func(*residencyv1.Frame) error

// Watch subscribes and feeds sink until ctx ends, the relay ends, or either
// breaks the protocol. The error is never nil.
func (c *Conn) Watch(ctx context.Context, r Request, sink Sink) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(c.silence, func() { cancel(ErrSilent) })
	defer quiet.Stop()
	stream, err := residencyv1.NewResidencyClient(c.cc).Watch(ctx, &residencyv1.WatchRequest{
		Version: residencyv1.Version, BlockKey: r.BlockKey[:], KeyId: r.KeyID, LogVkey: r.LogVKey,
	})
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	var check checker
	for {
		f, err := stream.Recv()
		if err != nil {
			if errors.Is(context.Cause(ctx), ErrSilent) {
				err = ErrSilent
			}
			return fmt.Errorf("watch: %w", err)
		}
		quiet.Reset(c.silence)
		if err := check.frame(f); err != nil {
			return fmt.Errorf("watch: frame %d: %w: %w", f.GetSeq(), ErrProtocol, err)
		}
		if f.GetBody() == nil {
			continue
		}
		if err := sink(f); err != nil {
			return fmt.Errorf("watch: frame %d: %w", f.GetSeq(), err)
		}
	}
}
