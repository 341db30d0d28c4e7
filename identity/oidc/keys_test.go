package oidc

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/sallyport-ai/sallyport/identity"
)

// issuerKeys is a key set whose issuer and clock the test is.
type issuerKeys struct {
	*keySet
	now     time.Time
	ids     []string // of the keys that the issuer has now
	err     error    // in their place
	fetches atomic.Int32
	log     journal
}

// journal is a log that is read while it is written.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// take is what was written since it was last taken.
func (j *journal) take() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.text.Reset()
	return j.text.String()
}

func newIssuerKeys(ids ...string) *issuerKeys {
	k := &issuerKeys{now: time.Unix(1_800_000_000, 0), ids: ids}
	k.keySet = &keySet{
		fetch: func(context.Context) ([]byte, error) {
			k.fetches.Add(1)
			return jwksOf(k.ids...), k.err
		},
		algorithms: []string{"EdDSA"},
		clock:      func() time.Time { return k.now },
		log:        slog.New(slog.NewTextHandler(&k.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		allowance:  rate.NewLimiter(rate.Every(missEvery), missBurst),
		misses:     make(map[string]time.Time),
	}
	return k
}

// jwksOf is a set of one key under many names.
func jwksOf(ids ...string) []byte {
	public := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)).Public().(ed25519.PublicKey)
	var keys []string
	for _, id := range ids {
		keys = append(keys, fmt.Sprintf(`{"kty":"OKP","crv":"Ed25519","kid":%q,"x":%q}`, id, base64.RawURLEncoding.EncodeToString(public)))
	}
	return []byte(`{"keys":[` + strings.Join(keys, ",") + `]}`)
}

func (k *issuerKeys) has(t *testing.T, id string) bool {
	t.Helper()
	_, err := k.find(t.Context(), id)
	return err == nil
}

func TestAnUnknownKeyIsAskedForAgainAfterAMinute(t *testing.T) {
	k := newIssuerKeys("old")
	if k.has(t, "new") {
		t.Fatal("the scene is not set")
	}
	k.ids = []string{"old", "new"}
	for _, step := range []struct {
		after time.Duration
		known bool
	}{{0, false}, {missTTL - 1, false}, {1, true}} {
		k.now = k.now.Add(step.after)
		if k.has(t, "new") != step.known {
			t.Errorf("%v after the last step: known %v", step.after, !step.known)
		}
	}
}

// An issuer that did not answer has not said that it does not know the key.
func TestAKeyIsAskedForAgainAtOnceIfTheIssuerDidNotAnswer(t *testing.T) {
	k := newIssuerKeys("old")
	if err := k.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.ids, k.err = []string{"new"}, errors.New("no answer")
	if found, log := k.has(t, "new"), k.log.take(); found || !strings.Contains(log, "unknown key") {
		t.Errorf("the scene is not set, or not told: %q", log)
	}
	k.err = nil
	if !k.has(t, "new") {
		t.Error("the key is not found though the issuer answers")
	}
	for i := range 3 { // more than the allowance
		k.has(t, fmt.Sprint("flood", i))
	}
	if log := k.log.take(); log != "" {
		t.Errorf("callers can fill the log: %q", log)
	}
}

func TestWhatTheIssuerDoesNotKnowIsBounded(t *testing.T) {
	k := newIssuerKeys()
	for i := range maxMisses {
		k.miss(fmt.Sprint(i))
	}
	if len(k.misses) != maxMisses || !k.missed("0") {
		t.Errorf("%d held of as many as there may be, the first of them %v", len(k.misses), k.missed("0"))
	}
	if k.miss("one more"); len(k.misses) != 1 || !k.missed("one more") || k.missed("0") {
		t.Errorf("%d held after one more", len(k.misses))
	}
}

func TestKeysAreBelievedToTheEndOfADayAndNoLonger(t *testing.T) {
	k := newIssuerKeys("a")
	if err := k.usable(); !errors.Is(err, identity.ErrUnavailable) {
		t.Errorf("before the first fetch: %v", err)
	}
	if err := k.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.err = errors.New("no answer")
	for _, step := range []struct {
		after    time.Duration
		believed bool
	}{{maxStale, true}, {1, false}} {
		k.now = k.now.Add(step.after)
		if believed := k.usable() == nil; believed != step.believed || k.has(t, "a") != believed {
			t.Errorf("%v after the last step: believed %v", step.after, believed)
		}
	}
}

