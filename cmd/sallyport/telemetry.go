package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// telemetryConfig says where spans go. Metrics are always on the admin listener.
type telemetryConfig struct {
	OTLPEndpoint     string  `yaml:"otlp_endpoint"`     // empty: no spans
	CAFile           string  `yaml:"ca_file"`           // authorities of the collector; empty: the system's
	SampleRatio      float64 `yaml:"sample_ratio"`      // of requests, above 0 and at most 1
	TrustTraceparent bool    `yaml:"trust_traceparent"` // a caller's is the parent, not only linked
}

func (c telemetryConfig) check(k checker, environment string) {
	if c.CAFile != "" {
		k.file("telemetry.ca_file", c.CAFile)
	}
	if c.OTLPEndpoint == "" {
		return
	}
	k.url("telemetry.otlp_endpoint", c.OTLPEndpoint)
	if u, err := url.Parse(c.OTLPEndpoint); err == nil && u.Scheme == "http" && environment == "production" && !net.ParseIP(u.Hostname()).IsLoopback() {
		k.f.Problem("telemetry.otlp_endpoint", "production takes plain http only to a loopback address")
	}
	if c.SampleRatio <= 0 || c.SampleRatio > 1 {
		k.f.Problem("telemetry.sample_ratio", "want above 0 and at most 1, got %v", c.SampleRatio)
	}
}

// telemetry is how a gateway is watched: metrics that are read from it, and
// spans that it sends, if configured.
type telemetry struct {
	meters *sdkmetric.MeterProvider
	spans  trace.TracerProvider
	page   http.Handler // the metrics, for Prometheus
	close  func() error
}

// flushTime bounds how long a stopping process waits for its last spans to be
// taken.
const flushTime = 2 * time.Second

// newTelemetry starts it. instance tells this process from others.
func newTelemetry(ctx context.Context, cfg telemetryConfig, instance string, logger *slog.Logger) (*telemetry, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reader, err := otelprom.New(otelprom.WithRegisterer(registry), otelprom.WithoutScopeInfo(), otelprom.WithoutTargetInfo())
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	t := &telemetry{
		meters: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), spans: noop.NewTracerProvider(),
		page: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
	}
	ctx = context.WithoutCancel(ctx) // what is closed is closed after ctx has ended
	t.close = func() error { return t.meters.Shutdown(ctx) }
	if cfg.OTLPEndpoint == "" {
		return t, nil
	}
	exporter, err := newExporter(ctx, cfg, t.meters, logger)
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter), // bounded, and drops what it has no room for
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.SampleRatio))),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "sallyport"), attribute.String("service.version", build()), attribute.String("service.instance.id", instance),
		)),
	)
	t.spans = provider
	t.close = func() error {
		ctx, cancel := context.WithTimeout(ctx, flushTime)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			logger.Warn("last spans not sent", "error", err)
		}
		return t.meters.Shutdown(ctx)
	}
	return t, nil
}

// exporter sends spans. A collector that does not take them is the operator's
// business and nobody else's: it is counted, and logged when it begins and ends.
type exporter struct {
	sdktrace.SpanExporter
	lost    metric.Int64Counter
	logger  *slog.Logger
	failing atomic.Bool
}

func newExporter(ctx context.Context, cfg telemetryConfig, meters metric.MeterProvider, logger *slog.Logger) (*exporter, error) {
	to, err := url.Parse(cfg.OTLPEndpoint)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	if to.Path == "" || to.Path == "/" {
		to.Path = "/v1/traces" // as https://opentelemetry.io/docs/specs/otlp/ has it
	}
	opts := []otlptracehttp.Option{otlptracehttp.WithEndpointURL(to.String()), otlptracehttp.WithTimeout(5 * time.Second)}
	if to.Scheme == "https" {
		roots, err := collectorRoots(cfg.CAFile)
		if err != nil {
			return nil, err
		}
		opts = append(opts, otlptracehttp.WithTLSClientConfig(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}))
	}
	out, err := otlptracehttp.New(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	lost, err := meters.Meter(meterScope).Int64Counter("sallyport.telemetry.spans.lost", metric.WithUnit("{span}"),
		metric.WithDescription("Spans that the collector did not take."))
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	lost.Add(ctx, 0) // so that it is there before it is needed
	return &exporter{SpanExporter: out, lost: lost, logger: logger}, nil
}

// collectorRoots are the authorities of the file, or nil for the system's.
func collectorRoots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("telemetry: no certificate in %s", file)
	}
	return roots, nil
}

// ExportSpans never fails: the SDK would tell the whole process's error handler.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err != nil {
		e.lost.Add(ctx, int64(len(spans)))
	}
	if was := e.failing.Swap(err != nil); was != (err != nil) {
		if err != nil {
			e.logger.Warn("spans are not taken by the collector", "error", err)
		} else {
			e.logger.Info("spans are taken by the collector again")
		}
	}
	return nil
}
