package gateway

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/sallyport-ai/sallyport/test/await"
)

// watched is a gateway whose telemetry is kept.
type watched struct {
	*service
	spans    *tracetest.SpanRecorder
	registry *prometheus.Registry
}

func watch(t *testing.T, edits ...func(*Config)) *watched {
	t.Helper()
	w := &watched{spans: tracetest.NewSpanRecorder(), registry: prometheus.NewRegistry()}
	exporter, err := otelprom.New(otelprom.WithRegisterer(w.registry), otelprom.WithoutScopeInfo(), otelprom.WithoutTargetInfo())
	if err != nil {
		t.Fatal(err)
	}
	w.service = serve(t, append([]func(*Config){func(c *Config) {
		c.Meter = metric.NewMeterProvider(metric.WithReader(exporter))
		c.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(w.spans))
	}}, edits...)...)
	return w
}

// trace waits for the spans of a request, those that ended first coming first.
func (w *watched) trace(a answer) []sdktrace.ReadOnlySpan {
	w.tb.Helper()
	var found []sdktrace.ReadOnlySpan
	await.That(w.tb, "the spans of "+a.id(), func() bool {
		for _, s := range w.spans.Ended() {
			if value(s, "sallyport.decision.id") == a.id() {
				for _, of := range w.spans.Ended() {
					if of.SpanContext().TraceID() == s.SpanContext().TraceID() {
						found = append(found, of)
					}
				}
				return true
			}
		}
		return false
	})
	return found
}

// scrape is the metrics page.
func (w *watched) scrape() string {
	r := httptest.NewRecorder()
	promhttp.HandlerFor(w.registry, promhttp.HandlerOpts{}).ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	b, _ := io.ReadAll(r.Body)
	return string(b)
}

// get asks for what stands at path.
func (w *watched) get(who, path string) answer {
	w.tb.Helper()
	req := w.request(w.tb.Context(), who, "")
	to, err := req.URL.Parse(path)
	if err != nil {
		w.tb.Fatal(err)
	}
	req.Method, req.URL, req.Body, req.ContentLength = http.MethodGet, to, nil, 0
	return w.do(req)
}

func value(s sdktrace.ReadOnlySpan, key attribute.Key) string {
	for _, kv := range s.Attributes() {
		if kv.Key == key {
			return kv.Value.String()
		}
	}
	return ""
}

