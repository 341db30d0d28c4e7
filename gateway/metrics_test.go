package gateway

import (
	"context"
	"io/fs"
	"net/http"
	"slices"
	"testing"
	"testing/fstest"
	"time"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/policies"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/test/metricsdoc"
)

// eventful is what gateways show to whom every kind of thing has happened: the
// pages of their metrics and their spans.
func eventful(t *testing.T) (pages []string, spans tracetest.SpanStubs) {
	t.Helper()
	data, err := policies.Demo()
	if err != nil {
		t.Fatal(err)
	}
	failing, err := policy.Load(t.Context(), policy.Config{
		Layers: append([]fs.FS{fstest.MapFS{"sallyport/decision.rego": {Data: []byte(misbehaving)}}}, data), Timeout: 5 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	halted := appendFunc(func(context.Context, *audit.Record) (audit.Position, error) {
		return audit.Position{}, audit.ErrUnavailable
	})
	for _, edit := range []func(*Config){
		func(*Config) {},
		func(c *Config) { c.Policy = failing },
		func(c *Config) { c.Log = halted },
	} {
		w := watch(t, edit)
		for _, body := range []string{chat(w.newMark()), chat(w.newMark(), streamed), chat(w.newMark(), `"max_tokens":7`), "{"} {
			w.post("acme", body)
		}
		w.post("initech", chat(w.newMark()))
		w.post("nobody", "")
		w.get("acme", "/v1/models")
		w.get("acme", "/v1/nowhere")
		mark := w.newMark()
		w.engine.on(mark, first(replies(http.StatusServiceUnavailable, engineText)))
		w.post("acme", chat(mark))
		pages = append(pages, w.scrape())
		spans = append(spans, tracetest.SpanStubsFromReadOnlySpans(w.spans.Ended())...)
	}
	return pages, spans
}

func TestEveryMetricAndSpanIsDocumentedAndNoOther(t *testing.T) {
	pages, spans := eventful(t)
	metricsdoc.Check(t, "Gateway", metricsdoc.Scraped(t, pages...))
	shown := make(map[string]metricsdoc.Thing)
	for _, s := range spans {
		if s.Name == "GET /v1/models" {
			continue // a route like the one that stands for all
		}
		thing := shown[s.Name]
		thing.Kind = s.SpanKind.String()
		for _, kv := range s.Attributes {
			if key := string(kv.Key); key != "error.type" && !slices.Contains(thing.Keys, key) {
				thing.Keys = append(thing.Keys, key)
			}
		}
		shown[s.Name] = thing
	}
	metricsdoc.Check(t, "Spans", shown)
}
