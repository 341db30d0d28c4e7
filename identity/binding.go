package identity

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Binding names the keys that a token is bound to (RFC 7800): whoever presents
// it must hold them. The zero value is none. Both are SHA-256 digests in
// base64url.
type Binding struct {
	Certificate string // of the DER form of a TLS client certificate (RFC 8705 §3.1)
	Key         string // thumbprint of the key that signs DPoP proofs (RFC 9449 §6.1)
}

// Proof is a DPoP proof that holds, but for whether it was seen before.
type Proof struct {
	Key string // thumbprint of the key that signed it
	// Spend uses the proof up, for the tenant whose token it came with: it is nil
	// once, and afterwards wraps [ErrBadCredential]; [ErrTooMany] where the key or
	// the tenant has used too many of late, or [ErrUnavailable] where it cannot be
	// told.
	Spend func(ctx context.Context, tenant string) error
}

// Proofs judges the DPoP proof that came with a request's token. Its errors wrap
// [ErrProof], [ErrNonce] or [ErrUnavailable].
type Proofs func(*http.Request, Token) (Proof, error)

// prove judges the proof that came with a DPoP token.
func (c Chain) prove(r *http.Request, token Token) (Proof, error) {
	if c.Proofs == nil {
		return Proof{}, fmt.Errorf("%w: none are accepted here", ErrProof)
	}
	return c.Proofs(r, token)
}

// possess holds a token's binding against what the caller proved to hold.
func (c Chain) possess(ctx context.Context, r *http.Request, p Principal, scheme Scheme, proof Proof) (Principal, error) {
	if (scheme == DPoP) != (p.Bound.Key != "") {
		// The one is a stolen token whose key the thief has not, the other a
		// proof that proves nothing.
		return Principal{}, fmt.Errorf("%w: DPoP is for tokens that are bound to a key, and they for it", ErrBadCredential)
	}
	if p.Bound.Key != "" && !equal(p.Bound.Key, proof.Key) {
		return Principal{}, fmt.Errorf("%w: the token is bound to another key", ErrBadCredential)
	}
	if p.Bound.Certificate != "" {
		ends, err := holdsCertificate(r, p.Bound.Certificate, time.Now())
		if err != nil {
			return Principal{}, fmt.Errorf("%w: %w", ErrBadCredential, err)
		}
		p.Expires = earlier(p.Expires, ends)
	}
	if scheme == DPoP {
		// Last, so that only who holds token and key can fill the memory of
		// proofs.
		if err := proof.Spend(ctx, c.tenantOf(p)); err != nil {
			return Principal{}, err
		}
	}
	return p, nil
}

// holdsCertificate reports until when the connection proves that the client
// holds the certificate with the digest given. That needs no authority to vouch
// for the certificate: the token's issuer did (RFC 8705 §3). Nothing but the
// connection counts, and no header that names a certificate.
func holdsCertificate(r *http.Request, digest string, now time.Time) (ends time.Time, err error) {
	if r.TLS == nil || !r.TLS.HandshakeComplete || len(r.TLS.PeerCertificates) == 0 {
		return time.Time{}, errors.New("the token is bound to a client certificate, and there is none")
	}
	leaf := r.TLS.PeerCertificates[0]
	sum := sha256.Sum256(leaf.Raw)
	switch {
	case !equal(digest, base64.RawURLEncoding.EncodeToString(sum[:])):
		return time.Time{}, errors.New("the token is bound to another client certificate")
	case now.Before(leaf.NotBefore) || now.After(leaf.NotAfter):
		return time.Time{}, errors.New("the client certificate is not valid now")
	}
	return leaf.NotAfter, nil
}

func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
