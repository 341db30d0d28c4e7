package oidc_test

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/jws/jwstest"
	"github.com/sallyport-ai/sallyport/identity/oidc"
)

// A good token is remembered only for as long as it would be found good.
func TestARememberedTokenEndsWithWhatMadeItGood(t *testing.T) {
	k := jwstest.Keys()
	for _, c := range []struct {
		claim string
		token func(*clock, string) string
		then  func(*testing.T, *clock, *provider, *oidc.Verifier)
		err   error
	}{
		{"nothing happens", nil, func(*testing.T, *clock, *provider, *oidc.Verifier) {}, nil},
		{"it expires", nil, func(_ *testing.T, c *clock, _ *provider, _ *oidc.Verifier) { c.advance(331 * time.Second) }, identity.ErrBadCredential},
		{"the clock is set back before it", nil, func(_ *testing.T, c *clock, _ *provider, _ *oidc.Verifier) { c.advance(-time.Minute) }, identity.ErrBadCredential},
		{"the clock is set back before its nbf", func(c *clock, url string) string {
			return c.token(t, url, "ec", func(d *draft) { d.Claims["iat"] = c.now().Unix() - 100; d.Claims["nbf"] = c.now().Unix() })
		}, func(_ *testing.T, c *clock, _ *provider, _ *oidc.Verifier) { c.advance(-time.Minute) }, identity.ErrBadCredential},
		{"its key is fetched again", nil, func(t *testing.T, _ *clock, _ *provider, v *oidc.Verifier) {
			if err := v.Refresh(t); err != nil {
				t.Error(err)
			}
		}, nil},
		{"its key is listed no more", nil, func(t *testing.T, _ *clock, p *provider, v *oidc.Verifier) {
			p.publish(t, jwkOf("other", k.EC2.Public()))
			if err := v.Refresh(t); err != nil {
				t.Error(err)
			}
		}, identity.ErrBadCredential},
		{"its key is another one of that name", nil, func(t *testing.T, _ *clock, p *provider, v *oidc.Verifier) {
			p.publish(t, jwkOf("ec", k.EC2.Public()))
			if err := v.Refresh(t); err != nil {
				t.Error(err)
			}
		}, identity.ErrBadCredential},
		{"its key is for another algorithm now", nil, func(t *testing.T, _ *clock, p *provider, v *oidc.Verifier) {
			p.publish(t, jwkOf("ec", k.EC.Public(), func(j map[string]any) { j["alg"] = "ES384" }), jwkOf("other", k.EC2.Public()))
			if err := v.Refresh(t); err != nil {
				t.Error(err)
			}
		}, identity.ErrBadCredential},
		{"its keys are no longer believed", func(c *clock, url string) string {
			c.advance(-12 * time.Hour) // the token is of before the keys
			token := c.token(t, url, "ec", func(d *draft) { d.Claims["exp"] = c.now().Unix() + 24*3600 })
			return token
		}, func(_ *testing.T, c *clock, p *provider, _ *oidc.Verifier) {
			p.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
			c.advance(24*time.Hour + time.Second)
		}, identity.ErrUnavailable},
	} {
		var clock clock
		idp := newProvider(t, jwkOf("ec", k.EC.Public()))
		config := idp.config()
		config.MaxLifetime = 24 * time.Hour
		token := ""
		if c.token != nil {
			token = c.token(&clock, idp.URL)
		} else {
			token = clock.token(t, idp.URL, "ec")
		}
		v := newVerifier(t, clock.now, config)
		for range 2 {
			if _, err := v.Verify(t.Context(), token); err != nil {
				t.Fatalf("%s: the scene is not set: %v", c.claim, err)
			}
		}
		if n, _ := v.Held(); n != 1 {
			t.Fatalf("%s: the scene is not set: %d remembered", c.claim, n)
		}
		c.then(t, &clock, idp, v)
		if p, err := v.Verify(t.Context(), token); !errors.Is(err, c.err) || p.IsZero() == (err == nil) {
			t.Errorf("%s: %+v, %v", c.claim, p, err)
		}
	}
}

