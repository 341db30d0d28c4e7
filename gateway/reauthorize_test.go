package gateway

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/apikey"
	"github.com/sallyport-ai/sallyport/identity/revocation"
	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/policies"
	"github.com/sallyport-ai/sallyport/test/await"
)

// keyring is a store of API keys that a gateway of these tests takes.
type keyring struct {
	tb     testing.TB
	file   string
	pepper apikey.Pepper
	store  *apikey.Store
}

func newKeyring(tb testing.TB) *keyring {
	tb.Helper()
	dir := tb.TempDir()
	k := &keyring{tb: tb, file: filepath.Join(dir, "keys")}
	pepper := filepath.Join(dir, "pepper")
	if err := apikey.CreatePepper(pepper); err != nil {
		tb.Fatal(err)
	}
	var err error
	if k.pepper, err = apikey.ReadPepper(pepper); err != nil {
		tb.Fatal(err)
	}
	k.make("acme", time.Hour)
	if k.store, err = apikey.New(apikey.Config{File: k.file, PepperFile: pepper}); err != nil {
		tb.Fatal(err)
	}
	return k
}

// make makes a key for a service of the tenant.
func (k *keyring) make(tenant string, life time.Duration) apikey.Key {
	k.tb.Helper()
	key, _, err := apikey.Create(k.file, k.pepper, apikey.Record{
		Tenant: tenant, Subject: "service", Kind: identity.Workload, Expires: time.Now().Add(life),
	})
	if err != nil {
		k.tb.Error(err)
	}
	return key
}

func (k *keyring) revoke(key apikey.Key) {
	k.tb.Helper()
	if _, err := apikey.Revoke(k.file, key.ID(), time.Now()); err != nil {
		k.tb.Error(err)
	}
}

// taken makes a gateway take the keys besides tokens.
func (k *keyring) taken(c *Config) {
	c.Live.Identity.Request = append([]identity.Authenticator{k.store.Authenticate}, c.Live.Identity.Request...)
}

func TestAnAPIKeyIsACallerUntilItIsRevoked(t *testing.T) {
	keys := newKeyring(t)
	s := serve(t, keys.taken)
	key := keys.make("acme", time.Hour)
	for _, header := range [][]string{{"Authorization", "Bearer " + key.Secret()}, {"X-Api-Key", key.Secret()}} {
		a := s.post("", chat(s.newMark()), header...)
		s.want(a, http.StatusOK, "")
		d, _ := s.lone(a)
		if c := d.Caller; c.Method != "api_key" || c.Tenant != "acme" || c.Kind != "workload" || c.Issuer != apikey.Issuer || len(c.CredFP) != 64 {
			t.Errorf("the record's caller is %+v", c)
		}
	}
	mark := s.newMark()
	keys.revoke(key)
	s.want(s.post("", chat(mark), "X-Api-Key", key.Secret()), http.StatusUnauthorized, "bad_credential")
	s.unreached(mark)
}

