package gateway

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// metrics are the instruments of the request path. Attributes come from our own
// small vocabularies, never from a caller, so their number is bounded.
type metrics struct {
	requests  metric.Int64Counter
	refusals  metric.Int64Counter
	policy    metric.Float64Histogram
	audit     metric.Float64Histogram
	ttft      metric.Float64Histogram
	predicted metric.Int64Counter
	cached    metric.Int64Counter
}

var seconds = metric.WithExplicitBucketBoundaries(50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

func newMetrics(provider metric.MeterProvider) (*metrics, error) {
	m := provider.Meter("github.com/sallyport-ai/sallyport/gateway")
	var out metrics
	var err error
	counter := func(into *metric.Int64Counter, name, what string) {
		if err == nil {
			*into, err = m.Int64Counter(name, metric.WithDescription(what))
		}
	}
	histogram := func(into *metric.Float64Histogram, name, what string) {
		if err == nil {
			*into, err = m.Float64Histogram(name, metric.WithDescription(what), metric.WithUnit("s"), seconds)
		}
	}
	counter(&out.requests, "sallyport.requests", "Attempts that ended, by operation, class and status.")
	counter(&out.refusals, "sallyport.refusals", "Requests refused, by the code the caller saw.")
	histogram(&out.policy, "sallyport.policy.duration", "Time to evaluate policy.")
	histogram(&out.audit, "sallyport.audit.append.duration", "Time until a record was durable.")
	histogram(&out.ttft, "sallyport.time_to_first_token", "Time from a request's arrival to the first byte of its answer.")
	counter(&out.predicted, "sallyport.predicted_cached_tokens", "Prompt tokens that placement expected to find cached.")
	counter(&out.cached, "sallyport.cached_tokens", "Prompt tokens that engines reported as cached.")
	if err != nil {
		return nil, fmt.Errorf("make instruments: %w", err)
	}
	return &out, nil
}

// The instruments are recorded outside any request's context: what happened is
// counted also when the caller has gone.
func (m *metrics) refused(ctx context.Context, f *Fault) {
	m.refusals.Add(ctx, 1, metric.WithAttributes(attribute.String("code", f.Code)))
}

func (m *metrics) decided(ctx context.Context, d time.Duration) { m.policy.Record(ctx, d.Seconds()) }

func (m *metrics) appended(ctx context.Context, d time.Duration, err error) {
	m.audit.Record(ctx, d.Seconds(), metric.WithAttributes(attribute.Bool("ok", err == nil)))
}

func (m *metrics) ended(ctx context.Context, x *exchange, e ended) {
	m.requests.Add(ctx, 1, metric.WithAttributes(
		attribute.String("operation", x.op.Name), attribute.String("class", x.class.String()), attribute.String("status", e.status)))
	if e.ttft > 0 {
		m.ttft.Record(ctx, e.ttft.Seconds())
	}
	if x.reservation != nil && e.usage != nil && e.usage.CachedTokens != nil {
		m.predicted.Add(ctx, int64(x.reservation.Placement.Predicted))
		m.cached.Add(ctx, int64(*e.usage.CachedTokens))
	}
}
