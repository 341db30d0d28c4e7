package gateway

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/identity/dpop"
	"github.com/sallyport-ai/sallyport/identity/jws/jwstest"
)

// resourceURL is where clients of these tests believe the gateway to be.
const resourceURL = "https://llm.test"

// prove makes a proof of a client for a request to a path with a token.
func prove(tb testing.TB, c *jwstest.Client, path, token, nonce string) string {
	tb.Helper()
	return c.Prove(tb, resourceURL+path, token, func(claims jwt.MapClaims) {
		if nonce != "" {
			claims["nonce"] = nonce
		}
	})
}

// bind makes a token of acme's user that is bound as cnf says.
func (w *world) bind(tb testing.TB, cnf map[string]any) string {
	tb.Helper()
	claims := maps.Clone(callers["acme"])
	claims["cnf"] = cnf
	token, err := w.mint(claims)
	if err != nil {
		tb.Fatal(err)
	}
	return token
}

// provable makes a gateway take DPoP proofs, of which it remembers so many; 0 is as
// many as ever.
func provable(tb testing.TB, remembered int) func(*Config) {
	tb.Helper()
	proofs, err := dpop.New(dpop.Config{Origin: resourceURL, Spend: dpop.NewMemory(remembered, nil).Spend, Secret: [32]byte{1}})
	if err != nil {
		tb.Fatal(err)
	}
	return func(c *Config) {
		c.Live.Identity.Proofs = proofs.Judge
		c.Live.Resource = Resource{URL: resourceURL, Servers: []string{"https://idp.test"}, Algorithms: dpop.Algorithms, Nonce: proofs.Nonce}
	}
}

const chatPath = "/v1/chat/completions"

func TestAClientOfDPoPIsToldTheNonceAndGetsIn(t *testing.T) {
	s := serve(t, provable(t, 0))
	client := jwstest.NewClient()
	token := s.bind(t, map[string]any{"jkt": client.Thumbprint()})
	first := s.post("", chat(s.newMark()), "Authorization", "DPoP "+token, "DPoP", prove(t, client, chatPath, token, ""))
	s.want(first, http.StatusUnauthorized, "use_dpop_nonce")
	nonce := first.header.Get("DPoP-Nonce")
	if nonce == "" || !strings.Contains(strings.Join(first.header.Values("WWW-Authenticate"), "\n"), `DPoP realm="sallyport", algs="ES256 `) {
		t.Fatalf("told %v", first.header)
	}
	proof := prove(t, client, chatPath, token, nonce)
	second := s.post("", chat(s.newMark()), "Authorization", "DPoP "+token, "DPoP", proof)
	s.want(second, http.StatusOK, "")
	if second.header.Get("DPoP-Nonce") == "" {
		t.Error("no nonce for the next proof")
	}
	if d, _ := s.lone(second); d.Caller.Tenant != "acme" {
		t.Errorf("recorded as %+v", d.Caller)
	}
	for claim, header := range map[string][]string{
		"the proof once more":               {"Authorization", "DPoP " + token, "DPoP", proof},
		"the token as a bearer token":       {"Authorization", "Bearer " + token},
		"the token as an API key":           {"X-Api-Key", token},
		"the token as bearer, with a proof": {"Authorization", "Bearer " + token, "DPoP", prove(t, client, chatPath, token, nonce)},
		"another client's proof":            {"Authorization", "DPoP " + token, "DPoP", prove(t, jwstest.NewClient(), chatPath, token, nonce)},
		"a proof for another route":         {"Authorization", "DPoP " + token, "DPoP", prove(t, client, "/v1/embeddings", token, nonce)},
		"a proof for another token":         {"Authorization", "DPoP " + token, "DPoP", prove(t, client, chatPath, token+"x", nonce)},
		"two proofs":                        {"Authorization", "DPoP " + token, "DPoP", prove(t, client, chatPath, token, nonce), "DPoP", prove(t, client, chatPath, token, nonce)},
		"an unbound token with a proof":     {"Authorization", "DPoP " + s.tokens["acme"], "DPoP", prove(t, client, chatPath, s.tokens["acme"], nonce)},
	} {
		mark := s.newMark()
		if a := s.post("", chat(mark), header...); a.status != http.StatusUnauthorized || a.code() != "bad_credential" {
			t.Errorf("%s: %d %s", claim, a.status, a.body)
		}
		s.unreached(mark)
	}
}

