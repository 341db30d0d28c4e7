package test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"

	"github.com/sallyport-ai/sallyport/audit"
)

const (
	rotations = 5
	batchID   = "spiffe://" + trustDomain + "/tenant/acme/batch"
)

// withAdmin gives the gateway an admin listener, and returns its URL.
func (w *world) withAdmin(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	address := "127.0.0.1:" + freePort(t)
	writeFile(t, w.config, string(text)+"\nadmin: {address: \""+address+"\"}\n")
	return "http://" + address
}

// get returns a page of an admin listener.
func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(raw)
}

var identityRemaining = regexp.MustCompile(`(?m)^sallyport_identity_remaining_seconds(?:\{.*\})? (\S+)$`)

// remaining is how long the gateway's own SVID is still good for.
func remaining(t *testing.T, adminURL string) time.Duration {
	t.Helper()
	_, page := get(t, adminURL+"/metrics")
	match := identityRemaining.FindStringSubmatch(page)
	if match == nil {
		t.Fatal("the metrics do not say how long the identity lasts")
	}
	seconds, err := strconv.ParseFloat(match[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(seconds * float64(time.Second))
}

// shown is the certificate that a relay shows to whoever connects.
func shown(t *testing.T, address string) *x509.Certificate {
	t.Helper()
	var leaf *x509.Certificate
	d := tls.Dialer{Config: &tls.Config{
		MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, // only looked at
		VerifyConnection: func(cs tls.ConnectionState) error { leaf = cs.PeerCertificates[0]; return nil },
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if c, err := d.DialContext(ctx, "tcp", address); err == nil {
		_ = c.Close() // it would have been refused
	}
	return leaf
}

// traffic is what callers that go on asking have been told.
type traffic struct {
	mu    sync.Mutex
	good  int
	bad   map[string]int
	done  chan struct{}
	ended sync.WaitGroup
}

// goOnAsking asks, one request after the other, until stop.
func (w *world) goOnAsking(t *testing.T, tr *traffic, pause time.Duration, client *http.Client, url, token string) {
	tr.ended.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-tr.done:
				return
			case <-t.Context().Done():
				return
			case <-time.After(pause):
			}
			// No two begin alike, so that no replica is better than the other.
			a, err := ask(t.Context(), client, url, token, chat(fmt.Sprintf("%d %s?", i, rand.Text()), i%2 == 0, 3))
			tr.mu.Lock()
			if err == nil && a.whole(i%2 == 0) {
				tr.good++
			} else {
				tr.bad[fmt.Sprintf("%d %s %v", a.status, a.code, err)]++
			}
			tr.mu.Unlock()
		}
	})
}

func newTraffic(t *testing.T) *traffic {
	tr := &traffic{bad: make(map[string]int), done: make(chan struct{})}
	t.Cleanup(tr.stop)
	return tr
}

// stop waits for the requests under way.
func (tr *traffic) stop() {
	select {
	case <-tr.done:
	default:
		close(tr.done)
	}
	tr.ended.Wait()
}

// count returns how many answers were good, and those that were not.
func (tr *traffic) count() (good int, bad map[string]int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.good, maps.Clone(tr.bad)
}

// asBatch is a client that proves the identity of this process. Each of its
// requests has a connection of its own, so that none outlives its proof.
func (w *world) asBatch(t *testing.T) *http.Client {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w.spire.register(t, batchID, self)
	client := w.showing(t, w.spire.socket())
	client.Transport.(*http.Transport).DisableKeepAlives = true
	return client
}

