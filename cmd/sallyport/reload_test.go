package main

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
	"github.com/sallyport-ai/sallyport/gateway/upstream"
	"github.com/sallyport-ai/sallyport/routing/fleet"
	"github.com/sallyport-ai/sallyport/test/await"
)

// newWorld is a running demonstration in a directory short enough for sockets.
func newWorld(t *testing.T) *demoWorld {
	t.Helper()
	dir, err := os.MkdirTemp("", "sp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	quiet := slog.New(slog.DiscardHandler)
	w, err := newDemoWorld(t.Context(), demoOptions{dir: dir, listen: "127.0.0.1:0", admin: "127.0.0.1:0"}, quiet, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// changes are the admin records of the log, in order.
func changes(t *testing.T, w *demoWorld) (all []change) {
	t.Helper()
	for _, r := range tlogtest.Records(t, w.logDir, 0) {
		if r.Kind != audit.KindAdmin {
			continue
		}
		var c change
		if err := json.Unmarshal(r.Event, &c); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

// lastDecision is the newest decision record of the log.
func lastDecision(t *testing.T, w *demoWorld) (last *audit.Record) {
	t.Helper()
	for _, r := range tlogtest.Records(t, w.logDir, 0) {
		if r.Kind == audit.KindDecision {
			last = r
		}
	}
	if last == nil {
		t.Fatal("no decision in the log")
	}
	return last
}

// nextChange waits for the admin record after those that were there.
func nextChange(t *testing.T, w *demoWorld, before int) change {
	t.Helper()
	await.That(t, "an admin record", func() bool { return len(changes(t, w)) > before })
	return changes(t, w)[before]
}

// B079, B080: a bad file changes nothing, a good one changes what it says, and what
// only a restart can change is refused by name.
func TestConfigurationChangesWhileServing(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds: files are looked at every two")
	}
	w := newWorld(t)
	file := filepath.Join(w.dir, "sallyport.yaml")
	original, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// Made elsewhere: beside the policy's files it would be a change of its own.
	made := filepath.Join(t.TempDir(), "made")
	rewrite := func(path string, text []byte) {
		t.Helper()
		if err := os.WriteFile(made, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(made, path); err != nil {
			t.Fatal(err)
		}
	}
	asks := func(as string) int {
		t.Helper()
		s, _, err := w.send(t.Context(), as, newDialogue(as, "").ask("Hello?").body())
		if err != nil {
			t.Fatal(err)
		}
		return val(s.Status)
	}

	// A file with a problem changes nothing, and is recorded as refused.
	rewrite(file, []byte(strings.Replace(string(original), "region:", "regoin:", 1)))
	c := nextChange(t, w, 0)
	if c.Result != "refused" || !strings.Contains(c.Detail, "regoin: unknown field") || c.From == c.To {
		t.Errorf("a file with a problem: %+v", c)
	}
	if got := asks("acme-user"); got != http.StatusOK {
		t.Errorf("status %d after a refused file", got)
	}

	// So is one that would need a restart.
	rewrite(file, []byte(strings.Replace(string(original), "region: eu-1", "region: us-1", 1)))
	if c := nextChange(t, w, 1); c.Result != "refused" || !strings.Contains(c.Detail, "region: changes only with a restart") {
		t.Errorf("another region: %+v", c)
	}

	// One with fewer replicas is applied.
	without := strings.Replace(string(original), "address: "+w.replicas[poolPrefix("general")+"r1"].address, "address: 127.0.0.1:1", 1)
	rewrite(file, []byte(without))
	if c = nextChange(t, w, 2); c.Result != "applied" {
		t.Errorf("another address: %+v", c)
	}
	for range 3 {
		if got := asks("acme-user"); got != http.StatusOK {
			t.Errorf("status %d with one replica of the pool gone", got)
		}
	}
	if got := lastDecision(t, w).Gateway.Config; got != c.To {
		t.Errorf("decisions name configuration %s, but %s is applied", got, c.To)
	}

	// Policy data that takes a tenant's right away counts for the next request.
	tenants := filepath.Join(w.dir, "policy", "sallyport", "tenants", "data.json")
	data, err := os.ReadFile(tenants)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	all["globex"] = all["initech"]
	if data, err = json.Marshal(all); err != nil {
		t.Fatal(err)
	}
	if got := asks("globex-user"); got != http.StatusOK {
		t.Errorf("status %d before the right was taken away", got)
	}
	rewrite(tenants, data)
	if c := nextChange(t, w, 3); c.Result != "applied" || c.Policy == nil || c.Policy.PreviousDigest == "" {
		t.Errorf("another policy: %+v", c)
	}
	if got := asks("globex-user"); got != http.StatusForbidden {
		t.Errorf("status %d after the right was taken away", got)
	}

	// A policy that does not load keeps the last good one.
	rewrite(tenants, []byte("{"))
	if c := nextChange(t, w, 4); c.Result != "refused" {
		t.Errorf("a broken policy: %+v", c)
	}
	if got := asks("acme-user"); got != http.StatusOK {
		t.Errorf("status %d after a broken policy", got)
	}
}

func TestReplicasAreFoundInAFile(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds: files are looked at every two")
	}
	w := newWorld(t)
	file := filepath.Join(w.dir, "sallyport.yaml")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(w.dir, "agents.txt")
	r0, r1 := w.replicas[poolPrefix("agents")+"r0"].address, w.replicas[poolPrefix("agents")+"r1"].address
	if err := os.WriteFile(list, []byte(r0+" "+poolPrefix("agents")+"r0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(b), "name: agents", "name: agents\n      file: agents.txt", 1)
	text = strings.NewReplacer("address: "+r0, "address: 127.0.0.1:1", "address: "+r1, "address: 127.0.0.1:2").Replace(text)
	for _, id := range []string{"r0", "r1"} {
		text = strings.Replace(text, "id: "+poolPrefix("agents")+id, "id: "+poolPrefix("agents")+id+"x", 1)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if c := nextChange(t, w, 0); c.Result != "applied" {
		t.Fatalf("%+v", c)
	}
	eligible := func(want ...string) {
		t.Helper()
		err := waitFor(t.Context(), await.Limit, "the replicas of the file", func() bool {
			n := 0
			for _, s := range w.gateway.fleet.Replicas() {
				for _, address := range want {
					if s.Target.Address == address && s.Excluded == "" {
						n++
					}
				}
			}
			return n == len(want)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	eligible(r0)
	// The second is pinned to what it proves: the file does not say.
	if err := os.WriteFile(list, []byte(r0+" "+poolPrefix("agents")+"r0\n"+r1+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	eligible(r0, r1)
	if c := nextChange(t, w, 1); c.Action != "replicas" || c.Cause != "discovery" || c.Result != "applied" {
		t.Errorf("%+v", c)
	}
}

func TestConnectionsAreKeptOnlyToReplicasThatAreStillListed(t *testing.T) {
	keep := listed([]fleet.Target{
		{Address: "10.0.0.1:9101", ID: "spiffe://example.org/pool/a/r0"},
		{Address: "10.0.0.2:9101"}, // pinned to whoever proved itself first
	})
	for r, want := range map[upstream.Replica]bool{
		{Address: "10.0.0.1:9101", ID: "spiffe://example.org/pool/a/r0"}: true,
		{Address: "10.0.0.1:9101", ID: "spiffe://example.org/pool/a/r1"}: false,
		{Address: "10.0.0.2:9101", ID: "spiffe://example.org/pool/b/r7"}: true,
		{Address: "10.0.0.3:9101", ID: "spiffe://example.org/pool/a/r0"}: false,
		{}: false,
	} {
		if keep(r) != want {
			t.Errorf("%+v: kept %v", r, !want)
		}
	}
}
