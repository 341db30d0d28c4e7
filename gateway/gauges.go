package gateway

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sallyport-ai/sallyport/routing/fleet"
)

// watchFleet registers the gauges of replicas, which are read from the fleet
// whenever somebody looks.
func watchFleet(provider metric.MeterProvider, f *fleet.Fleet) error {
	n := instruments{m: provider.Meter(scope)}
	readings, pools := n.ofReplicas(), n.ofPools()
	memory := n.gauge("sallyport.index.memory", "By", "Memory that the residency index has allocated.")
	if n.err != nil {
		return fmt.Errorf("make gauges: %w", n.err)
	}
	_, err := n.m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(memory, f.IndexBytes())
		for _, s := range f.Replicas() {
			r := label(s)
			for _, read := range readings {
				read(o, r)
			}
		}
		for _, p := range f.Pools() {
			pools(o, p)
		}
		return nil
	}, n.observed...)
	if err != nil {
		return fmt.Errorf("watch the fleet: %w", err)
	}
	return nil
}

// watchPrompts registers the gauge of how far each model's tokenizer is believed.
func (g *Gateway) watchPrompts(provider metric.MeterProvider) error {
	n := instruments{m: provider.Meter(scope)}
	level := n.gauge("sallyport.prompt.level", "", "1 for how far the token ids that we compute for the model are believed.")
	blind := n.gauge("sallyport.prompt.no_overlap", "", "1 while engines find prefixes cached that no prediction foretells, although their events are followed.")
	if n.err != nil {
		return fmt.Errorf("make gauges: %w", n.err)
	}
	_, err := n.m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for model, alarm := range g.overlap.alarms() {
			v := int64(0)
			if alarm {
				v = 1
			}
			o.ObserveInt64(blind, v, metric.WithAttributes(attribute.String("model", model)))
		}
		for model, standing := range g.live.Load().standings {
			o.ObserveInt64(level, 1, metric.WithAttributes(attribute.String("model", model), attribute.String("level", standing.Level().String())))
		}
		return nil
	}, n.observed...)
	if err != nil {
		return fmt.Errorf("watch prompts: %w", err)
	}
	return nil
}

// labelled is one of the fleet as gauges see it. It is named by its SPIFFE ID,
// or by its address until it has proven one; configuration bounds how many there
// are.
type labelled struct {
	fleet.Status
	who   []attribute.KeyValue
	named metric.ObserveOption // the same
}

func label(s fleet.Status) *labelled {
	id := s.ID
	if id == "" {
		id = s.Target.Address
	}
	who := []attribute.KeyValue{attribute.String("pool", s.Target.Pool), attribute.String("replica", id)}
	return &labelled{Status: s, who: who, named: metric.WithAttributes(who...)}
}

// reading observes one thing of a replica.
type reading func(metric.Observer, *labelled)

