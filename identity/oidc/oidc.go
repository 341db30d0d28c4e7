// Package oidc authenticates callers by OAuth 2.0 and OpenID Connect access
// tokens: signed JWTs of issuers that configuration names.
//
// Start at [New], which returns a [Verifier] for all issuers at once;
// [Verifier.Authenticate] is the method for identity.Chain.
//
// # What a token must be
//
// A JWT library's options leave much open, so package jws first refuses what is
// merely odd, and the issuer's rules refuse types other than access tokens, more
// than one audience and long lives. Then the issuer's one set of algorithms and
// its current keys decide, and last the claims are read into a principal.
//
// # Keys
//
// Each issuer's keys are fetched ahead of need. A token cannot make the process
// fetch more than its issuer's small allowance, and keys that could not be
// renewed for a day are no longer believed.
package oidc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/jws"
)

// Config describes one issuer.
type Config struct {
	// URL is the issuer as its tokens name it in "iss", compared exactly.
	URL string `yaml:"url"`
	// Audience is the one audience that a token must be for.
	Audience string `yaml:"audience"`
	// Algorithms are the signature algorithms of this issuer: RS256, RS384,
	// RS512, PS256, PS384, PS512, ES256, ES384, ES512 or EdDSA.
	Algorithms []string `yaml:"algorithms"`
	// TenantClaim is the claim that holds the tenant.
	TenantClaim string `yaml:"tenant_claim"`
	// JWKSURL or JWKSFile, one of them, is where the keys are. A URL must be
	// https unless its host is a loopback address.
	JWKSURL  string `yaml:"jwks_url"`
	JWKSFile string `yaml:"jwks_file"`
	// Clients are the OAuth clients whose tokens are taken; none means any.
	Clients []string `yaml:"clients"`
	// PlainJWT also takes tokens whose "typ" is "JWT" or absent, for issuers
	// that do not follow RFC 9068. ID tokens look much the same.
	PlainJWT bool `yaml:"plain_jwt"`
	// MaxLifetime bounds exp - iat; zero is one hour, more than 24 h is an
	// error.
	MaxLifetime time.Duration `yaml:"max_lifetime"`
	// SenderConstraint is what a token must be bound to: none, mtls (a client
	// certificate, RFC 8705), dpop (a key that signs proofs, RFC 9449) or any of
	// the two. Empty is none. A token that is bound is never a bearer token,
	// whatever this says.
	SenderConstraint string `yaml:"sender_constraint"`
}

// Options are what all issuers share. The zero value is usable.
type Options struct {
	// Clock tells the time; nil is time.Now.
	Clock func() time.Time
	// Logger receives failures to renew keys; nil discards them.
	Logger *slog.Logger
}

// Limits of a token's life.
const (
	leeway             = 30 * time.Second // for clocks that disagree
	defaultMaxLifetime = time.Hour
	longestMaxLifetime = 24 * time.Hour
)

// The values of SenderConstraint.
const (
	boundToCertificate = "mtls"
	boundToKey         = "dpop"
	boundToEither      = "any"
)

var constraints = []string{"", "none", boundToCertificate, boundToKey, boundToEither}

// Verifier verifies tokens of the issuers it was made for. It is safe for
// concurrent use.
type Verifier struct {
	issuers map[string]*issuer
	good    cache
	stop    context.CancelFunc
	running sync.WaitGroup
}

// issuer is one issuer at work.
type issuer struct {
	config Config
	keys   *keySet
	clock  func() time.Time
}

