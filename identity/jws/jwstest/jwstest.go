// Package jwstest makes the keys, key sets and tokens of tests, also tokens that
// no honest signer would make.
//
// Start at [Draft] for a token that lies, at [NewClient] for an OAuth client
// that proves that it holds its key.
package jwstest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"testing"

	"github.com/golang-jwt/jwt/v5"
)

// Object is a JSON object.
type Object = map[string]any

// Base64 is how a JWS spells bytes.
func Base64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// Keys are the same in every test of a process: making RSA keys takes long.
var Keys = sync.OnceValue(func() (k struct {
	EC, EC2, EC384 *ecdsa.PrivateKey
	RSA, Weak      *rsa.PrivateKey // Weak has 1024 bits
	Ed             ed25519.PrivateKey
},
) {
	k.EC, k.EC2, k.EC384 = newEC(elliptic.P256()), newEC(elliptic.P256()), newEC(elliptic.P384())
	k.RSA, k.Weak = newRSA(2048), newRSA(1024)
	var err error
	_, k.Ed, err = ed25519.GenerateKey(rand.Reader)
	must(err)
	return k
})

func newEC(curve elliptic.Curve) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	must(err)
	return key
}

func newRSA(bits int) *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, bits)
	must(err)
	return key
}

// must is for what can fail only if the test is wrong.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// JWK is a public key as RFC 7517 and RFC 8037 have it, without a name or a use.
func JWK(public crypto.PublicKey) Object {
	switch p := public.(type) {
	case *ecdsa.PublicKey:
		point, err := p.Bytes() // 4, x, y
		must(err)
		half := len(point) / 2
		return Object{"kty": "EC", "crv": p.Params().Name, "x": Base64(point[1 : 1+half]), "y": Base64(point[1+half:])}
	case *rsa.PublicKey:
		return Object{"kty": "RSA", "n": Base64(p.N.Bytes()), "e": Base64(big.NewInt(int64(p.E)).Bytes())}
	case ed25519.PublicKey:
		return Object{"kty": "OKP", "crv": "Ed25519", "x": Base64(p)}
	}
	panic(fmt.Sprintf("no JWK of a %T", public))
}

// Thumbprint is that of RFC 7638, written out by hand.
func Thumbprint(jwk Object) string {
	var text string
	switch jwk["kty"] {
	case "EC":
		text = fmt.Sprintf(`{"crv":%q,"kty":"EC","x":%q,"y":%q}`, jwk["crv"], jwk["x"], jwk["y"])
	case "RSA":
		text = fmt.Sprintf(`{"e":%q,"kty":"RSA","n":%q}`, jwk["e"], jwk["n"])
	case "OKP":
		text = fmt.Sprintf(`{"crv":%q,"kty":"OKP","x":%q}`, jwk["crv"], jwk["x"])
	}
	sum := sha256.Sum256([]byte(text))
	return Base64(sum[:])
}

// PEM is a public key as a file of PEM has it.
func PEM(public crypto.PublicKey) []byte {
	der, err := x509.MarshalPKIXPublicKey(public)
	must(err)
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// Draft is a token before it is signed.
type Draft struct {
	Header, Claims Object
	Method         jwt.SigningMethod
	Key            any
	RawHeader      string // in place of Header
	RawClaims      string // in place of Claims
}

// Sign makes the token. That its header says another algorithm than Method is
// no error.
func (d *Draft) Sign(tb testing.TB) string {
	tb.Helper()
	part := func(raw string, o Object) string {
		if raw == "" {
			b, err := json.Marshal(o)
			if err != nil {
				tb.Fatal(err)
			}
			raw = string(b)
		}
		return Base64([]byte(raw))
	}
	text := part(d.RawHeader, d.Header) + "." + part(d.RawClaims, d.Claims)
	signature, err := d.Method.Sign(text, d.Key)
	if err != nil {
		tb.Fatal(err)
	}
	return text + "." + Base64(signature)
}

// Insert is an object with text in front of its closing brace, which may be a
// member that the object has already.
func Insert(o Object, text string) string {
	b, err := json.Marshal(o)
	must(err)
	return strings.TrimSuffix(string(b), "}") + "," + text + "}"
}
