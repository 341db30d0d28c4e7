package gateway

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
)

// phi makes a prompt restricted.
const phi = "Patient MRN: 00482913 was seen today."

func TestARefusalByPolicySaysNoMoreThanItsCode(t *testing.T) {
	s := serve(t)
	const same = `{"error":{"message":"This request is not permitted.","type":"permission_error","code":"policy_denied","param":null}}` + "\n"
	for _, c := range []struct{ claim, who, body, reason string }{
		{"a tenant without the right", "initech", chat("MARK"), "class_not_permitted"},
		{"a label above the tenant's", "globex", chat("MARK " + phi), "label_above_tenant"},
		{"a model that nobody knows", "acme", strings.Replace(chat("MARK"), "small", "gpt-9", 1), "model_not_permitted"},
		{"a class that the registration lacks", "rag", strings.Replace(chat("MARK"), `"messages"`, `"tools":[{"type":"function","function":{"name":"f"}}],"messages"`, 1), ""},
		{"content at an address", "acme", strings.Replace(chat("MARK"), `"content":"MARK Tell me about harbours."`, `"content":[{"type":"text","text":"MARK"},{"type":"image_url","image_url":{"url":"https://example.org/x.png"}}]`, 1), ""},
	} {
		t.Run(c.claim, func(t *testing.T) {
			s.tb = t
			mark := s.newMark()
			a := s.post(c.who, strings.Replace(c.body, "MARK", mark, 1))
			if a.status != http.StatusForbidden || a.body != same {
				t.Fatalf("%d %s", a.status, a.body)
			}
			s.unreached(mark)
			d, _ := s.lone(a)
			if d.Status != audit.StatusDenied || d.HTTP != 403 || d.Reason == "" || d.Reason == "policy_denied" || len(d.Input) == 0 || string(d.Decision) == "null" {
				t.Errorf("record: %s %s %d, input %s, decision %s", d.Status, d.Reason, d.HTTP, d.Input, d.Decision)
			}
			if c.reason != "" && d.Reason != c.reason {
				t.Errorf("reason %q, want %q", d.Reason, c.reason)
			}
		})
	}
}

// The issuer may say one tenant of a client, our own register another: then
// neither is believed.
func TestATokenAgainstTheRegisterIsRefused(t *testing.T) {
	s := serve(t)
	token, err := s.mint(map[string]any{"sub": "x", "tenant": "globex", "client_id": "acme-agent"})
	if err != nil {
		t.Fatal(err)
	}
	mark := s.newMark()
	a := s.post("", chat(mark), "Authorization", "Bearer "+token)
	s.want(a, http.StatusForbidden, "policy_denied")
	s.unreached(mark)
	if d, _ := s.lone(a); d.Reason != "not_registered" || string(d.Decision) != "null" {
		t.Errorf("reason %s, decision %s", d.Reason, d.Decision)
	}
}

func TestWhatCannotBeClassifiedIsRefused(t *testing.T) {
	s := serve(t)
	mark := s.newMark()
	a := s.post("acme", `{"model":"small","messages":[{"role":"user","content":[{"type":"hologram","hologram":"`+mark+`"}]}]}`)
	s.want(a, http.StatusForbidden, "unclassified")
	s.unreached(mark)
	if d, _ := s.lone(a); d.Class.Name != "unclassified" || d.Reason != "unclassified" {
		t.Errorf("class %s, reason %s", d.Class.Name, d.Reason)
	}
}

func TestAPromptBeyondTheWindowIsTheCallersToMend(t *testing.T) {
	s := serve(t)
	a := s.post("acme", chat(s.newMark()+strings.Repeat(" harbour", 9000)))
	s.want(a, http.StatusBadRequest, "invalid_request")
	if d, _ := s.lone(a); d.Reason != "prompt_too_long" || d.Request.PromptTokens < 8192 {
		t.Errorf("reason %s with %d tokens", d.Reason, d.Request.PromptTokens)
	}
}

func TestHintsRaiseAndNeverLower(t *testing.T) {
	s := serve(t)
	for _, c := range []struct {
		claim, header, value string
		class, label, pool   string
		mismatch             bool
	}{
		{"no hint", "", "", "chat", "internal", "general", false},
		{"a higher label", labelHeader, "restricted", "chat", "restricted", "restricted", false},
		{"the same label", labelHeader, "internal", "chat", "internal", "general", false},
		{"a lower label", labelHeader, "public", "chat", "internal", "general", true},
		{"a higher class", classHeader, "agent_tool_call", "agent_tool_call", "internal", "agents", false},
		{"a lower class", classHeader, "discovery", "chat", "internal", "general", true},
	} {
		t.Run(c.claim, func(t *testing.T) {
			s.tb = t
			header := []string{}
			if c.header != "" {
				header = append(header, c.header, c.value)
			}
			a := s.post("acme", chat(s.newMark()), header...)
			if a.status != http.StatusOK {
				t.Fatal(a.body)
			}
			d, _ := s.lone(a)
			if d.Class.Name != c.class || d.Label.Level != c.label || d.Placement.Pool != c.pool || d.Class.Mismatch != c.mismatch {
				t.Errorf("class %s, label %s, pool %s, mismatch %v", d.Class.Name, d.Label.Level, d.Placement.Pool, d.Class.Mismatch)
			}
		})
	}
	for _, c := range []struct {
		claim  string
		header []string
	}{
		{"a label that is none", []string{labelHeader, "secret"}},
		{"a class that is none", []string{classHeader, "Chat"}},
		{"two labels", []string{labelHeader, "internal", labelHeader, "public"}},
		{"two classes", []string{classHeader, "chat", classHeader, "chat"}},
		{"two conversations", []string{conversationHeader, "AQ", conversationHeader, "AQ"}},
	} {
		t.Run(c.claim, func(t *testing.T) {
			s.tb = t
			mark := s.newMark()
			a := s.post("acme", chat(mark), c.header...)
			s.want(a, http.StatusBadRequest, "invalid_request")
			s.unreached(mark)
			if d, _ := s.lone(a); d.Reason != "bad_header" || string(d.Decision) != "null" {
				t.Errorf("reason %s, decision %s", d.Reason, d.Decision)
			}
		})
	}
}

