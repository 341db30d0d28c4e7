package revocation_test

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/revocation"
)

// later is an entry as this version reads it of one that has members more.
func later(t interface{ Fatal(...any) }, e revocation.Entry, more string) revocation.Entry {
	text, err := e.With("{" + more[1:] + "}").Encode()
	if err != nil {
		t.Fatal(err)
	}
	e, err = revocation.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestWhatALaterVersionAddsStopsNobodyAndHidesNothing(t *testing.T) {
	hers := revocation.Entry{Tenant: "acme", Subject: "alice"}
	bobs := alice(noon)
	bobs.Subject, bobs.Chain, bobs.Issuer = "bob", nil, "https://idp2.test"
	for _, c := range []struct {
		claim, more           string
		of                    revocation.Entry
		alice, bob, elsewhere bool // whether it withdraws tokens of her, of bob in her tenant, and of another tenant
	}{
		{"nothing", "", hers, true, false, false},
		{"a member that narrows or tells more", `,"device":"laptop"`, hers, true, false, false},
		{"a critical one that is known", `,"crit":["subject"]`, hers, true, false, false},
		{"a critical one that is not", `,"crit":["groups"],"groups":["night"]`, hers, true, true, false},
		{"a known and an unknown critical one", `,"crit":["subject","groups"],"groups":{}`, hers, true, true, false},
		{"a critical one, of somebody else", `,"crit":["groups"],"groups":[]`, revocation.Entry{Tenant: "acme", Subject: "carol"}, true, true, false},
		{"a critical one, of a client", `,"crit":["groups"],"groups":null`, revocation.Entry{Tenant: "acme", Client: "x"}, true, true, false},
		{"a critical one, of a token", `,"crit":["groups"],"groups":1`, revocation.Entry{Issuer: "https://idp.test", TokenID: "x"}, true, false, true},
		{"a critical one, of an issuer within a tenant", `,"crit":["groups"],"groups":1`, revocation.Entry{Issuer: "https://idp.test", Tenant: "acme"}, true, false, false},
		{"a critical one, of whom an actor's issuer names", `,"crit":["groups"],"groups":1`, revocation.Entry{Issuer: "https://agents.test", Subject: "x"}, true, false, true},
		{"a critical one, of another tenant", `,"crit":["groups"],"groups":1`, revocation.Entry{Tenant: "globex", Subject: "alice"}, false, false, true},
	} {
		e := entry(t, c.of)
		if c.more != "" {
			e = later(t, e, c.more)
		}
		r, err := revocation.NewRegister(t.Context(), revocation.Config{Source: &place{entries: []revocation.Entry{e}}, Clock: func() time.Time { return noon }})
		if err != nil {
			t.Fatal(err)
		}
		for who, step := range map[string]struct {
			p       identity.Principal
			tenant  string
			revoked bool
		}{
			"alice": {alice(noon), "acme", c.alice}, "bob": {bobs, "acme", c.bob}, "her namesake": {alice(noon), "globex", c.elsewhere},
			"alice later": {alice(noon.Add(time.Second)), "acme", false},
		} {
			if err := r.Check(step.p, step.tenant); errors.Is(err, identity.ErrBadCredential) != step.revoked {
				t.Errorf("%s: %s: %v", c.claim, who, err)
			}
		}
	}
}

func TestACritThatMeansNothingIsRefused(t *testing.T) {
	for _, more := range []string{
		`"crit":[]`, `"crit":null`, `"crit":"groups","groups":1`, `"crit":[1]`, `"crit":["groups"]`, `"crit":["crit"]`, `"crit":{}`,
		`"crit":["groups",""],"groups":1`, `"note":"` + strings.Repeat("a", 5000) + `"`,
	} {
		text, err := entry(t, revocation.Entry{Tenant: "acme"}).With("{" + more + "}").Encode()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := revocation.Decode(text); err == nil {
			t.Errorf("%.60s: %+v", more, got)
		}
	}
}

// The ID is of all that an entry says, in whatever order and spacing.
func TestTheIDCoversWhatIsNotKnown(t *testing.T) {
	text, err := entry(t, revocation.Entry{Tenant: "acme"}).With(`{"crit":["x"],"x":{"a":1,"b":[2]}}`).Encode()
	if err != nil {
		t.Fatal(err)
	}
	for from, want := range map[string]struct {
		to string
		ok bool
	}{
		`"x":{"a":1,"b":[2]}`:                {`"x":{"a":1,"b":[3]}`, false},
		`"crit":["x"],`:                      {``, false},
		`{"a":1,"b":[2]}`:                    {`{ "b":[ 2], "a":1 }`, true},
		`"crit":["x"],"x":{"a":1,"b":[2]}`:   {`"x":{"a":1,"b":[2]},"crit":["x"]`, true},
		`,"crit":["x"],"x":{"a":1,"b":[2]}}`: {`}`, false},
	} {
		changed := strings.Replace(string(text), from, want.to, 1)
		if changed == string(text) {
			t.Fatalf("%s: the scene is not set in %s", from, text)
		}
		if _, err := revocation.Decode([]byte(changed)); (err == nil) != want.ok {
			t.Errorf("%s: %v", changed, err)
		}
	}
}

// An older gateway that puts entries back, or writes one more, loses nothing of
// what a later one had written.
func TestWhatIsNotKnownIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "revocations")
	one := later(t, entry(t, revocation.Entry{Tenant: "acme"}), `,"crit":["x"],"x":9007199254740993`)
	two := later(t, entry(t, revocation.Entry{Tenant: "acme"}), `,"x":"y"`)
	for _, e := range []revocation.Entry{one, two, entry(t, revocation.Entry{Tenant: "globex"})} {
		if err := revocation.Revoke(path, e, noon); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := revocation.File(path).Read(t.Context())
	if err != nil || len(entries) != 3 || entries[0] != one || entries[1] != two {
		t.Errorf("%+v, %v", entries, err)
	}
	if of := strings.Join(one.Of(), " "); of != "tenant unknown" {
		t.Errorf("it goes by %s", of)
	}
}

func TestARevocationThatIsNotUnderstoodIsToldOnce(t *testing.T) {
	var log strings.Builder
	p := &place{entries: []revocation.Entry{later(t, entry(t, revocation.Entry{Tenant: "acme"}), `,"crit":["x"],"x":1`)}}
	r, err := revocation.NewRegister(t.Context(), revocation.Config{
		Source: p, Clock: func() time.Time { return noon }, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(log.String(), "does not know"); n != 1 {
		t.Errorf("told %d times: %s", n, log.String())
	}
}