// New checks the configuration of every issuer and tries to fetch its keys
// once. Keys that cannot be fetched are no error, so that an identity
// provider's outage does not keep the process from serving other callers: the
// issuer's tokens are [identity.ErrUnavailable] until the keys are there, and
// [Verifier.Ready] says so. A JWKSFile must be readable.
//
// Keys are renewed until Close or until ctx ends.
func New(ctx context.Context, configs []Config, options Options) (*Verifier, error) {
	if options.Clock == nil {
		options.Clock = time.Now
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	v := &Verifier{issuers: make(map[string]*issuer, len(configs))}
	for _, config := range configs {
		i, err := newIssuer(config, options)
		if err != nil {
			return nil, fmt.Errorf("issuer %q: %w", config.URL, err)
		}
		if v.issuers[config.URL] != nil {
			return nil, fmt.Errorf("issuer %q: configured twice", config.URL)
		}
		v.issuers[config.URL] = i
	}
	if err := v.fetchAll(ctx, options.Logger); err != nil {
		return nil, err
	}
	ctx, v.stop = context.WithCancel(ctx)
	for _, i := range v.issuers {
		v.running.Go(func() { i.keys.keepFresh(ctx) })
	}
	return v, nil
}

func newIssuer(config Config, options Options) (*issuer, error) {
	if config.MaxLifetime == 0 {
		config.MaxLifetime = defaultMaxLifetime
	}
	if err := config.Check(); err != nil {
		return nil, err
	}
	keys, err := newKeySet(config, options)
	if err != nil {
		return nil, err
	}
	return &issuer{config: config, keys: keys, clock: options.Clock}, nil
}

// Check returns every problem of c, joined, each as "field: what is wrong". It
// fetches nothing.
func (c Config) Check() error {
	var problems []error
	if err := requireSecure(c.URL); err != nil {
		problems = append(problems, fmt.Errorf("url: %w", err))
	}
	if c.Audience == "" {
		problems = append(problems, errors.New("audience: required"))
	}
	if c.TenantClaim == "" {
		problems = append(problems, errors.New("tenant_claim: required"))
	}
	if len(c.Algorithms) == 0 {
		problems = append(problems, errors.New("algorithms: at least one is required"))
	}
	for _, a := range c.Algorithms {
		if !slices.Contains(jws.Algorithms, a) {
			problems = append(problems, fmt.Errorf("algorithms: %q is not one of %s", a, strings.Join(jws.Algorithms, ", ")))
		}
	}
	if (c.JWKSURL == "") == (c.JWKSFile == "") {
		problems = append(problems, errors.New("jwks_url: exactly one of it and jwks_file is required"))
	}
	if c.JWKSURL != "" {
		if err := requireSecure(c.JWKSURL); err != nil {
			problems = append(problems, fmt.Errorf("jwks_url: %w", err))
		}
	}
	if !slices.Contains(constraints, c.SenderConstraint) {
		problems = append(problems, fmt.Errorf("sender_constraint: %q is not one of none, mtls, dpop, any", c.SenderConstraint))
	}
	if c.MaxLifetime < 0 || c.MaxLifetime > longestMaxLifetime {
		problems = append(problems, fmt.Errorf("max_lifetime: %v is not between 0 and %v", c.MaxLifetime, longestMaxLifetime))
	}
	return errors.Join(problems...)
}

func (v *Verifier) fetchAll(ctx context.Context, log *slog.Logger) error {
	var (
		fetching sync.WaitGroup
		mu       sync.Mutex
		fatal    []error
	)
	for url, i := range v.issuers {
		fetching.Go(func() {
			err := i.keys.refresh(ctx)
			if err == nil {
				return
			}
			if i.config.JWKSFile != "" {
				mu.Lock()
				defer mu.Unlock()
				fatal = append(fatal, fmt.Errorf("issuer %q: %w", url, err))
				return
			}
			log.Error("tokens of this issuer are refused until its keys can be fetched", "issuer", url, "error", err)
		})
	}
	fetching.Wait()
	return errors.Join(fatal...)
}

// Close stops renewing keys.
func (v *Verifier) Close() {
	v.stop()
	v.running.Wait()
}

// Ready reports which issuers have no keys that may be believed, or nil.
func (v *Verifier) Ready() error {
	var problems []error
	for url, i := range v.issuers {
		if err := i.keys.usable(); err != nil {
			problems = append(problems, fmt.Errorf("issuer %q: %w", url, err))
		}
	}
	return errors.Join(problems...)
}

// KeyAge is how old each issuer's keys are, by issuer URL; an issuer without
// keys is left out.
func (v *Verifier) KeyAge() map[string]time.Duration {
	ages := make(map[string]time.Duration, len(v.issuers))
	for url, i := range v.issuers {
		if age, ok := i.keys.age(); ok {
			ages[url] = age
		}
	}
	return ages
}

// Authenticate is the identity.Authenticator for tokens that are JWTs. A token of
// another shape is left to other methods. Whether the caller holds the keys that
// a token is bound to is for identity.Chain to find out.
func (v *Verifier) Authenticate(ctx context.Context, r *http.Request) (identity.Principal, error) {
	token, err := identity.PresentedToken(r)
	if err != nil {
		return identity.Principal{}, err
	}
	if strings.Count(token.Value, ".") < 2 {
		return identity.Principal{}, identity.ErrNoCredential
	}
	return v.Verify(ctx, token.Value)
}

// Verify returns whose a token is, and what it is bound to. Its errors wrap
// [identity.ErrBadCredential], or [identity.ErrUnavailable] where the issuer's
// keys cannot be had.
func (v *Verifier) Verify(ctx context.Context, token string) (identity.Principal, error) {
	p, err := v.verify(ctx, token)
	switch {
	case errors.Is(err, identity.ErrUnavailable):
		return identity.Principal{}, fmt.Errorf("access token: %w", err)
	case err != nil:
		return identity.Principal{}, fmt.Errorf("access token: %w: %w", identity.ErrBadCredential, err)
	}
	return p, nil
}

func (v *Verifier) verify(ctx context.Context, token string) (identity.Principal, error) {
	// Only a text that begins like a good token is worth a digest.
	head, _, _ := strings.Cut(token, ".")
	var digest [sha256.Size]byte
	like := v.good.begins(head)
	if like {
		digest = sha256.Sum256([]byte(token))
		if known := v.good.get(digest); known != nil {
			if known.holds() {
				return known.principal, nil
			}
			v.good.drop(digest)
		}
	}
	fresh, err := v.judge(ctx, token)
	if err != nil {
		return identity.Principal{}, err
	}
	if !like {
		digest = sha256.Sum256([]byte(token))
		v.good.begin(head)
	}
	v.good.put(digest, fresh)
	return fresh.principal, nil
}

// holds reports whether a token that was good still is: it has not ended, and
// the key that verified it is still its issuer's, and believed.
func (c *cached) holds() bool {
	k, ok := c.issuer.keys.lookUp(c.keyID)
	return ok && k == c.key && c.times.check(c.issuer.clock()) == nil
}

// judge reads and verifies a token.
func (v *Verifier) judge(ctx context.Context, token string) (*cached, error) {
	read, err := jws.Parse(token)
	if err != nil {
		return nil, err
	}
	i := v.issuers[issuerOf(read)]
	if i == nil {
		return nil, errors.New("issuer is not one of ours")
	}
	parsed, err := claimsOf(read)
	if err != nil {
		return nil, err
	}
	if err := i.admits(parsed); err != nil {
		return nil, err
	}
	key, err := i.keys.find(ctx, parsed.Header.KeyID)
	if err != nil {
		return nil, err
	}
	if !key.fits(parsed.Header.Algorithm) {
		return nil, errors.New("the key is not one for the token's algorithm")
	}
	if err := parsed.Verify(key.public); err != nil {
		return nil, err
	}
	p, err := i.principal(parsed)
	if err != nil {
		return nil, err
	}
	return &cached{principal: p, issuer: i, times: parsed.claims.times(), keyID: parsed.Header.KeyID, key: key}, nil
}

// admits holds a token against the issuer's rules before its signature is
// looked at, so that a token that breaks them costs nothing.
func (i *issuer) admits(t *token) error {
	c := &t.claims
	switch {
	case !slices.Contains(i.config.Algorithms, t.Header.Algorithm):
		return fmt.Errorf("algorithm %q is not one of this issuer's", t.Header.Algorithm)
	case !t.isAccessToken(i.config.PlainJWT):
		return errors.New("typ is not that of an access token")
	case len(c.Audience) != 1 || c.Audience[0] != i.config.Audience:
		return errors.New("it must be for this audience and no other")
	case !identity.IsName(c.Subject):
		return errors.New("no subject, or an odd one")
	case strings.HasPrefix(c.Subject, "spiffe://"):
		return errors.New("the subject is a SPIFFE ID, which no identity provider may vouch for")
	case c.IssuedAt == nil || c.Expires == nil:
		return errors.New("iat and exp are required")
	case c.Expires.Sub(c.IssuedAt.Time) > i.config.MaxLifetime:
		return fmt.Errorf("it lives longer than %v", i.config.MaxLifetime)
	case c.Expires.Sub(i.clock()) > i.config.MaxLifetime+leeway:
		return fmt.Errorf("it ends further ahead than %v", i.config.MaxLifetime)
	case c.Type == "ID" || c.Type == "Refresh" || c.AccessTokenHash != "":
		return errors.New("it is an ID or refresh token")
	case c.AuthorizedParty != "" && c.ClientID != "" && c.AuthorizedParty != c.ClientID:
		return errors.New("azp and client_id name different clients")
	case !i.boundAsRequired(c):
		return fmt.Errorf("it is not bound as sender_constraint %q asks", i.config.SenderConstraint)
	case len(i.config.Clients) > 0 && !slices.Contains(i.config.Clients, c.client()):
		return errors.New("its client is not one of ours")
	}
	return c.times().check(i.clock())
}

// boundAsRequired holds a token's binding against the issuer's constraint.
func (i *issuer) boundAsRequired(c *claims) bool {
	var bound binding
	if c.Confirmation != nil {
		bound = *c.Confirmation
	}
	switch i.config.SenderConstraint {
	case "", "none":
		return true
	case boundToCertificate:
		return bound.Certificate != ""
	case boundToKey:
		return bound.Key != ""
	case boundToEither:
		return bound != binding{}
	}
	return false
}

// principal reads the claims of a token that has been verified.
func (i *issuer) principal(t *token) (identity.Principal, error) {
	c := &t.claims
	tenant, err := t.tenant(i.config.TenantClaim)
	if err != nil {
		return identity.Principal{}, err
	}
	chain, err := c.chain()
	if err != nil {
		return identity.Principal{}, err
	}
	fingerprint := sha256.Sum256([]byte(t.Signed))
	return identity.Principal{
		Tenant:      tenant,
		Subject:     c.Subject,
		Kind:        c.kind(),
		Method:      identity.OIDC,
		Issuer:      c.Issuer,
		Groups:      c.Groups,
		Scopes:      c.scopes(),
		Chain:       chain,
		ClientID:    c.client(),
		Label:       c.Label,
		Fingerprint: hex.EncodeToString(fingerprint[:]),
		Bound:       c.bound(),
		TokenID:     c.ID,
		IssuedAt:    c.IssuedAt.Time,
		Expires:     c.Expires.Time,
	}, nil
}
