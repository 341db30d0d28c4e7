package policy

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestWhatWasActiveCanBeAskedAgain(t *testing.T) {
	private, public := keyPair(t)
	dir := t.TempDir()
	bundle, archive := filepath.Join(dir, "b.tar.gz"), filepath.Join(dir, "archive")
	build(t, bundle, []fs.FS{strategyBundle("probabilistic")}, "1", private)
	e, err := Load(t.Context(), Config{Bundle: bundle, VerifyKeyFile: public, Production: true, Archive: archive})
	if err != nil {
		t.Fatal(err)
	}
	first := e.Activation()
	build(t, bundle, []fs.FS{strategyBundle("deterministic")}, "2", private)
	second, err := e.Reload(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for digest, strategy := range map[string]string{first.Digest: "probabilistic", second.Digest: "deterministic"} {
		s, err := LoadArchived(t.Context(), archive, digest, Config{})
		if err != nil {
			t.Fatal(err)
		}
		d, _, err := s.Decide(t.Context(), ask())
		if err != nil || d.Strategy != strategy {
			t.Errorf("%s answers %+v, %v; want %s", digest, d, err, strategy)
		}
	}
	if _, err := e.Reload(t.Context(), nil); err != nil {
		t.Errorf("the same again: %v", err)
	}
	files, err := os.ReadDir(archive)
	if err != nil || len(files) != 2 {
		t.Errorf("%d files are kept, %v", len(files), err)
	}
}

func TestABundleThatCannotBeKeptIsNotActivated(t *testing.T) {
	dir := t.TempDir()
	archive := filepath.Join(dir, "archive")
	write(t, archive, []byte("not a directory"))
	if _, err := Load(t.Context(), Config{Layers: []fs.FS{strategyBundle("probabilistic")}, Archive: archive}); err == nil {
		t.Error("activated")
	}
}

func TestAnArchivedBundleIsWhatItsNameSays(t *testing.T) {
	archive := t.TempDir()
	e, err := Load(t.Context(), Config{Layers: []fs.FS{strategyBundle("probabilistic")}, Archive: archive})
	if err != nil {
		t.Fatal(err)
	}
	digest := e.Activation().Digest
	kept, err := Archived(archive, digest)
	if err != nil {
		t.Fatal(err)
	}
	other := "00" + digest[2:]
	if err := os.Rename(kept, filepath.Join(archive, other+archiveSuffix)); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadArchived(t.Context(), archive, other, Config{}); err == nil {
		t.Error("a bundle under another's name was taken")
	}
	if _, err := LoadArchived(t.Context(), archive, digest, Config{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a bundle that is not there: %v", err)
	}
	for _, digest := range []string{"", "../b", digest[:63], digest + "0"} {
		if _, err := Archived(archive, digest); err == nil {
			t.Errorf("%q is taken for a digest", digest)
		}
	}
	if files, err := os.ReadDir(archive); err != nil || slices.ContainsFunc(files, func(f fs.DirEntry) bool { return filepath.Ext(f.Name()) != ".gz" }) {
		t.Errorf("something was left behind: %v, %v", files, err)
	}
}
