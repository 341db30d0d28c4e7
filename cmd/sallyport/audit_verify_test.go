package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/bundle"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
)

// namedLog is a closed log in a folder of dir, and a file with its key.
func namedLog(t *testing.T, dir, name string, records ...*audit.Record) (log, key string) {
	t.Helper()
	log, key = filepath.Join(dir, name), filepath.Join(dir, name+".pub")
	k := tlogtest.Key(t, "example.org/"+name)
	if err := os.WriteFile(key, []byte(k.VerifierKey()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tlogtest.Write(t, tlog.Config{Dir: log, Key: k, Boot: audit.Gateway{SPIFFE: "spiffe://example.org/" + name}}, records...)
	return log, key
}

// What a bundle says of itself is not signed: moving its time must not make what
// is in it nobody's business.
func TestABundleOfWhichNothingIsJudgedIsNoAnswer(t *testing.T) {
	dir := t.TempDir()
	log, key := namedLog(t, dir, "gateway", &audit.Record{
		Kind: audit.KindDecision, ID: audit.NewID(), Attempt: 1, Durability: audit.Strict, Status: audit.StatusAllowed,
		Placement: &audit.Placement{Pool: "general", Replica: "spiffe://example.org/relay"},
	})
	relay, relayKey := namedLog(t, dir, "relay")
	out := filepath.Join(dir, "b")
	runKeys(t, "audit", "bundle", log, "--relay-log", relay, "--since", "1h", "--out", out)
	verify := func(more ...string) (string, int) {
		return output(t, append([]string{"audit", "verify", out, "--key", key, "--key", relayKey}, more...)...)
	}
	if text, code := verify(); code != 0 || !strings.Contains(text, "0 forwards and 1 decisions") {
		t.Fatalf("as it was made: exit %d\n%s", code, text)
	}
	manifest := filepath.Join(out, "manifest.json")
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	var m bundle.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	m.About["until"] = time.Now().Add(-30 * time.Minute).UTC().Format(time.RFC3339)
	if text, err = json.Marshal(m); err == nil {
		err = os.WriteFile(manifest, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if text, code := verify(); code != 2 || !strings.Contains(text, "0 of 1 forwards and decisions") {
		t.Errorf("with another time in it: exit %d\n%s", code, text)
	}
	if text, code := verify("--since", "2h"); code != 0 {
		t.Errorf("of a time that was asked for: exit %d\n%s", code, text)
	}
	if text, code := verify("--since", "2h", "--until", "1h"); code != 0 || !strings.Contains(text, "1 more are of another time") {
		t.Errorf("of another time that was asked for: exit %d\n%s", code, text)
	}
}

func TestEachLogOfARegisterIsJudgedWhateverIsWrongWithThoseBefore(t *testing.T) {
	dir := t.TempDir()
	a, _ := namedLog(t, dir, "a", &audit.Record{Kind: audit.KindAdmin, ID: "1"})
	segment := filepath.Join(a, "wal", "00000000")
	raw, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	raw[300] ^= 1
	if err := os.WriteFile(segment, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	namedLog(t, dir, "b")
	namedLog(t, dir, "c")
	text := "silent_after: 1ns\ngateways:\n"
	for _, name := range []string{"a", "b", "c"} {
		vkey, err := os.ReadFile(filepath.Join(dir, name+".pub"))
		if err != nil {
			t.Fatal(err)
		}
		text += "  - {vkey: \"" + strings.TrimSpace(string(vkey)) + "\", log: " + name + "}\n"
	}
	register := filepath.Join(dir, "fleet.yaml")
	if err := os.WriteFile(register, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, code := output(t, "audit", "verify", "--fleet", register)
	for _, want := range []string{"DAMAGED", "silent_log: example.org/b", "silent_log: example.org/c"} {
		if !strings.Contains(out, want) {
			t.Errorf("exit %d, and nothing of %s in\n%s", code, want, out)
		}
	}
	if code != 1 || strings.Contains(out, "silent_log: example.org/a") {
		t.Errorf("exit %d\n%s", code, out)
	}
}