func TestAFetchThatHasJustEndedServesWhoeverMissedIt(t *testing.T) {
	k := newIssuerKeys("a")
	before := k.confirmed.Load()
	if err := k.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := k.renew(t.Context(), before, func() bool { t.Error("the allowance was spent"); return true })
	if err != nil || k.fetches.Load() != 1 {
		t.Errorf("%v, %d fetches", err, k.fetches.Load())
	}
	refused := k.renew(t.Context(), k.confirmed.Load(), func() bool { return false })
	if !errors.Is(refused, errAllowance) || k.fetches.Load() != 1 {
		t.Errorf("without an allowance: %v, %d fetches", refused, k.fetches.Load())
	}
}

func TestACallerThatLeavesDoesNotEndTheFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newIssuerKeys("a")
		answer := make(chan struct{})
		k.fetch = func(ctx context.Context) ([]byte, error) {
			select {
			case <-answer:
				return jwksOf("a"), nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		leaving, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() { left <- k.refresh(leaving) }()
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("who left heard %v", err)
		}
		close(answer)
		synctest.Wait()
		if _, ok := k.lookUp("a"); !ok {
			t.Error("the fetch ended with the caller")
		}
	})
}

// An issuer that does not answer is asked again soon, and one that does is not.
func TestHowOftenKeysAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newIssuerKeys("a")
		if err := k.refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		var down, silent atomic.Bool
		answer := make(chan struct{})
		k.fetch = func(context.Context) ([]byte, error) {
			k.fetches.Add(1)
			if silent.Load() {
				<-answer
			}
			if down.Load() {
				return nil, errors.New("no answer")
			}
			return jwksOf("a"), nil
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); k.keepFresh(ctx) }()
		wait := func(claim string, d time.Duration, least, most int32) {
			t.Helper()
			before := k.fetches.Load()
			time.Sleep(d)
			synctest.Wait()
			if n := k.fetches.Load() - before; n < least || n > most {
				t.Errorf("%s: %d fetches in %v", claim, n, d)
			}
		}
		wait("soon after a fetch", refreshEvery-1, 0, 0)
		wait("half as long again", refreshEvery/2+1, 1, 1)
		down.Store(true)
		wait("long after", 3*refreshEvery/2, 2, 40)
		if log := k.log.take(); !strings.Contains(log, "could not be renewed") {
			t.Errorf("logged %q", log)
		}
		wait("while there is no answer", 9*retryEvery, 6, 9)
		down.Store(false)
		wait("when there is one again", 3*retryEvery/2, 1, 1)
		wait("and then", refreshEvery-3*retryEvery/2, 0, 0)
		k.log.take()
		silent.Store(true)
		time.Sleep(2 * refreshEvery) // until the answer is waited for
		stop()
		<-ended
		close(answer)
		if log := k.log.take(); log != "" {
			t.Errorf("its end was logged: %q", log)
		}
	})
}

func TestKeysAreReadToTheirBound(t *testing.T) {
	failure := errors.New("disk")
	for _, c := range []struct {
		claim string
		size  int
		err   error
		ok    bool
	}{
		{"none", 0, nil, true},
		{"as long as may be", maxKeysBytes, nil, true},
		{"a byte more", maxKeysBytes + 1, nil, false},
		{"a source that was not opened", 0, failure, false},
	} {
		raw, err := readBounded(io.NopCloser(strings.NewReader(strings.Repeat(" ", c.size))), c.err)
		if (err == nil) != c.ok || c.ok && len(raw) != c.size {
			t.Errorf("%s: %d bytes, %v", c.claim, len(raw), err)
		}
	}
	broken := io.NopCloser(io.MultiReader(strings.NewReader("{"), failing{failure}))
	if _, err := readBounded(broken, nil); !errors.Is(err, failure) {
		t.Errorf("a source that breaks off: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestARedirectStaysWhereTheConfigurationPointed(t *testing.T) {
	const from = "https://idp.test/keys"
	for _, c := range []struct {
		claim, to string
		before    int // redirects before this one
		ok        bool
	}{
		{"to another path", "https://idp.test/v2/keys", 0, true},
		{"the third", "https://idp.test/v2/keys", 2, true},
		{"the fourth", "https://idp.test/v2/keys", 3, false},
		{"to another host", "https://evil.test/keys", 0, false},
		{"to another port", "https://idp.test:8443/keys", 0, false},
		{"to plain text", "http://idp.test/keys", 0, false},
	} {
		request := func(address string) *http.Request {
			u, err := url.Parse(address)
			if err != nil {
				t.Fatal(err)
			}
			return &http.Request{URL: u}
		}
		via := []*http.Request{request(from)}
		for range c.before {
			via = append(via, request(c.to))
		}
		if err := sameHost(request(c.to), via); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.claim, err)
		}
	}
}

