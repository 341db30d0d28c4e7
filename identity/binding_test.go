package identity_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/identity"
)

// certificate is a self-signed one, and its digest as a token names it.
func certificate(t *testing.T, from, to time.Time) (*x509.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: to}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(der)
	return parsed, base64.RawURLEncoding.EncodeToString(sum[:])
}

// bound is an authenticator for any token, which is bound as given.
func bound(b identity.Binding) identity.Authenticator {
	return func(context.Context, *http.Request) (identity.Principal, error) {
		return identity.Principal{Subject: "alice", Tenant: "acme", Bound: b, Expires: time.Now().Add(time.Hour)}, nil
	}
}

// proven is a judge of proofs that finds the key which signed, or an error.
func proven(key string, err error, spent error) identity.Proofs {
	return func(*http.Request, identity.Token) (identity.Proof, error) {
		if err != nil {
			return identity.Proof{}, err
		}
		return identity.Proof{Key: key, Spend: func(context.Context, string) error { return spent }}, nil
	}
}

func TestABoundTokenNeedsProofOfItsKey(t *testing.T) {
	now := time.Now()
	leaf, digest := certificate(t, now.Add(-time.Hour), now.Add(time.Minute))
	other, _ := certificate(t, now.Add(-time.Hour), now.Add(time.Hour))
	old, oldDigest := certificate(t, now.Add(-time.Hour), now.Add(-time.Minute))
	early, earlyDigest := certificate(t, now.Add(time.Minute), now.Add(time.Hour))
	shows := func(chain ...*x509.Certificate) *tls.ConnectionState {
		return &tls.ConnectionState{HandshakeComplete: true, PeerCertificates: chain}
	}
	const bearer, dpop = "Bearer a.b.c", "DPoP a.b.c"
	mtls, key := identity.Binding{Certificate: digest}, identity.Binding{Key: "k"}
	both := identity.Binding{Certificate: digest, Key: "k"}
	good := proven("k", nil, nil)
	for _, c := range []struct {
		claim  string
		bound  identity.Binding
		scheme string
		tls    *tls.ConnectionState
		header []string
		proofs identity.Proofs
		err    error
	}{
		{"an unbound bearer token", identity.Binding{}, bearer, nil, nil, good, nil},
		{"an unbound token over a certificate", identity.Binding{}, bearer, shows(leaf), nil, good, nil},
		{"an unbound token with a proof", identity.Binding{}, dpop, nil, nil, good, identity.ErrBadCredential},

		{"57 a token of its certificate", mtls, bearer, shows(leaf), nil, nil, nil},
		{"57 over another certificate", mtls, bearer, shows(other), nil, nil, identity.ErrBadCredential},
		{"57 its certificate second in the chain", mtls, bearer, shows(other, leaf), nil, nil, identity.ErrBadCredential},
		{"57 over no certificate", mtls, bearer, shows(), nil, nil, identity.ErrBadCredential},
		{"57 over no TLS", mtls, bearer, nil, nil, nil, identity.ErrBadCredential},
		{"57 before the handshake is over", mtls, bearer, &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}, nil, nil, identity.ErrBadCredential},
		{"57 its certificate in a header", mtls, bearer, nil, []string{"X-Forwarded-Client-Cert", "Hash=" + digest}, nil, identity.ErrBadCredential},
		{"57 its certificate has ended", identity.Binding{Certificate: oldDigest}, bearer, shows(old), nil, nil, identity.ErrBadCredential},
		{"57 its certificate has not begun", identity.Binding{Certificate: earlyDigest}, bearer, shows(early), nil, nil, identity.ErrBadCredential},
		{"57 with a proof where it needs a certificate", mtls, dpop, shows(leaf), nil, good, identity.ErrBadCredential},

		{"58 a token of its key", key, dpop, nil, nil, good, nil},
		{"58 as a bearer token", key, bearer, nil, nil, good, identity.ErrBadCredential},
		{"58 as a bearer token over a certificate", key, bearer, shows(leaf), nil, good, identity.ErrBadCredential},
		{"58 by another key", key, dpop, nil, nil, proven("j", nil, nil), identity.ErrBadCredential},
		{"58 by no key", key, dpop, nil, nil, proven("", nil, nil), identity.ErrBadCredential},
		{"58 a proof that does not hold", key, dpop, nil, nil, proven("", identity.ErrProof, nil), identity.ErrProof},
		{"58 a proof without a nonce", key, dpop, nil, nil, proven("", identity.ErrNonce, nil), identity.ErrNonce},
		{"58 a proof used before", key, dpop, nil, nil, proven("k", nil, identity.ErrBadCredential), identity.ErrBadCredential},
		{"58 a proof nobody can tell of", key, dpop, nil, nil, proven("k", nil, identity.ErrUnavailable), identity.ErrUnavailable},
		{"58 where proofs are not taken", key, dpop, nil, nil, nil, identity.ErrProof},

		{"bound to both, with both", both, dpop, shows(leaf), nil, good, nil},
		{"bound to both, with its key alone", both, dpop, nil, nil, good, identity.ErrBadCredential},
		{"bound to both, with its certificate alone", both, bearer, shows(leaf), nil, good, identity.ErrBadCredential},
	} {
		r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", nil)
		r.TLS = c.tls
		r.Header.Set("Authorization", c.scheme)
		if c.scheme == dpop {
			r.Header.Set("DPoP", "p")
		}
		for i := 0; i < len(c.header); i += 2 {
			r.Header.Set(c.header[i], c.header[i+1])
		}
		chain := identity.Chain{Request: []identity.Authenticator{bound(c.bound)}, Proofs: c.proofs}
		p, err := chain.Authenticate(t.Context(), r)
		if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) || p.IsZero() == (err == nil) {
			t.Errorf("%s: %+v, %v", c.claim, p, err)
		}
		if err == nil && c.bound.Certificate != "" && !p.Expires.Equal(leaf.NotAfter) {
			t.Errorf("%s: it outlives its certificate: %v", c.claim, p.Expires)
		}
	}
}

