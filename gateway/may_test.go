package gateway

import (
	"context"
	"encoding/json"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/policies"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/routing/fleet"
	"github.com/sallyport-ai/sallyport/test/await"
)

// misbehaving is a policy that allows acme's chats and fails in a way that the
// request chooses, by the tokens that it asks for.
const misbehaving = `package sallyport

answer := {
	"allow": true, "reasons": [], "pools": ["general"], "strategy": "probabilistic",
	"prefer": {"region": "", "warm": true}, "cache_domain": "tenant",
	"inspect": {"request": ["detectors"], "response": []}, "tools_allow": null,
	"limits": {"max_output_tokens": null}, "durability": "strict",
	"expose_cached_tokens": false, "reauthorize_s": 300,
}

mode := input.request.max_tokens

chat if {
	input.principal.tenant == "acme"
	input.class.name in {"chat", "agent_tool_call"}
}

decision := answer if {
	chat
	not mode in numbers.range(1, 99)
}

decision := object.union(answer, {"allow": false}) if not chat

decision := answer if {
	mode == 2
	to_number(input.principal.subject) > 0
}

decision := answer if {
	mode == 3
	n := count([x | some a in numbers.range(1, 3000); some b in numbers.range(1, 3000); x := a * b; x == -1])
	n == 0
}

decision := object.union(answer, {"alow": true}) if mode == 4

decision := object.union(answer, {"pools": ["elsewhere"]}) if mode == 5

decision := answer if mode == 6

decision := object.union(answer, {"strategy": "deterministic"}) if mode == 6

decision := "allow" if mode == 7

decision := object.union(answer, {"inspect": {"request": ["detectors"], "response": ["dlp"]}}) if mode == 8

decision := object.union(answer, {"inspect": {"request": ["sandbox"], "response": []}}) if mode == 9

decision := object.union(answer, {"pools": ["agents"], "tools_allow": []}) if mode == 10
`

