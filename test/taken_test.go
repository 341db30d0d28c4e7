package test

import (
	"net/http"
	"os"
	"testing"
)

// TestAGatewayWhoseLogIsTakenAwayForwardsNothing renames or deletes the log's
// directory under a running gateway, whose open files go with it.
func TestAGatewayWhoseLogIsTakenAwayForwardsNothing(t *testing.T) {
	w := newWorld(t)
	client, token := w.client(t, nil), w.token(t, "alice@acme.example", "acme")
	away := w.logDir + ".old"
	for claim, take := range map[string]func() error{
		"renamed": func() error { return os.Rename(w.logDir, away) },
		"deleted": func() (err error) {
			for range 10 { // while files are being made in it
				if err = os.RemoveAll(w.logDir); err == nil {
					break
				}
			}
			return err
		},
	} {
		t.Run(claim, func(t *testing.T) {
			gateway, url := w.serve(t)
			awaitOK(t, client, url, token)
			if err := take(); err != nil {
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
			// A second gateway would begin another log of the same name and key.
			if _, code := sallyport(t, "serve", "--config", w.config); code == 0 {
				t.Error("a second gateway ran")
			}
			if _, err := os.Stat(w.logDir); !os.IsNotExist(err) {
				t.Errorf("something was put where the log was: %v", err)
			}
			gateway.kill()
			if claim == "deleted" {
				return
			}
			if err := os.Rename(away, w.logDir); err != nil {
				t.Fatal(err)
			}
			gateway, url = w.serve(t)
			awaitOK(t, client, url, token)
			gateway.stop(t)
			if _, code := sallyport(t, "audit", "verify", w.logDir, "--key", w.logKey); code != 0 {
				t.Errorf("audit verify: exit %d", code)
			}
		})
	}
}
