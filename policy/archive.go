package policy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/sallyport-ai/sallyport/audit/durable"
)

const archiveSuffix = ".tar.gz"

// archived is what the name of an archived bundle begins with.
var archived = regexp.MustCompile(`^[0-9a-f]{64}$`)

// save puts the bundle into the archive, under its digest, durably. A bundle
// that is there already stays as it is, but that it is as if new: whoever cleans
// up must see that it came into use. nil is none.
func (s *Snapshot) save(dir string) error {
	if s == nil {
		return nil
	}
	path, err := Archived(dir, s.digest)
	if err != nil {
		return err
	}
	now := time.Now()
	if err := os.Chtimes(path, now, now); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("archive bundle: %w", err)
	}
	var b bytes.Buffer
	if err := s.Archive(&b); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("archive bundle: %w", err)
	}
	if err := durable.Replace(path, b.Bytes()); err != nil {
		return fmt.Errorf("archive bundle: %w", err)
	}
	return nil
}

// Archived is where in an archive the bundle with a digest is, or would be.
func Archived(dir, digest string) (string, error) {
	if !archived.MatchString(digest) {
		return "", fmt.Errorf("archived bundle: %q is no digest", digest)
	}
	return filepath.Join(dir, digest+archiveSuffix), nil
}

// LoadArchived loads the bundle with that digest from an archive, to ask again
// what it was asked. A bundle that is not there is an [fs.ErrNotExist]; one that
// is not what its name says is refused. Whether it was signed was checked when
// it was activated, and the log says so.
func LoadArchived(ctx context.Context, dir, digest string, cfg Config) (*Snapshot, error) {
	path, err := Archived(dir, digest)
	if err != nil {
		return nil, err
	}
	cfg.Bundle, cfg.Layers, cfg.Archive = path, nil, ""
	e, err := Load(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if s := e.Snapshot(); s.digest == digest {
		return s, nil
	}
	return nil, fmt.Errorf("archived bundle %s has the digest %s", path, e.Snapshot().digest)
}
