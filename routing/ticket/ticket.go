// Package ticket is the signed statement that a gateway attaches to each
// request it forwards: this decision sends these bytes to that replica.
//
// A gateway holds a [Signer]. A relay holds a [Verifier], which knows the key
// of each gateway, and a [ReplaySet], which lets a ticket count once.
//
// # Format
//
//	Sallyport-Ticket: base64url(payload) "." base64url(signature)
//
// Both parts are unpadded. The signature is Ed25519, by the gateway's log key,
// over "sallyport-ticket-v1\0" and the payload. The payload is one JSON object,
// without spaces, its fields in the order of [Ticket]:
//
//	{"v":1,"id":"0198c0de-…","attempt":1,"n":17,"op":"POST /v1/chat/completions",
//	 "log":"example.org/gateway/a","aud":"spiffe://example.org/pool/general/r0",
//	 "ep":"3q2-7w","pool":"general","model":"small","adapter":"","domain":"BgAAAHRl…",
//	 "rank":0,"tokens":812,"body":"47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU","exp":1795000000}
//
// A payload that differs in any byte from what [Signer.Sign] would produce for
// the same values (an unknown, missing or repeated field, another order, a
// space, an escape that is not needed) is malformed, whoever signed it.
package ticket

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// Header is the name of the request header that carries a ticket.
const Header = "Sallyport-Ticket"

// Version is the value of the "v" field.
const Version = 1

const (
	// Lifetime is how far ahead a gateway sets a ticket's expiry.
	Lifetime = 30 * time.Second
	// MaxAhead is how far ahead an expiry may lie: the lifetime and 5 s for
	// clocks that disagree.
	MaxAhead = 35 * time.Second
	// MaxTokens is the most that a prompt may have.
	MaxTokens = 1 << 28
	// MaxHeader is the length of the longest header, in bytes.
	MaxHeader = 8 << 10
)

// context separates ticket signatures from everything else that the log key
// signs.
const context = "sallyport-ticket-v1\x00"

// encoding refuses padding, line breaks and stray trailing bits.
var encoding = base64.RawURLEncoding.Strict()

// Ticket is what a gateway says about one forward. Every string but Adapter is
// required.
type Ticket struct {
	V        int    `json:"v"`       // Version
	ID       string `json:"id"`      // decision id
	Attempt  int    `json:"attempt"` // from 1
	N        uint64 `json:"n"`       // counter per gateway and relay process, from 1
	Op       string `json:"op"`      // method and route, "POST /v1/chat/completions"
	Log      string `json:"log"`     // origin of the log that holds the decision
	Audience string `json:"aud"`     // SPIFFE ID of the replica
	Epoch    string `json:"ep"`      // the replica's relay process, from its Watch frames
	Pool     string `json:"pool"`
	Model    string `json:"model"`
	Adapter  string `json:"adapter"`
	Domain   string `json:"domain"` // cache domain, base64url(lenprefix(kind, tenant, …))
	Rank     int    `json:"rank"`   // data-parallel rank, from 0
	Tokens   int    `json:"tokens"` // of the prompt that the gateway expects the engine to compute; 0 unknown
	Body     Digest `json:"body"`   // of the bytes that the gateway sends
	Exp      int64  `json:"exp"`    // Unix seconds; at this second the ticket no longer counts
}

// Digest is a SHA-256 sum; its text form is unpadded base64url.
type Digest [sha256.Size]byte

// MarshalText implements encoding.TextMarshaler.
func (d Digest) MarshalText() ([]byte, error) {
	return encoding.AppendEncode(nil, d[:]), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Digest) UnmarshalText(text []byte) error {
	if len(text) != encoding.EncodedLen(len(d)) {
		return fmt.Errorf("digest of %d characters, want %d", len(text), encoding.EncodedLen(len(d)))
	}
	_, err := encoding.Decode(d[:], text)
	return err
}

// payload is the exact bytes that are signed for t.
func (t *Ticket) payload() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(t); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// parse is the inverse of payload and accepts nothing that payload would not
// produce.
func parse(payload []byte) (Ticket, error) {
	var t Ticket
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&t); err != nil {
		return Ticket{}, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return Ticket{}, fmt.Errorf("data after the payload")
	}
	again, err := t.payload()
	if err != nil {
		return Ticket{}, err
	}
	if !bytes.Equal(again, payload) {
		return Ticket{}, fmt.Errorf("payload is not in its one form")
	}
	return t, t.valid()
}

// valid checks what a ticket must hold, whoever it is for.
func (t *Ticket) valid() error {
	if t.V != Version {
		return fmt.Errorf("version %d, want %d", t.V, Version)
	}
	if t.Attempt < 1 || t.N < 1 || t.Rank < 0 || t.Tokens < 0 || t.Tokens > MaxTokens || t.Exp < 1 {
		return fmt.Errorf("attempt %d, n %d, rank %d, tokens %d, exp %d: out of range", t.Attempt, t.N, t.Rank, t.Tokens, t.Exp)
	}
	for _, f := range []struct{ name, value string }{
		{"id", t.ID},
		{"op", t.Op},
		{"log", t.Log},
		{"aud", t.Audience},
		{"ep", t.Epoch},
		{"pool", t.Pool},
		{"model", t.Model},
		{"domain", t.Domain},
	} {
		if f.value == "" {
			return fmt.Errorf("%s is empty", f.name)
		}
		if !utf8.ValidString(f.value) {
			return fmt.Errorf("%s is not UTF-8", f.name)
		}
	}
	if !utf8.ValidString(t.Adapter) {
		return fmt.Errorf("adapter is not UTF-8")
	}
	return nil
}

// split decodes the two parts of a header.
func split(header string) (payload, sig []byte, err error) {
	if len(header) > MaxHeader {
		return nil, nil, fmt.Errorf("%d bytes, at most %d", len(header), MaxHeader)
	}
	head, tail, ok := strings.Cut(header, ".")
	if !ok {
		return nil, nil, fmt.Errorf("no dot")
	}
	// Go's decoder skips line breaks even when strict.
	if strings.ContainsAny(header, "\r\n") {
		return nil, nil, fmt.Errorf("line break")
	}
	if payload, err = encoding.DecodeString(head); err != nil {
		return nil, nil, fmt.Errorf("payload: %w", err)
	}
	if sig, err = encoding.DecodeString(tail); err != nil {
		return nil, nil, fmt.Errorf("signature: %w", err)
	}
	return payload, sig, nil
}
