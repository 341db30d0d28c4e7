// Package workload is the process's own SPIFFE identity and the mutual TLS
// made from it.
//
// Start at [NewSource], which reads X.509-SVIDs, and if asked the keys of
// JWT-SVIDs, from the SPIFFE Workload API and keeps them fresh, then at
// [ServerConfig] and [ClientConfig], which turn a source and an [Authorizer]
// into a tls.Config. [IsIdentityError] tells a peer that is somebody else from a
// network that is broken.
//
// # Why not go-spiffe's own TLS configurations
//
// They authorise in VerifyPeerCertificate, which crypto/tls skips when a
// session is resumed: a peer taken off the list comes back unasked. Here the
// check is in VerifyConnection, which runs on every connection, and sessions
// are not resumed at all. [VerifyPeer] is also stricter than go-spiffe about
// what a leaf must hold.
//
// # Development
//
// [Authority] is a certificate authority and Workload API inside the process,
// for a demonstration without SPIRE. It refuses to start in production.
package workload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// ErrExpired is the error of a source whose SVID has run out, as happens when
// the Workload API is away for longer than the SVID lives.
var ErrExpired = errors.New("the process's own X.509-SVID has expired")

// defaultStartTimeout bounds how long NewSource waits for a first SVID.
const defaultStartTimeout = 15 * time.Second

// SourceConfig says where the process gets its identity.
type SourceConfig struct {
	// Socket is the Workload API's address, unix:///run/spire/agent.sock.
	Socket string
	// StartTimeout bounds the wait for the first SVID; zero is 15 s.
	StartTimeout time.Duration
	// JWTBundles also follows the keys of JWT-SVIDs. Not every Workload API
	// that is not SPIRE's has them.
	JWTBundles bool
	// Federated are the foreign trust domains that are believed. What the
	// Workload API says of others is not.
	Federated []Federated
	// Logger receives the Workload API client's complaints; nil discards them.
	Logger *slog.Logger
}

// Source is the process's X.509-SVID and the trust bundles to check others'
// by. It follows rotation by itself. It is safe for concurrent use.
type Source struct {
	x509 *workloadapi.X509Source
	jwt  *workloadapi.JWTSource // nil unless asked for
	own  spiffeid.TrustDomain
	fed  *federations
}

// NewSource connects to the Workload API and returns once a first SVID is
// there. The context bounds only that wait.
func NewSource(ctx context.Context, config SourceConfig) (*Source, error) {
	if config.Socket == "" {
		return nil, errors.New("workload API: no socket configured")
	}
	if err := workloadapi.ValidateAddress(config.Socket); err != nil {
		return nil, fmt.Errorf("workload API socket %q: %w", config.Socket, err)
	}
	timeout := config.StartTimeout
	if timeout <= 0 {
		timeout = defaultStartTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		fmt.Errorf("no identity within %v: is the agent running and is this process registered?", timeout))
	defer cancel()

	s, err := open(ctx, config)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(cause, err)
		}
		return nil, fmt.Errorf("workload API %s: %w", config.Socket, err)
	}
	svid, err := s.GetX509SVID()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("workload API %s: %w", config.Socket, err), s.Close())
	}
	s.own = svid.ID.TrustDomain()
	for _, f := range config.Federated {
		if f.TrustDomain == s.own {
			return nil, errors.Join(fmt.Errorf("federation with %s: that is our own trust domain", s.own), s.Close())
		}
	}
	fed, err := newFederations(context.WithoutCancel(ctx), config.Federated, config.Logger)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.fed = fed
	return s, nil
}

func open(ctx context.Context, config SourceConfig) (*Source, error) {
	client := workloadapi.WithClientOptions(
		workloadapi.WithAddr(config.Socket),
		workloadapi.WithLogger(clientLog{config.Logger}),
	)
	var (
		s   Source
		err error
	)
	if s.x509, err = workloadapi.NewX509Source(ctx, client); err != nil {
		return nil, err
	}
	if !config.JWTBundles {
		return &s, nil
	}
	if s.jwt, err = workloadapi.NewJWTSource(ctx, client); err != nil {
		return nil, errors.Join(fmt.Errorf("JWT bundles: %w", err), s.x509.Close())
	}
	return &s, nil
}

