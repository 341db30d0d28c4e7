package gateway

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/policy"
)

// delegates are registrations of actors beside those of the demonstration.
const delegates = `{
	"acme-agent": {"client_id": "acme-agent", "tenant": "acme", "kind": "agent", "classes": ["discovery", "chat", "agent_tool_call"]},
	"acme-rag": {"client_id": "acme-rag", "tenant": "acme", "kind": "workload", "classes": ["discovery", "rag"], "class": "rag", "label_floor": "internal"},
	"acme-batch": {"spiffe_id": "spiffe://demo.sallyport/tenant/acme/batch", "tenant": "acme", "kind": "workload", "classes": ["discovery", "chat"], "max_output_tokens": 7},
	"planner": {"client_id": "planner", "tenant": "acme", "classes": ["discovery", "chat"]},
	"careful": {"client_id": "careful", "tenant": "acme", "kind": "agent", "classes": ["chat"], "label_floor": "confidential", "max_output_tokens": 5},
	"abroad": {"client_id": "abroad", "tenant": "acme", "kind": "agent", "classes": ["chat"], "residency": "us-1"},
	"elsewhere": {"client_id": "elsewhere", "issuer": "https://other.example", "tenant": "acme", "classes": ["chat"]},
	"globex-agent": {"client_id": "globex-agent", "tenant": "globex", "kind": "agent", "classes": ["chat"]}
}`

// acting is an act claim, the present actor first.
func acting(subjects ...string) map[string]any {
	var act map[string]any
	for _, subject := range slices.Backward(subjects) {
		act = map[string]any{"sub": subject, "act": act}
		if act["act"].(map[string]any) == nil {
			delete(act, "act")
		}
	}
	return act
}

// serveDelegates starts a gateway that knows them, and the workload that has the
// certificate of one.
func serveDelegates(t *testing.T) (s *service, batch *workload.Source) {
	t.Helper()
	engine, err := loadPolicy(t.Context(), fstest.MapFS{"sallyport/workloads/data.json": {Data: []byte(delegates)}})
	if err != nil {
		t.Fatal(err)
	}
	s = serve(t, func(c *Config) { c.Policy = engine })
	if batch, err = s.source(t.Context(), "/tenant/acme/batch"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = batch.Close() })
	return s, batch
}

func TestEachActorOfAChainIsHeldAgainstItsRegistration(t *testing.T) {
	s, batch := serveDelegates(t)
	const batchID = "spiffe://demo.sallyport/tenant/acme/batch"
	foreign := acting("elsewhere")
	foreign["iss"] = "https://other.example"
	for _, c := range []struct {
		claim  string
		act    map[string]any
		svid   bool // the client also proves batchID
		status int
		reason string // of a refusal
		chain  string // type subject registration, …
	}{
		{"a registered agent acts", acting("acme-agent"), false, 200, "", "user alice , agent acme-agent acme-agent"},
		{"a chain of registered actors, the present one last", acting("acme-agent", "planner"), false, 200, "", "user alice , agent planner planner, agent acme-agent acme-agent"},
		{"an actor whose registration says no kind is still no person", acting("planner"), false, 200, "", "user alice , agent planner planner"},
		{"an actor without a registration", acting("stranger"), false, 403, "actor_not_registered", "user alice , agent stranger "},
		{"an earlier actor without a registration", acting("acme-agent", "stranger"), false, 403, "actor_not_registered", "user alice , agent stranger "},
		{"an actor of another tenant", acting("globex-agent"), false, 403, "actor_not_registered", "user alice , agent globex-agent globex-agent"},
		{"an earlier actor of another tenant", acting("acme-agent", "globex-agent"), false, 403, "actor_not_registered", "user alice , agent globex-agent globex-agent"},
		{"an actor whose registration is of another issuer", acting("elsewhere"), false, 403, "actor_not_registered", "user alice , agent elsewhere "},
		{"an actor that the issuer of its registration names", foreign, false, 200, "", "user alice , agent elsewhere elsewhere"},
		{"an actor that is registered for other classes", acting("acme-agent", "acme-rag"), false, 403, "class_not_registered", ""},
		{"an actor that is bound to a region without replicas", acting("abroad"), false, 403, "no_permitted_pool", ""},
		{"a workload that acts and proves that it is it", acting(batchID), true, 200, "", "user alice , workload " + batchID + " acme-batch"},
		{"a workload that acts and proves nothing", acting(batchID), false, 403, "actor_not_registered", ""},
		{"a workload that acted before", acting("acme-agent", batchID), false, 200, "", "user alice , workload " + batchID + " acme-batch, agent acme-agent acme-agent"},
		{"more actors than may be", acting("a", "b", "c", "d", "e"), false, 401, "", ""},
		{"an actor that acts for itself in the end", acting("acme-agent", "planner", "acme-agent"), false, 401, "", ""},
	} {
		t.Run(c.claim, func(t *testing.T) {
			token, err := s.mint(map[string]any{"sub": "alice", "tenant": "acme", "act": c.act})
			if err != nil {
				t.Fatal(err)
			}
			req := s.request(t.Context(), "", chat(s.newMark()))
			req.Header.Set("Authorization", "Bearer "+token)
			client := s.client
			if c.svid {
				client = s.clientAs(batch)
			}
			as := *s
			as.client, as.tb = client, t
			a := as.do(req)
			if a.status != c.status {
				t.Fatalf("got %d %s, want %d", a.status, a.body, c.status)
			}
			if a.status == http.StatusUnauthorized {
				return // nobody, so there is no record of its own
			}
			record := s.records(t, a.id())[0]
			if c.reason != "" && record.Reason != c.reason && !strings.Contains(string(record.Decision), c.reason) {
				t.Errorf("refused for %q, %s", record.Reason, record.Decision)
			}
			if got := chainOf(record.Caller); c.chain != "" && got != c.chain {
				t.Errorf("the record's chain is %q, want %q", got, c.chain)
			}
			if c.status != http.StatusOK {
				return
			}
			var in policy.Input
			if err := json.Unmarshal(record.Input, &in); err != nil {
				t.Fatal(err)
			}
			if kind := in.Principal.Kind; kind == "human" {
				t.Errorf("policy takes the actor for a %s", kind)
			}
			told := audit.Caller{Ref: in.Principal.Subject}
			for _, link := range in.Principal.Chain {
				told.Chain = append(told.Chain, audit.Actor(link))
			}
			if got := chainOf(&told); got != c.chain {
				t.Errorf("policy is told of %q, want %q", got, c.chain)
			}
		})
	}
}

