package dpop_test

import (
	"context"
	"crypto"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/dpop"
	"github.com/sallyport-ai/sallyport/identity/jws/jwstest"
)

const (
	origin = "https://llm.test"
	path   = "/v1/chat/completions"
	access = "header.payload.signature"
)

type object = jwstest.Object

// draft is a proof before it is signed.
type draft struct{ jwstest.Draft }

var proofs atomic.Int64

func newDraft(now time.Time) *draft {
	sum := sha256.Sum256([]byte(access))
	return &draft{jwstest.Draft{
		Header: object{"typ": "dpop+jwt", "alg": "ES256", "jwk": jwstest.JWK(jwstest.Keys().EC.Public())},
		Claims: object{
			"jti": fmt.Sprint("proof-", proofs.Add(1)), "htm": "POST", "htu": origin + path, "iat": now.Unix(), "ath": jwstest.Base64(sum[:]),
		},
		Method: jwt.SigningMethodES256, Key: jwstest.Keys().EC,
	}}
}

// by signs with another key and algorithm.
func (d *draft) by(algorithm string, key crypto.Signer) {
	d.Header["alg"], d.Header["jwk"] = algorithm, jwstest.JWK(key.Public())
	d.Method, d.Key = jwt.GetSigningMethod(algorithm), key
}

