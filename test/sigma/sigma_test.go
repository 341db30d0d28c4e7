// Package sigma holds the detections in deploy/sigma against records that must
// fire them and records that must not.
package sigma

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/export/format"
	"github.com/sallyport-ai/sallyport/audit/reconcile"
)

const folder = "../../deploy/sigma"

// load reads every rule, by the name of its file.
func load(t *testing.T) map[string][]*rule {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.yml"))
	if err != nil || len(files) < 9 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	out := make(map[string][]*rule)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		rules, err := parse(text)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out[strings.TrimSuffix(filepath.Base(file), ".yml")] = rules
	}
	return out
}

func TestRulesAreWellFormed(t *testing.T) {
	seen := make(map[string]string)
	for name, rules := range load(t) {
		for _, r := range rules {
			if _, err := uuid.Parse(r.ID); err != nil || seen[r.ID] != "" {
				t.Errorf("%s: id %q, which %s has as well: %v", name, r.ID, seen[r.ID], err)
			}
			seen[r.ID] = name
			if r.Title == "" || len(r.Title) > 256 || r.Description == "" || !slices.Contains([]string{"informational", "low", "medium", "high", "critical"}, r.Level) {
				t.Errorf("%s: %+v", name, r)
			}
			if (r.Detection == nil) == (r.Correlation == nil) || r.Detection != nil && r.LogSource.Product != "sallyport" {
				t.Errorf("%s is no rule about sallyport", name)
			}
		}
	}
}

func TestTheEvaluatorRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, text := range []string{
		"{selection: {a|re: x}, condition: selection}", "{selection: {a: x}, condition: other}", "{selection: {a: x}, condition: selection other}",
		"{selection: {a: x}, condition: selection and}", "{selection: {a: x}, condition: (selection}", "{selection: {a: x}}", "{selection: 7, condition: selection}",
	} {
		rules, err := parse([]byte("title: x\ndetection: " + text))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := rules[0].matches(map[string]any{"a": "x"}); err == nil {
			t.Errorf("%s was understood", text)
		}
	}
}

func decision(change func(*audit.Record)) *audit.Record {
	r := &audit.Record{
		V: audit.Version, Kind: audit.KindDecision, ID: audit.NewID(), Attempt: 1, Status: audit.StatusAllowed,
		Caller: &audit.Caller{Tenant: "acme"}, Class: &audit.Class{Name: "chat"},
		Label:     &audit.Label{Level: "internal", Sources: []audit.LabelSource{{Source: "tenant_default", Level: "internal"}}},
		Placement: &audit.Placement{Replica: "spiffe://example.org/pool/general/r0", Excluded: map[string]int{"draining": 1}},
	}
	change(r)
	return r
}

func of(kind audit.Kind, event string) *audit.Record {
	return &audit.Record{V: audit.Version, Kind: kind, ID: audit.NewID(), Event: json.RawMessage(event)}
}

func label(level string, sources ...string) *audit.Label {
	l := &audit.Label{Level: level}
	for _, s := range sources {
		l.Sources = append(l.Sources, audit.LabelSource{Source: s, Level: level})
	}
	return l
}

// TestEachRuleFiresWhereItMustAndNowhereElse exports records as sinks get them,
// as they are and in ECS, and asks every rule about each: its own alone may fire.
func TestEachRuleFiresWhereItMustAndNowhereElse(t *testing.T) {
	rules := load(t)
	for _, c := range []struct {
		claim string
		r     *audit.Record
		fires string // the one rule that does; empty: none
	}{
		{"an ordinary decision", decision(func(*audit.Record) {}), ""},
		{"a hint that was too low", decision(func(r *audit.Record) { r.Class.Mismatch = true }), "class_mismatch"},
		{"a detector's find", decision(func(r *audit.Record) { r.Label = label("restricted", "detector") }), "label_raise"},
		{"restricted by registration, which a detector confirms", decision(func(r *audit.Record) { r.Label = label("restricted", "workload_floor", "detector") }), ""},
		{"a detector's lesser find", decision(func(r *audit.Record) { r.Label = label("confidential", "detector") }), ""},
		{"an impostor that was passed over", decision(func(r *audit.Record) { r.Placement.Excluded["svid_mismatch"] = 1 }), "impostor_replica"},
		{"an impostor that was dialled", &audit.Record{V: 1, Kind: audit.KindOutcome, Reason: "replica_identity", Outcome: &audit.Outcome{Status: audit.StatusError}}, "impostor_replica"},
		{"a replica that did not answer", &audit.Record{V: 1, Kind: audit.KindOutcome, Reason: "upstream_unreachable", Outcome: &audit.Outcome{Status: audit.StatusError}}, ""},
		{"an older policy", of(audit.KindAdmin, `{"action":"reload","result":"refused","detail":"activate policy: bundle revision 6 is older than 7"}`), "policy_rollback"},
		{"another content under one revision", of(audit.KindAdmin, `{"action":"reload","result":"refused","detail":"bundle revision 7 has changed: digest ab, was cd"}`), "policy_rollback"},
		{"a policy that does not compile", of(audit.KindAdmin, `{"action":"reload","result":"refused","detail":"compile rego: 1 error"}`), ""},
		{"a newer policy", of(audit.KindAdmin, `{"action":"reload","result":"applied"}`), ""},
		{"a log that was halted", of(audit.KindGap, `{"reason":"halted","refused":12}`), "audit_halted"},
		{"a witness that refuses", of(audit.KindGap, `{"reason":"witness_refused"}`), "audit_halted"},
		{"a request that could not be recorded", decision(func(r *audit.Record) { r.Status, r.Reason = audit.StatusDenied, "audit_unavailable" }), "audit_halted"},
		{"a request that policy denied", decision(func(r *audit.Record) { r.Status, r.Reason = audit.StatusDenied, "policy_denied" }), ""},
		{"a heartbeat", of(audit.KindHeartbeat, `{}`), ""},
		{"a replica that claims too much", of(audit.KindFleet, `{"action":"doubt","doubt":"over_claims","replica":"r0"}`), "cache_claim_liar"},
		{"a replica that is believed again", of(audit.KindFleet, `{"action":"trust","doubt":"over_claims","replica":"r0"}`), ""},
		{"a tokenizer that counts otherwise", of(audit.KindFleet, `{"action":"doubt","doubt":"prompt_mismatch","model":"small"}`), ""},
		{"a flood", &audit.Record{V: 1, Kind: audit.KindDenialSummary, Denials: []audit.DenialCount{{Prefix: "a", Code: "bad_credential", Count: 3}, {Prefix: "b", Code: "no_credential", Count: 4000}}}, "denial_flood"},
		{"a tenant that has spent its quota", &audit.Record{V: 1, Kind: audit.KindDenialSummary, Denials: []audit.DenialCount{{Prefix: "tenant:acme", Code: "rate_limited", Count: 4000}, {Prefix: "tenant:globex", Code: "rate_limited", Count: 1}}}, ""},
		{"a trickle", &audit.Record{V: 1, Kind: audit.KindDenialSummary, Denials: []audit.DenialCount{{Prefix: "a", Code: "bad_credential", Count: 99}}}, ""},
	} {
		for _, as := range []string{"record", "ecs"} {
			event := exported(t, as, c.r)
			for name, file := range rules {
				hit, err := file[0].matches(event)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if hit != (name == c.fires) {
					t.Errorf("%s, as %s: %s fires: %v", c.claim, as, name, hit)
				}
			}
		}
	}
}