func TestSPIRERotationsInterruptNothing(t *testing.T) {
	t.Parallel()
	s := newSPIRE(t, trustDomain)
	// Slow enough for a stream that outlasts the rotations: a step is a token.
	const tokens = 1900
	w := newWorldOf(t, s, "--step", (s.ttl * 12 / 5 / tokens).String(), "--sentences", "4000")
	admin := w.withAdmin(t)
	batch := w.asBatch(t)
	_, url := w.serve(t)
	token := w.token(t, "alice@acme.example", "acme")
	client := w.client(t, nil)
	awaitOK(t, client, url, token)

	life := time.Duration(rotations+3) * s.ttl
	streaming := w.client(t, nil)
	streaming.Timeout = 2 * life
	long := make(chan answer, 1)
	go func() {
		a, err := ask(t.Context(), streaming, url, token, chat("Say all that there is to say.", true, tokens))
		if err != nil {
			t.Errorf("the long stream: %v", err)
		}
		long <- a
	}()
	tr := newTraffic(t)
	w.goOnAsking(t, tr, 50*time.Millisecond, client, url, token)
	w.goOnAsking(t, tr, 500*time.Millisecond, batch, url, "")

	gateway, relays, last := 0, make(map[string]bool), remaining(t, admin)
	began := time.Now()
	for gateway < rotations || len(relays) < 2*(rotations+1) {
		if time.Since(began) > life {
			t.Fatalf("after %v: %d rotations of the gateway, %d certificates of the relays", life, gateway, len(relays))
		}
		for _, r := range w.replicas {
			if leaf := shown(t, r.addr); leaf != nil {
				relays[leaf.SerialNumber.String()] = true
			}
		}
		now := remaining(t, admin)
		if now > last {
			gateway++
		}
		last = now
		time.Sleep(200 * time.Millisecond)
	}
	took := time.Since(began)
	a := <-long
	tr.stop()
	good, bad := tr.count()
	t.Logf("%v: %d rotations of the gateway, %d certificates of two relays, %d good answers, a stream of %d events", took.Round(time.Second), gateway, len(relays), good, strings.Count(a.body, "\n\n"))
	if len(bad) > 0 {
		t.Errorf("answers that were not good: %v", bad)
	}
	if !a.whole(true) {
		t.Errorf("the long stream ended with status %d %s: …%s", a.status, a.code, a.body[max(0, len(a.body)-300):])
	}
	_, outcome := recordsOf(t, w.logDir, a.id)
	if o := outcome.Outcome; o.Status != audit.StatusOK || time.Duration(o.DurationMS)*time.Millisecond < 2*s.ttl {
		t.Errorf("the long stream's outcome is %s after %d ms, of SVIDs that live %v", o.Status, o.DurationMS, s.ttl)
	}
}

func TestSPIREOutagePastExpiryFailsClosedAndHeals(t *testing.T) {
	t.Parallel()
	s := newSPIRE(t, trustDomain)
	w := newWorldOf(t, s)
	admin := w.withAdmin(t)
	batch := w.asBatch(t)
	gateway, url := w.serve(t)
	token := w.token(t, "alice@acme.example", "acme")
	client := w.client(t, nil)
	awaitOK(t, client, url, token)
	awaitOK(t, batch, url, "")

	s.agent.kill()
	// What was proven goes on counting for as long as it was proven for.
	if a, err := ask(t.Context(), client, url, token, chat("Is anybody there?", false, 4)); err != nil || a.status != http.StatusOK {
		t.Errorf("right after the agent went: %d %s, %v", a.status, a.code, err)
	}
	for until := time.Now().Add(2 * s.ttl); remaining(t, admin) > 0 && time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		// Keeps connections warm: they too must not outlive their proof.
		_, _ = ask(t.Context(), client, url, token, chat("Still there?", false, 4))
	}
	if left := remaining(t, admin); left > 0 {
		t.Fatalf("the gateway's SVID lives on for %v", left)
	}
	if status, why := get(t, admin+"/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("ready with an expired SVID: %d %s", status, why)
	}
	// The relays' SVIDs may be a little younger.
	for until := time.Now().Add(s.ttl); ; time.Sleep(100 * time.Millisecond) {
		a, err := ask(t.Context(), client, url, token, chat("Is it over?", false, 4))
		if err == nil && (a.status == http.StatusServiceUnavailable || a.status == http.StatusBadGateway) {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("served past expiry: %d %s, %v", a.status, a.code, err)
		}
	}
	served := w.served(t)
	for range 10 {
		if a, err := ask(t.Context(), client, url, token, chat("Nobody?", false, 4)); err != nil || a.status == http.StatusOK {
			t.Errorf("without identities: %d %s, %v", a.status, a.code, err)
		}
	}
	if now := w.served(t); now != served {
		t.Errorf("%d requests reached an engine without identities", now-served)
	}

	s.startAgent(t)
	awaitOK(t, client, url, token)
	awaitOK(t, batch, url, "")
	for until := time.Now().Add(startTime); ; time.Sleep(100 * time.Millisecond) {
		status, why := get(t, admin+"/readyz")
		if status == http.StatusOK {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("not ready again: %s", why)
		}
	}
	gateway.stop(t)
	if _, code := sallyport(t, "audit", "verify", w.logDir, "--key", w.logKey); code != 0 {
		t.Errorf("audit verify: exit %d", code)
	}
}

