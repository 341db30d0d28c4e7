package identity_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/identity"
)

// holder is an authenticator for tokens that begin with prefix; what follows
// is the tenant, and "bad" is a credential that does not hold.
func holder(prefix string) identity.Authenticator {
	return func(_ context.Context, r *http.Request) (identity.Principal, error) {
		token, err := identity.PresentedToken(r)
		if err != nil {
			return identity.Principal{}, err
		}
		tenant, ok := strings.CutPrefix(token.Value, prefix)
		switch {
		case !ok:
			return identity.Principal{}, identity.ErrNoCredential
		case tenant == "bad":
			return identity.Principal{}, identity.ErrBadCredential
		case tenant == "nobody":
			return identity.Principal{}, nil
		}
		return identity.Principal{Subject: prefix, Tenant: tenant, Expires: time.Unix(2000, 0)}, nil
	}
}

// connected is an authenticator for a connection on which the workload was proven.
func connected(p identity.Principal, err error) identity.Authenticator {
	return func(context.Context, *http.Request) (identity.Principal, error) { return p, err }
}

func TestChain(t *testing.T) {
	app := identity.Principal{Subject: "spiffe://example.org/app", Workload: "spiffe://example.org/app", Expires: time.Unix(1000, 0)}
	none := connected(identity.Principal{}, identity.ErrNoCredential)
	tenantIs := func(tenant string) func(identity.Principal) string {
		return func(identity.Principal) string { return tenant }
	}
	const subjectOfApp = "spiffe://example.org/app"
	for _, c := range []struct {
		claim      string
		connection identity.Authenticator
		tenantOf   func(identity.Principal) string
		headers    []string
		subject    string
		err        error
	}{
		{"nothing presented is nobody", none, nil, nil, "", identity.ErrNoCredential},
		{"the first method that finds its kind decides", none, nil, []string{"Authorization", "Bearer a-acme"}, "a-", nil},
		{"a later method has its try", none, nil, []string{"Authorization", "Bearer b-acme"}, "b-", nil},
		{"a bad credential is not tried as a weaker kind", none, nil, []string{"Authorization", "Bearer a-bad"}, "", identity.ErrBadCredential},
		{"a credential that names nobody is bad", none, nil, []string{"Authorization", "Bearer a-nobody"}, "", identity.ErrBadCredential},
		{"a token of no known kind is bad, not absent", none, nil, []string{"Authorization", "Bearer zzz"}, "", identity.ErrBadCredential},
		{"another scheme is bad, not absent", none, nil, []string{"Authorization", "Basic YTpi"}, "", identity.ErrBadCredential},
		{"a client certificate alone is enough", connected(app, nil), nil, nil, subjectOfApp, nil},
		{"a bad certificate is final though the token holds", connected(app, identity.ErrBadCredential), nil, []string{"Authorization", "Bearer a-acme"}, "", identity.ErrBadCredential},
		{"a bad token is final though the certificate holds", connected(app, nil), tenantIs("acme"), []string{"Authorization", "Bearer a-bad"}, "", identity.ErrBadCredential},
		{"an unknown token is final though the certificate holds", connected(app, nil), tenantIs("acme"), []string{"Authorization", "Bearer zzz"}, "", identity.ErrBadCredential},
		{"certificate and token of one tenant are one caller", connected(app, nil), tenantIs("acme"), []string{"Authorization", "Bearer a-acme"}, "a-", nil},
		{"60 certificate and token of two tenants are refused", connected(app, nil), tenantIs("evil"), []string{"Authorization", "Bearer a-acme"}, "", identity.ErrAmbiguous},
		{"60 a certificate of no tenant agrees with nobody", connected(app, nil), tenantIs(""), []string{"Authorization", "Bearer a-acme"}, "", identity.ErrAmbiguous},
		{"nor does one that nobody can look up", connected(app, nil), nil, []string{"Authorization", "Bearer a-acme"}, "", identity.ErrAmbiguous},
		{"two of no tenant do not agree either", connected(app, nil), tenantIs(""), []string{"Authorization", "Bearer a-"}, "", identity.ErrAmbiguous},
		{"certificate and token that a registration gives one tenant are one caller", connected(app, nil), tenantIs("acme"), []string{"Authorization", "Bearer a-"}, "a-", nil},
		{"without client certificates the chain still works", nil, nil, []string{"Authorization", "Bearer a-acme"}, "a-", nil},
	} {
		r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", nil)
		for i := 0; i < len(c.headers); i += 2 {
			r.Header.Add(c.headers[i], c.headers[i+1])
		}
		chain := identity.Chain{Connection: c.connection, Request: []identity.Authenticator{holder("a-"), holder("b-")}, TenantOf: c.tenantOf}
		p, err := chain.Authenticate(t.Context(), r)
		if !errors.Is(err, c.err) || p.Subject != c.subject {
			t.Errorf("%s: got %q, %v", c.claim, p.Subject, err)
		}
		if c.connection != nil && err == nil && c.tenantOf != nil && (p.Workload != subjectOfApp || !p.Expires.Equal(app.Expires)) {
			t.Errorf("%s: the workload or its earlier end is lost: %+v", c.claim, p)
		}
		if err != nil && !p.IsZero() {
			t.Errorf("%s: somebody came with an error: %+v", c.claim, p)
		}
	}
	if _, err := (identity.Chain{}).Authenticate(t.Context(), httptest.NewRequest(http.MethodGet, "/", nil)); !errors.Is(err, identity.ErrNoCredential) {
		t.Errorf("the zero chain: %v", err)
	}
}

