package revocation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/sallyport-ai/sallyport/identity/atomicfile"
)

// maxFileBytes bounds a file of entries.
const maxFileBytes = 32 << 20

// File is entries in a file, one a line. It must be there, if only empty: one
// that is missing is a failure, and not the absence of revocations.
type File string

// Read returns the entries.
func (f File) Read(context.Context) ([]Entry, error) { return readFile(string(f)) }

// Restore does nothing: the file belongs to whoever revokes.
func (f File) Restore(context.Context, []Entry) error { return nil }

func readFile(path string) ([]Entry, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	raw, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxFileBytes {
		return nil, fmt.Errorf("%s: longer than %d bytes", path, maxFileBytes)
	}
	if len(raw) > 0 && raw[len(raw)-1] != '\n' {
		return nil, fmt.Errorf("%s: its last line has no end", path) // cut short
	}
	var entries []Entry
	for number, line := range slices.Collect(bytes.Lines(raw)) {
		e, err := Decode(bytes.TrimSuffix(line, []byte{'\n'}))
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, number+1, err)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// Revoke adds an entry to a file, which is made where there is none, and drops
// those that have ended. When it returns, the entry is durable.
func Revoke(path string, e Entry, now time.Time) error {
	return atomicfile.Edit(path, func(path string) ([]byte, error) {
		entries, err := readFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		entries = slices.DeleteFunc(entries, func(old Entry) bool { return old.ID == e.ID || old.Ended(now) })
		if len(entries) >= MaxEntries {
			return nil, fmt.Errorf("%s is full: %d revocations", path, MaxEntries)
		}
		var out bytes.Buffer
		for _, entry := range append(entries, e) {
			line, err := entry.Encode()
			if err != nil {
				return nil, err
			}
			out.Write(line)
			out.WriteByte('\n')
		}
		return out.Bytes(), nil
	})
}
