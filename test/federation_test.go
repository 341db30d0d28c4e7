package test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/identity/workload/workloadtest"
)

// partnerOf starts another trust domain with a bundle endpoint, makes the
// world's gateway believe it, and returns what gives out its identities.
func partnerOf(t *testing.T, w *world, callers string) func(path string) *http.Client {
	t.Helper()
	partner := workloadtest.New(t, spiffeid.RequireTrustDomainFromString("partner.example"), 0)
	authorities, err := partner.Source(t, "/any").GetX509BundleForTrustDomain(partner.Domain)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := spiffebundle.FromX509Bundle(authorities).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	endpoint := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = rw.Write(bundle)
	}))
	endpoint.StartTLS()
	t.Cleanup(endpoint.Close)
	ca := filepath.Join(w.dir, "endpoint.pem")
	writeFile(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: endpoint.Certificate().Raw})))
	w.federate(t, fmt.Sprintf("bundle_endpoint: %q, ca_file: %q, callers: [%s]", endpoint.URL, ca, callers))
	return func(path string) *http.Client { return w.showing(t, partner.At(t, path)) }
}

// federate adds the trust domain partner.example to the gateway's file, and
// registers its workloads with acme.
func (w *world) federate(t *testing.T, how string) {
	t.Helper()
	text, err := os.ReadFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, w.config, strings.Replace(string(text), "identity:\n", "identity:\n  federation: [{trust_domain: partner.example, "+how+"}]\n", 1))
	file := filepath.Join(w.dir, "policy/sallyport/workloads/data.json")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var registrations map[string]map[string]any
	if err := json.Unmarshal(raw, &registrations); err != nil {
		t.Fatal(err)
	}
	registrations["partners"] = map[string]any{"spiffe_id": "spiffe://partner.example/*", "tenant": "acme", "classes": []string{"chat"}}
	if raw, err = json.Marshal(registrations); err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, string(raw))
}

func TestACallerOfAFederatedDomainIsAdmittedIfItIsNamedAndRegistered(t *testing.T) {
	w := newWorld(t)
	as := partnerOf(t, w, `"spiffe://partner.example/team/*"`)
	admin := w.withAdmin(t)
	_, url := w.serve(t)
	decision, _ := recordsOf(t, w.logDir, awaitOK(t, as("/team/a"), url, ""))
	if c := decision.Caller; c.Method != "x509_svid" || c.Issuer != "partner.example" || c.Registration != "partners" || c.Tenant != "acme" {
		t.Errorf("the record's caller is %+v", c)
	}
	if _, page := get(t, admin+"/metrics"); !strings.Contains(page, "sallyport_identity_federation_age_seconds{") || !strings.Contains(page, `trust_domain="partner.example"`) {
		t.Error("the metrics do not say how old the partner's bundle is")
	}
	// Registered, but not named by the configuration.
	if a, err := ask(t.Context(), as("/elsewhere"), url, "", chat("Hello?", false, 4)); err == nil {
		t.Errorf("a caller that is not named is answered with %d %s", a.status, a.code)
	}
}

func TestAPoolOfADomainThatIsNotFederatedWithStopsTheStart(t *testing.T) {
	w := newWorld(t)
	text, err := os.ReadFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, w.config, strings.Replace(string(text), "spiffe://"+trustDomain+"/pool/agents/*", "spiffe://partner.example/pool/agents/*", 1))
	if _, code := sallyport(t, "serve", "--config", w.config); code == 0 {
		t.Error("a gateway serves whose pool's members nobody can verify")
	}
}
