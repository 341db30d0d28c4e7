package workload_test

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/identity/workload/workloadtest"
)

var domain = spiffeid.RequireTrustDomainFromString("example.org")

func newAuthority(t *testing.T, ttl time.Duration) *workloadtest.Authority {
	t.Helper()
	return workloadtest.New(t, domain, ttl)
}

// serveTLS serves over TLS on a loopback address. httptest would add a
// certificate of its own, which wins over GetCertificate.
func serveTLS(t *testing.T, config *tls.Config, handler http.HandlerFunc) string {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return "https://" + listener.Addr().String()
}

func sayPeer(w http.ResponseWriter, r *http.Request) {
	id, err := workload.PeerID(*r.TLS)
	if err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	io.WriteString(w, id.String())
}

func get(t *testing.T, own workload.Material, authorize workload.Authorizer, url string) (string, error) {
	t.Helper()
	transport := &http.Transport{DialTLSContext: workload.Dialer(own, authorize)}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(strings.Repeat("x", 1<<16)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func TestTwoWorkloadsProveTheirIdentitiesToEachOther(t *testing.T) {
	a := newAuthority(t, time.Minute)
	gateway, relay := a.Source(t, "/gateway"), a.Source(t, "/pool/general/r0")
	url := serveTLS(t, workload.ServerConfig(relay, workload.ExactID(gateway.ID())), sayPeer)
	body, err := get(t, gateway, workload.ExactID(relay.ID()), url)
	if err != nil || body != "spiffe://example.org/gateway" {
		t.Fatalf("got %q, %v", body, err)
	}
}
