package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
)

// written is a log that has been closed twice.
func written(t *testing.T, records int) (dir string, key *tlog.Key) {
	t.Helper()
	cfg := tlog.Config{
		Dir: filepath.Join(t.TempDir(), "log"), Key: tlogtest.Key(t, tlogtest.Origin), SegmentBytes: 256 << 10,
		Boot: audit.Gateway{SPIFFE: "spiffe://" + tlogtest.Origin},
	}
	for range 2 {
		l, err := tlog.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for i := range records {
			if _, err := l.Append(t.Context(), &audit.Record{Kind: audit.KindAdmin, ID: audit.NewID(), Detail: strings.Repeat("x", i%900)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return cfg.Dir, cfg.Key
}

// TestAnotherProgramFindsTheSameLog verifies a log of several segments twice, by
// two programs that share no code.
func TestAnotherProgramFindsTheSameLog(t *testing.T) {
	dir, key := written(t, 700)
	size, root, err := check(dir, key.VerifierKey())
	if err != nil {
		t.Fatal(err)
	}
	report, err := tlog.Verify(dir, key.Verifier(), tlog.VerifyOptions{})
	if err != nil || !report.OK() || report.Segments < 4 {
		t.Fatalf("Verify = %+v, %v", report, err)
	}
	if size != report.TreeSize || fmt.Sprintf("%x", root) != report.RootHex {
		t.Errorf("%d records, root %x; audit verify has %d, %s", size, root, report.TreeSize, report.RootHex)
	}
	if _, _, err := check(dir, tlogtest.Key(t, tlogtest.Origin).VerifierKey()); err == nil {
		t.Error("it is whole under another key too")
	}
}

// TestTwoProgramsAgreeOnEveryChangedByte changes bytes of a small log, as they
// are and with the CRC made right, and asks both.
func TestTwoProgramsAgreeOnEveryChangedByte(t *testing.T) {
	dir, key := written(t, 3)
	names, err := filepath.Glob(filepath.Join(dir, "wal", "0*"))
	if err != nil || len(names) != 2 {
		t.Fatalf("segments %v, %v", names, err)
	}
	// So that nothing but the segments tells.
	if err := os.Remove(filepath.Join(dir, "checkpoint")); err != nil {
		t.Fatal(err)
	}
	asked := 0
	for _, name := range names {
		whole, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all, err := frames(whole)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			for i := 0; i < len(f.raw); i += 7 {
				for _, repaired := range []bool{false, true} {
					damaged := append([]byte(nil), whole...)
					damaged[f.at+i] ^= 1 << (i % 8)
					if repaired {
						if i < 8 {
							continue // then it is of another length, or the same again
						}
						g := frame{f.at, f.kind, damaged[f.at : f.at+len(f.raw)]}
						binary.LittleEndian.PutUint32(g.raw[4:], g.sum())
					}
					if err := os.WriteFile(name, damaged, 0o600); err != nil {
						t.Fatal(err)
					}
					_, _, theirs := check(dir, key.VerifierKey())
					report, err := tlog.Verify(dir, key.Verifier(), tlog.VerifyOptions{})
					if asked++; theirs == nil || err == nil && report.OK() {
						t.Fatalf("%s, frame of kind %d at %d, byte %d, repaired %t: %v; audit verify: %+v, %v", filepath.Base(name), f.kind, f.at, i, repaired, theirs, report, err)
					}
				}
			}
		}
		if err := os.WriteFile(name, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := check(dir, key.VerifierKey()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if t.Logf("%d changes", asked); asked < 500 {
		t.Error("that is not many")
	}
}

// TestTheProgramHasNothingOfOurs holds that it is another's.
func TestTheProgramHasNothingOfOurs(t *testing.T) {
	text, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), `"github.com/sallyport-ai/`) {
		t.Error("it imports what it is to check")
	}
	if _, _, err := check(t.TempDir(), "no key"); !errors.Is(err, errUnknown) {
		t.Errorf("of nothing it says %v", err)
	}
}
