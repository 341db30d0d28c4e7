package test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
)

// demoTime is how long the tour may take once built.
const demoTime = 25 * time.Second

// demoFields are the fields of every step, in their order.
var demoFields = []string{
	"step", "identity", "tenant", "class", "label", "allow", "status", "pool", "replica", "basis",
	"prompt_tokens", "predicted_cached_tokens", "cached_tokens", "reason", "decision_id",
}

// demoStep is a step with "-" and -1 in place of null.
type demoStep struct {
	Identity, Tenant, Class, Label, Pool, Replica, Basis, Reason, DecisionID string
	Allow                                                                    bool
	Status, Prompt, Predicted, Cached                                        int
}

type demoSummary struct {
	Summary     bool   `json:"summary"`
	Steps       int    `json:"steps"`
	Records     int    `json:"records"`
	LogVerified bool   `json:"log_verified"`
	LogDir      string `json:"log_dir"`
	LogKey      string `json:"log_key"`
}

// demonstration is one `sallyport demo --once --json`.
type demonstration struct {
	dir     string
	took    time.Duration
	names   []string // of the steps, in their order
	steps   map[string]demoStep
	summary demoSummary
}

// tourOnce takes the tour, the first time that a test wants it.
var tourOnce = sync.OnceValues(func() (*demonstration, error) {
	path, err := buildOnce()
	if err != nil {
		return nil, err
	}
	d := &demonstration{dir: filepath.Join(box, "demo"), steps: make(map[string]demoStep)}
	ctx, cancel := context.WithTimeout(context.Background(), 2*demoTime)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, "demo", "--once", "--json", "--dir", d.dir)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	err = cmd.Run()
	d.took = time.Since(began)
	if err != nil {
		return nil, fmt.Errorf("demo: %w\n%s%s", err, stdout.Bytes(), stderr.Bytes())
	}
	return d, d.read(stdout.String())
})

