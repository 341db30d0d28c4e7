package tlog

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"filippo.io/mldsa"
	fnote "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// aCheckpoint is the text of one, without signatures.
func aCheckpoint(size int) string {
	return fmt.Sprintf("%s\n%d\n%s\n", origin, size, tlog.RecordHash([]byte("x")))
}

// witnessKinds are the two kinds of cosignatures, by code that is not ours.
func witnessKinds(t *testing.T) map[string]*fakeWitness {
	return map[string]*fakeWitness{"Ed25519": newFakeWitness(t, "a.example/w"), "ML-DSA-44": newMLDSAWitness(t, "a.example/w")}
}

func TestAWitnessKeyIsTakenForWhatOtherCodeTakesItFor(t *testing.T) {
	for kind, w := range witnessKinds(t) {
		t.Run(kind, func(t *testing.T) {
			theirs, err := fnote.NewVerifierForCosignatureV1(w.key)
			if err != nil {
				t.Fatal(err)
			}
			ours, err := parseCosigner(" " + w.key + "\n")
			if err != nil || ours.Name() != theirs.Name() || ours.KeyHash() != theirs.KeyHash() {
				t.Errorf("key %q: %v, %v", w.key, ours, err)
			}
		})
	}
}

// sigOf is the signature in a line, without the key hash.
func sigOf(t *testing.T, line []byte) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(strings.Fields(string(line))[2])
	if err != nil {
		t.Fatal(err)
	}
	return b[4:]
}

func TestACosignatureIsOfOneCheckpointByOneWitness(t *testing.T) {
	for kind, w := range witnessKinds(t) {
		t.Run(kind, func(t *testing.T) {
			c, err := parseCosigner(w.key)
			if err != nil {
				t.Fatal(err)
			}
			text := aCheckpoint(900)
			sig := sigOf(t, w.sign([]byte(text+"\n")))
			if !c.Verify([]byte(text), sig) {
				t.Fatal("a true cosignature is refused")
			}
			for what, other := range map[string]string{
				"another size":   aCheckpoint(901),
				"another origin": "x" + text,
				"another root":   strings.Replace(text, tlog.RecordHash([]byte("x")).String(), tlog.Hash{}.String(), 1),
				"no origin":      strings.TrimPrefix(text, origin),
				"nothing":        "",
			} {
				if c.Verify([]byte(other), sig) {
					t.Errorf("it counts for %s", what)
				}
			}
			for i := range sig {
				sig[i] ^= 1
				if c.Verify([]byte(text), sig) {
					t.Fatalf("it counts with byte %d changed", i)
				}
				sig[i] ^= 1
			}
			for _, n := range []int{0, 7, 8, len(sig) - 1, len(sig) + 1} {
				if c.Verify([]byte(text), append(sig[:len(sig):len(sig)], 0)[:n]) {
					t.Errorf("it counts when cut to %d bytes", n)
				}
			}
		})
	}
}

