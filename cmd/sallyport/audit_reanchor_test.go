package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

func TestAWipedLogIsReanchoredByCommand(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"a", "b"} {
		if _, err := createLogKey(at(name+".key"), "example.org/gateway/"+name); err != nil {
			t.Fatal(err)
		}
	}
	key, err := tlog.ReadKeyFile(at("a.key"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := tlog.Open(tlog.Config{Dir: at("a"), Key: key, Boot: audit.Gateway{SPIFFE: "spiffe://example.org/gateway/a"}, SegmentBytes: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(at("a/checkpoint"), at("held")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(at("a")); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) error {
		cmd := auditReanchorCommand()
		cmd.SetOut(io.Discard)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs(append([]string{at("a"), at("b")}, args...))
		return cmd.ExecuteContext(t.Context())
	}
	good := []string{"--key", at("a.key.pub"), "--checkpoint", at("held"), "--new-key", at("b.key"), "--by", "ops"}
	for i := 0; i < len(good); i += 2 {
		if run(append(append([]string{}, good[:i]...), good[i+2:]...)...) == nil {
			t.Errorf("without %s it is done", good[i])
		}
	}
	if err := run(good...); err != nil {
		t.Fatal(err)
	}
	pinned, err := tlog.ReadVerifierFile(at("b.key.pub"))
	if err != nil {
		t.Fatal(err)
	}
	report, err := tlog.Verify(at("b"), pinned, tlog.VerifyOptions{})
	if err != nil || !report.OK() || report.Gaps != 1 {
		t.Errorf("Verify of the new log = %+v, %v", report, err)
	}
}
