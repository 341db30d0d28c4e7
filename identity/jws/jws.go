// Package jws reads signed JWTs strictly.
//
// Start at [Parse], and [Token.Verify] for the signature. A JWT library's options leave much open, so whoever
// verifies a token reads it here first: what is merely odd is refused before
// anything looks at a key, and what is accepted every reader reads alike. That
// rules out repeated and differently spelt names, header parameters that point
// at keys or change the rules, several parts, trailing text, depth and size.
//
// Which claims must be there, and what they must say, is for the kind of token
// to tell.
package jws

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/golang-jwt/jwt/v5"

	"github.com/sallyport-ai/sallyport/identity"
)

// Limits of what is looked at before a signature is verified.
const (
	maxTokenBytes = 16 << 10
	maxDepth      = 16
	maxMembers    = 512 // names and values in header or claims
)

// Token is a JWT in compact form that has been read but not verified.
type Token struct {
	Header Header
	// Members are the claims as they stand, by name.
	Members map[string]jsontext.Value
	// Signed is header.payload, what the signature covers.
	Signed string

	payload   []byte
	signature []byte
}

// Header is a JOSE header.
type Header struct {
	Algorithm string `json:"alg"`
	KeyID     string `json:"kid"`
	Type      string `json:"typ"`
}

// forbidden are header parameters that bring their own keys, change what is
// signed, say that something must be understood, or belong to encryption and
// nesting. Others are ignored, as RFC 7515 §4 asks.
var forbidden = []string{
	"jku", jwkParameter, "x5u", "x5c", "crit", "b64", "cty", "zip",
	"enc", "epk", "apu", "apv", "p2s", "p2c", "iv", "tag",
}

// jwkParameter carries the signer's key. Only a proof of its possession has it.
const jwkParameter = "jwk"

var headerNames = append([]string{"alg", "kid", "typ"}, forbidden...)

// Parse reads a JWT. It must have a signature and name its key.
func Parse(text string) (*Token, error) {
	t, names, err := read(text)
	if err != nil {
		return nil, err
	}
	if _, ok := names[jwkParameter]; ok {
		return nil, notAccepted(jwkParameter)
	}
	if !identity.IsIdentifier(t.Header.KeyID) {
		return nil, errors.New("header: kid is missing or odd")
	}
	return t, nil
}

// ParseProof reads a JWT that carries the public key of its signer, as a DPoP
// proof does (RFC 9449 §4.2). The key has been read but proves nothing yet.
func ParseProof(text string) (*Token, *JWK, error) {
	t, names, err := read(text)
	if err != nil {
		return nil, nil, err
	}
	raw, ok := names[jwkParameter]
	if !ok {
		return nil, nil, errors.New("header: no key in it")
	}
	var members map[string]jsontext.Value
	if err := json.Unmarshal(raw, &members); err != nil || members == nil {
		return nil, nil, errors.New("header: jwk is not an object")
	}
	var key JWK
	if err := decode(raw, members, jwkNames, &key); err != nil {
		return nil, nil, fmt.Errorf("header: jwk: %w", err)
	}
	return t, &key, nil
}

// read takes a JWT apart, and returns the members of its header too.
func read(text string) (*Token, map[string]jsontext.Value, error) {
	if len(text) > maxTokenBytes {
		return nil, nil, fmt.Errorf("longer than %d bytes", maxTokenBytes)
	}
	head, rest, _ := strings.Cut(text, ".")
	body, signature, ok := strings.Cut(rest, ".")
	if !ok || signature == "" || strings.Contains(signature, ".") {
		return nil, nil, errors.New("not three parts: no signed JWT")
	}
	t := &Token{Signed: text[:len(head)+1+len(body)]}
	var err error
	if t.signature, err = unbase64(signature); err != nil {
		return nil, nil, fmt.Errorf("signature: %w", err)
	}
	raw, names, err := object(head)
	if err == nil {
		err = decode(raw, names, headerNames, &t.Header)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("header: %w", err)
	}
	for _, name := range forbidden {
		if _, ok := names[name]; ok && name != jwkParameter {
			return nil, nil, notAccepted(name)
		}
	}
	if t.payload, t.Members, err = object(body); err != nil {
		return nil, nil, fmt.Errorf("claims: %w", err)
	}
	return t, names, nil
}

func notAccepted(name string) error { return fmt.Errorf("header: parameter %q is not accepted", name) }

// ErrSignature says that a signature does not hold.
var ErrSignature = errors.New("signature is invalid")

// Verify checks the signature by the key, which must be one for the token's
// algorithm. Which algorithms and keys may be used is for the caller to say
// before.
func (t *Token) Verify(public crypto.PublicKey) error {
	if !Fits(public, t.Header.Algorithm) {
		return errors.New("the key is not one for the token's algorithm")
	}
	method := jwt.GetSigningMethod(t.Header.Algorithm)
	if method == nil || method.Verify(t.Signed, t.signature, public) != nil {
		return ErrSignature
	}
	return nil
}

// Claims decodes the claims into the struct that into points to. The names
// given, those that mean something to the caller, must not appear in another
// spelling: a library or an upstream that compares names without case would
// read another value.
func (t *Token) Claims(into any, names []string) error {
	if err := decode(t.payload, t.Members, names, into); err != nil {
		return fmt.Errorf("claims: %w", err)
	}
	return nil
}

// object decodes one base64url part and returns its text and members.
func object(part string) ([]byte, map[string]jsontext.Value, error) {
	raw, err := unbase64(part)
	if err != nil {
		return nil, nil, err
	}
	if err := scan(raw); err != nil {
		return nil, nil, err
	}
	var members map[string]jsontext.Value
	if err := json.Unmarshal(raw, &members); err != nil || members == nil {
		return nil, nil, errors.New("not a JSON object")
	}
	return raw, members, nil
}

// unbase64 takes the one spelling that its bytes have.
func unbase64(part string) ([]byte, error) {
	raw, err := bytesOf(part)
	if err != nil || strings.ContainsAny(part, "\r\n") {
		return nil, errors.New("not base64url")
	}
	return raw, nil
}

func decode(raw []byte, members map[string]jsontext.Value, names []string, into any) error {
	if err := checkNames(members, names); err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		// The library's text may quote the value.
		return errors.New("a value of an unexpected type")
	}
	return nil
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
