package test

import (
	"net/http"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWithoutAWritableLogNothingIsForwarded takes the right to write files from
// a running gateway, as a full disk would, and gives it back.
func TestWithoutAWritableLogNothingIsForwarded(t *testing.T) {
	w := newWorld(t)
	client, token := w.client(t, nil), w.token(t, "alice@acme.example", "acme")
	gateway, url := w.serve(t)
	before := awaitOK(t, client, url, token)

	// Beyond offset 0 of any file every write now fails with EFBIG.
	if err := unix.Prlimit(gateway.cmd.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 0, Max: unix.RLIM_INFINITY}, nil); err != nil {
		t.Fatal(err)
	}
	served := w.served(t)
	for _, stream := range []bool{false, true} {
		a, err := ask(t.Context(), client, url, token, chat("Does anybody write this down?", stream, 4))
		if err != nil || a.status != http.StatusServiceUnavailable || a.code != "audit_unavailable" {
			t.Errorf("got %d %q, %v; want 503 audit_unavailable", a.status, a.code, err)
		}
	}
	if now := w.served(t); now != served {
		t.Errorf("%d requests reached an engine that no log holds", now-served)
	}
	gateway.kill()

	// With room again, the same log goes on.
	gateway, url = w.serve(t)
	after := awaitOK(t, client, url, token)
	gateway.stop(t)
	if _, code := sallyport(t, "audit", "verify", w.logDir, "--key", w.logKey); code != 0 {
		t.Errorf("audit verify: exit %d", code)
	}
	h := readHistory(t, w.logDir)
	h.checkOutcomes(t)
	for _, id := range []string{before, after} {
		if h.decisions[attempt{id, 1}] == nil {
			t.Errorf("the log lost decision %s", id)
		}
	}
	for _, r := range w.replicas {
		r.relay.stop(t)
	}
	w.checkForwarded(t, h)
}

// served counts the requests that have reached an engine.
func (w *world) served(t *testing.T) (n int) {
	t.Helper()
	for _, r := range w.replicas {
		n += len(r.served(t))
	}
	return n
}
