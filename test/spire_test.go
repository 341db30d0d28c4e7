package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// spire is a real SPIRE server with one agent, on loopback. It tells workloads
// apart by the path of their executable, so each has a name for ours of its own.
type spire struct {
	domain  string // its trust domain
	bundles string // host:port of its bundle endpoint
	dir     string
	bin     string // where spire-server and spire-agent are
	ttl     time.Duration
	agent   *process
	entries map[string]string // registration entry by SPIFFE ID
}

var (
	spireServes = regexp.MustCompile(`msg="Starting Server APIs"`)
	agentServes = regexp.MustCompile(`msg="Starting Workload and SDS APIs"`)
)

// node is the agent's own identity.
func (s *spire) node() string { return "spiffe://" + s.domain + "/node" }

// defaultSPIRETTL keeps the tests short; SALLYPORT_SPIRE_TTL says otherwise.
const defaultSPIRETTL = 24 * time.Second

// newSPIRE starts the server of a trust domain and its agent. It skips the test unless it is told
// where their binaries are: to build them takes minutes.
func newSPIRE(t *testing.T, domain string) *spire {
	t.Helper()
	s := &spire{domain: domain, bin: os.Getenv("SALLYPORT_SPIRE"), ttl: defaultSPIRETTL, entries: make(map[string]string)}
	if s.bin == "" {
		t.Skip("SALLYPORT_SPIRE does not name the folder of spire-server and spire-agent, which .ci/run builds")
	}
	var err error
	if ttl := os.Getenv("SALLYPORT_SPIRE_TTL"); ttl != "" {
		if s.ttl, err = time.ParseDuration(ttl); err != nil {
			t.Fatalf("SALLYPORT_SPIRE_TTL: %v", err)
		}
	}
	if s.dir, err = os.MkdirTemp(box, "s"); err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	for _, name := range []string{"server", "agent", "bin"} {
		if err := os.Mkdir(filepath.Join(s.dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	bundlePort := freePort(t)
	s.bundles = net.JoinHostPort("127.0.0.1", bundlePort)
	fill := strings.NewReplacer("@DIR@", s.dir, "@PORT@", port, "@BUNDLE_PORT@", bundlePort, "@DOMAIN@", domain, "@TTL@", s.ttl.String())
	for _, name := range []string{"server.conf", "agent.conf"} {
		text, err := os.ReadFile(filepath.Join("spire", name))
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(s.dir, name), fill.Replace(string(text)))
	}
	startFile(t, filepath.Join(s.bin, "spire-server"), spireServes, "run", "-config", filepath.Join(s.dir, "server.conf"))
	s.healthy(t, "spire-server", "api.sock")
	writeFile(t, filepath.Join(s.dir, "bundle.pem"), string(s.server(t, "bundle", "show", "-format", "pem")))
	var token struct{ Value string }
	s.server(t, "token", "generate", "-spiffeID", s.node(), "-output", "json").decode(t, &token)
	s.startAgent(t, "-joinToken", token.Value)
	return s
}

// freePort is a port that nobody listened on just now.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// startAgent starts the agent, again if it was killed.
func (s *spire) startAgent(t *testing.T, args ...string) {
	t.Helper()
	args = append([]string{"run", "-config", filepath.Join(s.dir, "agent.conf")}, args...)
	s.agent, _ = startFile(t, filepath.Join(s.bin, "spire-agent"), agentServes, args...)
	s.healthy(t, "spire-agent", "agent.sock")
}

func (s *spire) healthy(t *testing.T, program, socket string) {
	t.Helper()
	for until := time.Now().Add(startTime); ; time.Sleep(50 * time.Millisecond) {
		err := exec.CommandContext(t.Context(), filepath.Join(s.bin, program), "healthcheck", "-socketPath", filepath.Join(s.dir, socket)).Run()
		if err == nil {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%s is not healthy after %v: %v", program, startTime, err)
		}
	}
}

// output is what a command of the server said.
type output []byte

func (o output) decode(t *testing.T, into any) {
	t.Helper()
	if err := json.Unmarshal(o, into); err != nil {
		t.Fatalf("%v: %s", err, o)
	}
}

// server runs a command of spire-server, such as "entry create".
func (s *spire) server(t *testing.T, noun, verb string, args ...string) output {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTime)
	defer cancel()
	args = append([]string{noun, verb, "-socketPath", filepath.Join(s.dir, "api.sock")}, args...)
	out, err := exec.CommandContext(ctx, filepath.Join(s.bin, "spire-server"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("spire-server %s %s: %v: %s", noun, verb, err, out)
	}
	return out
}

// register makes whoever runs the executable the workload id.
func (s *spire) register(t *testing.T, id, executable string) {
	t.Helper()
	var created struct {
		Results []struct {
			Entry struct{ ID string }
		}
	}
	seconds := strconv.Itoa(int(s.ttl / time.Second))
	s.server(t, "entry", "create", "-parentID", s.node(), "-spiffeID", id, "-selector", "unix:path:"+executable,
		"-x509SVIDTTL", seconds, "-jwtSVIDTTL", seconds, "-output", "json").decode(t, &created)
	if len(created.Results) != 1 || created.Results[0].Entry.ID == "" {
		t.Fatalf("no entry was made for %s", id)
	}
	s.entries[id] = created.Results[0].Entry.ID
}

// withdraw takes the registration of a workload away.
func (s *spire) withdraw(t *testing.T, id string) {
	t.Helper()
	s.server(t, "entry", "delete", "-entryID", s.entries[id])
	delete(s.entries, id)
}

// executable is ours under a name that makes who runs it the workload id.
func (s *spire) executable(t *testing.T, id string) string {
	t.Helper()
	file := filepath.Join(s.dir, "bin", path.Base(path.Dir(id))+"-"+path.Base(id))
	if _, registered := s.entries[id]; registered {
		return file
	}
	if err := os.Link(binary(t), file); err != nil {
		t.Fatal(err)
	}
	s.register(t, id, file)
	return file
}

// socket is the address of the agent's Workload API.
func (s *spire) socket() string { return fmt.Sprintf("unix://%s/agent.sock", s.dir) }
