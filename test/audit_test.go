package test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	tfl "github.com/transparency-dev/formats/log"
	tfp "github.com/transparency-dev/formats/proof"
	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"golang.org/x/mod/sumdb/note"

	"github.com/sallyport-ai/sallyport/audit"
)

// TestAProofNeedsNothingButTheKey proves a decision of a log that a gateway
// wrote, moves the proof away from everything else, and checks it with our
// command and with software that is not ours.
func TestAProofNeedsNothingButTheKey(t *testing.T) {
	d := tour(t)
	made := t.TempDir()
	out, code := sallyport(t, "audit", "prove", d.summary.LogDir, d.steps["rag-phi"].DecisionID, "--out", made)
	files := strings.Fields(out)
	if code != 0 || len(files) != 2 { // the decision and its outcome
		t.Fatalf("audit prove: exit %d: %s", code, out)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		alone := writeFile(t, filepath.Join(t.TempDir(), "alone.tlog-proof"), string(text))
		if out, code := sallyport(t, "audit", "verify", alone, "--key", d.summary.LogKey); code != 0 || !strings.HasPrefix(out, "proven: record ") {
			t.Errorf("audit verify: exit %d: %s", code, out)
		}
		if _, code := sallyport(t, "audit", "verify", alone); code != 2 {
			t.Errorf("without a key: exit %d, want 2", code)
		}
		leaf := checkProofElsewhere(t, text, d.summary.LogKey)
		beside, err := os.ReadFile(strings.TrimSuffix(file, ".tlog-proof") + ".json")
		if err != nil || !bytes.Equal(leaf, beside) {
			t.Errorf("the record beside the proof is another than that inside: %v", err)
		}
		if r, err := audit.Decode(leaf); err != nil || r.ID != d.steps["rag-phi"].DecisionID {
			t.Errorf("proven was %v, %v", r, err)
		}
		for _, c := range []struct{ claim, from, to string }{
			{"another index", "\nindex ", "\nindex 1"},
			{"another record", "\nextra ", "\nextra AAAA"},
			{"another tree", "\n\n" + trustDomain + "/gateway\n", "\n\n" + trustDomain + "/gateway\n1"},
		} {
			forged := writeFile(t, alone, strings.Replace(string(text), c.from, c.to, 1))
			if out, code := sallyport(t, "audit", "verify", forged, "--key", d.summary.LogKey); code != 1 {
				t.Errorf("a proof of %s: exit %d: %s", c.claim, code, out)
			}
		}
	}
}

// checkProofElsewhere checks a proof with the parser, the note and the tree of
// others, and returns the leaf.
func checkProofElsewhere(t *testing.T, text []byte, keyFile string) []byte {
	t.Helper()
	var p tfp.TLogProof
	if err := p.Unmarshal(text); err != nil {
		t.Fatal(err)
	}
	vkey, err := os.ReadFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	v, err := note.NewVerifier(strings.TrimSpace(string(vkey)))
	if err != nil {
		t.Fatal(err)
	}
	cp, _, _, err := tfl.ParseCheckpoint(p.Checkpoint, v.Name(), v)
	if err != nil {
		t.Fatal(err)
	}
	var path [][]byte
	for _, h := range p.Hashes {
		path = append(path, h[:])
	}
	if err := proof.VerifyInclusion(rfc6962.DefaultHasher, p.Index, cp.Size, rfc6962.DefaultHasher.HashLeaf(p.ExtraData), path, cp.Hash); err != nil {
		t.Error(err)
	}
	return p.ExtraData
}

// TestQueryFindsWhatTheDemoDid asks the log of the demonstration as an auditor
// would.
func TestQueryFindsWhatTheDemoDid(t *testing.T) {
	d := tour(t)
	rag, agent, denied := d.steps["rag-phi"], d.steps["agent-tool-call"], d.steps["denied"]
	for _, c := range []struct {
		claim string
		args  []string
		ids   []string // each must be there, and nothing else
	}{
		{"a tenant's denials", []string{"--tenant", "initech", "--status", "denied"}, []string{denied.DecisionID}},
		{"a class", []string{"--class", "agent_tool_call"}, []string{agent.DecisionID}},
		{"a label in a pool", []string{"--label", "restricted", "--pool", "restricted"}, []string{rag.DecisionID}},
		{"a replica", []string{"--replica", rag.Replica, "--kind", "outcome"}, []string{rag.DecisionID}},
		{"a tenant that never called", []string{"--tenant", "hooli"}, nil},
		{"what was before it began", []string{"--until", "2020-01-01"}, nil},
	} {
		out, code := sallyport(t, append([]string{"audit", "query", d.summary.LogDir, "--json"}, c.args...)...)
		if code != 0 {
			t.Fatalf("%s: exit %d", c.claim, code)
		}
		got := make(map[string]bool)
		for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
			if line == "" {
				continue
			}
			r, err := audit.Decode([]byte(line))
			if err != nil {
				t.Fatal(err)
			}
			got[r.ID] = true
		}
		if len(got) != len(c.ids) {
			t.Errorf("%s: %v, want %v", c.claim, got, c.ids)
		}
		for _, id := range c.ids {
			if !got[id] {
				t.Errorf("%s: %s is missing", c.claim, id)
			}
		}
	}
	if out, code := sallyport(t, "audit", "query", d.summary.LogDir, "--tenant", "initech"); code != 0 || !strings.Contains(out, denied.DecisionID) {
		t.Errorf("as a table: exit %d: %s", code, out)
	}
	for _, args := range [][]string{{"--since", "yesterday"}, {"--month", "November"}, {"--month", "2026-11", "--since", "2026-11-02"}, {"--since", "2026-11-02", "--until", "2026-11-01"}} {
		if _, code := sallyport(t, append([]string{"audit", "query", d.summary.LogDir}, args...)...); code != 2 {
			t.Errorf("%v: exit %d, want 2", args, code)
		}
	}
}
