package test

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
	"github.com/sallyport-ai/sallyport/test/await"
)

// An operator revokes by a command; the gateway that runs hears of it, says so in
// its log without naming anybody, and goes on serving others.
func TestARevocationByCommandReachesTheGatewayThatRuns(t *testing.T) {
	w := newWorld(t)
	raw, err := os.ReadFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	file := writeFile(t, filepath.Join(w.dir, "revocations"), "")
	writeFile(t, w.config, strings.Replace(string(raw), "identity:\n", "identity:\n  revocations: {file: revocations}\n", 1))
	gateway, url := w.serve(t)
	client := w.client(t, nil)
	alice, carol := w.token(t, "alice@acme.example", "acme"), w.token(t, "carol@acme.example", "acme")
	awaitOK(t, client, url, alice)

	for _, c := range []struct {
		claim string
		args  []string
		code  int
	}{
		{"nobody's tokens", []string{"--subject", "alice@acme.example"}, 2},
		{"tokens of tomorrow", []string{"--tenant", "acme", "--before", "2099-01-01T00:00:00Z"}, 2},
		{"a time that is none", []string{"--tenant", "acme", "--before", "yesterday"}, 2},
	} {
		if out, code := sallyport(t, append([]string{"tokens", "revoke", "--config", w.config}, c.args...)...); code != c.code {
			t.Errorf("%s: exit %d, %s", c.claim, code, out)
		}
	}
	if text, err := os.ReadFile(file); err != nil || len(text) != 0 {
		t.Fatalf("a refused command wrote %q, %v", text, err)
	}

	out, code := sallyport(t, "tokens", "revoke", "--config", w.config, "--tenant", "acme", "--subject", "alice@acme.example", "--by", "ops", "--reason", "drill", "--json")
	var made struct{ ID string }
	if err := json.Unmarshal([]byte(out), &made); code != 0 || err != nil || made.ID == "" {
		t.Fatalf("exit %d, %v: %s", code, err, out)
	}
	revoked := time.Now()
	w.outcome(t, url, alice, http.StatusUnauthorized)
	if late := time.Since(revoked); late > 20*time.Second { // two seconds, on a machine that is busy
		t.Errorf("heard of after %v", late)
	}
	w.outcome(t, url, carol, http.StatusOK)
	later, err := w.issuer.Mint(map[string]any{"sub": "alice@acme.example", "tenant": "acme", "aud": audience, "iat": revoked.Unix() + 2})
	if err != nil {
		t.Fatal(err)
	}
	w.outcome(t, url, later, http.StatusOK)
	if list, code := sallyport(t, "tokens", "list", "--config", w.config); code != 0 || !strings.Contains(list, made.ID) || !strings.Contains(list, "drill") {
		t.Errorf("list: exit %d, %s", code, list)
	}
	gateway.stop(t)
	told := 0
	for _, r := range tlogtest.Records(t, w.logDir, 0) {
		if r.Kind != audit.KindAdmin || !strings.Contains(string(r.Event), `"action":"revocation"`) {
			continue
		}
		told++
		if event := string(r.Event); !strings.Contains(event, made.ID) || !strings.Contains(event, `"by":"ops"`) || strings.Contains(event, "alice") {
			t.Errorf("recorded as %s", event)
		}
	}
	if told != 1 {
		t.Errorf("%d records of the revocation", told)
	}
}

// A gateway that lets its last requests end goes on to hear of revocations, and to
// write them down.
func TestARevocationEndsAStreamOfAGatewayThatIsEnding(t *testing.T) {
	w := newWorld(t)
	raw, err := os.ReadFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(w.dir, "revocations"), "")
	writeFile(t, w.config, strings.Replace(string(raw), "identity:\n", "identity:\n  revocations: {file: revocations}\n", 1))
	gateway, url := w.serve(t)
	client, token := w.client(t, nil), w.token(t, "alice@acme.example", "acme")
	awaitOK(t, client, url, token)

	s := begin(t, client, url, token)
	for _, r := range w.replicas {
		if err := r.engine.cmd.Process.Signal(syscall.SIGSTOP); err != nil { // it will not go on
			t.Fatal(err)
		}
		defer func() { _ = r.engine.cmd.Process.Signal(syscall.SIGCONT) }()
	}
	gateway.terminate(t)
	await.That(t, "the gateway to take nobody any more", func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "https://"))
		if err == nil {
			_ = conn.Close() // nothing was asked
		}
		return err != nil
	})
	if out, code := sallyport(t, "tokens", "revoke", "--config", w.config, "--tenant", "acme"); code != 0 {
		t.Fatalf("exit %d: %s", code, out)
	}
	if last := s.last(t); !strings.Contains(last, `"code":"bad_credential"`) {
		t.Errorf("the stream ends with %q, want an error event", last)
	}
	gateway.await(t)
	if _, outcome := recordsOf(t, w.logDir, s.id); outcome.Reason != "bad_credential" {
		t.Errorf("the outcome is %s, %+v", outcome.Reason, outcome.Outcome)
	}
	for _, r := range tlogtest.Records(t, w.logDir, 0) {
		if r.Kind == audit.KindAdmin && strings.Contains(string(r.Event), `"action":"revocation"`) {
			return
		}
	}
	t.Error("the revocation is not on record")
}
