package oidc

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/jws"
)

// Limits of a key set.
const (
	maxKeys    = 64
	minRSABits = 2048
	maxRSABits = 8192
	minRSAExp  = 65537
)

// key is a public key that may verify this issuer's tokens.
type key struct {
	public    crypto.PublicKey
	algorithm string // the only one it is for, or "" for any that suits its type
}

// fits reports whether the key may verify a signature of the algorithm.
func (k key) fits(algorithm string) bool {
	return (k.algorithm == "" || k.algorithm == algorithm) && jws.Fits(k.public, algorithm)
}

// jwk is one member of a JWK set (RFC 7517, RFC 7518 §6, RFC 8037).
type jwk struct {
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
	D          string   `json:"d"`
	K          string   `json:"k"`
}

// parseKeys reads a JWK set. Keys that are not for verifying signatures of one
// of the algorithms, and keys too weak to, are left out with a reason in
// skipped; so is every key of an ID that two different keys claim. A set of
// which nothing remains is an error.
func parseKeys(raw []byte, algorithms []string) (keys map[string]key, skipped []string, err error) {
	var set struct {
		Keys []jwk `json:"keys"`
	}
	if err := json.Unmarshal(raw, &set); err != nil {
		return nil, nil, errors.New("not a JWK set")
	}
	if len(set.Keys) > maxKeys {
		return nil, nil, fmt.Errorf("more than %d keys", maxKeys)
	}
	keys = make(map[string]key, len(set.Keys))
	contested := make(map[string]bool)
	for _, j := range set.Keys {
		k, err := j.key(algorithms)
		if err != nil {
			skipped = append(skipped, fmt.Sprintf("%.64q: %v", j.ID, err))
			continue
		}
		if other, ok := keys[j.ID]; ok && !other.equal(k) {
			contested[j.ID] = true
		}
		keys[j.ID] = k
	}
	for id := range contested {
		delete(keys, id)
		skipped = append(skipped, fmt.Sprintf("%.64q: two different keys have this ID", id))
	}
	if len(keys) == 0 {
		return nil, skipped, fmt.Errorf("no usable key among %d: %s", len(set.Keys), strings.Join(skipped, "; "))
	}
	return keys, skipped, nil
}

func (k key) equal(other key) bool {
	public, ok := k.public.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.algorithm == other.algorithm && public.Equal(other.public)
}

func (j *jwk) key(algorithms []string) (key, error) {
	switch {
	case !identity.IsIdentifier(j.ID):
		return key{}, errors.New("kid is missing or odd")
	case j.D != "" || j.K != "" || j.Type == "oct":
		return key{}, errors.New("it holds a secret, and a published secret is none")
	case j.Use != "" && j.Use != "sig":
		return key{}, errors.New("not for signatures")
	case len(j.Operations) > 0 && !slices.Contains(j.Operations, "verify"):
		return key{}, errors.New("not for verifying")
	}
	public, err := j.public()
	if err != nil {
		return key{}, err
	}
	k := key{public: public, algorithm: j.Algorithm}
	if !slices.ContainsFunc(algorithms, k.fits) {
		return key{}, errors.New("for none of this issuer's algorithms")
	}
	return k, nil
}

func (j *jwk) public() (crypto.PublicKey, error) {
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

func (j *jwk) rsa() (crypto.PublicKey, error) {
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
	case exponent < minRSAExp || exponent%2 == 0 || exponent > 1<<31-1:
		return nil, errors.New("weak RSA exponent")
	}
	return &rsa.PublicKey{N: modulus, E: int(exponent)}, nil
}

func (j *jwk) ecdsa() (crypto.PublicKey, error) {
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

func bytesOf(text string) ([]byte, error) { return base64.RawURLEncoding.Strict().DecodeString(text) }
