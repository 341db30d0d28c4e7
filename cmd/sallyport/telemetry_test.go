package main

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
	"github.com/sallyport-ai/sallyport/cmd/sallyport/strictyaml"
	"github.com/sallyport-ai/sallyport/identity/valkey"
	"github.com/sallyport-ai/sallyport/test/await"
	"github.com/sallyport-ai/sallyport/test/metricsdoc"
)

// page is what Prometheus reads.
func page(t *testing.T, h http.Handler) string {
	t.Helper()
	r := httptest.NewRecorder()
	h.ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return r.Body.String()
}

// collector counts what it is sent at the OTLP path.
func collector(t *testing.T, start func(http.Handler) *httptest.Server, answer http.HandlerFunc) (s *httptest.Server, got *atomic.Int64) {
	t.Helper()
	got = new(atomic.Int64)
	s = start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b, err := io.ReadAll(r.Body); err == nil && r.URL.Path == "/v1/traces" && strings.Contains(string(b), "GET /v1/models") {
			got.Add(1)
		}
		answer(w, r)
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s, got
}

func TestSpansGoToTheCollector(t *testing.T) {
	for name, start := range map[string]func(http.Handler) *httptest.Server{"plain": httptest.NewServer, "TLS": httptest.NewTLSServer} {
		t.Run(name, func(t *testing.T) {
			s, got := collector(t, start, func(http.ResponseWriter, *http.Request) {})
			cfg := telemetryConfig{OTLPEndpoint: s.URL, SampleRatio: 1}
			if s.Certificate() != nil {
				cfg.CAFile = filepath.Join(t.TempDir(), "ca.pem")
				if err := os.WriteFile(cfg.CAFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			tel, err := newTelemetry(t.Context(), cfg, "test", slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			_, span := tel.spans.Tracer("test").Start(t.Context(), "GET /v1/models")
			span.End()
			if err := tel.close(); err != nil || got.Load() != 1 {
				t.Errorf("%d spans came, %v", got.Load(), err)
			}
		})
	}
}

func TestACollectorThatIsGoneOrStuckHoldsNothingUp(t *testing.T) {
	ended := make(chan struct{})
	stuck, _ := collector(t, httptest.NewServer, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-ended:
		}
	})
	t.Cleanup(func() { close(ended) })
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	broken, _ := collector(t, httptest.NewServer, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) })
	for name, at := range map[string]string{"stuck": stuck.URL, "gone": gone.URL, "broken": broken.URL} {
		t.Run(name, func(t *testing.T) {
			var logged strings.Builder
			tel, err := newTelemetry(t.Context(), telemetryConfig{OTLPEndpoint: at, SampleRatio: 1}, "test", slog.New(slog.NewTextHandler(&logged, nil)))
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			for range 10_000 {
				_, span := tel.spans.Tracer("test").Start(t.Context(), "GET /v1/models")
				span.End()
			}
			if took := time.Since(began); took > await.Limit/2 {
				t.Errorf("10,000 spans took %v", took)
			}
			began = time.Now()
			_ = tel.close() // what it says is not the point
			if took := time.Since(began); took > await.Limit/2 {
				t.Errorf("closing took %v", took)
			}
			if n := strings.Count(logged.String(), "not taken by the collector"); n > 1 || n == 0 && name != "stuck" {
				t.Errorf("told of %d times:\n%s", n, &logged)
			}
		})
	}
}

// witnessedLog is a log with a witness that does not answer.
func witnessedLog(t *testing.T) *tlog.Log {
	t.Helper()
	return tlogtest.Open(t, tlog.Config{Dir: t.TempDir(), Witnesses: tlog.Witnesses{Operator: "example.org", List: []tlog.Witness{{
		URL: "http://127.0.0.1:1", Operator: "example.net",
		Key: "witness.example.net+ddc92144+BPoH1kzaWoxRWWOgQ0dUN4QNwXnrSCugzEwoFBoTei8t",
	}}}})
}

