package main

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit/export"
	"github.com/sallyport-ai/sallyport/audit/export/sink"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/test/metricsdoc"
)

func TestEveryMetricOfASinkIsDocumentedAndNoOther(t *testing.T) {
	shown := func(sinks ...export.SinkConfig) map[string]metricsdoc.Thing {
		tel, err := newTelemetry(t.Context(), telemetryConfig{}, "test", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := tel.close(); err != nil {
				t.Error(err)
			}
		})
		exports, err := export.New(t.Context(), export.Config{Dir: t.TempDir(), Origin: "test", Sinks: sinks, Head: func() uint64 { return 7 }})
		if err != nil {
			t.Fatal(err)
		}
		if err := watchExports(tel.meters, exports); err != nil {
			t.Fatal(err)
		}
		return metricsdoc.Scraped(t, page(t, tel.page))
	}
	all := shown(export.SinkConfig{Name: "a", To: sink.Config{File: &sink.FileConfig{Path: filepath.Join(t.TempDir(), "a")}}})
	for name := range shown() { // those of any process
		delete(all, name)
	}
	metricsdoc.Check(t, "Export", all)
}

// secondGateway is the configuration of another gateway of the world, with a log
// of its own.
func secondGateway(t *testing.T, w *demoWorld) gatewayConfig {
	t.Helper()
	cfg, err := loadGateway(filepath.Join(w.dir, "sallyport.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(cfg.Audit.KeyFile) // the first one's log has locked the file
	if err != nil {
		t.Fatal(err)
	}
	cfg.Audit.Dir, cfg.Audit.KeyFile = t.TempDir(), filepath.Join(t.TempDir(), "key")
	cfg.Listen.Address, cfg.Admin.Address = "127.0.0.1:0", ""
	if err := os.WriteFile(cfg.Audit.KeyFile, key, 0o600); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestAGatewayExportsWhatItWritesDown(t *testing.T) {
	w := newWorld(t)
	cfg := secondGateway(t, w)
	out := filepath.Join(t.TempDir(), "out.jsonl")
	cfg.Audit.Export = []export.SinkConfig{{Name: "file", Format: "ocsf", To: sink.Config{File: &sink.FileConfig{Path: out}}}}
	g, err := buildGateway(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.run(ctx) }()
	ask := func() (status int, id string) {
		body := `{"model":"small","messages":[{"role":"user","content":"canary-7f3a"}]}`
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+g.public.Addr().String()+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+w.tokens["acme-user"])
		req.Header.Set("Content-Type", "application/json")
		resp, err := w.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode, resp.Header.Get("Sallyport-Decision-Id")
	}
	status, id := ask()
	for end := time.Now().Add(60 * time.Second); status != http.StatusOK && time.Now().Before(end); status, id = ask() {
		time.Sleep(100 * time.Millisecond) // its replicas are not ready yet
	}
	var text string
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		b, err := os.ReadFile(out)
		text = string(b)
		if err == nil && strings.Count(text, `"correlation_uid":"`+id+`"`) >= 2 { // the decision and its outcome
			break
		}
		if time.Now().After(end) {
			t.Fatalf("decision %q of status %d did not come:\n%s", id, status, text)
		}
	}
	w.client.CloseIdleConnections()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if strings.Contains(text, "canary-7f3a") {
		t.Error("the prompt was exported")
	}
	for l := range strings.Lines(text) {
		if strings.Contains(l, `"event_code":"outcome"`) && !strings.Contains(l, `"tenant_uid":"acme"`) {
			t.Errorf("an outcome of nobody: %s", l)
		}
	}
}

// Filters of sinks go by the names that policy has for classes, and by no other.
func TestSinksKnowTheClassesThatThereAre(t *testing.T) {
	for _, name := range export.Classes {
		if _, err := policy.ParseClass(name); err != nil {
			t.Error(err)
		}
	}
	for c := policy.Class(0); c == policy.Unclassified || c.String() != policy.Unclassified.String(); c++ {
		if !slices.Contains(export.Classes, c.String()) {
			t.Errorf("sinks do not know %s", c)
		}
	}
}