func newVerifier(tb testing.TB, change ...func(*dpop.Config)) *dpop.Verifier {
	tb.Helper()
	config := dpop.Config{Origin: origin, Spend: dpop.NewMemory(0, nil).Spend, Secret: [32]byte{1}}
	for _, c := range change {
		c(&config)
	}
	v, err := dpop.New(config)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

func judge(v *dpop.Verifier, proof string) (identity.Proof, error) {
	r := httptest.NewRequest(http.MethodPost, "https://whatever.the.caller.says"+path+"?x=1", nil)
	return v.Judge(r, identity.Token{Scheme: identity.DPoP, Value: access, Proof: proof})
}

// Every way in which a proof is known to have been made to lie.
func TestHostileProofs(t *testing.T) {
	k := jwstest.Keys()
	v := newVerifier(t)
	now := time.Now()
	for _, c := range []struct {
		claim  string
		change func(*draft)
		after  func(string) string
		reason string // empty: it holds
	}{
		{"a proof", func(*draft) {}, nil, ""},
		{"by ES384", func(d *draft) { d.by("ES384", k.EC384) }, nil, ""},
		{"by EdDSA", func(d *draft) { d.by("EdDSA", k.Ed) }, nil, ""},
		{"by PS256", func(d *draft) { d.by("PS256", k.RSA) }, nil, ""},
		{"by RS256", func(d *draft) { d.by("RS256", k.RSA) }, nil, ""},
		{"by an RSA key of 1024 bits", func(d *draft) { d.by("RS256", k.Weak) }, nil, "1024 bits"},
		{"by RS512, which is not for proofs", func(d *draft) { d.by("RS512", k.RSA) }, nil, `"RS512" is not one`},
		{"typ JWT", func(d *draft) { d.Header["typ"] = "JWT" }, nil, "typ is not"},
		{"typ of an access token", func(d *draft) { d.Header["typ"] = "at+jwt" }, nil, "typ is not"},
		{"no typ", func(d *draft) { delete(d.Header, "typ") }, nil, "typ is not"},
		{"alg none", func(d *draft) { d.Header["alg"] = "none" }, nil, `"none" is not accepted`},
		{"the public key as a secret", func(d *draft) {
			d.Header["alg"], d.Method, d.Key = "HS256", jwt.SigningMethodHS256, []byte(fmt.Sprint(d.Header["jwk"]))
		}, nil, `"HS256" is not accepted`},
		{"no key in it", func(d *draft) { delete(d.Header, "jwk") }, nil, "no key"},
		{"a key that is a string", func(d *draft) { d.Header["jwk"] = "x" }, nil, "not an object"},
		{"a key that is null", func(d *draft) { d.Header["jwk"] = nil }, nil, "not an object"},
		{"a private key", func(d *draft) { d.Header["jwk"].(object)["d"] = "AA" }, nil, "holds a secret"},
		{"an empty private key", func(d *draft) { d.Header["jwk"].(object)["d"] = "" }, nil, "holds a secret"},
		{"a private RSA key's prime", func(d *draft) { d.by("RS256", k.RSA); d.Header["jwk"].(object)["p"] = "AA" }, nil, "holds a secret"},
		{"a symmetric key", func(d *draft) { d.Header["jwk"] = object{"kty": "oct", "k": "AAAA"} }, nil, "holds a secret"},
		{"a key for encryption", func(d *draft) { d.Header["jwk"].(object)["use"] = "enc" }, nil, "not for signatures"},
		{"a key off its curve", func(d *draft) { j := d.Header["jwk"].(object); j["x"] = j["y"] }, nil, "proof of possession"},
		{"a key with its x twice", func(d *draft) {
			d.RawHeader = strings.Replace(jwstest.Insert(d.Header, `"x":1`), `"kty"`, `"x":"AA","kty"`, 1)
		}, nil, "given twice"},
		{"a key with X beside x", func(d *draft) { d.Header["jwk"].(object)["X"] = "AA" }, nil, "differ in case"},
		{"another key than the one that signed", func(d *draft) { d.Header["jwk"] = jwstest.JWK(k.EC2.Public()) }, nil, "signature is invalid"},
		{"jku beside the key", func(d *draft) { d.Header["jku"] = "https://evil.test" }, nil, `"jku" is not accepted`},
		{"crit", func(d *draft) { d.Header["crit"] = []string{"x"} }, nil, `"crit" is not accepted`},
		{"htm of another method", func(d *draft) { d.Claims["htm"] = "GET" }, nil, "htm is not"},
		{"htm in lower case", func(d *draft) { d.Claims["htm"] = "post" }, nil, "htm is not"},
		{"no htm", func(d *draft) { delete(d.Claims, "htm") }, nil, "htm is not"},
		{"htm twice", func(d *draft) { d.RawClaims = jwstest.Insert(d.Claims, `"htm":"POST"`) }, nil, "given twice"},
		{"HTM beside htm", func(d *draft) { d.Claims["HTM"] = "POST" }, nil, "differ in case"},
		{"htu with a query, which does not count", func(d *draft) { d.Claims["htu"] = origin + path + "?a=b#c" }, nil, ""},
		{"htu with the default port", func(d *draft) { d.Claims["htu"] = origin + ":443" + path }, nil, ""},
		{"htu with an upper-case host", func(d *draft) { d.Claims["htu"] = "HTTPS://LLM.test" + path }, nil, ""},
		{"htu with another port", func(d *draft) { d.Claims["htu"] = origin + ":8443" + path }, nil, "htu is not"},
		{"htu over http", func(d *draft) { d.Claims["htu"] = "http://llm.test" + path }, nil, "htu is not"},
		{"htu of another host", func(d *draft) { d.Claims["htu"] = "https://evil.test" + path }, nil, "htu is not"},
		{"htu of the host that the caller says", func(d *draft) { d.Claims["htu"] = "https://whatever.the.caller.says" + path }, nil, "htu is not"},
		{"htu of another route", func(d *draft) { d.Claims["htu"] = origin + "/v1/embeddings" }, nil, "htu is not"},
		{"htu with a trailing slash", func(d *draft) { d.Claims["htu"] = origin + path + "/" }, nil, "htu is not"},
		{"htu with an encoded slash", func(d *draft) { d.Claims["htu"] = origin + "/v1/chat%2Fcompletions" }, nil, "htu is not"},
		{"htu with a detour", func(d *draft) { d.Claims["htu"] = origin + "/v1/x/../chat/completions" }, nil, "htu is not"},
		{"htu in upper case", func(d *draft) { d.Claims["htu"] = origin + strings.ToUpper(path) }, nil, "htu is not"},
		{"htu with a user", func(d *draft) { d.Claims["htu"] = "https://a@llm.test" + path }, nil, "htu is not"},
		{"htu with the host as a user", func(d *draft) { d.Claims["htu"] = origin + "@evil.test" + path }, nil, "htu is not"},
		{"htu without a scheme", func(d *draft) { d.Claims["htu"] = "//llm.test" + path }, nil, "htu is not"},
		{"htu that is a path", func(d *draft) { d.Claims["htu"] = path }, nil, "htu is not"},
		{"no htu", func(d *draft) { delete(d.Claims, "htu") }, nil, "htu is not"},
		{"iat a minute and more ago", func(d *draft) { d.Claims["iat"] = now.Unix() - 63 }, nil, "iat is not now"},
		{"iat a minute and more ahead", func(d *draft) { d.Claims["iat"] = now.Unix() + 90 }, nil, "iat is not now"},
		{"iat half a minute ago", func(d *draft) { d.Claims["iat"] = now.Unix() - 30 }, nil, ""},
		{"iat half a minute ahead", func(d *draft) { d.Claims["iat"] = now.Unix() + 30 }, nil, ""},
		{"no iat", func(d *draft) { delete(d.Claims, "iat") }, nil, "iat is required"},
		{"iat null", func(d *draft) { d.Claims["iat"] = nil }, nil, "iat is required"},
		{"iat as a string", func(d *draft) { d.Claims["iat"] = fmt.Sprint(now.Unix()) }, nil, "unexpected type"},
		{"no jti", func(d *draft) { delete(d.Claims, "jti") }, nil, "jti is missing"},
		{"an empty jti", func(d *draft) { d.Claims["jti"] = "" }, nil, "jti is missing"},
		{"a jti of 256 bytes", func(d *draft) { d.Claims["jti"] = strings.Repeat("j", 256) }, nil, ""},
		{"a jti of 257 bytes", func(d *draft) { d.Claims["jti"] = strings.Repeat("j", 257) }, nil, "jti is missing"},
		{"no ath", func(d *draft) { delete(d.Claims, "ath") }, nil, "ath is not"},
		{"ath of another token", func(d *draft) { d.Claims["ath"] = jwstest.Base64(make([]byte, 32)) }, nil, "ath is not"},
		{"ath with padding", func(d *draft) { d.Claims["ath"] = fmt.Sprint(d.Claims["ath"], "=") }, nil, "ath is not"},
		{"no signature", func(*draft) {}, func(s string) string { return s[:strings.LastIndexByte(s, '.')+1] }, "not three parts"},
		{"four parts", func(*draft) {}, func(s string) string { return s + ".AAAA" }, "not three parts"},
		{"no proof at all", func(*draft) {}, func(string) string { return "AAAA" }, "not three parts"},
	} {
		d := newDraft(now)
		d.Claims["nonce"] = v.Nonce()
		c.change(d)
		text := d.Sign(t)
		if c.after != nil {
			text = c.after(text)
		}
		p, err := judge(v, text)
		switch {
		case c.reason == "" && (err != nil || p.Key != jwstest.Thumbprint(d.Header["jwk"].(object))):
			t.Errorf("%s: %+v, %v", c.claim, p, err)
		case c.reason != "" && (!errors.Is(err, identity.ErrProof) || !strings.Contains(err.Error(), c.reason)):
			t.Errorf("%s: got %v, want %q", c.claim, err, c.reason)
		case c.reason != "" && (p.Key != "" || p.Spend != nil):
			t.Errorf("%s: refused, yet %+v", c.claim, p)
		}
	}
}

// A proof is good for a minute either way, to the second.
func TestAProofIsOfNow(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	v := newVerifier(t, func(c *dpop.Config) { c.Clock, c.WithoutNonce = func() time.Time { return now }, true })
	for off, good := range map[int64]bool{-61: false, -60: true, 0: true, 60: true, 61: false} {
		d := newDraft(now)
		d.Claims["iat"] = now.Unix() + off
		if _, err := judge(v, d.Sign(t)); (err == nil) != good {
			t.Errorf("iat %d s off: %v", off, err)
		}
	}
}

// An address without a path is that of the root.
func TestAnAddressWithoutAPathIsTheRoot(t *testing.T) {
	v := newVerifier(t, func(c *dpop.Config) { c.WithoutNonce = true })
	for htu, good := range map[string]bool{origin: true, origin + "/": true, origin + "//": false, origin + path: false} {
		d := newDraft(time.Now())
		d.Claims["htu"] = htu
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		if _, err := v.Judge(r, identity.Token{Scheme: identity.DPoP, Value: access, Proof: d.Sign(t)}); (err == nil) != good {
			t.Errorf("%s: %v", htu, err)
		}
	}
}

// RFC 7638 §3.1 and RFC 9449 §6.1: the latter's proof and thumbprint.
func TestTheThumbprintIsThatOfTheStandard(t *testing.T) {
	const jwk = `{"kty":"EC","x":"l8tFrhx-34tV3hRICRDY9zCkDlpBhF42UQUfWVAWBFs","y":"9VE4jf_Ok_o64zbTTlcuNJajHmt6v9TDVrU0CdvGRDA","crv":"P-256"}`
	const want = "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"
	var o object
	if err := json.Unmarshal([]byte(jwk), &o); err != nil {
		t.Fatal(err)
	}
	if got := jwstest.Thumbprint(o); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestANonceIsAskedForAndCannotBeMadeUp(t *testing.T) {
	var ahead atomic.Int64
	clock := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	with := func(secret byte) *dpop.Verifier {
		return newVerifier(t, func(c *dpop.Config) { c.Clock, c.Secret = clock, [32]byte{secret} })
	}
	v, sibling, stranger := with(1), with(1), with(2)
	lax := newVerifier(t, func(c *dpop.Config) { c.WithoutNonce = true })
	issued := v.Nonce()
	early := func(by time.Duration) string { // of a gateway whose clock is ahead
		ahead.Store(int64(by))
		defer ahead.Store(0)
		return sibling.Nonce()
	}
	flipped := func(i int) string {
		b, err := base64.RawURLEncoding.DecodeString(issued)
		if err != nil {
			t.Fatal(err)
		}
		b[i] ^= 1
		return jwstest.Base64(b)
	}
	for _, c := range []struct {
		claim string
		v     *dpop.Verifier
		nonce any // nil: none
		after time.Duration
		err   error
	}{
		{"none", v, nil, 0, identity.ErrNonce},
		{"ours", v, issued, 0, nil},
		{"another gateway's of the fleet", sibling, issued, 0, nil},
		{"one under another secret", stranger, issued, 0, identity.ErrNonce},
		{"one of some minutes ago", v, issued, 4 * time.Minute, nil},
		{"one of a clock that is a minute ahead", v, early(time.Minute), 0, nil},
		{"one of a clock that is minutes ahead", v, early(3 * time.Minute), 0, identity.ErrNonce},
		{"an old one", v, issued, 5 * time.Minute, identity.ErrNonce},
		{"a time that was changed", v, flipped(6), 0, identity.ErrNonce},
		{"a MAC that was changed", v, flipped(23), 0, identity.ErrNonce},
		{"a MAC that was cut short", v, issued[:len(issued)-4], 0, identity.ErrNonce},
		{"an empty one", v, "", 0, identity.ErrNonce},
		{"something else", v, "nonce", 0, identity.ErrNonce},
		{"none where they are optional", lax, nil, 0, nil},
		{"a bad one where they are optional", lax, "nonce", 0, identity.ErrNonce},
		{"an empty one where they are optional", lax, "", 0, identity.ErrNonce},
	} {
		ahead.Store(int64(c.after))
		d := newDraft(clock())
		if c.v == lax {
			d = newDraft(time.Now())
		}
		if c.nonce != nil {
			d.Claims["nonce"] = c.nonce
		}
		if _, err := judge(c.v, d.Sign(t)); !errors.Is(err, c.err) || (c.err == nil) != (err == nil) {
			t.Errorf("%s: %v", c.claim, err)
		}
	}
	d := newDraft(clock())
	d.Key = jwstest.Keys().EC2
	if _, err := judge(v, d.Sign(t)); !errors.Is(err, identity.ErrProof) {
		t.Errorf("a forged proof without a nonce was told of nonces: %v", err)
	}
}

func TestAProofCountsOnce(t *testing.T) {
	v := newVerifier(t)
	fresh := func(change ...func(*draft)) *draft {
		d := newDraft(time.Now())
		d.Claims["nonce"] = v.Nonce()
		for _, c := range change {
			c(d)
		}
		return d
	}
	spend := func(d *draft) error {
		t.Helper()
		p, err := judge(v, d.Sign(t))
		if err != nil {
			t.Fatal(err)
		}
		return p.Spend(t.Context(), "acme")
	}
	first := fresh()
	if err := spend(first); err != nil {
		t.Fatal(err)
	}
	if err := spend(first); !errors.Is(err, identity.ErrBadCredential) || errors.Is(err, identity.ErrProof) {
		t.Errorf("a second time, signed anew: %v", err)
	}
	if err := spend(fresh()); err != nil {
		t.Errorf("another jti: %v", err)
	}
	if err := spend(fresh(func(d *draft) { d.Claims["jti"] = first.Claims["jti"]; d.by("ES256", jwstest.Keys().EC2) })); err != nil {
		t.Errorf("another caller's jti of the same name: %v", err)
	}
	p, err := judge(v, fresh().Sign(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := judge(v, fresh().Sign(t)); err != nil || p.Spend(t.Context(), "acme") != nil || p.Spend(t.Context(), "acme") == nil {
		t.Error("judging spends, or spending does not")
	}
}

func TestWhatCannotBeRememberedIsRefused(t *testing.T) {
	down := newVerifier(t, func(c *dpop.Config) {
		c.Spend = func(context.Context, dpop.Holder, [32]byte, time.Time) (bool, error) {
			return true, errors.New("no answer")
		}
	})
	d := newDraft(time.Now())
	d.Claims["nonce"] = down.Nonce()
	p, err := judge(down, d.Sign(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Spend(t.Context(), "acme"); !errors.Is(err, identity.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

func TestAMalformedConfigurationIsRefused(t *testing.T) {
	for claim, change := range map[string]func(*dpop.Config){
		"no origin":                 func(c *dpop.Config) { c.Origin = "" },
		"an origin over http":       func(c *dpop.Config) { c.Origin = "http://llm.test" },
		"an origin of no host":      func(c *dpop.Config) { c.Origin = "https://" },
		"an origin that is no URL":  func(c *dpop.Config) { c.Origin = "https://llm.test:port" },
		"an origin with a fragment": func(c *dpop.Config) { c.Origin = origin + "#a" },
		"an origin with a path":     func(c *dpop.Config) { c.Origin = origin + "/v1" },
		"an origin with a user":     func(c *dpop.Config) { c.Origin = "https://a@llm.test" },
		"an origin with a query":    func(c *dpop.Config) { c.Origin = origin + "?a" },
		"no memory":                 func(c *dpop.Config) { c.Spend = nil },
		"no secret":                 func(c *dpop.Config) { c.Secret = [32]byte{} },
	} {
		config := dpop.Config{Origin: origin, Spend: dpop.NewMemory(0, nil).Spend, Secret: [32]byte{1}}
		change(&config)
		if _, err := dpop.New(config); err == nil {
			t.Errorf("%s was accepted", claim)
		}
	}
}

func BenchmarkJudge(b *testing.B) {
	v := newVerifier(b)
	texts := make([]string, 256)
	for i := range texts {
		d := newDraft(time.Now())
		d.Claims["nonce"] = v.Nonce()
		texts[i] = d.Sign(b)
	}
	for i := 0; b.Loop(); i++ {
		if _, err := judge(v, texts[i%len(texts)]); err != nil {
			b.Fatal(err)
		}
	}
}