func TestEveryMetricOfTheProcessIsDocumentedAndNoOther(t *testing.T) {
	w := newWorld(t)
	shown := metricsdoc.Scraped(t, page(t, w.gateway.servers[1].Handler))
	for name := range metricsdoc.Documented(t, "Gateway") {
		delete(shown, name)
	}
	// Where spans go somewhere, there is one more.
	tel, err := newTelemetry(t.Context(), telemetryConfig{OTLPEndpoint: "http://127.0.0.1:1", SampleRatio: 1}, "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := watchAnchors(tel.meters.Meter(meterScope), witnessedLog(t)); err != nil {
		t.Fatal(err)
	}
	// And more, where callers' doings are shared.
	sharing, err := newShared(t.Context(), identityConfig{Valkey: valkey.Config{URL: "unix:///nonexistent", WhenDown: "local"}}, nil, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := sharing.watch(tel.meters.Meter(meterScope)); err != nil {
		t.Fatal(err)
	}
	maps.Copy(shown, metricsdoc.Scraped(t, page(t, tel.page)))
	if err := errors.Join(tel.close(), sharing.close()); err != nil {
		t.Error(err)
	}
	// And where there is a federation, another: package test looks at it.
	shown["sallyport_identity_federation_age_seconds"] = metricsdoc.Thing{Kind: "gauge", Keys: []string{"trust_domain"}}
	metricsdoc.Check(t, "Process", shown)
}

func TestProductionSendsNoSpansInTheClear(t *testing.T) {
	for _, c := range []struct{ environment, endpoint, want string }{
		{"production", "http://collector:4318", "plain http only to a loopback address"},
		{"production", "http://10.0.0.1:4318", "plain http only to a loopback address"},
		{"production", "https://collector:4318", ""},
		{"production", "http://127.0.0.1:4318", ""},
		{"production", "http://[::1]:4318/v1/traces", ""},
		{"demo", "http://collector:4318", ""},
	} {
		f, err := strictyaml.Decode("c", strings.NewReader("{}"), new(gatewayConfig))
		if err != nil {
			t.Fatal(err)
		}
		telemetryConfig{OTLPEndpoint: c.endpoint, SampleRatio: 1}.check(checker{f}, c.environment)
		if got := fmt.Sprint(f.Err()); (f.Err() == nil) != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s, %s: %s", c.environment, c.endpoint, got)
		}
	}
}

// A second gateway of the demonstration's, as its file has it but for where
// its spans, its log and its callers are.
func TestAGatewaySendsSpansAndServesWithoutACollector(t *testing.T) {
	w := newWorld(t)
	s, got := collector(t, httptest.NewServer, func(http.ResponseWriter, *http.Request) {})
	for name, at := range map[string]string{"a collector": s.URL, "none": "http://127.0.0.1:1"} {
		t.Run(name, func(t *testing.T) {
			cfg, err := loadGateway(filepath.Join(w.dir, "sallyport.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			cfg.Audit.Dir, cfg.Listen.Address, cfg.Admin.Address = t.TempDir(), "127.0.0.1:0", ""
			// Relays take tickets by the demonstration's key alone, and its own log
			// has locked the file.
			key, err := os.ReadFile(cfg.Audit.KeyFile)
			if err != nil {
				t.Fatal(err)
			}
			cfg.Audit.KeyFile = filepath.Join(t.TempDir(), "key")
			if err := os.WriteFile(cfg.Audit.KeyFile, key, 0o600); err != nil {
				t.Fatal(err)
			}
			cfg.Telemetry = telemetryConfig{OTLPEndpoint: at, SampleRatio: 1}
			g, err := buildGateway(t.Context(), cfg, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- g.run(ctx) }()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+g.public.Addr().String()+"/v1/models", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+w.tokens["acme-user"])
			resp, err := w.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("status %d", resp.StatusCode)
			}
			w.client.CloseIdleConnections()
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	if got.Load() == 0 {
		t.Error("no span came")
	}
}
