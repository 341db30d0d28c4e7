package apikey_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/apikey"
)

// box is a store and its pepper in a directory of their own.
type box struct {
	file, pepperFile string
	pepper           apikey.Pepper
}

func newBox(t testing.TB) *box {
	t.Helper()
	dir := t.TempDir()
	b := &box{file: filepath.Join(dir, "keys"), pepperFile: filepath.Join(dir, "pepper")}
	if err := apikey.CreatePepper(b.pepperFile); err != nil {
		t.Fatal(err)
	}
	var err error
	if b.pepper, err = apikey.ReadPepper(b.pepperFile); err != nil {
		t.Fatal(err)
	}
	return b
}

// record is what most keys of these tests are entitled to.
func record() apikey.Record {
	return apikey.Record{
		Tenant: "acme", Subject: "nightly report", Kind: identity.Workload, Client: "reports", Scopes: []string{"chat", "embed"},
		Label: "made for the tests", Expires: time.Now().Add(time.Hour),
	}
}

func (b *box) create(t testing.TB, r apikey.Record) apikey.Key {
	t.Helper()
	key, _, err := apikey.Create(b.file, b.pepper, r)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (b *box) open(t testing.TB, clock func() time.Time) *apikey.Store {
	t.Helper()
	s, err := apikey.New(apikey.Config{File: b.file, PepperFile: b.pepperFile, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func with(header, value string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", nil)
	r.Header.Set(header, value)
	return r
}

func bearer(secret string) *http.Request { return with("Authorization", "Bearer "+secret) }

func TestAKeyIsWhomItsRecordSays(t *testing.T) {
	b := newBox(t)
	key, made, err := apikey.Create(b.file, b.pepper, record())
	if err != nil {
		t.Fatal(err)
	}
	s := b.open(t, nil)
	digest := sha256.Sum256([]byte(key.ID()))
	for _, r := range []*http.Request{bearer(key.Secret()), with("X-Api-Key", key.Secret())} {
		p, err := s.Authenticate(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if p.Tenant != "acme" || p.Subject != "nightly report" || p.Kind != identity.Workload || p.Method != identity.APIKey || p.Issuer != apikey.Issuer ||
			p.ClientID != "reports" || strings.Join(p.Scopes, "|") != "chat|embed" || p.Workload != "" ||
			!p.Expires.Equal(made.Expires) || p.Fingerprint != hex.EncodeToString(digest[:]) {
			t.Errorf("got %+v", p)
		}
	}
}

// What does not hold is refused with one text, whatever it is that is wrong.
func TestKeysThatDoNotHoldLookAlike(t *testing.T) {
	b := newBox(t)
	now := time.Now()
	good, revoked := b.create(t, record()), b.create(t, record())
	short := record()
	short.Expires = now.Add(30 * time.Second)
	expired := b.create(t, short)
	if _, err := apikey.Revoke(b.file, revoked.ID(), now); err != nil {
		t.Fatal(err)
	}
	s := b.open(t, func() time.Time { return now.Add(time.Minute) })
	if _, err := s.Authenticate(t.Context(), bearer(good.Secret())); err != nil {
		t.Fatal(err)
	}
	other := apikey.NewKey()
	spliced := splice(good, other)
	text := good.Secret()
	for _, c := range []struct {
		claim   string
		request *http.Request
	}{
		{"a key that was never made", bearer(other.Secret())},
		{"a known ID with another secret", bearer(spliced)},
		{"a revoked key", bearer(revoked.Secret())},
		{"an expired key", bearer(expired.Secret())},
		{"a wrong checksum", bearer(text[:len(text)-1] + next(text[len(text)-1:]))},
		{"a key cut short", bearer(text[:len(text)-1])},
		{"a key with more", bearer(text + "0")},
		{"another ID", bearer(text[:3] + next(text[3:4]) + text[4:])},
		{"the prefix alone", bearer("sp_")},
		{"another scheme", withProof("DPoP " + text)},
	} {
		p, err := s.Authenticate(t.Context(), c.request)
		if !errors.Is(err, identity.ErrBadCredential) || err.Error() != "API key: bad credential" || !p.IsZero() {
			t.Errorf("%s: %+v, %v", c.claim, p, err)
		}
	}
	for claim, r := range map[string]*http.Request{
		"no credential":                 httptest.NewRequest(http.MethodGet, "/", nil),
		"a JWT is somebody else's":      bearer("a.b.c"),
		"another vendor's key":          bearer("sk-1234"),
		"the prefix in another case":    bearer("SP" + text[2:]),
		"a key where it is not a token": with("X-Forwarded-Authorization", "Bearer "+text),
	} {
		if _, err := s.Authenticate(t.Context(), r); !errors.Is(err, identity.ErrNoCredential) {
			t.Errorf("%s: %v", claim, err)
		}
	}
	both := bearer(text)
	both.Header.Set("X-Api-Key", other.Secret())
	if _, err := s.Authenticate(t.Context(), both); !errors.Is(err, identity.ErrAmbiguous) {
		t.Errorf("two keys: %v", err)
	}
}

// splice is a key of one's ID and the other's secret.
func splice(one, other apikey.Key) string {
	body := one.Secret()[:15] + other.Secret()[15:58]
	return body + "_" + checksum(body)
}

func TestARevocationHoldsFromTheNextRequestOn(t *testing.T) {
	b := newBox(t)
	b.create(t, record())
	s, second := b.open(t, nil), b.open(t, nil) // two gateways
	for i := range 50 {
		key := b.create(t, record())
		for _, s := range []*apikey.Store{s, second} {
			if _, err := s.Authenticate(t.Context(), bearer(key.Secret())); err != nil {
				t.Fatalf("%d: a new key: %v", i, err)
			}
		}
		if _, err := apikey.Revoke(b.file, key.ID(), time.Now()); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*apikey.Store{s, second} {
			if _, err := s.Authenticate(t.Context(), bearer(key.Secret())); !errors.Is(err, identity.ErrBadCredential) {
				t.Fatalf("%d: a revoked key: %v", i, err)
			}
		}
	}
}

// A change that leaves size and time as they were is told by the file being
// another; one in place within a tick of the clock, by not trusting the clock.
func TestAChangeThatHardlyShowsIsSeen(t *testing.T) {
	b := newBox(t)
	key := b.create(t, record())
	before, err := os.ReadFile(b.file)
	if err != nil {
		t.Fatal(err)
	}
	s := b.open(t, nil)
	if _, err := s.Authenticate(t.Context(), bearer(key.Secret())); err != nil {
		t.Fatal(err)
	}
	after := slices.Clone(before)
	last := &after[len(after)-4] // of the mac's digits
	*last = map[bool]byte{true: '1', false: '0'}[*last == '0']
	info, err := os.Stat(b.file)
	if err != nil {
		t.Fatal(err)
	}
	write := func(path string, raw []byte) {
		t.Helper()
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
			t.Fatal(err)
		}
	}
	write(b.file, after)
	if _, err := s.Authenticate(t.Context(), bearer(key.Secret())); !errors.Is(err, identity.ErrBadCredential) {
		t.Errorf("changed in place at once: %v", err)
	}
	write(b.file, before)
	time.Sleep(150 * time.Millisecond) // for the file to be old enough to be believed
	if _, err := s.Authenticate(t.Context(), bearer(key.Secret())); err != nil {
		t.Fatal(err)
	}
	write(b.file+".new", after)
	if err := os.Rename(b.file+".new", b.file); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Authenticate(t.Context(), bearer(key.Secret())); !errors.Is(err, identity.ErrBadCredential) {
		t.Errorf("replaced by a file of the same size and time: %v", err)
	}
}

func TestABrokenStoreRefusesEveryKeyUntilItIsMended(t *testing.T) {
	b := newBox(t)
	key := b.create(t, record())
	good, err := os.ReadFile(b.file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(good)
	head, line, _ := strings.Cut(text, "\n")
	s := b.open(t, nil)
	for _, c := range []struct{ claim, text string }{
		{"an empty file", ""},
		{"a file cut inside a line", text[:len(text)-10]},
		{"a file cut before the last line's end", text[:len(text)-1]},
		{"no first line", line},
		{"another version", strings.Replace(text, `keys":1`, `keys":2`, 1)},
		{"no pepper named", strings.Replace(text, `"pepper":"`, `"pepper":"","x":"`, 1)},
		{"another pepper", regexp.MustCompile(`"pepper":"[0-9a-f]+"`).ReplaceAllString(text, `"pepper":"0000000000000000"`)},
		{"a key twice", text + line},
		{"an unknown field", strings.Replace(text, `"tenant"`, `"admin":true,"tenant"`, 1)},
		{"a field twice", strings.Replace(text, `"tenant"`, `"tenant":"globex","tenant"`, 1)},
		{"a field in another case", strings.Replace(text, `"tenant"`, `"Tenant"`, 1)},
		{"no tenant", strings.Replace(text, `"tenant":"acme",`, ``, 1)},
		{"an unknown kind", strings.Replace(text, `"workload"`, `"root"`, 1)},
		{"a short mac", regexp.MustCompile(`"mac":"..`).ReplaceAllString(text, `"mac":"`)},
		{"no mac", regexp.MustCompile(`,"mac":"[0-9a-f]+"`).ReplaceAllString(text, ``)},
		{"an expiry that is no time", regexp.MustCompile(`"expires":"[^"]+"`).ReplaceAllString(text, `"expires":"never"`)},
		{"an expiry in ten years", regexp.MustCompile(`"expires":"20..`).ReplaceAllString(text, `"expires":"2099`)},
		{"a blank line", head + "\n\n" + line},
		{"text that is no JSON", text + "revoked\n"},
	} {
		if c.text == text {
			t.Fatalf("%s: nothing was broken", c.claim)
		}
		if err := os.WriteFile(b.file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if p, err := s.Authenticate(t.Context(), bearer(key.Secret())); !errors.Is(err, identity.ErrUnavailable) || errors.Is(err, identity.ErrBadCredential) || !p.IsZero() {
			t.Errorf("%s: %+v, %v", c.claim, p, err)
		}
		if _, err := apikey.New(apikey.Config{File: b.file, PepperFile: b.pepperFile}); err == nil {
			t.Errorf("%s: a gateway would start", c.claim)
		}
		if _, _, err := apikey.Create(b.file, b.pepper, record()); err == nil {
			t.Errorf("%s: a key was added", c.claim)
		}
	}
	if err := os.Remove(b.file); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Authenticate(t.Context(), bearer(key.Secret())); !errors.Is(err, identity.ErrUnavailable) {
		t.Errorf("a store that went away: %v", err)
	}
	if err := os.WriteFile(b.file, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Authenticate(t.Context(), bearer(key.Secret())); err != nil {
		t.Errorf("a mended store: %v", err)
	}
}

func TestAPepperThatAnyoneMayReadIsRefused(t *testing.T) {
	b := newBox(t)
	for mode, ok := range map[os.FileMode]bool{0o400: true, 0o600: true, 0o640: true, 0o604: false, 0o644: false, 0o602: false} {
		if err := os.Chmod(b.pepperFile, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := apikey.ReadPepper(b.pepperFile); (err == nil) != ok {
			t.Errorf("mode %04o: %v", mode, err)
		}
	}
}

// Who can write the store but does not know the pepper can widen nothing.
func TestWhatAKeyEntitlesToIsUnderTheMAC(t *testing.T) {
	b := newBox(t)
	key := b.create(t, record())
	good, err := os.ReadFile(b.file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(good)
	s := b.open(t, nil)
	for _, c := range []struct {
		claim, old, new string
		want            error
	}{
		{"another tenant", `"tenant":"acme"`, `"tenant":"globex"`, identity.ErrBadCredential},
		{"another subject", `"subject":"nightly report"`, `"subject":"root"`, identity.ErrBadCredential},
		{"another kind", `"kind":"workload"`, `"kind":"human"`, identity.ErrBadCredential},
		{"another client", `"client":"reports"`, `"client":"admin"`, identity.ErrBadCredential},
		{"one more scope", `"scopes":["chat",`, `"scopes":["chat","admin",`, identity.ErrBadCredential},
		{"scopes joined", `["chat","embed"]`, `["chatembed"]`, identity.ErrBadCredential},
		{"a part moved to its neighbour", `"client":"reports","scopes":["chat","embed"]`, `"client":"reportschat","scopes":["embed"]`, identity.ErrBadCredential},
		{"a later end", text[strings.Index(text, `"expires"`):][:31], `"expires":"` + time.Now().UTC().Add(48*time.Hour).Format("2006-01-02T15:04:05Z"), identity.ErrBadCredential},
		{"another label, which entitles to nothing", `"label":"made for`, `"label":"made not for`, nil},
	} {
		changed := strings.Replace(text, c.old, c.new, 1)
		if changed == text {
			t.Fatalf("%s: %s is not in %s", c.claim, c.old, text)
		}
		if err := os.WriteFile(b.file, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Authenticate(t.Context(), bearer(key.Secret())); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.claim, err)
		}
	}
}

func TestTheStoreHoldsNoKey(t *testing.T) {
	b := newBox(t)
	key := b.create(t, record())
	raw, err := os.ReadFile(b.file)
	if err != nil {
		t.Fatal(err)
	}
	secret := strings.Split(key.Secret(), "_")[2]
	if strings.Contains(string(raw), secret) {
		t.Error("the secret is in the store")
	}
	if shown := fmt.Sprintf("%v %+v %#v %s", key, key, key, key); strings.Contains(shown, secret) || !strings.Contains(shown, key.ID()) {
		t.Errorf("printed: %s", shown)
	}
	for _, path := range []string{b.file, b.pepperFile} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	if err := apikey.CreatePepper(b.pepperFile); !errors.Is(err, os.ErrExist) {
		t.Errorf("a pepper was written over: %v", err)
	}
	stranger := newBox(t)
	if _, err := apikey.New(apikey.Config{File: b.file, PepperFile: stranger.pepperFile}); err == nil {
		t.Error("opened under another pepper")
	}
	if _, _, err := apikey.Create(b.file, stranger.pepper, record()); err == nil {
		t.Error("a key was made under another pepper")
	}
	if _, _, err := apikey.Create(b.file, apikey.Pepper{}, record()); err == nil {
		t.Error("a key was made under no pepper")
	}
}

func TestAKeyForNobodyIsNotMade(t *testing.T) {
	b := newBox(t)
	for claim, breakIt := range map[string]func(*apikey.Record){
		"no tenant":                 func(r *apikey.Record) { r.Tenant = "" },
		"a tenant with a space":     func(r *apikey.Record) { r.Tenant = "ac me" },
		"no subject":                func(r *apikey.Record) { r.Subject = "" },
		"a subject of two lines":    func(r *apikey.Record) { r.Subject = "a\nb" },
		"no kind":                   func(r *apikey.Record) { r.Kind = "" },
		"a scope with a space":      func(r *apikey.Record) { r.Scopes = []string{"a b"} },
		"an empty scope":            func(r *apikey.Record) { r.Scopes = []string{""} },
		"65 scopes":                 func(r *apikey.Record) { r.Scopes = strings.Fields(strings.Repeat("s ", 65)) },
		"no end":                    func(r *apikey.Record) { r.Expires = time.Time{} },
		"an end in the past":        func(r *apikey.Record) { r.Expires = time.Now().Add(-time.Hour) },
		"an end in two years":       func(r *apikey.Record) { r.Expires = time.Now().Add(2 * apikey.MaxLife) },
		"a label as long as a tale": func(r *apikey.Record) { r.Label = strings.Repeat("x", 257) },
	} {
		r := record()
		breakIt(&r)
		if _, _, err := apikey.Create(b.file, b.pepper, r); err == nil {
			t.Errorf("%s: made", claim)
		}
	}
	if _, err := os.Stat(b.file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was stored: %v", err)
	}
}

func TestWhatCommandsSayOfKeys(t *testing.T) {
	b := newBox(t)
	now := time.Now()
	key := b.create(t, record())
	if _, err := apikey.Revoke(b.file, "00000000000", now); !errors.Is(err, apikey.ErrNoSuchKey) {
		t.Errorf("no such key: %v", err)
	}
	if _, err := apikey.Revoke(b.file+"x", key.ID(), now); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such store: %v", err)
	}
	records, err := apikey.Read(b.file)
	if err != nil || len(records) != 1 || records[0].ID != key.ID() || records[0].State(now) != apikey.Active || records[0].State(now.Add(2*time.Hour)) != apikey.Expired {
		t.Fatalf("%+v, %v", records, err)
	}
	first, err := apikey.Revoke(b.file, key.ID(), now)
	if err != nil || first.State(now) != apikey.Revoked {
		t.Fatalf("%+v, %v", first, err)
	}
	again, err := apikey.Revoke(b.file, key.ID(), now.Add(time.Hour))
	if err != nil || !again.Revoked.Equal(first.Revoked) {
		t.Errorf("revoked again: %+v, %v", again, err)
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	for _, size := range []int{1, 10_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			box := newBox(b)
			secrets := fill(b, box, size)
			s := box.open(b, nil)
			time.Sleep(150 * time.Millisecond) // until the file's time is believed
			requests := make([]*http.Request, min(size, 64))
			for i := range requests {
				requests[i] = bearer(secrets[i])
			}
			for i := 0; b.Loop(); i++ {
				if _, err := s.Authenticate(b.Context(), requests[i%len(requests)]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkReload(b *testing.B) {
	box := newBox(b)
	secrets := fill(b, box, 10_000)
	s := box.open(b, nil)
	for i := 0; b.Loop(); i++ {
		at := time.Unix(int64(1e9+i), 0)
		if err := os.Chtimes(box.file, at, at); err != nil {
			b.Fatal(err)
		}
		if _, err := s.Authenticate(b.Context(), bearer(secrets[i%len(secrets)])); err != nil {
			b.Fatal(err)
		}
	}
}

// fill makes a store of n keys without writing it n times.
func fill(tb testing.TB, b *box, n int) (secrets []string) {
	tb.Helper()
	scratch := newBox(tb)
	scratch.pepper = b.pepper
	var all strings.Builder
	for i := range n {
		r := record()
		r.Subject = fmt.Sprintf("service %d", i)
		secrets = append(secrets, scratch.create(tb, r).Secret())
		raw, err := os.ReadFile(scratch.file)
		if err != nil {
			tb.Fatal(err)
		}
		head, line, _ := strings.Cut(string(raw), "\n")
		if i == 0 {
			all.WriteString(head + "\n")
		}
		all.WriteString(line)
		if err := os.Remove(scratch.file); err != nil {
			tb.Fatal(err)
		}
	}
	if err := os.WriteFile(b.file, []byte(all.String()), 0o600); err != nil {
		tb.Fatal(err)
	}
	return secrets
}

// withProof is a request as DPoP makes it.
func withProof(authorization string) *http.Request {
	r := with("Authorization", authorization)
	r.Header.Set("DPoP", "a.b.c")
	return r
}
