package tlog

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"filippo.io/mldsa" // the API of crypto/mldsa, before there is one
	"golang.org/x/mod/sumdb/note"
)

// cosigner verifies the cosignatures of one witness, as in
// https://c2sp.org/tlog-cosignature: Ed25519 or ML-DSA-44. It is a
// [note.Verifier].
type cosigner struct {
	name   string
	hash   uint32
	public string // key, with its kind
	size   int    // of a signature without its time
	signed func(time uint64, text, sig []byte) bool
}

// The first byte of the key in a verifier key.
const (
	algCosignature      = 4 // Ed25519
	algCosignatureMLDSA = 6 // ML-DSA-44
)

// parseCosigner reads a witness's verifier key, "<name>+<hash>+<base64>".
func parseCosigner(vkey string) (*cosigner, error) {
	bad := func(format string, args ...any) (*cosigner, error) {
		return nil, fmt.Errorf("witness key %.80q "+format, append([]any{vkey}, args...)...)
	}
	name, rest, _ := strings.Cut(strings.TrimSpace(vkey), "+")
	hash, text, ok := strings.Cut(rest, "+")
	key, err := base64.StdEncoding.Strict().DecodeString(text)
	if !ok || err != nil || len(key) == 0 || !isKeyName(name) {
		return bad("is not a verifier key")
	}
	c := &cosigner{name: name, public: string(key)}
	switch alg, public := key[0], key[1:]; {
	case alg == algCosignature && len(public) == ed25519.PublicKeySize:
		c.size, c.signed = ed25519.SignatureSize, func(time uint64, text, sig []byte) bool {
			return ed25519.Verify(public, cosignedText(time, text), sig)
		}
	case alg == algCosignatureMLDSA && len(public) == mldsa.MLDSA44PublicKeySize && len(name) <= math.MaxUint8:
		pub, err := mldsa.NewPublicKey(mldsa.MLDSA44(), public)
		if err != nil {
			return bad("holds no key: %w", err)
		}
		c.size, c.signed = mldsa.MLDSA44SignatureSize, func(time uint64, text, sig []byte) bool {
			msg := cosignedTree(name, time, text)
			return msg != nil && mldsa.Verify(pub, msg, sig, nil) == nil
		}
	default:
		return bad("is not for cosignatures, of Ed25519 or ML-DSA-44")
	}
	sum := sha256.Sum256(append([]byte(name+"\n"), key...))
	c.hash = binary.BigEndian.Uint32(sum[:])
	if got, err := strconv.ParseUint(hash, 16, 32); err != nil || len(hash) != 8 || uint32(got) != c.hash {
		return bad("has the wrong key hash")
	}
	return c, nil
}

// isKeyName says whether a key of a signed note can have the name.
func isKeyName(name string) bool {
	return name != "" && utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsSpace)
}

func (c *cosigner) Name() string    { return c.name }
func (c *cosigner) KeyHash() uint32 { return c.hash }

// Verify checks a cosignature over the text of a checkpoint: the time of
// signing, in seconds since the Unix epoch, and a signature over both. A time of
// zero, by which an ML-DSA cosigner does not say that it has seen no larger
// tree, is not what a witness has to say.
func (c *cosigner) Verify(text, sig []byte) bool {
	if len(sig) != 8+c.size {
		return false
	}
	time := binary.BigEndian.Uint64(sig)
	return time > 0 && time <= math.MaxInt64 && c.signed(time, text, sig[8:])
}

// cosignedText is what an Ed25519 cosignature signs.
func cosignedText(time uint64, text []byte) []byte {
	return append([]byte("cosignature/v1\ntime "+strconv.FormatUint(time, 10)+"\n"), text...)
}

// cosignedTree is what an ML-DSA-44 cosignature signs: the tree of a checkpoint,
// as a subtree that begins with the first leaf, and nothing else that the
// checkpoint may say. It is nil for what has no such form.
func cosignedTree(name string, time uint64, text []byte) []byte {
	cp, err := parseTree(text)
	if err != nil || cp.origin == "" || len(cp.origin) > math.MaxUint8 {
		return nil
	}
	msg := append([]byte("subtree/v1\n\x00"), byte(len(name)))
	msg = append(msg, name...)
	msg = binary.BigEndian.AppendUint64(msg, time)
	msg = append(append(msg, byte(len(cp.origin))), cp.origin...)
	msg = binary.BigEndian.AppendUint64(msg, 0)
	msg = binary.BigEndian.AppendUint64(msg, cp.size)
	return append(msg, cp.root[:]...)
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
