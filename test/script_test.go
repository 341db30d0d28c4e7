package test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestScripts runs the scripts of testdata/script against the real binary. They
// find the log that the demo left behind in $LOG, its key in $KEY, the copy
// with a flipped bit in $TAMPERED and the record that it is in in $VICTIM, the
// demo's directory in $DEMO, and the ids of two of its decisions in $WARM and
// $DENIED.
func TestScripts(t *testing.T) {
	d := tour(t)
	victim, _, _ := strings.Cut(strings.TrimPrefix(d.steps["tampered-log"].Reason, "record "), ":")
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", filepath.Dir(binary(t))+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("LOG", d.summary.LogDir)
			env.Setenv("KEY", d.summary.LogKey)
			env.Setenv("DEMO", d.dir)
			env.Setenv("TAMPERED", filepath.Join(d.dir, "tampered"))
			env.Setenv("VICTIM", victim)
			env.Setenv("WARM", d.steps["warm-chat"].DecisionID)
			env.Setenv("DENIED", d.steps["denied"].DecisionID)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":   exits,
			"copy":    copyTree,
			"cut":     cutLog,
			"append":  appendToLog,
			"private": private,
		},
	})
}

// exits CODE PROGRAM ARG... runs a program that must end with exactly that code.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	code := 0
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if code != want {
		ts.Fatalf("exit %d, want %d", code, want)
	}
}

// copy FROM TO copies a directory.
func copyTree(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(os.CopyFS(ts.MkAbs(args[1]), os.DirFS(args[0])))
}

// segment is the first segment of a log.
func segment(ts *testscript.TestScript, dir string) string {
	return filepath.Join(ts.MkAbs(dir), "wal", "00000000")
}

// cut DIR takes away the last hundred bytes that are not zero.
func cutLog(ts *testscript.TestScript, _ bool, args []string) {
	path := segment(ts, args[0])
	b, err := os.ReadFile(path)
	ts.Check(err)
	end := len(bytes.TrimRight(b, "\x00"))
	ts.Check(os.Truncate(path, int64(end-100)))
}

// append DIR writes something behind what is there.
func appendToLog(ts *testscript.TestScript, _ bool, args []string) {
	f, err := os.OpenFile(segment(ts, args[0]), os.O_WRONLY|os.O_APPEND, 0)
	ts.Check(err)
	_, err = f.WriteString("more")
	ts.Check(errors.Join(err, f.Close()))
}

// private FILE holds if nobody but its owner may read it.
func private(ts *testscript.TestScript, _ bool, args []string) {
	st, err := os.Stat(ts.MkAbs(args[0]))
	ts.Check(err)
	if st.Mode().Perm() != 0o600 {
		ts.Fatalf("mode %v", st.Mode())
	}
}
