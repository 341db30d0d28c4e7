package svid_test

import (
	"crypto"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/jws/jwstest"
	"github.com/sallyport-ai/sallyport/identity/oidc"
	"github.com/sallyport-ai/sallyport/identity/svid"
	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/identity/workload/workloadtest"
	"github.com/sallyport-ai/sallyport/test/await"
)

const app = "spiffe://example.org/app"

type (
	object = jwstest.Object
	draft  = jwstest.Draft
)

func bearer(token string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	return r
}

// Every way in which a JWT-SVID is known to have been made to lie. The reason
// is part of each case, so that none passes for another's.
func TestHostileJWTSVIDs(t *testing.T) {
	k := jwstest.Keys()
	ours, theirs, big, strong, weak := k.EC, k.EC2, k.EC384, k.RSA, k.Weak
	public := jwstest.PEM(strong.Public())
	federated := spiffeid.RequireTrustDomainFromString("example.com")
	bundles := jwtbundle.NewSet(
		jwtbundle.FromJWTAuthorities(domain, map[string]crypto.PublicKey{
			"k": ours.Public(), "p384": big.Public(), "rsa": strong.Public(), "weak": weak.Public(),
		}),
		jwtbundle.FromJWTAuthorities(federated, map[string]crypto.PublicKey{"k": theirs.Public()}),
	)
	authenticate, err := svid.JWTAuthenticator(svid.JWTConfig{Bundles: bundles, Audience: "sallyport", Authorize: workload.AuthorizeDomains(domain)})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Unix()
	signBy := func(kid, algorithm string, method jwt.SigningMethod, key any) func(*draft) {
		return func(d *draft) { d.Header["kid"], d.Header["alg"], d.Method, d.Key = kid, algorithm, method, key }
	}
	claim := func(name string, value any) func(*draft) { return func(d *draft) { d.Claims[name] = value } }
	header := func(name string, value any) func(*draft) { return func(d *draft) { d.Header[name] = value } }
	without := func(name string) func(*draft) { return func(d *draft) { delete(d.Claims, name) } }
	life := func(iat, exp int64) func(*draft) {
		return func(d *draft) { d.Claims["iat"], d.Claims["exp"] = now+iat, now+exp }
	}
	for _, c := range []struct {
		claim  string
		change func(*draft)
		reason string // empty: accepted
	}{
		{"a JWT-SVID", func(*draft) {}, ""},
		{"typ JWT", header("typ", "JWT"), ""},
		{"typ JOSE", header("typ", "JOSE"), ""},
		{"an audience as a list of one", claim("aud", []string{"sallyport"}), ""},
		{"an RSA key", signBy("rsa", "PS256", jwt.SigningMethodPS256, strong), ""},
		{"an hour of life", life(-60, 3540), ""},
		{"expired within the leeway", life(-300, -2), ""},
		{"issued within the leeway", life(3, 300), ""},

		{"no audience", without("aud"), "this audience and no other"},
		{"an empty audience", claim("aud", ""), "this audience and no other"},
		{"an empty list of audiences", claim("aud", []string{}), "this audience and no other"},
		{"another's audience", claim("aud", "billing"), "this audience and no other"},
		{"one audience of two", claim("aud", []string{"sallyport", "billing"}), "this audience and no other"},
		{"the audience twice", claim("aud", []string{"sallyport", "sallyport"}), "this audience and no other"},
		{"the audience in another case", claim("aud", "Sallyport"), "this audience and no other"},

		{"the trust domain's own ID", claim("sub", "spiffe://example.org"), "names no workload"},
		{"a path of nothing", claim("sub", "spiffe://example.org/"), "trailing slash"},
		{"a percent-encoded ID", claim("sub", "spiffe://example.org/%61pp"), "path segment"},
		{"an ID that climbs", claim("sub", "spiffe://example.org/x/../app"), "path"},
		{"a trust domain in capitals", claim("sub", "spiffe://EXAMPLE.org/app"), "trust domain"},
		{"an ID of 3,000 bytes", claim("sub", app+strings.Repeat("x", 3000)), "too long"},
		{"a trust domain of 300 bytes", claim("sub", "spiffe://"+strings.Repeat("x", 300)+"/app"), "too long"},
		{"a federated trust domain nobody admitted", func(d *draft) { d.Claims["sub"], d.Key = "spiffe://example.com/app", theirs }, "example.com"},
		{"our trust domain by the federated one's key", func(d *draft) { d.Key = theirs }, "signature is invalid"},
		{"a trust domain we never heard of", claim("sub", "spiffe://evil.test/app"), "evil.test"},

		{"no exp", without("exp"), "iat and exp are required"},
		{"no iat, so a life of any length", without("iat"), "iat and exp are required"},
		{"exp as a string", claim("exp", "9999999999"), "unexpected type"},
		{"more than an hour of life", life(-60, 3541), "lives longer"},
		{"ten years of life", life(0, 10*365*86400), "lives longer"},
		{"expired beyond the leeway", life(-300, -6), "expired"},
		{"expired within go-spiffe's leeway", life(-300, -30), "expired"},
		{"issued in a minute", life(60, 300), "not valid yet"},
		{"nbf in a minute", claim("nbf", now+60), "not valid yet"},

		{"an unknown key", header("kid", "other"), "no such key"},
		{"no kid", func(d *draft) { delete(d.Header, "kid") }, "kid is missing"},
		{"a P-256 key asked for ES384", header("alg", "ES384"), "not one for the token's algorithm"},
		{"a P-384 key asked for ES256", signBy("p384", "ES256", jwt.SigningMethodES256, ours), "not one for the token's algorithm"},
		{"an EC key asked for RSA", header("alg", "RS256"), "not one for the token's algorithm"},
		{"an RSA key of 1024 bits", signBy("weak", "RS256", jwt.SigningMethodRS256, weak), "or weak"},
		{"alg none", header("alg", "none"), "is not accepted"},
		{"an RSA key as HMAC secret", signBy("rsa", "HS256", jwt.SigningMethodHS256, public), "is not accepted"},

		{"typ of an access token", header("typ", "at+jwt"), "typ is not"},
		{"typ in small letters", header("typ", "jwt"), "typ is not"},
		{"jku", header("jku", "https://evil.test"), `"jku" is not accepted`},
		{"jwk", header("jwk", object{"kty": "EC"}), `"jwk" is not accepted`},
		{"crit", header("crit", []string{"exp"}), `"crit" is not accepted`},
		{"b64 false", header("b64", false), `"b64" is not accepted`},
		{"SUB beside sub", claim("SUB", "spiffe://example.org/root"), "differ in case"},
		{"AUD in place of aud", func(d *draft) { delete(d.Claims, "aud"); d.Claims["AUD"] = "sallyport" }, "another spelling"},
		{"sub twice", func(d *draft) {
			b, _ := json.Marshal(d.Claims) // a map of strings and numbers
			d.RawClaims = strings.TrimSuffix(string(b), "}") + `,"sub":"spiffe://example.org/root"}`
		}, "given twice"},
		{"with an actor", claim("act", object{"sub": "spiffe://example.org/other"}), "names an actor"},
		{"bound to a certificate", claim("cnf", object{"x5t#S256": "AAAA"}), "bound to a key"},
		{"deeper than anybody needs", claim("x", json.RawMessage(strings.Repeat("[", 100)+strings.Repeat("]", 100))), "nested deeper"},
	} {
		d := &draft{
			Header: object{"alg": "ES256", "kid": "k"},
			Claims: object{"sub": app, "aud": "sallyport", "iat": now, "exp": now + 300},
			Method: jwt.SigningMethodES256, Key: ours,
		}
		c.change(d)
		p, err := authenticate(t.Context(), bearer(d.Sign(t)))
		switch {
		case c.reason == "" && (err != nil || p.Workload != app):
			t.Errorf("%s: %+v, %v", c.claim, p, err)
		case c.reason != "" && (!errors.Is(err, identity.ErrBadCredential) || !strings.Contains(err.Error(), c.reason)):
			t.Errorf("%s: got %v, want %q", c.claim, err, c.reason)
		case c.reason != "" && !p.IsZero():
			t.Errorf("%s: refused, yet %+v", c.claim, p)
		}
	}
}

