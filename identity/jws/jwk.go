package jws

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Limits of an RSA key.
const (
	minRSABits = 2048
	maxRSABits = 8192
	minRSAExp  = 65537
)

// JWK is a JSON Web Key (RFC 7517, RFC 7518 §6, RFC 8037), as much of it as a
// public key for signatures has.
type JWK struct {
	Type       string   `json:"kty"`
	ID         string   `json:"kid"`
	Use        string   `json:"use"`
	Operations []string `json:"key_ops"`
	Algorithm  string   `json:"alg"`
	Curve      string   `json:"crv"`
	N          string   `json:"n"`
	E          string   `json:"e"`
	X          string   `json:"x"`
	Y          string   `json:"y"`

	// The private and symmetric members are kept only to be refused.
	D  jsontext.Value `json:"d"`
	P  jsontext.Value `json:"p"`
	Q  jsontext.Value `json:"q"`
	DP jsontext.Value `json:"dp"`
	DQ jsontext.Value `json:"dq"`
	QI jsontext.Value `json:"qi"`
	K  jsontext.Value `json:"k"`
}

var jwkNames = []string{
	"kty", "kid", "use", "key_ops", "alg", "crv", "n", "e", "x", "y",
	"d", "p", "q", "dp", "dq", "qi", "k", "oth",
}

// PublicKey returns the key, or why it is none to verify signatures by: it
// holds a secret, is not for signatures, malformed, weak or not on its curve.
func (j *JWK) PublicKey() (crypto.PublicKey, error) {
	switch {
	case j.holdsSecret():
		return nil, errors.New("it holds a secret, and a published secret is none")
	case j.Use != "" && j.Use != "sig":
		return nil, errors.New("not for signatures")
	case len(j.Operations) > 0 && !slices.Contains(j.Operations, "verify"):
		return nil, errors.New("not for verifying")
	}
	switch j.Type {
	case "RSA":
		return j.rsa()
	case "EC":
		return j.ecdsa()
	case "OKP":
		x, err := bytesOf(j.X)
		if err != nil || j.Curve != "Ed25519" || len(x) != ed25519.PublicKeySize {
			return nil, errors.New("no Ed25519 key")
		}
		return ed25519.PublicKey(x), nil
	}
	return nil, fmt.Errorf("unknown type %.16q", j.Type)
}

func (j *JWK) holdsSecret() bool {
	for _, member := range []jsontext.Value{j.D, j.P, j.Q, j.DP, j.DQ, j.QI, j.K} {
		if len(member) > 0 {
			return true
		}
	}
	return j.Type == "oct"
}

func (j *JWK) rsa() (crypto.PublicKey, error) {
	n, errN := bytesOf(j.N)
	e, errE := bytesOf(j.E)
	if errN != nil || errE != nil || len(e) > 4 {
		return nil, errors.New("malformed RSA key")
	}
	modulus, exponent := new(big.Int).SetBytes(n), new(big.Int).SetBytes(e).Int64()
	switch {
	case modulus.BitLen() < minRSABits || modulus.BitLen() > maxRSABits:
		return nil, fmt.Errorf("RSA key of %d bits, not between %d and %d", modulus.BitLen(), minRSABits, maxRSABits)
	case modulus.Bit(0) == 0:
		return nil, errors.New("even RSA modulus")
	case fromBrokenGenerator(modulus):
		return nil, errors.New("RSA key of a generator that is known to be broken (ROCA)")
	case exponent < minRSAExp || exponent%2 == 0 || exponent > 1<<31-1:
		return nil, errors.New("weak RSA exponent")
	}
	return &rsa.PublicKey{N: modulus, E: int(exponent)}, nil
}

func (j *JWK) ecdsa() (crypto.PublicKey, error) {
	var curve elliptic.Curve
	for _, c := range []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		if c.Params().Name == j.Curve {
			curve = c
		}
	}
	if curve == nil {
		return nil, fmt.Errorf("unknown curve %.16q", j.Curve)
	}
	x, errX := bytesOf(j.X)
	y, errY := bytesOf(j.Y)
	size := (curve.Params().BitSize + 7) / 8
	if errX != nil || errY != nil || len(x) != size || len(y) != size {
		return nil, errors.New("malformed coordinates")
	}
	// ParseUncompressedPublicKey refuses a point that is not on the curve.
	return ecdsa.ParseUncompressedPublicKey(curve, slices.Concat([]byte{4}, x, y))
}

// Thumbprint is the key's SHA-256 thumbprint in base64url (RFC 7638, RFC 8037
// §2). It is of the members as they are spelt: only that of a key which
// [JWK.PublicKey] returns means anything.
func (j *JWK) Thumbprint() string {
	var members any
	switch j.Type {
	case "RSA":
		members = struct {
			E string `json:"e"`
			T string `json:"kty"`
			N string `json:"n"`
		}{j.E, j.Type, j.N}
	case "EC":
		members = struct {
			C string `json:"crv"`
			T string `json:"kty"`
			X string `json:"x"`
			Y string `json:"y"`
		}{j.Curve, j.Type, j.X, j.Y}
	default:
		members = struct {
			C string `json:"crv"`
			T string `json:"kty"`
			X string `json:"x"`
		}{j.Curve, j.Type, j.X}
	}
	text, err := json.Marshal(members)
	if err != nil {
		return "" // strings that are no UTF-8, which no reading lets in
	}
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

func bytesOf(text string) ([]byte, error) { return base64.RawURLEncoding.Strict().DecodeString(text) }
