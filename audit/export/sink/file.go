package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sallyport-ai/sallyport/audit/durable"
)

// FileConfig is a file of one line for each message, which an agent of the SIEM
// may read. It is renamed when it is full: to its own name with the time (UTC)
// and the index of the next record behind it.
type FileConfig struct {
	Path   string `yaml:"path"`
	Rotate int64  `yaml:"rotate"` // bytes; 0: 256 MiB
}

var fileKind = Kind{
	Name: "file", Batch: 1 << 20, Wait: 100 * time.Millisecond,
	has:   func(c *Config) bool { return c.File != nil },
	paths: func(c *Config) []*string { return []*string{&c.File.Path} },
	check: func(c *Config, p *problems) {
		p.required("path", c.File.Path)
		if c.File.Rotate < 0 {
			p.add("rotate", "must not be negative, got %d", c.File.Rotate)
		}
	},
	open: func(_ context.Context, c *Config, _ Options) (Sink, error) {
		f := &file{path: c.File.Path, rotate: c.File.Rotate, now: time.Now}
		if f.rotate == 0 {
			f.rotate = 256 << 20
		}
		return f, nil
	},
}

// file appends lines and syncs each batch.
type file struct {
	path   string
	rotate int64
	now    func() time.Time

	f    *os.File // nil: to be opened
	size int64
	buf  []byte
}

func (f *file) Send(_ context.Context, b *Batch) (int, error) {
	if err := f.ready(b.First); err != nil {
		return 0, err
	}
	f.buf = appendLines(f.buf[:0], b)
	n, err := f.f.Write(f.buf)
	if err == nil {
		err = f.f.Sync()
	}
	if err != nil {
		// What a failed write left is cut off when the file is opened again.
		return 0, errors.Join(fmt.Errorf("write %s: %w", f.path, err), f.Close())
	}
	f.size += int64(n)
	return len(b.Messages), nil
}

// appendLines adds each message as a line.
func appendLines(dst []byte, b *Batch) []byte {
	size := 0
	for i := range b.Messages {
		size += len(b.Messages[i].Body) + 1
	}
	dst = slices.Grow(dst, size)
	for i := range b.Messages {
		dst = append(append(dst, b.Messages[i].Body...), '\n')
	}
	return dst
}

// ready opens the file if it is not open, or is not the one at its path any
// more, and rotates it if it is full.
func (f *file) ready(next uint64) error {
	if f.f != nil && !f.inPlace() {
		if err := f.Close(); err != nil {
			return err
		}
	}
	if f.f == nil {
		if err := f.open(); err != nil {
			return err
		}
	}
	if f.size < f.rotate {
		return nil
	}
	if err := f.Close(); err != nil {
		return err
	}
	old := fmt.Sprintf("%s.%s.%d", f.path, f.now().UTC().Format("20060102T150405Z"), next)
	if err := os.Rename(f.path, old); err != nil {
		return fmt.Errorf("rotate: %w", err)
	}
	return f.open()
}

// inPlace is false if the file has been deleted or moved away: it could still
// be written to, and nobody would find it.
func (f *file) inPlace() bool {
	ours, err := f.f.Stat()
	if err != nil {
		return false
	}
	theirs, err := os.Stat(f.path)
	return err == nil && os.SameFile(ours, theirs)
}

func (f *file) open() error {
	h, err := os.OpenFile(f.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	size, err := wholeLines(h)
	if err == nil {
		err = h.Truncate(size)
	}
	if err == nil {
		err = durable.SyncDir(filepath.Dir(f.path))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("open %s: %w", f.path, err), h.Close())
	}
	f.f, f.size = h, size
	return nil
}

// wholeLines is how long the file is up to the end of its last whole line.
func wholeLines(h *os.File) (int64, error) {
	end, err := h.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 1<<16)
	for end > 0 {
		n := min(end, int64(len(buf)))
		if _, err := h.ReadAt(buf[:n], end-n); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(buf[:n], '\n'); i >= 0 {
			return end - n + int64(i) + 1, nil
		}
		end -= n
	}
	return 0, nil
}

func (f *file) Close() error {
	if f.f == nil {
		return nil
	}
	err := f.f.Close()
	f.f = nil
	if errors.Is(err, fs.ErrClosed) {
		return nil
	}
	return err
}
