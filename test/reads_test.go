package test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
	"github.com/sallyport-ai/sallyport/test/await"
)

// TestWhoReadsALogStandsInIt reads the logs of a gateway and of a relay, while
// they serve and while they do not, and finds in them who read what.
func TestWhoReadsALogStandsInIt(t *testing.T) {
	w := newWorld(t)
	gateway, url := w.serve(t)
	id := awaitOK(t, w.client(t, nil), url, w.token(t, "alice@acme.example", "acme"))
	recordsOf(t, w.logDir, id)
	reads := func(dir string) (commands []string) {
		for _, r := range tlogtest.Records(t, dir, 0) {
			if r.Kind != audit.KindAccess || r.Status != "read" {
				continue
			}
			var ev struct {
				Owner *int
				Note  struct {
					Command string
					Args    []string
					User    string
					UID     int
				}
			}
			if err := json.Unmarshal(r.Event, &ev); err != nil || ev.Owner == nil || *ev.Owner != os.Getuid() || ev.Note.UID != *ev.Owner {
				t.Fatalf("%s: %v", r.Event, err)
			}
			commands = append(commands, ev.Note.Command+" "+strings.Join(ev.Note.Args, " "))
		}
		return commands
	}
	sallyport(t, "audit", "query", w.logDir, "--tenant", "acme")
	sallyport(t, "audit", "show", w.replicas[0].logDir)
	await.That(t, "the reads to be recorded", func() bool { return len(reads(w.logDir)) == 1 && len(reads(w.replicas[0].logDir)) == 1 })
	if got := reads(w.logDir)[0]; !strings.HasPrefix(got, "sallyport audit query") || !strings.HasSuffix(got, "--tenant=acme") {
		t.Errorf("recorded is %q", got)
	}

	if rows, _ := sallyport(t, "audit", "query", w.logDir, "--kind", "access"); !strings.Contains(rows, ": sallyport audit query") {
		t.Errorf("who read it is not to be seen in\n%s", rows)
	}
	await.That(t, "that one too", func() bool { return len(reads(w.logDir)) == 2 })

	gateway.stop(t)
	for _, args := range [][]string{{"show", w.logDir, id}, {"explain", w.logDir, id}, {"prove", w.logDir, id, "--out", t.TempDir()}, {"verify", w.logDir, "--key", w.logKey}} {
		sallyport(t, append([]string{"audit"}, args...)...)
	}
	w.serve(t)
	await.That(t, "what was read meanwhile to be recorded", func() bool { return len(reads(w.logDir)) == 6 })

	inbox := filepath.Join(w.logDir, "inbox")
	if err := os.RemoveAll(inbox); err != nil {
		t.Fatal(err)
	}
	writeFile(t, inbox, "in the way")
	for want, args := range map[int][]string{2: nil, 0: {"--unrecorded"}} {
		if _, code := sallyport(t, append([]string{"audit", "show", w.logDir, id}, args...)...); code != want {
			t.Errorf("what cannot be recorded, %v: exit %d, want %d", args, code, want)
		}
	}
}
