package test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// box holds what the tests of this package share; TestMain removes it.
var box string

func TestMain(m *testing.M) {
	if os.Getenv(proxyRole) != "" {
		fmt.Fprintln(os.Stderr, runProxy())
		os.Exit(1)
	}
	var err error
	// A short path: those of Unix sockets have to fit into 107 bytes.
	if box, err = os.MkdirTemp("", "sp"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := os.RemoveAll(box); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// followSources looks at every folder of source. Go takes a test's result from
// its cache while nothing has changed that the test has looked at, and it does
// not see what a command that the test runs, such as go build, looks at.
func followSources() error {
	for _, top := range []string{"audit", "cmd", "gateway", "identity", "policies", "policy", "routing", "test"} {
		err := filepath.WalkDir(filepath.Join("..", top), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && d.Name() == "node_modules" {
				return fs.SkipDir
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// buildOnce makes the real binary, the first time that a test wants it.
var buildOnce = sync.OnceValues(func() (string, error) {
	if err := followSources(); err != nil {
		return "", err
	}
	path := filepath.Join(box, "bin", "sallyport")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/sallyport")
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

func binary(t *testing.T) string {
	t.Helper()
	path, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// sallyport runs a command to its end, and returns its output and exit code.
func sallyport(t *testing.T, args ...string) (stdout string, code int) {
	t.Helper()
	file := binary(t) // which may take longer than the command
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, file, args...).Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("sallyport %v: %v", args, err)
	}
	if exit != nil {
		t.Logf("sallyport %v: %v: %s", args, err, exit.Stderr)
		return string(out), exit.ExitCode()
	}
	return string(out), 0
}
