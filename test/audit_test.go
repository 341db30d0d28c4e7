package test

import (
	"bytes"
	"encoding/json"
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
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
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

// explained is what `audit explain --json` says of one attempt.
type explained struct {
	Policy, Placement, Seed struct{ Result, Detail string }
}

func explain(t *testing.T, dir, id string, args ...string) (attempts []explained, code int) {
	t.Helper()
	out, code := sallyport(t, append([]string{"audit", "explain", dir, id, "--json"}, args...)...)
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		var e explained
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("audit explain: exit %d, %v: %s", code, err, out)
		}
		attempts = append(attempts, e)
	}
	return attempts, code
}

// TestDecisionsOfTheDemoFollowAgainFromItsLog makes each decision of the
// demonstration again.
func TestDecisionsOfTheDemoFollowAgainFromItsLog(t *testing.T) {
	d := tour(t)
	placed := 0
	for _, name := range d.names {
		s := d.steps[name]
		if s.DecisionID == "-" {
			continue
		}
		attempts, code := explain(t, d.summary.LogDir, s.DecisionID)
		for _, a := range attempts {
			if code != 0 || a.Policy.Result != "same" {
				t.Errorf("%s: exit %d, %+v", name, code, a)
			}
			if a.Placement.Result == "same" && a.Seed.Result == "same" {
				placed++
			}
		}
	}
	if placed < 6 {
		t.Errorf("only %d placements came out again", placed)
	}
	out, code := sallyport(t, "audit", "explain", d.summary.LogDir, d.steps["rag-phi"].DecisionID)
	for _, want := range []string{"ALLOWED", "restricted by detector", "tenant acme", "candidate", "the same again", "the first token"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("in words: exit %d, no %q in\n%s", code, want, out)
		}
	}
}

// TestWhatDoesNotFollowIsSaidSo changes decisions and makes them again.
func TestWhatDoesNotFollowIsSaidSo(t *testing.T) {
	d := tour(t)
	id := d.steps["warm-chat"].DecisionID
	policies := filepath.Join(d.summary.LogDir, "policy")
	rewritten := func(change func(*audit.Record)) string {
		return rewriteLog(t, d.summary.LogDir, func(r *audit.Record) {
			if r.ID == id && r.Kind == audit.KindDecision {
				change(r)
			}
		})
	}
	for _, c := range []struct {
		claim string
		dir   string
		args  []string
		code  int
		of    func(explained) string
		want  string
	}{
		{"nothing is changed", rewritten(func(*audit.Record) {}), []string{"--policies", policies}, 0, func(e explained) string { return e.Placement.Result }, "same"},
		{"without the bundle nobody can tell", d.summary.LogDir, []string{"--policies", t.TempDir()}, 2, func(e explained) string { return e.Policy.Result }, "unknown"},
		{
			"another replica than the candidates give", rewritten(func(r *audit.Record) { r.Placement.Replica = r.Placement.Replica[:len(r.Placement.Replica)-1] + "9" }),
			[]string{"--policies", policies},
			1, func(e explained) string { return e.Placement.Result }, "different",
		},
		{
			"another cost than its inputs give", rewritten(func(r *audit.Record) { r.Placement.Candidates[0].CostNS += 1 }),
			[]string{"--policies", policies},
			1, func(e explained) string { return e.Placement.Result }, "different",
		},
		{
			"a candidate is gone", rewritten(func(r *audit.Record) { r.Placement.Candidates = r.Placement.Candidates[:1] }),
			[]string{"--policies", policies},
			2, func(e explained) string { return e.Placement.Result }, "unknown",
		},
		{
			"a seed that was chosen", rewritten(func(r *audit.Record) { r.Placement.Seed++ }),
			[]string{"--policies", policies},
			1, func(e explained) string { return e.Seed.Result }, "different",
		},
		{"another answer than the policy gives", rewritten(func(r *audit.Record) {
			r.Decision = bytes.Replace(r.Decision, []byte(`"general"`), []byte(`"restricted"`), 1)
		}), []string{"--policies", policies}, 1, func(e explained) string { return e.Policy.Result }, "different"},
		{"another caller than the policy was asked about", rewritten(func(r *audit.Record) {
			r.Input = bytes.Replace(r.Input, []byte(`"acme"`), []byte(`"hooli"`), 1)
		}), []string{"--policies", policies}, 1, func(e explained) string { return e.Policy.Result }, "different"},
	} {
		attempts, code := explain(t, c.dir, id, c.args...)
		if code != c.code || c.of(attempts[0]) != c.want {
			t.Errorf("%s: exit %d, %+v; want %d and %s", c.claim, code, attempts, c.code, c.want)
		}
	}
}

// rewriteLog makes a log of the same name, under another key, of records that
// may be changed on the way.
func rewriteLog(t *testing.T, from string, change func(*audit.Record)) string {
	t.Helper()
	var records []*audit.Record
	for _, r := range tlogtest.Records(t, from, 0) {
		if r.Kind != audit.KindBoot && r.Kind != audit.KindSeal {
			change(r)
			records = append(records, r)
		}
	}
	dir := t.TempDir()
	tlogtest.Write(t, tlog.Config{Dir: dir, Key: tlogtest.Key(t, trustDomain+"/gateway"), Boot: audit.Gateway{SPIFFE: gatewayID}, SegmentBytes: 1 << 20}, records...)
	return dir
}
