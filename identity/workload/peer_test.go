package workload_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/identity/workload"
)

// ca is a certificate authority that issues whatever a test asks for.
type ca struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newCA(t *testing.T) *ca {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &ca{cert, key}
}

func (c *ca) leaf(t *testing.T, change func(*x509.Certificate)) *x509.Certificate {
	t.Helper()
	return c.leafOf(t, c.key, change)
}

func (c *ca) leafOf(t *testing.T, key *ecdsa.PrivateKey, change func(*x509.Certificate)) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Minute),
		URIs:     []*url.URL{{Scheme: "spiffe", Host: "example.org", Path: "/app"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	change(template)
	der, err := x509.CreateCertificate(rand.Reader, template, c.cert, key.Public(), c.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func spiffeURL(host, path string) []*url.URL {
	return []*url.URL{{Scheme: "spiffe", Host: host, Path: path}}
}

func TestALeafMustHoldWhatAnSVIDHolds(t *testing.T) {
	trusted, federated, foreign := newCA(t), newCA(t), newCA(t)
	bundles := x509bundle.NewSet(
		x509bundle.FromX509Authorities(domain, []*x509.Certificate{trusted.cert}),
		x509bundle.FromX509Authorities(partner, []*x509.Certificate{federated.cert}),
	)
	for _, c := range []struct {
		claim  string
		ca     *ca
		change func(*x509.Certificate)
		ok     bool
	}{
		{"a proper leaf passes", trusted, func(*x509.Certificate) {}, true},
		{"an extra DNS name is allowed", trusted, func(c *x509.Certificate) { c.DNSNames = []string{"app"} }, true},
		{"the trust domain's own ID is no workload", trusted, func(c *x509.Certificate) { c.URIs = spiffeURL("example.org", "") }, false},
		{"digitalSignature is required", trusted, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyAgreement }, false},
		{"clientAuth is required of a client", trusted, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }, false},
		{"an absent extended key usage is no permission", trusted, func(c *x509.Certificate) { c.ExtKeyUsage = nil }, false},
		{"an ID over 2048 bytes is refused", trusted, func(c *x509.Certificate) { c.URIs = spiffeURL("example.org", "/"+strings.Repeat("a", 2048)) }, false},
		{"a trust domain over 255 bytes is refused", trusted, func(c *x509.Certificate) { c.URIs = spiffeURL(strings.Repeat("a", 256), "/app") }, false},
		{"a leaf that may sign certificates is refused", trusted, func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign }, false},
		{"a leaf that may sign revocations is refused", trusted, func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCRLSign }, false},
		{"a second URI name of another kind is refused", trusted, func(c *x509.Certificate) {
			c.URIs = append(c.URIs, &url.URL{Scheme: "https", Host: "example.org", Path: "/app"})
		}, false},
		{"a URI name of another scheme is refused", trusted, func(c *x509.Certificate) { c.URIs[0].Scheme = "https" }, false},
		{"a trust domain in capitals is refused", trusted, func(c *x509.Certificate) { c.URIs = spiffeURL("EXAMPLE.org", "/app") }, false},
		{"an ID with a port is refused", trusted, func(c *x509.Certificate) { c.URIs = spiffeURL("example.org:443", "/app") }, false},
		{"an ID with a user is refused", trusted, func(c *x509.Certificate) { c.URIs[0].User = url.User("root") }, false},
		{"an ID with a query is refused", trusted, func(c *x509.Certificate) { c.URIs[0].RawQuery = "as=root" }, false},
		{"an ID with a fragment is refused", trusted, func(c *x509.Certificate) { c.URIs[0].Fragment = "root" }, false},
		{"an ID with an encoded path is refused", trusted, func(c *x509.Certificate) { c.URIs[0].RawPath, c.URIs[0].Path = "/%61pp", "/app" }, false},
		{"an ID that climbs is refused", trusted, func(c *x509.Certificate) { c.URIs[0].Path = "/x/../app" }, false},
		{"an ID with an empty segment is refused", trusted, func(c *x509.Certificate) { c.URIs[0].Path = "//app" }, false},
		{"an ID that ends in a slash is refused", trusted, func(c *x509.Certificate) { c.URIs[0].Path = "/app/" }, false},
		{"our trust domain by a federated one's authority is refused", federated, func(*x509.Certificate) {}, false},
		{"a federated trust domain by its own authority passes", federated, func(c *x509.Certificate) { c.URIs = spiffeURL("partner.example", "/app") }, true},
		{"a federated trust domain by our authority is refused", trusted, func(c *x509.Certificate) { c.URIs = spiffeURL("partner.example", "/app") }, false},
		{"two URI names are refused", trusted, func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) }, false},
		{"no URI name is refused", trusted, func(c *x509.Certificate) { c.URIs = nil }, false},
		{"another trust domain is refused", trusted, func(c *x509.Certificate) { c.URIs = spiffeURL("example.com", "/app") }, false},
		{"a CA certificate is refused", trusted, func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true }, false},
		{"a foreign authority is refused", foreign, func(*x509.Certificate) {}, false},
		{"an expired leaf is refused", trusted, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }, false},
		{"a leaf of tomorrow is refused", trusted, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(30 * time.Second) }, false},
	} {
		chain := []*x509.Certificate{c.ca.leaf(t, c.change)}
		id, err := workload.VerifyPeer(chain, bundles, x509.ExtKeyUsageClientAuth, time.Now())
		if (err == nil) != c.ok {
			t.Errorf("%s: got %v, %v", c.claim, id, err)
		}
		if err != nil && (!errors.Is(err, workload.ErrPeerIdentity) || !id.IsZero()) {
			t.Errorf("%s: refused with %v and ID %v", c.claim, err, id)
		}
	}
}

