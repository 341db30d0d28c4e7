package gateway

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/sallyport-ai/sallyport/policy"
)

// Spans hold what operators need to find a slow step, and nothing that a caller
// wrote: no prompt, no tool, no subject, no text of an error. Their names and
// attributes are listed in docs/metrics.md.

// scope names the instruments and spans of this package.
const scope = "github.com/sallyport-ai/sallyport/gateway"

// startSpan starts the span of the whole request. The caller's traceparent is
// only its claim: it is linked, and becomes the parent only where the
// configuration trusts callers with it. Its tracestate goes nowhere.
func (x *exchange) startSpan(r *http.Request) context.Context {
	ctx := r.Context()
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)}
	if remote := traceparent(r); remote.IsValid() && x.g.cfg.TrustTraceparent {
		ctx = trace.ContextWithRemoteSpanContext(ctx, remote)
	} else {
		opts = append(opts, trace.WithNewRoot())
		if remote.IsValid() {
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: remote}))
		}
	}
	ctx, x.span = x.g.tracer.Start(ctx, x.op.Method+" "+x.op.Path, opts...)
	return ctx
}

// traceparent reads the one header that is taken from a caller.
func traceparent(r *http.Request) trace.SpanContext {
	const name = "Traceparent"
	if len(r.Header.Values(name)) != 1 {
		return trace.SpanContext{}
	}
	carrier := propagation.MapCarrier{"traceparent": r.Header.Get(name)}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(r.Context(), carrier))
}

// endSpan ends it with what has become known of the request.
func (x *exchange) endSpan(f *Fault) {
	if !x.span.IsRecording() {
		return
	}
	x.span.SetAttributes(
		attribute.String("http.request.method", x.op.Method), attribute.String("http.route", x.op.Path),
		attribute.String("url.scheme", "https"), attribute.Int("http.response.status_code", statusOf(f)),
		attribute.String("sallyport.decision.id", x.id),
	)
	if x.authenticated() {
		x.span.SetAttributes(attribute.String("sallyport.tenant", x.principal.Tenant))
	}
	if f != nil {
		x.span.SetAttributes(attribute.String("error.type", f.Code))
	}
	if f != nil && f.Status >= http.StatusInternalServerError { // a server's span is not in error for a refusal
		x.span.SetStatus(codes.Error, f.Code)
	}
	x.span.End()
}

// step runs one step of the pipeline in a span of its name. Where nobody
// traces, it only runs it.
func (x *exchange) step(ctx context.Context, name string, run func(context.Context) error) error {
	if !x.span.IsRecording() {
		return run(ctx)
	}
	if name == "forward" {
		x.startCall(ctx)
	}
	if x.call != nil {
		ctx = trace.ContextWithSpan(ctx, x.call)
	}
	ctx, span := x.g.tracer.Start(ctx, name)
	defer span.End()
	err := run(ctx)
	if learnt := lessons[name]; learnt != nil {
		span.SetAttributes(learnt(x)...)
	}
	if err != nil {
		fail(span, err)
	}
	return err
}

func fail(span trace.Span, err error) {
	f := faultOf(err)
	span.SetAttributes(attribute.String("error.type", f.Code))
	span.SetStatus(codes.Error, f.Code)
}

// startCall starts the span of the call to an engine: one inference as the
// GenAI conventions have it, from the first byte sent to the last one received.
// The steps forward and back are inside it, and settle ends it.
func (x *exchange) startCall(ctx context.Context) {
	name := genAIOperations[x.op.Name] + " " + x.model.Name
	_, x.call = x.g.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(x.genAI()...))
	x.call.SetAttributes(
		attribute.Bool("gen_ai.request.stream", x.request.Stream),
		attribute.String("sallyport.pool", x.reservation.Replica.Pool),
		attribute.String("sallyport.replica", x.reservation.Replica.ID),
		attribute.Int("sallyport.attempt", x.attempt),
	)
	if n := x.maxOutput(); n > 0 {
		x.call.SetAttributes(attribute.Int("gen_ai.request.max_tokens", n))
	}
}

