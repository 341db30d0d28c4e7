// Command train makes the small model's tokenizer files: a byte-level BPE
// vocabulary learned from the texts in corpus and from sentences, tool
// schemas and conversations put together from them.
//
//	go run ./train    (in routing/prompt; see embed.go)
//
// The same sources give the same files, byte for byte.
package main

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
)

// mergeCount is how many merges are learned.
const mergeCount = 8000

//go:embed chat_template.jinja
var chatTemplate string

func main() {
	if err := run(filepath.Join("models", "small")); err != nil {
		fmt.Fprintln(os.Stderr, "train:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	tokens, merges := learn(words(), mergeCount)
	files, err := modelFiles(tokens, merges)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
