package gateway

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// claims are headers by which some server or other is told who is asking, from
// where, or where it stands.
var claims = []string{
	"X-Tenant", "X-Tenant-Id", "X-User", "X-User-Id", "X-Remote-User", "Remote-User", "Remote-Groups", "X-Forwarded-User", "X-Forwarded-Email", "X-Forwarded-Groups",
	"X-Forwarded-Preferred-Username", "X-Forwarded-Access-Token", "X-Auth-Request-User", "X-Auth-Request-Access-Token", "X-Authenticated-Userid", "X-Consumer-Username",
	"X-Goog-Authenticated-User-Email", "X-Ms-Client-Principal", "X-Amzn-Oidc-Data", "X-Amzn-Mtls-Clientcert", "X-Pomerium-Jwt-Assertion", "Cf-Access-Jwt-Assertion",
	"X-Forwarded-Client-Cert", "X-Forwarded-Tls-Client-Cert", "X-Client-Cert", "Client-Cert", "Client-Cert-Chain", "Ssl-Client-Cert", "X-Ssl-Client-Verify", "X-Ssl-Client-S-Dn",
	"X-Spiffe-Id", "X-Spiffe-Jwt", "X-Spiffe-Svid", "Spiffe-Id", "X-Envoy-External-Address", "X-Envoy-Peer-Metadata", "X-Envoy-Original-Path",
	"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Forwarded-Prefix", "X-Forwarded-Uri", "Forwarded", "Via", "X-Real-Ip", "True-Client-Ip",
	"X-Original-Url", "X-Rewrite-Url", "X-Http-Method-Override", "Sallyport-Ticket", "Sallyport-Tenant", "Sallyport-Subject", "Sallyport-Registration", "Sallyport-Decision-Id",
	"X-Data-Parallel-Rank", "X-Request-Id", "X-Correlation-Id", "Cookie", "Proxy-Authorization", "Impersonate-User", "Openai-Organization", "Openai-Project",
}

// forms are the ways to write a header's name that some server takes for it.
func forms(name string) []string {
	return []string{name, strings.ToLower(name), strings.ToUpper(name), strings.ReplaceAll(name, "-", "_"), strings.ReplaceAll(strings.ToLower(name), "-", "_"), strings.Replace(name, "-", "_", 1)}
}

// lie is what the headers say; whoever believes them repeats it.
const lie = "globex-by-header"

// toEngine are the headers that an engine gets.
var toEngine = []string{"Content-Type", "Content-Length", "Accept", "User-Agent", "Accept-Encoding"}

func TestNoHeaderThatNamesSomebodyReachesTheEngineHoweverItIsSpelt(t *testing.T) {
	s := serve(t)
	h2 := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots}, ForceAttemptHTTP2: true}
	t.Cleanup(h2.CloseIdleConnections)
	overHTTP2 := func(t *testing.T, body string, lines []string) answer {
		req := s.request(t.Context(), "acme", body)
		for _, line := range lines {
			name, value, _ := strings.Cut(line, ": ")
			if name != "Connection" { // HTTP/2 has none
				req.Header[name] = append(req.Header[name], value)
			}
		}
		resp, err := h2.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.ProtoMajor != 2 {
			t.Fatalf("spoken over %s", resp.Proto)
		}
		b, err := io.ReadAll(resp.Body)
		return answer{resp.StatusCode, resp.Header, string(b), err}
	}
	for protocol, ask := range map[string]func(*testing.T, string, []string) answer{"HTTP/1.1": s.raw, "HTTP/2": overHTTP2} {
		for form := range forms("") {
			for claim, lines := range map[string]func(name string) []string{
				"once":      func(name string) []string { return []string{name + ": " + lie} },
				"twice":     func(name string) []string { return []string{name + ": " + lie, name + ": " + lie + "2"} },
				"nominated": func(name string) []string { return []string{name + ": " + lie, "Connection: " + name} },
				"empty":     func(name string) []string { return []string{name + ": "} },
			} {
				t.Run(fmt.Sprintf("%s, spelling %d, %s", protocol, form, claim), func(t *testing.T) {
					var all []string
					for _, name := range claims {
						all = append(all, lines(forms(name)[form])...)
					}
					mark := s.newMark()
					a := ask(t, chat(mark), all)
					if a.status != http.StatusOK || len(s.engine.got(mark)) != 1 {
						t.Fatalf("%d %s", a.status, a.body)
					}
					s.wantClean(t, mark, a)
				})
			}
		}
	}
}

