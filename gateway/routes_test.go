package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/identity/workload"
)

// kept is a log that only remembers.
type kept struct {
	mu      sync.Mutex
	records []*audit.Record
}

func (k *kept) Append(_ context.Context, r *audit.Record) (audit.Position, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.records = append(k.records, r)
	return audit.Position{}, nil
}

// take returns what was counted since the last time, by code.
func (k *kept) take(t *testing.T, d *audit.Denials) map[string]uint64 {
	t.Helper()
	if err := d.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	counts := map[string]uint64{}
	for _, r := range k.records {
		for _, c := range r.Denials {
			counts[c.Code] += c.Count
		}
	}
	k.records = nil
	return counts
}

// credential is one way to come to the door. status is that of the exact route
// with it; 0: the caller gets in.
type credential struct {
	claim  string
	tokens []string
	query  string
	svid   string
	status int
	code   string
}

var credentials = []credential{
	{claim: "none", status: 401, code: "no_credential"},
	{claim: "an opaque token", tokens: []string{"sk-0123456789"}, status: 401, code: "bad_credential"},
	{claim: "a forged token", tokens: []string{"forged"}, status: 401, code: "bad_credential"},
	{claim: "an expired token", tokens: []string{"expired"}, status: 401, code: "bad_credential"},
	{claim: "a user's token", tokens: []string{"acme"}},
	{claim: "an agent's token", tokens: []string{"agent"}},
	{claim: "a certificate that is registered", svid: "/tenant/acme/batch"},
	{claim: "a certificate that is not registered", svid: "/tenant/acme/other", status: 403, code: "policy_denied"},
	{claim: "a token and a certificate of one tenant", tokens: []string{"acme"}, svid: "/tenant/acme/batch"},
	{claim: "a token and a certificate of two tenants", tokens: []string{"globex"}, svid: "/tenant/acme/batch", status: 401, code: "bad_credential"},
	{claim: "a token and a certificate that is not registered", tokens: []string{"acme"}, svid: "/tenant/acme/other", status: 401, code: "bad_credential"},
	{claim: "a forged token and a good certificate", tokens: []string{"forged"}, svid: "/tenant/acme/batch", status: 401, code: "bad_credential"},
	{claim: "two tokens", tokens: []string{"acme", "agent"}, status: 401, code: "bad_credential"},
	{claim: "one token twice", tokens: []string{"acme", "acme"}, status: 401, code: "bad_credential"},
	{claim: "a token in the URL", query: "access_token", status: 401, code: "bad_credential"},
	{claim: "a good token, and one in the URL", tokens: []string{"acme"}, query: "api_key", status: 401, code: "bad_credential"},
}

// variant is a way to spell a route. status is that of everybody; 0: it is the
// route.
type variant struct {
	claim, method, path string
	status              int
	code                string
}

// variants are the spellings of one operation, and what is close to it.
func variants(op wire.Operation) []variant {
	vs := []variant{{claim: "exact", method: op.Method, path: op.Path}}
	last := strings.LastIndex(op.Path, "/")
	for claim, path := range map[string]string{
		"a trailing slash":       op.Path + "/",
		"a doubled slash":        op.Path[:last] + "/" + op.Path[last:],
		"a doubled first slash":  "/" + op.Path,
		"an encoded slash":       op.Path[:last] + "%2F" + op.Path[last+1:],
		"an encoded letter":      op.Path[:last+1] + fmt.Sprintf("%%%X", op.Path[last+1]) + op.Path[last+2:],
		"a detour":               "/v1/x/.." + strings.TrimPrefix(op.Path, "/v1"),
		"an encoded detour":      "/v1/x/%2e%2e" + strings.TrimPrefix(op.Path, "/v1"),
		"a dot":                  "/v1/." + strings.TrimPrefix(op.Path, "/v1"),
		"upper case":             strings.ToUpper(op.Path),
		"a longer path":          op.Path + "/x",
		"a suffix of another":    "/x" + op.Path,
		"a semicolon":            op.Path + ";x=1",
		"an encoded end":         op.Path + "%00",
		"a route of another API": "/api" + strings.TrimPrefix(op.Path, "/v1"),
	} {
		vs = append(vs, variant{claim, op.Method, path, http.StatusNotFound, "not_found"})
	}
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "get", "PROPFIND"} {
		if method == op.Method {
			continue
		}
		vs = append(vs, variant{"the method " + method, method, op.Path, http.StatusMethodNotAllowed, "method_not_allowed"})
	}
	return vs
}

