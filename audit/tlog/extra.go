package tlog

import (
	"bytes"
	"encoding/base64"
	"fmt"
)

const extraPrefix = "extra "

// maxExtraLine is the longest line that other readers of proofs take, which
// read them line by line.
const maxExtraLine = 60 << 10

// WithExtra puts data into a proof, as its extra line, or returns the proof as it
// is if that would be too long. Nothing authenticates it but what it is taken
// for: a leaf that it holds is proven by the proof around it.
func WithExtra(proof, data []byte) []byte {
	line := extraPrefix + base64.StdEncoding.EncodeToString(data) + "\n"
	head, rest, ok := bytes.Cut(proof, []byte("\n"))
	if !ok || len(line) > maxExtraLine {
		return proof
	}
	return fmt.Appendf(nil, "%s\n%s%s", head, line, rest)
}

// Extra returns the data of a proof's extra line, or nil if it has none.
func Extra(proof []byte) ([]byte, error) {
	_, rest, _ := bytes.Cut(proof, []byte("\n"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	text, ok := bytes.CutPrefix(line, []byte(extraPrefix))
	if !ok {
		return nil, nil
	}
	data, err := base64.StdEncoding.Strict().DecodeString(string(text))
	if err != nil {
		return nil, fmt.Errorf("proof's extra line: %w", err)
	}
	return data, nil
}

// ProofOf returns the checkpoint of a proof, and the name of the log that it says
// it is of. Nothing of it has been checked.
func ProofOf(proof []byte) (origin string, checkpoint []byte) {
	_, text, _ := bytes.Cut(proof, []byte("\n\n"))
	name, _, _ := bytes.Cut(text, []byte("\n"))
	return string(name), text
}