// parties are a development SPIFFE authority and issuer, a workload's client of
// the former, and the chain of a gateway that takes the tokens of both.
type parties struct {
	authority *workloadtest.Authority
	issuer    *oidc.DevIssuer
	client    *workloadapi.Client
	chain     identity.Chain
}

func newParties(t *testing.T) *parties {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	p := new(parties)
	p.authority = workloadtest.New(t, domain, 2*time.Second)
	source := p.authority.Source(t, "/gateway", func(c *workload.SourceConfig) { c.JWTBundles = true })
	var err error
	if p.client, err = workloadapi.New(t.Context(), workloadapi.WithAddr(p.authority.At(t, "/app"))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.client.Close() })
	if p.issuer, err = oidc.NewDevIssuer(oidc.DevConfig{Environment: "test", Logger: quiet}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.issuer.Close() })
	tokens, err := oidc.New(t.Context(), []oidc.Config{p.issuer.Config("sallyport")}, oidc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tokens.Close)
	ours, err := svid.JWTAuthenticator(svid.JWTConfig{Bundles: source, Audience: "sallyport", Authorize: workload.AuthorizeDomains(domain)})
	if err != nil {
		t.Fatal(err)
	}
	p.chain.Request = []identity.Authenticator{ours, tokens.Authenticate}
	return p
}

