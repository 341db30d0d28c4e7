package oidc_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/jws/jwstest"
	"github.com/sallyport-ai/sallyport/identity/oidc"
)

// clock is a clock that tests push.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time          { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clock) advance(d time.Duration) { c.ahead.Add(int64(d)) }

// tokenAt is a token that is valid at c's time.
func (c *clock) token(t testing.TB, issuer, kid string, change ...func(*draft)) string {
	d := newDraft(issuer)
	d.Header["kid"] = kid
	d.Claims["iat"], d.Claims["exp"] = c.now().Unix(), c.now().Unix()+300
	for _, f := range change {
		f(d)
	}
	return d.Sign(t)
}

func TestTokensCannotMakeTheGatewayFetchKeys(t *testing.T) {
	k := jwstest.Keys()
	for _, c := range []struct {
		claim string
		token func(*clock, string, int) string
		most  int32 // fetches beyond the first
	}{
		{"a known key with a bad signature fetches nothing", func(c *clock, url string, _ int) string {
			return c.token(t, url, "ec", func(d *draft) { d.Key = k.EC2 })
		}, 0},
		{"unknown keys share an allowance of two", func(c *clock, url string, i int) string {
			return c.token(t, url, fmt.Sprint("unknown", i))
		}, 2},
		{"one unknown key is asked for once", func(c *clock, url string, _ int) string {
			return c.token(t, url, "unknown")
		}, 1},
		{"an unknown issuer fetches nothing", func(c *clock, _ string, i int) string {
			return c.token(t, "https://evil.test", fmt.Sprint("unknown", i))
		}, 0},
		{"a token that breaks the rules fetches nothing", func(c *clock, url string, i int) string {
			return c.token(t, url, fmt.Sprint("unknown", i), func(d *draft) { d.Claims["aud"] = "other" })
		}, 0},
	} {
		var clock clock
		idp := newProvider(t, jwkOf("ec", k.EC.Public()))
		v := newVerifier(t, clock.now, idp.config())
		for i := range 100 {
			if _, err := v.Verify(t.Context(), c.token(&clock, idp.URL, i)); !errors.Is(err, identity.ErrBadCredential) {
				t.Fatalf("%s: %v", c.claim, err)
			}
		}
		if got := idp.fetches.Load() - 1; got > c.most {
			t.Errorf("%s: 100 tokens made %d fetches", c.claim, got)
		}
	}
}

// Attack 48: a key that its issuer took back.
func TestARotatedKeyIsFoundAndTheOldOneGone(t *testing.T) {
	k := jwstest.Keys()
	var clock clock
	idp := newProvider(t, jwkOf("old", k.EC.Public()))
	v := newVerifier(t, clock.now, idp.config())
	verify := func(kid string, key any) error {
		_, err := v.Verify(t.Context(), clock.token(t, idp.URL, kid, func(d *draft) { d.Key = key }))
		return err
	}
	if err := verify("old", k.EC); err != nil {
		t.Fatal(err)
	}
	idp.publish(t, jwkOf("old", k.EC.Public()), jwkOf("new", k.EC2.Public()))
	if err := errors.Join(verify("new", k.EC2), verify("old", k.EC)); err != nil {
		t.Fatalf("while both are listed: %v", err)
	}
	idp.publish(t, jwkOf("newest", k.EC.Public()), jwkOf("new", k.EC2.Public()))
	if err := errors.Join(verify("newest", k.EC), verify("new", k.EC2)); err != nil {
		t.Fatal(err)
	}
	if err := verify("old", k.EC); !errors.Is(err, identity.ErrBadCredential) {
		t.Errorf("a key that is listed no more: %v", err)
	}
}

