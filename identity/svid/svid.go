// Package svid authenticates callers by their SVID: the X.509-SVID of a TLS
// client certificate, or a JWT-SVID.
//
// Start at [Authenticator]. The handshake has verified the certificate already
// (package workload); a connection outlives that moment, so each request
// verifies it again. [JWTAuthenticator] is for callers whose TLS ends before it
// reaches us.
package svid

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/workload"
)

// Config says by what a certificate is judged.
type Config struct {
	// Bundles are the trust domains' authorities now. Required.
	Bundles x509bundle.Source
	// Foreign leaves certificates that name no SPIFFE ID alone, for a listener
	// that lets them in ([workload.AnyClientConfig]): they are credentials of
	// nobody. Otherwise such a certificate is a bad credential.
	Foreign bool
	// Clock tells the time; nil is time.Now.
	Clock func() time.Time
}

// Authenticator returns a method that finds an X.509-SVID in a request's TLS
// connection. The principal has no tenant: a registration assigns it.
//
// A certificate that has expired since the handshake, or whose authority has
// left the bundle, is [identity.ErrBadCredential].
func Authenticator(config Config) (identity.Authenticator, error) {
	if config.Bundles == nil {
		return nil, errors.New("svid: no trust bundles configured")
	}
	if config.Clock == nil {
		config.Clock = time.Now
	}
	return func(_ context.Context, r *http.Request) (identity.Principal, error) {
		if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
			return identity.Principal{}, identity.ErrNoCredential
		}
		if config.Foreign && !workload.NamesID(r.TLS.PeerCertificates[0]) {
			return identity.Principal{}, identity.ErrNoCredential
		}
		if !r.TLS.HandshakeComplete {
			return identity.Principal{}, fmt.Errorf("%w: TLS handshake is not complete", identity.ErrBadCredential)
		}
		return principal(r.TLS.PeerCertificates, config.Bundles, config.Clock())
	}, nil
}

func principal(chain []*x509.Certificate, bundles x509bundle.Source, now time.Time) (identity.Principal, error) {
	id, err := workload.VerifyPeer(chain, bundles, x509.ExtKeyUsageClientAuth, now)
	// Our own SVID has expired, or a partner's endpoint is away: who the
	// authorities are cannot be told.
	if errors.Is(err, workload.ErrExpired) || errors.Is(err, workload.ErrStale) {
		return identity.Principal{}, fmt.Errorf("client certificate: %w: %w", identity.ErrUnavailable, err)
	}
	if err != nil {
		return identity.Principal{}, fmt.Errorf("client certificate: %w: %w", identity.ErrBadCredential, err)
	}
	fingerprint := sha256.Sum256(chain[0].Raw)
	return identity.Principal{
		Subject:     id.String(),
		Kind:        identity.Workload,
		Method:      identity.X509SVID,
		Issuer:      id.TrustDomain().Name(),
		Workload:    id.String(),
		Fingerprint: hex.EncodeToString(fingerprint[:]),
		Expires:     chain[0].NotAfter,
	}, nil
}
