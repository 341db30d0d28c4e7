package revocation_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/revocation"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func entry(t testing.TB, e revocation.Entry) revocation.Entry {
	t.Helper()
	made, err := revocation.New(e, noon)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// place is a source that tests change.
type place struct {
	mu       sync.Mutex
	entries  []revocation.Entry
	err      error
	restored []revocation.Entry
}

func (p *place) set(err error, entries ...revocation.Entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entries, p.err = entries, err
}

func (p *place) Read(context.Context) ([]revocation.Entry, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.entries, p.err
}

func (p *place) Restore(_ context.Context, entries []revocation.Entry) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.restored = append(p.restored, entries...)
	return nil
}

// alice is the holder of a token.
func alice(issued time.Time) identity.Principal {
	return identity.Principal{
		Issuer: "https://idp.test", Tenant: "acme", Subject: "alice", ClientID: "app", TokenID: "t1", IssuedAt: issued,
		Chain: []identity.Actor{
			{Type: "user", Subject: "alice", Issuer: "https://idp.test"}, {Type: "agent", Subject: "helper", Issuer: "https://agents.test"},
		},
	}
}

func TestARevocationIsOfTheTokensThatAgreeWithAllItsNames(t *testing.T) {
	for _, c := range []struct {
		claim   string
		entry   revocation.Entry
		issued  time.Time
		revoked bool
	}{
		{"her issuer", revocation.Entry{Issuer: "https://idp.test"}, noon, true},
		{"another issuer", revocation.Entry{Issuer: "https://idp2.test"}, noon, false},
		{"her tenant", revocation.Entry{Tenant: "acme"}, noon, true},
		{"another tenant", revocation.Entry{Tenant: "globex"}, noon, false},
		{"her", revocation.Entry{Tenant: "acme", Subject: "alice"}, noon, true},
		{"her namesake elsewhere", revocation.Entry{Tenant: "globex", Subject: "alice"}, noon, false},
		{"her namesake of another issuer", revocation.Entry{Issuer: "https://idp2.test", Subject: "alice"}, noon, false},
		{"somebody else", revocation.Entry{Tenant: "acme", Subject: "bob"}, noon, false},
		{"the agent that acts for her", revocation.Entry{Tenant: "acme", Subject: "helper"}, noon, true},
		{"that agent, of who named it", revocation.Entry{Issuer: "https://agents.test", Subject: "helper"}, noon, true},
		{"that agent, of who issued the token", revocation.Entry{Issuer: "https://idp.test", Subject: "helper"}, noon, true},
		{"the agent's namesake of a third", revocation.Entry{Issuer: "https://idp2.test", Subject: "helper"}, noon, false},
		{"her namesake of who named the agent", revocation.Entry{Issuer: "https://agents.test", Subject: "alice"}, noon, false},
		{"all whom the agent's issuer names", revocation.Entry{Issuer: "https://agents.test"}, noon, true},
		{"all of those in her tenant", revocation.Entry{Issuer: "https://agents.test", Tenant: "acme"}, noon, true},
		{"all of those in another tenant", revocation.Entry{Issuer: "https://agents.test", Tenant: "globex"}, noon, false},
		{"a client of the agent's issuer", revocation.Entry{Issuer: "https://agents.test", Client: "app"}, noon, false},
		{"a token of the agent's issuer", revocation.Entry{Issuer: "https://agents.test", TokenID: "t1"}, noon, false},
		{"the client", revocation.Entry{Tenant: "acme", Client: "app"}, noon, true},
		{"another client", revocation.Entry{Tenant: "acme", Client: "web"}, noon, false},
		{"her at another client", revocation.Entry{Tenant: "acme", Subject: "alice", Client: "web"}, noon, false},
		{"the token", revocation.Entry{Issuer: "https://idp.test", TokenID: "t1"}, noon, true},
		{"another token", revocation.Entry{Issuer: "https://idp.test", TokenID: "t2"}, noon, false},
		{"the token of another issuer", revocation.Entry{Issuer: "https://idp2.test", TokenID: "t1"}, noon, false},
		{"tokens of that second", revocation.Entry{Tenant: "acme"}, noon, true},
		{"a token of a fraction of that second", revocation.Entry{Tenant: "acme"}, noon.Add(700 * time.Millisecond), true},
		{"tokens of the second before", revocation.Entry{Tenant: "acme"}, noon.Add(-time.Second), true},
		{"a token issued afterwards", revocation.Entry{Tenant: "acme"}, noon.Add(time.Second), false},
		{"a token issued after the time it names", revocation.Entry{Tenant: "acme", Before: noon.Add(-time.Hour)}, noon.Add(-time.Hour + time.Second), false},
		{"a token issued before the time it names", revocation.Entry{Tenant: "acme", Before: noon.Add(-time.Hour)}, noon.Add(-time.Hour), true},
		{"a credential that is no token", revocation.Entry{Tenant: "acme"}, time.Time{}, false},
	} {
		p := &place{entries: []revocation.Entry{entry(t, c.entry)}}
		r, err := revocation.NewRegister(t.Context(), revocation.Config{Source: p, Clock: func() time.Time { return noon }})
		if err != nil {
			t.Fatal(err)
		}
		err = r.Check(alice(c.issued), "acme")
		if revoked := errors.Is(err, identity.ErrBadCredential); revoked != c.revoked || revoked != (err != nil) {
			t.Errorf("%s: %v", c.claim, err)
		}
	}
}

