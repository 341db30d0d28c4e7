package bundle

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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

// pipe puts a pipe in the place of a file, which nobody writes to: who opened it to
// read would wait for ever.
func pipe(path string) error {
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	return syscall.Mkfifo(path, 0o600)
}

func TestABundleThatIsAPipeIsNoBundle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.tar")
	if err := pipe(path); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, t.TempDir()); err == nil {
		t.Error("it was opened")
	}
}

func TestABundleThatWasTouchedIsDamaged(t *testing.T) {
	for claim, touch := range map[string]func(dir string) error{
		"a file is changed":       func(dir string) error { return os.WriteFile(filepath.Join(dir, "keys.txt"), nil, 0o600) },
		"a file is gone":          func(dir string) error { return os.Remove(filepath.Join(dir, "logs/0.jsonl")) },
		"a file came":             func(dir string) error { return os.WriteFile(filepath.Join(dir, "more"), nil, 0o600) },
		"a link came":             func(dir string) error { return os.Symlink("/etc/passwd", filepath.Join(dir, "link")) },
		"the manifest is another": func(dir string) error { return os.WriteFile(filepath.Join(dir, manifestName), []byte("{}"), 0o600) },
		"the manifest is too long": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, manifestName), bytes.Repeat([]byte(" "), maxManifest+1), 0o600)
		},
		"the manifest is a pipe": func(dir string) error { return pipe(filepath.Join(dir, manifestName)) },
		"a file is a pipe":       func(dir string) error { return pipe(filepath.Join(dir, "keys.txt")) },
		"a file is a link to a device": func(dir string) error {
			path := filepath.Join(dir, "keys.txt")
			return errors.Join(os.Remove(path), os.Symlink("/dev/zero", path))
		},
		"a pipe came": func(dir string) error { return pipe(filepath.Join(dir, "more")) },
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

// A sparse file takes a kilobyte of a tarball and any size on disk.
func TestAFileOfATarballIsNoLongerThanTheTarball(t *testing.T) {
	var raw bytes.Buffer
	tw := tar.NewWriter(&raw)
	part := func(name, text string) {
		t.Helper()
		err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text)), Typeflag: tar.TypeReg})
		if _, err2 := io.WriteString(tw, text); err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
	}
	var extended string
	for _, kv := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=x", "GNU.sparse.realsize=99999999"} {
		extended += fmt.Sprintf("%02d %s\n", len(kv)+4, kv)
	}
	part("PaxHeaders.0/x", extended)
	part("x", "1\n99999999\n0\n"+strings.Repeat("\x00", 512-13))
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	// The package writes no such header, so a plain one is made it.
	head := raw.Bytes()[:512]
	head[156] = tar.TypeXHeader
	copy(head[148:156], "        ")
	sum := 0
	for _, b := range head {
		sum += int(b)
	}
	copy(head[148:156], fmt.Sprintf("%06o\x00 ", sum))
	if h, err := tar.NewReader(bytes.NewReader(raw.Bytes())).Next(); err != nil || h.Size != 99999999 {
		t.Fatalf("no sparse file: %+v, %v", h, err)
	}
	path := filepath.Join(t.TempDir(), "b.tar")
	if err := os.WriteFile(path, raw.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	scratch := t.TempDir()
	if _, err := Open(path, scratch); !errors.Is(err, ErrDamaged) {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(scratch, "x")); err == nil {
		t.Error("it was unpacked")
	}
}

func TestATarballMayNotReachOut(t *testing.T) {
	for claim, headers := range map[string][]tar.Header{
		"a name that leaves":        {{Name: "../x", Typeflag: tar.TypeReg}},
		"an absolute name":          {{Name: "/x", Typeflag: tar.TypeReg}},
		"a name of two lines":       {{Name: "x\ny", Typeflag: tar.TypeReg}},
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
