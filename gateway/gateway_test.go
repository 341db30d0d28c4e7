package gateway

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/policy"
)

func TestAGatewayIsWholeOrNotMade(t *testing.T) {
	w := inWorld(t)
	whole, err := w.config()
	if err != nil {
		t.Fatal(err)
	}
	whole.Denials = audit.NewDenials(whole.Log, 1)
	if _, err := New(whole); err != nil {
		t.Fatal(err)
	}
	for name, remove := range map[string]func(*Config){
		"Policy":       func(c *Config) { c.Policy = nil },
		"Fleet":        func(c *Config) { c.Fleet = nil },
		"Upstream":     func(c *Config) { c.Upstream = nil },
		"Tickets":      func(c *Config) { c.Tickets = nil },
		"Log":          func(c *Config) { c.Log = nil },
		"Denials":      func(c *Config) { c.Denials = nil },
		"Meter":        func(c *Config) { c.Meter = nil },
		"Ready":        func(c *Config) { c.Ready = nil },
		"Secret":       func(c *Config) { c.Secret = [32]byte{} },
		"authenticate": func(c *Config) { c.Live.Identity = identity.Chain{} },
	} {
		t.Run(name, func(t *testing.T) {
			c := whole
			remove(&c)
			if g, err := New(c); g != nil || err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("got %v, %v", g, err)
			}
		})
	}
	t.Run("all at once", func(t *testing.T) {
		if _, err := New(Config{}); err == nil || strings.Count(err.Error(), "is required") != 9 {
			t.Error(err)
		}
	})
}

func TestASwapIsWholeOrNothing(t *testing.T) {
	s := serve(t)
	if err := s.g.Swap(Live{}); err == nil {
		t.Fatal("a gateway that can authenticate nobody was taken")
	}
	if a := s.post("acme", chat(s.newMark())); a.status != http.StatusOK {
		t.Fatal(a.body)
	}
	// A request that is running keeps what it began with.
	mark := s.newMark()
	s.engine.on(mark, func(_ http.ResponseWriter, _ *http.Request, _ call, pass func()) {
		next := Live{Self: audit.Gateway{Config: "another"}, Identity: s.chain, Limits: wire.Limits{BodyBytes: 10}}
		if err := s.g.Swap(next); err != nil {
			t.Error(err)
		}
		pass()
	})
	began := s.post("acme", chat(mark))
	if began.status != http.StatusOK {
		t.Fatal(began.body)
	}
	after := s.post("acme", chat(s.newMark()))
	s.want(after, http.StatusRequestEntityTooLarge, "too_large")
	for a, want := range map[*answer]string{&began: "", &after: "another"} {
		if got := s.records(t, a.id())[0].Gateway.Config; got != want {
			t.Errorf("decided by configuration %q, recorded %q", want, got)
		}
	}
}

func TestAdminSaysWhetherTrafficShouldCome(t *testing.T) {
	var broken error
	s := serve(t, func(c *Config) { c.Ready = func() error { return broken } })
	admin := s.g.Admin(http.NotFoundHandler())
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		admin.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ready\n"} {
		if code, body := get(path); code != http.StatusOK || body != want {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	broken = errors.New("the SVID has expired")
	if code, body := get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "expired") {
		t.Errorf("/readyz: %d %q", code, body)
	}
	if code, _ := get("/healthz"); code != http.StatusOK {
		t.Error("a process that is not ready is still alive")
	}
	if code, _ := get("/v1/models"); code != http.StatusNotFound {
		t.Error("the admin listener serves callers")
	}
}

// A record is never less durable than either policy or configuration asks.
func TestDurabilityIsTheStricterOfTwo(t *testing.T) {
	for _, c := range []struct{ policy, config, want audit.Durability }{
		{"", "", audit.Strict},
		{audit.Strict, "", audit.Strict},
		{audit.Bounded, "", audit.Strict},
		{audit.Bounded, audit.Strict, audit.Strict},
		{audit.Strict, audit.Bounded, audit.Strict},
		{audit.Bounded, audit.Bounded, audit.Bounded},
		{audit.Strict2, audit.Bounded, audit.Strict2},
		{audit.Bounded, audit.Strict2, audit.Strict2},
		{audit.Strict2, "", audit.Strict2},
		{"loose", audit.Bounded, audit.Strict},
		{audit.Bounded, "loose", audit.Strict},
	} {
		x := &exchange{g: &Gateway{cfg: Config{Durability: c.config}}, decision: policy.Decision{Durability: string(c.policy)}}
		if got := x.durability(); got != c.want {
			t.Errorf("policy %q, configuration %q: %q, want %q", c.policy, c.config, got, c.want)
		}
	}
}