// Attack 50: a flood of unknown keys while a real one is new.
func TestAFloodDelaysARotationByOneEarningOfTheAllowance(t *testing.T) {
	k := jwstest.Keys()
	var clock clock
	idp := newProvider(t, jwkOf("old", k.EC.Public()))
	v := newVerifier(t, clock.now, idp.config())
	for i := range 50 {
		v.Verify(t.Context(), clock.token(t, idp.URL, fmt.Sprint("flood", i))) // each is refused; see above
	}
	idp.publish(t, jwkOf("new", k.EC2.Public()))
	fresh := func() error {
		_, err := v.Verify(t.Context(), clock.token(t, idp.URL, "new", func(d *draft) { d.Key = k.EC2 }))
		return err
	}
	if err := fresh(); err == nil {
		t.Fatal("the scene is not set: the flood left an allowance")
	}
	clock.advance(31 * time.Second)
	if err := fresh(); err != nil {
		t.Errorf("after 31 s: %v", err)
	}
}

// Attack 49.
func TestAHerdOfTokensMakesOneFetch(t *testing.T) {
	k := jwstest.Keys()
	var clock clock
	idp := newProvider(t, jwkOf("old", k.EC.Public()))
	v := newVerifier(t, clock.now, idp.config())
	token := clock.token(t, idp.URL, "new", func(d *draft) { d.Key = k.EC2 })
	const herd = 50
	set, err := json.Marshal(object{"keys": []any{jwkOf("new", k.EC2.Public())}})
	if err != nil {
		t.Fatal(err)
	}
	arrived := make(chan struct{})
	idp.answer(func(w http.ResponseWriter, _ *http.Request) {
		<-arrived
		w.Write(set)
	})
	var running, started sync.WaitGroup
	var failures atomic.Int32
	started.Add(herd)
	for range herd {
		running.Go(func() {
			started.Done()
			if _, err := v.Verify(t.Context(), token); err != nil {
				failures.Add(1)
			}
		})
	}
	started.Wait()
	time.AfterFunc(50*time.Millisecond, func() { close(arrived) })
	running.Wait()
	if fetches := idp.fetches.Load() - 1; fetches != 1 || failures.Load() != 0 {
		t.Errorf("%d tokens made %d fetches, %d were refused", herd, fetches, failures.Load())
	}
}

// Attack 52: keys of an issuer that is kept from telling of new ones.
func TestOldKeysAreBelievedForADayAndNoLonger(t *testing.T) {
	k := jwstest.Keys()
	var clock clock
	idp := newProvider(t, jwkOf("ec", k.EC.Public()))
	v := newVerifier(t, clock.now, idp.config())
	verify := func() error {
		_, err := v.Verify(t.Context(), clock.token(t, idp.URL, "ec"))
		return err
	}
	idp.answer(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "down", http.StatusBadGateway) })
	clock.advance(23 * time.Hour)
	if err := errors.Join(verify(), v.Ready()); err != nil {
		t.Errorf("after 23 h: %v", err)
	}
	if age := v.KeyAge()[idp.URL]; age < 23*time.Hour || age > 24*time.Hour {
		t.Errorf("keys of %v", age)
	}
	clock.advance(2 * time.Hour)
	if err := verify(); !errors.Is(err, identity.ErrUnavailable) || errors.Is(err, identity.ErrBadCredential) || v.Ready() == nil {
		t.Errorf("after 25 h: %v, ready: %v", err, v.Ready())
	}
	idp.publish(t, jwkOf("ec", k.EC.Public()))
	clock.advance(time.Minute)
	if err := errors.Join(verify(), v.Ready()); err != nil {
		t.Errorf("when the issuer is back: %v", err)
	}
}