func (p *parties) fetch(t *testing.T, audience string) *jwtsvid.SVID {
	t.Helper()
	token, err := p.client.FetchJWTSVID(t.Context(), jwtsvid.Params{Audience: audience})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestAJWTSVIDOfTheWorkloadAPIIsAWorkloadWithoutATenant(t *testing.T) {
	parties := newParties(t)
	token := parties.fetch(t, "sallyport")
	p, err := parties.chain.Authenticate(t.Context(), bearer(token.Marshal()))
	if err != nil {
		t.Fatal(err)
	}
	text := token.Marshal()
	digest := sha256.Sum256([]byte(text[:strings.LastIndexByte(text, '.')]))
	if p.Subject != app || p.Workload != app || p.Kind != identity.Workload || p.Method != identity.JWTSVID || p.Issuer != "example.org" ||
		p.Tenant != "" || !p.Expires.Equal(token.Expiry) || p.Fingerprint != hex.EncodeToString(digest[:]) {
		t.Errorf("got %+v", p)
	}
	if _, err := parties.chain.Authenticate(t.Context(), bearer(parties.fetch(t, "billing").Marshal())); !errors.Is(err, identity.ErrBadCredential) {
		t.Errorf("a token for another service: %v", err)
	}
}

// Attack 63.
func TestSPIFFEAndOIDCTokensAreNotTakenForEachOther(t *testing.T) {
	parties := newParties(t)
	mint := func(claims object) string {
		token, err := parties.issuer.Mint(claims)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	from := func(claims object) object {
		all := object{"sub": "alice", "aud": "sallyport", "tenant": "acme"}
		for name, value := range claims {
			all[name] = value
		}
		return all
	}
	for _, c := range []struct {
		claim, token string
		method       identity.Method // empty: refused
	}{
		{"an access token is left to OIDC", mint(from(nil)), identity.OIDC},
		{"an access token that speaks of SPIFFE is still one", mint(from(object{"groups": []string{app}})), identity.OIDC},
		{"a JWT-SVID", parties.fetch(t, "sallyport").Marshal(), identity.JWTSVID},
		{"an identity provider may not vouch for a workload", mint(from(object{"sub": app})), ""},
		{"nor with the workload's key ID", mint(from(object{"sub": app, "iss": "spiffe://example.org"})), ""},
		{"an access token of nobody we know", mint(from(object{"iss": "https://evil.test"})), ""},
	} {
		p, err := parties.chain.Authenticate(t.Context(), bearer(c.token))
		if p.Method != c.method || (err == nil) == (c.method == "") || err != nil && !errors.Is(err, identity.ErrBadCredential) {
			t.Errorf("%s: %+v, %v", c.claim, p, err)
		}
	}
	// Without the method for it, a JWT-SVID is refused and not looked at as
	// something else.
	parties.chain.Request = parties.chain.Request[1:]
	if p, err := parties.chain.Authenticate(t.Context(), bearer(parties.fetch(t, "sallyport").Marshal())); !errors.Is(err, identity.ErrBadCredential) {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestJWTKeysAreNotBelievedLongerThanTheProcessItself(t *testing.T) {
	parties := newParties(t)
	token := parties.fetch(t, "sallyport").Marshal()
	if err := parties.authority.Outage(true); err != nil {
		t.Fatal(err)
	}
	if _, err := parties.chain.Authenticate(t.Context(), bearer(token)); err != nil {
		t.Errorf("an outage that has just begun: %v", err)
	}
	// The token outlives its expiry by the leeway, the gateway's SVID does not.
	for until := time.Now().Add(await.Limit); ; time.Sleep(20 * time.Millisecond) {
		_, err := parties.chain.Authenticate(t.Context(), bearer(token))
		if errors.Is(err, identity.ErrUnavailable) {
			break
		}
		if err != nil || time.Now().After(until) {
			t.Fatalf("got %v", err)
		}
	}
	if err := parties.authority.Outage(false); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(await.Limit); ; time.Sleep(20 * time.Millisecond) {
		if fresh, err := parties.client.FetchJWTSVID(t.Context(), jwtsvid.Params{Audience: "sallyport"}); err == nil {
			if _, err = parties.chain.Authenticate(t.Context(), bearer(fresh.Marshal())); err == nil {
				return
			}
		}
		if time.Now().After(until) {
			t.Fatal("no recovery")
		}
	}
}

func TestAJWTSVIDIsTakenAsABearerTokenOnly(t *testing.T) {
	parties := newParties(t)
	token := parties.fetch(t, "sallyport").Marshal()
	for _, c := range []struct {
		claim, name, value string
		err                error
	}{
		{"bearer", "Authorization", "Bearer " + token, nil},
		{"x-api-key", "X-Api-Key", token, nil},
		{"DPoP", "Authorization", "DPoP " + token, identity.ErrBadCredential},
		{"nothing", "Accept", "*/*", identity.ErrNoCredential},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set(c.name, c.value)
		if _, err := parties.chain.Authenticate(t.Context(), r); !errors.Is(err, c.err) {
			t.Errorf("%s: %v", c.claim, err)
		}
	}
}

func TestWhatIsNoJWTSVIDIsLeftToOthers(t *testing.T) {
	ours := newParties(t).chain.Request[0]
	encode := base64.RawURLEncoding.EncodeToString
	for claim, token := range map[string]string{
		"an API key":           "sp_0123456789a_x_y",
		"three parts of noise": "a.b.c",
		"a JWT of a person":    encode([]byte(`{"alg":"ES256","kid":"k"}`)) + "." + encode([]byte(`{"sub":"alice"}`)) + ".c2ln",
		"a subject in escapes": encode([]byte(`{"alg":"ES256","kid":"k"}`)) + "." + encode([]byte(`{"sub":"\u0073piffe\u003a//example.org/app"}`)) + ".c2ln",
	} {
		if p, err := ours(t.Context(), bearer(token)); !errors.Is(err, identity.ErrNoCredential) || !p.IsZero() {
			t.Errorf("%s: %+v, %v", claim, p, err)
		}
	}
}

func TestAnIncompleteJWTConfigurationIsRefused(t *testing.T) {
	good := svid.JWTConfig{Bundles: jwtbundle.NewSet(), Audience: "sallyport", Authorize: workload.AuthorizeDomains(domain)}
	for claim, breakIt := range map[string]func(*svid.JWTConfig){
		"no audience, which go-spiffe takes for any": func(c *svid.JWTConfig) { c.Audience = "" },
		"no bundles":    func(c *svid.JWTConfig) { c.Bundles = nil },
		"no authoriser": func(c *svid.JWTConfig) { c.Authorize = nil },
	} {
		config := good
		breakIt(&config)
		if _, err := svid.JWTAuthenticator(config); err == nil {
			t.Errorf("%s was accepted", claim)
		}
	}
	authenticate, err := svid.JWTAuthenticator(svid.JWTConfig{Bundles: newSource(t), Audience: "sallyport", Authorize: workload.AuthorizeDomains(domain)})
	if err != nil {
		t.Fatal(err)
	}
	d := &draft{
		Header: object{"alg": "ES256", "kid": "k"},
		Claims: object{"sub": app, "aud": "sallyport", "iat": time.Now().Unix(), "exp": time.Now().Unix() + 60},
		Method: jwt.SigningMethodES256, Key: jwstest.Keys().EC,
	}
	if _, err := authenticate(t.Context(), bearer(d.Sign(t))); !errors.Is(err, identity.ErrUnavailable) {
		t.Errorf("a source that follows no JWT keys: %v", err)
	}
}

func BenchmarkAuthenticateJWT(b *testing.B) {
	key := jwstest.Keys().EC
	bundles := jwtbundle.NewSet(jwtbundle.FromJWTAuthorities(domain, map[string]crypto.PublicKey{"k": key.Public()}))
	authenticate, err := svid.JWTAuthenticator(svid.JWTConfig{Bundles: bundles, Audience: "sallyport", Authorize: workload.AuthorizeDomains(domain)})
	if err != nil {
		b.Fatal(err)
	}
	requests := make([]*http.Request, 64)
	for i := range requests {
		now := time.Now().Unix() - int64(i)
		d := &draft{
			Header: object{"alg": "ES256", "kid": "k"}, Method: jwt.SigningMethodES256, Key: key,
			Claims: object{"sub": app, "aud": "sallyport", "iat": now, "exp": now + 300, "jti": strings.Repeat("x", i)},
		}
		requests[i] = bearer(d.Sign(b))
	}
	for i := 0; b.Loop(); i++ {
		if _, err := authenticate(b.Context(), requests[i%len(requests)]); err != nil {
			b.Fatal(err)
		}
	}
}
