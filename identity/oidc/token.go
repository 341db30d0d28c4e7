package oidc

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sallyport-ai/sallyport/identity"
)

// Limits of what is looked at before a signature is verified.
const (
	maxTokenBytes = 16 << 10
	maxDepth      = 16
	maxMembers    = 512 // names and values in header or claims
	maxString     = 512 // bytes of an identifier
	maxHops       = 4   // links of an act chain
)

// token is a JWT that has been read but not verified.
type token struct {
	header header
	claims claims
	signed string // header.payload, what the signature covers
}

// header is a JOSE header.
type header struct {
	Algorithm string `json:"alg"`
	KeyID     string `json:"kid"`
	Type      string `json:"typ"`
}

// forbidden are header parameters that bring their own keys, change what is
// signed, say that something must be understood, or belong to encryption and
// nesting. Others are ignored, as RFC 7515 §4 asks.
var forbidden = []string{
	"jku", "jwk", "x5u", "x5c", "crit", "b64", "cty", "zip",
	"enc", "epk", "apu", "apv", "p2s", "p2c", "iv", "tag",
}

// isAccessToken judges "typ" (RFC 9068 §2.1).
func (h *header) isAccessToken(plain bool) bool {
	switch strings.TrimPrefix(strings.ToLower(h.Type), "application/") {
	case "at+jwt":
		return true
	case "jwt", "":
		return plain
	}
	return false
}

// claims are the claims that mean something here.
type claims struct {
	Issuer          string         `json:"iss"`
	Subject         string         `json:"sub"`
	Audience        stringList     `json:"aud"`
	Expires         *numericDate   `json:"exp"`
	NotBefore       *numericDate   `json:"nbf"`
	IssuedAt        *numericDate   `json:"iat"`
	ID              string         `json:"jti"`
	AuthorizedParty string         `json:"azp"`
	ClientID        string         `json:"client_id"`
	Scope           stringList     `json:"scope"`
	ScopeList       stringList     `json:"scp"`
	Groups          []string       `json:"groups"`
	Actor           *actor         `json:"act"`
	Confirmation    jsontext.Value `json:"cnf"`
	Label           string         `json:"label"`
	Type            string         `json:"typ"`     // Keycloak's kind of token
	AccessTokenHash string         `json:"at_hash"` // only in ID tokens
	IdentityType    string         `json:"idtyp"`   // Entra ID: app or user
	GrantType       string         `json:"gty"`     // Auth0: client-credentials

	all map[string]jsontext.Value
}

// actor is RFC 8693's act claim: who acts now, and inside it who acted before.
type actor struct {
	Issuer  string `json:"iss"`
	Subject string `json:"sub"`
	Actor   *actor `json:"act"`
}

// The names that must not appear in another spelling: a library or an upstream
// that compares names without case would read another value.
var (
	headerNames = append([]string{"alg", "kid", "typ"}, forbidden...)
	claimNames  = []string{
		"iss", "sub", "aud", "exp", "nbf", "iat", "jti", "azp", "client_id", "scope", "scp", "groups",
		"act", "cnf", "label", "typ", "at_hash", "idtyp", "gty",
	}
)

// parse reads a JWT strictly and verifies nothing.
func parse(text string) (*token, error) {
	if len(text) > maxTokenBytes {
		return nil, fmt.Errorf("longer than %d bytes", maxTokenBytes)
	}
	parts := strings.Split(text, ".")
	if len(parts) != 3 || parts[2] == "" {
		return nil, errors.New("not three parts: no signed JWT")
	}
	t := &token{signed: text[:len(text)-len(parts[2])-1]}

	names, err := decode(parts[0], headerNames, &t.header)
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	for _, name := range forbidden {
		if _, ok := names[name]; ok {
			return nil, fmt.Errorf("header: parameter %q is not accepted", name)
		}
	}
	if !isIdentifier(t.header.KeyID) {
		return nil, errors.New("header: kid is missing or odd")
	}
	if t.claims.all, err = decode(parts[1], claimNames, &t.claims); err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	return t, nil
}