// The message is built here from the words of the specification, and signed with
// the key alone: so each of its fields is what is checked.
func TestAnMLDSACosignatureSignsWhatTheSpecificationSays(t *testing.T) {
	const name = "a.example/w"
	key, err := mldsa.GenerateKey(mldsa.MLDSA44())
	if err != nil {
		t.Fatal(err)
	}
	public := append([]byte{6}, key.PublicKey().Bytes()...)
	sum := sha256.Sum256(append([]byte(name+"\n"), public...))
	c, err := parseCosigner(fmt.Sprintf("%s+%x+%s", name, sum[:4], base64.StdEncoding.EncodeToString(public)))
	if err != nil {
		t.Fatal(err)
	}
	type message struct {
		label, name string
		time        uint64
		origin      string
		from, to    uint64
		root        tlog.Hash
	}
	good := message{"subtree/v1\n\x00", name, 1700000000, origin, 0, 900, tlog.RecordHash([]byte("x"))}
	for _, tc := range []struct {
		name string
		edit func(m *message)
		ok   bool
	}{
		{"a checkpoint's tree", func(*message) {}, true},
		{"the last time that there is", func(m *message) { m.time = math.MaxInt64 }, true},
		{"no time: no word on whether it is the largest", func(m *message) { m.time = 0 }, false},
		{"a time that there is not", func(m *message) { m.time = math.MaxInt64 + 1 }, false},
		{"another purpose", func(m *message) { m.label = "subtree/v2\n\x00" }, false},
		{"another witness's name", func(m *message) { m.name = "b.example/w" }, false},
		{"another log", func(m *message) { m.origin += "x" }, false},
		{"a subtree that begins later", func(m *message) { m.from = 1 }, false},
		{"a smaller tree", func(m *message) { m.to-- }, false},
		{"another tree", func(m *message) { m.root[0] ^= 1 }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := good
			tc.edit(&m)
			msg := append([]byte(m.label), byte(len(m.name)))
			msg = binary.BigEndian.AppendUint64(append(msg, m.name...), m.time)
			msg = append(append(msg, byte(len(m.origin))), m.origin...)
			msg = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(msg, m.from), m.to)
			sig, err := key.Sign(nil, append(msg, m.root[:]...), nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := c.Verify([]byte(aCheckpoint(900)), append(binary.BigEndian.AppendUint64(nil, m.time), sig...)); got != tc.ok {
				t.Errorf("counts: %v", got)
			}
		})
	}
}

func TestAKeyThatIsNotAWitnessesIsRefused(t *testing.T) {
	_, plain, err := note.GenerateKey(rand.Reader, "a.example/w")
	if err != nil {
		t.Fatal(err)
	}
	pq := newMLDSAWitness(t, "a.example/w").key
	hashed := func(name string, key []byte) string {
		sum := sha256.Sum256(append([]byte(name+"\n"), key...))
		return fmt.Sprintf("%s+%x+%s", name, sum[:4], base64.StdEncoding.EncodeToString(key))
	}
	long := strings.Repeat("n", 256)
	for what, vkey := range map[string]string{
		"nothing":                              "",
		"a log's key":                          plain,
		"no key at all":                        hashed("a.example/w", nil),
		"a key of no kind":                     hashed("a.example/w", make([]byte, 33)),
		"an Ed25519 key that is too short":     hashed("a.example/w", append([]byte{4}, make([]byte, 31)...)),
		"an ML-DSA key that is too short":      hashed("a.example/w", append([]byte{6}, make([]byte, 1311)...)),
		"an Ed25519 key said to be of ML-DSA":  hashed("a.example/w", append([]byte{6}, make([]byte, 32)...)),
		"an ML-DSA name that cannot be signed": hashed(long, append([]byte{6}, make([]byte, 1312)...)),
		"an ML-DSA key under another name":     "b" + pq[1:],
		"no name":                              strings.TrimPrefix(pq, "a.example/w"),
	} {
		if c, err := parseCosigner(vkey); err == nil {
			t.Errorf("%s is taken for one of %s", what, c.name)
		} else if len(err.Error()) > 300 {
			t.Errorf("%s: the error has %d bytes", what, len(err.Error()))
		}
	}
}

// What we take for a witness's key, other code takes for the same.
func FuzzWitnessKey(f *testing.F) {
	_, pq, err := fnote.GenerateMLDSAKey("a.example/w")
	if err != nil {
		f.Fatal(err)
	}
	_, plain, err := note.GenerateKey(rand.Reader, "a.example/w")
	if err != nil {
		f.Fatal(err)
	}
	ed, err := fnote.VKeyToCosignatureV1(plain)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{pq, ed, plain, "", "+", "a+b+c", "\u00a0" + ed} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, vkey string) {
		ours, err := parseCosigner(vkey)
		if err != nil {
			return
		}
		theirs, err := fnote.NewVerifierForCosignatureV1(strings.TrimSpace(vkey))
		if err != nil || theirs.Name() != ours.Name() || theirs.KeyHash() != ours.KeyHash() {
			t.Errorf("%q: ours %s %08x, theirs %v, %v", vkey, ours.Name(), ours.KeyHash(), theirs, err)
		}
	})
}