func TestAnIssuerThatIsDownAtStartIsWaitedFor(t *testing.T) {
	k := jwstest.Keys()
	var clock clock
	idp, elsewhere := newProvider(t), newProvider(t, jwkOf("ec", k.EC.Public()))
	for _, answer := range []struct {
		claim string
		do    http.HandlerFunc
	}{
		{"51 an error", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "down", http.StatusInternalServerError) }},
		{"51 an error with keys in it", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			w.Write(setOf(t, jwkOf("ec", k.EC.Public())))
		}},
		{"51 no JSON", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("<html>")) }},
		{"51 no keys", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(`{"keys":[]}`)) }},
		{"51 too much", func(w http.ResponseWriter, _ *http.Request) {
			w.Write([]byte(`{"keys":[],"x":"` + strings.Repeat("x", 256<<10) + `"}`))
		}},
		{"51 a redirect to another host", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+"/keys", http.StatusFound)
		}},
		{"51 more keys than anybody has", func(w http.ResponseWriter, _ *http.Request) {
			keys := make([]map[string]any, 65)
			for i := range keys {
				keys[i] = jwkOf(fmt.Sprint("ec", i), k.EC.Public())
			}
			keys[0]["kid"] = "ec"
			w.Write(setOf(t, keys...))
		}},
		{"51 a redirect away from https", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://idp.test/keys", http.StatusFound)
		}},
		{"51 keys twice", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(`{"keys":[],"keys":[]}`)) }},
	} {
		idp.answer(answer.do)
		v := newVerifier(t, clock.now, idp.config())
		verify := func() error {
			_, err := v.Verify(t.Context(), clock.token(t, idp.URL, "ec"))
			return err
		}
		if err := verify(); !errors.Is(err, identity.ErrUnavailable) || v.Ready() == nil || len(v.KeyAge()) != 0 {
			t.Errorf("%s: %v, ready: %v", answer.claim, err, v.Ready())
		}
		idp.publish(t, jwkOf("ec", k.EC.Public()))
		if err := errors.Join(verify(), v.Ready()); err != nil {
			t.Errorf("%s, then keys: %v", answer.claim, err)
		}
	}
}

func TestAnUnfitKeyIsNoKey(t *testing.T) {
	k := jwstest.Keys()
	set := func(name string, value any) func(map[string]any) { return func(j map[string]any) { j[name] = value } }
	other := jwkOf("ec", k.EC2.Public())
	for _, c := range []struct {
		claim string
		keys  []map[string]any
		ok    bool
	}{
		{"a proper key", []map[string]any{jwkOf("ec", k.EC.Public())}, true},
		{"the same key twice", []map[string]any{jwkOf("ec", k.EC.Public()), jwkOf("ec", k.EC.Public())}, true},
		{"53 two keys of one ID", []map[string]any{jwkOf("ec", k.EC.Public()), other}, false},
		{"53 three keys of one ID, the first again last", []map[string]any{jwkOf("ec", k.EC.Public()), other, jwkOf("ec", k.EC.Public())}, false},
		{"54 for encryption", []map[string]any{jwkOf("ec", k.EC.Public(), set("use", "enc"))}, false},
		{"for signing but not verifying", []map[string]any{jwkOf("ec", k.EC.Public(), set("key_ops", []string{"sign"}))}, false},
		{"for another algorithm", []map[string]any{jwkOf("ec", k.EC.Public(), set("alg", "ES384"))}, false},
		{"for this algorithm", []map[string]any{jwkOf("ec", k.EC.Public(), set("alg", "ES256"))}, true},
		{"with its private part", []map[string]any{jwkOf("ec", k.EC.Public(), set("d", "AAAA"))}, false},
		{"54 a shared secret", []map[string]any{{"kty": "oct", "kid": "ec", "k": "AAAA"}}, false},
		{"without an ID", []map[string]any{jwkOf("", k.EC.Public())}, false},
		{"on another curve", []map[string]any{jwkOf("ec", k.EC384.Public())}, false},
		{"off its curve", []map[string]any{jwkOf("ec", k.EC.Public(), set("y", other["y"]))}, false},
		{"of a short coordinate", []map[string]any{jwkOf("ec", k.EC.Public(), set("x", "AAAA"))}, false},
		{"RSA of 2048 bits", []map[string]any{jwkOf("ec", k.RSA.Public())}, true},
		{"RSA of 1024 bits", []map[string]any{jwkOf("ec", k.Weak.Public())}, false},
		{"RSA of 16384 bits", []map[string]any{jwkOf("ec", k.RSA.Public(), set("n", jwstest.Base64(append([]byte{0xff}, make([]byte, 2047)...))))}, false},
		{"RSA with exponent 3", []map[string]any{jwkOf("ec", k.RSA.Public(), set("e", "Aw"))}, false},
		{"RSA with an even exponent", []map[string]any{jwkOf("ec", k.RSA.Public(), set("e", "AQAC"))}, false},
		{"RSA with an exponent of five bytes", []map[string]any{jwkOf("ec", k.RSA.Public(), set("e", "AQAAAAE"))}, false},
		{"of no known type", []map[string]any{{"kty": "X", "kid": "ec"}}, false},
		{"Ed25519, which this issuer does not use", []map[string]any{jwkOf("ec", k.Ed.Public())}, false},
	} {
		v := newVerifier(t, nil, newProvider(t, c.keys...).config())
		if err := v.Ready(); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.claim, err)
		}
	}
	many := make([]map[string]any, 65)
	for i := range many {
		many[i] = jwkOf(fmt.Sprint(i), k.EC.Public())
	}
	if newVerifier(t, nil, newProvider(t, many...).config()).Ready() == nil {
		t.Error("65 keys were accepted")
	}
}