func TestWhichAddressesAreSecure(t *testing.T) {
	for address, ok := range map[string]bool{
		"https://idp.test/keys":           true,
		"https://idp.test:8443/keys?v=2":  true,
		"http://127.0.0.1:8080/keys":      true,
		"http://[::1]:8080/keys":          true,
		"http://10.0.0.1/keys":            false,
		"http://localhost/keys":           false,
		"http://idp.test/keys":            false,
		"ftp://127.0.0.1/keys":            false,
		"https:///keys":                   false,
		"https://alice@idp.test/keys":     false,
		"https://idp.test/keys#fragment":  false,
		"https://idp.test/keys\x7f":       false,
		"":                                false,
		"//idp.test/keys":                 false,
		"https://127.0.0.1@evil.test/key": false,
	} {
		if err := requireSecure(address); (err == nil) != ok {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// Tokens are remembered with the key that verified them.
func TestAKeyThatIsListedAgainIsTheOneItWas(t *testing.T) {
	k := newIssuerKeys("a", "b")
	seen := make(map[string]*key)
	for _, ids := range [][]string{{"a", "b"}, {"b", "a"}, {"a"}} {
		if k.ids = ids; k.refresh(t.Context()) != nil {
			t.Fatal("the scene is not set")
		}
		for _, id := range ids {
			found, ok := k.lookUp(id)
			if !ok || seen[id] != nil && seen[id] != found {
				t.Errorf("%v: %s is another than before, or gone", ids, id)
			}
			seen[id] = found
		}
	}
	if _, ok := k.lookUp("b"); ok {
		t.Error("a key that is listed no more")
	}
}

func TestKeysThatAreNotUsedAreNamed(t *testing.T) {
	k := newIssuerKeys("a")
	if err := k.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if log := k.log.take(); log != "" {
		t.Errorf("all are used, yet logged %q", log)
	}
	k.ids = []string{"a", "b c"}
	if err := k.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if log := k.log.take(); !strings.Contains(log, "b c") {
		t.Errorf("one is not, logged %q", log)
	}
}

func TestOneKeyIsOneKey(t *testing.T) {
	ids := make([]string, maxKeys+1)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	one := strings.TrimSuffix(strings.TrimPrefix(string(jwksOf("a")), `{"keys":[`), `]}`)
	for _, c := range []struct {
		claim, set string
		keys       int // 0: refused
	}{
		{"as many as there may be", string(jwksOf(ids[1:]...)), maxKeys},
		{"one more", string(jwksOf(ids...)), 0},
		{"one twice", string(jwksOf("a", "a")), 1},
		{"one for any algorithm and for one", `{"keys":[` + one + `,` + strings.Replace(one, `{`, `{"alg":"EdDSA",`, 1) + `]}`, 0},
		{"an ID with a space", string(jwksOf("a b", "c")), 1},
		{"members that mean nothing here", `{"at":1,"keys":[` + one + `]}`, 1},
		{"no list", `{"keys":` + one + `}`, 0},
	} {
		keys, _, err := parseKeys([]byte(c.set), []string{"EdDSA"})
		if len(keys) != c.keys || (err == nil) != (c.keys > 0) {
			t.Errorf("%s: %d keys, %v", c.claim, len(keys), err)
		}
	}
}
