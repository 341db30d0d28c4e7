package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

func runKeys(t *testing.T, args ...string) {
	t.Helper()
	if code := run(t.Context(), args); code != 0 {
		t.Fatalf("%v: exit %d", args, code)
	}
}

// TestPruneKeepsWhatIsLeftProvable prunes a log of several segments, and what
// the policies of the records that went were kept for.
func TestPruneKeepsWhatIsLeftProvable(t *testing.T) {
	dir, keyFile := t.TempDir(), filepath.Join(t.TempDir(), "key")
	if _, err := createLogKey(keyFile, "example.org/gateway"); err != nil {
		t.Fatal(err)
	}
	key, err := tlog.ReadKeyFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	log, err := tlog.Open(tlog.Config{Dir: dir, Key: key, Boot: audit.Gateway{SPIFFE: "spiffe://example.org/gateway"}, SegmentBytes: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	const n = 60
	if err := os.Mkdir(policyArchive(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	digest := func(i int) string { return fmt.Sprintf("%064x", i/(n/2)) } // the policy changes half way
	for i := range n {
		r := &audit.Record{
			Kind: audit.KindDecision, ID: audit.NewID(), Status: audit.StatusDenied, Detail: strings.Repeat("x", 30<<10),
			Policy: &audit.Policy{Revision: fmt.Sprint(7 + i/(n/2)), Digest: digest(i)},
		}
		if _, err := log.Append(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(policyArchive(dir), digest(i)+".tar.gz"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	run := func(want int, args ...string) {
		t.Helper()
		if code := run(t.Context(), append([]string{"audit"}, args...)); code != want {
			t.Errorf("audit %v: exit %d, want %d", args, code, want)
		}
	}
	run(2, "prune", dir, "--before", "1ns")
	run(2, "prune", dir, "--key-file", keyFile, "--before", "long ago")
	run(0, "prune", dir, "--key-file", keyFile, "--before", "2020-01-01") // nothing is that old
	run(0, "prune", dir, "--key-file", keyFile, "--below", "45", "--reason", "test")
	run(0, "verify", dir, "--key", keyFile+".pub")
	run(0, "verify", dir, "--key", keyFile+".pub", "--from", "58")
	run(2, "verify", dir, "--key", keyFile+".pub", "--from", "1") // they are gone
	old := filepath.Join(t.TempDir(), "old.pub")
	if err := os.Rename(keyFile+".pub", old); err != nil {
		t.Fatal(err)
	}
	run2 := func(want int, args ...string) {
		t.Helper()
		run(want, append(args, "--key", old, "--key", keyFile+".pub")...)
	}
	runKeys(t, "keys", "log", "rotate", dir, "--key", keyFile)
	run(0, "verify", dir, "--key", old) // rotations lead from one to the next
	run2(0, "verify", dir, "--from", "58")
	excerpt := filepath.Join(t.TempDir(), "x.jsonl")
	run(0, "export", dir, "--from", "58", "--out", excerpt)
	run2(0, "verify", excerpt)
	run(1, "verify", excerpt, "--key", old)
	if _, err := os.Stat(filepath.Join(policyArchive(dir), digest(0)+".tar.gz")); err == nil {
		t.Error("the policy of records that are gone is kept")
	}
	if _, err := os.Stat(filepath.Join(policyArchive(dir), digest(n-1)+".tar.gz")); err != nil {
		t.Errorf("the policy of records that are left: %v", err)
	}
	first, _, err := ends(dir)
	if err != nil || first.index < 8 {
		t.Errorf("the first record left is %d, %v", first.index, err)
	}
	// No record of an activation is left, and what was active is still known.
	if got, err := lastRevision(dir); err != nil || got != "8" {
		t.Errorf("last revision %q, %v", got, err)
	}
}