// decode reads one base64url part into into and returns its top-level members.
// The names given must not appear in another spelling.
func decode(part string, names []string, into any) (map[string]jsontext.Value, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(part)
	if err != nil || strings.ContainsAny(part, "\r\n") {
		return nil, errors.New("not base64url")
	}
	if err := scan(raw); err != nil {
		return nil, err
	}
	var members map[string]jsontext.Value
	if err := json.Unmarshal(raw, &members); err != nil || members == nil {
		return nil, errors.New("not a JSON object")
	}
	if err := checkNames(members, names); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		// The library's text may quote the value.
		return nil, errors.New("a value of an unexpected type")
	}
	return members, nil
}

// scan walks the whole text. The decoder refuses repeated names and invalid
// UTF-8; depth and number are bounded here.
func scan(raw []byte) error {
	d := jsontext.NewDecoder(bytes.NewReader(raw))
	for count := 0; ; count++ {
		_, err := d.ReadToken()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return errors.New("malformed JSON, or a name given twice")
		case d.StackDepth() > maxDepth:
			return fmt.Errorf("nested deeper than %d", maxDepth)
		case count > maxMembers:
			return fmt.Errorf("more than %d names and values", maxMembers)
		}
	}
}

// checkNames refuses names that differ from each other, or from one of those
// given, in spelling alone.
func checkNames(members map[string]jsontext.Value, names []string) error {
	folded := make(map[string]bool, len(members))
	for name := range members {
		fold := strings.ToLower(strings.ToUpper(name)) // long s, kelvin sign and the like included
		if folded[fold] {
			return errors.New("two names that differ in case alone")
		}
		folded[fold] = true
	}
	for _, name := range names {
		if _, exact := members[name]; folded[name] && !exact {
			return fmt.Errorf("%q in another spelling", name)
		}
	}
	return nil
}

// stringList is a string or a list of strings.
type stringList []string

// UnmarshalJSON reads either form. Null and an empty list are no list.
func (l *stringList) UnmarshalJSON(raw []byte) error {
	if len(raw) > 0 && raw[0] == '"' {
		var one string
		if err := json.Unmarshal(raw, &one); err != nil {
			return err
		}
		*l = stringList{one}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(l))
}

// numericDate is seconds since 1970, with or without a fraction (RFC 7519 §2).
type numericDate struct{ time.Time }

// latest is the last second of the year 9999, after which RFC 3339 ends.
const latest = 253402300799

// UnmarshalJSON accepts a JSON number that is a time after 1970.
func (n *numericDate) UnmarshalJSON(raw []byte) error {
	var seconds float64
	if err := json.Unmarshal(raw, &seconds); err != nil {
		return err
	}
	if !(seconds > 0 && seconds <= latest) {
		return errors.New("not a time")
	}
	whole, fraction := math.Modf(seconds)
	n.Time = time.Unix(int64(whole), int64(fraction*1e9))
	return nil
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
func (c *claims) tenant(claim string) (string, error) {
	var tenant string
	raw, ok := c.all[claim]
	if !ok {
		return "", fmt.Errorf("claims: no tenant claim %q", claim)
	}
	if err := json.Unmarshal(raw, &tenant); err != nil || raw.Kind() != '"' || !isIdentifier(tenant) {
		return "", fmt.Errorf("claims: tenant claim %q is not a name", claim)
	}
	return tenant, nil
}

// chain is the delegation chain, the user first and the present actor last. It
// is empty where nobody acts for another.
func (c *claims) chain() ([]identity.Actor, error) {
	if c.Actor == nil {
		return nil, nil
	}
	var hops []identity.Actor
	for a := c.Actor; a != nil; a = a.Actor {
		if !isName(a.Subject) {
			return nil, errors.New("claims: an actor without a name")
		}
		if len(hops) == maxHops {
			return nil, fmt.Errorf("claims: more than %d actors", maxHops)
		}
		hops = append(hops, identity.Actor{Type: actorType(a.Subject), Subject: a.Subject})
	}
	chain := []identity.Actor{{Type: "user", Subject: c.Subject}}
	for i := len(hops) - 1; i >= 0; i-- {
		chain = append(chain, hops[i])
	}
	return chain, nil
}

func actorType(subject string) string {
	if strings.HasPrefix(subject, "spiffe://") {
		return "workload"
	}
	return "agent"
}

// isName reports whether s is a name that records and policies can hold:
// bounded, not empty, nothing unprintable.
func isName(s string) bool {
	return s != "" && len(s) <= maxString && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// isIdentifier reports whether s is short printable ASCII without spaces.
func isIdentifier(s string) bool {
	if s == "" || len(s) > maxString {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
