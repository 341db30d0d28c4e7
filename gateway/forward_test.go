package gateway

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/routing/splice"
)

func TestARequestIsAnsweredAndWrittenDown(t *testing.T) {
	s := serve(t)
	for name, more := range map[string][]string{"whole": nil, "streamed": {streamed}} {
		t.Run(name, func(t *testing.T) {
			mark := s.newMark()
			a := s.post("acme", chat(mark, more...))
			if a.status != http.StatusOK || a.err != nil {
				t.Fatalf("%d %s %v", a.status, a.body, a.err)
			}
			d, o := s.lone(a)
			if d.Status != audit.StatusAllowed || o.Status != audit.StatusOK || o.Outcome.HTTP != 200 || o.Outcome.Finish != "stop" {
				t.Errorf("decision %s, outcome %+v", d.Status, o.Outcome)
			}
			if got := s.engine.got(mark); len(got) != 1 || got[0].replica != d.Placement.Replica || o.Outcome.Peer != got[0].replica || o.Outcome.Replica != got[0].replica {
				t.Errorf("decided for %s, sent to %v, peer %s", d.Placement.Replica, got, o.Outcome.Peer)
			}
			if n := d.Request.PromptTokens; n != o.Outcome.PromptTokens || !strings.HasPrefix(d.Request.PromptBasis, basisNative) {
				t.Errorf("we counted %d tokens (%s), the engine %d", n, d.Request.PromptBasis, o.Outcome.PromptTokens)
			}
			if o.Outcome.CompletionTokens == 0 || o.Outcome.CachedTokens == nil || o.Outcome.DurationMS < o.Outcome.TTFTMS {
				t.Errorf("outcome %+v", o.Outcome)
			}
		})
	}
}

func TestAStreamEndsAsTheEngineEndedIt(t *testing.T) {
	s := serve(t)
	a := s.post("acme", chat(s.newMark(), streamed))
	data := events(a.body)
	if len(data) < 3 || data[len(data)-1] != "[DONE]" || strings.Count(a.body, "[DONE]") != 1 {
		t.Fatalf("%d events: %s", len(data), a.body)
	}
	if ct := a.header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
		t.Errorf("content type %q", ct)
	}
}

// The engine reads the client's bytes, spaces and escapes included, but for the
// fields that the gateway and the relay own.
func TestBytesPassAsTheyAre(t *testing.T) {
	s := serve(t)
	odd := ` { "temperature" : 0.70,` + "\n\t" + `"model":"small-latest", "seed":12345678901234567890, "stop":["\u00e9\/", "é"],"messages":[ {"role":"user","content":"MARK caf\u00e9 \ud83d\ude00 "} ] ,"max_tokens" : 9 } `
	mark := s.newMark()
	body := strings.Replace(odd, "MARK", mark, 1)
	if a := s.post("acme", body); a.status != http.StatusOK {
		t.Fatal(a.body)
	}
	got := s.engine.got(mark)[0].body
	salt, ok := field(t, got, "cache_salt")
	if !ok || len(salt) < 40 {
		t.Fatalf("cache_salt %s", salt)
	}
	// What the two of them did, done here by itself.
	want, err := splice.Apply(nil, []byte(body), splice.Set("model", []byte(`"small"`)))
	if err != nil {
		t.Fatal(err)
	}
	if want, err = splice.Apply(nil, want, splice.Set("cache_salt", []byte(salt))); err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Fatalf("engine got\n%s\nwant\n%s", got, want)
	}
}

func TestOwnedFieldsAreSet(t *testing.T) {
	s := serve(t)
	for _, c := range []struct{ claim, more, name, want string }{
		{"policy's limit where there is none", ``, "max_tokens", `2048`},
		{"policy's limit where more is asked for", `"max_tokens":99999`, "max_tokens", `2048`},
		{"the client's limit where it is lower", `"max_tokens":7`, "max_tokens", `7`},
		{"a limit under its other name", `"max_completion_tokens":99999`, "max_completion_tokens", `2048`},
		{"usage, asked for in a stream", streamed, "stream_options", `{"include_usage":true}`},
		{"usage, asked for against the client's no", `"stream":true,"stream_options":{"include_usage":false}`, "stream_options", `{"include_usage":true}`},
	} {
		t.Run(c.claim, func(t *testing.T) {
			mark := s.newMark()
			more := []string{}
			if c.more != "" {
				more = append(more, c.more)
			}
			if a := s.post("acme", chat(mark, more...)); a.status != http.StatusOK {
				t.Fatal(a.body)
			}
			if got, _ := field(t, s.engine.got(mark)[0].body, c.name); got != c.want {
				t.Errorf("%s is %s, want %s", c.name, got, c.want)
			}
		})
	}
	t.Run("the client's cache_salt is taken out and recorded", func(t *testing.T) {
		mark := s.newMark()
		a := s.post("acme", chat(mark, `"cache_salt":"of-the-client"`))
		if a.status != http.StatusOK || strings.Contains(s.engine.got(mark)[0].body, "of-the-client") {
			t.Fatalf("%d, engine got %s", a.status, s.engine.got(mark)[0].body)
		}
		if d, _ := s.lone(a); len(d.Request.Removed) != 1 || d.Request.Removed[0] != "cache_salt" {
			t.Errorf("removed: %v", d.Request.Removed)
		}
	})
}

