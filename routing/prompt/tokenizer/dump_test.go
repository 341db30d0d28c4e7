package tokenizer

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sources are a file of each kind.
func sources(t testing.TB) map[string][]byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "models", "small", "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	flagged := strings.Replace(strings.Replace(tiny(), `"lstrip": false`, `"lstrip": true`, 1), `"ignore_merges": false`, `"ignore_merges": true`, 1)
	return map[string][]byte{"small": data, "tiny": []byte(flagged), "pieces": []byte(tinyPieces())}
}

func tables(t testing.TB, source []byte) (*Tokenizer, []byte, [sha256.Size]byte) {
	t.Helper()
	tok, err := Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(source)
	return tok, tok.AppendTables(nil, digest), digest
}

func TestTablesTokenizeAsTheirSource(t *testing.T) {
	for name, source := range sources(t) {
		parsed, data, digest := tables(t, source)
		loaded, err := FromTables(data, digest)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		r := rand.New(rand.NewPCG(2, 6))
		for range 300 {
			s := prose(r, r.IntN(20)) + []string{" <x>", "<|im_start|> ab", "\xff é▁a", "bab"}[r.IntN(4)]
			for _, special := range []bool{true, false} {
				got, want := loaded.AppendEncode(nil, s, special), parsed.AppendEncode(nil, s, special)
				if !slices.Equal(got, want) || loaded.Decode(got) != parsed.Decode(want) {
					t.Fatalf("%s: %q gives %v, want %v", name, s, got, want)
				}
			}
		}
		if !bytes.Equal(loaded.AppendTables(nil, digest), data) {
			t.Errorf("%s: tables of tables differ", name)
		}
		if prefix, _ := loaded.Around(); name == "pieces" && len(prefix) != 1 {
			t.Errorf("%s: around a text goes %v", name, prefix)
		}
	}
}

func TestTablesThatAreNotRightAreRefused(t *testing.T) {
	_, data, digest := tables(t, []byte(tinyPieces()))
	other := sha256.Sum256(nil)
	if _, err := FromTables(data, other); !errors.Is(err, ErrTables) {
		t.Errorf("of another file: %v", err)
	}
	for n := range len(data) {
		damaged := bytes.Clone(data)
		damaged[n] ^= 0x10
		if _, err := FromTables(damaged, digest); !errors.Is(err, ErrTables) {
			t.Fatalf("with byte %d changed: %v", n, err)
		}
		if n%97 == 0 {
			if _, err := FromTables(data[:n], digest); !errors.Is(err, ErrTables) {
				t.Fatalf("cut to %d bytes: %v", n, err)
			}
		}
	}
}

// FuzzTables has the checksum right and the rest wrong.
func FuzzTables(f *testing.F) {
	for _, source := range []string{tiny(), tinyPieces()} {
		_, data, _ := tables(f, []byte(source))
		f.Add(data[len(tablesMagic)+sha256.Size : len(data)-sha256.Size])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var digest [sha256.Size]byte
		data := append(append([]byte(tablesMagic), digest[:]...), body...)
		sum := sha256.Sum256(data)
		tok, err := FromTables(append(data, sum[:]...), digest)
		if err != nil {
			return
		}
		tok.Decode(tok.AppendEncode(nil, "any text <x> at all \xff", true))
	})
}

func BenchmarkFromTables(b *testing.B) {
	_, data, digest := tables(b, sources(b)["small"])
	for b.Loop() {
		if _, err := FromTables(data, digest); err != nil {
			b.Fatal(err)
		}
	}
}
