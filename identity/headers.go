package identity

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Names of the headers that carry a credential.
const (
	authorizationHeader = "Authorization"
	apiKeyHeader        = "X-Api-Key"
	dpopHeader          = "Dpop"
)

// Scheme is how a token was presented.
type Scheme string

// The schemes. An x-api-key header counts as Bearer.
const (
	Bearer Scheme = "Bearer"
	DPoP   Scheme = "DPoP"
)

// Token is a credential as a request's headers carry it: a JWT or an API key.
type Token struct {
	Scheme Scheme
	Value  string
	// Proof is the DPoP proof that came with it, or "". A DPoP token has one.
	Proof string
}

// Bounds of what is taken from a header before anything looks into it.
const (
	maxTokenBytes = 16 << 10
	maxProofBytes = 8 << 10
)

// PresentedToken returns the one token that a request presents, or
// [ErrNoCredential]. The same token in Authorization and x-api-key is one
// token; two different ones, or two headers of a name, are [ErrAmbiguous]. One
// that is malformed, of another scheme or in the URL is [ErrBadCredential], and
// so is a DPoP token without its proof or a bearer token with one.
func PresentedToken(r *http.Request) (Token, error) {
	if name := credentialInURL(r); name != "" {
		return Token{}, fmt.Errorf("%w: %s in the URL, where logs would keep it", ErrBadCredential, name)
	}
	var found presented
	if err := found.collect(r.Header); err != nil {
		return Token{}, err
	}
	token, err := found.token()
	switch {
	case err != nil:
		return Token{}, err
	case found.dpop == nil && token.Scheme == DPoP:
		return Token{}, fmt.Errorf("%w: there is none beside a DPoP token", ErrProof)
	case found.dpop == nil:
	case token.Scheme == Bearer:
		return Token{}, fmt.Errorf("%w: a bearer token is not what it belongs to", ErrProof)
	case len(*found.dpop) > maxProofBytes || !isToken(*found.dpop):
		return Token{}, fmt.Errorf("%w: malformed header", ErrProof)
	default:
		token.Proof = *found.dpop
	}
	if token.Value == "" {
		return Token{}, ErrNoCredential
	}
	return token, nil
}

// presented are the headers that carry a credential; nil where there is none.
type presented struct{ authorization, apiKey, dpop *string }

// collect finds each header at most once. Names are compared as upstreams
// compare them: case and '_' for '-' make no difference.
func (p *presented) collect(h http.Header) error {
	for key, values := range h {
		place := p.place(key)
		if place == nil {
			continue
		}
		for i := range values {
			if *place != nil {
				return fmt.Errorf("%w: more than one %s header", ErrAmbiguous, normal(key))
			}
			*place = &values[i]
		}
	}
	return nil
}

func (p *presented) place(key string) **string {
	switch {
	case spells(key, authorizationHeader):
		return &p.authorization
	case spells(key, apiKeyHeader):
		return &p.apiKey
	case spells(key, dpopHeader):
		return &p.dpop
	}
	return nil
}

func (p *presented) token() (token Token, err error) {
	if p.authorization != nil {
		if token, err = parseAuthorization(*p.authorization); err != nil {
			return Token{}, err
		}
	}
	if p.apiKey == nil {
		return token, nil
	}
	switch {
	case !isToken(*p.apiKey):
		return Token{}, fmt.Errorf("%w: malformed x-api-key header", ErrBadCredential)
	case p.authorization != nil && token.Value != *p.apiKey:
		return Token{}, fmt.Errorf("%w: different ones in authorization and x-api-key", ErrAmbiguous)
	case p.authorization == nil:
		token = Token{Scheme: Bearer, Value: *p.apiKey}
	}
	return token, nil
}

func parseAuthorization(value string) (Token, error) {
	scheme, credential, _ := strings.Cut(value, " ")
	for _, known := range []Scheme{Bearer, DPoP} {
		if strings.EqualFold(scheme, string(known)) && isToken(credential) {
			return Token{Scheme: known, Value: credential}, nil
		}
	}
	return Token{}, fmt.Errorf("%w: authorization header is not one bearer token", ErrBadCredential)
}

// isToken reports whether s is a token68 (RFC 9110 §11.2): no spaces, no
// commas, so one token and not a list.
func isToken(s string) bool {
	if s == "" || len(s) > maxTokenBytes {
		return false
	}
	for i := range len(s) {
		if !token68[s[i]] {
			return false
		}
	}
	return true
}

// token68 are the bytes that a token may have.
var token68 = func() (may [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/=") {
		may[c] = true
	}
	return may
}()

// urlCredentials are query parameters that ask to be taken for a credential.
var urlCredentials = []string{"access-token", "authorization", "api-key", "apikey", "x-api-key"}

func credentialInURL(r *http.Request) string {
	if r.URL == nil || r.URL.RawQuery == "" {
		return ""
	}
	for name := range r.URL.Query() {
		if slices.Contains(urlCredentials, normal(name)) {
			return normal(name)
		}
	}
	return ""
}

// normal is a header's name as CGI and many frameworks see it, for which
// X_Tenant, x-tenant and X-Tenant are one.
func normal(name string) string {
	return strings.ReplaceAll(strings.ToLower(name), "_", "-")
}

// spells reports whether key is the canonical name in some spelling of [normal].
func spells(key, name string) bool {
	if len(key) != len(name) {
		return false
	}
	for i := range len(key) {
		a, b := key[i], name[i]
		if a == '_' {
			a = '-'
		}
		if a != b && (a|0x20 != b|0x20 || a|0x20 < 'a' || a|0x20 > 'z') {
			return false
		}
	}
	return true
}
