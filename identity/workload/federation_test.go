package workload_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/identity/workload/workloadtest"
	"github.com/sallyport-ai/sallyport/test/await"
)

var partner = spiffeid.RequireTrustDomainFromString("partner.example")

// endpoint is a bundle endpoint of the trust domain partner.
type endpoint struct {
	authority *workloadtest.Authority
	app       *workload.Source // a workload of the domain
	bundle    *spiffebundle.Bundle
	answer    atomic.Pointer[http.HandlerFunc]
	shows     atomic.Pointer[workload.GetCertificate] // where it proves an SVID
	config    workload.Federated
	complaint atomic.Bool // that it cannot be fetched from
}

// newEndpoint starts one that proves an SVID, or else a web certificate.
func newEndpoint(t *testing.T, spiffe bool) *endpoint {
	t.Helper()
	e := &endpoint{authority: workloadtest.New(t, partner, time.Minute), config: workload.Federated{TrustDomain: partner, Refresh: 20 * time.Millisecond}}
	e.app = e.authority.Source(t, "/app", func(c *workload.SourceConfig) { c.JWTBundles = true })
	x, err := e.app.GetX509BundleForTrustDomain(partner)
	if err != nil {
		t.Fatal(err)
	}
	j, err := e.app.GetJWTBundleForTrustDomain(partner)
	if err != nil {
		t.Fatal(err)
	}
	e.bundle = spiffebundle.FromX509Bundle(x)
	e.bundle.SetJWTAuthorities(j.JWTAuthorities())
	e.serves(t, e.bundle)
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if spiffe {
		e.config.EndpointID = spiffeid.RequireFromPath(partner, "/bundle-endpoint")
		own := workload.SVIDCertificate(e.authority.Source(t, e.config.EndpointID.Path()))
		e.shows.Store(&own)
		conf.GetCertificate = func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return (*e.shows.Load())(h) }
		e.config.BundleFile = filepath.Join(t.TempDir(), "partner.json")
		if err := os.WriteFile(e.config.BundleFile, marshal(t, e.bundle), 0o600); err != nil {
			t.Fatal(err)
		}
	} else {
		web, err := e.authority.ServerCertificate(nil, []net.IP{net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		if conf.GetCertificate, err = workload.FileCertificate(web.Cert, web.Key); err != nil {
			t.Fatal(err)
		}
		e.config.CAFile = web.CA
	}
	e.config.Endpoint = serveTLS(t, conf, func(w http.ResponseWriter, r *http.Request) { (*e.answer.Load())(w, r) })
	return e
}

func marshal(t *testing.T, b *spiffebundle.Bundle) []byte {
	t.Helper()
	raw, err := b.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func (e *endpoint) serves(t *testing.T, b *spiffebundle.Bundle) { e.says(string(marshal(t, b))) }

func (e *endpoint) says(body string) {
	e.does(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
}

func (e *endpoint) does(h http.HandlerFunc) { e.answer.Store(&h) }

// federated is a workload of ours that believes the endpoint.
func (e *endpoint) federated(t *testing.T) *workload.Source {
	t.Helper()
	return newAuthority(t, time.Minute).Source(t, "/gateway", func(c *workload.SourceConfig) {
		c.JWTBundles, c.Federated = true, []workload.Federated{e.config}
		c.Logger = slog.New(warned{slog.DiscardHandler, &e.complaint})
	})
}

// warned notes that there was a warning.
type warned struct {
	slog.Handler
	yes *atomic.Bool
}

func (w warned) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (w warned) Handle(context.Context, slog.Record) error {
	w.yes.Store(true)
	return nil
}

func knows(s *workload.Source) bool {
	_, err := s.GetX509BundleForTrustDomain(partner)
	return err == nil
}

func TestAFederatedDomainIsBelievedAndOnlyWhomItIsToldToAdmitIsAdmitted(t *testing.T) {
	t.Parallel()
	anyPartner, err := workload.ParsePattern("spiffe://partner.example/*")
	if err != nil {
		t.Fatal(err)
	}
	for profile, spiffe := range map[string]bool{"https_web": false, "https_spiffe": true} {
		t.Run(profile, func(t *testing.T) {
			e := newEndpoint(t, spiffe)
			ours := e.federated(t)
			await.That(t, "the partner's bundle", func() bool { return knows(ours) })
			// The partner believes us as well, or it would not talk.
			theirs := own{e.app, ours}
			for _, c := range []struct {
				claim string
				admit workload.Authorizer
				want  bool
			}{
				{"the ID that is named", workload.ExactID(e.app.ID()), true},
				{"a pattern of the domain", workload.AuthorizePatterns(anyPartner), true},
				{"our own domain only", workload.AuthorizeDomains(domain), false},
				{"the same path in our own domain", workload.ExactID(spiffeid.RequireFromPath(domain, "/app")), false},
			} {
				url := serveTLS(t, workload.ServerConfig(ours, c.admit), sayPeer)
				body, err := get(t, theirs, workload.ExactID(ours.ID()), url)
				if (err == nil) != c.want || c.want && body != e.app.ID().String() {
					t.Errorf("%s: %q, %v", c.claim, body, err)
				}
			}
			if b, err := ours.GetJWTBundleForTrustDomain(partner); err != nil || len(b.JWTAuthorities()) != 1 {
				t.Errorf("the keys of its JWT-SVIDs: %v", err)
			}
			if age, ok := ours.FederationAges()["partner.example"]; !ok || age > time.Minute {
				t.Errorf("the bundle's age is %v, %t", age, ok)
			}
			if !ours.Federated(partner) || ours.Federated(spiffeid.RequireTrustDomainFromString("other.example")) {
				t.Error("it does not know with whom it is federated")
			}
		})
	}
}

// own is a workload's material that also has another's bundles.
type own struct {
	*workload.Source
	other *workload.Source
}

func (o own) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	return o.other.GetX509BundleForTrustDomain(td)
}

func TestAnEndpointThatIsNotTheOneConfiguredIsNotBelieved(t *testing.T) {
	t.Parallel()
	other := newEndpoint(t, true) // of the same name, by another authority
	for _, c := range []struct {
		claim  string
		spiffe bool
		change func(*endpoint)
	}{
		{"one that proves another identity", true, func(e *endpoint) { e.config.EndpointID = spiffeid.RequireFromPath(partner, "/another") }},
		{"one of another authority of that name", true, func(e *endpoint) { e.config.Endpoint = other.config.Endpoint }},
		{"one with a web certificate where an identity is wanted", true, func(e *endpoint) { e.config.Endpoint = newEndpoint(t, false).config.Endpoint }},
		{"one that proves an identity where a web certificate is wanted", false, func(e *endpoint) { e.config.Endpoint = other.config.Endpoint }},
		{"one whose web certificate is not of the roots configured", false, func(e *endpoint) { e.config.CAFile = "" }},
		{"one that sends elsewhere", false, func(e *endpoint) {
			there := e.config.Endpoint + "/there"
			good := *e.answer.Load()
			e.does(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/there" {
					good(w, r)
					return
				}
				http.Redirect(w, r, there, http.StatusFound)
			})
		}},
		{"an error that has a good bundle for a body", false, func(e *endpoint) {
			e.does(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusInternalServerError)
				_, _ = w.Write(marshal(t, e.bundle))
			})
		}},
		{"a bundle without authorities", false, func(e *endpoint) { e.says(`{"keys":[]}`) }},
		{"no bundle", false, func(e *endpoint) { e.says(`<html>`) }},
		{"a bundle of more than a MiB", false, func(e *endpoint) {
			e.says(string(marshal(t, e.bundle)) + strings.Repeat(" ", 1<<20)) // and good, were it cut off
		}},
	} {
		t.Run(c.claim, func(t *testing.T) {
			t.Parallel()
			e := newEndpoint(t, c.spiffe)
			c.change(e)
			ours := e.federated(t)
			await.That(t, "a fetch that fails", func() bool { return e.complaint.Load() })
			if _, err := ours.GetX509BundleForTrustDomain(partner); !errors.Is(err, workload.ErrStale) {
				t.Errorf("it is believed: %v", err)
			}
			if _, err := ours.GetJWTBundleForTrustDomain(partner); !errors.Is(err, workload.ErrStale) {
				t.Errorf("its keys are: %v", err)
			}
		})
	}
}