func TestAStreamOfDPoPIsAskedForAgainWithoutAProof(t *testing.T) {
	s := serve(t, provable(t, 0), impatient(t))
	client := jwstest.NewClient()
	token := s.bind(t, map[string]any{"jkt": client.Thumbprint()})
	nonce := s.g.live.Load().oauth.nonce()
	mark := s.newMark()
	s.engine.on(mark, trickle(2500*time.Millisecond))
	a := s.post("", chat(mark, streamed), "Authorization", "DPoP "+token, "DPoP", prove(t, client, chatPath, token, nonce))
	if _, outcome := s.lone(a); !strings.Contains(a.body, "[DONE]") || outcome.Status != audit.StatusOK {
		t.Errorf("ended %s (%s): %s", outcome.Status, outcome.Reason, a.body[max(0, len(a.body)-300):])
	}
}

func TestAKeyThatFillsTheMemoryOfProofsHindersItselfAlone(t *testing.T) {
	s := serve(t, provable(t, 9))
	nonce := s.g.live.Load().oauth.nonce()
	asker := func() func() answer {
		client := jwstest.NewClient()
		token := s.bind(t, map[string]any{"jkt": client.Thumbprint()})
		return func() answer {
			return s.post("", chat(s.newMark()), "Authorization", "DPoP "+token, "DPoP", prove(t, client, chatPath, token, nonce))
		}
	}
	greedy, other := asker(), asker()
	for range 3 {
		s.want(greedy(), http.StatusOK, "")
	}
	a := greedy()
	s.want(a, http.StatusTooManyRequests, "rate_limited")
	if a.header.Get("Retry-After") == "" {
		t.Error("no word of when to come again")
	}
	s.want(other(), http.StatusOK, "")
}

func TestATokenBoundToACertificateComesOverItAlone(t *testing.T) {
	s := serve(t)
	own, err := s.source(t.Context(), "/tenant/acme/batch")
	if err != nil {
		t.Fatal(err)
	}
	svid, err := own.GetX509SVID()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(svid.Certificates[0].Raw)
	token := s.bind(t, map[string]any{"x5t#S256": base64.RawURLEncoding.EncodeToString(sum[:])})
	s.want(s.post("", chat(s.newMark()), "Authorization", "Bearer "+token), http.StatusUnauthorized, "bad_credential")
	over := *s
	over.client = s.clientAs(own)
	s.want(over.post("", chat(s.newMark()), "Authorization", "Bearer "+token), http.StatusOK, "")
	other := s.bind(t, map[string]any{"x5t#S256": base64.RawURLEncoding.EncodeToString(make([]byte, 32))})
	s.want(over.post("", chat(s.newMark()), "Authorization", "Bearer "+other), http.StatusUnauthorized, "bad_credential")
}

