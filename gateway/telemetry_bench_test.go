//go:build unix

package gateway

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/sallyport-ai/sallyport/audit"
)

// The path of [BenchmarkPipeline], one request at a time, under each way of
// being watched. What watching costs is the difference in cpu-µs/req.
func BenchmarkTelemetry(b *testing.B) {
	w, n := alone(b), 0
	spans := sdktrace.WithBatcher(tracetest.NewNoopExporter())
	for _, c := range []struct {
		name string
		edit func(*Config)
	}{
		{"off", func(*Config) {}},
		{"metrics", func(c *Config) { c.Meter = metric.NewMeterProvider(metric.WithReader(metric.NewManualReader())) }},
		{"metrics and spans of none", func(c *Config) {
			c.Meter = metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))
			c.Tracer = sdktrace.NewTracerProvider(spans, sdktrace.WithSampler(sdktrace.TraceIDRatioBased(0)))
		}},
		{"metrics and spans of all", func(c *Config) {
			c.Meter = metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))
			c.Tracer = sdktrace.NewTracerProvider(spans)
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			cfg, err := w.config()
			if err != nil {
				b.Fatal(err)
			}
			cfg.Denials = audit.NewDenials(cfg.Log, 64)
			c.edit(&cfg)
			g, err := New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(cfg.Upstream.Close)
			handler := g.Handler()
			b.ReportAllocs()
			before := cpu(b)
			for b.Loop() {
				n++
				who, body := sample(n, `"max_tokens":1`)
				r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("Authorization", "Bearer "+w.tokens[who])
				rec := httptest.NewRecorder()
				handler.ServeHTTP(rec, r)
				if rec.Code != http.StatusOK {
					b.Fatal(rec.Code, rec.Body)
				}
			}
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-µs/req")
		})
	}
}
