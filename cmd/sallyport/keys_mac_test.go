package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