func TestOnlyTheVeryTokenIsRemembered(t *testing.T) {
	idp := newProvider(t, jwkOf("ec", jwstest.Keys().EC.Public()))
	v := newVerifier(t, nil, idp.config())
	token := newDraft(idp.URL).Sign(t)
	first, err := v.Verify(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(token) {
		for _, changed := range []string{token[:i] + "." + token[i+1:], token[:i] + token[i+1:]} {
			if changed == token {
				continue
			}
			if p, err := v.Verify(t.Context(), changed); err == nil {
				t.Fatalf("changed at %d: %+v", i, p)
			}
		}
	}
	if n, _ := v.Held(); n != 1 {
		t.Errorf("%d remembered: bad ones too", n)
	}
	again, err := v.Verify(t.Context(), token)
	if err != nil || again.Subject != first.Subject || again.Fingerprint != first.Fingerprint || !again.Expires.Equal(first.Expires) {
		t.Errorf("%+v, %v", again, err)
	}
}

// A bound token is remembered with what it is bound to: the chain asks each time.
func TestARememberedTokenIsStillBound(t *testing.T) {
	idp := newProvider(t, jwkOf("ec", jwstest.Keys().EC.Public()))
	v := newVerifier(t, nil, idp.config())
	d := newDraft(idp.URL)
	key := strings.Repeat("A", 43)
	d.Claims["cnf"] = object{"jkt": key}
	token := d.Sign(t)
	for range 2 {
		if p, err := v.Verify(t.Context(), token); err != nil || p.Bound.Key != key {
			t.Errorf("%+v, %v", p, err)
		}
	}
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	if p, err := (identity.Chain{Request: []identity.Authenticator{v.Authenticate}}).Authenticate(t.Context(), r); !errors.Is(err, identity.ErrBadCredential) {
		t.Errorf("as a bearer token: %+v, %v", p, err)
	}
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("signs thousands of tokens")
	}
	idp := newProvider(t, jwkOf("ec", jwstest.Keys().EC.Public()))
	v := newVerifier(t, nil, idp.config())
	long := make([]string, 100)
	for i := range long {
		long[i] = fmt.Sprintf("group-%d-%s", i, strings.Repeat("g", 80))
	}
	used := newDraft(idp.URL).Sign(t)
	for i := range 5000 {
		d := newDraft(idp.URL)
		d.Claims["jti"], d.Claims["groups"] = fmt.Sprint(i), long
		if _, err := v.Verify(t.Context(), d.Sign(t)); err != nil {
			t.Fatal(err)
		}
		if _, err := v.Verify(t.Context(), used); err != nil {
			t.Fatal(err)
		}
		if n, bytes := v.Held(); n > oidc.MaxCached || bytes > oidc.MaxCachedBytes {
			t.Fatalf("%d tokens of %d bytes", n, bytes)
		}
	}
	if n, bytes := v.Held(); n < 100 || bytes < oidc.MaxCachedBytes/4 || n > 4000 {
		t.Errorf("the scene is not set: %d tokens of %d bytes", n, bytes)
	}
}

