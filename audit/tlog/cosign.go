package tlog

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// cosigner verifies the Ed25519 cosignatures of one witness, as in
// https://c2sp.org/tlog-cosignature. It is a [note.Verifier].
type cosigner struct {
	name   string
	hash   uint32
	public ed25519.PublicKey
}

const (
	algCosignature  = 4 // the first byte of the key in a verifier key
	cosignatureSize = 8 + ed25519.SignatureSize
)

// parseCosigner reads a witness's verifier key, "<name>+<hash>+<base64>".
func parseCosigner(vkey string) (*cosigner, error) {
	name, rest, _ := strings.Cut(strings.TrimSpace(vkey), "+")
	hash, key, ok := strings.Cut(rest, "+")
	bytes, err := base64.StdEncoding.Strict().DecodeString(key)
	if !ok || err != nil || name == "" || strings.ContainsAny(name, " \t\n") {
		return nil, fmt.Errorf("witness key %q is not a verifier key", vkey)
	}
	if len(bytes) != 1+ed25519.PublicKeySize || bytes[0] != algCosignature {
		return nil, fmt.Errorf("witness key %q is not for Ed25519 cosignatures", vkey)
	}
	sum := sha256.Sum256(append([]byte(name+"\n"), bytes...))
	want := binary.BigEndian.Uint32(sum[:])
	if got, err := strconv.ParseUint(hash, 16, 32); err != nil || len(hash) != 8 || uint32(got) != want {
		return nil, fmt.Errorf("witness key %q has the wrong key hash", vkey)
	}
	return &cosigner{name: name, hash: want, public: bytes[1:]}, nil
}

func (c *cosigner) Name() string    { return c.name }
func (c *cosigner) KeyHash() uint32 { return c.hash }

// Verify checks a cosignature over the text of a checkpoint: the time of
// signing, and a signature over both.
func (c *cosigner) Verify(msg, sig []byte) bool {
	if len(sig) != cosignatureSize {
		return false
	}
	seconds := binary.BigEndian.Uint64(sig)
	signed := append([]byte("cosignature/v1\ntime "+strconv.FormatUint(seconds, 10)+"\n"), msg...)
	return ed25519.Verify(c.public, signed, sig[8:])
}

var errNotCosigned = errors.New("answer is not the witness's cosignature of the checkpoint")

// cosignature picks the witness's line out of its answer to the checkpoint.
func (c *cosigner) cosignature(checkpoint, answer []byte) ([]byte, error) {
	text, _, _ := strings.Cut(string(checkpoint), "\n\n")
	signed, err := note.Open([]byte(text+"\n\n"+string(answer)), note.VerifierList(c))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotCosigned, err)
	}
	sig := signed.Sigs[0]
	return fmt.Appendf(nil, "— %s %s\n", sig.Name, sig.Base64), nil
}
