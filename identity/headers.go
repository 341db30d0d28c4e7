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
}

// maxTokenBytes bounds a token before anything looks into it.
const maxTokenBytes = 16 << 10

// PresentedToken returns the one token that a request presents, or
// [ErrNoCredential]. The same token in Authorization and x-api-key is one
// token; two different ones, or two headers of a name, are [ErrAmbiguous]. One
// that is malformed, of another scheme or in the URL is [ErrBadCredential].
func PresentedToken(r *http.Request) (Token, error) {
	if name := credentialInURL(r); name != "" {
		return Token{}, fmt.Errorf("%w: %s in the URL, where logs would keep it", ErrBadCredential, name)
	}
	authorization, err := single(r.Header, authorizationHeader)
	if err != nil {
		return Token{}, err
	}
	apiKey, err := single(r.Header, apiKeyHeader)
	if err != nil {
		return Token{}, err
	}
	if _, err := single(r.Header, dpopHeader); err != nil {
		return Token{}, err
	}
	var token Token
	if authorization != nil {
		if token, err = parseAuthorization(*authorization); err != nil {
			return Token{}, err
		}
	}
	if apiKey != nil {
		if !isToken(*apiKey) {
			return Token{}, fmt.Errorf("%w: malformed x-api-key header", ErrBadCredential)
		}
		if authorization != nil && token.Value != *apiKey {
			return Token{}, fmt.Errorf("%w: different ones in authorization and x-api-key", ErrAmbiguous)
		}
		if authorization == nil {
			token = Token{Bearer, *apiKey}
		}
	}
	if token.Value == "" {
		return Token{}, ErrNoCredential
	}
	return token, nil
}

// single is the one value of a header, nil where there is none. Names are
// compared as upstreams compare them: case and '_' for '-' make no difference.
func single(h http.Header, name string) (*string, error) {
	var found *string
	for key, values := range h {
		if normal(key) != normal(name) {
			continue
		}
		for i := range values {
			if found != nil {
				return nil, fmt.Errorf("%w: more than one %s header", ErrAmbiguous, strings.ToLower(name))
			}
			found = &values[i]
		}
	}
	return found, nil
}

func parseAuthorization(value string) (Token, error) {
	scheme, credential, _ := strings.Cut(value, " ")
	for _, known := range []Scheme{Bearer, DPoP} {
		if strings.EqualFold(scheme, string(known)) && isToken(credential) {
			return Token{known, credential}, nil
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
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-._~+/=", c) >= 0:
		default:
			return false
		}
	}
	return true
}

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
