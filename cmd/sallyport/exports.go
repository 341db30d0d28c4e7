package main

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sallyport-ai/sallyport/audit/export"
)

// exportMetrics are what is shown of every sink.
var exportMetrics = []struct {
	name, unit, what string
	counts           bool // it only grows
	value            func(s export.Status) float64
}{
	{"sallyport.export.pending", "{record}", "Records that the sink has not taken yet.", false, func(s export.Status) float64 { return float64(s.Lag) }},
	{"sallyport.export.backlog", "By", "Size of these, estimated from those that were read.", false, func(s export.Status) float64 { return float64(s.LagBytes) }},
	{"sallyport.export.lag", "s", "Age of the first of these that was read.", false, func(s export.Status) float64 { return s.LagTime.Seconds() }},
	{"sallyport.export.failing", "", "1 while the sink does not take records.", false, func(s export.Status) float64 {
		if s.Failing {
			return 1
		}
		return 0
	}},
	{"sallyport.export.records", "{record}", "Records taken.", true, func(s export.Status) float64 { return float64(s.Sent) }},
	{"sallyport.export.sent", "By", "Bytes taken, with anchors and repetitions.", true, func(s export.Status) float64 { return float64(s.SentBytes) }},
	{"sallyport.export.replayed", "{record}", "Records sent again because they may have been lost.", true, func(s export.Status) float64 { return float64(s.Replayed) }},
	{"sallyport.export.errors", "", "Deliveries that failed, and were or will be tried again.", true, func(s export.Status) float64 { return float64(s.Errors) }},
	{"sallyport.export.dead", "{record}", "Records that the sink refused for good.", true, func(s export.Status) float64 { return float64(s.Dead) }},
	{"sallyport.export.lost", "{record}", "Records that were pruned before the sink had them.", true, func(s export.Status) float64 { return float64(s.Lost) }},
}

// watchExports registers the gauges of the sinks.
func watchExports(meters metric.MeterProvider, exports *export.Exporter) error {
	m := meters.Meter(meterScope)
	all := make([]metric.Observable, len(exportMetrics))
	show := make([]func(metric.Observer, float64, metric.ObserveOption), len(all))
	for i, d := range exportMetrics {
		if d.counts {
			c, err := m.Float64ObservableCounter(d.name, metric.WithUnit(d.unit), metric.WithDescription(d.what))
			if err != nil {
				return fmt.Errorf("watch exports: %w", err)
			}
			all[i], show[i] = c, func(o metric.Observer, v float64, with metric.ObserveOption) { o.ObserveFloat64(c, v, with) }
			continue
		}
		g, err := m.Float64ObservableGauge(d.name, metric.WithUnit(d.unit), metric.WithDescription(d.what))
		if err != nil {
			return fmt.Errorf("watch exports: %w", err)
		}
		all[i], show[i] = g, func(o metric.Observer, v float64, with metric.ObserveOption) { o.ObserveFloat64(g, v, with) }
	}
	_, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, s := range exports.Status() {
			of := metric.WithAttributes(attribute.String("sink", s.Sink), attribute.String("kind", s.Kind))
			for i, d := range exportMetrics {
				show[i](o, d.value(s), of)
			}
		}
		return nil
	}, all...)
	if err != nil {
		return fmt.Errorf("watch exports: %w", err)
	}
	return nil
}