func TestPresentedToken(t *testing.T) {
	for _, c := range []struct {
		claim   string
		url     string
		headers []string
		want    identity.Token
		err     error
	}{
		{"no header, no credential", "/", nil, identity.Token{}, identity.ErrNoCredential},
		{"a bearer token", "/", []string{"Authorization", "Bearer abc"}, identity.Token{Scheme: identity.Bearer, Value: "abc"}, nil},
		{"the scheme's case does not matter", "/", []string{"Authorization", "bEARER abc"}, identity.Token{Scheme: identity.Bearer, Value: "abc"}, nil},
		{"a DPoP token keeps its scheme and proof", "/", []string{"Authorization", "DPoP abc", "DPoP", "p"}, identity.Token{Scheme: identity.DPoP, Value: "abc", Proof: "p"}, nil},
		{"a DPoP token without a proof", "/", []string{"Authorization", "DPoP abc"}, identity.Token{}, identity.ErrProof},
		{"a proof of another spelling", "/", []string{"Authorization", "DPoP abc", "D_PoP", "p"}, identity.Token{}, identity.ErrProof},
		{"a bearer token with a proof", "/", []string{"Authorization", "Bearer abc", "DPoP", "p"}, identity.Token{}, identity.ErrProof},
		{"an API key with a proof", "/", []string{"x-api-key", "abc", "DPoP", "p"}, identity.Token{}, identity.ErrProof},
		{"a proof alone is no credential", "/", []string{"DPoP", "p"}, identity.Token{}, identity.ErrNoCredential},
		{"an empty proof", "/", []string{"Authorization", "DPoP abc", "DPoP", ""}, identity.Token{}, identity.ErrProof},
		{"two proofs joined by a comma", "/", []string{"Authorization", "DPoP abc", "DPoP", "p, q"}, identity.Token{}, identity.ErrProof},
		{"a proof of 8 KiB", "/", []string{"Authorization", "DPoP abc", "DPoP", strings.Repeat("a", 8<<10)}, identity.Token{Scheme: identity.DPoP, Value: "abc", Proof: strings.Repeat("a", 8<<10)}, nil},
		{"a token of 16 KiB", "/", []string{"Authorization", "Bearer " + strings.Repeat("a", 16<<10)}, identity.Token{Scheme: identity.Bearer, Value: strings.Repeat("a", 16<<10)}, nil},
		{"a proof of more than 8 KiB", "/", []string{"Authorization", "DPoP abc", "DPoP", strings.Repeat("a", 8<<10+1)}, identity.Token{}, identity.ErrProof},
		{"an x-api-key counts as bearer", "/", []string{"x-api-key", "abc"}, identity.Token{Scheme: identity.Bearer, Value: "abc"}, nil},
		{"the same token twice is one", "/", []string{"Authorization", "Bearer abc", "x-api-key", "abc"}, identity.Token{Scheme: identity.Bearer, Value: "abc"}, nil},
		{"a DPoP token given twice stays DPoP", "/", []string{"Authorization", "DPoP abc", "x-api-key", "abc", "DPoP", "p"}, identity.Token{Scheme: identity.DPoP, Value: "abc", Proof: "p"}, nil},
		{"two different tokens", "/", []string{"Authorization", "Bearer abc", "x-api-key", "abd"}, identity.Token{}, identity.ErrAmbiguous},
		{"59 two authorization headers", "/", []string{"Authorization", "Bearer abc", "Authorization", "Bearer abc"}, identity.Token{}, identity.ErrAmbiguous},
		{"two api keys", "/", []string{"x-api-key", "abc", "x-api-key", "abc"}, identity.Token{}, identity.ErrAmbiguous},
		{"two spellings of one header", "/", []string{"x-api-key", "abc", "X_Api_Key", "abc"}, identity.Token{}, identity.ErrAmbiguous},
		{"two proofs", "/", []string{"Authorization", "DPoP abc", "DPoP", "p", "DPoP", "q"}, identity.Token{}, identity.ErrAmbiguous},
		{"59 schemes joined by a comma", "/", []string{"Authorization", "Bearer abc, Bearer abd"}, identity.Token{}, identity.ErrBadCredential},
		{"a trailing space", "/", []string{"Authorization", "Bearer abc "}, identity.Token{}, identity.ErrBadCredential},
		{"two spaces", "/", []string{"Authorization", "Bearer  abc"}, identity.Token{}, identity.ErrBadCredential},
		{"an empty header", "/", []string{"Authorization", ""}, identity.Token{}, identity.ErrBadCredential},
		{"an empty token", "/", []string{"Authorization", "Bearer "}, identity.Token{}, identity.ErrBadCredential},
		{"an empty key", "/", []string{"x-api-key", ""}, identity.Token{}, identity.ErrBadCredential},
		{"a token without a scheme", "/", []string{"Authorization", "abc"}, identity.Token{}, identity.ErrBadCredential},
		{"a token of 16 KiB and a byte", "/", []string{"Authorization", "Bearer " + strings.Repeat("a", 16<<10+1)}, identity.Token{}, identity.ErrBadCredential},
		{"59 a token in the URL", "/?access_token=abc", []string{"Authorization", "Bearer abc"}, identity.Token{}, identity.ErrBadCredential},
		{"59 a token in the URL, disguised", "/?Authorization=abc", nil, identity.Token{}, identity.ErrBadCredential},
	} {
		r := httptest.NewRequest(http.MethodPost, c.url, nil)
		for i := 0; i < len(c.headers); i += 2 {
			name := c.headers[i]
			if !strings.Contains(name, "_") {
				name = http.CanonicalHeaderKey(name)
			}
			r.Header[name] = append(r.Header[name], c.headers[i+1])
		}
		if got, err := identity.PresentedToken(r); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: got %+v, %v", c.claim, got, err)
		}
	}
}