// exported is a record as a sink of that format gets it, by the names of the
// record.
func exported(t *testing.T, as string, r *audit.Record) map[string]any {
	t.Helper()
	leaf, err := audit.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	e, err := format.NewEvent(7, leaf)
	if err != nil {
		t.Fatal(err)
	}
	f, err := format.Find(as)
	if err != nil {
		t.Fatal(err)
	}
	text, err := f.Event(e, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var event map[string]any
	if err := json.Unmarshal(text, &event); err != nil {
		t.Fatal(err)
	}
	if as == "ecs" {
		inner, ok := event["sallyport"].(map[string]any)
		if !ok {
			t.Fatalf("no sallyport in %s", text)
		}
		return inner
	}
	return event
}

func TestAReplicaIsHotWhenItHasNoRoomAgainAndAgain(t *testing.T) {
	hot := load(t)["hot_replica"]
	named := map[string]*rule{hot[0].Name: hot[0]}
	begin := time.Date(2026, 11, 3, 9, 0, 0, 0, time.UTC)
	busy := func(n int, every time.Duration, replicas int, reason string) (events []timed) {
		for i := range n {
			r := &audit.Record{
				V: 1, Kind: audit.KindOutcome, ID: audit.NewID(), Reason: reason,
				Outcome: &audit.Outcome{Status: audit.StatusError, Replica: fmt.Sprintf("r%d", i%replicas)},
			}
			events = append(events, timed{begin.Add(time.Duration(i) * every), exported(t, "record", r)})
		}
		return events
	}
	for _, c := range []struct {
		claim  string
		events []timed
		want   bool
	}{
		{"twenty times in a minute", busy(20, 3*time.Second, 1, "engine_busy"), true},
		{"nineteen times", busy(19, 3*time.Second, 1, "engine_busy"), false},
		{"twenty times in an hour", busy(20, 3*time.Minute, 1, "engine_busy"), false},
		{"twenty times, each another", busy(20, 3*time.Second, 20, "engine_busy"), false},
		{"twenty timeouts", busy(20, 3*time.Second, 1, "upstream_timeout"), false},
	} {
		if got, err := hot[1].Correlation.fires(c.events, named); err != nil || got != c.want {
			t.Errorf("%s: %v, %v", c.claim, got, err)
		}
	}
}

// The lines of verify fire their rule, and no other.
func TestVerifyTellsOfForwardsWithoutDecisions(t *testing.T) {
	rules := load(t)
	for code, fires := range map[reconcile.Code]bool{
		reconcile.ForwardWithoutDecision: true, reconcile.ForwardOfDenied: true, reconcile.ForwardTwice: true, reconcile.ForwardUnlisted: true,
		reconcile.DecisionWithoutForward: true, reconcile.DecisionTwice: true, "": false,
	} {
		report := &reconcile.Report{Faults: map[reconcile.Code]int{}}
		if code != "" {
			report.Faults[code] = 1
		}
		text, err := json.Marshal(map[string]any{"reconciled": report})
		if err != nil {
			t.Fatal(err)
		}
		var event map[string]any
		if err := json.Unmarshal(text, &event); err != nil {
			t.Fatal(err)
		}
		for name, file := range rules {
			hit, err := file[0].matches(event)
			if err != nil || hit != (fires && name == "forward_without_decision") {
				t.Errorf("%q: %s fires: %v, %v", code, name, hit, err)
			}
		}
	}
}
