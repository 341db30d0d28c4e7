package oidc_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/jws/jwstest"
	"github.com/sallyport-ai/sallyport/identity/oidc"
)

// jwkOf is a public key as an issuer publishes it, with changes.
func jwkOf(kid string, public crypto.PublicKey, change ...func(object)) object {
	j := jwstest.JWK(public)
	j["kid"], j["use"] = kid, "sig"
	for _, c := range change {
		c(j)
	}
	return j
}

// provider is an identity provider's JWKS endpoint.
type provider struct {
	*httptest.Server
	fetches atomic.Int32
	serve   atomic.Pointer[http.HandlerFunc]
}

func newProvider(t testing.TB, keys ...map[string]any) *provider {
	t.Helper()
	p := &provider{}
	p.publish(t, keys...)
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.fetches.Add(1)
		(*p.serve.Load())(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) publish(t testing.TB, keys ...map[string]any) {
	t.Helper()
	set := setOf(t, keys...)
	p.answer(func(w http.ResponseWriter, _ *http.Request) { w.Write(set) })
}

func setOf(t testing.TB, keys ...map[string]any) []byte {
	t.Helper()
	set, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func (p *provider) answer(f http.HandlerFunc) { p.serve.Store(&f) }

func (p *provider) config() oidc.Config {
	return oidc.Config{
		URL: p.URL, Audience: "sallyport", Algorithms: []string{"ES256", "RS256"}, TenantClaim: "tenant", JWKSURL: p.URL + "/keys",
	}
}

func newVerifier(t testing.TB, clock func() time.Time, configs ...oidc.Config) *oidc.Verifier {
	t.Helper()
	v, err := oidc.New(t.Context(), configs, oidc.Options{Clock: clock, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v
}

type (
	object = jwstest.Object
	draft  = jwstest.Draft
)

func newDraft(issuer string) *draft {
	now := time.Now().Unix()
	return &draft{
		Header: object{"alg": "ES256", "typ": "at+jwt", "kid": "ec"},
		Claims: object{
			"iss": issuer, "aud": "sallyport", "sub": "alice", "iat": now, "exp": now + 300,
			"client_id": "app", "tenant": "acme", "scope": "chat models",
		},
		Method: jwt.SigningMethodES256,
		Key:    jwstest.Keys().EC,
	}
}

func malleate(token string) string {
	text, signature := cutLast(token)
	raw, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil {
		panic(err)
	}
	s := new(big.Int).SetBytes(raw[32:])
	s.Sub(elliptic.P256().Params().N, s)
	s.FillBytes(raw[32:])
	return text + "." + jwstest.Base64(raw)
}

func cutLast(token string) (text, signature string) {
	i := strings.LastIndexByte(token, '.')
	return token[:i], token[i+1:]
}

func withSignature(token string, signature []byte) string {
	text, _ := cutLast(token)
	return text + "." + jwstest.Base64(signature)
}

// otherLastBit changes bits of the last base64 digit that decode to nothing.
func otherLastBit(token string) string {
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(digits, token[len(token)-1])
	return token[:len(token)-1] + digits[last^1:last^1+1]
}

// Every way in which a token is known to have been made to lie. The reason is
// part of each case, so that none passes for another's.
func TestHostileTokens(t *testing.T) {
	k := jwstest.Keys()
	idp := newProvider(t,
		jwkOf("ec", k.EC.Public()), jwkOf("rsa", k.RSA.Public()), jwkOf("ed", k.Ed.Public()), jwkOf("weak", k.Weak.Public()),
		object{"kty": "oct", "kid": "oct", "k": jwstest.Base64([]byte("secret"))},
	)
	v := newVerifier(t, nil, idp.config())
	now := time.Now()
	order := elliptic.P256().Params().N
	sized := func(i *big.Int) []byte { return i.FillBytes(make([]byte, 32)) }

	for _, c := range []struct {
		claim  string
		change func(*draft)
		after  func(string) string
		reason string // empty: accepted
	}{
		{"00 a valid access token", func(*draft) {}, nil, ""},
		{"01 alg none", func(d *draft) { d.Header["alg"] = "none" }, nil, `algorithm "none"`},
		{"02 alg nOnE", func(d *draft) { d.Header["alg"] = "nOnE" }, nil, `algorithm "nOnE"`},
		{"03 RSA key as HMAC secret", func(d *draft) {
			d.Header["alg"], d.Header["kid"], d.Method, d.Key = "HS256", "rsa", jwt.SigningMethodHS256, jwstest.PEM(k.RSA.Public())
		}, nil, `algorithm "HS256"`},
		{"04 kid that climbs paths", func(d *draft) { d.Header["kid"] = "../../ec" }, nil, "no such key"},
		{"05 kid that is no string", func(d *draft) { d.Header["kid"] = 7 }, nil, "unexpected type"},
		{"06 kid missing", func(d *draft) { delete(d.Header, "kid") }, nil, "kid is missing"},
		{"07 jku", func(d *draft) { d.Header["jku"] = "https://evil.test/keys" }, nil, `"jku" is not accepted`},
		{"08 x5u", func(d *draft) { d.Header["x5u"] = "https://evil.test/cert" }, nil, `"x5u" is not accepted`},
		{"08 x5c", func(d *draft) { d.Header["x5c"] = []string{"MIIB"} }, nil, `"x5c" is not accepted`},
		{"09 embedded jwk", func(d *draft) { d.Header["jwk"], d.Key = jwkOf("ec", k.EC2.Public()), k.EC2 }, nil, `"jwk" is not accepted`},
		{"10 wrong audience", func(d *draft) { d.Claims["aud"] = "other" }, nil, "this audience and no other"},
		{"11 no audience", func(d *draft) { delete(d.Claims, "aud") }, nil, "this audience and no other"},
		{"12 one audience of two", func(d *draft) { d.Claims["aud"] = []string{"sallyport", "other"} }, nil, "this audience and no other"},
		{"13 no issuer", func(d *draft) { delete(d.Claims, "iss") }, nil, "not one of ours"},
		{"13 an issuer that is a list", func(d *draft) { d.Claims["iss"] = []string{idp.URL} }, nil, "not one of ours"},
		{"13 wrong issuer", func(d *draft) { d.Claims["iss"] = "https://evil.test" }, nil, "not one of ours"},
		{"14 azp of another client", func(d *draft) { d.Claims["azp"] = "evil" }, nil, "different clients"},
		{"15 ID token", func(d *draft) { d.Header["typ"] = "JWT" }, nil, "not that of an access token"},
		{"16 logout token", func(d *draft) { d.Header["typ"] = "logout+jwt" }, nil, "not that of an access token"},
		{"17 expired 31 s ago", func(d *draft) { d.Claims["exp"] = now.Unix() - 31 }, nil, "expired"},
		{"18 no exp", func(d *draft) { delete(d.Claims, "exp") }, nil, "iat and exp are required"},
		{"19 exp 0", func(d *draft) { d.Claims["exp"] = 0 }, nil, "unexpected type"},
		{"20 exp as string", func(d *draft) { d.Claims["exp"] = "9999999999" }, nil, "unexpected type"},
		{"21 exp 1e300", func(d *draft) { delete(d.Claims, "exp"); d.RawClaims = jwstest.Insert(d.Claims, `"exp":1e300`) }, nil, "unexpected type"},
		{"22 nbf in 10 min", func(d *draft) { d.Claims["nbf"] = now.Unix() + 600 }, nil, "not valid yet"},
		{"23 iat in 10 min", func(d *draft) { d.Claims["iat"], d.Claims["exp"] = now.Unix()+600, now.Unix()+900 }, nil, "used before issued"},
		{"24 ten years of life", func(d *draft) { d.Claims["exp"] = now.Unix() + 10*365*86400 }, nil, "lives longer"},
		{"24 a far end behind a far iat", func(d *draft) { d.Claims["iat"], d.Claims["exp"] = now.Unix()+36e5, now.Unix()+36e5+60 }, nil, "ends further ahead"},
		{"25 crit", func(d *draft) { d.Header["crit"], d.Header["x"] = []string{"x"}, true }, nil, `"crit" is not accepted`},
		{"26 b64 false", func(d *draft) { d.Header["b64"] = false }, nil, `"b64" is not accepted`},
		{"27 sub twice", func(d *draft) { d.RawClaims = jwstest.Insert(d.Claims, `"sub":"root"`) }, nil, "given twice"},
		{"28 SUB beside sub", func(d *draft) { d.Claims["SUB"] = "root" }, nil, "differ in case"},
		{"28 SUB in place of sub", func(d *draft) { delete(d.Claims, "sub"); d.Claims["SUB"] = "root" }, nil, `"sub" in another spelling`},
		{"29 AUD flips aud", func(d *draft) { d.Claims["aud"], d.Claims["AUD"] = "other", "sallyport" }, nil, "differ in case"},
		{"29 a long s is an s", func(d *draft) { d.Claims["\u017fub"] = "root" }, nil, "differ in case"},
		{"30 JSON after the claims", func(d *draft) { d.RawClaims = jwstest.Insert(d.Claims, `"x":1`) + `{"sub":"root"}` }, nil, "not a JSON object"},
		{"31 5,000 levels", func(d *draft) {
			d.RawClaims = jwstest.Insert(d.Claims, `"x":`+strings.Repeat("[", 5000)+strings.Repeat("]", 5000))
		}, nil, "nested deeper"},
		{"32 256 KiB", func(d *draft) { d.Claims["x"] = strings.Repeat("x", 256<<10) }, nil, "longer than"},
		{"33 r = s = 0", func(*draft) {}, func(s string) string { return withSignature(s, make([]byte, 64)) }, "signature is invalid"},
		{"34 r = s = n", func(*draft) {}, func(s string) string {
			return withSignature(s, append(sized(order), sized(order)...))
		}, "signature is invalid"},
		{"35 the twin of a valid ECDSA signature", func(*draft) {}, malleate, ""},
		{"36 ES384 with a P-256 key", func(d *draft) { d.Header["alg"], d.Method, d.Key = "ES384", jwt.SigningMethodES384, k.EC384 }, nil, `algorithm "ES384"`},
		{"37 other unused bits", func(*draft) {}, otherLastBit, "not base64url"},
		{"38 JWE", func(*draft) {}, func(s string) string { return s + ".AAAA.AAAA" }, "not three parts"},
		{"39 a token within", func(d *draft) { d.Header["cty"] = "JWT" }, nil, `"cty" is not accepted`},
		{"40 bound to a certificate by no digest", func(d *draft) { d.Claims["cnf"] = object{"x5t#S256": "AAAA"} }, nil, "unexpected type"},
		{"41 bound to a DPoP key by no digest", func(d *draft) { d.Claims["cnf"] = object{"jkt": "AAAA"} }, nil, "unexpected type"},
		{"41 bound to a key in another way", func(d *draft) { d.Claims["cnf"] = object{"kid": "AAAA"} }, nil, "unexpected type"},
		{"41 bound to a DPoP key, and in another way", func(d *draft) {
			d.Claims["cnf"] = object{"jkt": strings.Repeat("A", 43), "jku": "https://evil.test"}
		}, nil, "unexpected type"},
		{"41 bound in another way that looks alike", func(d *draft) { d.Claims["cnf"] = object{"x5t": strings.Repeat("A", 43)} }, nil, "unexpected type"},
		{"41 bound to a key, and in another way that looks alike", func(d *draft) {
			d.Claims["cnf"] = object{"jkt": strings.Repeat("A", 43), "x5t": strings.Repeat("A", 43)}
		}, nil, "unexpected type"},
		{"41 bound to a key by a number", func(d *draft) { d.Claims["cnf"] = object{"jkt": 1} }, nil, "unexpected type"},
		{"41 bound to a key by null", func(d *draft) { d.Claims["cnf"] = object{"jkt": nil} }, nil, "unexpected type"},
		{"41 bound to a key by a digest of other unused bits", func(d *draft) { d.Claims["cnf"] = object{"jkt": strings.Repeat("A", 42) + "B"} }, nil, "unexpected type"},
		{"41 bound to nothing", func(d *draft) { d.Claims["cnf"] = object{} }, nil, "unexpected type"},
		{"42 alg twice", func(d *draft) { d.RawHeader = jwstest.Insert(d.Header, `"alg":"none"`) }, nil, "given twice"},
		{"43 EdDSA, which is not allowed", func(d *draft) {
			d.Header["alg"], d.Header["kid"], d.Method, d.Key = "EdDSA", "ed", jwt.SigningMethodEdDSA, k.Ed
		}, nil, `algorithm "EdDSA"`},
		{"44 white space around it", func(*draft) {}, func(s string) string { return " " + s }, "not base64url"},
		{"44 a line break within it", func(*draft) {}, func(s string) string { return s[:8] + "\n" + s[8:] }, "not base64url"},
		{"45 null claims", func(d *draft) { d.RawClaims = "null" }, nil, "not a JSON object"},
		{"46 tenant that is no string", func(d *draft) { d.Claims["tenant"] = []string{"acme"} }, nil, "is not a name"},
		{"46 tenant missing", func(d *draft) { delete(d.Claims, "tenant") }, nil, "no tenant claim"},
		{"46 tenant empty", func(d *draft) { d.Claims["tenant"] = "" }, nil, "is not a name"},
		{"46 tenant null", func(d *draft) { d.Claims["tenant"] = nil }, nil, "is not a name"},
		{"46 tenant with a line break", func(d *draft) { d.Claims["tenant"] = "acme\nevil" }, nil, "is not a name"},
		{"47 RSA key of 1024 bits", func(d *draft) {
			d.Header["alg"], d.Header["kid"], d.Method, d.Key = "RS256", "weak", jwt.SigningMethodRS256, k.Weak
		}, nil, "no such key"},

		{"48 RSA, which is allowed", func(d *draft) {
			d.Header["alg"], d.Header["kid"], d.Method, d.Key = "RS256", "rsa", jwt.SigningMethodRS256, k.RSA
		}, nil, ""},
		{"49 an EC key asked to verify RSA", func(d *draft) {
			d.Header["alg"], d.Method, d.Key = "RS256", jwt.SigningMethodRS256, k.RSA
		}, nil, "not one for the token's algorithm"},
		{"50 another key", func(d *draft) { d.Key = k.EC2 }, nil, "signature is invalid"},
		{"51 a SPIFFE ID as subject", func(d *draft) { d.Claims["sub"] = "spiffe://example.org/gateway" }, nil, "SPIFFE ID"},
		{"52 sub null", func(d *draft) { d.Claims["sub"] = nil }, nil, "no subject"},
		{"53 sub that is an object", func(d *draft) { d.Claims["sub"] = object{"a": 1} }, nil, "unexpected type"},
		{"54 the claim typ says ID", func(d *draft) { d.Claims["typ"] = "ID" }, nil, "ID or refresh token"},
		{"55 at_hash, as in ID tokens", func(d *draft) { d.Claims["at_hash"] = "AAAA" }, nil, "ID or refresh token"},
		{"56 cnf null", func(d *draft) { d.Claims["cnf"] = nil }, nil, "bound to a key"},
		{"56 cnf a string", func(d *draft) { d.Claims["cnf"] = "jkt" }, nil, "bound to a key"},
		{"57 invalid UTF-8", func(d *draft) { d.RawClaims = jwstest.Insert(d.Claims, "\"x\":\"\xff\"") }, nil, "malformed JSON"},
		{"58 Typ beside typ", func(d *draft) { d.Header["Typ"] = "JWT" }, nil, "differ in case"},
		{"59 JKU", func(d *draft) { d.Header["JKU"] = "https://evil.test" }, nil, `"jku" in another spelling`},
		{"60 five actors", func(d *draft) { d.Claims["act"] = actors("a", "b", "c", "d", "e") }, nil, "more than 4 actors"},
		{"61 an actor without a name", func(d *draft) { d.Claims["act"] = object{"iss": "x"} }, nil, "actor without a name"},
		{"61 an actor whose name has a line break", func(d *draft) { d.Claims["act"] = actors("a\nb") }, nil, "actor without a name"},
		{"70 may_act that names someone with a line break", func(d *draft) { d.Claims["may_act"] = actors("a\nb") }, nil, "names nobody"},
		{"64 an actor that stands twice", func(d *draft) { d.Claims["act"] = actors("a", "b", "a") }, nil, "stands twice"},
		{"65 an actor that is the user", func(d *draft) { d.Claims["act"] = actors("a", "alice") }, nil, "stands twice"},
		{"66 the user as an actor that the issuer is said to name", func(d *draft) { d.Claims["act"] = object{"sub": "alice", "iss": idp.URL} }, nil, "stands twice"},
		{"67 an actor other than may_act names", func(d *draft) { d.Claims["act"], d.Claims["may_act"] = actors("a"), actors("b") }, nil, "may_act"},
		{"68 an earlier actor is the one that may_act names", func(d *draft) { d.Claims["act"], d.Claims["may_act"] = actors("a", "b"), actors("b") }, nil, "may_act"},
		{"69 an actor that another issuer names, other than may_act", func(d *draft) {
			d.Claims["act"], d.Claims["may_act"] = object{"sub": "a", "iss": "https://other.example"}, actors("a")
		}, nil, "may_act"},
		{"70 may_act that names nobody", func(d *draft) { d.Claims["may_act"] = object{} }, nil, "names nobody"},
		{"71 an actor that is a list", func(d *draft) { d.Claims["act"] = []string{"a"} }, nil, "unexpected type"},
		{"72 an actor spelt Act", func(d *draft) { d.RawClaims = jwstest.Insert(d.Claims, `"Act":{"sub":"a"}`) }, nil, "another spelling"},
		{"62 no signature", func(*draft) {}, func(s string) string { text, _ := cutLast(s); return text + "." }, "not three parts"},
		{"63 thousands of claims", func(d *draft) { d.RawClaims = jwstest.Insert(d.Claims, `"x":[`+strings.Repeat("1,", 2000)+"1]") }, nil, "more than 512"},
	} {
		d := newDraft(idp.URL)
		c.change(d)
		token := d.Sign(t)
		if c.after != nil {
			token = c.after(token)
		}
		p, err := v.Verify(t.Context(), token)
		switch {
		case c.reason == "" && (err != nil || p.Subject != "alice" || p.Tenant != "acme"):
			t.Errorf("%s: %+v, %v", c.claim, p, err)
		case c.reason != "" && (!errors.Is(err, identity.ErrBadCredential) || !strings.Contains(err.Error(), c.reason)):
			t.Errorf("%s: got %v, want %q", c.claim, err, c.reason)
		case c.reason != "" && !p.IsZero():
			t.Errorf("%s: refused, yet %+v", c.claim, p)
		}
	}
}

func actors(subjects ...string) object {
	var act object
	for i := len(subjects) - 1; i >= 0; i-- {
		next := object{"sub": subjects[i]}
		if act != nil {
			next["act"] = act
		}
		act = next
	}
	return act
}

func TestAPrincipalHoldsWhatTheTokenSays(t *testing.T) {
	idp := newProvider(t, jwkOf("ec", jwstest.Keys().EC.Public()))
	v := newVerifier(t, nil, idp.config())
	for _, c := range []struct {
		claim  string
		change func(object)
		check  func(identity.Principal) bool
	}{
		{"a person", func(object) {}, func(p identity.Principal) bool {
			return p.Kind == identity.Human && p.Method == identity.OIDC && p.Issuer == idp.URL && p.ClientID == "app" && p.Chain == nil && p.Workload == ""
		}},
		{"scopes in one string", func(object) {}, func(p identity.Principal) bool { return strings.Join(p.Scopes, "|") == "chat|models" }},
		{"scopes as a list", func(c object) { c["scope"] = []string{"chat", "models"} }, func(p identity.Principal) bool { return strings.Join(p.Scopes, "|") == "chat|models" }},
		{"scopes as scp", func(c object) { delete(c, "scope"); c["scp"] = []string{"chat"} }, func(p identity.Principal) bool { return strings.Join(p.Scopes, "|") == "chat" }},
		{"groups", func(c object) { c["groups"] = []string{"a b", "c"} }, func(p identity.Principal) bool { return strings.Join(p.Groups, "|") == "a b|c" }},
		{"a label", func(c object) { c["label"] = "restricted" }, func(p identity.Principal) bool { return p.Label == "restricted" }},
		{"a client with a token for itself", func(c object) { c["sub"] = "app" }, func(p identity.Principal) bool { return p.Kind == identity.Workload }},
		{"an app by Entra ID's word", func(c object) { c["idtyp"] = "app" }, func(p identity.Principal) bool { return p.Kind == identity.Workload }},
		{"a client by Auth0's word", func(c object) { c["gty"] = "client-credentials" }, func(p identity.Principal) bool { return p.Kind == identity.Workload }},
		{"azp where there is no client_id", func(c object) { delete(c, "client_id"); c["azp"] = "web" }, func(p identity.Principal) bool { return p.ClientID == "web" }},
		{"an audience as a list of one", func(c object) { c["aud"] = []string{"sallyport"} }, func(p identity.Principal) bool { return p.Subject == "alice" }},
		{"a fraction of a second", func(c object) { c["exp"] = float64(time.Now().Unix()) + 60.5 }, func(p identity.Principal) bool { return p.Expires.Nanosecond() != 0 }},
		{"a client by Auth0's spelling of itself", func(c object) { c["sub"] = "app@clients" }, func(p identity.Principal) bool { return p.Kind == identity.Workload }},
		{"a subject that is spelt like a client's, of no client", func(c object) { c["sub"] = "@clients"; delete(c, "client_id") }, func(p identity.Principal) bool { return p.Kind == identity.Human }},
		{"client_id where azp says the same", func(c object) { c["azp"] = "app" }, func(p identity.Principal) bool { return p.ClientID == "app" }},
		{"scopes in both forms", func(c object) { c["scp"] = []string{"embeddings"} }, func(p identity.Principal) bool { return strings.Join(p.Scopes, "|") == "chat|models|embeddings" }},
		{"no binding", func(object) {}, func(p identity.Principal) bool { return p.Bound == identity.Binding{} }},
		{"both bindings", func(c object) {
			c["cnf"] = object{"x5t#S256": strings.Repeat("A", 43), "jkt": strings.Repeat("B", 42) + "A"}
		}, func(p identity.Principal) bool {
			return p.Bound == identity.Binding{Certificate: strings.Repeat("A", 43), Key: strings.Repeat("B", 42) + "A"}
		}},
		{"a chain, user first and present actor last", func(c object) { c["act"] = actors("sub-agent", "agent") }, func(p identity.Principal) bool {
			return slices.Equal(p.Chain, []identity.Actor{
				{Type: "user", Subject: "alice", Issuer: idp.URL}, {Type: "agent", Subject: "agent", Issuer: idp.URL}, {Type: "agent", Subject: "sub-agent", Issuer: idp.URL},
			}) && p.Subject == "alice"
		}},
		{"a workload in the chain", func(c object) { c["act"] = actors("spiffe://example.org/a") }, func(p identity.Principal) bool {
			return len(p.Chain) == 2 && p.Chain[1] == identity.Actor{Type: "workload", Subject: "spiffe://example.org/a", Issuer: "example.org"}
		}},
		{"an actor that another issuer names", func(c object) { c["act"] = object{"sub": "alice", "iss": "https://other.example"} }, func(p identity.Principal) bool {
			return len(p.Chain) == 2 && p.Chain[1] == identity.Actor{Type: "agent", Subject: "alice", Issuer: "https://other.example"}
		}},
		{"four actors", func(c object) { c["act"] = actors("a", "b", "c", "d") }, func(p identity.Principal) bool { return len(p.Chain) == 5 }},
		{"the actor that may act", func(c object) { c["act"], c["may_act"] = actors("agent"), actors("agent") }, func(p identity.Principal) bool { return len(p.Chain) == 2 }},
		{"leave to act that nobody has taken", func(c object) { c["may_act"] = actors("agent") }, func(p identity.Principal) bool { return len(p.Chain) == 0 }},
	} {
		d := newDraft(idp.URL)
		c.change(d.Claims)
		if p, err := v.Verify(t.Context(), d.Sign(t)); err != nil || !c.check(p) {
			t.Errorf("%s: %+v, %v", c.claim, p, err)
		}
	}
}

// golang-jwt verifies an ES384 signature by a P-256 key, and so does crypto/ecdsa.
func TestACurveMustBeTheAlgorithms(t *testing.T) {
	k := jwstest.Keys()
	idp := newProvider(t, jwkOf("ec", k.EC.Public()))
	config := idp.config()
	config.Algorithms = []string{"ES256", "ES384"}
	v := newVerifier(t, nil, config)
	d := newDraft(idp.URL)
	d.Header["alg"] = "ES384"
	text, _ := cutLast(d.Sign(t))
	digest := sha512.Sum384([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, k.EC, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	signature := make([]byte, 96)
	r.FillBytes(signature[:48])
	s.FillBytes(signature[48:])
	if _, err := v.Verify(t.Context(), text+"."+jwstest.Base64(signature)); !errors.Is(err, identity.ErrBadCredential) {
		t.Errorf("got %v", err)
	}
}

func TestAFingerprintIsOfWhatWasSigned(t *testing.T) {
	idp := newProvider(t, jwkOf("ec", jwstest.Keys().EC.Public()))
	v := newVerifier(t, nil, idp.config())
	token := newDraft(idp.URL).Sign(t)
	one, err := v.Verify(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	twin, err := v.Verify(t.Context(), malleate(token))
	if err != nil {
		t.Fatal(err)
	}
	other := newDraft(idp.URL)
	other.Claims["jti"] = "other"
	third, err := v.Verify(t.Context(), other.Sign(t))
	if err != nil {
		t.Fatal(err)
	}
	if one.Fingerprint != twin.Fingerprint || one.Fingerprint == third.Fingerprint || len(one.Fingerprint) != 64 {
		t.Errorf("fingerprints %s, twin %s, other %s", one.Fingerprint, twin.Fingerprint, third.Fingerprint)
	}
}

func TestARequestsTokenIsFoundOrLeftToOthers(t *testing.T) {
	idp := newProvider(t, jwkOf("ec", jwstest.Keys().EC.Public()))
	v := newVerifier(t, nil, idp.config())
	token := newDraft(idp.URL).Sign(t)
	for _, c := range []struct {
		claim, name, value string
		err                error
	}{
		{"a bearer token", "Authorization", "Bearer " + token, nil},
		{"an x-api-key", "X-Api-Key", token, nil},
		{"no token", "Accept", "*/*", identity.ErrNoCredential},
		{"an API key is somebody else's", "Authorization", "Bearer sk-1234", identity.ErrNoCredential},
		{"five parts are ours, and bad", "Authorization", "Bearer a.b.c.d.e", identity.ErrBadCredential},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set(c.name, c.value)
		p, err := v.Authenticate(t.Context(), r)
		if !errors.Is(err, c.err) || p.IsZero() == (err == nil) {
			t.Errorf("%s: %+v, %v", c.claim, p, err)
		}
	}
}

func TestAnIssuerMayBeToldToTakeLess(t *testing.T) {
	idp := newProvider(t, jwkOf("ec", jwstest.Keys().EC.Public()))
	for _, c := range []struct {
		claim  string
		config func(*oidc.Config)
		token  func(*draft)
		ok     bool
	}{
		{"typ JWT where plain JWTs are taken", func(c *oidc.Config) { c.PlainJWT = true }, func(d *draft) { d.Header["typ"] = "JWT" }, true},
		{"no typ where plain JWTs are taken", func(c *oidc.Config) { c.PlainJWT = true }, func(d *draft) { delete(d.Header, "typ") }, true},
		{"no typ elsewhere", func(*oidc.Config) {}, func(d *draft) { delete(d.Header, "typ") }, false},
		{"a long typ of an access token", func(*oidc.Config) {}, func(d *draft) { d.Header["typ"] = "application/at+JWT" }, true},
		{"a listed client", func(c *oidc.Config) { c.Clients = []string{"app"} }, func(*draft) {}, true},
		{"an unlisted client", func(c *oidc.Config) { c.Clients = []string{"web"} }, func(*draft) {}, false},
		{"a token of no client where clients are listed", func(c *oidc.Config) { c.Clients = []string{"app"} }, func(d *draft) { delete(d.Claims, "client_id") }, false},
		{"a shorter life", func(c *oidc.Config) { c.MaxLifetime = time.Minute }, func(*draft) {}, false},
		{"a longer life", func(c *oidc.Config) { c.MaxLifetime = 3 * time.Hour }, func(d *draft) { d.Claims["exp"] = time.Now().Unix() + 2*3600 }, true},
		{"another tenant claim", func(c *oidc.Config) { c.TenantClaim = "https://acme/org" }, func(d *draft) { d.Claims["https://acme/org"] = "acme" }, true},
		{"an algorithm of another issuer", func(c *oidc.Config) { c.Algorithms = []string{"RS256", "ES256"} }, func(*draft) {}, true},
	} {
		config := idp.config()
		c.config(&config)
		v := newVerifier(t, nil, config)
		d := newDraft(idp.URL)
		c.token(d)
		if _, err := v.Verify(t.Context(), d.Sign(t)); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.claim, err)
		}
	}
}

func TestAMalformedConfigurationIsRefused(t *testing.T) {
	good := oidc.Config{URL: "https://idp.test", Audience: "a", Algorithms: []string{"ES256"}, TenantClaim: "t", JWKSURL: "http://127.0.0.1:1/keys"}
	for _, c := range []struct {
		claim  string
		change func(*oidc.Config)
	}{
		{"no issuer", func(c *oidc.Config) { c.URL = "" }},
		{"an issuer over http", func(c *oidc.Config) { c.URL = "http://idp.test" }},
		{"keys over http", func(c *oidc.Config) { c.JWKSURL = "http://idp.test/keys" }},
		{"keys from a name that ought to be loopback", func(c *oidc.Config) { c.JWKSURL = "http://localhost/keys" }},
		{"keys behind a user name", func(c *oidc.Config) { c.JWKSURL = "https://127.0.0.1@evil.test/keys" }},
		{"no audience", func(c *oidc.Config) { c.Audience = "" }},
		{"no tenant claim", func(c *oidc.Config) { c.TenantClaim = "" }},
		{"no algorithm", func(c *oidc.Config) { c.Algorithms = nil }},
		{"a symmetric algorithm", func(c *oidc.Config) { c.Algorithms = []string{"HS256"} }},
		{"no algorithm at all", func(c *oidc.Config) { c.Algorithms = []string{"none"} }},
		{"no keys", func(c *oidc.Config) { c.JWKSURL = "" }},
		{"keys in two places", func(c *oidc.Config) { c.JWKSFile = "keys.json" }},
		{"a key file that is not there", func(c *oidc.Config) { c.JWKSURL, c.JWKSFile = "", "/nonexistent/keys.json" }},
		{"a life of a week", func(c *oidc.Config) { c.MaxLifetime = 7 * 24 * time.Hour }},
		{"a negative life", func(c *oidc.Config) { c.MaxLifetime = -time.Hour }},
	} {
		config := good
		c.change(&config)
		if _, err := oidc.New(t.Context(), []oidc.Config{config}, oidc.Options{}); err == nil {
			t.Errorf("%s was accepted", c.claim)
		}
	}
	if _, err := oidc.New(t.Context(), []oidc.Config{good, good}, oidc.Options{}); err == nil {
		t.Error("one issuer twice was accepted")
	}
}

func TestTheDevelopmentIssuerIsOneAndStaysOutOfProduction(t *testing.T) {
	var log strings.Builder
	d, err := oidc.NewDevIssuer(oidc.DevConfig{Environment: "test", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if !strings.Contains(log.String(), "DEVELOPMENT ISSUER") {
		t.Errorf("no warning: %q", log.String())
	}
	v := newVerifier(t, nil, d.Config("sallyport"))
	token, err := d.Mint(object{"sub": "alice", "aud": "sallyport", "tenant": "acme"})
	if err != nil {
		t.Fatal(err)
	}
	if p, err := v.Verify(t.Context(), token); err != nil || p.Subject != "alice" || p.Tenant != "acme" {
		t.Errorf("%+v, %v", p, err)
	}
	logger := slog.New(slog.DiscardHandler)
	if _, err := oidc.NewDevIssuer(oidc.DevConfig{Environment: "production", Logger: logger}); !errors.Is(err, identity.ErrProduction) {
		t.Errorf("in production: %v", err)
	}
	if _, err := oidc.NewDevIssuer(oidc.DevConfig{Environment: "test", Logger: logger, Address: "0.0.0.0:0"}); err == nil {
		t.Error("served to the network")
	}
	if _, err := oidc.NewDevIssuer(oidc.DevConfig{Environment: "test"}); err == nil {
		t.Error("started without a place for its warning")
	}
}
