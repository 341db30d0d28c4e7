package policy

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/loader/filter"
)

// maxBundle bounds a bundle, packed and unpacked, in bytes.
const maxBundle = 64 << 20

// signaturesFile is where OPA looks for a bundle's signature.
const signaturesFile = ".signatures.json"

// files is a bundle as it was read: slash-separated path → content. Every kind
// of source becomes one, and the digest, the signature check and the compiler
// all see the same bytes.
type files map[string][]byte

// readBundle reads a .tar.gz, or a directory where directories are taken.
func readBundle(name string, directories bool) (files, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("read bundle: %w", err)
	}
	if info.IsDir() {
		if !directories {
			return nil, fmt.Errorf("read bundle: %s is a directory; production takes a signed tarball", name)
		}
		f := make(files)
		return f, f.layer(os.DirFS(name))
	}
	r, err := os.Open(filepath.Clean(name))
	if err != nil {
		return nil, fmt.Errorf("read bundle: %w", err)
	}
	defer r.Close() // read only
	return readTarball(r)
}

// layer adds the bundle files of fsys; a path that is already there is
// replaced.
func (f files) layer(fsys fs.FS) error {
	total := 0
	return fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("read bundle: %w", err)
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && name != "." {
			return fs.SkipDir // such as the ..data of a mounted ConfigMap
		}
		if d.IsDir() || !isBundleFile(name) {
			return nil
		}
		content, err := fs.ReadFile(fsys, name)
		if err != nil {
			return fmt.Errorf("read bundle: %w", err)
		}
		if total += len(content); total > maxBundle {
			return fmt.Errorf("read bundle: over %d bytes", maxBundle)
		}
		f[name] = content
		return nil
	})
}

// readTarball refuses what an archive can say in two ways: a name twice, a name
// that leaves the bundle, links and devices.
func readTarball(r io.Reader) (files, error) {
	zr, err := gzip.NewReader(io.LimitReader(r, maxBundle))
	if err != nil {
		return nil, fmt.Errorf("read bundle: %w", err)
	}
	f := make(files)
	tr := tar.NewReader(io.LimitReader(zr, maxBundle))
	for {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return f, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read bundle: %w", err)
		}
		if header.Typeflag == tar.TypeDir {
			continue
		}
		if header.Typeflag != tar.TypeReg {
			return nil, fmt.Errorf("read bundle: %q is not a regular file", header.Name)
		}
		name := path.Clean(strings.TrimPrefix(header.Name, "/"))
		if name == "." || !fs.ValidPath(name) {
			return nil, fmt.Errorf("read bundle: bad name %q", header.Name)
		}
		if _, twice := f[name]; twice {
			return nil, fmt.Errorf("read bundle: %q twice", name)
		}
		if f[name], err = io.ReadAll(tr); err != nil {
			return nil, fmt.Errorf("read bundle: %q: %w", name, err)
		}
	}
}

// isBundleFile says which files of a directory belong to the bundle. A tarball
// is taken whole.
func isBundleFile(name string) bool {
	base := path.Base(name)
	switch base {
	case "data.json", "data.yaml", "data.yml", bundle.ManifestExt, signaturesFile:
		return true
	}
	return path.Ext(base) == ".rego" && !strings.HasPrefix(base, ".")
}

// digest is SHA-256 over the files in the order of their paths, each path and
// content preceded by its length as little-endian uint64. The signature file is
// left out, so that signing does not change what is named.
func (f files) digest() string {
	h := sha256.New()
	write := func(b []byte) {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(b)))
		h.Write(n[:])
		h.Write(b)
	}
	for _, name := range sortedKeys(f) {
		if name == signaturesFile {
			continue
		}
		write([]byte(name))
		write(f[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// parse verifies the signature if there is a key, and parses rules and data.
func (f files) parse(verify *bundle.VerificationConfig) (*bundle.Bundle, error) {
	for _, name := range sortedKeys(f) {
		if path.Ext(name) == ".json" && !jsontext.Value(f[name]).IsValid() {
			return nil, fmt.Errorf("parse bundle: %s: invalid JSON, or a key twice in one object", name)
		}
	}
	r := bundle.NewCustomReader(&fileLoader{files: f, names: sortedKeys(f)}).
		WithBundleVerificationConfig(verify).
		WithSkipBundleVerification(verify == nil).
		WithProcessAnnotations(true).
		WithCapabilities(capabilities()).
		WithSizeLimitBytes(maxBundle)
	b, err := r.Read()
	if err != nil {
		return nil, fmt.Errorf("parse bundle: %w", err)
	}
	if b.Type() != bundle.SnapshotBundleType {
		return nil, errors.New("parse bundle: delta bundles are not taken")
	}
	if len(b.WasmModules)+len(b.PlanModules) > 0 {
		return nil, errors.New("parse bundle: only Rego is taken")
	}
	return &b, nil
}

// fileLoader feeds files to OPA's reader.
type fileLoader struct {
	files files
	names []string
	next  int
}

func (l *fileLoader) NextFile() (*bundle.Descriptor, error) {
	if l.next == len(l.names) {
		return nil, io.EOF
	}
	name := l.names[l.next]
	l.next++
	return bundle.NewDescriptor(name, name, bytes.NewReader(l.files[name])), nil
}

func (l *fileLoader) WithFilter(filter.LoaderFilter) bundle.DirectoryLoader   { return l }
func (l *fileLoader) WithPathFormat(bundle.PathFormat) bundle.DirectoryLoader { return l }
func (l *fileLoader) WithSizeLimitBytes(int64) bundle.DirectoryLoader         { return l }
func (l *fileLoader) WithFollowSymlinks(bool) bundle.DirectoryLoader          { return l }
