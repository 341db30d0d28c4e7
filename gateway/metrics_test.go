package gateway

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/policies"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/routing/prompt"
	"github.com/sallyport-ai/sallyport/test/await"
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
		withoutTokenizer,
		func(c *Config) { c.Live.Prompts = map[string]*prompt.Memory{"small": templated(t, without)} },
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
		if p := w.g.live.Load().Prompts["small"]; p != nil && p.Model() != w.model && w.g.cfg.Log == audit.Appender(w.log) {
			await.That(t, "a look at what differs", func() bool { return strings.Contains(w.scrape(), "sallyport_prompt_divergences_total{") })
		}
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

func TestEveryRequestIsCountedOnce(t *testing.T) {
	w := watch(t)
	for range 3 {
		w.post("acme", chat(w.newMark()))
	}
	mark := w.newMark()
	w.engine.on(mark, first(replies(http.StatusServiceUnavailable, engineText)))
	w.post("acme", chat(mark))
	w.post("initech", chat(w.newMark()))
	w.post("nobody", "")
	w.get("", "/v1/nowhere")
	w.get("acme", "/v1/models")
	var page string
	for _, line := range []string{
		`sallyport_requests_total{class="chat",code="ok",operation="chat.completions",status="200"} 4`,
		`sallyport_requests_total{class="chat",code="policy_denied",operation="chat.completions",status="403"} 1`,
		`sallyport_requests_total{class="none",code="bad_credential",operation="chat.completions",status="401"} 1`,
		`sallyport_requests_total{class="none",code="not_found",operation="none",status="404"} 1`,
		`sallyport_requests_total{class="discovery",code="ok",operation="models.list",status="200"} 1`,
		`sallyport_denials_total{code="policy_denied",reason="policy_denied"} 1`,
		`sallyport_attempts_total{operation="chat.completions",status="ok"} 4`,
		`sallyport_attempts_total{operation="chat.completions",status="error"} 1`,
		`sallyport_placement_excluded_total{reason="no_headroom"} 1`,
		`gen_ai_client_inference_duration_seconds_count{gen_ai_operation_name="chat",gen_ai_provider_name="sallyport",gen_ai_request_model="small"} 4`,
		`gen_ai_server_request_duration_seconds_count{gen_ai_operation_name="chat",gen_ai_provider_name="sallyport",gen_ai_request_model="small"} 4`,
		`sallyport_requests_in_flight{operation="chat.completions"} 0`,
	} {
		// A request is counted when it is over, which is after its answer.
		if !await.Within(await.Limit, func() bool { page = w.scrape(); return strings.Contains(page, line+"\n") }) {
			t.Errorf("no %s in\n%s", line, page)
		}
	}
	if strings.Contains(page, `gen_ai_operation_name=""`) {
		t.Error("a listing counts as an inference")
	}
}

// What a caller names must not become a series of its own.
func TestB069B070ACallersWordsMakeNoSeries(t *testing.T) {
	w := watch(t)
	ask := func(i int) {
		w.want(w.post("acme", fmt.Sprintf(`{"model":"word-%d","messages":[{"role":"user","content":"x"}]}`, i)), http.StatusForbidden, "policy_denied")
		if a := w.post("agent", chat(w.newMark(), fmt.Sprintf(`"tools":[{"type":"function","function":{"name":"word-%d"}}]`, i))); a.status != http.StatusOK {
			t.Fatalf("a tool's request: %d %s", a.status, a.body)
		}
		w.get("acme", fmt.Sprintf("/v1/word-%d", i))
	}
	const few, many = 60, 160 // in the first, every replica and status has its turn, and our tokenizer is verified
	for i := range few {
		ask(i)
	}
	known := series(w.scrape())
	for i := few; i < many; i++ {
		ask(i)
	}
	// How a prompt compares with what the engine stored is counted now and then, as it
	// comes out, so any of these may come late. None of them is a caller's word.
	for _, result := range []string{checkMatch, checkLength, checkIDs, checkBlocks} {
		known[fmt.Sprintf("sallyport_prompt_checks_total{model=%q,result=%q}", "small", result)] = true
	}
	for _, part := range []prompt.Part{prompt.BOS, prompt.Date, prompt.ToolJSON, prompt.Kwargs, prompt.Content, "unknown"} {
		known[fmt.Sprintf("sallyport_prompt_divergences_total{model=%q,part=%q}", "small", part)] = true
	}
	for name := range series(w.scrape()) {
		if !known[name] {
			t.Errorf("a series that came with more names: %s", name)
		}
	}
	if strings.Contains(w.scrape(), "word-") {
		t.Error("a caller's word is in the metrics")
	}
}

// series are the names, with labels, that a page has values for.
func series(page string) map[string]bool {
	names := make(map[string]bool)
	for line := range strings.Lines(page) {
		if i := strings.LastIndexByte(line, ' '); i > 0 && line[0] != '#' {
			names[line[:i]] = true
		}
	}
	return names
}
