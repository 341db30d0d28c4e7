package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
)

// output runs a command, and returns what it prints and its exit code.
func output(t *testing.T, args ...string) (string, int) {
	t.Helper()
	cmd := commands()
	var out strings.Builder
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	code := 0
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		code, _ = exitCodeOf(err)
		out.WriteString(err.Error())
	}
	return out.String(), code
}

// TestWitnessesAreAskedForWithoutARegister holds a log, and everything that can
// be taken out of it, against the witnesses that somebody trusts.
func TestWitnessesAreAskedForWithoutARegister(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) string {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return at(name)
	}
	if _, err := createLogKey(at("key"), "example.org/a"); err != nil {
		t.Fatal(err)
	}
	key, err := tlog.ReadKeyFile(at("key"))
	if err != nil {
		t.Fatal(err)
	}
	const id = "0198c0de-0000-7000-8000-000000000000"
	tlogtest.Write(t, tlog.Config{Dir: at("log"), Key: key}, &audit.Record{Kind: audit.KindDecision, ID: id, Durability: audit.Strict})
	ed, pq, absent := tlogtest.NewWitness(t, "ed.example/w"), tlogtest.NewMLDSAWitness(t, "pq.example/w"), tlogtest.NewMLDSAWitness(t, "absent.example/w")
	if err := os.CopyFS(at("bare"), os.DirFS(at("log"))); err != nil {
		t.Fatal(err)
	}
	tlogtest.Anchor(t, at("log"), ed, pq)
	for _, args := range [][]string{
		{"export", at("log"), "--out", at("whole.jsonl")},
		{"export", at("log"), "--kind", "decision", "--out", at("selected.jsonl")},
		{"export", at("bare"), "--out", at("bare.jsonl")},
		{"bundle", at("log"), "--out", at("b.tar")},
		{"bundle", at("bare"), "--out", at("bare.tar")},
		{"prove", at("log"), id, "--out", at("proofs")},
		{"prove", at("bare"), id, "--out", at("bareproofs")},
	} {
		runKeys(t, append([]string{"audit"}, args...)...)
	}
	proof := func(folder string) string {
		found, err := filepath.Glob(filepath.Join(at(folder), "*"+proofSuffix))
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		return found[0]
	}
	whole := map[string]string{
		"a log": at("log"), "a range of it": at("log") + " --from 1", "its checkpoint": filepath.Join(at("log"), "anchored"), "a proof": proof("proofs"),
		"an excerpt": at("whole.jsonl"), "a selection": at("selected.jsonl"), "a bundle": at("b.tar"),
	}
	bare := map[string]string{
		"a log": at("bare"), "a range of it": at("bare") + " --from 1", "its checkpoint": filepath.Join(at("bare"), "checkpoint"), "a proof": proof("bareproofs"),
		"an excerpt": at("bare.jsonl"), "a bundle": at("bare.tar"),
	}
	both := write("both", "# whom we trust\n"+ed.Key+"\n\n"+pq.Key+"\n")
	for _, c := range []struct {
		claim string
		what  map[string]string
		flags []string
		want  int
		says  string
	}{
		{"nobody is asked for", whole, nil, 0, ""},
		{"one of Ed25519", whole, []string{"--witness", ed.Key}, 0, "ed.example/w"},
		{"one of ML-DSA-44", whole, []string{"--witness", pq.Key}, 0, "pq.example/w"},
		{"both, from a file", whole, []string{"--witness", both}, 0, "ed.example/w, pq.example/w"},
		{"one of two", whole, []string{"--witness", absent.Key, "--witness", ed.Key, "--quorum", "1"}, 0, "ed.example/w"},
		{"two of three", whole, []string{"--witness", both, "--witness", absent.Key, "--quorum", "2"}, 0, "ed.example/w, pq.example/w"},
		{"three of three", whole, []string{"--witness", both, "--witness", absent.Key, "--quorum", "3"}, 1, "NOT ANCHORED"},
		{"all of two, unless it is said how many", whole, []string{"--witness", ed.Key, "--witness", absent.Key}, 1, "NOT ANCHORED"},
		{"one that never saw it", whole, []string{"--witness", absent.Key}, 1, "NOT ANCHORED"},
		{"one where nobody has cosigned", bare, []string{"--witness", ed.Key}, 1, "NOT ANCHORED"},
		{"a quorum of nobody", whole, []string{"--quorum", "1"}, 2, "of which witnesses"},
		{"more than there are", whole, []string{"--witness", ed.Key, "--quorum", "2"}, 2, "a quorum of 2"},
		{"less than none", whole, []string{"--witness", ed.Key, "--quorum", "-1"}, 2, "a quorum of -1"},
		{"the same one twice", whole, []string{"--witness", ed.Key, "--witness", ed.Key}, 2, "twice"},
		{"what is no key", whole, []string{"--witness", "nonsense"}, 2, "no file"},
		{"a log's key", whole, []string{"--witness", key.VerifierKey()}, 2, "not for cosignatures"},
		{"a file without a key", whole, []string{"--witness", write("none", "# nobody\n")}, 2, "no key"},
		{"a register, which names its own", map[string]string{"a log": at("log")}, []string{"--witness", ed.Key, "--fleet", "x"}, 2, "none of the others can be"},
	} {
		for what, target := range c.what {
			args := append(append([]string{"audit", "verify"}, strings.Fields(target)...), "--key", at("key.pub"))
			out, code := output(t, append(args, c.flags...)...)
			if code != c.want || !strings.Contains(out, c.says) {
				t.Errorf("%s, of %s: exit %d, want %d, and %q in\n%s", c.claim, what, code, c.want, c.says, out)
			}
		}
	}
	// What others vouch for does not make it the log's.
	if out, code := output(t, "audit", "verify", filepath.Join(at("log"), "anchored"), "--key", write("other.pub", tlogtest.Key(t, "example.org/a").VerifierKey()+"\n"), "--witness", ed.Key); code != 1 || !strings.Contains(out, "DAMAGED") {
		t.Errorf("a checkpoint that another key signed: exit %d\n%s", code, out)
	}
	if out, code := output(t, "audit", "verify", filepath.Join(at("log"), "anchored"), "--witness", ed.Key); code != 2 {
		t.Errorf("without the log's key: exit %d\n%s", code, out)
	}
}
