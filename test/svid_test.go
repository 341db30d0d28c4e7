package test

import (
	"crypto/tls"
	"net/http"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/identity/workload/workloadtest"
)

// showing is a client that proves the identity that a Workload API gives out.
func (w *world) showing(t *testing.T, socket string) *http.Client {
	t.Helper()
	source, err := workload.NewSource(t.Context(), workload.SourceConfig{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := source.Close(); err != nil {
			t.Error(err)
		}
	})
	return w.client(t, func(c *tls.Config) {
		// Whatever authorities the server would like to see: shown is what there is.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate(source) }
	})
}

func certificate(source x509svid.Source) (*tls.Certificate, error) {
	svid, err := source.GetX509SVID()
	if err != nil {
		return nil, err
	}
	c := &tls.Certificate{PrivateKey: svid.PrivateKey}
	for _, cert := range svid.Certificates {
		c.Certificate = append(c.Certificate, cert.Raw)
	}
	return c, nil
}

func TestAClientCertificateFromTheWorkloadAPIIsACaller(t *testing.T) {
	w := newWorld(t)
	_, url := w.serve(t)
	batch := w.showing(t, w.socket(t, "spiffe://"+trustDomain+"/tenant/acme/batch"))
	alice, bob := w.token(t, "alice@acme.example", "acme"), w.token(t, "bob@globex.example", "globex")

	decision, outcome := recordsOf(t, w.logDir, awaitOK(t, batch, url, ""))
	if c := decision.Caller; c.Method != "x509_svid" || c.Registration != "acme-batch" || c.Tenant != "acme" || c.Kind != "workload" {
		t.Errorf("the record's caller is %+v", c)
	}
	if outcome.Outcome.Peer != decision.Placement.Replica {
		t.Errorf("placed on %s, the peer was %s", decision.Placement.Replica, outcome.Outcome.Peer)
	}

	stranger := w.showing(t, w.socket(t, "spiffe://"+trustDomain+"/tenant/acme/unheard-of"))
	tool := []byte(`{"model":"small","messages":[{"role":"user","content":"Look it up."}],"tools":[{"type":"function","function":{"name":"lookup"}}]}`)
	hello := chat("Hello?", false, 4)
	for _, c := range []struct {
		claim  string
		client *http.Client
		token  string
		body   []byte
		status int
		code   string
	}{
		{"its registration's classes bound what it may do", batch, "", tool, http.StatusForbidden, "policy_denied"},
		{"with a token of the same tenant it is one caller", batch, alice, hello, http.StatusOK, ""},
		{"with a token of another tenant it is nobody", batch, bob, hello, http.StatusUnauthorized, "bad_credential"},
		{"a bad token is not made good by it", batch, alice[:len(alice)-8] + "AAAAAAAA", hello, http.StatusUnauthorized, "bad_credential"},
		{"an identity without a registration has no right", stranger, "", hello, http.StatusForbidden, "policy_denied"},
		{"no credential at all is nobody", w.client(t, nil), "", hello, http.StatusUnauthorized, "no_credential"},
	} {
		t.Run(c.claim, func(t *testing.T) {
			a, err := ask(t.Context(), c.client, url, c.token, c.body)
			if err != nil || a.status != c.status || a.code != c.code {
				t.Errorf("got %d %q, %v; want %d %q", a.status, a.code, err, c.status, c.code)
			}
		})
	}

	t.Run("the same name from another authority opens no connection", func(t *testing.T) {
		forger := workloadtest.New(t, spiffeid.RequireTrustDomainFromString(trustDomain), 0)
		socket := forger.At(t, "/tenant/acme/batch")
		if a, err := ask(t.Context(), w.showing(t, socket), url, "", hello); err == nil {
			t.Errorf("answered with %d %s", a.status, a.code)
		}
	})
}