// chainOf is a chain in one line, with the user's pseudonym lifted.
func chainOf(c *audit.Caller) string {
	links := make([]string, len(c.Chain))
	for i, a := range c.Chain {
		links[i] = a.Type + " " + a.Subject + " " + a.Registration
	}
	return strings.Replace(strings.Join(links, ", "), c.Ref, "alice", 1)
}

func TestTheStrictestOfAChainsRegistrationsBinds(t *testing.T) {
	engine, err := loadPolicy(t.Context(), fstest.MapFS{"sallyport/workloads/data.json": {Data: []byte(delegates)}})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, func(c *Config) { c.Policy = engine })
	token, err := s.mint(map[string]any{"sub": "alice", "tenant": "acme", "act": acting("acme-agent", "careful")})
	if err != nil {
		t.Fatal(err)
	}
	req := s.request(t.Context(), "", chat(s.newMark(), `"max_tokens":50`))
	req.Header.Set("Authorization", "Bearer "+token)
	a := s.do(req)
	records := s.records(t, a.id())
	if level := records[0].Label.Level; level != "confidential" {
		t.Errorf("the label is %s: %s", level, a.body)
	}
	s.want(a, http.StatusOK, "")
	if !strings.Contains(a.body, `"completion_tokens":5`) {
		t.Errorf("the answer has more than 5 tokens: %s", a.body)
	}
}

func TestACertificateLeavesTheRegistrationOfATokensClientInForce(t *testing.T) {
	s, batch := serveDelegates(t)
	for _, c := range []struct {
		claim, client string
		status        int
		reason        string // of a refusal
		level         string
	}{
		{"a client without a registration", "portal", 200, "", "internal"},
		{"a client with a label floor", "careful", 200, "", "confidential"},
		{"a client that is bound to a region without replicas", "abroad", 403, "no_permitted_pool", ""},
		{"a client of a class that the certificate's registration lacks", "acme-rag", 403, "class_not_registered", ""},
		{"a client of another tenant", "globex-agent", 403, "not_registered", ""},
	} {
		t.Run(c.claim, func(t *testing.T) {
			token, err := s.mint(map[string]any{"sub": "alice", "tenant": "acme", "client_id": c.client})
			if err != nil {
				t.Fatal(err)
			}
			req := s.request(t.Context(), "", chat(s.newMark()))
			req.Header.Set("Authorization", "Bearer "+token)
			as := *s
			as.client, as.tb = s.clientAs(batch), t
			a := as.do(req)
			if a.status != c.status {
				t.Fatalf("got %d %s, want %d", a.status, a.body, c.status)
			}
			record := s.records(t, a.id())[0]
			if c.reason != "" && !strings.Contains(record.Reason+string(record.Decision), c.reason) {
				t.Errorf("refused for %q, %s", record.Reason, record.Decision)
			}
			if c.level != "" && record.Label.Level != c.level {
				t.Errorf("the label is %s, want %s", record.Label.Level, c.level)
			}
		})
	}
}

func TestAPseudonymousUserIsNotNamedByTheChain(t *testing.T) {
	s := serve(t) // acme's subjects are pseudonyms
	token, err := s.mint(map[string]any{"sub": "alice-in-the-clear", "tenant": "acme", "act": acting("acme-agent")})
	if err != nil {
		t.Fatal(err)
	}
	req := s.request(t.Context(), "", chat(s.newMark()))
	req.Header.Set("Authorization", "Bearer "+token)
	a := s.do(req)
	s.want(a, http.StatusOK, "")
	for _, r := range s.records(t, a.id()) {
		raw, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(raw), "alice-in-the-clear") {
			t.Errorf("the %s names the user: %s", r.Kind, raw)
		}
	}
}
