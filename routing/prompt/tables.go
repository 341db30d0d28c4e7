package prompt

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sallyport-ai/sallyport/routing/prompt/tokenizer"
)

// loadTokenizer reads tokenizer.json, or the tables that were made of it
// before. kept is why the tables could not be read or kept, which only makes
// the next start slow.
func loadTokenizer(data []byte, digest [sha256.Size]byte, cache string) (t *tokenizer.Tokenizer, kept, err error) {
	if cache == "" {
		t, err = tokenizer.Parse(data)
		return t, nil, err
	}
	file := filepath.Join(cache, hex.EncodeToString(digest[:])+".tables")
	tables, kept := os.ReadFile(file)
	if kept == nil {
		if t, kept = tokenizer.FromTables(tables, digest); kept == nil {
			return t, nil, nil
		}
	}
	if t, err = tokenizer.Parse(data); err != nil {
		return nil, nil, err
	}
	if errors.Is(kept, fs.ErrNotExist) {
		kept = nil
	}
	return t, errors.Join(kept, keepTables(file, t.AppendTables(nil, digest))), nil
}

// keepTables writes the file so that it is there whole or not at all. It need
// not outlive a crash: its checksum tells.
func keepTables(file string, tables []byte) error {
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep tokenizer tables: %w", err)
	}
	f, err := os.CreateTemp(dir, ".tables-*")
	if err != nil {
		return fmt.Errorf("keep tokenizer tables: %w", err)
	}
	_, err = f.Write(tables)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("keep tokenizer tables: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}