func (n *instruments) ofReplicas() []reading {
	return []reading{
		n.state("sallyport.replica.state", "1 for the state that the replica is in: ready, or why it takes no requests.", func(r *labelled) string {
			if r.Excluded == "" {
				return "ready"
			}
			return string(r.Excluded)
		}),
		n.state("sallyport.replica.stream", "1 for the state of the replica's residency stream.", func(r *labelled) string { return r.Stream.String() }),
		n.doubt("sallyport.replica.doubt", "1 while what the replica says it holds earns no credit, under the reason; 0 without a doubt."),

		n.level("sallyport.replica.blocks.indexed", "{block}", "Prompt blocks that the index knows to be on the replica.", func(r *labelled) int64 { return int64(r.Blocks) }),
		n.level("sallyport.replica.blocks.used", "{block}", "KV blocks in use, as the engine reports.", func(r *labelled) int64 { return r.KVUsed }),
		n.level("sallyport.replica.blocks.capacity", "{block}", "KV blocks that the engine has.", func(r *labelled) int64 { return r.KVTotal }),
		n.level("sallyport.replica.running", "{request}", "Requests that the replica works on.", func(r *labelled) int64 { return r.Running }),
		n.level("sallyport.replica.waiting_tokens", "{token}", "Prompt tokens that wait for their prefill.", func(r *labelled) int64 { return r.Waiting }),
		n.level("sallyport.replica.prefill.rate", "{token}/s", "How fast the replica prefills, as measured.", func(r *labelled) int64 { return 1e12 / max(r.PrefillPS, 1) }),
		n.share("sallyport.replica.confidence", "1", "How far predictions of cached tokens are believed, 0 to 1.", func(r *labelled) float64 { return float64(r.Confidence) / 1000 }),
		n.share("sallyport.replica.event.lag", "s", "How far the replica's cache events are behind.", func(r *labelled) float64 { return float64(r.LagMS) / 1000 }),

		n.share("sallyport.replica.load.imbalance", "1", "Load of the replica over the mean of its pool.", func(r *labelled) float64 { return r.LoadRatio }),
		n.share("sallyport.replica.blocks.imbalance", "1", "Blocks that the index knows to be on the replica over the mean of its pool.", func(r *labelled) float64 { return r.BlockRatio }),

		n.total("sallyport.replica.doubts", "{doubt}", "Times that the replica came to be in doubt.", func(r *labelled) int64 { return int64(r.Doubts) }),
		n.total("sallyport.replica.blocks.told", "{block}", "Blocks that the replica said it holds, since it was first watched.", func(r *labelled) int64 { return int64(r.BlocksIn) }),
		n.total("sallyport.replica.predicted_cached_tokens", "{token}", "Prompt tokens that placement expected to find cached, of requests whose engine reported what it found.", func(r *labelled) int64 { return int64(r.Predicted) }),
		n.total("sallyport.replica.cached_tokens", "{token}", "Prompt tokens that the engine then reported as cached.", func(r *labelled) int64 { return int64(r.Cached) }),
		n.total("sallyport.replica.prompt_tokens", "{token}", "Prompt tokens of the same requests.", func(r *labelled) int64 { return int64(r.Prompt) }),
	}
}

// ofPools observes what a pool's replicas are together.
func (n *instruments) ofPools() func(metric.Observer, fleet.PoolStatus) {
	hot := n.gauge("sallyport.pool.hot_replicas", "{replica}", "Replicas with far more load than the mean of their pool.")
	lookups := n.count("sallyport.pool.lookups", "{prompt}", "Placed prompts that were looked up in the residency index.")
	overlaps := n.count("sallyport.pool.overlaps", "{prompt}", "Of these, prompts of which somebody held a beginning.")
	without := n.gauge("sallyport.pool.no_overlap", "", "1 while replicas tell of blocks and no prompt has overlapped with any for long.")
	return func(o metric.Observer, p fleet.PoolStatus) {
		named := metric.WithAttributes(attribute.String("pool", p.Name))
		o.ObserveInt64(hot, int64(p.Hot), named)
		o.ObserveInt64(lookups, int64(p.Lookups), named)
		o.ObserveInt64(overlaps, int64(p.Overlaps), named)
		no := int64(0)
		if p.NoOverlap {
			no = 1
		}
		o.ObserveInt64(without, no, named)
	}
}

func (n *instruments) level(name, unit, what string, of func(*labelled) int64) reading {
	g := n.gauge(name, unit, what)
	return func(o metric.Observer, r *labelled) { o.ObserveInt64(g, of(r), r.named) }
}

func (n *instruments) share(name, unit, what string, of func(*labelled) float64) reading {
	g := n.ratio(name, unit, what)
	return func(o metric.Observer, r *labelled) { o.ObserveFloat64(g, of(r), r.named) }
}

func (n *instruments) total(name, unit, what string, of func(*labelled) int64) reading {
	c := n.count(name, unit, what)
	return func(o metric.Observer, r *labelled) { o.ObserveInt64(c, of(r), r.named) }
}

// state is 1 under what the replica is.
func (n *instruments) state(name, what string, of func(*labelled) string) reading {
	g := n.gauge(name, "", what)
	return func(o metric.Observer, r *labelled) { o.ObserveInt64(g, 1, r.under("state", of(r))) }
}

// doubt is 1 under the reason, where there is one.
func (n *instruments) doubt(name, what string) reading {
	g := n.gauge(name, "", what)
	return func(o metric.Observer, r *labelled) {
		doubted := int64(0)
		if r.Doubt != "" {
			doubted = 1
		}
		o.ObserveInt64(g, doubted, r.under("doubt", string(r.Doubt)))
	}
}

// under names the replica with one attribute more.
func (r *labelled) under(key, value string) metric.ObserveOption {
	return metric.WithAttributes(append(r.who[:len(r.who):len(r.who)], attribute.String(key, value))...)
}
