package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

// TestWhatCannotBeReadIsNoAnswer asks the audit commands about what is not
// there, misspelt, or something else than it is said to be. None may look like
// an answer, least of all a good one.
func TestWhatCannotBeReadIsNoAnswer(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	vkeys := make(map[string]string)
	for _, name := range []string{"a", "b"} {
		vkey, err := createLogKey(at(name+".key"), "example.org/"+name)
		if err != nil {
			t.Fatal(err)
		}
		vkeys[name] = vkey
		key, err := tlog.ReadKeyFile(at(name + ".key"))
		if err != nil {
			t.Fatal(err)
		}
		l, err := tlog.Open(tlog.Config{Dir: at(name), Key: key, Boot: audit.Gateway{SPIFFE: "spiffe://example.org/" + name}, SegmentBytes: 256 << 10})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string) string {
		t.Helper()
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return at(name)
	}
	register := func(name, log, more string) string {
		t.Helper()
		return write(name, fmt.Sprintf("gateways:\n  - {vkey: %q, log: %q%s}\n  - {vkey: %q, log: b}\n", vkeys["a"], log, more, vkeys["b"]))
	}
	for _, args := range [][]string{
		{"export", at("b"), "--out", at("b.jsonl")},
		{"export", at("a"), "--kind", "boot", "--out", at("selected.jsonl")},
		{"bundle", at("a"), at("b"), "--out", at("both.tar")},
	} {
		runKeys(t, append([]string{"audit"}, args...)...)
	}
	key, other := at("a.key.pub"), at("b.key.pub")
	if err := os.CopyFS(at("wiped"), os.DirFS(at("a"))); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(at("bare"), os.DirFS(at("a"))); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(at("bare/wal")); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(at("headless"), os.DirFS(at("a"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(at("headless/checkpoint")); err != nil {
		t.Fatal(err)
	}
	for i := range 2 { // the segment in use and the one prepared
		if err := os.Remove(filepath.Join(at("wiped"), "wal", fmt.Sprintf("%08d", i))); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		claim string
		want  int
		args  []string
	}{
		{"a query of a log", 0, []string{"query", at("a"), "--kind", "boot", "--label", "public", "--class", "chat"}},
		{"a query that nothing agrees with", 0, []string{"query", at("a"), "--reason", "none"}},
		{"a query of nothing", 2, []string{"query", at("nothing")}},
		{"a query of a folder that is no log", 2, []string{"query", dir}},
		{"a query of a file that is no excerpt", 2, []string{"query", key}},
		{"a bundle of nothing", 2, []string{"bundle", at("a"), "--relay-log", at("nothing"), "--out", at("x.tar")}},
		{"a label that there is not", 2, []string{"query", at("a"), "--label", "restrickted"}},
		{"a class that there is not", 2, []string{"query", at("a"), "--class", "chats"}},
		{"a kind that there is not", 2, []string{"export", at("a"), "--kind", "decisions", "--out", at("x")}},
		{"a log whose segments are gone", 1, []string{"verify", at("wiped"), "--key", key}},
		{"a log whose segments are gone with their folder", 1, []string{"verify", at("bare"), "--key", key}},
		{"a log whose checkpoint is gone", 2, []string{"verify", at("headless"), "--key", key}},
		{"the same, with one that was kept", 0, []string{"verify", at("headless"), "--key", key, "--checkpoint", at("a/checkpoint")}},
		{"a query of a log whose segments are gone", 2, []string{"query", at("wiped")}},
		{"a checkpoint of the log", 0, []string{"verify", at("a"), "--key", key, "--checkpoint", at("a/checkpoint")}},
		{"a checkpoint of another log", 2, []string{"verify", at("a"), "--key", key, "--checkpoint", at("b/checkpoint")}},
		{"what is no checkpoint", 2, []string{"verify", at("a"), "--key", key, "--checkpoint", key}},
		{"a file that is nothing to verify", 2, []string{"verify", key, "--key", key}},
		{"a checkpoint, and part of the log", 2, []string{"verify", at("a"), "--key", key, "--from", "1", "--checkpoint", at("a/checkpoint")}},
		{"two checkpoints of a log", 2, []string{"verify", at("a"), "--key", key, "--checkpoint", at("a/checkpoint"), "--checkpoint", at("a/checkpoint")}},
		{"the only key is another log's", 1, []string{"verify", at("a"), "--key", other}},
		{"a key for one log of two", 2, []string{"verify", at("a"), at("b"), "--key", key}},
		{"a key for one log of a bundle", 2, []string{"verify", at("both.tar"), "--key", key}},
		{"keys for both logs of a bundle", 0, []string{"verify", at("both.tar"), "--key", key, "--key", other}},
		{"a register", 0, []string{"verify", "--fleet", register("good.yaml", "a", "")}},
		{"a register with another log's excerpt", 1, []string{"verify", "--fleet", register("other.yaml", "b.jsonl", "")}},
		{"a register with a selection", 2, []string{"verify", "--fleet", register("selected.yaml", "selected.jsonl", "")}},
		{"a register with another log's checkpoint", 2, []string{"verify", "--fleet", register("held.yaml", "a", ", checkpoint: b/checkpoint")}},
	} {
		if code := run(t.Context(), append([]string{"audit"}, c.args...)); code != c.want {
			t.Errorf("%s: exit %d, want %d", c.claim, code, c.want)
		}
	}
	// An empty table might as well be one that could not be filled.
	cmd := commands()
	var said strings.Builder
	cmd.SetOut(io.Discard)
	cmd.SetErr(&said)
	cmd.SetArgs([]string{"audit", "query", at("a"), "--reason", "none"})
	if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.Contains(said.String(), "no record agrees") {
		t.Errorf("a query that nothing agrees with says %q, %v", said.String(), err)
	}
}

func TestABundleSaysWhichPolicyItLacks(t *testing.T) {
	dir, keyFile := t.TempDir(), filepath.Join(t.TempDir(), "key")
	if _, err := createLogKey(keyFile, "example.org/gateway"); err != nil {
		t.Fatal(err)
	}
	key, err := tlog.ReadKeyFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	log, err := tlog.Open(tlog.Config{Dir: dir, Key: key, Boot: audit.Gateway{SPIFFE: "spiffe://example.org/gateway"}})
	if err != nil {
		t.Fatal(err)
	}
	digest := strings.Repeat("7b", 32)
	r := &audit.Record{Kind: audit.KindDecision, ID: audit.NewID(), Status: audit.StatusDenied, Policy: &audit.Policy{Digest: digest}}
	if _, err := log.Append(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := commands()
	var said strings.Builder
	cmd.SetOut(io.Discard)
	cmd.SetErr(&said)
	cmd.SetArgs([]string{"audit", "bundle", dir, "--out", filepath.Join(t.TempDir(), "x.tar")})
	if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.Contains(said.String(), digest) {
		t.Errorf("%v, and it says %q", err, said.String())
	}
}

func TestWrongArgumentsAreNoAnswer(t *testing.T) {
	dir := t.TempDir()
	nothing := filepath.Join(dir, "nothing")
	config := filepath.Join(dir, "gateway.yaml")
	if err := os.WriteFile(config, []byte("environment: demo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		want int
		args []string
	}{
		{2, []string{"serve", "--check", "--config", nothing}},
		{1, []string{"serve", "--check", "--config", config}},
		{2, []string{"relay", "--check", "--config", nothing}},
		{1, []string{"relay", "--check", "--config", config}},
		{2, []string{"tokens", "list", "--config", nothing}},
		{2, []string{"tokens", "revoke", "--config", nothing, "--tenant", "acme"}},
		{2, []string{"tokens", "revoke", "--config", config, "--subject", "alice"}},
		{2, []string{"policy", "test", nothing}},
		{2, []string{"policy", "test", config}},
		{2, []string{"policy", "explain", "--record", nothing, "0198c0de-0000-7000-8000-000000000000"}},
		{2, []string{"demo", "--once", "--dir", dir}},
		{2, []string{"lab", "--seeds", "0"}},
		{2, []string{"lab", "--replicas", "0"}},
		{2, []string{"lab", "--requests", "-1"}},
	} {
		if code := run(t.Context(), c.args); code != c.want {
			t.Errorf("%v: exit %d, want %d", c.args, code, c.want)
		}
	}
}

func TestAListOfKeysIsOneObjectALine(t *testing.T) {
	dir := t.TempDir()
	store, pepper := filepath.Join(dir, "keys"), filepath.Join(dir, "pepper")
	runKeys(t, "keys", "pepper", "--out", pepper)
	for _, who := range []string{"a", "b"} {
		runKeys(t, "keys", "new", "--store", store, "--pepper", pepper, "--tenant", "acme", "--subject", who)
	}
	cmd := commands()
	var out strings.Builder
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"keys", "list", "--store", store, "--json"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines for two keys: %s", len(lines), out.String())
	}
	for i, line := range lines {
		var key shownKey
		if err := json.Unmarshal([]byte(line), &key); err != nil || key.Subject != []string{"a", "b"}[i] {
			t.Errorf("line %d is %s: %v", i, line, err)
		}
	}
}