func TestSPIREEntriesDecideWhoServes(t *testing.T) {
	t.Parallel()
	s := newSPIRE(t, trustDomain)
	w := newWorldOf(t, s)
	_, url := w.serve(t)
	token := w.token(t, "alice@acme.example", "acme")
	client := w.client(t, nil)
	awaitOK(t, client, url, token)
	tr := newTraffic(t)
	for range 4 {
		w.goOnAsking(t, tr, 20*time.Millisecond, client, url, token)
	}

	// A workload of another pool takes over the address of a replica.
	r, thief := w.replicas[0], w.newEngine(t, "agents", "thief")
	r.relay.kill()
	w.startRelay(t, thief, r.addr)
	if leaf := shown(t, r.addr); leaf == nil || len(leaf.URIs) != 1 || leaf.URIs[0].String() != thief.id {
		t.Fatalf("%s is not at the address", thief.id)
	}
	more(t, "answers by the other replica", w.replicas[1], 20)
	if n := len(thief.served(t)); n > 0 {
		t.Errorf("%s served %d requests at the address of %s", thief.id, n, r.id)
	}
	thief.relay.kill()
	w.startRelay(t, r, r.addr)
	more(t, "the replica to be back", r, 1)

	// Then its entry is deleted.
	_, bad := tr.count()
	t.Logf("answers that a killed relay cost: %v", bad)
	s.withdraw(t, r.id)
	withdrawn, served, last := time.Now(), 0, time.Now()
	for time.Since(last) < 3*time.Second && time.Since(withdrawn) < 2*s.ttl {
		if n := len(r.served(t)); n > served {
			served, last = n, time.Now()
		}
		time.Sleep(100 * time.Millisecond)
	}
	if left := last.Sub(withdrawn); left > s.ttl+5*time.Second {
		t.Errorf("it served for %v after its entry was deleted; SVIDs live %v", left, s.ttl)
	}
	more(t, "answers by the other replica", w.replicas[1], 1)
	tr.stop()
	good, worse := tr.count()
	t.Logf("%d good answers; the replica served for %v after its entry was deleted", good, last.Sub(withdrawn).Round(time.Second))
	if sum(worse) > sum(bad) {
		t.Errorf("its leaving cost answers: %v", worse)
	}
}

// more waits until a replica has served n more requests.
func more(t *testing.T, what string, r *replica, n int) {
	t.Helper()
	before := len(r.served(t))
	for until := time.Now().Add(2 * startTime); len(r.served(t)) < before+n; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

func TestSPIREIsFederatedWithByItsBundleEndpoint(t *testing.T) {
	t.Parallel()
	partner := newSPIRE(t, "partner.example")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	id := "spiffe://partner.example/team/a"
	partner.register(t, id, self)
	w := newWorld(t)
	bundle := filepath.Join(w.dir, "partner.json")
	writeFile(t, bundle, string(partner.server(t, "bundle", "show", "-format", "spiffe")))
	w.federate(t, fmt.Sprintf(`trust_domain: partner.example, bundle_endpoint: "https://%s", endpoint_id: "spiffe://partner.example/spire/server", bundle_file: %q, callers: [%q]`,
		partner.bundles, bundle, "spiffe://partner.example/team/*"))
	text, err := os.ReadFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, w.config, strings.Replace(string(text), "identity:\n", "identity:\n  jwt_svid: {audience: sallyport}\n", 1))
	_, url := w.serve(t)

	decision, _ := recordsOf(t, w.logDir, awaitOK(t, w.showing(t, partner.socket()), url, ""))
	if c := decision.Caller; c.Method != "x509_svid" || c.Workload != id || c.Registration != "partners" {
		t.Errorf("by its certificate the caller is %+v", c)
	}
	decision, _ = recordsOf(t, w.logDir, awaitOK(t, w.client(t, nil), url, partner.token(t, "sallyport")))
	if c := decision.Caller; c.Method != "jwt_svid" || c.Workload != id || c.Registration != "partners" {
		t.Errorf("by its token the caller is %+v", c)
	}
	a, err := ask(t.Context(), w.client(t, nil), url, partner.token(t, "billing"), chat("Is this for you?", false, 4))
	if err != nil || a.status != http.StatusUnauthorized {
		t.Errorf("with a token for another audience: %d %s, %v", a.status, a.code, err)
	}
}

// token is a JWT-SVID of this process.
func (s *spire) token(t *testing.T, audience string) string {
	t.Helper()
	svid, err := workloadapi.FetchJWTSVID(t.Context(), jwtsvid.Params{Audience: audience}, workloadapi.WithAddr(s.socket()))
	if err != nil {
		t.Fatal(err)
	}
	return svid.Marshal()
}
