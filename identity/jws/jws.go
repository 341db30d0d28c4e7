// Package jws reads signed JWTs strictly.
//
// Start at [Parse], and [Token.Verify] for the signature. A JWT library's options
// leave much open, so whoever verifies a token reads it here first: what is merely
// odd is refused before anything looks at a key, and what is accepted every reader
// reads alike. That rules out repeated and differently spelt names, header
// parameters that point at keys or change the rules, several parts, trailing text,
// depth and size.
//
// Which claims must be there, and what they must say, is for the kind of token
// to tell.
package jws

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

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
	Algorithm string // alg
	KeyID     string // kid
	Type      string // typ
}

// forbidden are header parameters that bring their own keys, change what is
// signed, say that something must be understood, or belong to encryption and
// nesting. Others are ignored, as RFC 7515 §4 asks.
var forbidden = []string{
	"jku", jwkParameter, "x5u", "x5c", "crit", "b64", "cty", "zip",
	"enc", "epk", "apu", "apv", "p2s", "p2c", "iv", "tag",
}

// Algorithms are the signature algorithms that a token may have: asymmetric ones
// all. Which of them count is for the caller to narrow.
var Algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// jwkParameter carries the signer's key. Only a proof of its possession has it.
const jwkParameter = "jwk"

var headerNames = append([]string{"alg", "kid", "typ"}, forbidden...)

// Parse reads a JWT. It must have a signature and name its key.
func Parse(text string) (*Token, error) {
	t, _, err := read(text, func(h *Header, names map[string]jsontext.Value) error {
		if _, ok := names[jwkParameter]; ok {
			return notAccepted(jwkParameter)
		}
		if !identity.IsIdentifier(h.KeyID) {
			return errors.New("header: kid is missing or odd")
		}
		return nil
	})
	return t, err
}

