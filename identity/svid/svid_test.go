package svid_test

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/svid"
	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/identity/workload/workloadtest"
)

var domain = workloadtest.Domain

// newSource is the source of a workload of a fresh development authority.
func newSource(t testing.TB) *workload.Source {
	t.Helper()
	return workloadtest.New(t, domain, time.Minute).Source(t, "/app")
}

// request is a request over a connection on which the source's SVID was shown.
func request(t testing.TB, source *workload.Source) (*http.Request, *x509.Certificate) {
	t.Helper()
	own, err := source.GetX509SVID()
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", nil)
	r.TLS = &tls.ConnectionState{HandshakeComplete: true, PeerCertificates: own.Certificates}
	return r, own.Certificates[0]
}

func TestAnSVIDIsAWorkloadWithoutATenant(t *testing.T) {
	source := newSource(t)
	authenticate, err := svid.Authenticator(svid.Config{Bundles: source})
	if err != nil {
		t.Fatal(err)
	}
	r, leaf := request(t, source)
	p, err := authenticate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(leaf.Raw)
	const id = "spiffe://example.org/app"
	if p.Subject != id || p.Workload != id || p.Kind != identity.Workload || p.Method != identity.X509SVID ||
		p.Issuer != "example.org" || p.Tenant != "" || !p.Expires.Equal(leaf.NotAfter) || p.Fingerprint != hex.EncodeToString(digest[:]) {
		t.Errorf("got %+v", p)
	}
}

func TestACertificateIsJudgedAnewAtEveryRequest(t *testing.T) {
	source := newSource(t)
	r, leaf := request(t, source)
	now := time.Now()
	config := svid.Config{Bundles: source, Clock: func() time.Time { return now }}
	authenticate, err := svid.Authenticator(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := authenticate(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	now = leaf.NotAfter.Add(time.Second)
	if p, err := authenticate(t.Context(), r); !errors.Is(err, identity.ErrBadCredential) || !p.IsZero() {
		t.Errorf("an SVID that expired on a live connection: %+v, %v", p, err)
	}
	config = svid.Config{Bundles: outage{}}
	if authenticate, err = svid.Authenticator(config); err != nil {
		t.Fatal(err)
	}
	if _, err := authenticate(t.Context(), r); !errors.Is(err, identity.ErrUnavailable) || errors.Is(err, identity.ErrBadCredential) {
		t.Errorf("a certificate that nobody can judge is no bad one: %v", err)
	}
	config = svid.Config{Bundles: x509bundle.NewSet()}
	if authenticate, err = svid.Authenticator(config); err != nil {
		t.Fatal(err)
	}
	if _, err := authenticate(t.Context(), r); !errors.Is(err, identity.ErrBadCredential) {
		t.Errorf("an SVID whose trust domain left the bundles: %v", err)
	}
}

// outage is a source whose own SVID has expired.
type outage struct{}

func (outage) GetX509BundleForTrustDomain(spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	return nil, workload.ErrExpired
}

func TestAConnectionWithoutACertificateIsNoCredential(t *testing.T) {
	source := newSource(t)
	authenticate, err := svid.Authenticator(svid.Config{Bundles: source})
	if err != nil {
		t.Fatal(err)
	}
	r, _ := request(t, source)
	chain := r.TLS.PeerCertificates
	for _, c := range []struct {
		claim string
		state *tls.ConnectionState
		want  error
	}{
		{"no TLS", nil, identity.ErrNoCredential},
		{"no client certificate", &tls.ConnectionState{HandshakeComplete: true}, identity.ErrNoCredential},
		{"a handshake that is not over proves nothing", &tls.ConnectionState{PeerCertificates: chain}, identity.ErrBadCredential},
	} {
		r.TLS = c.state
		if p, err := authenticate(t.Context(), r); !errors.Is(err, c.want) || !p.IsZero() {
			t.Errorf("%s: %+v, %v", c.claim, p, err)
		}
	}
	// What a proxy may say about a certificate is not looked at.
	r.TLS = nil
	r.Header.Set("X-Forwarded-Client-Cert", "URI=spiffe://example.org/app")
	if _, err := authenticate(t.Context(), r); !errors.Is(err, identity.ErrNoCredential) {
		t.Errorf("a forwarded certificate: %v", err)
	}
	if _, err := svid.Authenticator(svid.Config{}); err == nil {
		t.Error("an authenticator without bundles was made")
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	source := newSource(b)
	authenticate, err := svid.Authenticator(svid.Config{Bundles: source})
	if err != nil {
		b.Fatal(err)
	}
	r, _ := request(b, source)
	for b.Loop() {
		if _, err := authenticate(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
}

// Where other certificates are let in, one that names no SPIFFE ID is nobody's
// credential; elsewhere it is a bad one, and one that names an ID always counts.
func TestACertificateOfNobodyIsLeftAloneOnlyWhereItIsLetIn(t *testing.T) {
	source := newSource(t)
	forged, _ := request(t, newSource(t)) // another authority, the same name
	foreign := httptest.NewRequest(http.MethodPost, "/", nil)
	foreign.TLS = &tls.ConnectionState{HandshakeComplete: true, PeerCertificates: []*x509.Certificate{{Raw: []byte("x")}}}
	for _, c := range []struct {
		claim   string
		foreign bool
		request *http.Request
		err     error
	}{
		{"let in", true, foreign, identity.ErrNoCredential},
		{"elsewhere", false, foreign, identity.ErrBadCredential},
		{"a false SVID", true, forged, identity.ErrBadCredential},
	} {
		authenticate, err := svid.Authenticator(svid.Config{Bundles: source, Foreign: c.foreign})
		if err != nil {
			t.Fatal(err)
		}
		if p, err := authenticate(t.Context(), c.request); !errors.Is(err, c.err) || !p.IsZero() {
			t.Errorf("%s: %+v, %v", c.claim, p, err)
		}
	}
}
