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

	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/identity/workload/workloadtest"
)

// bundleEndpoint serves the bundle of a trust domain, and returns how that is
// configured.
func bundleEndpoint(t *testing.T, w *world, of *workload.Source) string {
	t.Helper()
	authorities, err := of.GetX509BundleForTrustDomain(of.TrustDomain())
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
	ca := filepath.Join(w.dir, of.TrustDomain().Name()+".pem")
	writeFile(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: endpoint.Certificate().Raw})))
	return fmt.Sprintf("trust_domain: %s, bundle_endpoint: %q, ca_file: %q", of.TrustDomain(), endpoint.URL, ca)
}

func newPartner(t *testing.T) *workloadtest.Authority {
	t.Helper()
	return workloadtest.New(t, spiffeid.RequireTrustDomainFromString("partner.example"), 0)
}

// federate adds a trust domain to the gateway's file, and registers the workloads
// of partner.example with acme.
func (w *world) federate(t *testing.T, how string) {
	t.Helper()
	text, err := os.ReadFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, w.config, strings.Replace(string(text), "identity:\n", "identity:\n  federation: [{"+how+"}]\n", 1))
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
	partner := newPartner(t)
	as := func(path string) *http.Client { return w.showing(t, partner.At(t, path)) }
	w.federate(t, bundleEndpoint(t, w, partner.Source(t, "/any"))+`, callers: ["spiffe://partner.example/team/*"]`)
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

func TestAReplicaOfAFederatedDomainServesIfItIsAMember(t *testing.T) {
	w := newWorld(t)
	partner := newPartner(t)
	ours, err := workload.NewSource(t.Context(), workload.SourceConfig{Socket: w.socket(t, gatewayID)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ours.Close() })
	w.federate(t, bundleEndpoint(t, w, partner.Source(t, "/any")))
	var told []string
	for _, pool := range []string{"pool", "elsewhere"} {
		r := w.newEngine(t, "general", pool)
		r.id = "spiffe://partner.example/" + pool + "/p0"
		r.socket, r.federation = partner.At(t, "/"+pool+"/p0"), bundleEndpoint(t, w, ours)
		w.startRelay(t, r, "127.0.0.1:0")
		told = append(told, fmt.Sprintf("{address: %q}", r.addr)) // whom it names is whom it proves
		w.replicas = append(w.replicas, r)
	}
	text, err := os.ReadFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	const members = `["spiffe://` + trustDomain + `/pool/general/*"`
	writeFile(t, w.config, strings.NewReplacer(members, members+`, "spiffe://partner.example/pool/*"`, "replicas: [", "replicas: ["+strings.Join(told, ", ")+", ").Replace(string(text)))
	for _, r := range w.replicas[:2] {
		r.relay.kill() // so that only the partner's are left
	}
	_, url := w.serve(t)
	decision, outcome := recordsOf(t, w.logDir, awaitOK(t, w.client(t, nil), url, w.token(t, "alice@acme.example", "acme")))
	if want := "spiffe://partner.example/pool/p0"; decision.Placement.Replica != want || outcome.Outcome.Peer != want {
		t.Errorf("placed on %s, the peer was %s", decision.Placement.Replica, outcome.Outcome.Peer)
	}
	if n := len(w.replicas[3].served(t)); n > 0 {
		t.Errorf("a replica that is no member served %d requests", n)
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