func TestATextIsCutBetweenCharacters(t *testing.T) {
	full := strings.Repeat("x", maxText)
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{full, full},
		{full + "x", full},
		{full[1:] + "é", full[1:]},
		{full[2:] + "é", full[2:] + "é"},
		{full[3:] + "😀", full[3:]},
		{strings.Repeat("\x80", maxText+9), strings.Repeat("\x80", maxText-utf8.UTFMax)}, // no text at all
	} {
		if got := bounded(c.in); got != c.want {
			t.Errorf("%q became %q", c.in, got)
		}
	}
}

// Two requests share cached blocks only if their domains are equal.
func TestCacheDomainsAreApart(t *testing.T) {
	domain := func(kind, tenant string, conversation byte, id string) string {
		x := &exchange{id: id, decision: policy.Decision{CacheDomain: kind}, principal: identity.Principal{Tenant: tenant}}
		x.conversation.id[0] = conversation
		return x.cacheDomain()
	}
	seen := map[string]string{}
	for _, kind := range []string{"tenant", "conversation", "none"} {
		for _, tenant := range []string{"acme", "globex", "acm", "e", "tenant", "public", ""} {
			for _, conversation := range []byte{0, 1} {
				for _, id := range []string{"1", "2"} {
					what := kind + "/" + tenant
					switch kind {
					case "conversation":
						what += "/" + string('0'+rune(conversation))
					case "none":
						what += "/" + id
					default:
					}
					d := domain(kind, tenant, conversation, id)
					if was, ok := seen[d]; ok && was != what {
						t.Errorf("%s and %s share a cache", was, what)
					}
					seen[d] = what
				}
			}
		}
	}
	if len(seen) != 7*(1+2+2) {
		t.Errorf("%d domains", len(seen))
	}
	if domain("public", "acme", 0, "1") != domain("public", "globex", 1, "2") {
		t.Error("what is public is not shared")
	}
	if domain("", "acme", 0, "1") != domain("tenant", "acme", 1, "2") {
		t.Error("a tenant's own domain is not the default")
	}
	if _, ok := seen[domain("public", "acme", 0, "1")]; ok {
		t.Error("the public domain is some tenant's")
	}
}

func FuzzConversation(f *testing.F) {
	key := conversationKey{1}
	f.Add([]byte("0123456789abcdef"), byte(policy.Restricted), byte(5), "acme", "alice", 3)
	f.Add([]byte(""), byte(policy.Public), byte(0), "", "", 0)
	f.Fuzz(func(t *testing.T, id []byte, level, bits byte, tenant, subject string, at int) {
		c := conversation{level: policy.Level(level)}
		copy(c.id[:], id)
		for i, cat := range categoryBits {
			if bits&(1<<i) != 0 {
				c.categories = append(c.categories, cat)
			}
		}
		sealed := key.seal(c, tenant, subject)
		got, err := key.open(sealed, tenant, subject)
		if err != nil || got.id != c.id || got.level != c.level || len(got.categories) != len(c.categories) {
			t.Fatalf("%+v came back as %+v, %v", c, got, err)
		}
		if _, err := key.open(sealed, tenant+subject, ""); err == nil && subject != "" {
			t.Fatal("it is somebody else's")
		}
		if _, err := (&conversationKey{2}).open(sealed, tenant, subject); err == nil {
			t.Fatal("another key opened it")
		}
		b := []byte(sealed)
		at = (at%len(b) + len(b)) % len(b)
		for _, other := range "A_" {
			if b[at] == byte(other) {
				continue
			}
			changed := string(b[:at]) + string(other) + string(b[at+1:])
			if _, err := key.open(changed, tenant, subject); err == nil {
				t.Fatalf("changed at %d, it opens", at)
			}
		}
	})
}