// A refusal is the same whatever is wrong with a token.
func TestARefusalSaysNothingOfTheToken(t *testing.T) {
	s := serve(t, provable(t, 0))
	client := jwstest.NewClient()
	nonce := s.g.live.Load().oauth.nonce()
	mint := func(change map[string]any) string {
		claims := maps.Clone(callers["acme"])
		maps.Copy(claims, change)
		token, err := s.mint(claims)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	good := s.tokens["acme"]
	const bearer = `Bearer realm="sallyport", resource_metadata="` + resourceURL + metadataPath + `"`
	dpopChallenge := `DPoP realm="sallyport", algs="` + strings.Join(dpop.Algorithms, " ") + `", resource_metadata="` + resourceURL + metadataPath + `"`
	for _, c := range []struct {
		claim  string
		header []string
		bearer string // what is added to the challenges
		dpop   string
	}{
		{"nothing presented", nil, "", ""},
		{"no token at all", []string{"Authorization", "Bearer x"}, `, error="invalid_token"`, ""},
		{"a forged token", []string{"Authorization", "Bearer " + good[:len(good)-8] + "AAAAAAAA"}, `, error="invalid_token"`, ""},
		{"an expired token", []string{"Authorization", "Bearer " + s.tokens["expired"]}, `, error="invalid_token"`, ""},
		{"a token of another issuer", []string{"Authorization", "Bearer " + mint(map[string]any{"iss": "https://evil.test"})}, `, error="invalid_token"`, ""},
		{"a token without a tenant", []string{"Authorization", "Bearer " + mint(map[string]any{"tenant": ""})}, `, error="invalid_token"`, ""},
		{"a bound token without its key", []string{"Authorization", "Bearer " + s.bind(t, map[string]any{"jkt": client.Thumbprint()})}, `, error="invalid_token"`, ""},
		{"two tokens", []string{"Authorization", "Bearer " + good, "Authorization", "Bearer " + good}, `, error="invalid_token"`, ""},
		{"another scheme", []string{"Authorization", "Basic YTpi"}, `, error="invalid_token"`, ""},
		{"a good proof with a forged token", []string{"Authorization", "DPoP a.b.c", "DPoP", prove(t, client, chatPath, "a.b.c", nonce)}, "", `, error="invalid_token"`},
		{"a good proof with a good token of another", []string{"Authorization", "DPoP " + good, "DPoP", prove(t, client, chatPath, good, nonce)}, "", `, error="invalid_token"`},
		{"a bad proof with a forged token", []string{"Authorization", "DPoP a.b.c", "DPoP", "a.b.c"}, "", `, error="invalid_dpop_proof"`},
		{"a bad proof with a good token", []string{"Authorization", "DPoP " + good, "DPoP", "a.b.c"}, "", `, error="invalid_dpop_proof"`},
		{"no proof", []string{"Authorization", "DPoP " + good}, "", `, error="invalid_dpop_proof"`},
	} {
		a := s.post("", chat(s.newMark()), c.header...)
		challenges := a.header.Values("WWW-Authenticate")
		want := []string{bearer + c.bearer, dpopChallenge}
		if c.dpop != "" {
			want = []string{dpopChallenge + c.dpop}
		}
		if a.status != http.StatusUnauthorized || !slices.Equal(challenges, want) {
			t.Errorf("%s: %d %q", c.claim, a.status, challenges)
		}
		const told = `{"error":{"message":"The credential was not accepted.","type":"authentication_error","code":"bad_credential","param":null}}` + "\n"
		if c.header != nil && a.body != told && !strings.Contains(a.body, "cannot be used together") {
			t.Errorf("%s: %s", c.claim, a.body)
		}
	}
}

func TestMetadataOfTheResourceIsThereForAllToRead(t *testing.T) {
	counted := new(kept)
	s := serve(t, provable(t, 0), func(c *Config) {
		c.Denials = audit.NewDenials(counted, 64)
		c.Live.Resource.Name, c.Live.Resource.Scopes, c.Live.Resource.DPoPRequired = "Models", []string{"chat"}, true
	})
	batch, err := s.source(t.Context(), "/tenant/acme/batch")
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"resource":"https://llm.test","authorization_servers":["https://idp.test"],"scopes_supported":["chat"],` +
		`"bearer_methods_supported":["header"],"resource_name":"Models",` +
		`"dpop_signing_alg_values_supported":["ES256","ES384","ES512","EdDSA","PS256","RS256"],"dpop_bound_access_tokens_required":true}`
	if !json.Valid([]byte(want)) {
		t.Fatal("the test's own document is malformed")
	}
	op := wire.Operation{Method: http.MethodGet, Path: metadataPath, Name: "metadata"}
	for _, c := range credentials {
		for _, v := range append(variants(op), variant{"a query", op.Method, op.Path + "?resource=x", http.StatusNotFound, "not_found"}) {
			client := s.client
			if c.svid != "" {
				client = s.clientAs(batch)
			}
			req, err := http.NewRequestWithContext(t.Context(), v.method, s.url+v.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range c.tokens {
				req.Header.Add("Authorization", "Bearer "+s.tokens[name])
			}
			as := *s
			as.client = client
			a := as.do(req)
			counts := counted.take(t, s.g.cfg.Denials)
			if v.status != 0 {
				if a.status != v.status || v.method != http.MethodHead && a.code() != v.code || len(counts) != 1 {
					t.Errorf("%s, %s: %d %s, counted %v", v.claim, c.claim, a.status, a.body, counts)
				}
				continue
			}
			if a.status != http.StatusOK || a.body != want || a.header.Get("Cache-Control") != "public, max-age=300" ||
				a.header.Get("Content-Type") != "application/json" || a.header.Get("Set-Cookie") != "" || len(counts) != 0 {
				t.Errorf("%s: %d %v %s, counted %v", c.claim, a.status, a.header, a.body, counts)
			}
		}
	}
}

func TestAGatewayThatTellsNothingHasNoMetadata(t *testing.T) {
	s := serve(t)
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		req, err := http.NewRequestWithContext(t.Context(), method, s.url+metadataPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		a := s.do(req)
		s.want(a, http.StatusNotFound, "not_found")
		if a.header.Get("Allow") != "" {
			t.Errorf("%s: Allow %q", method, a.header.Get("Allow"))
		}
	}
	if got := s.post("", chat(s.newMark())).header.Values("WWW-Authenticate"); len(got) != 1 || got[0] != `Bearer realm="sallyport"` {
		t.Errorf("challenges %q", got)
	}
}

func TestAResourceThatCannotBeIsRefused(t *testing.T) {
	nonce := func() string { return "" }
	for claim, r := range map[string]Resource{
		"proofs without a URL":    {Algorithms: dpop.Algorithms, Nonce: nonce},
		"proofs without nonces":   {URL: resourceURL, Algorithms: dpop.Algorithms},
		"a URL with a path":       {URL: resourceURL + "/v1"},
		"a URL over http":         {URL: "http://llm.test"},
		"a URL that ends a quote": {URL: `https://llm.test"`},
	} {
		if _, err := r.ready(); err == nil {
			t.Errorf("%s was accepted", claim)
		}
	}
}