func TestALeafIsForItsSideOfTLSAndIssuesNothing(t *testing.T) {
	trusted := newCA(t)
	bundles := x509bundle.FromX509Authorities(domain, []*x509.Certificate{trusted.cert})
	client := trusted.leaf(t, func(*x509.Certificate) {})
	server := trusted.leaf(t, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
	issuer := newCA(t) // of the key of a leaf
	issuer.cert = trusted.leafOf(t, issuer.key, func(c *x509.Certificate) { c.Subject.CommonName = "leaf" })
	below := issuer.leaf(t, func(*x509.Certificate) {})
	for _, c := range []struct {
		claim string
		chain []*x509.Certificate
		usage x509.ExtKeyUsage
		ok    bool
	}{
		{"a client's as a client", []*x509.Certificate{client}, x509.ExtKeyUsageClientAuth, true},
		{"a client's as a server", []*x509.Certificate{client}, x509.ExtKeyUsageServerAuth, false},
		{"a server's as a server", []*x509.Certificate{server}, x509.ExtKeyUsageServerAuth, true},
		{"a server's as a client", []*x509.Certificate{server}, x509.ExtKeyUsageClientAuth, false},
		{"one that a leaf has issued", []*x509.Certificate{below, issuer.cert}, x509.ExtKeyUsageClientAuth, false},
		{"none", nil, x509.ExtKeyUsageClientAuth, false},
	} {
		if id, err := workload.VerifyPeer(c.chain, bundles, c.usage, time.Now()); (err == nil) != c.ok {
			t.Errorf("%s: %v, %v", c.claim, id, err)
		}
	}
}

func TestLongestIDs(t *testing.T) {
	const scheme = "spiffe://example.org/"
	for _, c := range []struct {
		claim string
		id    string
		ok    bool
	}{
		{"2,048 bytes", scheme + strings.Repeat("a", 2048-len(scheme)), true},
		{"2,049 bytes", scheme + strings.Repeat("a", 2049-len(scheme)), false},
		{"a trust domain of 255 bytes", "spiffe://" + strings.Repeat("a", 255) + "/a", true},
		{"a trust domain of 256 bytes", "spiffe://" + strings.Repeat("a", 256) + "/a", false},
		{"no path", "spiffe://example.org", false},
	} {
		if err := workload.CheckID(spiffeid.RequireFromString(c.id)); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.claim, err)
		}
	}
}

