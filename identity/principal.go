// Package identity says who is calling.
//
// Start at [Principal], the answer, and [Chain], the order in which kinds of
// credential are tried. Each kind has a package of its own below this one; the
// process's own identity is package workload.
package identity

import "time"

// Kind is what a caller is.
type Kind string

// The kinds of caller.
const (
	Human    Kind = "human"
	Workload Kind = "workload"
	Agent    Kind = "agent"
)

// Method is how a caller proved who it is.
type Method string

// The methods.
const (
	OIDC     Method = "oidc"
	X509SVID Method = "x509_svid"
	JWTSVID  Method = "jwt_svid"
	APIKey   Method = "api_key"
)

// Actor is one link of a delegation chain (RFC 8693 §4.1): first on whose behalf
// all is done, last who acts now.
type Actor struct {
	Type    string // user, agent, workload
	Subject string
	Issuer  string // URL of who names it so, or a trust domain
}

// Principal is an authenticated caller. The zero value is nobody.
type Principal struct {
	Tenant      string // empty until a registration assigns it, for a caller known by SPIFFE ID alone
	Subject     string
	Kind        Kind
	Method      Method
	Issuer      string // issuer URL, or trust domain
	Groups      []string
	Scopes      []string
	Chain       []Actor
	Workload    string // SPIFFE ID, where one was proven
	ClientID    string // OAuth client, where the token names one
	Label       string // sensitivity that the issuer put into a signed claim, or empty
	Fingerprint string // hex SHA-256 of the credential's public part, for records
	Bound       Binding
	TokenID     string    // jti, where the token has one
	IssuedAt    time.Time // of a token; zero for other credentials, which are withdrawn otherwise
	Expires     time.Time
}

// IsZero reports whether p is nobody.
func (p Principal) IsZero() bool { return p.Subject == "" && p.Workload == "" }