// GetX509SVID returns the current SVID. An expired one is an error: go-spiffe
// keeps handing it out during an outage, and a peer's refusal then names the
// wrong culprit.
func (s *Source) GetX509SVID() (*x509svid.SVID, error) {
	svid, err := s.x509.GetX509SVID()
	if err != nil {
		return nil, err
	}
	if end := svid.Certificates[0].NotAfter; !time.Now().Before(end) {
		return nil, fmt.Errorf("%s: %w at %s", svid.ID, ErrExpired, end.UTC().Format(time.RFC3339))
	}
	return svid, nil
}

// GetX509BundleForTrustDomain returns the authorities of one trust domain.
// During an outage they are believed for as long as the process's own SVID
// lasts, and no longer: nobody would tell of one that was withdrawn.
func (s *Source) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	if err := s.Ready(); err != nil {
		return nil, err
	}
	if td != s.own {
		return s.fed.x509(td, s.x509)
	}
	return s.x509.GetX509BundleForTrustDomain(td)
}

// GetJWTBundleForTrustDomain returns the keys of one trust domain's JWT-SVIDs,
// during an outage as GetX509BundleForTrustDomain does.
func (s *Source) GetJWTBundleForTrustDomain(td spiffeid.TrustDomain) (*jwtbundle.Bundle, error) {
	if s.jwt == nil {
		return nil, errors.New("the keys of JWT-SVIDs are not followed")
	}
	if err := s.Ready(); err != nil {
		return nil, err
	}
	if td != s.own {
		return s.fed.jwt(td, s.jwt)
	}
	return s.jwt.GetJWTBundleForTrustDomain(td)
}

// Ready reports whether the process can prove who it is now: nil, or why not.
func (s *Source) Ready() error {
	_, err := s.GetX509SVID()
	return err
}

// ID is the SPIFFE ID that the process proves, or the zero ID when it can
// prove none at present.
func (s *Source) ID() spiffeid.ID {
	svid, err := s.GetX509SVID()
	if err != nil {
		return spiffeid.ID{}
	}
	return svid.ID
}

// Remaining is how long the current SVID is still good for; zero when expired
// or closed.
func (s *Source) Remaining() time.Duration {
	svid, err := s.GetX509SVID()
	if err != nil {
		return 0
	}
	return max(0, time.Until(svid.Certificates[0].NotAfter))
}

// TrustDomain is the process's own. It does not change.
func (s *Source) TrustDomain() spiffeid.TrustDomain { return s.own }

// Federated reports whether identities of a foreign trust domain can be
// verified at all.
func (s *Source) Federated(td spiffeid.TrustDomain) bool {
	_, err := s.fed.of(td)
	return err == nil
}

// FederationAges says, by trust domain, how long ago the bundles of those with
// an endpoint were fetched; of one that never was, how long that has been tried.
func (s *Source) FederationAges() map[string]time.Duration { return s.fed.ages(time.Now()) }

// Close ends the watch on the Workload API. The source then proves nothing.
func (s *Source) Close() error {
	if s.fed != nil {
		s.fed.close()
	}
	if s.jwt == nil {
		return s.x509.Close()
	}
	return errors.Join(s.jwt.Close(), s.x509.Close())
}

// clientLog passes the Workload API client's printf logging on to slog.
type clientLog struct{ to *slog.Logger }

func (l clientLog) Debugf(format string, args ...any) { l.log((*slog.Logger).Debug, format, args) }
func (l clientLog) Infof(format string, args ...any)  { l.log((*slog.Logger).Debug, format, args) }
func (l clientLog) Warnf(format string, args ...any)  { l.log((*slog.Logger).Warn, format, args) }
func (l clientLog) Errorf(format string, args ...any) { l.log((*slog.Logger).Error, format, args) }

func (l clientLog) log(at func(*slog.Logger, string, ...any), format string, args []any) {
	if l.to != nil {
		at(l.to, "workload API client", "message", fmt.Sprintf(format, args...))
	}
}