// As of a request that a client makes by hand, and not one from a server.
func TestARequestWithoutAURLHoldsNoTokenInIt(t *testing.T) {
	r := &http.Request{Header: http.Header{"Authorization": {"Bearer abc"}}}
	if got, err := identity.PresentedToken(r); err != nil || got.Value != "abc" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestDevelopmentPartsKnowProductionByItsAbsence(t *testing.T) {
	for environment, want := range map[string]error{
		"demo": nil, "development": nil, "test": nil,
		"production": identity.ErrProduction, "prod": identity.ErrProduction, "": identity.ErrProduction, "Demo": identity.ErrProduction,
	} {
		if err := identity.RefuseProduction(environment); !errors.Is(err, want) {
			t.Errorf("%q: %v", environment, err)
		}
	}
}

// What a method finds bad, and what could be two credentials, is not shown to a
// method that would take anything.
func TestABadCredentialIsShownToNobodyElse(t *testing.T) {
	anything := connected(identity.Principal{Subject: "anybody", Tenant: "acme"}, nil)
	for _, c := range []struct {
		claim   string
		first   identity.Authenticator
		headers []string
	}{
		{"a bad credential", connected(identity.Principal{}, identity.ErrBadCredential), []string{"Bearer a.b.c"}},
		{"one that cannot be checked", connected(identity.Principal{}, identity.ErrUnavailable), []string{"Bearer a.b.c"}},
		{"one that names nobody", connected(identity.Principal{}, nil), []string{"Bearer a.b.c"}},
		{"two headers", connected(identity.Principal{}, identity.ErrNoCredential), []string{"Bearer a.b.c", "Bearer a.b.c"}},
		{"another scheme", connected(identity.Principal{}, identity.ErrNoCredential), []string{"Basic YTpi"}},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header["Authorization"] = c.headers
		chain := identity.Chain{Request: []identity.Authenticator{c.first, anything}}
		if p, err := chain.Authenticate(t.Context(), r); err == nil || !p.IsZero() {
			t.Errorf("%s: %+v, %v", c.claim, p, err)
		}
	}
}

// Whether a token was withdrawn is asked of every method's, with the tenant that
// a registration gives, before its proof is used up.
func TestAWithdrawnTokenIsRefusedWhateverMethodReadIt(t *testing.T) {
	for _, refusal := range []error{identity.ErrBadCredential, identity.ErrUnavailable} {
		spent, asked := false, ""
		chain := identity.Chain{
			Request:  []identity.Authenticator{connected(identity.Principal{Subject: "alice", Bound: identity.Binding{Key: "k"}}, nil)},
			Revoked:  func(_ identity.Principal, tenant string) error { asked = tenant; return refusal },
			TenantOf: func(identity.Principal) string { return "acme" },
			Proofs: func(*http.Request, identity.Token) (identity.Proof, error) {
				return identity.Proof{Key: "k", Spend: func(context.Context, string) error { spent = true; return nil }}, nil
			},
		}
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Authorization", "DPoP a.b.c")
		r.Header.Set("DPoP", "p")
		if p, err := chain.Authenticate(t.Context(), r); !errors.Is(err, refusal) || !p.IsZero() || spent || asked != "acme" {
			t.Errorf("%v: %+v, %v, spent %v, asked of %q", refusal, p, err, spent, asked)
		}
		if p, err := chain.Again(t.Context(), r, identity.Principal{Bound: identity.Binding{Key: "k"}}); !errors.Is(err, refusal) || !p.IsZero() {
			t.Errorf("again, %v: %+v, %v", refusal, p, err)
		}
	}
}

// A certificate and a token that both name a workload name the same, and last
// for as long as the shorter of the two.
func TestACertificateAndATokenAgreeOnTheWorkloadAndTheEnd(t *testing.T) {
	const app, other = "spiffe://example.org/app", "spiffe://example.org/other"
	soon, late := time.Unix(1000, 0), time.Unix(2000, 0)
	for _, c := range []struct {
		claim                 string
		token                 string
		connection, tokenEnds time.Time
		want                  time.Time
		err                   error
	}{
		{"one workload, the token ending first", app, late, soon, soon, nil},
		{"one workload, the certificate ending first", app, soon, late, soon, nil},
		{"a token of no workload", "", late, soon, soon, nil},
		{"a token that does not end", app, soon, time.Time{}, soon, nil},
		{"a certificate that does not end", app, time.Time{}, soon, soon, nil},
		{"60 two workloads of one tenant", other, late, late, time.Time{}, identity.ErrAmbiguous},
	} {
		chain := identity.Chain{
			Connection: connected(identity.Principal{Subject: app, Workload: app, Expires: c.connection}, nil),
			Request:    []identity.Authenticator{connected(identity.Principal{Subject: "s", Workload: c.token, Expires: c.tokenEnds}, nil)},
			TenantOf:   func(identity.Principal) string { return "acme" },
		}
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Authorization", "Bearer a.b.c")
		p, err := chain.Authenticate(t.Context(), r)
		if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) || !p.Expires.Equal(c.want) || err == nil && p.Workload != app {
			t.Errorf("%s: %+v, %v", c.claim, p, err)
		}
	}
}