func TestAnAuthorityThatLeftTheBundleIsNotBelieved(t *testing.T) {
	t.Parallel()
	e, next := newEndpoint(t, false), newEndpoint(t, false)
	ours := e.federated(t)
	await.That(t, "the partner's bundle", func() bool { return knows(ours) })
	url := serveTLS(t, workload.ServerConfig(ours, workload.ExactID(e.app.ID())), sayPeer)
	ask := func(s *workload.Source) bool {
		_, err := get(t, own{s, ours}, workload.ExactID(ours.ID()), url)
		return err == nil
	}
	if !ask(e.app) || ask(next.app) {
		t.Fatal("before the change the old authority is to be believed, and not the new")
	}
	e.serves(t, next.bundle)
	await.That(t, "the new authority to be believed", func() bool { return ask(next.app) })
	if ask(e.app) {
		t.Error("the authority that was removed is believed")
	}
}

func TestAnEndpointIsBelievedByTheBundleThatItGaveLast(t *testing.T) {
	t.Parallel()
	e, next := newEndpoint(t, true), newEndpoint(t, true)
	ours := e.federated(t)
	authorities := func() int {
		b, err := ours.GetX509BundleForTrustDomain(partner)
		if err != nil {
			return 0
		}
		return len(b.X509Authorities())
	}
	both := e.bundle.Clone()
	both.AddX509Authority(next.bundle.X509Authorities()[0])
	e.serves(t, both)
	await.That(t, "both authorities", func() bool { return authorities() == 2 })
	// Now the endpoint has its certificate from the new authority, and the old
	// one, by which it was believed the first time, is gone.
	e.shows.Store(next.shows.Load())
	e.serves(t, next.bundle)
	await.That(t, "the new authority alone", func() bool { return authorities() == 1 })
	if b, err := ours.GetX509BundleForTrustDomain(partner); err != nil || !b.HasX509Authority(next.bundle.X509Authorities()[0]) {
		t.Errorf("the authority that is left is not the new one: %v", err)
	}
}

