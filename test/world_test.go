package test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
	"github.com/sallyport-ai/sallyport/identity/oidc"
	"github.com/sallyport-ai/sallyport/identity/workload/workloadtest"
	"github.com/sallyport-ai/sallyport/policies"
	"github.com/sallyport-ai/sallyport/routing/prompt"
)

const (
	trustDomain = "demo.sallyport" // the shipped data's, so that its registrations hold
	gatewayID   = "spiffe://" + trustDomain + "/gateway"
	audience    = "sallyport"
	completions = "/v1/chat/completions"
)

// world is an installation in which every process is one of its own: engines,
// relays that keep logs of the tickets they serve, and a gateway that the test
// starts and kills. This process is only the SPIFFE authority and the issuer.
type world struct {
	dir       string
	authority *workloadtest.Authority
	spire     *spire // gives out the identities in the authority's place; nil: none
	issuer    *oidc.DevIssuer
	trust     *x509.CertPool // for the gateway's public listener
	config    string         // the gateway's configuration file
	logDir    string         // of the gateway
	logKey    string         // its pinned verifier key
	replicas  []*replica
}

// replica is an engine with its relay.
type replica struct {
	id     string
	pool   string
	files  func(suffix string) string // the path of a file of its own
	serves []string                   // where the engine and its events are
	socket string                     // of its Workload API, where that is not the world's
	// federation is a trust domain that it believes beside its own, as configured.
	federation string
	logDir     string
	keyFile    string // signs its log
	logKey     string // the pinned verifier key of it
	relay      *process
	engine     *process
	addr       string
	admin      string // address of the relay's admin listener; empty: none
}

// newWorld starts everything but the gateway.
func newWorld(t *testing.T, engineArgs ...string) *world {
	t.Helper()
	return newWorldOf(t, nil, engineArgs...)
}