func TestAnEntryThatMeansNothingIsRefused(t *testing.T) {
	for claim, e := range map[string]revocation.Entry{
		"nobody's":                     {},
		"a subject of no tenant":       {Subject: "alice"},
		"a token of no issuer":         {TokenID: "t1"},
		"tokens of tomorrow":           {Tenant: "acme", Before: noon.Add(24 * time.Hour)},
		"tokens that all have ended":   {Tenant: "acme", Before: noon.Add(-revocation.Kept - time.Minute)},
		"a name with a line break":     {Tenant: "acme", Subject: "a\nb"},
		"a name of a thousand letters": {Tenant: strings.Repeat("a", 1000)},
	} {
		if made, err := revocation.New(e, noon); err == nil {
			t.Errorf("%s: %+v", claim, made)
		}
	}
}

// The index finds what looking at every entry finds.
func TestTheIndexFindsWhatAFullSearchDoes(t *testing.T) {
	name := rapid.SampledFrom([]string{"", "a", "b"})
	always := rapid.SampledFrom([]string{"a", "b"})
	rapid.Check(t, func(rt *rapid.T) {
		var entries []revocation.Entry
		wide := map[string]bool{}
		for range rapid.IntRange(0, 6).Draw(rt, "entries") {
			e, err := revocation.New(revocation.Entry{
				Issuer: name.Draw(rt, "issuer"), Tenant: name.Draw(rt, "tenant"), Subject: name.Draw(rt, "subject"),
				Client: name.Draw(rt, "client"), TokenID: name.Draw(rt, "jti"),
				Before: noon.Add(-time.Duration(rapid.IntRange(0, 3).Draw(rt, "before")) * time.Second),
			}, noon)
			if err != nil {
				continue
			}
			if rapid.Bool().Draw(rt, "later") {
				e = later(rt, e, `,"crit":["x"],"x":1`)
				wide[e.ID] = true
			}
			entries = append(entries, e)
		}
		p := identity.Principal{
			Issuer: always.Draw(rt, "iss"), Subject: always.Draw(rt, "sub"), ClientID: name.Draw(rt, "cid"), TokenID: name.Draw(rt, "tid"),
			IssuedAt: noon.Add(-time.Duration(rapid.IntRange(0, 3).Draw(rt, "iat")) * time.Second),
		}
		if actor := name.Draw(rt, "actor"); actor != "" {
			p.Chain = []identity.Actor{{Type: "agent", Subject: actor, Issuer: always.Draw(rt, "named by")}}
		}
		tenant := always.Draw(rt, "of")
		want := false
		for _, e := range entries {
			is := func(want, have string) bool { return want == "" || want == have }
			acts := len(p.Chain) > 0 && p.Chain[0].Subject == e.Subject
			token := is(e.Issuer, p.Issuer) && (is(e.Subject, p.Subject) || acts) && is(e.Client, p.ClientID) && is(e.TokenID, p.TokenID)
			actor := len(p.Chain) > 0 && is(e.Issuer, p.Chain[0].Issuer) && is(e.Subject, p.Chain[0].Subject) && e.Client == "" && e.TokenID == ""
			if wide[e.ID] {
				token = is(e.Issuer, p.Issuer) || len(p.Chain) > 0 && is(e.Issuer, p.Chain[0].Issuer)
			}
			if is(e.Tenant, tenant) && (token || actor) && !p.IssuedAt.After(e.Before) {
				want = true
			}
		}
		r, err := revocation.NewRegister(context.Background(), revocation.Config{Source: &place{entries: entries}, Clock: func() time.Time { return noon }})
		if err != nil {
			rt.Fatal(err)
		}
		if got := r.Check(p, tenant) != nil; got != want {
			rt.Fatalf("%+v of %s under %+v: %v", p, tenant, entries, got)
		}
	})
}

