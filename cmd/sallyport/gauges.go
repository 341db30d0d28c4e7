package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sallyport-ai/sallyport/audit/tlog"
)

const meterScope = "github.com/sallyport-ai/sallyport/cmd/sallyport"

// watchProcess registers the gauges of what the process lives on: its identity,
// its issuers' keys and its log.
func (p *gatewayProcess) watchProcess(meters metric.MeterProvider) error {
	m := meters.Meter(meterScope)
	published := filepath.Join(p.cfg.Audit.Dir, "checkpoint")
	var all []metric.Observable
	var first error
	keep := func(o metric.Observable, err error) {
		all = append(all, o)
		if first == nil {
			first = err
		}
	}
	seconds := func(name, what string) metric.Float64ObservableGauge {
		g, err := m.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(what))
		keep(g, err)
		return g
	}
	flag := func(name, what string) metric.Int64ObservableGauge {
		g, err := m.Int64ObservableGauge(name, metric.WithDescription(what))
		keep(g, err)
		return g
	}
	var (
		identity   = seconds("sallyport.identity.remaining", "How long our own SVID is still good for; 0: expired.")
		bundles    = seconds("sallyport.identity.federation.age", "Time since the bundle of a federated trust domain was fetched.")
		keys       = seconds("sallyport.identity.keys.age", "Time since the issuer's keys were confirmed.")
		checkpoint = seconds("sallyport.audit.checkpoint.age", "Time since the log's checkpoint was published; an idle log publishes each minute.")
		halted     = flag("sallyport.audit.halted", "1 if the log takes no decisions, so that nothing is forwarded.")
		info       = flag("sallyport.build", "1, for the program that runs.")
		policy     = flag("sallyport.policy", "1, for the policy that is active.")
	)
	records, err := m.Int64ObservableCounter("sallyport.audit.records", metric.WithUnit("{record}"),
		metric.WithDescription("Records in the log, from its beginning."))
	keep(records, err)
	if first != nil {
		return fmt.Errorf("make gauges: %w", first)
	}
	_, err = m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveFloat64(identity, p.source.Remaining().Seconds())
		for domain, age := range p.source.FederationAges() {
			o.ObserveFloat64(bundles, age.Seconds(), metric.WithAttributes(attribute.String("trust_domain", domain)))
		}
		for issuer, age := range p.live.Load().tokens.KeyAge() {
			o.ObserveFloat64(keys, age.Seconds(), metric.WithAttributes(attribute.String("issuer", issuer)))
		}
		if st, err := os.Stat(published); err == nil {
			o.ObserveFloat64(checkpoint, time.Since(st.ModTime()).Seconds())
		}
		stopped := int64(0)
		if p.log.Err() != nil || !p.log.Short().IsZero() {
			stopped = 1
		}
		o.ObserveInt64(halted, stopped)
		o.ObserveInt64(records, int64(p.log.Head().Size))
		o.ObserveInt64(info, 1, metric.WithAttributes(attribute.String("version", build()), attribute.String("go", runtime.Version())))
		snap := p.policy.Snapshot()
		o.ObserveInt64(policy, 1, metric.WithAttributes(attribute.String("revision", snap.Revision()), attribute.String("digest", snap.Digest())))
		return nil
	}, all...)
	if err != nil {
		return fmt.Errorf("watch the process: %w", err)
	}
	return errors.Join(watchAnchors(m, p.log), p.shared.watch(m))
}

// watchAnchors registers the gauges of how much of a log could be rewritten
// unseen.
func watchAnchors(m metric.Meter, log *tlog.Log) error {
	records, err1 := m.Int64ObservableGauge("sallyport.audit.unanchored.records", metric.WithDescription("Records that no quorum of witnesses vouches for yet."))
	age, err2 := m.Float64ObservableGauge("sallyport.audit.unanchored.age", metric.WithUnit("s"), metric.WithDescription("No record has been without an anchor for longer."))
	witness, err3 := m.Int64ObservableGauge("sallyport.audit.witness", metric.WithDescription("1, by what each witness did last: cosigned, failed, refused or, at first, asked."))
	clock, err4 := m.Float64ObservableGauge("sallyport.audit.witness.clock.ahead", metric.WithUnit("s"), metric.WithDescription("By how much a witness's clock was ahead of ours when it cosigned last."))
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return fmt.Errorf("make gauges: %w", err)
	}
	_, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		anchors := log.Anchors()
		o.ObserveInt64(records, int64(anchors.Records))
		if anchors.Configured {
			o.ObserveFloat64(age, anchors.Age.Seconds())
		}
		for _, w := range anchors.Witnesses {
			o.ObserveInt64(witness, 1, metric.WithAttributes(attribute.String("witness", w.Name), attribute.String("state", w.State())))
			o.ObserveFloat64(clock, w.Ahead.Seconds(), metric.WithAttributes(attribute.String("witness", w.Name)))
		}
		return nil
	}, records, age, witness, clock)
	if err != nil {
		return fmt.Errorf("watch the log's anchors: %w", err)
	}
	return nil
}
