package oidc

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/jws"
)

// maxHops bounds the links of an act chain.
const maxHops = 4

// token is an access token that has been read but not verified.
type token struct {
	*jws.Token
	claims claims
}

// isAccessToken judges "typ" (RFC 9068 §2.1).
func (t *token) isAccessToken(plain bool) bool {
	switch strings.TrimPrefix(strings.ToLower(t.Header.Type), "application/") {
	case "at+jwt":
		return true
	case "jwt", "":
		return plain
	}
	return false
}

// claims are the claims that mean something here.
type claims struct {
	Issuer          string           `json:"iss"`
	Subject         string           `json:"sub"`
	Audience        jws.StringList   `json:"aud"`
	Expires         *jws.NumericDate `json:"exp"`
	NotBefore       *jws.NumericDate `json:"nbf"`
	IssuedAt        *jws.NumericDate `json:"iat"`
	ID              string           `json:"jti"`
	AuthorizedParty string           `json:"azp"`
	ClientID        string           `json:"client_id"`
	Scope           jws.StringList   `json:"scope"`
	ScopeList       jws.StringList   `json:"scp"`
	Groups          []string         `json:"groups"`
	Actor           *actor           `json:"act"`
	MayAct          *actor           `json:"may_act"`
	Confirmation    *binding         `json:"cnf"`
	Label           string           `json:"label"`
	Type            string           `json:"typ"`     // Keycloak's kind of token
	AccessTokenHash string           `json:"at_hash"` // only in ID tokens
	IdentityType    string           `json:"idtyp"`   // Entra ID: app or user
	GrantType       string           `json:"gty"`     // Auth0: client-credentials
}

// binding is the claim cnf, of whose members (RFC 7800, RFC 8705, RFC 9449) these
// two are taken.
type binding struct {
	Certificate string `json:"x5t#S256"`
	Key         string `json:"jkt"`
}

// errBound is the refusal of a token that asks for a proof nobody here can check.
var errBound = errors.New("it is bound to a key in a way that is not known here")

// UnmarshalJSON refuses what it does not understand: a binding that was passed
// over would make a bearer token of a bound one.
func (b *binding) UnmarshalJSON(raw []byte) error {
	var members map[string]jsontext.Value
	if err := json.Unmarshal(raw, &members); err != nil || len(members) == 0 {
		return errBound
	}
	for name, value := range members {
		var digest string
		if err := json.Unmarshal(value, &digest); err != nil {
			return errBound
		}
		if sum, err := base64.RawURLEncoding.Strict().DecodeString(digest); err != nil || len(sum) != sha256.Size {
			return errBound
		}
		switch name {
		case "x5t#S256":
			b.Certificate = digest
		case "jkt":
			b.Key = digest
		default:
			return errBound
		}
	}
	return nil
}

// actor is RFC 8693's act claim: who acts now, and inside it who acted before.
type actor struct {
	Issuer  string `json:"iss"`
	Subject string `json:"sub"`
	Actor   *actor `json:"act"`
}

// claimNames are the names of those claims.
var claimNames = []string{
	"iss", "sub", "aud", "exp", "nbf", "iat", "jti", "azp", "client_id", "scope", "scp", "groups",
	"act", "may_act", "cnf", "label", "typ", "at_hash", "idtyp", "gty",
}

// issuerOf is the issuer that a token names, or "".
func issuerOf(read *jws.Token) string {
	issuer, err := jsontext.AppendUnquote(nil, read.Members["iss"])
	if err != nil { // it is not there, or no string
		return ""
	}
	return string(issuer)
}

// claimsOf reads the claims of an access token strictly and verifies nothing.
func claimsOf(read *jws.Token) (*token, error) {
	t := &token{Token: read}
	if cnf, ok := read.Members["cnf"]; ok && cnf.Kind() != '{' {
		return nil, errBound // null too, which decodes to no binding
	}
	if err := read.Claims(&t.claims, claimNames); err != nil {
		return nil, err
	}
	return t, nil
}

// times are when a token is good.
type times struct{ notBefore, issued, expires time.Time }