func TestAKeyIDMeansNothingBeyondItsIssuer(t *testing.T) {
	k := jwstest.Keys()
	ours, theirs := newProvider(t, jwkOf("ec", k.EC.Public())), newProvider(t, jwkOf("ec", k.EC2.Public()))
	v := newVerifier(t, nil, ours.config(), theirs.config())
	for _, c := range []struct {
		claim, issuer string
		key           any
		ok            bool
	}{
		{"one issuer by its key", ours.URL, k.EC, true},
		{"the other by its key", theirs.URL, k.EC2, true},
		{"55 one issuer by the other's key", ours.URL, k.EC2, false},
		{"55 the other by the one's key", theirs.URL, k.EC, false},
	} {
		d := newDraft(c.issuer)
		d.Key = c.key
		if _, err := v.Verify(t.Context(), d.Sign(t)); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.claim, err)
		}
	}
}

func TestKeysAreRenewedInTheBackground(t *testing.T) {
	k := jwstest.Keys() // made outside: RSA keys take real time
	file := filepath.Join(t.TempDir(), "keys.json")
	write := func(keys ...map[string]any) {
		set, err := json.Marshal(object{"keys": keys})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, set, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		write(jwkOf("ec", k.EC.Public()))
		config := oidc.Config{URL: "https://idp.test", Audience: "sallyport", Algorithms: []string{"ES256"}, TenantClaim: "tenant", JWKSFile: file}
		v, err := oidc.New(t.Context(), []oidc.Config{config}, oidc.Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		verify := func(key any) error {
			d := newDraft(config.URL)
			d.Key = key
			_, err := v.Verify(t.Context(), d.Sign(t))
			return err
		}
		if err := verify(k.EC); err != nil {
			t.Fatal(err)
		}
		// The same ID with another key: no token can bring this about.
		write(jwkOf("ec", k.EC2.Public()))
		time.Sleep(16 * time.Minute)
		if err := verify(k.EC2); err != nil {
			t.Errorf("16 min after the change: %v", err)
		}
		if err := verify(k.EC); err == nil {
			t.Error("a key that is listed no more still counts after 16 min")
		}
		// Half a file keeps the last good keys.
		if err := os.WriteFile(file, []byte(`{"keys":[`), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(16 * time.Minute)
		if err := verify(k.EC2); err != nil {
			t.Errorf("after a bad file: %v", err)
		}
	})
}

// Attack 51: a body that never ends.
func TestKeysThatDripAreNotWaitedFor(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a time limit")
	}
	t.Parallel()
	idp := newProvider(t)
	gone := make(chan struct{})
	idp.answer(func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		for r.Context().Err() == nil {
			w.Write([]byte(" "))
			_ = http.NewResponseController(w).Flush()
			time.Sleep(50 * time.Millisecond)
		}
	})
	began := time.Now()
	v := newVerifier(t, nil, idp.config())
	if late := time.Since(began); v.Ready() == nil || late > time.Minute {
		t.Errorf("ready: %v, after %v", v.Ready(), late)
	}
	<-gone
}
