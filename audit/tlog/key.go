package tlog

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// Key signs a log. Its name is the log's origin. It is a [note.Signer], whose
// Sign is plain Ed25519 over the message; other uses of the key must prefix
// what they sign with a tag of their own.
type Key struct {
	note.Signer
	verifier note.Verifier
	vkey     string
	mac      []byte // makes seals
	path     string // of its file, if it was read from one
}

// ErrNoKey says that there is no pinned key to verify against, so that nothing
// can be said about a log.
var ErrNoKey = errors.New("no verifier key")

// GenerateKey returns a new signer key and its verifier key in the text form
// of [note.GenerateKey]:
//
//	PRIVATE+KEY+<origin>+<hash>+<base64>
//	<origin>+<hash>+<base64>
//
// The origin must have no space or plus sign.
func GenerateKey(origin string) (skey, vkey string, err error) {
	skey, vkey, err = note.GenerateKey(rand.Reader, origin)
	if err != nil {
		return "", "", fmt.Errorf("generate log key: %w", err)
	}
	if _, err := note.NewVerifier(vkey); err != nil {
		return "", "", fmt.Errorf("log origin %q: %w", origin, err)
	}
	return skey, vkey, nil
}

// ParseKey reads a signer key as [GenerateKey] makes it.
func ParseKey(skey string) (*Key, error) {
	skey = strings.TrimSpace(skey)
	signer, err := note.NewSigner(skey)
	if err != nil {
		return nil, fmt.Errorf("parse log key: %w", err)
	}
	// NewSigner has checked the form: what follows the name and the key hash
	// is base64 of the algorithm byte and the Ed25519 seed.
	seed, err := base64.StdEncoding.DecodeString(skey[len("PRIVATE+KEY+")+len(signer.Name())+len("+00000000+"):])
	if err != nil {
		return nil, fmt.Errorf("parse log key: %w", err)
	}
	public, ok := ed25519.NewKeyFromSeed(seed[1:]).Public().(ed25519.PublicKey)
	if !ok {
		return nil, errors.New("parse log key: not Ed25519")
	}
	vkey, err := note.NewEd25519VerifierKey(signer.Name(), public)
	if err != nil {
		return nil, fmt.Errorf("parse log key: %w", err)
	}
	verifier, err := note.NewVerifier(vkey)
	if err != nil {
		return nil, fmt.Errorf("parse log key: %w", err)
	}
	mac, err := hkdf.Key(sha256.New, seed[1:], nil, sealPrefix, sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("parse log key: %w", err)
	}
	return &Key{Signer: signer, verifier: verifier, vkey: vkey, mac: mac}, nil
}

// sealPrefix keeps a seal from being anything else.
const sealPrefix = "sallyport-seal-v1\x00"

// seal is the MAC over a log where a batch ends. Nobody without the private key
// can make it, nor check it.
func (k *Key) seal(chain chainHash, size uint64) (mac [sealSize]byte) {
	h := hmac.New(sha256.New, k.mac)
	m := append(make([]byte, 0, 256), sealPrefix...)
	m = append(append(m, k.Name()...), 0)
	m = append(m, chain[:]...)
	h.Write(binary.LittleEndian.AppendUint64(m, size))
	h.Sum(mac[:0])
	return mac
}

// Verifier returns the public half.
func (k *Key) Verifier() note.Verifier { return k.verifier }

// VerifierKey returns the public half as text, to be pinned by verifiers.
func (k *Key) VerifierKey() string { return k.vkey }

// CreateKeyFile generates a key for origin, writes the signer key to path
// (mode 0600) and returns the verifier key. It never replaces a file.
func CreateKeyFile(path, origin string) (vkey string, err error) {
	skey, vkey, err := GenerateKey(origin)
	if err != nil {
		return "", err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", fmt.Errorf("create log key: %w", err)
	}
	_, err = f.WriteString(skey + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return "", fmt.Errorf("write log key: %w", err)
	}
	return vkey, nil
}

// ReadKeyFile reads a signer key. A file that anyone may read is refused. A log
// that is opened with the key locks the file: two logs that sign with one key
// would have one name and hold different records.
func ReadKeyFile(path string) (*Key, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read log key: %w", err)
	}
	if info.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("read log key: %s is open to others (mode %04o)", path, info.Mode().Perm())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read log key: %w", err)
	}
	key, err := ParseKey(string(text))
	if err != nil {
		return nil, err
	}
	key.path = path
	return key, nil
}

// ReadVerifierFile reads a verifier key, alone in a text file. Without a file
// the error is [ErrNoKey].
func ReadVerifierFile(path string) (note.Verifier, error) {
	text, err := os.ReadFile(path)
	if path == "" || errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %q", ErrNoKey, path)
	}
	if err != nil {
		return nil, fmt.Errorf("read verifier key: %w", err)
	}
	v, err := note.NewVerifier(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("read verifier key %s: %w", path, err)
	}
	return v, nil
}