// Nothing that the caller says of itself reaches an engine: not its
// credential, not a header that some server might believe.
func TestNothingOfTheCallersHeaderReachesTheEngine(t *testing.T) {
	s := serve(t)
	mark := s.newMark()
	a := s.post("acme", chat(mark), "Sallyport-Ticket", "forged", "X-Tenant", "globex", "X-Forwarded-For", "1.2.3.4",
		"Cookie", "session=1", "X-Request-Id", "theirs", "X-Data-Parallel-Rank", "1", "Sallyport-Label", "internal", "X-Api-Key", s.tokens["acme"])
	if a.status != http.StatusOK {
		t.Fatal(a.body)
	}
	c := s.engine.got(mark)[0]
	all := c.body
	for name, values := range c.header {
		all += name + strings.Join(values, " ")
		switch name {
		case "Content-Type", "Content-Length", "Accept", "User-Agent", "Accept-Encoding":
		default:
			t.Errorf("the engine got %s: %v", name, values)
		}
	}
	for _, secret := range []string{s.tokens["acme"], "forged", "globex", "1.2.3.4", "session", "theirs", "alice"} {
		if strings.Contains(all, secret) {
			t.Errorf("the engine got %q", secret)
		}
	}
}

// What others cached is no tenant's business unless policy says so.
func TestCachedTokensAreShownOnlyWherePolicyAllows(t *testing.T) {
	s := serve(t)
	for who, shown := range map[string]bool{"acme": false, "globex": true} {
		for name, more := range map[string][]string{"whole": nil, "streamed": {streamed, `"stream_options":{"include_usage":true}`}} {
			t.Run(who+" "+name, func(t *testing.T) {
				a := s.post(who, chat(s.newMark(), more...))
				if a.status != http.StatusOK || !strings.Contains(a.body, `"prompt_tokens"`) {
					t.Fatalf("%d %s", a.status, a.body)
				}
				if got := strings.Contains(a.body, "cached_tokens"); got != shown {
					t.Errorf("cached_tokens shown: %v\n%s", got, a.body)
				}
				if _, o := s.lone(a); o.Outcome.CachedTokens == nil {
					t.Error("the record does not have them")
				}
			})
		}
	}
}

func TestTheUsageChunkIsShownOnlyWhereAskedFor(t *testing.T) {
	s := serve(t)
	for more, shown := range map[string]bool{
		``: false, `"stream_options":{}`: false, `"stream_options":{"include_usage":false}`: false, `"stream_options":{"include_usage":true}`: true,
	} {
		t.Run(more, func(t *testing.T) {
			fields := []string{streamed}
			if more != "" {
				fields = append(fields, more)
			}
			a := s.post("acme", chat(s.newMark(), fields...))
			if got := strings.Contains(a.body, `"usage"`); got != shown {
				t.Errorf("usage shown: %v\n%s", got, a.body)
			}
			if _, o := s.lone(a); o.Outcome.CompletionTokens == 0 {
				t.Error("the record has no usage")
			}
		})
	}
}

// The salt, which the relay makes of the cache domain, is one for a tenant on a
// replica and another for the next tenant.
func TestTenantsDoNotShareASalt(t *testing.T) {
	s := serve(t)
	salts := map[string]map[string]bool{}
	for range 6 {
		for _, who := range []string{"acme", "carol", "globex"} {
			mark := s.newMark()
			if a := s.post(who, chat(mark)); a.status != http.StatusOK {
				t.Fatal(a.body)
			}
			c := s.engine.got(mark)[0]
			salt, _ := field(t, c.body, "cache_salt")
			at := strings.Replace(who, "carol", "acme", 1) + " at " + c.replica
			if salts[at] == nil {
				salts[at] = map[string]bool{}
			}
			salts[at][salt] = true
		}
	}
	all := map[string]string{}
	for at, of := range salts {
		if len(of) != 1 {
			t.Errorf("%s has %d salts", at, len(of))
		}
		for salt := range of {
			if other, ok := all[salt]; ok {
				t.Errorf("%s has the salt of %s", at, other)
			}
			all[salt] = at
		}
	}
}

// field is the raw value of a top-level field of a body.
func field(t *testing.T, body, name string) (string, bool) {
	t.Helper()
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(body), &fields); err != nil {
		t.Fatal(err)
	}
	v, ok := fields[name]
	return string(v), ok
}