// newWorldOf is newWorld with identities from SPIRE, if there is one.
func newWorldOf(t *testing.T, identities *spire, engineArgs ...string) *world {
	t.Helper()
	dir, err := os.MkdirTemp(box, "w")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{dir: dir, spire: identities, logDir: filepath.Join(dir, "audit"), logKey: filepath.Join(dir, "audit.key.pub"), trust: x509.NewCertPool()}
	w.authority = workloadtest.New(t, spiffeid.RequireTrustDomainFromString(trustDomain), 0)
	if w.issuer, err = oidc.NewDevIssuer(oidc.DevConfig{Environment: "test", Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.issuer.Close(); err != nil {
			t.Error(err)
		}
	})
	demo, err := policies.Demo()
	if err != nil {
		t.Fatal(err)
	}
	for to, layers := range map[string][]fs.FS{"policy": {policies.FS, demo}, "model": {prompt.Small()}} {
		for _, layer := range layers {
			if err := os.CopyFS(filepath.Join(dir, to), layer); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, code := sallyport(t, "keys", "log", "--origin", trustDomain+"/gateway", "--out", filepath.Join(dir, "audit.key")); code != 0 {
		t.Fatalf("keys log: exit %d", code)
	}
	for i := range 2 {
		w.replicas = append(w.replicas, w.newReplica(t, fmt.Sprintf("r%d", i), engineArgs))
	}
	w.configure(t)
	return w
}

var (
	engineServes  = regexp.MustCompile(`^engine at (\S+), events at (\S+)$`)
	relayServes   = regexp.MustCompile(`msg="relay serving" .*address=(\S+)`)
	gatewayServes = regexp.MustCompile(`msg=serving address=(\S+)`)
)

func (w *world) newReplica(t *testing.T, name string, engineArgs []string) *replica {
	t.Helper()
	r := w.newEngine(t, "general", name, engineArgs...)
	w.startRelay(t, r, "127.0.0.1:0")
	return r
}

// newEngine starts an engine that lacks a relay.
func (w *world) newEngine(t *testing.T, pool, name string, engineArgs ...string) *replica {
	t.Helper()
	in := func(file string) string { return filepath.Join(w.dir, name+file) }
	r := &replica{
		id: "spiffe://" + trustDomain + "/pool/" + pool + "/" + name, pool: pool, files: in,
		logDir: in(".log"), keyFile: in(".key"), logKey: in(".key.pub"),
	}
	r.engine, r.serves = start(t, engineServes, append([]string{
		"sim", "--listen", "127.0.0.1:0", "--model-dir", filepath.Join(w.dir, "model"),
		"--events", "ipc://" + in(".ev"), "--replay", "ipc://" + in(".rp"),
	}, engineArgs...)...)
	own, err := tlog.CreateKeyFile(r.keyFile, trustDomain+"/relay/"+name)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, r.logKey, own+"\n")
	return r
}

// startRelay starts the replica's relay, again if it was killed.
func (w *world) startRelay(t *testing.T, r *replica, listen string) {
	t.Helper()
	vkey, err := os.ReadFile(w.logKey)
	if err != nil {
		t.Fatal(err)
	}
	if r.socket == "" {
		r.socket = w.socket(t, r.id)
	}
	federation := ""
	if r.federation != "" {
		federation = "{" + r.federation + "}"
	}
	admin := ""
	if r.admin != "" {
		admin = fmt.Sprintf("admin: {address: %q}", r.admin)
	}
	var at []string
	r.relay, at = w.startAs(t, r.id, relayServes, "relay", "--config", writeFile(t, r.files(".yaml"), fmt.Sprintf(`
environment: production
listen: {address: %q}
identity: {workload_socket: %q, federation: [%s]}
engine: {url: %q, kind: vllm, events: {endpoint: %q, replay: %q, mode: connect}}
pool: %s
gateways: [{id: %q, log_vkey: %q}]
log: {dir: %q, key_file: %q}
%s
`, listen, r.socket, federation, r.serves[0], r.serves[1], "ipc://"+r.files(".rp"), r.pool, gatewayID, strings.TrimSpace(string(vkey)), r.logDir, r.files(".key"), admin)))
	r.addr = at[0]
}

// startAs runs a command of ours that will be the workload id.
func (w *world) startAs(t *testing.T, id string, ready *regexp.Regexp, args ...string) (*process, []string) {
	t.Helper()
	if w.spire == nil {
		return start(t, ready, args...)
	}
	return startFile(t, w.spire.executable(t, id), ready, args...)
}

// socket is the Workload API from which the workload id has its identity.
func (w *world) socket(t *testing.T, id string) string {
	t.Helper()
	if w.spire != nil {
		return w.spire.socket()
	}
	socket, err := w.authority.Socket(spiffeid.RequireFromString(id))
	if err != nil {
		t.Fatal(err)
	}
	return socket
}

// configure writes the gateway's file. Only the pool general has replicas.
func (w *world) configure(t *testing.T) {
	t.Helper()
	web, err := w.authority.ServerCertificate(nil, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(web.CA)
	if err != nil || !w.trust.AppendCertsFromPEM(pem) {
		t.Fatalf("certificate authority: %v", err)
	}
	issuer := w.issuer.Config(audience)
	var replicas []string
	for _, r := range w.replicas {
		replicas = append(replicas, fmt.Sprintf("{address: %q, id: %q}", r.addr, r.id))
	}
	w.config = writeFile(t, filepath.Join(w.dir, "sallyport.yaml"), fmt.Sprintf(`
environment: demo
listen: {address: "127.0.0.1:0", cert_file: %q, key_file: %q, client_svid: true}
region: eu-1
identity:
  workload_socket: %q
  issuers: [{url: %q, audience: %s, algorithms: [ES256], tenant_claim: %s, jwks_url: %q}]
policy: {bundle: policy}
models: [{name: small, dir: model}]
pools:
  - {name: general, models: [small], members: ["spiffe://%[8]s/pool/general/*"], replicas: [%[9]s]}
  - {name: agents, models: [small], members: ["spiffe://%[8]s/pool/agents/*"]}
  - {name: restricted, models: [small], members: ["spiffe://%[8]s/pool/restricted/*"]}
audit: {dir: audit, key_file: audit.key, mode: strict, segment: 1MiB}
`, web.Cert, web.Key, w.socket(t, gatewayID), issuer.URL, issuer.Audience, issuer.TenantClaim, issuer.JWKSURL,
		trustDomain, strings.Join(replicas, ", ")))
}

// serve starts the gateway and returns its URL.
func (w *world) serve(t *testing.T) (*process, string) {
	t.Helper()
	p, at := w.startAs(t, gatewayID, gatewayServes, "serve", "--config", w.config)
	return p, "https://" + at[0]
}

// client talks to the gateway, over connections of its own.
func (w *world) client(t *testing.T, change func(*tls.Config)) *http.Client {
	t.Helper()
	conf := &tls.Config{RootCAs: w.trust, MinVersion: tls.VersionTLS13}
	if change != nil {
		change(conf)
	}
	transport := &http.Transport{TLSClientConfig: conf, MaxIdleConnsPerHost: 8}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

func (w *world) token(t *testing.T, subject, tenant string) string {
	t.Helper()
	token, err := w.issuer.Mint(map[string]any{"sub": subject, "tenant": tenant, "aud": audience})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// awaitOK sends a request until it is answered with 200, as it is once the
// gateway knows its replicas, and returns the decision's id.
func awaitOK(t *testing.T, client *http.Client, url, token string) string {
	t.Helper()
	for until := time.Now().Add(startTime); ; time.Sleep(10 * time.Millisecond) {
		a, err := ask(t.Context(), client, url, token, chat("Is anybody there?", false, 4))
		if err == nil && a.status == http.StatusOK {
			return a.id
		}
		if time.Now().After(until) {
			t.Fatalf("no good answer within %v; the last: %+v, %v", startTime, a, err)
		}
	}
}

// recordsOf waits until the log holds a decision's outcome, or that it was
// denied.
func recordsOf(t *testing.T, dir, id string) (decision, outcome *audit.Record) {
	t.Helper()
	for until := time.Now().Add(startTime); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		for _, r := range tlogtest.Records(t, dir, 0) {
			switch {
			case r.ID != id:
			case r.Kind == audit.KindDecision:
				decision = r
			case r.Kind == audit.KindOutcome:
				outcome = r
			}
		}
		if outcome != nil || decision != nil && decision.Status == "denied" {
			return decision, outcome
		}
	}
	t.Fatalf("the log never told how %s ended", id)
	return nil, nil
}
