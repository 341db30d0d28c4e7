package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

func TestALogsKeyIsRotatedByCommand(t *testing.T) {
	dir := t.TempDir()
	file, log := filepath.Join(dir, "audit.key"), filepath.Join(dir, "audit")
	if _, err := createLogKey(file, "example.org/gateway/a"); err != nil {
		t.Fatal(err)
	}
	open := func() {
		t.Helper()
		key, err := tlog.ReadKeyFile(file)
		if err != nil {
			t.Fatal(err)
		}
		l, err := tlog.Open(tlog.Config{Dir: log, Key: key, Boot: audit.Gateway{SPIFFE: "spiffe://example.org/gateway/a"}, SegmentBytes: 256 << 10})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) (string, error) {
		cmd := keysLogCommand()
		var out strings.Builder
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(append([]string{"rotate"}, args...))
		return strings.TrimSpace(out.String()), cmd.ExecuteContext(t.Context())
	}
	open()
	pinned, err := tlog.ReadVerifierFile(file + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run(log); err == nil {
		t.Error("a key that is not named is rotated")
	}
	if _, err := run(filepath.Join(dir, "nowhere"), "--key", file); err == nil {
		t.Error("the key of no log is rotated")
	}
	if _, err := os.Stat(filepath.Join(dir, "nowhere")); err == nil {
		t.Error("a log was made")
	}
	if _, err := run(log, "--key", file); err != nil {
		t.Fatal(err)
	}
	open()
	now, err := tlog.ReadVerifierFile(file + ".pub")
	if err != nil || now.KeyHash() == pinned.KeyHash() {
		t.Errorf("the verifier key beside the new key is %v, %v", now, err)
	}
	report, err := tlog.Verify(log, pinned, tlog.VerifyOptions{})
	if err != nil || !report.OK() || report.Rotations != 1 {
		t.Errorf("Verify with the old key pinned = %+v, %v", report, err)
	}
}