func TestAnAPIKeyThatDisagreesWithAnotherCredentialIsRefused(t *testing.T) {
	keys := newKeyring(t)
	s := serve(t, keys.taken)
	ours, theirs := keys.make("acme", time.Hour).Secret(), keys.make("globex", time.Hour).Secret()
	batch, err := s.source(t.Context(), "/tenant/acme/batch")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		claim  string
		own    *workload.Source // shown as client certificate
		header []string
		status int
		code   string
	}{
		{"the same key twice is one", nil, []string{"Authorization", "Bearer " + ours, "X-Api-Key", ours}, http.StatusOK, ""},
		{"two keys", nil, []string{"Authorization", "Bearer " + ours, "X-Api-Key", theirs}, http.StatusUnauthorized, "bad_credential"},
		{"a token and a key, even of one tenant", nil, []string{"Authorization", "Bearer " + s.tokens["acme"], "X-Api-Key", ours}, http.StatusUnauthorized, "bad_credential"},
		{"a client certificate and a key of one tenant", batch, []string{"X-Api-Key", ours}, http.StatusOK, ""},
		{"a client certificate and a key of another", batch, []string{"X-Api-Key", theirs}, http.StatusUnauthorized, "bad_credential"},
		{"a client certificate and a bad key", batch, []string{"X-Api-Key", ours[:len(ours)-1] + "!"}, http.StatusUnauthorized, "bad_credential"},
		{"a key as another scheme's token", nil, []string{"Authorization", "DPoP " + ours}, http.StatusUnauthorized, "bad_credential"},
	} {
		client := s.client
		if c.own != nil {
			client = s.clientAs(c.own)
		}
		mark := s.newMark()
		as := *s
		as.client = client
		a := as.post("", chat(mark), c.header...)
		if a.status != c.status || a.code() != c.code {
			t.Errorf("%s: got %d %s", c.claim, a.status, a.body)
		}
		if c.status != http.StatusOK {
			s.unreached(mark)
		}
	}
}

// impatient is the policy that ships, with acme asked about every second.
func impatient(t *testing.T) func(*Config) {
	t.Helper()
	demo, err := policies.Demo()
	if err != nil {
		t.Fatal(err)
	}
	const path = "sallyport/tenants/data.json"
	data, err := fs.ReadFile(demo, path)
	if err != nil {
		t.Fatal(err)
	}
	const before, after = `"reauthorize_s": 300`, `"reauthorize_s": 1`
	if !bytes.Contains(data, []byte(before)) {
		t.Fatalf("%s does not say %s", path, before)
	}
	engine, err := loadPolicy(t.Context(), fstest.MapFS{path: {Data: bytes.ReplaceAll(data, []byte(before), []byte(after))}})
	if err != nil {
		t.Fatal(err)
	}
	return func(c *Config) { c.Policy = engine }
}

