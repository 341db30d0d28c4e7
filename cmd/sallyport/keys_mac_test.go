package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit/mackey"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
)

// TestNoMACKeyIsDestroyedWithoutALogToSaySo names as the log a folder that is
// none: a note there would be taken in by nobody.
func TestNoMACKeyIsDestroyedWithoutALogToSaySo(t *testing.T) {
	keys, noLog := t.TempDir(), t.TempDir()
	file := filepath.Join(keys, "YWNtZQ", "2026-01") // of tenant acme
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Repeat("k", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, before := range []string{"2026-02", "2026-2", "0", "may"} {
		if code := run(t.Context(), []string{"keys", "mac", "destroy", "--keys", keys, "--log", noLog, "--before", before}); code != exitCannotTell {
			t.Errorf("--before %s: exit %d", before, code)
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the key: %v", err)
	}
}

// TestMACKeysOfTenantsWithLongNamesAreDestroyedOnRecord destroys more of them
// than one note has room for.
func TestMACKeysOfTenantsWithLongNamesAreDestroyedOnRecord(t *testing.T) {
	keys, log := filepath.Join(t.TempDir(), "keys"), t.TempDir()
	tlogtest.Write(t, tlog.Config{Dir: log})
	ring, err := mackey.Open(keys)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"acme", strings.Repeat("\x01<", 10000)}
	for i := range 30 {
		names = append(names, strings.Repeat("n", 400)+fmt.Sprint(i))
	}
	for _, name := range names {
		if _, err := ring.MAC(name, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	all, err := mackey.Find(keys, "", "2026-02")
	if err != nil || len(all) != len(names) {
		t.Fatalf("%d keys, %v", len(all), err)
	}
	if out, code := output(t, "keys", "mac", "destroy", "--keys", keys, "--log", log, "--before", "2026-02"); code != 0 {
		t.Fatalf("exit %d\n%.500s", code, out)
	}
	if left, err := mackey.Find(keys, "", "2026-02"); err != nil || len(left) != 0 {
		t.Errorf("%d keys are left, %v", len(left), err)
	}
	notes, err := filepath.Glob(filepath.Join(log, "inbox", "*.json"))
	if err != nil || len(notes) < 3 {
		t.Errorf("%d notes, %v", len(notes), err)
	}
	said := ""
	for _, note := range notes {
		text, err := os.ReadFile(note)
		if err != nil {
			t.Fatal(err)
		}
		said += string(text)
	}
	for _, k := range all {
		if !strings.Contains(said, k.SHA256) {
			t.Errorf("no note of the key of %.20q (%d bytes)", k.Tenant, len(k.Tenant))
		}
	}
}
