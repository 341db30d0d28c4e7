// Package bundle packs evidence for an auditor: files and a manifest with the
// hash of each, in a directory or in a tarball.
//
// Start at [Create] and [Open]. What the files are is for the caller; the
// manifest keeps them together and signs nothing: each piece of evidence in a
// bundle proves itself.
package bundle

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/sallyport-ai/sallyport/audit/durable"
)

const (
	version      = 1
	manifestName = "manifest.json"
)

// Manifest says what is in a bundle.
type Manifest struct {
	V     int               `json:"bundle"`
	Made  time.Time         `json:"made"`
	By    string            `json:"by"`    // the program
	About map[string]string `json:"about"` // how it was asked for
	Files map[string]string `json:"files"` // slash-separated name → SHA-256, hex
}

// Writer makes a bundle.
type Writer struct {
	dir      string
	manifest Manifest
}

// Create begins a bundle in a directory that is not there yet.
func Create(dir, by string, about map[string]string) (*Writer, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create bundle: %w", err)
	}
	return &Writer{dir: dir, manifest: Manifest{V: version, Made: time.Now().UTC(), By: by, About: about, Files: make(map[string]string)}}, nil
}

// Add writes a file of the bundle.
func (w *Writer) Add(name string, write func(io.Writer) error) error {
	if !fs.ValidPath(name) || name == "." || name == manifestName || w.manifest.Files[name] != "" {
		return fmt.Errorf("add to bundle: bad name %q", name)
	}
	path := filepath.Join(w.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("add to bundle: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("add to bundle: %w", err)
	}
	sum := sha256.New()
	if err := errors.Join(write(io.MultiWriter(f, sum)), f.Close()); err != nil {
		return fmt.Errorf("add %s to bundle: %w", name, err)
	}
	w.manifest.Files[name] = hex.EncodeToString(sum.Sum(nil))
	return nil
}

// Close writes the manifest; without one, the directory is no bundle.
func (w *Writer) Close() error {
	b, err := json.MarshalIndent(w.manifest, "", "  ")
	if err != nil {
		return fmt.Errorf("close bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, manifestName), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("close bundle: %w", err)
	}
	return nil
}

// Tar writes the closed bundle in dir as a tarball, the manifest first.
func Tar(out io.Writer, dir string) error {
	m, err := readManifest(dir)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(out)
	for _, name := range append([]string{manifestName}, slices.Sorted(maps.Keys(m.Files))...) {
		if err := tarFile(tw, dir, name); err != nil {
			return fmt.Errorf("pack bundle: %w", err)
		}
	}
	return tw.Close()
}

func tarFile(tw *tar.Writer, dir, name string) error {
	f, err := durable.OpenRegular(filepath.Join(dir, filepath.FromSlash(name)))
	if err != nil {
		return err
	}
	defer f.Close() // read only
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: info.Size(), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err = io.Copy(tw, f)
	return err
}

// Bundle is one that can be read.
type Bundle struct {
	Manifest
	Dir string
}

// Path is where a file of the bundle is.
func (b *Bundle) Path(name string) string { return filepath.Join(b.Dir, filepath.FromSlash(name)) }

// Under lists the files in a folder of the bundle, in order.
func (b *Bundle) Under(folder string) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(b.Files)) {
		if strings.HasPrefix(name, folder+"/") {
			names = append(names, name)
		}
	}
	return names
}

// Is says whether a path looks like a bundle.
func Is(path string) bool {
	if strings.HasSuffix(path, ".tar") {
		return true
	}
	_, err := os.Stat(filepath.Join(path, manifestName))
	return err == nil
}

// ErrDamaged says that the files of a bundle are not those of its manifest.
var ErrDamaged = errors.New("bundle damaged")

// Open checks a bundle's files against its manifest. A tarball is unpacked into
// scratch, which must be an empty directory.
func Open(path, scratch string) (*Bundle, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("open bundle: %w", err)
	}
	dir := path
	if !info.IsDir() {
		if err := unpack(path, info.Size(), scratch); err != nil {
			return nil, err
		}
		dir = scratch
	}
	m, err := readManifest(dir)
	if err != nil {
		return nil, err
	}
	b := &Bundle{Manifest: m, Dir: dir}
	return b, b.check()
}

// maxManifest bounds a manifest, in bytes: it has some 100 for each file.
const maxManifest = 4 << 20

func readManifest(dir string) (m Manifest, err error) {
	text, err := durable.ReadRegular(filepath.Join(dir, manifestName), maxManifest)
	if errors.Is(err, durable.ErrNotRegular) || errors.Is(err, durable.ErrTooLong) {
		return m, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return m, fmt.Errorf("read manifest: %w", err)
	}
	if err := json.Unmarshal(text, &m); err != nil || m.V != version {
		return m, fmt.Errorf("%w: the manifest is not of version %d", ErrDamaged, version)
	}
	return m, nil
}

// validName says whether a file of a bundle may be called so: a path below it, which
// can be told of as it is.
func validName(name string) bool {
	odd := func(r rune) bool { return !unicode.IsPrint(r) }
	return fs.ValidPath(name) && name != "." && !strings.ContainsFunc(name, odd)
}

// check holds each file against the manifest; others must not be there.
func (b *Bundle) check() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(b.Files)) {
		if !validName(name) {
			return fmt.Errorf("%w: bad name %q", ErrDamaged, name)
		}
		sum, err := sumOf(b.Path(name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			errs = append(errs, fmt.Errorf("%w: %s is missing", ErrDamaged, name))
		case errors.Is(err, durable.ErrNotRegular):
			errs = append(errs, fmt.Errorf("%w: %w", ErrDamaged, err))
		case err != nil:
			errs = append(errs, err)
		case sum != b.Files[name]:
			errs = append(errs, fmt.Errorf("%w: %s has been changed", ErrDamaged, name))
		}
	}
	err := fs.WalkDir(os.DirFS(b.Dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || name == manifestName {
			return err
		}
		if !d.Type().IsRegular() || b.Files[name] == "" {
			errs = append(errs, fmt.Errorf("%w: %q does not belong to it", ErrDamaged, name))
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

func sumOf(path string) (string, error) {
	f, err := durable.OpenRegular(path)
	if err != nil {
		return "", err
	}
	defer f.Close() // read only
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// unpack refuses what an archive can say in two ways, and what takes more room
// than the archive does, as sparse files can.
func unpack(path string, size int64, dir string) error {
	f, err := durable.OpenRegular(path)
	if err != nil {
		return fmt.Errorf("unpack bundle: %w", err)
	}
	defer f.Close() // read only
	tr := tar.NewReader(f)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if h.Typeflag != tar.TypeReg || !validName(h.Name) || h.Size > size {
			return fmt.Errorf("%w: %q is not a file of a bundle", ErrDamaged, h.Name)
		}
		size -= h.Size
		to := filepath.Join(dir, filepath.FromSlash(h.Name))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return fmt.Errorf("unpack bundle: %w", err)
		}
		out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err) // a name twice
		}
		_, err = io.Copy(out, tr)
		if err := errors.Join(err, out.Close()); err != nil {
			return fmt.Errorf("unpack bundle: %w", err)
		}
	}
}
