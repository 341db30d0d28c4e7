// Package apikey authenticates callers by API keys: secrets that this project
// makes, shows once and stores only as a MAC.
//
// Start at [New], which opens a store for a gateway; [Store.Authenticate] is the
// method for identity.Chain. [Create] and [Revoke] change it.
//
// # The key
//
//	sp_<id>_<secret>_<checksum>
//	sp_4fT9bQ0ZxWm_T2k…43 digits…q8Z_0aZk3P
//
// Digits are base 62 (0-9 A-Z a-z). The id, 11 of them, is public: it names the
// key in records and lists. The secret is 43 random ones, which is 256 bits. The
// checksum is the CRC-32 (IEEE) of everything before its underscore as 6 digits,
// so that a mistyped key is told from a wrong one without a look-up, and so that
// a scanner for leaked secrets finds few things that are no keys:
//
//	\bsp_[0-9A-Za-z]{11}_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}\b
//
// # The store
//
// One file of JSON lines, the first of which names the format and the pepper,
// each other one a [Record]:
//
//	{"sallyport_api_keys":1,"pepper":"5be1c0aa9d2f4c11"}
//	{"id":"4fT9bQ0ZxWm","tenant":"acme","subject":"nightly-report","kind":"workload",…,"mac":"9c0f…"}
//
// mac is HMAC-SHA-256, under a pepper in a file of its own, of the key and of
// all that the key entitles to. Who reads the store learns no key; who writes it
// but has no pepper can revoke, but not make a key or widen one.
//
// # Freshness
//
// Every authentication asks the file system whether the store changed, so a
// revocation holds from the next request on. A store that cannot be read or is
// malformed refuses every key ([identity.ErrUnavailable]) until it is mended:
// a stale copy would take keys that were revoked.
package apikey

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strings"

	"github.com/sallyport-ai/sallyport/identity"
)

// Issuer is what a principal's Issuer says, so that a registration can be for
// API keys alone.
const Issuer = "api_key"

// The parts of a key, and their lengths in digits.
const (
	prefix      = "sp_"
	idDigits    = 11
	keyDigits   = 43
	checkDigits = 6
	keyLength   = len(prefix) + idDigits + 1 + keyDigits + 1 + checkDigits
)

const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// Key is an API key that is well formed. The zero Key is none.
type Key struct{ text string }

// errMalformed says nothing of the key: it may differ from a good one in a
// single digit.
var errMalformed = errors.New("malformed API key")

// NewKey makes a key.
func NewKey() Key {
	text := prefix + random(idDigits) + "_" + random(keyDigits)
	return Key{text + "_" + checksum(text)}
}

// ParseKey reads a key's text form. There is one text for each key.
func ParseKey(text string) (Key, error) {
	if len(text) != keyLength || !strings.HasPrefix(text, prefix) {
		return Key{}, errMalformed
	}
	body, check := text[:keyLength-checkDigits-1], text[keyLength-checkDigits:]
	id, secret := body[len(prefix):len(prefix)+idDigits], body[len(prefix)+idDigits+1:]
	if text[len(prefix)+idDigits] != '_' || text[len(body)] != '_' || !isDigits(id) || !isDigits(secret) || check != checksum(body) {
		return Key{}, errMalformed
	}
	return Key{text}, nil
}

// ID is the key's public name, or "" for the zero Key.
func (k Key) ID() string {
	if k.text == "" {
		return ""
	}
	return k.text[len(prefix) : len(prefix)+idDigits]
}

// Secret is the key as its holder presents it.
func (k Key) Secret() string { return k.text }

// String is the key without its secret, so that a log can hold it.
func (k Key) String() string { return prefix + k.ID() + "_…" }

// GoString is [Key.String].
func (k Key) GoString() string { return k.String() }

// random returns n digits, each drawn evenly.
func random(n int) string {
	const even = 256 / len(digits) * len(digits) // bytes from here on would favour the first digits
	text := make([]byte, 0, n)
	for buf := make([]byte, 2*n); len(text) < n; {
		_, _ = rand.Read(buf) // never fails: crypto/rand aborts the process instead
		for _, b := range buf {
			if int(b) < even && len(text) < n {
				text = append(text, digits[int(b)%len(digits)])
			}
		}
	}
	return string(text)
}

func checksum(text string) string {
	sum := crc32.ChecksumIEEE([]byte(text))
	var out [checkDigits]byte
	for i := len(out) - 1; i >= 0; i-- {
		out[i] = digits[sum%uint32(len(digits))]
		sum /= uint32(len(digits))
	}
	return string(out[:])
}

func isDigits(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return s != ""
}

// Pepper is the secret under which keys are stored. The zero Pepper is none.
type Pepper struct{ secret []byte }

const pepperBytes = 32

// CreatePepper writes a new pepper to a file that must not exist yet, readable
// by its owner alone:
//
//	32 random bytes in base64
func CreatePepper(path string) error {
	var secret [pepperBytes]byte
	_, _ = rand.Read(secret[:]) // never fails: crypto/rand aborts the process instead
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("create pepper: %w", err)
	}
	_, err = f.WriteString(base64.StdEncoding.EncodeToString(secret[:]) + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("create pepper: %w", err), os.Remove(path))
	}
	return nil
}

// ReadPepper reads a file as [CreatePepper] writes it. A file that anyone may
// read is refused; its group may, for a gateway that runs as another user than
// those who make keys.
func ReadPepper(path string) (Pepper, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Pepper{}, fmt.Errorf("read pepper: %w", err)
	}
	if info.Mode().Perm()&0o007 != 0 {
		return Pepper{}, fmt.Errorf("read pepper: %s is open to others (mode %04o)", path, info.Mode().Perm())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Pepper{}, fmt.Errorf("read pepper: %w", err)
	}
	secret, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(secret) != pepperBytes {
		return Pepper{}, fmt.Errorf("pepper %s: want %d bytes in base64", path, pepperBytes)
	}
	return Pepper{secret}, nil
}

// name tells peppers apart and reveals nothing of them.
func (p Pepper) name() string {
	mac := hmac.New(sha256.New, p.secret)
	mac.Write([]byte("sallyport-api-key-pepper-v1"))
	return hex.EncodeToString(mac.Sum(nil)[:8])
}

// mac binds a key to what its record entitles it to. What may change without
// the key, its revocation and its label, is left out.
func (p Pepper) mac(secret string, r *Record) [sha256.Size]byte {
	mac := hmac.New(sha256.New, p.secret)
	write := func(part string) {
		var size [4]byte
		binary.LittleEndian.PutUint32(size[:], uint32(len(part)))
		mac.Write(size[:])
		mac.Write([]byte(part))
	}
	write("sallyport-api-key-v1")
	write(secret)
	for _, part := range []string{r.ID, r.Tenant, r.Subject, string(r.Kind), r.Client} {
		write(part)
	}
	write(string(binary.LittleEndian.AppendUint64(nil, uint64(r.Created.Unix()))))
	write(string(binary.LittleEndian.AppendUint64(nil, uint64(r.Expires.Unix()))))
	for _, scope := range r.Scopes {
		write(scope)
	}
	return [sha256.Size]byte(mac.Sum(nil))
}

func fingerprint(id string) string {
	digest := sha256.Sum256([]byte(id))
	return hex.EncodeToString(digest[:])
}

var _ identity.Authenticator = (*Store)(nil).Authenticate
