package test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
	"github.com/sallyport-ai/sallyport/identity/jws/jwstest"
)

// redis is a server that gateways share, on a socket of its own. It keeps nothing.
type redis struct {
	binary, dir string
	cmd         *exec.Cmd
}

func newRedis(t *testing.T) *redis {
	t.Helper()
	r := &redis{}
	for _, name := range []string{"valkey-server", "redis-server"} {
		if path, err := exec.LookPath(name); err == nil {
			r.binary = path
		}
	}
	if r.binary == "" {
		t.Skip("needs redis-server or valkey-server, which is not installed")
	}
	var err error
	if r.dir, err = os.MkdirTemp(box, "r"); err != nil {
		t.Fatal(err)
	}
	r.start(t)
	t.Cleanup(r.stop)
	return r
}

func (r *redis) socket() string { return filepath.Join(r.dir, "s") }

func (r *redis) start(t *testing.T) {
	t.Helper()
	r.cmd = exec.Command(r.binary, "--port", "0", "--unixsocket", r.socket(), "--save", "", "--appendonly", "no", "--dir", r.dir)
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(startTime); ; time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("unix", r.socket()); err == nil {
			c.Close()
			return
		}
		if time.Now().After(until) {
			t.Fatal("redis does not serve")
		}
	}
}

func (r *redis) stop() {
	if r.cmd == nil {
		return
	}
	_ = r.cmd.Process.Kill() // it may have ended, which is as well
	_ = r.cmd.Wait()
	_ = os.Remove(r.socket())
	r.cmd = nil
}

// dpopClient is a client whose tokens are bound to its key.
type dpopClient struct {
	*jwstest.Client
	token  string
	origin string // as the gateways say that they are called
}

func (w *world) dpopClient(t *testing.T, origin string) *dpopClient {
	t.Helper()
	c := &dpopClient{Client: jwstest.NewClient(), origin: origin}
	var err error
	c.token, err = w.issuer.Mint(map[string]any{"sub": "alice@acme.example", "tenant": "acme", "aud": audience, "cnf": map[string]string{"jkt": c.Thumbprint()}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *dpopClient) proof(t *testing.T) string {
	t.Helper()
	return c.Prove(t, c.origin+completions, c.token)
}

// status is how a gateway answers to a proof.
func (c *dpopClient) status(t *testing.T, client *http.Client, gateway, proof string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gateway+completions, bytes.NewReader(chat("Hello", false, 4)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "DPoP "+c.token)
	req.Header.Set("DPoP", proof)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// Two gateways that share a server take a proof once between them. Without it one
// refuses, the other goes by what it knows, and the log says since when.
func TestGatewaysThatShareAServerTakeAProofOnce(t *testing.T) {
	server := newRedis(t)
	w := newWorld(t)
	raw, err := os.ReadFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	const origin = "https://llm.test"
	sharing := func(whenDown string) string {
		return strings.Replace(string(raw), "identity:\n", fmt.Sprintf(
			"identity:\n  resource: {url: %q}\n  dpop: {nonce: optional}\n  valkey: {url: %q, timeout: 2s, when_down: %s}\n", origin, "unix://"+server.socket(), whenDown), 1)
	}
	writeFile(t, w.config, sharing("deny"))
	_, strict := w.serve(t)
	strictLog := w.logDir
	// The second has a log and a key of its own. No relay knows that key, so it
	// forwards nothing; but first it says whether it knows the caller.
	if _, code := sallyport(t, "keys", "log", "--origin", trustDomain+"/other", "--out", filepath.Join(w.dir, "other.key")); code != 0 {
		t.Fatal("keys log failed")
	}
	w.config = writeFile(t, filepath.Join(w.dir, "other.yaml"), strings.Replace(sharing("local"), "dir: audit, key_file: audit.key", "dir: other, key_file: other.key", 1))
	_, lenient := w.serve(t)

	client := w.client(t, nil)
	alice := w.dpopClient(t, origin)
	known := func(gateway, proof string) bool {
		t.Helper()
		return alice.status(t, client, gateway, proof) != http.StatusUnauthorized
	}
	for _, c := range []struct{ claim, first, second string }{
		{"one, then the other", strict, lenient}, {"the other, then the one", lenient, strict}, {"the same twice", strict, strict},
	} {
		proof := alice.proof(t)
		if !known(c.first, proof) || known(c.second, proof) {
			t.Errorf("%s: a proof was not taken once", c.claim)
		}
	}

	server.stop()
	if got := alice.status(t, client, strict, alice.proof(t)); got != http.StatusServiceUnavailable {
		t.Errorf("deny: %d", got)
	}
	proof := alice.proof(t)
	if !known(lenient, proof) || known(lenient, proof) {
		t.Error("local: a proof was not taken once")
	}

	server.start(t)
	for until := time.Now().Add(startTime); alice.status(t, client, strict, alice.proof(t)) == http.StatusServiceUnavailable; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("deny: it did not come back")
		}
	}
	for dir, mode := range map[string]string{strictLog: "deny", filepath.Join(w.dir, "other"): "local"} {
		told := ""
		for until := time.Now().Add(startTime); told != "lost back " && time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
			told = ""
			for _, r := range tlogtest.Records(t, dir, 0) {
				for _, state := range []string{"lost", "back"} {
					if r.Kind == audit.KindAdmin && strings.Contains(string(r.Event), fmt.Sprintf(`"state":%q,"when_down":%q`, state, mode)) {
						told += state + " "
					}
				}
			}
		}
		if told != "lost back " {
			t.Errorf("%s: the log tells of %q", mode, told)
		}
	}
}
