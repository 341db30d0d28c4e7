package svid_test

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/apikey"
	"github.com/sallyport-ai/sallyport/identity/jws"
)

// changes are what is done to a credential, or to several, before it is shown.
var changes = map[string]func(*rapid.T, []string) string{
	"as it is": func(t *rapid.T, good []string) string { return one(t, good) },
	"a byte changed": func(t *rapid.T, good []string) string {
		text := []byte(one(t, good))
		i := rapid.IntRange(0, len(text)-1).Draw(t, "at")
		text[i] = rapid.SampledFrom([]byte("AZaz09-_.~+/=")).Draw(t, "to")
		return string(text)
	},
	"a byte dropped": func(t *rapid.T, good []string) string {
		text := one(t, good)
		i := rapid.IntRange(0, len(text)-1).Draw(t, "at")
		return text[:i] + text[i+1:]
	},
	"a byte put in": func(t *rapid.T, good []string) string {
		text := one(t, good)
		i := rapid.IntRange(0, len(text)).Draw(t, "at")
		return text[:i] + rapid.SampledFrom([]string{".", "A", "=", "_"}).Draw(t, "what") + text[i:]
	},
	"cut short": func(t *rapid.T, good []string) string {
		text := one(t, good)
		return text[:rapid.IntRange(1, len(text)).Draw(t, "to")]
	},
	"parts of several": func(t *rapid.T, good []string) string {
		var parts []string
		for range rapid.IntRange(1, 5).Draw(t, "parts") {
			parts = append(parts, rapid.SampledFrom(strings.Split(one(t, good), ".")).Draw(t, "part"))
		}
		return strings.Join(parts, ".")
	},
	"one after the other": func(t *rapid.T, good []string) string {
		return one(t, good) + rapid.SampledFrom([]string{"", ".", "_"}).Draw(t, "between") + one(t, good)
	},
	"text put into the header or the claims": func(t *rapid.T, good []string) string {
		parts := strings.Split(one(t, good), ".")
		i := rapid.IntRange(0, min(1, len(parts)-1)).Draw(t, "part")
		raw, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil || len(raw) == 0 {
			return strings.Join(parts, ".")
		}
		put := rapid.SampledFrom([]string{
			`,"sub":"root"`, `,"SUB":"root"`, `,"sub":"spiffe://example.org/root"`, `,"alg":"none"`, `,"jwk":{}`, `,"cnf":{}`, `,"iss":"x"`, `} {`,
		}).Draw(t, "text")
		parts[i] = base64.RawURLEncoding.EncodeToString([]byte(string(raw[:len(raw)-1]) + put + "}"))
		return strings.Join(parts, ".")
	},
}

func one(t *rapid.T, good []string) string { return rapid.SampledFrom(good).Draw(t, "credential") }

// What the strict reading of a JWT refuses, and anything else that is not a
// credential as it was given out, authenticates nobody: not as another kind, by
// another header or under another scheme.
func TestWhatIsRefusedNeverAuthenticatesAnotherWay(t *testing.T) {
	parties := newParties(t)
	dir := t.TempDir()
	store, pepperFile := filepath.Join(dir, "keys"), filepath.Join(dir, "pepper")
	if err := apikey.CreatePepper(pepperFile); err != nil {
		t.Fatal(err)
	}
	pepper, err := apikey.ReadPepper(pepperFile)
	if err != nil {
		t.Fatal(err)
	}
	key, _, err := apikey.Create(store, pepper, apikey.Record{Tenant: "acme", Subject: "service", Kind: identity.Workload, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := apikey.New(apikey.Config{File: store, PepperFile: pepperFile})
	if err != nil {
		t.Fatal(err)
	}
	parties.chain.Request = append(parties.chain.Request, keys.Authenticate)
	access, err := parties.issuer.Mint(object{"sub": "alice", "aud": "sallyport", "tenant": "acme"})
	if err != nil {
		t.Fatal(err)
	}
	good := []string{access, parties.fetch(t, "sallyport").Marshal(), key.Secret()}
	for _, text := range good {
		if _, err := parties.chain.Authenticate(t.Context(), bearer(text)); err != nil {
			t.Fatalf("the scene is not set: %v", err)
		}
	}
	names := make([]string, 0, len(changes))
	for name := range changes {
		names = append(names, name)
	}
	slices.Sort(names)
	rapid.Check(t, func(rt *rapid.T) {
		text := changes[rapid.SampledFrom(names).Draw(rt, "change")](rt, good)
		r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", nil)
		scheme := rapid.SampledFrom([]string{"Bearer", "bearer", "DPoP", "x-api-key", "both"}).Draw(rt, "scheme")
		switch scheme {
		case "x-api-key":
			r.Header.Set("X-Api-Key", text)
		case "both":
			r.Header.Set("Authorization", "Bearer "+text)
			r.Header.Set("X-Api-Key", text)
		default:
			r.Header.Set("Authorization", scheme+" "+text)
		}
		if scheme == "DPoP" {
			r.Header.Set("DPoP", rapid.SampledFrom([]string{text, access, "a.b.c"}).Draw(rt, "proof"))
		}
		p, err := parties.chain.Authenticate(t.Context(), r)
		given := slices.Contains(good, text) && scheme != "DPoP"
		if (err == nil) != given || p.IsZero() != (err != nil) {
			rt.Fatalf("%q by %s: %+v, %v", text, scheme, p, err)
		}
		if _, unread := jws.Parse(text); err == nil && unread != nil && text != key.Secret() {
			rt.Fatalf("read by nobody, yet %+v", p)
		}
	})
}
