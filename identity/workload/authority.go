package workload

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sallyport-ai/sallyport/identity"
)

// defaultAuthorityTTL is how long the Authority's SVIDs live unless told.
const defaultAuthorityTTL = time.Hour

// maxSocketPath is what sockaddr_un holds on Linux, its closing NUL included.
const maxSocketPath = 108

// AuthorityConfig describes a development authority.
type AuthorityConfig struct {
	TrustDomain spiffeid.TrustDomain
	// TTL is the life of an SVID; a new one is sent at half of it. Zero is
	// one hour.
	TTL time.Duration
	// Dir receives the sockets and the public listener's certificate. It is
	// created with mode 0700. Keep it short: a socket's path is limited to
	// 107 bytes.
	Dir string
	// Environment must be demo, development or test.
	Environment string
	// Logger receives the warning that this is no real authority. Required.
	Logger *slog.Logger
}

// Authority is a certificate authority and SPIFFE Workload API inside the
// process, for demonstrations and tests. It serves the real protocol, so
// everything that talks to it would talk to SPIRE alike; it merely believes
// whoever can open a socket, where SPIRE attests.
//
// One process cannot be told from another by its peer credentials when all run
// as one user, so each identity has a socket of its own, mode 0600.
type Authority struct {
	config AuthorityConfig
	issuer *issuer

	mu      sync.Mutex // guards what follows
	servers map[spiffeid.ID]*endpoint
	rotated chan struct{} // closed and replaced by Rotate
	outage  bool
	closed  bool
}

// endpoint is the Workload API of one identity.
type endpoint struct {
	path     string
	server   *grpc.Server // nil during an outage
	listener net.Listener
}

// NewAuthority makes the authority's keys. It serves nothing until [Authority.Socket].
func NewAuthority(config AuthorityConfig) (*Authority, error) {
	if err := identity.RefuseProduction(config.Environment); err != nil {
		return nil, err
	}
	switch {
	case config.TrustDomain.IsZero():
		return nil, errors.New("development authority: no trust domain")
	case config.Dir == "":
		return nil, errors.New("development authority: no directory")
	case config.Logger == nil:
		return nil, errors.New("development authority: no logger for its warning")
	}
	if config.TTL <= 0 {
		config.TTL = defaultAuthorityTTL
	}
	if err := os.MkdirAll(filepath.Join(config.Dir, socketFolder), 0o700); err != nil {
		return nil, fmt.Errorf("development authority: %w", err)
	}
	issuer, err := newIssuer(config.TrustDomain, config.TTL)
	if err != nil {
		return nil, fmt.Errorf("development authority: %w", err)
	}
	config.Logger.Warn("DEVELOPMENT AUTHORITY: this process issues SPIFFE identities to whoever opens its sockets; never use it for real data",
		"trust_domain", config.TrustDomain.Name(), "dir", config.Dir, "environment", config.Environment)
	return &Authority{
		config:  config,
		issuer:  issuer,
		servers: make(map[spiffeid.ID]*endpoint),
		rotated: make(chan struct{}),
	}, nil
}

// socketFolder keeps the sockets in a folder that only this user may enter, so
// that none is reachable between its creation and its chmod.
const socketFolder = "w"

// Socket serves the Workload API for id and returns its address,
// unix:///dir/w/….sock. Asked again for the same id it returns the same address.
func (a *Authority) Socket(id spiffeid.ID) (string, error) {
	if !id.MemberOf(a.config.TrustDomain) || id.Path() == "" {
		return "", fmt.Errorf("development authority of %s: cannot issue %q", a.config.TrustDomain, id)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return "", errors.New("development authority: closed")
	}
	if e, ok := a.servers[id]; ok {
		return "unix://" + e.path, nil
	}
	digest := sha256.Sum256([]byte(id.String()))
	path, err := filepath.Abs(filepath.Join(a.config.Dir, socketFolder, hex.EncodeToString(digest[:6])+".sock"))
	if err != nil {
		return "", fmt.Errorf("development authority: %w", err)
	}
	if len(path) >= maxSocketPath {
		return "", fmt.Errorf("development authority: socket path %q is longer than %d bytes: choose a shorter directory", path, maxSocketPath-1)
	}
	e := &endpoint{path: path}
	if !a.outage {
		if err := a.serve(id, e); err != nil {
			return "", err
		}
	}
	a.servers[id] = e
	return "unix://" + path, nil
}

// serve starts the endpoint's server. The caller holds a.mu.
func (a *Authority) serve(id spiffeid.ID, e *endpoint) error {
	// A socket left behind by a killed process would block the address.
	if err := os.Remove(e.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("development authority: %w", err)
	}
	listener, err := net.Listen("unix", e.path)
	if err != nil {
		return fmt.Errorf("development authority: %w", err)
	}
	if err := os.Chmod(e.path, 0o600); err != nil {
		return errors.Join(fmt.Errorf("development authority: %w", err), listener.Close())
	}
	e.server = grpc.NewServer(
		grpc.UnaryInterceptor(requireHeader),
		grpc.StreamInterceptor(requireHeaderStream),
	)
	workload.RegisterSpiffeWorkloadAPIServer(e.server, &api{id: id, issuer: a.issuer, rotation: a.rotation})
	e.listener = listener
	server := e.server
	go func() {
		if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			a.config.Logger.Error("development authority: workload API stopped", "id", id.String(), "error", err)
		}
	}()
	return nil
}

// rotation returns a channel that is closed at the next Rotate.
func (a *Authority) rotation() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rotated
}

// Rotate sends every workload a new SVID now.
func (a *Authority) Rotate() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.rotated)
	a.rotated = make(chan struct{})
}

// Outage takes the Workload API away, sockets included, or brings it back.
func (a *Authority) Outage(out bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.outage == out {
		return nil
	}
	a.outage = out
	for id, e := range a.servers {
		if out {
			e.stop()
			continue
		}
		if err := a.serve(id, e); err != nil {
			return err
		}
	}
	return nil
}

// Close stops serving and removes the sockets. It is safe to call twice.
func (a *Authority) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for _, e := range a.servers {
		e.stop()
	}
}

func (e *endpoint) stop() {
	if e.server != nil {
		e.server.Stop()
		// A server stopped before its goroutine came to Serve knows no
		// listener to close. Closing twice is an error of no interest.
		_ = e.listener.Close()
		e.server = nil
	}
}

// securityHeader must accompany every Workload API call; a browser or a
// forwarding proxy tricked into calling the socket cannot set it
// (SPIFFE Workload Endpoint §4.1).
const securityHeader = "workload.spiffe.io"

func checkHeader(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if values := md.Get(securityHeader); len(values) != 1 || values[0] != "true" {
		return status.Error(codes.InvalidArgument, "security header missing from request")
	}
	return nil
}

func requireHeader(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := checkHeader(ctx); err != nil {
		return nil, err
	}
	return handle(ctx, req)
}

func requireHeaderStream(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if err := checkHeader(stream.Context()); err != nil {
		return err
	}
	return handle(server, stream)
}
