package test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/jws/jwstest"
	"github.com/sallyport-ai/sallyport/identity/oidc"
)

// provider is an OpenID Connect provider that is not ours, in test/idp.
type provider struct {
	url, port string
	keys      []jwstest.Object // private ones, of which the first signs
	file      string
	process   *process
}

var providerServes = regexp.MustCompile(`^provider serves (\S+)$`)

// newProvider starts one, or skips the test.
func newProvider(t *testing.T) *provider {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("needs node, which is not installed")
	}
	if _, err := os.Stat("idp/node_modules"); err != nil {
		t.Skip("needs the packages of test/idp: run `npm ci` there")
	}
	p := &provider{port: freePort(t), file: filepath.Join(t.TempDir(), "keys.json")}
	p.url = "http://127.0.0.1:" + p.port
	p.keys = []jwstest.Object{privateJWK(t, "first")}
	p.start(t)
	return p
}

func (p *provider) start(t *testing.T) {
	t.Helper()
	set, err := json.Marshal(map[string]any{"keys": p.keys})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, p.file, string(set))
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal(err)
	}
	p.process, _ = startFile(t, node, providerServes, "idp/provider.mjs", p.port, p.file)
}

func privateJWK(t *testing.T, id string) jwstest.Object {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	jwk := jwstest.JWK(key.Public())
	maps.Copy(jwk, jwstest.Object{"alg": "ES256", "use": "sig", "kid": id, "d": jwstest.Base64(secret)})
	return jwk
}

// grant asks the token endpoint.
func (p *provider) grant(t *testing.T, form url.Values, change func(*http.Request)) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/token", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if change != nil {
		change(req)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var granted struct {
		Token string `json:"access_token"`
		Error string `json:"error_description"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&granted); err != nil || granted.Token == "" {
		t.Fatalf("no token: %s %s %v", resp.Status, granted.Error, err)
	}
	return granted.Token
}

// batch is a token that a service got for itself.
func (p *provider) batch(t *testing.T) string {
	t.Helper()
	return p.grant(t, url.Values{"grant_type": {"client_credentials"}, "scope": {"chat"}}, func(r *http.Request) {
		r.SetBasicAuth("batch", "secret-of-batch")
	})
}

// login is a token of a person who signed in with a browser.
func (p *provider) login(t *testing.T, who string) string {
	t.Helper()
	verifier := rand.Text() + rand.Text()
	sum := sha256.Sum256([]byte(verifier))
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	const callback = "http://127.0.0.1/callback"
	code := ""
	browser := &http.Client{Jar: jar, Timeout: 20 * time.Second, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if strings.HasPrefix(r.URL.String(), callback) {
			code = r.URL.Query().Get("code")
			return http.ErrUseLastResponse
		}
		return nil
	}}
	page, err := browser.Get(p.url + "/auth?" + url.Values{
		"client_id": {"portal"}, "response_type": {"code"}, "redirect_uri": {callback}, "scope": {"openid chat"},
		"code_challenge": {base64.RawURLEncoding.EncodeToString(sum[:])}, "code_challenge_method": {"S256"},
	}.Encode())
	for range 4 { // pages to fill in: who it is, and what the client may
		if err != nil {
			t.Fatal(err)
		}
		html, readErr := io.ReadAll(page.Body)
		page.Body.Close()
		if code != "" {
			break
		}
		form := url.Values{"prompt": {"login"}, "login": {who}, "password": {"any"}}
		if strings.Contains(string(html), `value="consent"`) {
			form = url.Values{"prompt": {"consent"}}
		}
		action := regexp.MustCompile(`action="([^"]+)"`).FindStringSubmatch(string(html))
		if readErr != nil || action == nil {
			t.Fatalf("no page to fill in: %s %s", page.Status, html)
		}
		page, err = browser.PostForm(action[1], form)
	}
	if code == "" {
		t.Fatal("the provider gave no code")
	}
	return p.grant(t, url.Values{
		"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {callback}, "client_id": {"portal"}, "code_verifier": {verifier},
	}, nil)
}

// believes makes the world's gateway take the provider's tokens, at an address
// that is known beforehand, with more in its identity.
func (w *world) believes(t *testing.T, p *provider, more string) (address string) {
	t.Helper()
	address = "127.0.0.1:" + freePort(t)
	raw, err := os.ReadFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	issuer := regexp.MustCompile(`(?m)^  issuers: .*$`)
	text := issuer.ReplaceAllString(string(raw), fmt.Sprintf(
		"  issuers: [{url: %q, audience: sallyport, algorithms: [ES256], tenant_claim: tenant, jwks_url: %q}]\n  resource: {url: %q, scopes: [chat]}\n%s",
		p.url, p.url+"/jwks", "https://"+address, more))
	text = strings.Replace(text, `address: "127.0.0.1:0"`, fmt.Sprintf("address: %q", address), 1)
	writeFile(t, w.config, text)
	return address
}

// outcome asks until the answer has the status wanted.
func (w *world) outcome(t *testing.T, url, token string, want int) {
	t.Helper()
	client := w.client(t, nil)
	var a answer
	var err error
	for until := time.Now().Add(startTime); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		if a, err = ask(t.Context(), client, url, token, chat("Hello", false, 4)); err == nil && a.status == want {
			return
		}
	}
	t.Fatalf("want %d, the last answer: %+v, %v", want, a, err)
}