// 1,000 callers find no keys: one fetch serves them all.
func TestAColdStartFetchesKeysOnce(t *testing.T) {
	idp := newProvider(t)
	idp.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	v, err := oidc.New(t.Context(), []oidc.Config{idp.config()}, oidc.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	before := idp.fetches.Load()
	var good atomic.Int32
	var callers, started sync.WaitGroup
	started.Add(1000)
	idp.answer(func(w http.ResponseWriter, _ *http.Request) {
		started.Wait() // nobody is served before all have come
		w.Write(setOf(t, jwkOf("ec", jwstest.Keys().EC.Public())))
	})
	token := newDraft(idp.URL).Sign(t)
	for range 1000 {
		callers.Go(func() {
			started.Done()
			if _, err := v.Verify(t.Context(), token); err == nil {
				good.Add(1)
			}
		})
	}
	callers.Wait()
	if got := idp.fetches.Load() - before; got != 1 || good.Load() != 1000 {
		t.Errorf("%d fetches, %d of 1,000 served", got, good.Load())
	}
}

// distinct are n tokens of different users.
func distinct(tb testing.TB, issuer string, n int) []string {
	tokens := make([]string, n)
	for i := range tokens {
		d := newDraft(issuer)
		d.Claims["sub"], d.Claims["jti"] = fmt.Sprint("user-", i), fmt.Sprintf("%032d", i)
		tokens[i] = d.Sign(tb)
	}
	return tokens
}

// reportCPU reports the processor time of an operation, which other processes
// disturb less than the time that passes.
func reportCPU(b *testing.B) func() {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	return func() { b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-ns/op") }
}

func BenchmarkVerify(b *testing.B) {
	idp := newProvider(b, jwkOf("ec", jwstest.Keys().EC.Public()))
	v := newVerifier(b, nil, idp.config())
	tokens := distinct(b, idp.URL, 1024)
	requests := make([]*http.Request, len(tokens))
	for i, token := range tokens {
		requests[i] = httptest.NewRequest(http.MethodPost, "/v1/chat/completions", nil)
		requests[i].Header.Set("Authorization", "Bearer "+token)
		requests[i].Header.Set("Content-Type", "application/json")
		requests[i].Header.Set("User-Agent", "bench")
	}
	chain := identity.Chain{Request: []identity.Authenticator{v.Authenticate}}
	for _, token := range tokens {
		if _, err := v.Verify(b.Context(), token); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("remembered", func(b *testing.B) { // the text varies, and every one is remembered
		defer reportCPU(b)()
		for i := 0; b.Loop(); i++ {
			if _, err := v.Verify(b.Context(), tokens[i%len(tokens)]); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("remembered/request", func(b *testing.B) {
		defer reportCPU(b)()
		for i := 0; b.Loop(); i++ {
			if _, err := chain.Authenticate(b.Context(), requests[i%len(requests)]); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("new", func(b *testing.B) { // no token is remembered
		defer reportCPU(b)()
		for i := 0; b.Loop(); i++ {
			if i%len(tokens) == 0 {
				v.Forget()
			}
			if _, err := v.Verify(b.Context(), tokens[i%len(tokens)]); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("bare", func(b *testing.B) { // the signature alone, for comparison
		defer reportCPU(b)()
		public := jwstest.Keys().EC.Public().(*ecdsa.PublicKey)
		for i := 0; b.Loop(); i++ {
			text, signature := cutLast(tokens[i%len(tokens)])
			raw, err := base64.RawURLEncoding.DecodeString(signature)
			if err != nil {
				b.Fatal(err)
			}
			digest := sha256.Sum256([]byte(text))
			if !ecdsa.Verify(public, digest[:], new(big.Int).SetBytes(raw[:32]), new(big.Int).SetBytes(raw[32:])) {
				b.Fatal("does not hold")
			}
		}
	})
}

func BenchmarkGarbage(b *testing.B) {
	idp := newProvider(b, jwkOf("ec", jwstest.Keys().EC.Public()))
	v := newVerifier(b, nil, idp.config())
	good := distinct(b, idp.URL, 256)
	random := rand.New(rand.NewPCG(1, 2))
	noise := func(n int) string {
		raw := make([]byte, n)
		for i := range raw {
			raw[i] = byte(random.Uint32())
		}
		return jwstest.Base64(raw)
	}
	kinds := map[string]func(i int) string{
		"noise": func(int) string { return noise(60) + "." + noise(300) + "." + noise(64) },
		"header": func(i int) string {
			return good[i][:strings.IndexByte(good[i], '.')] + "." + noise(300) + "." + noise(64)
		},
		"algorithm": func(i int) string {
			d := newDraft(idp.URL)
			d.Header["alg"], d.Claims["jti"] = "none", fmt.Sprint(i)
			return d.Sign(b)
		},
		"kid": func(i int) string {
			d := newDraft(idp.URL)
			delete(d.Header, "kid")
			d.Claims["jti"] = fmt.Sprint(i)
			return d.Sign(b)
		},
		"issuer": func(i int) string { d := newDraft(fmt.Sprint("https://evil.test/", i)); return d.Sign(b) },
		"cut":    func(i int) string { return good[i][:len(good[i])/2] + "." + noise(64) },
		"long":   func(int) string { return noise(60) + "." + noise(12000-400) + "." + noise(64) },
	}
	for name, kind := range kinds {
		tokens := make([]string, 256)
		for i := range tokens {
			tokens[i] = kind(i)
		}
		b.Run(name, func(b *testing.B) {
			defer reportCPU(b)()
			for i := 0; b.Loop(); i++ {
				if _, err := v.Verify(b.Context(), tokens[i%len(tokens)]); err == nil {
					b.Fatal("accepted")
				}
			}
		})
	}
}