func TestAPeerWithoutAnSVIDHasNoID(t *testing.T) {
	trusted := newCA(t)
	for claim, chain := range map[string][]*x509.Certificate{
		"no certificate":          nil,
		"a certificate of no ID":  {trusted.leaf(t, func(c *x509.Certificate) { c.URIs = nil })},
		"a certificate of two":    {trusted.leaf(t, func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) })},
		"a certificate of a site": {trusted.leaf(t, func(c *x509.Certificate) { c.URIs[0].Scheme = "https" })},
	} {
		if id, err := workload.PeerID(tls.ConnectionState{PeerCertificates: chain}); !errors.Is(err, workload.ErrPeerIdentity) || !id.IsZero() {
			t.Errorf("%s: %v, %v", claim, id, err)
		}
	}
}

// Whoever admits anybody still admits nobody who proved nothing.
func TestAnAuthoriserDecidesOnlyOverWhatWasProven(t *testing.T) {
	a := newAuthority(t, time.Minute)
	server := a.Source(t, "/relay")
	anybody := func(spiffeid.ID) error { return nil }
	foreign := newCA(t)
	for claim, conf := range map[string]*tls.Config{
		"required": workload.ServerConfig(server, anybody),
		"optional": workload.OptionalClientConfig(workload.SVIDCertificate(server), server, anybody),
	} {
		leaf := foreign.leaf(t, func(*x509.Certificate) {})
		err := conf.VerifyConnection(tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}})
		if !errors.Is(err, workload.ErrPeerIdentity) {
			t.Errorf("%s: a foreign authority's certificate: %v", claim, err)
		}
	}
	if workload.AuthorizeIDs(spiffeid.ID{})(spiffeid.ID{}) == nil || workload.ExactID(spiffeid.ID{})(spiffeid.ID{}) == nil {
		t.Error("nobody is admitted as nobody")
	}
}

func TestOnlyARefusedCertificateIsAnIdentityError(t *testing.T) {
	for _, c := range []struct {
		claim string
		err   error
		want  bool
	}{
		{"nothing wrong", nil, false},
		{"a closed connection", io.EOF, false},
		{"a refused connection", &net.OpError{Op: "dial", Err: errors.New("connection refused")}, false},
		{"an error of the network that is a small number", &net.OpError{Op: "read", Err: testAlert(42)}, false},
		{"an alert about the protocol version", &net.OpError{Op: "remote error", Err: testAlert(70)}, false},
		{"an alert about a bad certificate", fmt.Errorf("write: %w", &net.OpError{Op: "remote error", Err: testAlert(42)}), true},
		{"an alert that a certificate is required", &net.OpError{Op: "remote error", Err: testAlert(116)}, true},
		{"our own refusal", fmt.Errorf("dial: %w", &workload.PeerIdentityError{}), true},
		{"our own expired SVID", fmt.Errorf("dial: %w", workload.ErrExpired), true},
	} {
		if got := workload.IsIdentityError(c.err); got != c.want {
			t.Errorf("%s: got %v", c.claim, got)
		}
	}
}

type testAlert uint8

func (testAlert) Error() string { return "alert" }

