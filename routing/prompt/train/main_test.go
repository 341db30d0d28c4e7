package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestTheShippedFilesAreWhatTrainMakes(t *testing.T) {
	made, shipped := t.TempDir(), filepath.Join("..", "models", "small")
	if err := run(made); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		a, err := os.ReadFile(filepath.Join(made, name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(shipped, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s is not what train makes: run go generate ./routing/prompt", name)
		}
		if len(b) > 700_000 {
			t.Errorf("%s has %d bytes", name, len(b))
		}
	}
}

func TestLearnMergesTheMostFrequentPairFirst(t *testing.T) {
	tokens, merges := learn(map[string]int{"abab": 3, "bc": 5, "xyz": 1}, 10)
	want := [][2]string{{"a", "b"}, {"b", "c"}, {"ab", "ab"}}
	if len(merges) != len(want) {
		t.Fatalf("merges %q", merges)
	}
	for i := range want {
		if merges[i] != want[i] {
			t.Errorf("merge %d is %q, want %q", i, merges[i], want[i])
		}
	}
	if len(tokens) != 256+len(want) {
		t.Errorf("%d tokens", len(tokens))
	}
}
