package prompt

import (
	"embed"
	"io/fs"
)

//go:generate go run ./train

//go:embed models/small
var models embed.FS

// Small is the model that ships: a vocabulary of about 8,000 tokens and a
// ChatML template, for demos, tests and the simulator. Its files are made by
// train and loaded by [LoadFS] like anyone's.
func Small() fs.FS {
	small, err := fs.Sub(models, "models/small")
	if err != nil {
		panic(err) // only for a malformed path
	}
	return small
}
