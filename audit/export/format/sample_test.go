package format

import (
	"encoding/json"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
)

// samples are records of every kind, the first as large as records of a request
// with six candidates are.
func samples() []*audit.Record {
	gateway := &audit.Gateway{SPIFFE: "spiffe://example.org/gateway/g0", Build: "v0.1.0", Config: "c0ffee"}
	caller := &audit.Caller{
		Mode: "clear", Ref: "agent-7", Tenant: "acme", Kind: "agent", Method: "oidc", Issuer: "https://idp.example", CredFP: "ab12",
		Workload: "spiffe://example.org/agent/7", Registration: "summariser", Chain: []audit.Actor{{Type: "user", Subject: "alice"}, {Type: "agent", Subject: "agent-1"}},
	}
	placement := &audit.Placement{
		Strategy: "deterministic", Basis: "kv_events", Pool: "general", Replica: "spiffe://example.org/pool/general/r1", Epoch: "e1", Seed: 7,
		PredictedCached: 512, BlockSize: 16, Blocks: 40, EventLagMS: 3, ChosenBecause: "lowest_cost", Excluded: map[string]int{"region": 2}, Considered: 8,
	}
	for range 6 {
		placement.Candidates = append(placement.Candidates, audit.Candidate{
			Replica: "spiffe://example.org/pool/general/r1", Stream: "live", BlockSize: 16, Depth: 32, Overlay: 32, Confidence: 990,
			Waiting: 1200, PrefillPS: 80_000_000, DecodeNS: 1000, KVFree: 4000, KVTotal: 8192, Running: 3, Load: 4000, CostNS: 123456,
		})
	}
	decision := &audit.Record{
		V: 1, Kind: audit.KindDecision, ID: "0197f7a0-0000-7000-8000-000000000001", Salt: "AAAAAAAAAAAAAAAAAAAAAA", Gateway: gateway, Caller: caller,
		Policy:   &audit.Policy{Revision: "r42", Digest: "sha256:77", Rules: []string{"chat"}, EvalUS: 90},
		Input:    json.RawMessage(`{"v":1,"principal":{"tenant":"acme"},"request":{"operation":"chat.completions"}}`),
		Decision: json.RawMessage(`{"allow":true,"reasons":["chat"],"pools":["general"]}`),
		Class:    &audit.Class{Name: "agent_tool_call", Facts: []string{"tools_declared"}, Mismatch: true, Table: "2026.11"},
		Label:    &audit.Label{Level: "restricted", Rank: 3, Categories: []string{"phi"}, Sources: []audit.LabelSource{{Source: "detector", Level: "restricted", Detail: "phi"}}},
		Request:  &audit.Request{Operation: "chat.completions", Model: "small", Served: "small", Stream: true, BodyBytes: 812, PromptTokens: 640, PromptBasis: "native"},
		Attempt:  1, Durability: audit.Strict, Status: audit.StatusAllowed, Placement: placement,
	}
	denied := *decision
	denied.Status, denied.Reason, denied.HTTP, denied.Placement, denied.Decision = audit.StatusDenied, "policy_denied", 403, nil, json.RawMessage("null")
	cached := 512
	human := *caller
	human.Kind, human.Chain = "human", nil
	outcome := func(status string, http int) *audit.Record {
		return &audit.Record{
			V: 1, Kind: audit.KindOutcome, ID: decision.ID, Attempt: 1, Status: status, Caller: &human,
			Outcome: &audit.Outcome{
				Status: status, HTTP: http, UpstreamHTTP: http, Replica: placement.Replica, Peer: placement.Replica, TTFTMS: 41, DurationMS: 900,
				PromptTokens: 640, CompletionTokens: 99, CachedTokens: &cached, Finish: "stop", Inspected: audit.Inspected{Request: []string{}, Response: []string{}},
			},
		}
	}
	own := func(kind audit.Kind, event string) *audit.Record {
		r := &audit.Record{V: 1, Kind: kind, ID: "0197f7a0-0000-7000-8000-000000000002", Gateway: gateway}
		if event != "" {
			r.Event = json.RawMessage(event)
		}
		return r
	}
	return []*audit.Record{
		decision, &denied,
		outcome(audit.StatusOK, 200), outcome(audit.StatusNotForwarded, 503), outcome(audit.StatusUnknownCrash, 0), outcome(audit.StatusError, 502),
		own(audit.KindBoot, `{"clean":true}`), own(audit.KindHeartbeat, ""), own(audit.KindPolicy, `{"revision":"r42"}`), own(audit.KindFleet, `{"action":"doubt"}`), own(audit.KindFleet, `{"action":"members","state":1}`),
		own(audit.KindAdmin, `{"action":"reload"}`), own(audit.KindAccess, `{"command":"query"}`), own(audit.KindSeal, `{}`), own(audit.KindExport, `{"action":"cursor"}`),
		own("gap", `{}`), own("prune", `{}`), own("key_rotation", `{}`), own("something_new", `{}`),
		{V: 1, Kind: audit.KindDenialSummary, ID: "d", Denials: []audit.DenialCount{{Prefix: "10.0.0.0/24", Code: "no_credential", Count: 3}}},
	}
}

// events are the samples as one log has them.
func events(tb testing.TB) []*Event {
	tb.Helper()
	var out []*Event
	for i, r := range samples() {
		r.Log = audit.LogRef{Origin: "sallyport.example/g0", Seq: uint64(i), Boot: "b"}
		r.Time = audit.Time{Wall: 1_764_500_000_123_456, MonoNS: 5}
		leaf, err := audit.Encode(r)
		if err != nil {
			tb.Fatal(err)
		}
		e, err := NewEvent(uint64(i), leaf)
		if err != nil {
			tb.Fatal(err)
		}
		if i > 0 {
			e.Previous = &Link{out[i-1].Index, out[i-1].Hash}
		}
		e.Raw = i%2 == 0
		out = append(out, e)
	}
	return out
}

func anchor() *Anchor {
	return &Anchor{
		Origin: "sallyport.example/g0", Sink: "siem", First: 3, Next: 9, Records: 4,
		Checkpoint: "sallyport.example/g0\n9\nAAAA\n\n— sallyport.example/g0 c2ln\n",
	}
}
