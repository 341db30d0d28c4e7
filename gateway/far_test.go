package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
)

// farProcess is set in the environment of a process that is everything but the
// gateway, so that what the gateway's process used is the gateway's alone.
const farProcess = "SALLYPORT_TEST_FAR"

// beFar runs the far parts, says where they are, and ends with its input.
func beFar() int {
	w, err := makeWorld((*world).makeAuthorities, (*world).makeKey, (*world).startReplicas)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer w.close()
	if err := json.NewEncoder(os.Stdout).Encode(w.far); err != nil {
		return 1
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// alone returns a world of which only the gateway's own parts are in this
// process.
func alone(tb testing.TB) *world {
	tb.Helper()
	cmd := exec.CommandContext(tb.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), farProcess+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	find := func(w *world, _ context.Context) error { return json.NewDecoder(out).Decode(&w.far) }
	w, err := makeWorld(find, (*world).makeSelf, (*world).makeLog, (*world).makePolicy, (*world).startFleet)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(w.close)
	w.tokens = w.far.Tokens
	return w
}
