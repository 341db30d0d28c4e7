package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
	"github.com/sallyport-ai/sallyport/test/await"
)

// TestAPromptIsKnownAgainUntilItsKeyIsDestroyed finds a prompt that somebody
// holds in the record of its request, and destroys the key of a month before.
func TestAPromptIsKnownAgainUntilItsKeyIsDestroyed(t *testing.T) {
	w := newWorld(t)
	keys := filepath.Join(w.dir, "mac")
	writeFile(t, w.config, strings.Replace(readFile(t, w.config), "segment: 1MiB}", "segment: 1MiB, mac_keys: mac}", 1))
	_, url := w.serve(t)
	client, token := w.client(t, nil), w.token(t, "alice@acme.example", "acme")
	awaitOK(t, client, url, token)
	body := chat("The patient is well.", false, 4)
	a, err := ask(t.Context(), client, url, token, body)
	if err != nil || a.status != 200 {
		t.Fatalf("%+v, %v", a, err)
	}
	decision, _ := recordsOf(t, w.logDir, a.id)
	month := time.UnixMicro(decision.Time.Wall).UTC().Format("2006-01")
	file := writeFile(t, filepath.Join(t.TempDir(), "body"), string(body))
	check := func(month string) (string, int) {
		out, code := sallyport(t, "keys", "mac", "check", file, "--keys", keys, "--tenant", "acme", "--month", month)
		return strings.TrimSpace(out), code
	}
	if got, code := check(month); code != 0 || got == "" || got != decision.Request.PromptMAC {
		t.Errorf("exit %d, %q; the record has %q", code, got, decision.Request.PromptMAC)
	}

	// A month that is over has a key of its own.
	folders, err := os.ReadDir(keys)
	if err != nil || len(folders) != 1 {
		t.Fatalf("%v, %v", folders, err)
	}
	writeFile(t, filepath.Join(keys, folders[0].Name(), "2026-01"), strings.Repeat("k", 32))
	if got, code := check("2026-01"); code != 0 || got == decision.Request.PromptMAC {
		t.Errorf("exit %d, %q", code, got)
	}
	if _, code := sallyport(t, "keys", "mac", "destroy", "--keys", keys, "--log", w.logDir, "--before", "2999-01"); code != 2 {
		t.Errorf("keys that are in use: exit %d", code)
	}
	if out, code := sallyport(t, "keys", "mac", "destroy", "--keys", keys, "--log", w.logDir, "--before", "2026-06"); code != 0 || !strings.Contains(out, "acme 2026-01") {
		t.Errorf("exit %d: %s", code, out)
	}
	if _, code := check("2026-01"); code != 2 {
		t.Errorf("with a key that is gone: exit %d", code)
	}
	if got, code := check(month); code != 0 || got != decision.Request.PromptMAC {
		t.Errorf("the key of this month: exit %d, %q", code, got)
	}
	await.That(t, "the log to say that a key is gone", func() bool {
		for _, r := range tlogtest.Records(t, w.logDir, 0) {
			if r.Kind == audit.KindAdmin && r.Status == "reported" && strings.Contains(string(r.Event), `"destroy_mac_keys","keys":[{"tenant":"acme","month":"2026-01","sha256":"`) {
				return true
			}
		}
		return false
	})
}