// What a thief hears does not tell whether the token is good.
func TestAProofIsJudgedBeforeItsToken(t *testing.T) {
	asked := false
	chain := identity.Chain{
		Request: []identity.Authenticator{func(context.Context, *http.Request) (identity.Principal, error) {
			asked = true
			return identity.Principal{}, identity.ErrBadCredential
		}},
		Proofs: proven("", identity.ErrNonce, nil),
	}
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set("Authorization", "DPoP a.b.c")
	r.Header.Set("DPoP", "p")
	if _, err := chain.Authenticate(t.Context(), r); !errors.Is(err, identity.ErrNonce) || asked {
		t.Errorf("%v, and the token was looked at: %v", err, asked)
	}
}

func TestAProofIsSpentOnlyByWhoHoldsTokenAndKey(t *testing.T) {
	for claim, method := range map[string]identity.Authenticator{
		"a bad token": func(context.Context, *http.Request) (identity.Principal, error) {
			return identity.Principal{}, identity.ErrBadCredential
		},
		"another key":            bound(identity.Binding{Key: "j"}),
		"no bound token":         bound(identity.Binding{}),
		"another certificate":    bound(identity.Binding{Key: "k", Certificate: "x"}),
		"a token of nobody here": connected(identity.Principal{}, identity.ErrNoCredential),
	} {
		spent := false
		chain := identity.Chain{Request: []identity.Authenticator{method}, Proofs: func(*http.Request, identity.Token) (identity.Proof, error) {
			return identity.Proof{Key: "k", Spend: func(context.Context, string) error { spent = true; return nil }}, nil
		}}
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Authorization", "DPoP a.b.c")
		r.Header.Set("DPoP", "p")
		if _, err := chain.Authenticate(t.Context(), r); err == nil || spent {
			t.Errorf("%s: %v, spent: %v", claim, err, spent)
		}
	}
}

// A stream is one request: it is asked for again without another proof, but by
// nobody else, and its certificate must still be there.
func TestARequestIsKnownAgainWithoutASecondProof(t *testing.T) {
	now := time.Now()
	leaf, digest := certificate(t, now.Add(-time.Hour), now.Add(time.Hour))
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.TLS = &tls.ConnectionState{HandshakeComplete: true, PeerCertificates: []*x509.Certificate{leaf}}
	r.Header.Set("Authorization", "DPoP a.b.c")
	r.Header.Set("DPoP", "p")
	is := identity.Binding{Key: "k", Certificate: digest}
	chain := identity.Chain{Request: []identity.Authenticator{bound(is)}, Proofs: proven("", identity.ErrProof, nil)}
	if p, err := chain.Again(t.Context(), r, identity.Principal{Bound: is}); err != nil || p.Subject != "alice" {
		t.Errorf("the same: %+v, %v", p, err)
	}
	for claim, was := range map[string]identity.Principal{
		"one who proved another key": {Bound: identity.Binding{Key: "j"}},
		"one who proved nothing":     {},
	} {
		if p, err := chain.Again(t.Context(), r, was); !errors.Is(err, identity.ErrBadCredential) {
			t.Errorf("%s: %+v, %v", claim, p, err)
		}
	}
	r.TLS = nil
	if p, err := chain.Again(t.Context(), r, identity.Principal{Bound: is}); !errors.Is(err, identity.ErrBadCredential) {
		t.Errorf("without its certificate: %+v, %v", p, err)
	}
}
