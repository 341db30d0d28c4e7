package tlog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
)

// leases are what the boot records of a log say of who had it open.
func leases(t *testing.T, dir string) (out []lease) {
	t.Helper()
	for _, r := range records(t, dir) {
		if r.Kind != audit.KindBoot {
			continue
		}
		var e bootEvent
		if err := json.Unmarshal(r.Event, &e); err != nil {
			t.Fatal(err)
		}
		out = append(out, e.Lease)
	}
	return out
}

// inOwnPIDNamespace starts a process that appends to the log in dir and takes
// itself for the first of its machine. It is killed at the end of the test, or
// when its end is waited for.
func inOwnPIDNamespace(t *testing.T, dir string) (kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); errors.Is(err, syscall.EPERM) {
		t.Skip("PID namespaces take root")
	} else if err != nil {
		t.Fatal(err)
	}
	ended := false
	kill = func() {
		if ended {
			return
		}
		ended = true
		_ = cmd.Process.Kill() // it may have ended itself
		_ = cmd.Wait()         // says that it was killed
	}
	t.Cleanup(kill)
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "open" {
		t.Fatalf("the process did not open the log: %q", lines.Text())
	}
	go func() {
		for lines.Scan() { // until it is killed: else it would wait for somebody to read
		}
	}()
	return kill
}

// Process numbers mean nothing to another container, so that no file with one
// in it could tell whether its writer lives. The lock is of the file itself.
func TestProcessesInTwoPIDNamespacesDoNotShareALog(t *testing.T) {
	dir := t.TempDir()
	keyFile := filepath.Join(dir, "key")
	if _, err := CreateKeyFile(keyFile, origin); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ParseKey(string(text)) // without its file, so that the directory alone protects
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Dir: filepath.Join(dir, "log"), Key: key, Boot: self, SegmentBytes: minSegmentBytes}
	first := inOwnPIDNamespace(t, dir)
	if _, err := Open(cfg); !errors.Is(err, ErrLocked) {
		t.Errorf("from outside: Open = %v", err)
	}
	again := exec.Command(os.Args[0])
	again.Env = append(os.Environ(), childEnv+"="+dir)
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if out, err := again.CombinedOutput(); err == nil || !bytes.Contains(out, []byte(ErrLocked.Error())) {
		t.Errorf("from a third namespace: %v: %s", err, out)
	}
	first()
	inOwnPIDNamespace(t, dir)()
	l := mustOpen(t, cfg)
	mustClose(t, l)

	got := leases(t, cfg.Dir)
	if len(got) != 3 {
		t.Fatalf("%d boots: %+v", len(got), got)
	}
	for i, one := range got {
		if one.Host == "" || one.Lock == "" || one.Lock != got[0].Lock || one.PIDNamespace == "" {
			t.Errorf("boot %d has the lease %+v, the first %+v", i, one, got[0])
		}
	}
	if got[0].PID != 1 || got[1].PID != 1 || got[2].PID != os.Getpid() {
		t.Errorf("leases %+v, want two of process 1 and our own", got)
	}
	if got[2].PIDNamespace == got[0].PIDNamespace || got[2].PIDNamespace == got[1].PIDNamespace {
		t.Errorf("a namespace of its own is not told from ours: %+v", got)
	}
	if report, err := Verify(cfg.Dir, key.Verifier(), VerifyOptions{}); err != nil || !report.OK() {
		t.Errorf("Verify = %+v, %v", report, err)
	}
}