// Every route, in every spelling, with every credential: who gets in, what they
// are told, and what is left of it in the log.
func TestEveryRouteWithEveryCredential(t *testing.T) {
	counted := new(kept)
	s := serve(t, func(c *Config) { c.Denials = audit.NewDenials(counted, 64) })
	sources := map[string]*workload.Source{}
	for _, path := range []string{"/tenant/acme/batch", "/tenant/acme/other"} {
		var err error
		if sources[path], err = s.source(t.Context(), path); err != nil {
			t.Fatal(err)
		}
	}
	token := func(name string) string {
		switch name {
		case "forged":
			good := s.tokens["acme"]
			return good[:len(good)-8] + "AAAAAAAA"
		case "sk-0123456789":
			return name
		}
		return s.tokens[name]
	}
	cells := 0
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		for _, c := range credentials {
			client := s.clientAs(sources[c.svid])
			client.Transport.(*http.Transport).ForceAttemptHTTP2 = protocol == "HTTP/2.0"
			for _, op := range wire.Operations() {
				for _, v := range variants(op) {
					cells++
					cell := fmt.Sprintf("%s %s: %s, %s", protocol, op.Name, v.claim, c.claim)
					target := s.url + v.path
					if c.query != "" {
						target += "?" + c.query + "=" + s.tokens["acme"]
					}
					req, err := http.NewRequestWithContext(t.Context(), v.method, target, strings.NewReader("{}"))
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Content-Type", "application/json")
					for _, name := range c.tokens {
						req.Header.Add("Authorization", "Bearer "+token(name))
					}
					s.client = client
					s.cell(t, cell, counted, op, v, c, s.do(req))
				}
			}
		}
	}
	if cells < 2000 {
		t.Errorf("%d cells only", cells)
	}
}

func (s *service) cell(t *testing.T, cell string, counted *kept, op wire.Operation, v variant, c credential, a answer) {
	t.Helper()
	status, code := v.status, v.code
	if status == 0 {
		status, code = c.status, c.code
	}
	inside := v.status == 0 && (c.status == 0 || c.status == http.StatusForbidden)
	switch {
	case status != 0:
	case op.HasBody():
		status, code = http.StatusBadRequest, "invalid_request" // for the empty body
	default:
		status = http.StatusOK
	}
	if a.status != status {
		t.Errorf("%s: status %d, want %d: %s", cell, a.status, status, a.body)
	}
	shaped := op.Shape != wire.Anthropic || v.status != 0
	if v.method != http.MethodHead && (shaped && a.code() != code || !shaped && status >= 400 && !strings.HasPrefix(a.body, `{"type":"error"`)) {
		t.Errorf("%s: code %q, want %q: %s", cell, a.code(), code, a.body)
	}
	if allow := a.header.Get("Allow"); (allow == op.Method) != (status == http.StatusMethodNotAllowed) {
		t.Errorf("%s: Allow %q", cell, allow)
	}
	counts := counted.take(t, s.g.cfg.Denials)
	if !inside {
		if a.id() != "" {
			t.Errorf("%s: a decision id for somebody outside", cell)
		}
		if len(counts) != 1 || counts[code] != 1 {
			t.Errorf("%s: counted %v, want one %s", cell, counts, code)
		}
		return
	}
	if len(counts) != 0 {
		t.Errorf("%s: counted %v for somebody inside", cell, counts)
	}
	if a.id() == "" {
		t.Fatalf("%s: no decision id", cell)
	}
	s.tb = t
	d, o := s.lone(a)
	if allowed := status == http.StatusOK; (d.Status == audit.StatusAllowed) != allowed || (o != nil) != allowed || d.HTTP != status && !allowed {
		t.Errorf("%s: decision %s with status %d, outcome %v", cell, d.Status, d.HTTP, o)
	}
	if d.Caller.Tenant != "acme" && c.status == 0 {
		t.Errorf("%s: recorded tenant %q", cell, d.Caller.Tenant)
	}
}
