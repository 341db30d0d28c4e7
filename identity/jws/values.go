package jws

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

// StringList is a string or a list of strings.
type StringList []string

// UnmarshalJSON reads either form. Null and an empty list are no list.
func (l *StringList) UnmarshalJSON(raw []byte) error {
	if len(raw) > 0 && raw[0] == '"' {
		var one string
		if err := json.Unmarshal(raw, &one); err != nil {
			return err
		}
		*l = StringList{one}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(l))
}

// NumericDate is seconds since 1970, with or without a fraction (RFC 7519 §2).
type NumericDate struct{ time.Time }

// latest is the last second of the year 9999, after which RFC 3339 ends.
const latest = 253402300799

// UnmarshalJSON accepts a JSON number that is a time after 1970.
func (n *NumericDate) UnmarshalJSON(raw []byte) error {
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

// Fits reports whether a key is of the type and curve of an algorithm of RFC
// 7518 or RFC 8037. Neither the JWT libraries nor Go's ecdsa hold the curve
// against it.
func Fits(public crypto.PublicKey, algorithm string) bool {
	switch public := public.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(algorithm, "RS") || strings.HasPrefix(algorithm, "PS")
	case *ecdsa.PublicKey:
		return curves[algorithm] == public.Curve
	case ed25519.PublicKey:
		return algorithm == "EdDSA"
	}
	return false
}

var curves = map[string]elliptic.Curve{"ES256": elliptic.P256(), "ES384": elliptic.P384(), "ES512": elliptic.P521()}
