// Package dpop judges proofs that a caller holds the key which its access token
// is bound to (RFC 9449).
//
// Start at [New]; [Verifier.Judge] is the method for identity.Chain.
//
// # What a proof must be
//
//	{"typ":"dpop+jwt","alg":"ES256","jwk":{"kty":"EC","crv":"P-256","x":"…","y":"…"}}
//	{"jti":"…","htm":"POST","htu":"https://llm.example/v1/responses","iat":1796049000,
//	 "ath":"base64url(SHA-256(token))","nonce":"…"}
//
// signed by the key in it, for this very method and address, this token, and
// now. Unless configuration is content with that, it must also hold a nonce that
// a gateway issued in the last minutes: proofs made in advance are then worth
// nothing. A proof counts once.
//
// # Nonces
//
// A nonce is a time and a MAC of it under a secret that the gateways of a fleet
// share. Any of them takes what another issued, and none keeps a list.
package dpop

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/jws"
)

// window is how far the time of a proof may be from ours, either way.
const window = time.Minute

// maxID bounds a proof's jti, in bytes.
const maxID = 256

// Algorithms are those that a proof may be signed with.
var Algorithms = []string{"ES256", "ES384", "ES512", "EdDSA", "PS256", "RS256"}

// Spend remembers a holder's proof by its digest until the time given. It reports
// whether this is the first time, or an error where that cannot be told:
// [ErrFull] where there are too many of this holder.
type Spend func(ctx context.Context, of Holder, proof [32]byte, until time.Time) (first bool, err error)

// Config says by what proofs are judged.
type Config struct {
	// Origin is the scheme and authority that clients call, such as
	// https://llm.example: what a request's own headers say of it is the
	// caller's word. Required.
	Origin string
	// Spend remembers proofs. Required.
	Spend Spend
	// Secret is what nonces are made under; one for all gateways that share
	// callers. Required.
	Secret [32]byte
	// WithoutNonce also takes proofs that hold no nonce. A nonce that is there
	// must be good all the same.
	WithoutNonce bool
	// Clock tells the time; nil is time.Now.
	Clock func() time.Time
}

// Verifier judges proofs. It is safe for concurrent use.
type Verifier struct {
	config Config
	origin string // normalised
	nonces nonces
}

// New checks the configuration.
func New(config Config) (*Verifier, error) {
	u, err := url.Parse(config.Origin)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("dpop: origin %q is not https://host", config.Origin)
	case config.Spend == nil:
		return nil, errors.New("dpop: nothing remembers proofs")
	case config.Secret == [32]byte{}:
		return nil, errors.New("dpop: no secret to make nonces under")
	}
	if config.Clock == nil {
		config.Clock = time.Now
	}
	return &Verifier{config: config, origin: origin(u), nonces: newNonces(config.Secret, config.Clock)}, nil
}

// Nonce returns the nonce that clients are to use now.
func (v *Verifier) Nonce() string { return v.nonces.issue() }

// claims are the claims of a proof.
type claims struct {
	ID       string           `json:"jti"`
	Method   string           `json:"htm"`
	URL      string           `json:"htu"`
	IssuedAt *jws.NumericDate `json:"iat"`
	Token    string           `json:"ath"`
	Nonce    *string          `json:"nonce"`
}

var claimNames = []string{"jti", "htm", "htu", "iat", "ath", "nonce"}

// Judge is the identity.Proofs of a gateway. What it says depends on the
// request and the token's text alone, never on whether the token is good.
func (v *Verifier) Judge(r *http.Request, token identity.Token) (identity.Proof, error) {
	proof, key, err := jws.ParseProof(token.Proof)
	if err != nil {
		return identity.Proof{}, bad(err)
	}
	var c claims
	if err := proof.Claims(&c, claimNames); err != nil {
		return identity.Proof{}, bad(err)
	}
	if err := v.admits(r, token.Value, proof.Header, &c); err != nil {
		return identity.Proof{}, bad(err)
	}
	public, err := key.PublicKey()
	if err != nil {
		return identity.Proof{}, bad(err)
	}
	if err := proof.Verify(public); err != nil {
		return identity.Proof{}, bad(err)
	}
	if err := v.fresh(c.Nonce); err != nil {
		return identity.Proof{}, err
	}
	thumbprint := key.Thumbprint()
	return identity.Proof{Key: thumbprint, Spend: func(ctx context.Context, tenant string) error { return v.spend(ctx, Holder{tenant, thumbprint}, &c) }}, nil
}