func TestARegisterFollowsItsSource(t *testing.T) {
	var ahead atomic.Int64
	clock := func() time.Time { return noon.Add(time.Duration(ahead.Load())) }
	for _, goOn := range []bool{false, true} {
		ahead.Store(0)
		p := &place{}
		heard := make(chan []revocation.Entry, 8)
		old := entry(t, revocation.Entry{Tenant: "globex"})
		p.set(nil, old)
		r, err := revocation.NewRegister(t.Context(), revocation.Config{
			Source: p, GoOn: goOn, Clock: clock, Revoked: func(e []revocation.Entry) { heard <- e },
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(heard) != 0 {
			t.Error("what was there at the start was told as news")
		}
		if err := r.Look(t.Context()); err != nil || len(heard) != 0 {
			t.Errorf("nothing new: %v, told %d times", err, len(heard))
		}
		fresh := entry(t, revocation.Entry{Tenant: "acme", Subject: "alice"})
		p.set(nil, old, fresh)
		if err := r.Look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := <-heard; len(got) != 1 || got[0].ID != fresh.ID || len(heard) != 0 {
			t.Errorf("told of %+v", got)
		}
		if err := r.Check(alice(noon), "acme"); !errors.Is(err, identity.ErrBadCredential) {
			t.Errorf("revoked: %v", err)
		}

		// The place loses everything: nothing is forgotten, and it gets it back.
		p.set(nil)
		if err := r.Look(t.Context()); err != nil || len(p.restored) != 2 {
			t.Errorf("%v, restored %+v", err, p.restored)
		}
		if err := r.Check(alice(noon), "acme"); !errors.Is(err, identity.ErrBadCredential) {
			t.Errorf("after a loss: %v", err)
		}

		// It cannot be read: for a while that is borne.
		p.set(errors.New("no answer"))
		later := alice(noon.Add(time.Hour))
		for _, step := range []struct {
			after time.Duration
			err   error
		}{
			{revocation.MaxStale, nil},
			{revocation.MaxStale + time.Second, identity.ErrUnavailable},
		} {
			ahead.Store(int64(step.after))
			if err := r.Look(t.Context()); err == nil {
				t.Error("a failure was not told")
			}
			want := step.err
			if goOn {
				want = nil
			}
			if err := r.Check(later, "acme"); !errors.Is(err, want) || (err == nil) != (want == nil) {
				t.Errorf("%v after the last look, going on %v: %v", step.after, goOn, err)
			}
			if err := r.Check(alice(noon), "acme"); !errors.Is(err, identity.ErrBadCredential) {
				t.Errorf("a revoked token while nothing is read: %v", err)
			}
		}
		p.set(nil)
		if err := errors.Join(r.Look(t.Context()), r.Check(later, "acme")); err != nil {
			t.Errorf("after it came back: %v", err)
		}

		// What has ended is forgotten.
		ahead.Store(int64(revocation.Kept + time.Second))
		if err := r.Look(t.Context()); err != nil || r.InForce() != 0 {
			t.Errorf("%v, %d in force", err, r.InForce())
		}
	}
}

func TestARegisterStartsWithItsSourceOrNotAtAll(t *testing.T) {
	p := &place{err: errors.New("no answer")}
	if _, err := revocation.NewRegister(t.Context(), revocation.Config{Source: p}); err == nil {
		t.Error("started without knowing what is revoked")
	}
	r, err := revocation.NewRegister(t.Context(), revocation.Config{Source: p, GoOn: true})
	if err != nil || r.Check(alice(noon), "acme") != nil {
		t.Errorf("told to go on: %v", err)
	}
	if _, err := revocation.NewRegister(t.Context(), revocation.Config{}); err == nil {
		t.Error("started without a source")
	}
	many := make([]revocation.Entry, revocation.MaxEntries+1)
	if _, err := revocation.NewRegister(t.Context(), revocation.Config{Source: &place{entries: many}}); err == nil {
		t.Error("took any number of entries")
	}
	if _, err := revocation.NewRegister(t.Context(), revocation.Config{Source: &place{entries: many[1:]}}); err != nil {
		t.Errorf("as many as there may be: %v", err)
	}
}

func TestAnOutageIsLoggedOnceAndSoIsItsEnd(t *testing.T) {
	var log strings.Builder
	p := &place{}
	r, err := revocation.NewRegister(t.Context(), revocation.Config{
		Source: p, Clock: func() time.Time { return noon }, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	down := errors.New("no answer")
	for _, step := range []struct {
		claim string
		ctx   context.Context
		err   error
		said  string // "": nothing
	}{
		{"it answers", t.Context(), nil, ""},
		{"it answers no more", t.Context(), down, "cannot be read"},
		{"it still does not", t.Context(), down, ""},
		{"it answers again", t.Context(), nil, "can be read again"},
		{"it still does", t.Context(), nil, ""},
		{"nobody waits for the answer", stopped, down, ""},
	} {
		log.Reset()
		p.set(step.err)
		if err := r.Look(step.ctx); (err == nil) != (step.err == nil) {
			t.Errorf("%s: %v", step.claim, err)
		}
		if said := log.String(); !strings.Contains(said, step.said) || (step.said == "") != (said == "") || strings.Count(said, "\n") > 1 {
			t.Errorf("%s: logged %q", step.claim, said)
		}
	}
}

func TestAnEntryIsDecodedOnlyIfItIsOneThatNewMakes(t *testing.T) {
	made := entry(t, revocation.Entry{Tenant: "acme", Subject: "alice"})
	change := func(f func(*revocation.Entry)) string {
		e := made
		f(&e)
		text, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	good := change(func(*revocation.Entry) {})
	for _, c := range []struct {
		claim, text string
		ok          bool
	}{
		{"as it was made", good, true},
		{"one that does not say when it was made", change(func(e *revocation.Entry) { e.Made = time.Time{} }), false},
		{"one that does not say until when", change(func(e *revocation.Entry) { e.Before = time.Time{}; e.ID = e.Digest() }), false},
		{"the ID of another", change(func(e *revocation.Entry) { e.Subject = "bob" }), false},
		{"a reason with a line break", change(func(e *revocation.Entry) { e.Reason = "a\nb" }), false},
		{"a member more", strings.TrimSuffix(good, "}") + `,"class":"chat"}`, false},
		{"a reason that is no text", strings.TrimSuffix(good, "}") + `,"reason":1}`, false},
		{"text after it", good + "{}", false},
	} {
		if got, err := revocation.Decode([]byte(c.text)); (err == nil) != c.ok {
			t.Errorf("%s: %+v, %v", c.claim, got, err)
		}
	}
}

func TestTheEdgesOfTheTimeThatAnEntryNames(t *testing.T) {
	for _, c := range []struct {
		claim  string
		before time.Duration // from now
		ok     bool
	}{
		{"a minute ahead, as clocks disagree", time.Minute, true},
		{"more than that", time.Minute + time.Second, false},
		{"tokens of which the last ends now", -revocation.Kept, true},
		{"tokens of which the last has ended", -revocation.Kept - time.Second, false},
	} {
		if made, err := revocation.New(revocation.Entry{Tenant: "acme", Before: noon.Add(c.before)}, noon); (err == nil) != c.ok {
			t.Errorf("%s: %+v, %v", c.claim, made, err)
		}
	}
}

func TestAFileIsReadWithinItsBounds(t *testing.T) {
	const most = 32 << 20
	path := filepath.Join(t.TempDir(), "revocations")
	for _, c := range []struct {
		claim, reason string
		size          int64
	}{
		{"no entries", "", 0},
		{"as long as may be, and no entries", "has no end", most},
		{"a byte more", "longer than", most + 1},
	} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, c.size); err != nil {
			t.Fatal(err)
		}
		all, err := revocation.File(path).Read(t.Context())
		if len(all) != 0 || (err == nil) != (c.reason == "") || err != nil && !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: %d entries, %v", c.claim, len(all), err)
		}
	}
}

func TestAFullFileTakesNoMore(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "revocations")
	made := make([]revocation.Entry, revocation.MaxEntries)
	var text bytes.Buffer
	for i := range made {
		made[i] = entry(t, revocation.Entry{Tenant: "acme", TokenID: fmt.Sprint(i)})
		line, err := made[i].Encode()
		if err != nil {
			t.Fatal(err)
		}
		text.Write(append(line, '\n'))
	}
	if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	more := entry(t, revocation.Entry{Tenant: "acme"})
	if err := revocation.Revoke(path, more, noon); err == nil || !strings.Contains(err.Error(), "is full") {
		t.Errorf("one more: %v", err)
	}
	if err := revocation.Revoke(path, made[0], noon); err != nil {
		t.Errorf("one that is there already: %v", err)
	}
}

func TestAFileIsReadWholeOrNotAtAll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "revocations")
	if _, err := revocation.File(path).Read(t.Context()); err == nil {
		t.Error("a file that is not there was read")
	}
	first, second := entry(t, revocation.Entry{Tenant: "acme"}), entry(t, revocation.Entry{Tenant: "globex", Reason: "drill", By: "ops"})
	if err := errors.Join(revocation.Revoke(path, first, noon), revocation.Revoke(path, second, noon), revocation.Revoke(path, second, noon)); err != nil {
		t.Fatal(err)
	}
	entries, err := revocation.File(path).Read(t.Context())
	if err != nil || len(entries) != 2 || entries[0] != first || entries[1] != second {
		t.Fatalf("%+v, %v", entries, err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for claim, text := range map[string]string{
		"cut short":            string(raw[:len(raw)-1]),
		"cut inside a line":    string(raw[:len(raw)/2]),
		"an unknown member":    strings.Replace(string(raw), `"tenant"`, `"tenent"`, 1),
		"a wider entry":        strings.Replace(string(raw), `"tenant":"acme",`, `"issuer":"https://idp.test",`, 1),
		"an entry of nobody":   strings.Replace(string(raw), `"tenant":"acme",`, ``, 1),
		"an empty line":        string(raw) + "\n",
		"an entry twice a key": strings.Replace(string(raw), `"tenant":"acme",`, `"tenant":"x","tenant":"acme",`, 1),
	} {
		if text == string(raw) {
			t.Fatalf("%s: the scene is not set", claim)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := revocation.File(path).Read(t.Context()); err == nil {
			t.Errorf("%s was read as %+v", claim, got)
		} else if claim == "an empty line" && !strings.Contains(err.Error(), path+":3: ") {
			t.Errorf("%s: it is not said which: %v", claim, err)
		}
		if err := revocation.Revoke(path, first, noon); err == nil {
			t.Errorf("%s was written over", claim)
		}
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	third := first
	later := noon.Add(revocation.Kept + time.Minute)
	third, err = revocation.New(revocation.Entry{Tenant: "acme"}, later)
	if err != nil {
		t.Fatal(err)
	}
	if err := revocation.Revoke(path, third, later); err != nil {
		t.Fatal(err)
	}
	if entries, err := revocation.File(path).Read(t.Context()); err != nil || len(entries) != 1 || entries[0] != third {
		t.Errorf("what has ended stays: %+v, %v", entries, err)
	}
}

func FuzzDecode(f *testing.F) {
	good := entry(f, revocation.Entry{Tenant: "acme", Subject: "alice"})
	text, err := good.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	if text, err = good.With(`{"crit":["x"],"x":[]}`).Encode(); err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"id":"","before":"2026-11-30T12:00:00Z"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := revocation.Decode(raw)
		if err != nil {
			return
		}
		text, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := revocation.Decode(text); err != nil || again.ID != e.ID {
			t.Fatalf("%s became %s: %v", raw, text, err)
		}
		if len(e.Of()) == 0 {
			t.Fatalf("%s withdraws everything", raw)
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	p := &place{}
	for i := range 10_000 {
		p.entries = append(p.entries, entry(b, revocation.Entry{Tenant: "acme", Subject: fmt.Sprint("user-", i)}))
	}
	r, err := revocation.NewRegister(b.Context(), revocation.Config{Source: p, Clock: func() time.Time { return noon }})
	if err != nil {
		b.Fatal(err)
	}
	who := alice(noon)
	for b.Loop() {
		if err := r.Check(who, "acme"); err != nil {
			b.Fatal(err)
		}
	}
}

func TestAnEntryNamesTheKindsItGoesBy(t *testing.T) {
	e := entry(t, revocation.Entry{Issuer: "https://idp.test", Subject: "alice", TokenID: "t1"})
	if got := strings.Join(e.Of(), " "); got != "issuer subject jti" {
		t.Errorf("got %q", got)
	}
	other := revocation.Entry{Tenant: "a", Client: "b"}
	if got := strings.Join(other.Of(), " "); got != "tenant client" {
		t.Errorf("got %q", got)
	}
}
