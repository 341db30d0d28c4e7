package main

import (
	"fmt"
	"os"
	"path/filepath"
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
	for _, c := range []struct {
		claim string
		want  int
		args  []string
	}{
		{"a query of a log", 0, []string{"query", at("a"), "--kind", "boot", "--label", "public", "--class", "chat"}},
		{"a query of nothing", 2, []string{"query", at("nothing")}},
		{"a query of a folder that is no log", 2, []string{"query", dir}},
		{"a query of a file that is no excerpt", 2, []string{"query", key}},
		{"a bundle of nothing", 2, []string{"bundle", at("a"), "--relay-log", at("nothing"), "--out", at("x.tar")}},
		{"a label that there is not", 2, []string{"query", at("a"), "--label", "restrickted"}},
		{"a class that there is not", 2, []string{"query", at("a"), "--class", "chats"}},
		{"a kind that there is not", 2, []string{"export", at("a"), "--kind", "decisions", "--out", at("x")}},
		{"a checkpoint of the log", 0, []string{"verify", at("a"), "--key", key, "--checkpoint", at("a/checkpoint")}},
		{"a checkpoint of another log", 2, []string{"verify", at("a"), "--key", key, "--checkpoint", at("b/checkpoint")}},
		{"what is no checkpoint", 2, []string{"verify", at("a"), "--key", key, "--checkpoint", key}},
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
}