func bad(err error) error { return fmt.Errorf("%w: %w", identity.ErrProof, err) }

// admits holds a proof against the request before its signature is looked at.
func (v *Verifier) admits(r *http.Request, token string, header jws.Header, c *claims) error {
	sum := sha256.Sum256([]byte(token))
	off := time.Duration(0)
	if c.IssuedAt != nil {
		off = v.config.Clock().Sub(c.IssuedAt.Time)
	}
	switch {
	case !strings.EqualFold(header.Type, "dpop+jwt"):
		return errors.New("typ is not dpop+jwt")
	case !slices.Contains(Algorithms, header.Algorithm):
		return fmt.Errorf("algorithm %.16q is not one for proofs", header.Algorithm)
	case len(c.ID) > maxID || !identity.IsIdentifier(c.ID):
		return errors.New("jti is missing or odd")
	case c.Method != r.Method:
		return errors.New("htm is not the request's method")
	case !v.isFor(r, c.URL):
		return errors.New("htu is not the request's address")
	case c.IssuedAt == nil:
		return errors.New("iat is required")
	case off > window || off < -window:
		return errors.New("iat is not now")
	case subtle.ConstantTimeCompare([]byte(c.Token), []byte(base64.RawURLEncoding.EncodeToString(sum[:]))) != 1:
		return errors.New("ath is not the token's digest")
	}
	return nil
}

// isFor compares the address of a proof with that of the request, both without
// query and fragment (RFC 9449 §4.3), and as RFC 3986 §6.2 makes them
// comparable. A path must be spelt as the request spells it.
func (v *Verifier) isFor(r *http.Request, htu string) bool {
	u, err := url.Parse(htu)
	if err != nil || u.User != nil || u.Opaque != "" {
		return false
	}
	path := u.EscapedPath()
	if path == "" {
		path = "/"
	}
	return origin(u) == v.origin && path == r.URL.EscapedPath()
}

func origin(u *url.URL) string {
	scheme, host, port := strings.ToLower(u.Scheme), strings.ToLower(u.Host), u.Port()
	if port == "" || scheme == "https" && port == "443" {
		host = strings.TrimSuffix(strings.TrimSuffix(host, port), ":")
	}
	return scheme + "://" + host
}

// fresh judges a nonce.
func (v *Verifier) fresh(nonce *string) error {
	switch {
	case nonce == nil && v.config.WithoutNonce:
		return nil
	case nonce == nil || !v.nonces.takes(*nonce):
		return identity.ErrNonce
	}
	return nil
}

// spend uses a proof up. It is remembered until its time would refuse it.
func (v *Verifier) spend(ctx context.Context, of Holder, c *claims) error {
	first, err := v.config.Spend(ctx, of, digest(of.Key, c.ID), c.IssuedAt.Add(window))
	switch {
	case errors.Is(err, ErrFull):
		return fmt.Errorf("%w: %w", identity.ErrTooMany, err)
	case err != nil:
		return fmt.Errorf("%w: whether a proof was used before: %w", identity.ErrUnavailable, err)
	case !first:
		return fmt.Errorf("%w: a proof that was used before", identity.ErrBadCredential)
	}
	return nil
}

// digest tells proofs apart. Two signatures of one proof are one proof, so it is
// of what the key says and not of its bytes.
func digest(thumbprint, id string) [32]byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(thumbprint)))
	b = append(b, thumbprint...)
	return sha256.Sum256(append(b, id...))
}
