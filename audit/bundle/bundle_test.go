package bundle

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// example is a bundle of two files, as a directory and as a tarball.
func example(t *testing.T) (dir, tarball string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "b")
	w, err := Create(dir, "test", map[string]string{"month": "2026-11"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"logs/0.jsonl", "keys.txt"} {
		err := w.Add(name, func(out io.Writer) error { _, err := fmt.Fprintln(out, name); return err })
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Add("../x", func(io.Writer) error { return nil }); err == nil {
		t.Error("a file was put outside")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	tarball = dir + ".tar"
	f, err := os.Create(tarball)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Tar(f, dir), f.Close()); err != nil {
		t.Fatal(err)
	}
	return dir, tarball
}

func TestABundleIsReadAsItWasWritten(t *testing.T) {
	dir, tarball := example(t)
	for _, path := range []string{dir, tarball} {
		b, err := Open(path, t.TempDir())
		if err != nil || !Is(path) {
			t.Fatal(err)
		}
		text, err := os.ReadFile(b.Path("logs/0.jsonl"))
		if err != nil || string(text) != "logs/0.jsonl\n" || len(b.Under("logs")) != 1 || b.About["month"] != "2026-11" {
			t.Errorf("%s: %q, %+v, %v", path, text, b, err)
		}
	}
	if Is(t.TempDir()) {
		t.Error("an empty directory is taken for a bundle")
	}
}

func TestABundleThatWasTouchedIsDamaged(t *testing.T) {
	for claim, touch := range map[string]func(dir string) error{
		"a file is changed":       func(dir string) error { return os.WriteFile(filepath.Join(dir, "keys.txt"), nil, 0o600) },
		"a file is gone":          func(dir string) error { return os.Remove(filepath.Join(dir, "logs/0.jsonl")) },
		"a file came":             func(dir string) error { return os.WriteFile(filepath.Join(dir, "more"), nil, 0o600) },
		"a link came":             func(dir string) error { return os.Symlink("/etc/passwd", filepath.Join(dir, "link")) },
		"the manifest is another": func(dir string) error { return os.WriteFile(filepath.Join(dir, manifestName), []byte("{}"), 0o600) },
		"the manifest names what is outside": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, manifestName), []byte(`{"bundle":1,"files":{"../../x":""}}`), 0o600)
		},
	} {
		dir, _ := example(t)
		if err := touch(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, t.TempDir()); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", claim, err)
		}
	}
}

func TestATarballMayNotReachOut(t *testing.T) {
	for claim, headers := range map[string][]tar.Header{
		"a name that leaves":        {{Name: "../x", Typeflag: tar.TypeReg}},
		"an absolute name":          {{Name: "/tmp/x", Typeflag: tar.TypeReg}},
		"a link":                    {{Name: "x", Linkname: "/etc/passwd", Typeflag: tar.TypeSymlink}},
		"a name that is said twice": {{Name: "x", Typeflag: tar.TypeReg}, {Name: "x", Typeflag: tar.TypeReg}},
	} {
		path := filepath.Join(t.TempDir(), "b.tar")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		tw := tar.NewWriter(f)
		for _, h := range headers {
			if err := tw.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(tw.Close(), f.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path, t.TempDir()); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", claim, err)
		}
	}
}