func (c *claims) times() times {
	t := times{issued: c.IssuedAt.Time, expires: c.Expires.Time}
	if c.NotBefore != nil {
		t.notBefore = c.NotBefore.Time
	}
	return t
}

// check says why a token is not good now, or nil. Clocks may disagree a little.
func (t times) check(now time.Time) error {
	switch {
	case !now.Before(t.expires.Add(leeway)):
		return errors.New("it has expired")
	case now.Add(leeway).Before(t.notBefore):
		return errors.New("it is not valid yet")
	case now.Add(leeway).Before(t.issued):
		return errors.New("it was used before issued")
	}
	return nil
}

// bound is the binding as the chain checks it.
func (c *claims) bound() identity.Binding {
	if c.Confirmation == nil {
		return identity.Binding{}
	}
	return identity.Binding(*c.Confirmation)
}

// client is the OAuth client that the token was given to, or "".
func (c *claims) client() string {
	if c.ClientID != "" {
		return c.ClientID
	}
	return c.AuthorizedParty
}

// kind says whether a person stands behind the token. A client that got it for
// itself is a workload; whether one is an agent is for a registration to say.
func (c *claims) kind() identity.Kind {
	client := c.client()
	own := client != "" && (c.Subject == client || c.Subject == client+"@clients")
	if own || c.IdentityType == "app" || c.GrantType == "client-credentials" {
		return identity.Workload
	}
	return identity.Human
}

// scopes are the words of scope, or the members of either form of list.
func (c *claims) scopes() []string {
	var scopes []string
	for _, list := range [][]string{c.Scope, c.ScopeList} {
		for _, entry := range list {
			scopes = append(scopes, strings.Fields(entry)...)
		}
	}
	return scopes
}

// tenant is the value of the tenant claim.
func (t *token) tenant(claim string) (string, error) {
	var tenant string
	raw, ok := t.Members[claim]
	if !ok {
		return "", fmt.Errorf("claims: no tenant claim %q", claim)
	}
	if err := json.Unmarshal(raw, &tenant); err != nil || !identity.IsIdentifier(tenant) { // null is ""
		return "", fmt.Errorf("claims: tenant claim %q is not a name", claim)
	}
	return tenant, nil
}

// chain is the delegation chain, the user first and the present actor last. It
// is empty where nobody acts for another. A chain that comes back to somebody it
// has left tells no story that could be true, and one whose user lets somebody
// else act (may_act) is not what the user agreed to.
func (c *claims) chain() ([]identity.Actor, error) {
	if c.MayAct != nil && !identity.IsName(c.MayAct.Subject) {
		return nil, errors.New("claims: may_act names nobody")
	}
	if c.Actor == nil {
		return nil, nil
	}
	chain := []identity.Actor{{Type: "user", Subject: c.Subject, Issuer: c.Issuer}}
	for a := c.Actor; a != nil; a = a.Actor {
		if !identity.IsName(a.Subject) {
			return nil, errors.New("claims: an actor without a name")
		}
		if len(chain) > maxHops {
			return nil, fmt.Errorf("claims: more than %d actors", maxHops)
		}
		next := a.identity(c.Issuer)
		for _, before := range chain {
			if before.Subject == next.Subject && before.Issuer == next.Issuer {
				return nil, errors.New("claims: an actor stands twice in the chain")
			}
		}
		chain = append(chain, next)
	}
	slices.Reverse(chain[1:]) // the outermost claim is the present actor
	if c.MayAct != nil && c.MayAct.identity(c.Issuer) != chain[len(chain)-1] {
		return nil, errors.New("claims: the actor is not the one that may_act names")
	}
	return chain, nil
}

// identity is who an actor is; where it does not say whose name it has, that is
// the token's issuer's. A SPIFFE ID says it itself.
func (a *actor) identity(issuer string) identity.Actor {
	if rest, ok := strings.CutPrefix(a.Subject, "spiffe://"); ok {
		domain, _, _ := strings.Cut(rest, "/")
		return identity.Actor{Type: "workload", Subject: a.Subject, Issuer: domain}
	}
	if a.Issuer != "" {
		issuer = a.Issuer
	}
	return identity.Actor{Type: "agent", Subject: a.Subject, Issuer: issuer}
}