func tour(t *testing.T) *demonstration {
	t.Helper()
	d, err := tourOnce()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// read takes what the demo printed apart.
func (d *demonstration) read(stdout string) error {
	lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	last := json.NewDecoder(strings.NewReader(lines[len(lines)-1]))
	last.DisallowUnknownFields()
	if err := last.Decode(&d.summary); err != nil {
		return fmt.Errorf("last line: %w", err)
	}
	for _, line := range lines[:len(lines)-1] {
		name, s, err := readStep(line)
		if err != nil {
			return fmt.Errorf("%w in %s", err, line)
		}
		d.names = append(d.names, name)
		d.steps[name] = s
	}
	return nil
}

func readStep(line string) (name string, s demoStep, err error) {
	dec := json.NewDecoder(strings.NewReader(line))
	if _, err := dec.Token(); err != nil {
		return "", s, err
	}
	into := []any{
		&name, &s.Identity, &s.Tenant, &s.Class, &s.Label, &s.Allow, &s.Status, &s.Pool, &s.Replica, &s.Basis,
		&s.Prompt, &s.Predicted, &s.Cached, &s.Reason, &s.DecisionID,
	}
	for i, want := range demoFields {
		field, err := dec.Token()
		if err != nil {
			return "", s, err
		}
		if field != want {
			return "", s, fmt.Errorf("field %v where %s belongs", field, want)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return "", s, err
		}
		if err := setField(into[i], value); err != nil {
			return "", s, fmt.Errorf("%s: %w", want, err)
		}
	}
	if dec.More() {
		return "", s, fmt.Errorf("more than %d fields", len(demoFields))
	}
	return name, s, nil
}

// setField makes null visible: nothing else is "-" or -1.
func setField(into any, value json.RawMessage) error {
	if string(value) != "null" {
		return json.Unmarshal(value, into)
	}
	switch v := into.(type) {
	case *string:
		*v = "-"
	case *int:
		*v = -1
	case *bool: // of the one step that makes no request: its status is -1
		*v = false
	default:
		return fmt.Errorf("null")
	}
	return nil
}

func TestDemoKeepsItsContract(t *testing.T) {
	d := tour(t)
	t.Logf("the tour took %v", d.took.Round(time.Millisecond))
	if d.took >= demoTime {
		t.Errorf("the tour took %v, more than %v", d.took, demoTime)
	}
	if want := []string{
		"cold-chat", "warm-chat", "other-tenant-same-prompt", "agent-tool-call", "rag-phi", "denied",
		"bad-token", "evicted", "impostor", "failover", "tampered-log",
	}; !slices.Equal(d.names, want) {
		t.Fatalf("steps %v, want %v", d.names, want)
	}
	if s := d.summary; !s.Summary || s.Steps != len(d.names) || s.Records < 20 || !s.LogVerified {
		t.Errorf("summary %+v", s)
	}
	const pools = "spiffe://demo.sallyport/pool/"
	cold, warm, other := d.steps["cold-chat"], d.steps["warm-chat"], d.steps["other-tenant-same-prompt"]
	agent, rag, denied, bad := d.steps["agent-tool-call"], d.steps["rag-phi"], d.steps["denied"], d.steps["bad-token"]
	evicted, impostor, failover, tampered := d.steps["evicted"], d.steps["impostor"], d.steps["failover"], d.steps["tampered-log"]
	for claim, holds := range map[string]bool{
		"a new conversation is placed by load":              answered(cold, "acme", "general") && cold.Basis == "load" && cold.Predicted == 0 && cold.Cached == 0,
		"its next turn goes to the same replica":            answered(warm, "acme", "general") && warm.Replica == cold.Replica && warm.Basis == "kv_events",
		"what was predicted is what was found":              warm.Predicted > 0 && warm.Predicted == warm.Cached && warm.Cached < warm.Prompt,
		"another tenant finds nothing of it":                answered(other, "globex", "general") && other.Prompt == warm.Prompt && other.Predicted == 0 && other.Cached == 0,
		"tools are an agent's":                              answered(agent, "acme", "agents") && agent.Class == "agent_tool_call" && agent.Identity == "acme-agent",
		"a medical record number makes it restricted":       answered(rag, "acme", "restricted") && rag.Class == "rag" && rag.Label == "restricted",
		"a tenant without the right is denied":              denied.Status == 403 && !denied.Allow && denied.Tenant == "initech" && denied.Replica == "-" && denied.Reason != "-",
		"a bad token is nobody's":                           bad.Status == 401 && !bad.Allow && bad.Tenant == "-" && bad.DecisionID == "-" && bad.Class == "-",
		"evicted blocks are not counted on":                 answered(evicted, "acme", "general") && evicted.Predicted == 0 && evicted.Cached == 0,
		"an impostor is no candidate":                       answered(impostor, "acme", "general") && impostor.Reason == "svid_mismatch" && !strings.HasSuffix(impostor.Replica, "/r2"),
		"a killed holder is not waited for":                 answered(failover, "acme", "general") && failover.Reason == "holder_down",
		"a flipped bit is found":                            strings.HasPrefix(tampered.Reason, "record ") && tampered.Status == -1 && tampered.DecisionID == "-",
		"chat without a label of its own is internal":       cold.Class == "chat" && cold.Label == "internal",
		"replicas are named by their SPIFFE ID in the pool": strings.HasPrefix(rag.Replica, pools+"restricted/") && strings.HasPrefix(agent.Replica, pools+"agents/"),
	} {
		if !holds {
			t.Errorf("it does not hold that %s", claim)
		}
	}
	if t.Failed() {
		for _, name := range d.names {
			t.Logf("%s: %+v", name, d.steps[name])
		}
	}
}

// answered reports whether a step was answered for a tenant from a pool.
func answered(s demoStep, tenant, pool string) bool {
	return s.Allow && s.Status == 200 && s.Tenant == tenant && s.Pool == pool &&
		strings.HasPrefix(s.Replica, "spiffe://demo.sallyport/pool/"+pool+"/") && s.DecisionID != "-" && s.Prompt > 0
}

// TestDemoStepsAreWhatTheLogSays reads the decisions from the log that the demo
// left behind.
func TestDemoStepsAreWhatTheLogSays(t *testing.T) {
	d := tour(t)
	for name, s := range d.steps {
		if s.DecisionID == "-" {
			continue
		}
		entries, err := tlog.Find(d.summary.LogDir, s.DecisionID, 0)
		if err != nil {
			t.Fatal(err)
		}
		var decision *audit.Record
		for _, e := range entries {
			if r := tlogtest.Decode(t, e); r.Kind == audit.KindDecision {
				decision = r
			}
		}
		switch {
		case decision == nil:
			t.Errorf("%s: no decision %s in the log", name, s.DecisionID)
		case (decision.Status == "allowed") != s.Allow, decision.Caller.Tenant != s.Tenant, decision.Class.Name != s.Class, decision.Label.Level != s.Label:
			t.Errorf("%s: the demo says %+v, the log %s of %s, %s, %s", name, s, decision.Status, decision.Caller.Tenant, decision.Class.Name, decision.Label.Level)
		case name == "impostor" && decision.Placement.Excluded["svid_mismatch"] != 1:
			t.Errorf("impostor: excluded %v", decision.Placement.Excluded)
		case name == "failover" && decision.Reason != "holder_down":
			t.Errorf("failover: reason %q", decision.Reason)
		case name == "denied" && decision.Reason != s.Reason:
			t.Errorf("denied: reason %q", decision.Reason)
		}
	}
}

// TestTheDemosLogsAnswerAnAuditor runs the commands of docs/demo.md on what the
// demo left behind.
func TestTheDemosLogsAnswerAnAuditor(t *testing.T) {
	d := tour(t)
	fleet := filepath.Join(d.dir, "fleet.yaml")
	month := time.Now().UTC().Format("2006-01")
	residency := func(region string) []string {
		return []string{"audit", "residency", "--fleet", fleet, "--tenant", "acme", "--label", "restricted", "--region", region, "--month", month}
	}
	for _, c := range []struct {
		args []string
		code int
		says []string
	}{
		{[]string{"audit", "verify", "--fleet", fleet}, 0, []string{"forwards and", "relay/pool-restricted-r1"}},
		{residency("eu-1"), 0, []string{"HOLDS", "1 such requests were allowed: 1 served inside by the word of a relay"}},
		{append(residency("eu-1"), "--tenant", "nobody"), 0, []string{"HOLDS", "No log holds an allowed request of nobody"}},
		{residency("us-1"), 1, []string{"DOES NOT HOLD that no request", d.steps["rag-phi"].DecisionID, "by the log of the relay"}},
		{
			[]string{
				"audit", "verify", d.summary.LogDir, "--key", d.summary.LogKey, "--key", filepath.Join(d.dir, "pool-restricted-r0.key.pub"),
				"--relay-log", filepath.Join(d.dir, "pool-restricted-r0.tickets"),
			},
			2,
			[]string{"relay_log_missing"},
		},
	} {
		out, code := sallyport(t, c.args...)
		if code != c.code {
			t.Errorf("%v: exit %d, want %d: %s", c.args, code, c.code, out)
		}
		for _, want := range c.says {
			if !strings.Contains(out, want) {
				t.Errorf("%v: no %q in\n%s", c.args, want, out)
			}
		}
	}
}
