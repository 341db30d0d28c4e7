package tlogtest

import (
	"bytes"
	"crypto/rand"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	fnote "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
)

// Witness cosigns whatever it is shown, with code that is not ours.
type Witness struct {
	Key    string // its verifier key
	signer note.Signer
}

// NewWitness makes one with a new key of Ed25519.
func NewWitness(tb testing.TB, name string) *Witness {
	tb.Helper()
	skey, vkey, err := note.GenerateKey(rand.Reader, name)
	if err == nil {
		vkey, err = fnote.VKeyToCosignatureV1(vkey)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return witness(tb, skey, vkey)
}

// NewMLDSAWitness makes one with a new key of ML-DSA-44.
func NewMLDSAWitness(tb testing.TB, name string) *Witness {
	tb.Helper()
	skey, vkey, err := fnote.GenerateMLDSAKey(name)
	if err != nil {
		tb.Fatal(err)
	}
	return witness(tb, skey, vkey)
}

func witness(tb testing.TB, skey, vkey string) *Witness {
	tb.Helper()
	signer, err := fnote.NewSignerForCosignatureV1(skey)
	if err != nil {
		tb.Fatal(err)
	}
	return &Witness{Key: vkey, signer: signer}
}

// Cosign returns the lines that the witness adds to a checkpoint, of which only
// the text counts.
func (w *Witness) Cosign(checkpoint []byte) ([]byte, error) {
	text, _, _ := bytes.Cut(checkpoint, []byte("\n\n"))
	signed, err := note.Sign(&note.Note{Text: string(text) + "\n"}, w.signer)
	if err != nil {
		return nil, err
	}
	_, lines, _ := bytes.Cut(signed, []byte("\n\n"))
	return lines, nil
}

// ServeHTTP answers as a witness does to add-checkpoint, that has nothing against
// any checkpoint.
func (w *Witness) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	_, checkpoint, _ := bytes.Cut(body, []byte("\n\n"))
	var lines []byte
	if err == nil {
		lines, err = w.Cosign(checkpoint)
	}
	if err != nil {
		http.Error(out, err.Error(), http.StatusBadRequest)
		return
	}
	_, _ = out.Write(lines) // who has gone needs none
}

// Anchor has witnesses cosign the checkpoint of the closed log in dir, and keeps
// that as the log would.
func Anchor(tb testing.TB, dir string, by ...*Witness) {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "checkpoint"))
	for _, w := range by {
		var lines []byte
		if err == nil {
			lines, err = w.Cosign(text)
		}
		text = append(text, lines...)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "anchored"), text, 0o600)
	}
	if err != nil {
		tb.Fatal(err)
	}
}