func TestAPolicyThatFailsDenies(t *testing.T) {
	data, err := policies.Demo()
	if err != nil {
		t.Fatal(err)
	}
	engine, err := policy.Load(t.Context(), policy.Config{Layers: []fs.FS{fstest.MapFS{"sallyport/decision.rego": {Data: []byte(misbehaving)}}, data}, Timeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, func(c *Config) { c.Policy = engine })
	const tool = `"tools":[{"type":"function","function":{"name":"lookup"}}]`
	if a := s.post("acme", chat(s.newMark(), `"max_tokens":100`)); a.status != http.StatusOK {
		t.Fatalf("while it does not fail: %s", a.body)
	}
	for _, c := range []struct{ claim, more, reason string }{
		{"it answers nothing", `"max_tokens":1`, "policy_undefined"},
		{"a built-in fails", `"max_tokens":2`, "policy_error"},
		{"it takes too long", `"max_tokens":3`, "policy_timeout"},
		{"it answers with a field that nobody knows", `"max_tokens":4`, "policy_malformed"},
		{"it names a pool that nobody knows", `"max_tokens":5`, "policy_malformed"},
		{"its rules conflict", `"max_tokens":6`, "policy_error"},
		{"it answers with a word", `"max_tokens":7`, "policy_malformed"},
		{"it wants answers inspected", `"max_tokens":8`, "inspection_unavailable"},
		{"it wants an inspection that there is not", `"max_tokens":9`, "inspection_unavailable"},
		{"it allows no tools", `"max_tokens":10,` + tool, "tool_not_allowed"},
	} {
		t.Run(c.claim, func(t *testing.T) {
			s.tb = t
			mark := s.newMark()
			a := s.post("acme", chat(mark, c.more))
			s.want(a, http.StatusForbidden, "policy_denied")
			s.unreached(mark)
			if d, o := s.lone(a); d.Status != audit.StatusDenied || d.Reason != c.reason || o != nil {
				t.Errorf("%s for %q, want %q", d.Status, d.Reason, c.reason)
			}
			if strings.Contains(a.body, "rego") || strings.Contains(a.body, c.reason) {
				t.Errorf("the caller reads why: %s", a.body)
			}
		})
	}
}

// tenants is a layer over the demonstration's that a test edits before it
// reloads.
type tenants struct {
	fstest.MapFS
	data map[string]map[string]any
}

func editable(t *testing.T) *tenants {
	t.Helper()
	demo, err := policies.Demo()
	if err != nil {
		t.Fatal(err)
	}
	b, err := fs.ReadFile(demo, "sallyport/tenants/data.json")
	if err != nil {
		t.Fatal(err)
	}
	l := &tenants{MapFS: fstest.MapFS{}}
	if err := json.Unmarshal(b, &l.data); err != nil {
		t.Fatal(err)
	}
	return l
}

// set changes a field of a tenant.
func (l *tenants) set(tenant, field string, value any) {
	l.data[tenant][field] = value
	b, err := json.Marshal(l.data)
	if err != nil {
		panic(err) // of maps and strings
	}
	l.MapFS["sallyport/tenants/data.json"] = &fstest.MapFile{Data: b}
}

func TestAPolicySwappedBeforeForwardingIsAskedAnew(t *testing.T) {
	w := inWorld(t)
	for _, c := range []struct {
		claim  string
		change func(*tenants)
		check  func(*testing.T, *service, string, answer, []*audit.Record, []*audit.Record)
	}{
		{
			"and allows", func(l *tenants) { l.set("acme", "max_output_tokens", 11) },
			func(t *testing.T, s *service, mark string, a answer, decisions, outcomes []*audit.Record) {
				if a.status != http.StatusOK || len(decisions) != 2 || len(outcomes) != 2 {
					t.Fatalf("%d with %d decisions and %d outcomes", a.status, len(decisions), len(outcomes))
				}
				if d := decisions[1]; d.Attempt != 2 || d.Status != audit.StatusAllowed || d.Reason != "policy_moved" || d.Policy.Digest == decisions[0].Policy.Digest {
					t.Errorf("second decision: attempt %d, %s, reason %q", d.Attempt, d.Status, d.Reason)
				}
				if o := outcomes[0]; o.Status != audit.StatusNotForwarded || o.Attempt != 1 {
					t.Errorf("outcome of the first: %s of %d", o.Status, o.Attempt)
				}
				got := s.engine.got(mark)
				if len(got) != 1 || !strings.Contains(got[0].body, `"max_tokens":11`) {
					t.Errorf("the engine got %v", got)
				}
			},
		},
		{
			"and denies", func(l *tenants) { l.set("acme", "models", []string{}) },
			func(t *testing.T, s *service, mark string, a answer, decisions, outcomes []*audit.Record) {
				s.want(a, http.StatusForbidden, "policy_denied")
				s.unreached(mark)
				if len(decisions) != 2 || decisions[1].Status != audit.StatusDenied || decisions[1].Reason != "model_not_permitted" || decisions[1].Attempt != 2 {
					t.Errorf("decisions: %+v", decisions)
				}
				if len(outcomes) != 1 || outcomes[0].Status != audit.StatusNotForwarded {
					t.Errorf("outcomes: %+v", outcomes)
				}
			},
		},
		{
			"and raises the label", func(l *tenants) { l.set("acme", "label_default", "restricted") },
			func(t *testing.T, s *service, mark string, a answer, decisions, _ []*audit.Record) {
				if a.status != http.StatusOK || len(decisions) != 2 || decisions[1].Label.Level != "restricted" || decisions[1].Placement.Pool != "restricted" {
					t.Fatalf("%d, decisions %+v", a.status, decisions)
				}
				if got := s.engine.got(mark); len(got) != 1 || got[0].replica != decisions[1].Placement.Replica {
					t.Errorf("sent to %v", got)
				}
			},
		},
	} {
		t.Run(c.claim, func(t *testing.T) {
			layer := editable(t)
			layer.set("acme", "region", "eu-1")
			engine, err := loadPolicy(t.Context(), layer)
			if err != nil {
				t.Fatal(err)
			}
			var once sync.Once
			s := serve(t, func(cfg *Config) {
				cfg.Policy = engine
				cfg.Log = appendFunc(func(ctx context.Context, r *audit.Record) (audit.Position, error) {
					at, err := w.log.Append(ctx, r)
					once.Do(func() {
						c.change(layer)
						if _, err := engine.Reload(ctx, nil); err != nil {
							t.Error(err)
						}
					})
					return at, err
				})
			})
			mark := s.newMark()
			a := s.post("acme", chat(mark))
			decisions, outcomes := s.story(a)
			c.check(t, s, mark, a, decisions, outcomes)
		})
	}
}

// A policy that changes at every look ends in a refusal, not in a race.
func TestAPolicyThatNeverStandsStill(t *testing.T) {
	w := inWorld(t)
	layer := editable(t)
	layer.set("acme", "region", "eu-1")
	engine, err := loadPolicy(t.Context(), layer)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	s := serve(t, func(cfg *Config) {
		cfg.Policy = engine
		cfg.Log = appendFunc(func(ctx context.Context, r *audit.Record) (audit.Position, error) {
			if allows(r) {
				n++
				layer.set("acme", "max_output_tokens", 100+n)
				if _, err := engine.Reload(ctx, nil); err != nil {
					t.Error(err)
				}
			}
			return w.log.Append(ctx, r)
		})
	})
	mark := s.newMark()
	a := s.post("acme", chat(mark))
	s.want(a, http.StatusServiceUnavailable, "not_ready")
	s.unreached(mark)
	decisions, outcomes := s.story(a)
	if len(decisions) != s.g.cfg.MaxAttempts+maxMoves || len(outcomes) != len(decisions) {
		t.Errorf("%d decisions, %d outcomes", len(decisions), len(outcomes))
	}
	for i, d := range decisions {
		if d.Attempt != i+1 {
			t.Errorf("decision %d is of attempt %d", i, d.Attempt)
		}
	}
}

// What was decided for a replica is not sent to it once it has been withdrawn.
func TestAReplicaWithdrawnBeforeForwardingGetsNothing(t *testing.T) {
	w := inWorld(t)
	targets := w.fleetConfig()
	f, err := fleet.New(targets)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = f.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	await.That(t, "the replicas", func() bool { return ready(f) })
	var once sync.Once
	s := serve(t, func(cfg *Config) {
		cfg.Fleet = f
		cfg.Log = appendFunc(func(ctx context.Context, r *audit.Record) (audit.Position, error) {
			at, err := w.log.Append(ctx, r)
			if allows(r) {
				once.Do(func() {
					rest := slices.DeleteFunc(slices.Clone(targets.Targets), func(t fleet.Target) bool { return t.ID == r.Placement.Replica })
					if err := f.SetTargets(rest); err != nil {
						t.Error(err)
					}
				})
			}
			return at, err
		})
	})
	mark := s.newMark()
	a := s.post("globex", chat(mark))
	decisions, outcomes := s.story(a)
	if a.status != http.StatusOK || len(decisions) != 2 || len(outcomes) != 2 {
		t.Fatalf("%d with %d decisions and %d outcomes", a.status, len(decisions), len(outcomes))
	}
	if d := decisions[1]; d.Attempt != 2 || d.Reason != "replica_moved" || d.Placement.Replica == decisions[0].Placement.Replica {
		t.Errorf("second decision: attempt %d for %s, reason %q", d.Attempt, d.Placement.Replica, d.Reason)
	}
	if o := outcomes[0]; o.Status != audit.StatusNotForwarded || o.Attempt != 1 {
		t.Errorf("outcome of the first: %s of %d", o.Status, o.Attempt)
	}
	if got := s.engine.got(mark); len(got) != 1 || got[0].replica != decisions[1].Placement.Replica {
		t.Errorf("sent to %v", got)
	}
}

func TestModelsAreListedForWhoMayUseThem(t *testing.T) {
	s := serve(t)
	for _, c := range []struct {
		who    string
		status int
		want   string
	}{
		{"acme", 200, "small small-latest"},
		{"globex", 200, "small small-latest"},
		{"agent", 200, "small small-latest"},
		{"rag", 200, "small small-latest"},
		{"initech", 403, ""},
	} {
		t.Run(c.who, func(t *testing.T) {
			s.tb = t
			req := s.request(t.Context(), c.who, "")
			req.Method, req.URL.Path, req.Body, req.ContentLength = http.MethodGet, "/v1/models", nil, 0
			a := s.do(req)
			var list struct {
				Object string
				Data   []struct{ ID, Object string }
			}
			if err := json.Unmarshal([]byte(a.body), &list); err != nil || a.status != c.status {
				t.Fatalf("%d %s", a.status, a.body)
			}
			var ids []string
			for _, m := range list.Data {
				ids = append(ids, m.ID)
			}
			if got := strings.Join(ids, " "); got != c.want {
				t.Errorf("listed %q, want %q", got, c.want)
			}
			if d, _ := s.lone(a); d.Class.Name != "discovery" || d.Request.Operation != "models.list" {
				t.Errorf("recorded as %s of class %s", d.Request.Operation, d.Class.Name)
			}
		})
	}
	t.Run("a model that the tenant lost is not listed", func(t *testing.T) {
		layer := editable(t)
		layer.set("acme", "models", []string{})
		engine, err := loadPolicy(t.Context(), layer)
		if err != nil {
			t.Fatal(err)
		}
		s := serve(t, func(c *Config) { c.Policy = engine })
		req := s.request(t.Context(), "acme", "")
		req.Method, req.URL.Path, req.Body, req.ContentLength = http.MethodGet, "/v1/models", nil, 0
		if a := s.do(req); a.status != http.StatusOK || strings.Contains(a.body, "small") || !strings.Contains(a.body, `"data":[]`) {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}
