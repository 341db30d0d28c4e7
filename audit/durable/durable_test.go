package durable

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestReplacePutsTheNewContentInPlaceOfTheOld(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cursor.json")
	for _, want := range []string{"first, and long", "second", ""} {
		if err := Replace(path, []byte(want)); err != nil {
			t.Fatal(err)
		}
		if got := read(t, path); got != want {
			t.Errorf("read %q, want %q", got, want)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %04o, want 0600", info.Mode().Perm())
	}
	onlyFile(t, path)
}

func TestReplaceLeavesTheOldFileAndNothingElseWhereItFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "taken")
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, []byte("new")); err == nil {
		t.Error("replaced a directory that is not empty")
	}
	onlyFile(t, path)
	if err := Replace(filepath.Join(path, "no", "such", "folder"), nil); err == nil {
		t.Error("replaced a file in a folder that is not there")
	}
}

func TestReplaceReplacesALinkAndNotWhatItLeadsTo(t *testing.T) {
	dir := t.TempDir()
	other, path := filepath.Join(dir, "other"), filepath.Join(dir, "link")
	if err := os.WriteFile(other, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, path); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if read(t, other) != "kept" || read(t, path) != "new" {
		t.Errorf("the link has %q and what it led to %q", read(t, path), read(t, other))
	}
}

func TestWhoeverReadsMeanwhileSeesAWholeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	texts := []string{strings.Repeat("a", 1<<16), strings.Repeat("b", 1<<16)}
	if err := Replace(path, []byte(texts[0])); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for _, text := range texts {
		writers.Go(func() {
			for range 20 {
				if err := Replace(path, []byte(text)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for {
		if got := read(t, path); got != texts[0] && got != texts[1] {
			t.Fatalf("read %d bytes that nobody wrote as one", len(got))
		}
		select {
		case <-done:
			onlyFile(t, path)
			return
		default:
		}
	}
}

func TestSyncDirSaysThatADirectoryIsNotThere(t *testing.T) {
	if err := SyncDir(filepath.Join(t.TempDir(), "gone")); err == nil {
		t.Error("synced a directory that is not there")
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// onlyFile fails if anything is left beside path.
func onlyFile(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 {
		t.Errorf("beside %s there is more: %v", path, entries)
	}
}