// tree writes spans as an indented list in the order in which they began.
func tree(spans []sdktrace.ReadOnlySpan) string {
	slices.SortFunc(spans, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	var out strings.Builder
	var under func(parent trace.SpanID, depth int)
	under = func(parent trace.SpanID, depth int) {
		for _, s := range spans {
			if s.Parent().SpanID() == parent {
				fmt.Fprintf(&out, "%s%s\n", strings.Repeat("  ", depth), s.Name())
				under(s.SpanContext().SpanID(), depth+1)
			}
		}
	}
	under(trace.SpanID{}, 0)
	return out.String()
}

const whole = `POST /v1/chat/completions
  who
  what
  may
  count
  where
  write
  recheck
  chat small
    forward
    back
  settle
`

func TestARequestIsOneSpanWithASpanForEachStep(t *testing.T) {
	w := watch(t)
	for name, more := range map[string][]string{"whole": nil, "streamed": {streamed}} {
		t.Run(name, func(t *testing.T) {
			spans := w.trace(w.post("acme", chat(w.newMark(), more...)))
			if got := tree(spans); got != whole {
				t.Fatalf("spans\n%s\nwant\n%s", got, whole)
			}
			for _, s := range spans {
				if s.Name() != "chat small" {
					continue
				}
				for key, want := range map[attribute.Key]string{
					"gen_ai.operation.name": "chat", "gen_ai.provider.name": provider, "gen_ai.request.model": "small",
					"gen_ai.response.finish_reasons": `["stop"]`, "gen_ai.request.stream": fmt.Sprint(name == "streamed"), "sallyport.pool": "general",
				} {
					if got := value(s, key); got != want {
						t.Errorf("%s is %q, want %q", key, got, want)
					}
				}
				for _, key := range []attribute.Key{"gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.usage.cache_read.input_tokens", "sallyport.replica"} {
					if value(s, key) == "" {
						t.Errorf("no %s", key)
					}
				}
				if s.SpanKind() != trace.SpanKindClient || !s.StartTime().Before(s.EndTime()) {
					t.Errorf("kind %v, from %v to %v", s.SpanKind(), s.StartTime(), s.EndTime())
				}
			}
		})
	}
	t.Run("another attempt", func(t *testing.T) {
		mark := w.newMark()
		w.engine.on(mark, first(replies(http.StatusServiceUnavailable, engineText)))
		spans := w.trace(w.post("acme", chat(mark)))
		const attempt = "  where\n  write\n  recheck\n  chat small\n    forward\n"
		if got, want := tree(spans), "POST /v1/chat/completions\n  who\n  what\n  may\n  count\n"+attempt+"  settle\n"+attempt+"    back\n  settle\n"; got != want {
			t.Fatalf("spans\n%s\nwant\n%s", got, want)
		}
		var attempts []string
		for _, s := range spans {
			if s.Name() == "chat small" {
				attempts = append(attempts, value(s, "sallyport.attempt")+" "+value(s, "error.type"))
			}
		}
		if !slices.Equal(attempts, []string{"1 no_replica", "2 "}) {
			t.Errorf("attempts %q", attempts)
		}
	})
	t.Run("a list of models", func(t *testing.T) {
		if got, want := tree(w.trace(w.get("acme", "/v1/models"))), "GET /v1/models\n  who\n  what\n  may\n  list\n    write\n    settle\n"; got != want {
			t.Errorf("spans\n%s\nwant\n%s", got, want)
		}
	})
	t.Run("a refusal", func(t *testing.T) {
		spans := w.trace(w.post("initech", chat(w.newMark())))
		if got, want := tree(spans), "POST /v1/chat/completions\n  who\n  what\n  may\n  write\n"; got != want {
			t.Errorf("spans\n%s\nwant\n%s", got, want)
		}
		if got := value(spans[0], "error.type"); got != "policy_denied" {
			t.Errorf("error.type %q", got)
		}
	})
}

func TestACallersTraceparentIsLinkedUnlessItIsTrusted(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	remote, _ := trace.TraceIDFromHex(parent[3:35])
	root := func(w *watched, headers ...string) sdktrace.ReadOnlySpan {
		spans := w.trace(w.post("acme", chat(w.newMark()), headers...))
		i := slices.IndexFunc(spans, func(s sdktrace.ReadOnlySpan) bool { return s.SpanKind() == trace.SpanKindServer })
		return spans[i]
	}
	t.Run("linked", func(t *testing.T) {
		s := root(watch(t), "Traceparent", parent, "Tracestate", "vendor=secret")
		if s.Parent().IsValid() || s.SpanContext().TraceID() == remote {
			t.Error("the caller chose our trace")
		}
		if l := s.Links(); len(l) != 1 || l[0].SpanContext.TraceID() != remote || l[0].SpanContext.TraceState().Len() != 0 {
			t.Errorf("links %+v", l)
		}
	})
	t.Run("trusted", func(t *testing.T) {
		s := root(watch(t, func(c *Config) { c.TrustTraceparent = true }), "Traceparent", parent, "Tracestate", "vendor=secret")
		if s.SpanContext().TraceID() != remote || s.SpanContext().TraceState().Len() != 0 || len(s.Links()) != 0 {
			t.Errorf("trace %s, state %q, links %v", s.SpanContext().TraceID(), s.SpanContext().TraceState(), s.Links())
		}
	})
	for name, header := range map[string][]string{
		"malformed":   {"Traceparent", "00-zz-b7ad6b7169203331-01"},
		"given twice": {"Traceparent", parent, "Traceparent", parent},
		"absent":      nil,
	} {
		t.Run(name, func(t *testing.T) {
			if s := root(watch(t, func(c *Config) { c.TrustTraceparent = true }), header...); s.Parent().IsValid() || len(s.Links()) != 0 {
				t.Errorf("parent %v, links %v", s.Parent(), s.Links())
			}
		})
	}
}

// What a caller or an engine wrote is in no span and in no metric, whatever
// became of the request.
func TestTelemetryHoldsNothingOfWhatCallersWrote(t *testing.T) {
	w := watch(t)
	const canary = "canary-7f3a"
	body := `{"model":"small","user":"CANARY","stop":["CANARY"],"messages":[{"role":"user","content":"CANARY ssn 078-05-1120"},` +
		`{"role":"assistant","tool_calls":[{"id":"CANARY","type":"function","function":{"name":"CANARY","arguments":"{\"CANARY\":1}"}}]},` +
		`{"role":"tool","tool_call_id":"CANARY","content":"CANARY"}],"tools":[{"type":"function","function":{"name":"CANARY","parameters":{"CANARY":1}}}]}`
	headers := []string{"X-Canary", canary, "User-Agent", canary, "Tracestate", "a=" + canary, "Baggage", "a=" + canary}
	for name, c := range map[string]struct{ who, body string }{
		"a tool call":                {"agent", body},
		"a chat":                     {"acme", chat(w.newMark() + canary)},
		"a model that nobody knows":  {"acme", strings.Replace(body, `"small"`, `"CANARY"`, 1)},
		"a field that nobody knows":  {"acme", `{"CANARY":1,"model":"small","messages":[]}`},
		"a type that nobody knows":   {"acme", `{"model":"small","messages":[{"role":"CANARY","content":"x"}]}`},
		"not JSON":                   {"acme", "CANARY"},
		"a caller who may not":       {"initech", body},
		"a caller whom nobody knows": {"nobody", body},
	} {
		t.Run(name, func(t *testing.T) {
			a := w.post(c.who, strings.ReplaceAll(c.body, "CANARY", canary), headers...)
			if a.status == 0 {
				t.Fatal(a.err)
			}
		})
	}
	for _, path := range []string{"/v1/" + canary, "/v1/models?x=" + canary} {
		w.get("acme", path)
	}
	forbidden := []string{canary, "alice", "acme-agent", "peter", "078-05", w.tokens["acme"], w.tokens["agent"]}
	spans := tracetest.SpanStubsFromReadOnlySpans(w.spans.Ended())
	if len(spans) < 20 {
		t.Fatalf("%d spans", len(spans))
	}
	var all bytes.Buffer
	fmt.Fprintf(&all, "%+v\n", spans)
	for _, s := range spans {
		fmt.Fprintf(&all, "%s %v %v %v\n", s.Name, s.Attributes, s.Events, s.Status)
	}
	page := w.scrape()
	for _, text := range forbidden {
		if strings.Contains(all.String(), text) {
			t.Errorf("%q is in a span", text)
		}
		if strings.Contains(page, text) {
			t.Errorf("%q is in a metric", text)
		}
	}
}
