package jwstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Client is an OAuth client whose tokens are bound to its key (RFC 9449).
type Client struct {
	key *ecdsa.PrivateKey
	jwk Object
}

// NewClient makes a client with a new key.
func NewClient() *Client {
	key := newEC(elliptic.P256())
	return &Client{key: key, jwk: JWK(key.Public())}
}

// Thumbprint is what tokens of the client are bound to.
func (c *Client) Thumbprint() string { return Thumbprint(c.jwk) }

// Prove makes a proof for a POST to url with a token, issued now, its claims
// changed by each change.
func (c *Client) Prove(tb testing.TB, url, token string, change ...func(jwt.MapClaims)) string {
	tb.Helper()
	sum := sha256.Sum256([]byte(token))
	claims := jwt.MapClaims{"jti": rand.Text(), "htm": http.MethodPost, "htu": url, "iat": time.Now().Unix(), "ath": Base64(sum[:])}
	for _, f := range change {
		f(claims)
	}
	t := jwt.NewWithClaims(jwt.SigningMethodES256, claims)
	t.Header["typ"], t.Header["jwk"] = "dpop+jwt", c.jwk
	text, err := t.SignedString(c.key)
	if err != nil {
		tb.Fatal(err)
	}
	return text
}