// wantClean checks what an engine got of a request, and what was recorded of it.
func (s *service) wantClean(t *testing.T, mark string, a answer) {
	t.Helper()
	for _, c := range s.engine.got(mark) {
		for name, values := range c.header {
			if !slices.Contains(toEngine, name) || strings.Contains(strings.Join(values, ""), lie) {
				t.Errorf("the engine got %s: %v", name, values)
			}
		}
		if strings.Contains(c.body, lie) {
			t.Errorf("the engine got %s", c.body)
		}
	}
	d := s.records(t, a.id())[0]
	if d.Caller.Tenant != "acme" || d.Caller.Method != "oidc" || strings.Contains(string(d.Input), lie) {
		t.Errorf("policy was asked about %+v: %s", d.Caller, d.Input)
	}
}

// raw sends a request of acme's over HTTP/1.1 with header lines as they are.
func (s *service) raw(t *testing.T, body string, lines []string) answer {
	t.Helper()
	c, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), &tls.Config{RootCAs: s.roots})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	head := append([]string{
		"POST /v1/chat/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json",
		fmt.Sprintf("Content-Length: %d", len(body)), "Authorization: Bearer " + s.tokens["acme"],
	}, lines...)
	if _, err := io.WriteString(c, strings.Join(head, "\r\n")+"\r\n\r\n"+body); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(b), err}
}

// toClient are the headers that a client gets.
var toClient = []string{"Content-Type", "Content-Length", "Date", "Sallyport-Decision-Id", "Sallyport-Conversation", "X-Content-Type-Options", "Retry-After", "Cache-Control", "X-Accel-Buffering", "Connection"}

func TestNoHeaderOfAnEngineReachesTheClientHoweverItIsSpelt(t *testing.T) {
	s := serve(t)
	h2 := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots}, ForceAttemptHTTP2: true}}
	t.Cleanup(h2.CloseIdleConnections)
	theirs := append([]string{"Set-Cookie", "Location", "Server", "X-Powered-By", "Www-Authenticate", "Strict-Transport-Security", "Access-Control-Allow-Origin", "Link", "Alt-Svc", "X-Engine"}, claims...)
	for claim, c := range map[string]struct {
		status int
		more   []string
	}{
		"whole": {http.StatusOK, nil}, "streamed": {http.StatusOK, []string{streamed}}, "refused": {http.StatusBadRequest, nil}, "failed": {http.StatusInternalServerError, nil},
	} {
		for protocol, client := range map[string]*http.Client{"HTTP/1.1": s.client, "HTTP/2": h2} {
			t.Run(claim+" over "+protocol, func(t *testing.T) {
				mark := s.newMark()
				s.engine.on(mark, func(w http.ResponseWriter, _ *http.Request, _ call, pass func()) {
					w.Header().Set("Link", "<"+lie+">")
					w.WriteHeader(http.StatusEarlyHints)
					for _, name := range theirs {
						for _, form := range forms(name) {
							w.Header()[form] = []string{lie, lie + "2"}
						}
					}
					w.Header()["Connection"] = []string{"X-Tenant, Sallyport-Decision-Id"}
					w.Header()["Trailer"] = []string{"X-Late"}
					defer func() { w.Header()["X-Late"] = []string{lie} }()
					if c.status == http.StatusOK {
						pass()
						return
					}
					w.WriteHeader(c.status)
					_, _ = io.WriteString(w, lie)
				})
				resp, err := client.Do(s.request(t.Context(), "acme", chat(mark, c.more...)))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = resp.Body.Close() }()
				body, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				for _, header := range []http.Header{resp.Header, resp.Trailer} {
					for name, values := range header {
						if !slices.Contains(toClient, name) || strings.Contains(strings.Join(values, ""), lie) || len(values) > 1 {
							t.Errorf("the client got %s: %v", name, values)
						}
					}
				}
				if strings.Contains(string(body), lie) {
					t.Errorf("the client got %s", body)
				}
				if resp.Header.Get("Sallyport-Decision-Id") == "" || (resp.StatusCode == http.StatusOK) != (c.status == http.StatusOK) || len(s.engine.got(mark)) == 0 {
					t.Errorf("%d %s, %d requests reached an engine", resp.StatusCode, body, len(s.engine.got(mark)))
				}
			})
		}
	}
}

func TestTwoHeadersThatCouldBothBeTheCredentialAreNone(t *testing.T) {
	s := serve(t)
	other := "Bearer " + s.tokens["globex"]
	for _, lines := range [][]string{
		{"Authorization: " + other},
		{"AUTHORIZATION: Bearer " + s.tokens["acme"]},
		{"X-Api-Key: " + s.tokens["globex"]},
		{"X_Api_Key: " + s.tokens["globex"]},
		{"x_api_key: " + s.tokens["acme"], "x-api-key: " + s.tokens["acme"]},
		{"X-API_KEY: " + s.tokens["globex"]},
	} {
		mark := s.newMark()
		if a := s.raw(t, chat(mark), lines); a.status != http.StatusUnauthorized || a.code() != "bad_credential" {
			name, _, _ := strings.Cut(lines[0], ":")
			t.Errorf("with another %s: %d %s", name, a.status, a.body)
		}
		s.unreached(mark)
	}
}
