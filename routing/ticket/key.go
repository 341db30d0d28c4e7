package ticket

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// algEd25519 is the key type byte of a note verifier key.
const algEd25519 = 1

// Key is a gateway's log: its origin and the public half of the key that signs
// its checkpoints and tickets. The zero Key verifies nothing.
type Key struct {
	Origin string
	Public ed25519.PublicKey
}

// IsZero reports whether k is no key.
func (k Key) IsZero() bool { return len(k.Public) == 0 }

// Equal reports whether k and o are the same log with the same key.
func (k Key) Equal(o Key) bool { return k.Origin == o.Origin && k.Public.Equal(o.Public) }

// ParseKey parses a note verifier key (golang.org/x/mod/sumdb/note):
//
//	origin "+" hash (8 hex digits) "+" base64(0x01 ‖ Ed25519 public key)
func ParseKey(vkey string) (Key, error) {
	origin, rest, ok := strings.Cut(vkey, "+")
	hash, enc, ok2 := strings.Cut(rest, "+")
	if !ok || !ok2 || origin == "" || strings.ContainsAny(origin, " \t\r\n\u0085\u00a0\u2028\u2029") {
		return Key{}, fmt.Errorf("verifier key %.80q: want origin+hash+key", vkey)
	}
	sum, err := strconv.ParseUint(hash, 16, 32)
	if err != nil || len(hash) != 8 {
		return Key{}, fmt.Errorf("verifier key of %q: hash %.20q is not 8 hex digits", origin, hash)
	}
	data, err := base64.StdEncoding.Strict().DecodeString(enc)
	if err != nil {
		return Key{}, fmt.Errorf("verifier key of %q: %w", origin, err)
	}
	if len(data) != 1+ed25519.PublicKeySize || data[0] != algEd25519 {
		return Key{}, fmt.Errorf("verifier key of %q: not an Ed25519 key", origin)
	}
	if keyHash(origin, data) != uint32(sum) {
		return Key{}, fmt.Errorf("verifier key of %q: hash does not match the key", origin)
	}
	return Key{Origin: origin, Public: data[1:]}, nil
}

// keyHash is the id that a note signature line carries for a key.
func keyHash(origin string, data []byte) uint32 {
	h := sha256.New()
	h.Write([]byte(origin + "\n"))
	h.Write(data)
	return binary.BigEndian.Uint32(h.Sum(nil))
}