func TestAuthorizers(t *testing.T) {
	id := spiffeid.RequireFromString
	pattern := func(text string) workload.Pattern {
		p, err := workload.ParsePattern(text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	other := spiffeid.RequireTrustDomainFromString("example.com")
	for _, c := range []struct {
		claim     string
		authorize workload.Authorizer
		id        string
		ok        bool
	}{
		{"the exact ID is admitted", workload.ExactID(id("spiffe://example.org/a")), "spiffe://example.org/a", true},
		{"a child of it is not", workload.ExactID(id("spiffe://example.org/a")), "spiffe://example.org/a/b", false},
		{"the zero ID admits nobody", workload.ExactID(spiffeid.ID{}), "spiffe://example.org/a", false},
		{"an empty list admits nobody", workload.AuthorizeIDs(), "spiffe://example.org/a", false},
		{"no patterns admit nobody", workload.AuthorizePatterns(), "spiffe://example.org/a", false},
		{"the zero pattern admits nobody", workload.AuthorizePatterns(workload.Pattern{}), "spiffe://example.org/a", false},
		{"a star is one segment", workload.AuthorizePatterns(pattern("spiffe://example.org/pool/general/*")), "spiffe://example.org/pool/general/r0", true},
		{"a star is not no segment", workload.AuthorizePatterns(pattern("spiffe://example.org/pool/general/*")), "spiffe://example.org/pool/general", false},
		{"a star is not two segments", workload.AuthorizePatterns(pattern("spiffe://example.org/pool/general/*")), "spiffe://example.org/pool/general/r0/x", false},
		{"a longer name is another name", workload.AuthorizePatterns(pattern("spiffe://example.org/pool/general/*")), "spiffe://example.org/pool/general-evil/r0", false},
		{"a pattern is of one trust domain", workload.AuthorizePatterns(pattern("spiffe://example.org/pool/*")), "spiffe://example.com/pool/a", false},
		{"a star may stand in the middle", workload.AuthorizePatterns(pattern("spiffe://example.org/*/gw")), "spiffe://example.org/eu/gw", true},
		{"a domain admits its members", workload.AuthorizeDomains(domain), "spiffe://example.org/a", true},
		{"a domain admits no others", workload.AuthorizeDomains(domain), "spiffe://example.com/a", false},
		{"two domains admit both", workload.AuthorizeDomains(domain, other), "spiffe://example.com/a", true},
		{"no domain admits nobody", workload.AuthorizeDomains(), "spiffe://example.org/a", false},
	} {
		err := c.authorize(id(c.id))
		if (err == nil) != c.ok {
			t.Errorf("%s: got %v", c.claim, err)
		}
		var refusal *workload.PeerIdentityError
		if err != nil && (!errors.As(err, &refusal) || refusal.Got != id(c.id)) {
			t.Errorf("%s: the refusal does not say who: %v", c.claim, err)
		}
	}
}

func TestAMalformedPatternIsRefused(t *testing.T) {
	for _, text := range []string{
		"", "*", "spiffe://example.org", "spiffe://example.org/", "spiffe://*/a", "spiffe://example.org/a*",
		"spiffe://example.org/**", "spiffe://example.org/a//b", "spiffe://example.org/../b", "spiffe://Example.org/a",
		"example.org/a", "https://example.org/a", "spiffe://example.org/a?b", "spiffe://example.org/*/",
	} {
		if p, err := workload.ParsePattern(text); err == nil {
			t.Errorf("%q was read as %v", text, p)
		}
	}
}

// A pattern made from an ID by starring segments matches that ID, prints as it
// was read, and matches nothing with another number of segments.
func FuzzPattern(f *testing.F) {
	f.Add("spiffe://example.org/pool/general/r0", uint8(4))
	f.Add("spiffe://example.org/a", uint8(0))
	f.Add("spiffe://a/b/c/d", uint8(255))
	f.Fuzz(func(t *testing.T, text string, stars uint8) {
		id, err := spiffeid.FromString(text)
		if err != nil || id.Path() == "" {
			return
		}
		segments := strings.Split(id.Path()[1:], "/")
		for i := range segments {
			if stars>>(i%8)&1 == 1 {
				segments[i] = "*"
			}
		}
		pattern := id.TrustDomain().IDString() + "/" + strings.Join(segments, "/")
		p, err := workload.ParsePattern(pattern)
		if err != nil || p.String() != pattern || !p.Matches(id) {
			t.Fatalf("%q from %q: %v, %v", pattern, id, p, err)
		}
		longer, err := spiffeid.FromString(text + "/x")
		if err == nil && p.Matches(longer) {
			t.Fatalf("%q matches the longer %q", pattern, longer)
		}
	})
}
