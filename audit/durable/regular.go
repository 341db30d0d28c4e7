package durable

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// ErrNotRegular says that what stands at a path is no regular file: a
// directory, a device, or a pipe, whose reader would wait for a writer.
var ErrNotRegular = errors.New("not a regular file")

// ErrTooLong says that a file holds more than its reader takes.
var ErrTooLong = errors.New("file too long")

// OpenRegular opens a file for reading that somebody else may have put there. It
// waits for nobody, and opens nothing but a regular file, or a link to one.
func OpenRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // which a regular file ignores
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w", path, ErrNotRegular)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// ReadRegular reads such a file of at most max bytes.
func ReadRegular(path string, max int64) ([]byte, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(f, max+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if int64(len(raw)) > max {
		return nil, fmt.Errorf("%s: %w: more than %d bytes", path, ErrTooLong, max)
	}
	return raw, nil
}