// endCall ends it with how the attempt ended.
func (x *exchange) endCall(e ended) {
	if x.call == nil {
		return
	}
	if reason := finishReason(e.finish); reason != "" {
		x.call.SetAttributes(attribute.StringSlice("gen_ai.response.finish_reasons", []string{reason}))
	}
	if u := e.usage; u != nil {
		x.call.SetAttributes(attribute.Int("gen_ai.usage.input_tokens", u.PromptTokens), attribute.Int("gen_ai.usage.output_tokens", u.CompletionTokens))
		if u.CachedTokens != nil {
			x.call.SetAttributes(attribute.Int("gen_ai.usage.cache_read.input_tokens", *u.CachedTokens))
		}
	}
	if !e.first.IsZero() && x.request.Stream {
		x.call.SetAttributes(attribute.Float64("gen_ai.response.time_to_first_chunk", e.first.Sub(x.sent).Seconds()))
	}
	if e.err != nil {
		fail(x.call, e.err)
	}
	x.call.End()
	x.call = nil
}

// genAIOperations are the names that the GenAI conventions have for what our
// routes do; a route without one is no inference.
var genAIOperations = map[string]string{
	"chat.completions": "chat",
	"messages":         "chat",
	"responses":        "chat",
	"completions":      "text_completion",
	"embeddings":       "embeddings",
}

// provider is what the GenAI conventions call the one who runs the model. Ours
// are none of those on their list.
const provider = "sallyport"

// genAI names the inference. A model that policy does not know is text of the
// caller's, so it is left out.
func (x *exchange) genAI() []attribute.KeyValue {
	attrs := append(make([]attribute.KeyValue, 0, 4),
		attribute.String("gen_ai.operation.name", genAIOperations[x.op.Name]), attribute.String("gen_ai.provider.name", provider))
	if x.model.Name != "" {
		attrs = append(attrs, attribute.String("gen_ai.request.model", x.model.Name))
	}
	return attrs
}

// finishReason lets through what engines are known to say. Anything else is the
// engine's text, and might be more than a reason.
func finishReason(s string) string {
	switch s {
	case "", "stop", "length", "tool_calls", "content_filter", "function_call", "abort", "error",
		"end_turn", "max_tokens", "stop_sequence", "tool_use", "completed", "incomplete", "max_output_tokens":
		return s
	default:
		return "other"
	}
}

// lessons are what the span of each step says of what the step found out.
var lessons = map[string]func(*exchange) []attribute.KeyValue{
	"who": func(x *exchange) []attribute.KeyValue {
		if !x.authenticated() {
			return nil
		}
		return []attribute.KeyValue{
			attribute.String("sallyport.method", string(x.principal.Method)), attribute.String("sallyport.kind", string(x.principal.Kind)),
		}
	},
	"what": func(x *exchange) []attribute.KeyValue {
		attrs := []attribute.KeyValue{
			attribute.Int("http.request.body.size", len(x.body)),
			attribute.Int("sallyport.prompt_tokens", x.tokens.count), attribute.String("sallyport.prompt_tokens.basis", x.tokens.basis),
		}
		if x.label.Level != policy.Absent {
			attrs = append(attrs, attribute.String("sallyport.class", x.class.String()), attribute.String("sallyport.label", x.label.Level.String()))
		}
		return attrs
	},
	"may": func(x *exchange) []attribute.KeyValue {
		return []attribute.KeyValue{
			attribute.Bool("sallyport.allow", x.decision.Allow), attribute.String("sallyport.policy.revision", x.snap.Revision()),
		}
	},
	"count": func(x *exchange) []attribute.KeyValue {
		return []attribute.KeyValue{
			attribute.Int("sallyport.prompt_tokens", x.tokens.count), attribute.String("sallyport.prompt_tokens.basis", x.tokens.named()),
		}
	},
	"where": func(x *exchange) []attribute.KeyValue {
		if x.reservation == nil {
			return nil
		}
		p := &x.reservation.Placement
		return []attribute.KeyValue{
			attribute.String("sallyport.pool", p.Pool), attribute.String("sallyport.replica", p.ID),
			attribute.String("sallyport.strategy", string(p.Strategy)), attribute.String("sallyport.basis", string(p.Basis)),
			attribute.String("sallyport.basis_reason", string(p.BasisReason)), attribute.String("sallyport.chosen_because", string(p.ChosenBecause)),
			attribute.Int("sallyport.predicted_cached_tokens", p.Predicted), attribute.Int("sallyport.candidates", p.Considered),
		}
	},
	"write": func(x *exchange) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("sallyport.durability", string(x.durability()))}
	},
	"recheck": func(x *exchange) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.Bool("sallyport.stale", x.stale != nil)}
	},
}
