package gateway

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sallyport-ai/sallyport/routing/fleet"
)

// watchFleet registers the gauges of replicas, which are read from the fleet
// whenever somebody looks. A replica is named by its SPIFFE ID, or by its
// address until it has proven one; configuration bounds how many there are.
func watchFleet(provider metric.MeterProvider, f *fleet.Fleet) error {
	m := provider.Meter(scope)
	var all []metric.Observable
	var err error
	gauge := func(name, unit, what string) metric.Int64ObservableGauge {
		g, e := m.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(what))
		if e != nil && err == nil {
			err = e
		}
		all = append(all, g)
		return g
	}
	ratio := func(name, unit, what string) metric.Float64ObservableGauge {
		g, e := m.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(what))
		if e != nil && err == nil {
			err = e
		}
		all = append(all, g)
		return g
	}
	count := func(name, unit, what string) metric.Int64ObservableCounter {
		c, e := m.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(what))
		if e != nil && err == nil {
			err = e
		}
		all = append(all, c)
		return c
	}
	var (
		state      = gauge("sallyport.replica.state", "", "1 for the state that the replica is in: ready, or why it takes no requests.")
		stream     = gauge("sallyport.replica.stream", "", "1 for the state of the replica's residency stream.")
		indexed    = gauge("sallyport.replica.blocks.indexed", "{block}", "Prompt blocks that the index knows to be on the replica.")
		used       = gauge("sallyport.replica.blocks.used", "{block}", "KV blocks in use, as the engine reports.")
		total      = gauge("sallyport.replica.blocks.capacity", "{block}", "KV blocks that the engine has.")
		running    = gauge("sallyport.replica.running", "{request}", "Requests that the replica works on.")
		waiting    = gauge("sallyport.replica.waiting_tokens", "{token}", "Prompt tokens that wait for their prefill.")
		prefill    = gauge("sallyport.replica.prefill.rate", "{token}/s", "How fast the replica prefills, as measured.")
		confidence = ratio("sallyport.replica.confidence", "1", "How far predictions of cached tokens are believed, 0 to 1.")
		lag        = ratio("sallyport.replica.event.lag", "s", "How far the replica's cache events are behind.")
		doubt      = gauge("sallyport.replica.doubt", "", "1 while what the replica says it holds earns no credit, under the reason; 0 without a doubt.")
		doubts     = count("sallyport.replica.doubts", "{doubt}", "Times that the replica came to be in doubt.")
		told       = count("sallyport.replica.blocks.told", "{block}", "Blocks that the replica said it holds, since it was first watched.")
		predicted  = count("sallyport.replica.predicted_cached_tokens", "{token}", "Prompt tokens that placement expected to find cached, of requests whose engine reported what it found.")
		cached     = count("sallyport.replica.cached_tokens", "{token}", "Prompt tokens that the engine then reported as cached.")
		prompt     = count("sallyport.replica.prompt_tokens", "{token}", "Prompt tokens of the same requests.")
		memory     = gauge("sallyport.index.memory", "By", "Memory that the residency index has allocated.")
	)
	if err != nil {
		return fmt.Errorf("make gauges: %w", err)
	}
	_, err = m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(memory, f.IndexBytes())
		for _, s := range f.Replicas() {
			who := named(s)
			is := func(key, value string) metric.ObserveOption {
				return metric.WithAttributes(append(who[:len(who):len(who)], attribute.String(key, value))...)
			}
			of := metric.WithAttributes(who...)
			now := string(s.Excluded)
			if now == "" {
				now = "ready"
			}
			o.ObserveInt64(state, 1, is("state", now))
			o.ObserveInt64(stream, 1, is("state", s.Stream.String()))
			o.ObserveInt64(indexed, int64(s.Blocks), of)
			o.ObserveInt64(used, s.KVUsed, of)
			o.ObserveInt64(total, s.KVTotal, of)
			o.ObserveInt64(running, s.Running, of)
			o.ObserveInt64(waiting, s.Waiting, of)
			o.ObserveInt64(prefill, s.PrefillPS, of)
			o.ObserveFloat64(confidence, float64(s.Confidence)/1000, of)
			o.ObserveInt64(doubt, inDoubt(s), is("doubt", string(s.Doubt)))
			o.ObserveInt64(doubts, int64(s.Doubts), of)
			o.ObserveInt64(told, int64(s.BlocksIn), of)
			o.ObserveInt64(predicted, int64(s.Predicted), of)
			o.ObserveInt64(cached, int64(s.Cached), of)
			o.ObserveInt64(prompt, int64(s.Prompt), of)
			o.ObserveFloat64(lag, float64(s.LagMS)/1000, of)
		}
		return nil
	}, all...)
	if err != nil {
		return fmt.Errorf("watch the fleet: %w", err)
	}
	return nil
}

func inDoubt(s fleet.Status) int64 {
	if s.Doubt == "" {
		return 0
	}
	return 1
}

func named(s fleet.Status) []attribute.KeyValue {
	id := s.ID
	if id == "" {
		id = s.Target.Address
	}
	return []attribute.KeyValue{attribute.String("pool", s.Target.Pool), attribute.String("replica", id)}
}