func TestTokensOfAProviderThatIsNotOurs(t *testing.T) {
	p := newProvider(t)
	w := newWorld(t)
	w.believes(t, p, "")
	_, gateway := w.serve(t)
	person := p.login(t, "alice@acme.example")
	id := awaitOK(t, w.client(t, nil), gateway, person)
	if d, _ := recordsOf(t, w.logDir, id); d.Caller.Tenant != "acme" || d.Caller.Kind != "human" || d.Caller.Issuer != p.url {
		t.Errorf("the person is recorded as %+v", d.Caller)
	}
	service := p.batch(t)
	id = awaitOK(t, w.client(t, nil), gateway, service)
	if d, _ := recordsOf(t, w.logDir, id); d.Caller.Kind != "workload" {
		t.Errorf("the service is recorded as %+v", d.Caller)
	}

	// The provider replaces its key: the new one is found by the first token of
	// it, and from then on the old one is worth nothing.
	p.process.kill()
	p.keys = []jwstest.Object{privateJWK(t, "second")}
	p.start(t)
	w.outcome(t, gateway, p.batch(t), http.StatusOK)
	w.outcome(t, gateway, service, http.StatusUnauthorized)

	// The provider is away: the keys that there are do.
	fresh := p.batch(t)
	p.process.kill()
	w.outcome(t, gateway, fresh, http.StatusOK)
}

func TestAnOAuthClientThatIsNotOursFindsItsWayWithDPoP(t *testing.T) {
	p := newProvider(t)
	w := newWorld(t)
	address := w.believes(t, p, "")
	_, gateway := w.serve(t)
	awaitOK(t, w.client(t, nil), gateway, p.batch(t))
	web, err := w.authority.ServerCertificate(nil, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", "idp/client.mjs", "https://"+address, "prover", "secret-of-prover")
	cmd.Env = append(os.Environ(), "NODE_EXTRA_CA_CERTS="+web.CA)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, said.String())
	}
	var seen struct {
		Resource struct {
			Resource string   `json:"resource"`
			Servers  []string `json:"authorization_servers"`
		} `json:"resource"`
		TokenType string `json:"token_type"`
		Nonces    int    `json:"nonces"`
		Statuses  []int  `json:"statuses"`
		Stolen    int    `json:"stolen"`
		Challenge string `json:"challenge"`
	}
	if err := json.Unmarshal(out.Bytes(), &seen); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if seen.Resource.Resource != "https://"+address || len(seen.Resource.Servers) != 1 || seen.Resource.Servers[0] != p.url {
		t.Errorf("the metadata is %+v", seen.Resource)
	}
	if seen.TokenType != "dpop" || seen.Nonces != 1 || fmt.Sprint(seen.Statuses) != "[200 200]" {
		t.Errorf("token type %s, %d nonces asked for, statuses %v", seen.TokenType, seen.Nonces, seen.Statuses)
	}
	if seen.Stolen != http.StatusUnauthorized || !strings.Contains(seen.Challenge, `error="invalid_token"`) || !strings.Contains(seen.Challenge, "resource_metadata=") {
		t.Errorf("as a bearer token: %d, %q", seen.Stolen, seen.Challenge)
	}
}

// A provider that stays away is believed for a day, and from its return on again.
func TestAProvidersOutageIsBorneForADayAndNoLonger(t *testing.T) {
	p := newProvider(t)
	// fetched is a verifier that fetched the keys so long ago.
	fetched := func(ago time.Duration) *oidc.Verifier {
		var behind atomic.Int64
		behind.Store(int64(ago))
		v, err := oidc.New(t.Context(), []oidc.Config{{
			URL: p.url, Audience: "sallyport", Algorithms: []string{"ES256"}, TenantClaim: "tenant", JWKSURL: p.url + "/jwks",
		}}, oidc.Options{Clock: func() time.Time { return time.Now().Add(-time.Duration(behind.Load())) }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(v.Close)
		behind.Store(0)
		return v
	}
	before, after := fetched(23*time.Hour), fetched(25*time.Hour)
	token := p.batch(t)
	p.process.kill()
	late := fetched(0) // it starts meanwhile, and knows no key
	for claim, c := range map[string]struct {
		v   *oidc.Verifier
		err error
	}{"keys of 23 hours ago": {before, nil}, "keys of 25 hours ago": {after, identity.ErrUnavailable}, "no keys": {late, identity.ErrUnavailable}} {
		if _, err := c.v.Verify(t.Context(), token); !errors.Is(err, c.err) || (c.err == nil) != (err == nil) || (c.v.Ready() == nil) != (c.err == nil) {
			t.Errorf("%s: %v, ready: %v", claim, err, c.v.Ready())
		}
	}
	p.start(t)
	token = p.batch(t)
	for claim, v := range map[string]*oidc.Verifier{"keys of 23 hours ago": before, "keys of 25 hours ago": after, "no keys": late} {
		if _, err := v.Verify(t.Context(), token); err != nil || v.Ready() != nil {
			t.Errorf("after its return, with %s: %v, ready: %v", claim, err, v.Ready())
		}
	}
}
