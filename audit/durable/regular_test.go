package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestReadRegularReadsWhatIsAFileOfItsSizeAndWaitsForNothing(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(
		os.WriteFile(at("file"), []byte("abcd"), 0o600),
		os.WriteFile(at("empty"), nil, 0o600),
		os.Symlink(at("file"), at("link")),
		os.Mkdir(at("folder"), 0o700),
		syscall.Mkfifo(at("pipe"), 0o600), // with no writer
	); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		max  int64
		want string
		err  error
	}{
		{"file", 4, "abcd", nil},
		{"file", 5, "abcd", nil},
		{"file", 3, "", ErrTooLong},
		{"empty", 0, "", nil},
		{"link", 4, "abcd", nil},
		{"folder", 4, "", ErrNotRegular},
		{"pipe", 4, "", ErrNotRegular},
		{"gone", 4, "", fs.ErrNotExist},
	} {
		got, err := ReadRegular(at(c.name), c.max)
		if string(got) != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s of at most %d: %q, %v; want %q, %v", c.name, c.max, got, err, c.want, c.err)
		}
	}
}