// ParseProof reads a JWT that carries the public key of its signer, as a DPoP
// proof does (RFC 9449 §4.2). The key has been read but proves nothing yet.
func ParseProof(text string) (*Token, *JWK, error) {
	t, names, err := read(text, func(_ *Header, names map[string]jsontext.Value) error {
		if _, ok := names[jwkParameter]; !ok {
			return errors.New("header: no key in it")
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	raw := names[jwkParameter]
	members, err := membersOf(raw, len(jwkNames))
	if err != nil {
		return nil, nil, errors.New("header: jwk is not an object")
	}
	var key JWK
	if err := decode(raw, members, jwkNames, &key); err != nil {
		return nil, nil, fmt.Errorf("header: jwk: %w", err)
	}
	return t, &key, nil
}

// read takes a JWT apart, and returns the members of its header too. What is
// wrong with a header, by admits too, is found before anything else is looked at.
func read(text string, admits func(*Header, map[string]jsontext.Value) error) (*Token, map[string]jsontext.Value, error) {
	t, names, body, err := open(text, admits)
	if err != nil {
		return nil, nil, err
	}
	if t.payload, t.Members, err = object(body); err != nil {
		return nil, nil, fmt.Errorf("claims: %w", err)
	}
	return t, names, nil
}

// open reads header and signature, and leaves the body alone.
func open(text string, admits func(*Header, map[string]jsontext.Value) error) (t *Token, names map[string]jsontext.Value, body string, err error) {
	if len(text) > maxTokenBytes {
		return nil, nil, "", fmt.Errorf("longer than %d bytes", maxTokenBytes)
	}
	head, rest, _ := strings.Cut(text, ".")
	body, signature, ok := strings.Cut(rest, ".")
	if !ok || signature == "" || strings.Contains(signature, ".") {
		return nil, nil, "", errors.New("not three parts: no signed JWT")
	}
	t = &Token{Signed: text[:len(head)+1+len(body)]}
	if _, names, err = object(head); err == nil {
		err = t.Header.read(names)
	}
	if err != nil {
		return nil, nil, "", fmt.Errorf("header: %w", err)
	}
	for name := range names {
		if name != jwkParameter && slices.Contains(forbidden, name) {
			return nil, nil, "", notAccepted(name)
		}
	}
	if !slices.Contains(Algorithms, t.Header.Algorithm) {
		return nil, nil, "", fmt.Errorf("header: algorithm %.16q is not accepted", t.Header.Algorithm)
	}
	if err := admits(&t.Header, names); err != nil {
		return nil, nil, "", err
	}
	if t.signature, err = unbase64(signature); err != nil {
		return nil, nil, "", fmt.Errorf("signature: %w", err)
	}
	return t, names, body, nil
}

// read takes the parameters that mean something here.
func (h *Header) read(members map[string]jsontext.Value) error {
	if err := checkNames(members, headerNames); err != nil {
		return err
	}
	for _, p := range [...]struct {
		name string
		into *string
	}{{"alg", &h.Algorithm}, {"kid", &h.KeyID}, {"typ", &h.Type}} {
		value, ok := members[p.name]
		if !ok {
			continue
		}
		var err error
		if *p.into, err = unquote(value); err != nil { // no string
			return errUnexpectedType
		}
	}
	return nil
}

// errUnexpectedType does not quote the value, as the library's text may.
var errUnexpectedType = errors.New("a value of an unexpected type")

func notAccepted(name string) error { return fmt.Errorf("header: parameter %q is not accepted", name) }

// methods verify signatures of the [Algorithms].
var methods = func() map[string]jwt.SigningMethod {
	methods := make(map[string]jwt.SigningMethod, len(Algorithms))
	for _, name := range Algorithms {
		methods[name] = jwt.GetSigningMethod(name)
		if pss, ok := methods[name].(*jwt.SigningMethodRSAPSS); ok {
			// The library takes a salt of any length, RFC 7518 §3.5 one alone.
			strict := *pss
			strict.VerifyOptions = &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash}
			methods[name] = &strict
		}
	}
	return methods
}()

// ErrSignature says that a signature does not hold.
var ErrSignature = errors.New("signature is invalid")

// Verify checks the signature by the key, which must be one for the token's
// algorithm. Which algorithms and keys may be used is for the caller to say
// before.
func (t *Token) Verify(public crypto.PublicKey) error {
	if !Fits(public, t.Header.Algorithm) {
		return errors.New("the key is not one for the token's algorithm")
	}
	method := methods[t.Header.Algorithm]
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
	if text := bytes.TrimLeft(raw, " \t\r\n"); len(text) == 0 || text[0] != '{' {
		return nil, nil, errNotObject // what most noise is: the decoder's reasons for it would cost more
	}
	count, err := bounded(raw)
	if err != nil {
		return nil, nil, err
	}
	members, err := membersOf(raw, count)
	return raw, members, err
}

var (
	errNotObject = errors.New("not a JSON object")
	errMalformed = errors.New("malformed JSON, or a name given twice")
)

// decoders are used again and again, for text that is mostly refused at once.
var decoders = sync.Pool{New: func() any { return new(jsontext.Decoder) }}

// membersOf reads an object and nothing after it. The decoder refuses repeated
// names, at every depth, and invalid UTF-8. Values are parts of raw. About how
// many members there are is for the caller to guess.
func membersOf(raw []byte, about int) (map[string]jsontext.Value, error) {
	d := decoders.Get().(*jsontext.Decoder)
	defer decoders.Put(d)
	d.Reset(bytes.NewBuffer(raw))
	if open, err := d.ReadToken(); err != nil {
		return nil, errMalformed
	} else if open.Kind() != '{' {
		return nil, errNotObject
	}
	members := make(map[string]jsontext.Value, min(about, 32)) // more are made room for when they are there
	for d.PeekKind() == '"' {
		name, err := d.ReadValue()
		if err != nil {
			return nil, errMalformed
		}
		key, err := unquote(name)
		if err != nil {
			return nil, errMalformed
		}
		value, err := d.ReadValue()
		if err != nil {
			return nil, errMalformed
		}
		end := d.InputOffset()
		members[key] = jsontext.Value(raw[end-int64(len(value)) : end : end])
	}
	if _, err := d.ReadToken(); err != nil { // the end, or what is wrong
		return nil, errMalformed
	}
	if _, err := d.ReadToken(); err != io.EOF {
		return nil, errNotObject // more than one
	}
	return members, nil
}

// unquote is what a JSON string says. Words that tokens have in common are not
// made anew.
func unquote(raw jsontext.Value) (string, error) {
	if word, ok := words[string(raw)]; ok {
		return word, nil
	}
	text, err := jsontext.AppendUnquote(nil, raw)
	return string(text), err
}

// words are the names and values that most tokens have, by their plain spelling.
var words = func() map[string]string {
	words := make(map[string]string)
	for _, list := range [][]string{
		headerNames, Algorithms, {"at+jwt", "JWT", "iss", "sub", "aud", "exp", "nbf", "iat", "jti", "azp", "client_id", "scope", "tenant"},
	} {
		for _, word := range list {
			words[strconv.Quote(word)] = word
		}
	}
	return words
}()

var errNotBase64 = errors.New("not base64url")

// unbase64 takes the one spelling that its bytes have.
func unbase64(part string) ([]byte, error) {
	if strings.IndexByte(part, '\r') >= 0 || strings.IndexByte(part, '\n') >= 0 {
		return nil, errNotBase64 // the decoder passes over these
	}
	raw, err := bytesOf(part)
	if err != nil {
		return nil, errNotBase64
	}
	return raw, nil
}

func decode(raw []byte, members map[string]jsontext.Value, names []string, into any) error {
	if err := checkNames(members, names); err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return errUnexpectedType
	}
	return nil
}

// bounded counts depth and values before anything is built of them, and tells how
// many members the outermost object has. It need not know well-formed text from
// other, which the decoder refuses.
func bounded(raw []byte) (members int, err error) {
	depth, count := 0, 0
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			for i++; i < len(raw) && raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
			count++
		case '}', ']':
			depth--
		case ':':
			if depth == 1 {
				members++
			}
			count++
		case ',':
			count++
		}
		switch {
		case depth > maxDepth:
			return 0, fmt.Errorf("nested deeper than %d", maxDepth)
		case count > maxMembers:
			return 0, fmt.Errorf("more than %d names and values", maxMembers)
		}
	}
	return members, nil
}

// checkNames refuses names that differ from each other, or from one of those
// given, in spelling alone.
func checkNames(members map[string]jsontext.Value, names []string) error {
	if plain(members) {
		return nil // each is its own folding
	}
	folded := make(map[string]bool, len(members))
	for name := range members {
		fold := strings.ToLower(strings.ToUpper(name)) // long s, kelvin sign and the like included
		if folded[fold] {
			return errors.New("two names that differ in case alone")
		}
		folded[fold] = true
	}
	for _, name := range names {
		if _, exact := members[name]; folded[strings.ToLower(name)] && !exact {
			return fmt.Errorf("%q in another spelling", name)
		}
	}
	return nil
}

// plain reports whether all names are of ASCII without upper case. No two such
// names differ in case alone.
func plain(members map[string]jsontext.Value) bool {
	for name := range members {
		for i := range len(name) {
			if c := name[i]; c >= 0x80 || 'A' <= c && c <= 'Z' {
				return false
			}
		}
	}
	return true
}
