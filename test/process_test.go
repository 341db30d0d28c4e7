package test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startTime is how long a command may take until it says that it serves, and
// stopTime how long until it has ended.
const (
	startTime = 30 * time.Second
	stopTime  = 40 * time.Second
)

// process is a running command of the real binary.
type process struct {
	name  string
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has been waited for
	err   error         // of the wait; read once ended is closed

	mu   sync.Mutex
	said strings.Builder // both streams
}

// start runs a command of ours until the test ends, and returns what the groups
// of ready match in the first line of its output that ready matches.
func start(t *testing.T, ready *regexp.Regexp, args ...string) (*process, []string) {
	t.Helper()
	return startFile(t, binary(t), ready, args...)
}

// startFile is start for the executable given.
func startFile(t *testing.T, file string, ready *regexp.Regexp, args ...string) (*process, []string) {
	t.Helper()
	name := filepath.Base(file)
	p := &process{name: name + " " + args[0], cmd: exec.Command(file, args...), ended: make(chan struct{})}
	out, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout = p.cmd.Stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s %s said:\n%s", name, strings.Join(args, " "), tail(p.output(), 40))
		}
	})
	found := make(chan []string, 1)
	go p.follow(out, ready, found)
	select {
	case match := <-found:
		return p, match
	case <-p.ended:
		t.Fatalf("%s %s ended before it served: %v", name, strings.Join(args, " "), p.err)
	case <-time.After(startTime):
		t.Fatalf("%s %s does not serve after %v", name, strings.Join(args, " "), startTime)
	}
	return nil, nil
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// follow keeps the output, looks for ready in it, and waits for the process.
func (p *process) follow(out io.Reader, ready *regexp.Regexp, found chan<- []string) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		p.mu.Lock()
		fmt.Fprintln(&p.said, lines.Text())
		p.mu.Unlock()
		if match := ready.FindStringSubmatch(lines.Text()); match != nil {
			select {
			case found <- match[1:]:
			default: // it has said so before
			}
		}
	}
	p.err = p.cmd.Wait()
	close(p.ended)
}

// kill ends the process as a power cut would, and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended, which is as well
	<-p.ended
}

// stop asks the process to end, and expects that it does, well.
func (p *process) stop(t *testing.T) {
	t.Helper()
	p.terminate(t)
	p.await(t)
}

func (p *process) terminate(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatalf("stop %s: %v", p.name, err)
	}
}

// await waits for the end of a process that has been asked to end.
func (p *process) await(t *testing.T) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(stopTime):
		t.Fatalf("%s has not ended %v after it was asked to", p.name, stopTime)
	}
	if p.err != nil {
		t.Fatalf("%s was asked to end: %v", p.name, p.err)
	}
}

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// writeFile writes a file that only its owner may read.
func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