// Who has shown something sensitive in a conversation is not rid of it by not
// repeating it.
func TestAConversationKeepsItsHighestLabel(t *testing.T) {
	s := serve(t)
	first := s.post("acme", chat(s.newMark()+" "+phi))
	if first.status != http.StatusOK {
		t.Fatal(first.body)
	}
	if d, _ := s.lone(first); d.Label.Level != "restricted" || d.Placement.Pool != "restricted" {
		t.Fatalf("label %s in pool %s", d.Label.Level, d.Placement.Pool)
	}
	carried := first.header.Get(conversationHeader)
	for turn := range 3 {
		a := s.post("acme", chat(s.newMark()), conversationHeader, carried)
		if a.status != http.StatusOK {
			t.Fatal(a.body)
		}
		d, _ := s.lone(a)
		if d.Label.Level != "restricted" || d.Placement.Pool != "restricted" || !slices.Contains(d.Label.Categories, "phi") {
			t.Errorf("turn %d: label %s %v in pool %s", turn, d.Label.Level, d.Label.Categories, d.Placement.Pool)
		}
		if !slices.ContainsFunc(d.Label.Sources, func(s audit.LabelSource) bool { return s.Source == "session" && s.Level == "restricted" }) {
			t.Errorf("turn %d: sources %v", turn, d.Label.Sources)
		}
		next := a.header.Get(conversationHeader)
		if s.conversationID(next) != s.conversationID(carried) {
			t.Error("another conversation")
		}
		carried = next
	}
	fresh := s.post("acme", chat(s.newMark()))
	if d, _ := s.lone(fresh); d.Label.Level != "internal" {
		t.Errorf("a conversation of its own has label %s", d.Label.Level)
	}
	if s.conversationID(fresh.header.Get(conversationHeader)) == s.conversationID(carried) {
		t.Error("two conversations have one id")
	}
}

// conversationID opens what the caller named acme carries.
func (s *service) conversationID(header string) [16]byte {
	s.tb.Helper()
	subject, _ := callers["acme"]["sub"].(string)
	c, err := s.g.convKey.open(header, "acme", s.far.Issuer.URL, subject, "")
	if err != nil {
		s.tb.Fatalf("conversation %q: %v", header, err)
	}
	return c.id
}

func TestAConversationIsItsOwnersAndWhole(t *testing.T) {
	s := serve(t)
	good := s.post("acme", chat(s.newMark()+" "+phi)).header.Get(conversationHeader)
	bad := map[string][2]string{
		"another person of the tenant": {"carol", good},
		"another tenant":               {"globex", good},
		"cut":                          {"acme", good[:len(good)-2]},
		"longer":                       {"acme", good + "AA"},
		"padded":                       {"acme", good + "="},
		"no base64":                    {"acme", "*" + good[1:]},
		"empty of meaning":             {"acme", "x"},
	}
	raw, _ := base64.RawURLEncoding.DecodeString(good)
	for i := range raw {
		flipped := slices.Clone(raw)
		flipped[i] ^= 1
		bad["a bit of byte "+string(rune('A'+i))] = [2]string{"acme", base64.RawURLEncoding.EncodeToString(flipped)}
	}
	for claim, c := range bad {
		t.Run(claim, func(t *testing.T) {
			s.tb = t
			mark := s.newMark()
			a := s.post(c[0], chat(mark), conversationHeader, c[1])
			s.want(a, http.StatusBadRequest, "invalid_request")
			s.unreached(mark)
			if d, _ := s.lone(a); d.Reason != "bad_conversation" {
				t.Errorf("reason %s", d.Reason)
			}
		})
	}
	t.Run("another gateway of the fleet knows it", func(t *testing.T) {
		other := serve(t, func(c *Config) { c.Secret = s.g.cfg.Secret })
		if a := other.post("acme", chat(s.newMark()), conversationHeader, good); a.status != http.StatusOK {
			t.Fatal(a.body)
		}
	})
	t.Run("a gateway with another secret does not", func(t *testing.T) {
		other := serve(t)
		other.want(other.post("acme", chat(s.newMark()), conversationHeader, good), http.StatusBadRequest, "invalid_request")
	})
}

func TestSubjectsAreWrittenAsTheTenantWants(t *testing.T) {
	s := serve(t)
	refs := map[string]string{}
	for _, who := range []string{"acme", "carol", "globex"} {
		d, _ := s.lone(s.post(who, chat(s.newMark())))
		refs[who] = d.Caller.Mode + " " + d.Caller.Ref
		if seen := strings.Contains(string(d.Input), callers[who]["sub"].(string)); seen != (who == "globex") {
			t.Errorf("%s: policy saw the subject: %v", who, seen)
		}
	}
	again, _ := s.lone(s.post("acme", chat(s.newMark())))
	if refs["globex"] != "clear bob@globex.example" || !strings.HasPrefix(refs["acme"], "pseudonym p:") || refs["acme"] == refs["carol"] ||
		again.Caller.Mode+" "+again.Caller.Ref != refs["acme"] {
		t.Errorf("%v, then %s", refs, again.Caller.Ref)
	}
}
