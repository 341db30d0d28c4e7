package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

func TestAProblemOfFederationIsNamedWithItsPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	for _, c := range []struct{ text, want string }{
		{`{}`, "identity.federation[0].trust_domain: required"},
		{`{trust_domain: "Not One"}`, "identity.federation[0].trust_domain: trust domain"},
		{`{trust_domain: p.example, bundle_endpoint: "http://p.example"}`, "identity.federation[0].bundle_endpoint: want an https URL"},
		{`{trust_domain: p.example, bundle_endpoint: "https://p.example", endpoint_id: "spiffe://p.example/e"}`, "identity.federation[0].bundle_file: required"},
		{`{trust_domain: p.example, bundle_endpoint: "https://p.example", ca_file: none}`, "identity.federation[0].ca_file: stat"},
		{`{trust_domain: p.example, refresh: 4s}`, "identity.federation[0].refresh: want at least 5s"},
		{`{trust_domain: p.example, refresh: -1s}`, "identity.federation[0].refresh: want a duration"},
		{`{trust_domain: p.example, max_stale: 1s}`, "identity.federation[0].max_stale: want at least 5s"},
		{`{trust_domain: p.example, refresh: 1h, max_stale: 59m}`, "identity.federation[0].max_stale: 59m0s is less than the 1h0m0s between"},
		{`{trust_domain: p.example, refresh: 25h}`, "identity.federation[0].max_stale: 24h0m0s is less than the 25h0m0s between"},
		{`{trust_domain: p.example, callers: ["spiffe://q.example/*"]}`, "identity.federation[0].callers[0]: spiffe://q.example/* is not of p.example"},
		{`{trust_domain: p.example, callers: ["p.example/*"]}`, "identity.federation[0].callers[0]: pattern"},
		{`{trust_domain: p.example}, {trust_domain: p.example}`, "identity.federation[1].trust_domain: p.example stands twice"},
	} {
		if err := os.WriteFile(path, []byte("identity: {federation: ["+c.text+"]}"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadGateway(path); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: no %q in:\n%v", c.text, c.want, err)
		}
	}
	if err := os.WriteFile(path, []byte(`identity: {federation: [{trust_domain: p.example, callers: ["spiffe://p.example/*"]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadRelay(path); err == nil || !strings.Contains(err.Error(), "identity.federation[0].callers: only gateways") {
		t.Errorf("a relay with callers: %v", err)
	}
}

func TestOfAForeignDomainOnlyTheCallersNamedAreAdmitted(t *testing.T) {
	own := spiffeid.RequireTrustDomainFromString("example.org")
	admit, err := callers(own, []federationConfig{
		{TrustDomain: "p.example", Callers: []string{"spiffe://p.example/team/*"}},
		{TrustDomain: "q.example"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]bool{
		"spiffe://example.org/anybody":  true,
		"spiffe://p.example/team/a":     true,
		"spiffe://p.example/team":       false,
		"spiffe://p.example/team/a/b":   false,
		"spiffe://p.example/other":      false,
		"spiffe://q.example/team/a":     false,
		"spiffe://example.org.evil/any": false,
	} {
		if err := admit(spiffeid.RequireFromString(id)); (err == nil) != want {
			t.Errorf("%s: %v", id, err)
		}
	}
	// The zero ID is of no domain.
	if admit(spiffeid.ID{}) == nil {
		t.Error("nobody is admitted")
	}
}