func TestAKeyForCertificatesIsNoneForTokens(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, false)
	e.bundle.SetJWTAuthorities(nil)
	e.serves(t, e.bundle)
	ours := e.federated(t)
	await.That(t, "the partner's bundle", func() bool { return knows(ours) })
	if b, err := ours.GetJWTBundleForTrustDomain(partner); err != nil || len(b.JWTAuthorities()) != 0 {
		t.Errorf("the keys of its JWT-SVIDs: %v, %v", b.JWTAuthorities(), err)
	}
}

func TestABundleIsNotBelievedForEver(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, true)
	e.config.MaxStale = 2 * time.Second
	ours := e.federated(t)
	await.That(t, "the partner's bundle", func() bool { return knows(ours) })
	good := *e.answer.Load()
	e.does(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	if !knows(ours) {
		t.Error("a failed fetch unloads the bundle at once")
	}
	await.That(t, "the bundle to be stale", func() bool {
		_, err := ours.GetX509BundleForTrustDomain(partner)
		return errors.Is(err, workload.ErrStale)
	})
	if ours.Ready() != nil {
		t.Error("a partner's outage makes us unready")
	}
	e.does(good)
	await.That(t, "the bundle to be back", func() bool { return knows(ours) })
}

func TestAFederationThatCannotHoldIsRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, time.Minute)
	socket := a.At(t, "/gateway")
	id := spiffeid.RequireFromPath(partner, "/endpoint")
	const url = "https://partner.example/bundle"
	for _, c := range []struct {
		claim string
		all   []workload.Federated
		say   string
	}{
		{"with our own domain", []workload.Federated{{TrustDomain: domain}}, "our own"},
		{"with a domain twice", []workload.Federated{{TrustDomain: partner}, {TrustDomain: partner}}, "twice"},
		{"with nobody", []workload.Federated{{}}, "trust_domain"},
		{"over http", []workload.Federated{{TrustDomain: partner, Endpoint: "http://partner.example"}}, "https"},
		{"with a password in the URL", []workload.Federated{{TrustDomain: partner, Endpoint: "https://a:b@partner.example"}}, "https"},
		{"with an identity and nothing to believe it by", []workload.Federated{{TrustDomain: partner, Endpoint: url, EndpointID: id}}, "bundle_file"},
		{"with an identity of a third domain", []workload.Federated{{TrustDomain: partner, Endpoint: url, EndpointID: spiffeid.RequireFromPath(domain, "/x"), BundleFile: "x"}}, "endpoint_id"},
		{"with both profiles", []workload.Federated{{TrustDomain: partner, Endpoint: url, EndpointID: id, BundleFile: "x", CAFile: "y"}}, "ca_file"},
		{"with a bundle file for the Web PKI", []workload.Federated{{TrustDomain: partner, Endpoint: url, BundleFile: "x"}}, "bundle_file"},
		{"with files and no endpoint", []workload.Federated{{TrustDomain: partner, BundleFile: "x"}}, "bundle_endpoint"},
		{"with a missing bundle file", []workload.Federated{{TrustDomain: partner, Endpoint: url, EndpointID: id, BundleFile: "/nonexistent"}}, "bundle_file"},
		{"with a missing CA file", []workload.Federated{{TrustDomain: partner, Endpoint: url, CAFile: "/nonexistent"}}, "ca_file"},
		{"with a CA file that holds none", []workload.Federated{{TrustDomain: partner, Endpoint: url, CAFile: os.DevNull}}, "ca_file"},
		{"with a negative time", []workload.Federated{{TrustDomain: partner, Endpoint: url, MaxStale: -1}}, "negative"},
	} {
		s, err := workload.NewSource(t.Context(), workload.SourceConfig{Socket: socket, Federated: c.all})
		if err == nil {
			t.Errorf("%s: a source was made", c.claim)
			_ = s.Close()
			continue
		}
		if !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %v", c.claim, err)
		}
	}
}
