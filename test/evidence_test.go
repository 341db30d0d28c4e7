package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/test/await"
)

// TestEvidenceStandsForItself exports and packs the logs of a gateway and its
// relays while they serve, takes the logs away, and verifies what is left.
func TestEvidenceStandsForItself(t *testing.T) {
	w := newWorld(t)
	_, url := w.serve(t)
	client, token := w.client(t, nil), w.token(t, "alice@acme.example", "acme")
	var ids []string
	for range 4 {
		ids = append(ids, awaitOK(t, client, url, token))
	}
	for _, id := range ids {
		recordsOf(t, w.logDir, id)
	}
	await.That(t, "the last decision to be covered by a checkpoint", func() bool {
		_, code := sallyport(t, "audit", "prove", w.logDir, ids[len(ids)-1], "--out", t.TempDir())
		return code == 0
	})
	keys := []string{"--key", w.logKey, "--key", w.replicas[0].logKey, "--key", w.replicas[1].logKey}
	relays := []string{"--relay-log", w.replicas[0].logDir, "--relay-log", w.replicas[1].logDir}
	made := t.TempDir()
	run := func(want int, args ...string) string {
		t.Helper()
		out, code := sallyport(t, append([]string{"audit"}, args...)...)
		if code != want {
			t.Errorf("audit %v: exit %d, want %d: %s", args, code, want, out)
		}
		return out
	}
	in := func(name string) string { return filepath.Join(made, name) }
	run(0, "export", w.logDir, "--out", in("all.jsonl"))
	run(0, "export", w.logDir, "--out", in("acme.jsonl"), "--tenant", "acme")
	run(0, append(append([]string{"bundle", w.logDir, "--out", in("b"), "--since", "1h"}, keys...), relays...)...)
	run(0, append(append([]string{"bundle", w.logDir, "--out", in("b.tar")}, keys...), relays...)...)
	run(2, "export", w.logDir, "--out", in("all.jsonl"))                        // never over what is there
	run(2, "export", w.logDir, "--out", in("none.jsonl"), "--until", "2020-01") // no such time

	if err := os.Rename(w.logDir, w.logDir+".away"); err != nil {
		t.Fatal(err)
	}
	if out := run(0, append([]string{"verify", in("all.jsonl")}, keys...)...); !strings.HasPrefix(out, "whole: records 0 to ") {
		t.Errorf("all: %s", out)
	}
	if out := run(0, append([]string{"verify", in("acme.jsonl")}, keys...)...); !strings.HasPrefix(out, "in the log: ") {
		t.Errorf("acme's: %s", out)
	}
	for _, name := range []string{"b", "b.tar"} {
		out := run(0, append([]string{"verify", in(name)}, keys...)...)
		for _, want := range []string{"policy ", "whole: records 0 to", "held against each other: 4 agree"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in %s", name, want, out)
			}
		}
		run(2, "verify", in(name))
	}
	run(0, "explain", in("b/logs/0.jsonl"), ids[0], "--policies", in("b/policy"))
	run(0, "show", in("all.jsonl"), ids[0])
	if out := run(0, "query", in("b/logs/0.jsonl"), "--tenant", "acme", "--kind", "outcome", "--json"); strings.Count(out, "\n") != 4 {
		t.Errorf("query: %s", out)
	}

	text, err := os.ReadFile(in("all.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, in("forged.jsonl"), strings.Replace(string(text), `"tenant":"acme"`, `"tenant":"hooli"`, 1))
	run(1, append([]string{"verify", in("forged.jsonl")}, keys...)...)
	writeFile(t, in("b/keys.txt"), "")
	run(1, append([]string{"verify", in("b")}, keys...)...)
}
