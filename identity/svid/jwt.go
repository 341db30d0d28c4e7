package svid

import (
	"bytes"
	"context"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/jws"
	"github.com/sallyport-ai/sallyport/identity/workload"
)

// Limits of a JWT-SVID. go-spiffe has a leeway of a minute and no longest life.
const (
	jwtLeeway  = 5 * time.Second
	jwtMaxLife = time.Hour
	minRSABits = 2048
)

// JWTConfig says by what a JWT-SVID is judged. Every field is required.
type JWTConfig struct {
	// Bundles are the trust domains' JWT keys now.
	Bundles jwtbundle.Source
	// Audience is the one audience that a JWT-SVID must be for.
	Audience string
	// Authorize admits identities, before their trust domain's keys are asked
	// for. Federated domains have bundles too.
	Authorize workload.Authorizer
}

// JWTAuthenticator returns a method that finds a JWT-SVID presented as a bearer
// token: a JWT whose subject begins with spiffe://. Other JWTs are left to
// later methods, so it must stand before one that takes all JWTs. The principal
// has no tenant: a registration assigns it.
//
// Beyond what go-spiffe checks, a JWT-SVID must be for this audience alone, say
// when it was issued, live for at most an hour, name a workload and not a trust
// domain, and be read by every reader alike (package jws).
func JWTAuthenticator(config JWTConfig) (identity.Authenticator, error) {
	switch {
	case config.Bundles == nil:
		return nil, errors.New("jwt-svid: no trust bundles configured")
	case config.Audience == "":
		// go-spiffe takes no audience to mean any.
		return nil, errors.New("jwt-svid: no audience configured")
	case config.Authorize == nil:
		return nil, errors.New("jwt-svid: nobody says who is admitted")
	}
	return func(_ context.Context, r *http.Request) (identity.Principal, error) {
		token, err := identity.PresentedToken(r)
		if err != nil {
			return identity.Principal{}, err
		}
		if !mayBeSVID(token.Value) {
			return identity.Principal{}, identity.ErrNoCredential
		}
		p, err := config.principal(token)
		switch {
		case err == nil, errors.Is(err, identity.ErrNoCredential):
			return p, err
		case errors.Is(err, identity.ErrUnavailable):
			return identity.Principal{}, fmt.Errorf("JWT-SVID: %w", err)
		}
		return identity.Principal{}, fmt.Errorf("JWT-SVID: %w: %w", identity.ErrBadCredential, err)
	}, nil
}

// mayBeSVID spares other JWTs a second strict reading. A JWT-SVID whose subject
// is spelt with escapes slips through, to a method that takes no SPIFFE IDs.
func mayBeSVID(token string) bool {
	_, rest, _ := strings.Cut(token, ".")
	payload, _, ok := strings.Cut(rest, ".")
	if !ok {
		return false
	}
	raw, err := base64.RawURLEncoding.DecodeString(payload)
	return err == nil && bytes.Contains(raw, []byte("spiffe:"))
}

// jwtClaims are the claims of a JWT-SVID that mean something here.
type jwtClaims struct {
	Subject      string           `json:"sub"`
	Audience     jws.StringList   `json:"aud"`
	Expires      *jws.NumericDate `json:"exp"`
	NotBefore    *jws.NumericDate `json:"nbf"`
	IssuedAt     *jws.NumericDate `json:"iat"`
	ID           string           `json:"jti"`
	Confirmation jsontext.Value   `json:"cnf"`
	Actor        jsontext.Value   `json:"act"`
}

var jwtClaimNames = []string{"sub", "aud", "exp", "nbf", "iat", "jti", "cnf", "act"}

func (c *JWTConfig) principal(token identity.Token) (identity.Principal, error) {
	read, err := jws.Parse(token.Value)
	if err != nil {
		return identity.Principal{}, err
	}
	var claims jwtClaims
	if err := read.Claims(&claims, jwtClaimNames); err != nil {
		return identity.Principal{}, err
	}
	if !strings.HasPrefix(claims.Subject, "spiffe://") {
		return identity.Principal{}, identity.ErrNoCredential
	}
	if token.Scheme != identity.Bearer {
		return identity.Principal{}, errors.New("it is a bearer token and was presented as another")
	}
	if err := c.admits(read.Header.Type, &claims, time.Now()); err != nil {
		return identity.Principal{}, err
	}
	id, err := c.verify(token.Value, read, claims.Subject)
	if err != nil {
		return identity.Principal{}, err
	}
	fingerprint := sha256.Sum256([]byte(read.Signed))
	return identity.Principal{
		Subject:     id.String(),
		Kind:        identity.Workload,
		Method:      identity.JWTSVID,
		Issuer:      id.TrustDomain().Name(),
		Workload:    id.String(),
		Fingerprint: hex.EncodeToString(fingerprint[:]),
		TokenID:     claims.ID,
		IssuedAt:    claims.IssuedAt.Time,
		Expires:     claims.Expires.Time,
	}, nil
}

// admits holds the claims against the rules before any key is looked for.
func (c *JWTConfig) admits(kind string, claims *jwtClaims, now time.Time) error {
	switch {
	case kind != "" && kind != "JWT" && kind != "JOSE":
		return errors.New("typ is not that of a JWT-SVID")
	case len(claims.Audience) != 1 || claims.Audience[0] != c.Audience:
		return errors.New("it must be for this audience and no other")
	case claims.IssuedAt == nil || claims.Expires == nil:
		return errors.New("iat and exp are required")
	case claims.Expires.Sub(claims.IssuedAt.Time) > jwtMaxLife:
		return fmt.Errorf("it lives longer than %v", jwtMaxLife)
	case now.Sub(claims.Expires.Time) >= jwtLeeway:
		return errors.New("it has expired")
	case claims.IssuedAt.Sub(now) > jwtLeeway, claims.NotBefore != nil && claims.NotBefore.Sub(now) > jwtLeeway:
		return errors.New("it is not valid yet")
	case len(claims.Confirmation) > 0:
		return errors.New("it is bound to a key and must not be used as a bearer token")
	case len(claims.Actor) > 0:
		return errors.New("it names an actor: a workload speaks for itself")
	}
	return nil
}

// verify checks subject and signature, and returns whose the token is.
func (c *JWTConfig) verify(token string, read *jws.Token, subject string) (spiffeid.ID, error) {
	id, err := spiffeid.FromString(subject)
	if err != nil {
		return spiffeid.ID{}, err
	}
	if err := workload.CheckID(id); err != nil {
		return spiffeid.ID{}, err
	}
	if err := c.Authorize(id); err != nil {
		return spiffeid.ID{}, err
	}
	bundle, err := c.Bundles.GetJWTBundleForTrustDomain(id.TrustDomain())
	if err != nil {
		return spiffeid.ID{}, fmt.Errorf("%w: %w", identity.ErrUnavailable, err)
	}
	key, ok := bundle.FindJWTAuthority(read.Header.KeyID)
	if !ok {
		return spiffeid.ID{}, errors.New("its trust domain has no such key")
	}
	if public, ok := key.(*rsa.PublicKey); !jws.Fits(key, read.Header.Algorithm) || ok && public.N.BitLen() < minRSABits {
		return spiffeid.ID{}, errors.New("the key is not one for the token's algorithm, or weak")
	}
	if err := read.Verify(key); err != nil {
		return spiffeid.ID{}, err
	}
	// A second reading by the library. Were it to read something else than jws
	// did, jws would have refused it.
	svid, err := jwtsvid.ParseAndValidate(token, bundle, []string{c.Audience})
	if err != nil {
		return spiffeid.ID{}, err
	}
	return svid.ID, nil
}