// trickle streams until the gateway leaves, or for at most d.
func trickle(d time.Duration) act {
	return func(w http.ResponseWriter, r *http.Request, _ call, _ func()) {
		w.Header().Set("Content-Type", "text/event-stream")
		for end := time.Now().Add(d); time.Now().Before(end); {
			fmt.Fprint(w, `data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"small","choices":[{"index":0,"delta":{"content":"la "}}]}`+"\n\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
		fmt.Fprint(w, `data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"small","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
	}
}

func TestAStreamIsAskedForWhenItsCredentialEndsOrSooner(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		every int64         // s
		left  time.Duration // 0: the credential does not expire
		want  time.Duration // 0: never
	}{
		{0, 0, 0},
		{5, 0, 5 * time.Second},
		{0, time.Minute, time.Minute},
		{5, time.Minute, 5 * time.Second},
		{5, time.Second, time.Second},
		{5, -time.Second, time.Millisecond},
		{0, -time.Second, time.Millisecond},
	} {
		x := &exchange{}
		x.decision.ReauthorizeS = c.every
		if c.left != 0 {
			x.principal.Expires = now.Add(c.left)
		}
		if wait, ends := x.nextCheck(now); wait != c.want || ends != (c.want > 0) {
			t.Errorf("every %d s with %v left: %v, %v", c.every, c.left, wait, ends)
		}
	}
}

// A stream lasts no longer than the credential that it was begun with.
func TestAStreamEndsWithItsCredential(t *testing.T) {
	policy := impatient(t)
	for _, c := range []struct {
		claim  string
		life   time.Duration
		while  func(*keyring, apikey.Key)
		reason string // empty: it runs to its end
	}{
		{"a key that stays good", time.Hour, func(*keyring, apikey.Key) {}, ""},
		{"another key revoked", time.Hour, func(k *keyring, _ apikey.Key) { k.revoke(k.make("acme", time.Hour)) }, ""},
		{"the key revoked", time.Hour, func(k *keyring, key apikey.Key) { k.revoke(key) }, "bad_credential"},
		{"the key expired", 3 * time.Second, func(*keyring, apikey.Key) {}, "credential_expired"},
		{"the store broken", time.Hour, func(k *keyring, _ apikey.Key) {
			if err := os.WriteFile(k.file, []byte("?"), 0o600); err != nil {
				k.tb.Error(err)
			}
		}, "credential_uncheckable"},
	} {
		t.Run(c.claim, func(t *testing.T) {
			t.Parallel()
			keys := newKeyring(t)
			s := serve(t, keys.taken, policy)
			key := keys.make("acme", c.life)
			mark := s.newMark()
			s.engine.on(mark, trickle(map[bool]time.Duration{true: 2500 * time.Millisecond, false: await.Limit}[c.reason == ""]))
			began := time.Now()
			a := s.doing(s.request(t.Context(), "", chat(mark, streamed), "X-Api-Key", key.Secret()), func() { c.while(keys, key) })
			if a.status != http.StatusOK {
				t.Fatalf("%d %s", a.status, a.body)
			}
			_, outcome := s.lone(a)
			if done := strings.Contains(a.body, "[DONE]"); done != (c.reason == "") || outcome.Reason != c.reason {
				t.Errorf("done %v, reason %q, after %v", done, outcome.Reason, time.Since(began))
			}
			if c.reason != "" && (outcome.Status != audit.StatusRefused || !strings.Contains(a.body, `"error"`)) {
				t.Errorf("ended %s after %v, with %s", outcome.Status, time.Since(began), a.body[max(0, len(a.body)-300):])
			}
		})
	}
}

// An engine may take long to begin. Who lost a credential meanwhile gets nothing
// of the answer but what passes before that is found out.
func TestATokenRevokedBeforeTheStreamBeginsEndsIt(t *testing.T) {
	var revoked atomic.Bool
	s := serve(t, func(cfg *Config) {
		cfg.Live.Identity.Revoked = func(identity.Principal, string) error {
			if revoked.Load() {
				return identity.ErrBadCredential
			}
			return nil
		}
	})
	mark, rest := s.newMark(), trickle(await.Limit)
	s.engine.on(mark, func(w http.ResponseWriter, r *http.Request, c call, pass func()) {
		revoked.Store(true)
		s.g.Reauthenticate()
		rest(w, r, c, pass)
	})
	a := s.post("acme", chat(mark, streamed))
	_, outcome := s.lone(a)
	if strings.Contains(a.body, "[DONE]") || outcome.Reason != "bad_credential" {
		t.Errorf("reason %q, answered %s", outcome.Reason, a.body[max(0, len(a.body)-300):])
	}
}

// An answer in one piece is worth as much to a thief as a stream.
func TestATokenRevokedMeanwhileGetsNoWholeAnswer(t *testing.T) {
	var revoked atomic.Bool
	s := serve(t, func(cfg *Config) {
		cfg.Live.Identity.Revoked = func(identity.Principal, string) error {
			if revoked.Load() {
				return identity.ErrBadCredential
			}
			return nil
		}
	})
	for _, c := range []struct {
		claim   string
		revoked bool
		status  int
	}{{"another's was", false, http.StatusOK}, {"its own was", true, http.StatusUnauthorized}} {
		mark := s.newMark()
		s.engine.on(mark, func(_ http.ResponseWriter, _ *http.Request, _ call, pass func()) {
			revoked.Store(c.revoked)
			s.g.Reauthenticate()
			pass()
		})
		a := s.post("acme", chat(mark))
		if _, outcome := s.lone(a); a.status != c.status || strings.Contains(a.body, "choices") == c.revoked {
			t.Errorf("%s: %d, reason %q: %s", c.claim, a.status, outcome.Reason, a.body)
		}
	}
}

// An engine that works for somebody whose credential is withdrawn is told to stop,
// though it has not said a word yet.
func TestAnEngineStopsForACredentialThatIsGone(t *testing.T) {
	policy := impatient(t)
	for _, c := range []struct {
		claim  string
		fields []string
		end    func(k *keyring, key apikey.Key, ring func())
		reason string
	}{
		{"a whole answer, and a revocation that is told of", nil, func(k *keyring, key apikey.Key, ring func()) { k.revoke(key); ring() }, "bad_credential"},
		{"a whole answer, and one that is found out", nil, func(k *keyring, key apikey.Key, _ func()) { k.revoke(key) }, "bad_credential"},
		{"a stream that has not begun", []string{streamed}, func(k *keyring, key apikey.Key, ring func()) { k.revoke(key); ring() }, "bad_credential"},
		{"a whole answer to a key that expires", nil, nil, "credential_expired"},
	} {
		t.Run(c.claim, func(t *testing.T) {
			t.Parallel()
			keys := newKeyring(t)
			s := serve(t, keys.taken, policy)
			life := time.Hour
			if c.end == nil {
				life = 2 * time.Second
			}
			key := keys.make("acme", life)
			mark, stopped := s.newMark(), make(chan bool, 4)
			s.engine.on(mark, func(w http.ResponseWriter, r *http.Request, call call, pass func()) {
				if c.end != nil {
					c.end(keys, key, s.g.Reauthenticate)
				}
				select {
				case <-r.Context().Done():
					stopped <- true
				case <-time.After(15 * time.Second):
					stopped <- false
					pass()
				}
			})
			a := s.post("", chat(mark, c.fields...), "X-Api-Key", key.Secret())
			_, outcome := s.lone(a)
			if a.status != http.StatusUnauthorized || outcome.Status != audit.StatusRefused || outcome.Reason != c.reason {
				t.Errorf("%d, ended %s because of %q: %s", a.status, outcome.Status, outcome.Reason, a.body)
			}
			if !<-stopped {
				t.Error("the engine worked on")
			}
		})
	}
}

// A revocation ends the streams it is of long before reauthorize_s would.
func TestARevokedTokensStreamEndsAtOnce(t *testing.T) {
	for _, c := range []struct {
		claim   string
		subject string
		ends    bool
	}{
		{"the caller", "alice@acme.example", true},
		{"somebody else", "carol@acme.example", false},
	} {
		t.Run(c.claim, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "revocations")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			var s *service
			register, err := revocation.NewRegister(t.Context(), revocation.Config{
				Source: revocation.File(file), Revoked: func([]revocation.Entry) { s.g.Reauthenticate() },
			})
			if err != nil {
				t.Fatal(err)
			}
			s = serve(t, func(cfg *Config) { cfg.Live.Identity.Revoked = register.Check })
			ctx, stop := context.WithCancel(t.Context())
			var following sync.WaitGroup
			following.Go(func() { register.Run(ctx) })
			t.Cleanup(func() { stop(); following.Wait() })
			mark := s.newMark()
			s.engine.on(mark, trickle(map[bool]time.Duration{true: await.Limit, false: 4 * time.Second}[c.ends]))
			a := s.doing(s.request(t.Context(), "acme", chat(mark, streamed)), func() {
				e, err := revocation.New(revocation.Entry{Tenant: "acme", Subject: c.subject}, time.Now().Add(time.Second))
				if err == nil {
					err = revocation.Revoke(file, e, time.Now())
				}
				if err != nil {
					t.Error(err)
				}
			})
			_, outcome := s.lone(a)
			if done := strings.Contains(a.body, "[DONE]"); done == c.ends || c.ends && outcome.Reason != "bad_credential" {
				t.Errorf("done %v, reason %q", done, outcome.Reason)
			}
			again := s.post("acme", chat(s.newMark()))
			if want := map[bool]int{true: http.StatusUnauthorized, false: http.StatusOK}[c.ends]; again.status != want {
				t.Errorf("the next request: %d", again.status)
			}
		})
	}
}
