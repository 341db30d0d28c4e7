package gateway

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/policy"
)

// metrics are the instruments of the request path. Attributes come from our own
// small vocabularies, from policy data and from configuration, never from a
// caller, so their number is bounded. docs/metrics.md says what each means.
type metrics struct {
	requests metric.Int64Counter
	inFlight metric.Int64UpDownCounter
	denials  metric.Int64Counter
	attempts metric.Int64Counter

	serverDuration, serverFirst, serverPerToken metric.Float64Histogram
	callDuration, callFirst                     metric.Float64Histogram
	inputTokens, outputTokens                   metric.Int64Histogram
	inputUsage, outputUsage, cachedUsage        metric.Int64Counter

	policy       metric.Float64Histogram
	policyErrors metric.Int64Counter
	append       metric.Float64Histogram
	unavailable  metric.Int64Counter

	placements, excluded, predicted, cached, reported metric.Int64Counter

	prompts, promptChecks, divergences metric.Int64Counter
	count                              metric.Float64Histogram
}

func newMetrics(provider metric.MeterProvider) (*metrics, error) {
	var m metrics
	n := instruments{m: provider.Meter(scope)}
	n.counter(&m.requests, "sallyport.requests", "{request}", "Requests answered, by operation, class, HTTP status and error code; the code of an answer is ok.")
	n.upDown(&m.inFlight, "sallyport.requests.in_flight", "{request}", "Requests that are being served.")
	n.counter(&m.denials, "sallyport.denials", "{request}", "Requests refused for who the caller is, what it may do or how often it asks, by code and reason.")
	n.counter(&m.attempts, "sallyport.attempts", "{attempt}", "Attempts that ended, by operation and status of the outcome record.")

	n.seconds(&m.serverDuration, "gen_ai.server.request.duration", "Time from a request's arrival to the last byte of its answer.", durations)
	n.seconds(&m.serverFirst, "gen_ai.server.time_to_first_token", "Time from a request's arrival to the first byte of its answer.", firsts)
	n.seconds(&m.serverPerToken, "gen_ai.server.time_per_output_token", "Time per output token after the first, of streams.", perToken)
	n.seconds(&m.callDuration, "gen_ai.client.inference.duration", "Time from sending a request to an engine to the last byte of its answer.", durations)
	n.seconds(&m.callFirst, "gen_ai.client.inference.time_to_first_chunk", "Time from sending a request to an engine to the first event of its stream.", durations)
	n.tokens(&m.inputTokens, "gen_ai.client.inference.operation.input_tokens", "Prompt tokens of an inference, as the engine counted them.")
	n.tokens(&m.outputTokens, "gen_ai.client.inference.operation.output_tokens", "Completion tokens of an inference, as the engine counted them.")
	n.counter(&m.inputUsage, "gen_ai.client.inference.usage.input_tokens", "{token}", "Prompt tokens, as engines counted them.")
	n.counter(&m.outputUsage, "gen_ai.client.inference.usage.output_tokens", "{token}", "Completion tokens, as engines counted them.")
	n.counter(&m.cachedUsage, "gen_ai.client.inference.usage.cache_read.input_tokens", "{token}", "Prompt tokens that engines took from their cache.")

	n.seconds(&m.policy, "sallyport.policy.duration", "Time to evaluate policy, by result.", short)
	n.counter(&m.policyErrors, "sallyport.policy.errors", "{evaluation}", "Evaluations that gave no answer, each of which denies, by reason.")
	n.seconds(&m.append, "sallyport.audit.append.duration", "Time until a record was as durable as it must be, by kind of record.", short)
	n.counter(&m.unavailable, "sallyport.audit.unavailable", "{record}", "Records that the log did not take, or not in time, by kind of record.")

	n.counter(&m.placements, "sallyport.placements", "{attempt}", "Attempts placed, by pool, basis, why the basis is not better, and why the replica was chosen.")
	n.counter(&m.excluded, "sallyport.placement.excluded", "{replica}", "Replicas that could not be chosen when an attempt was placed, by reason.")
	n.counter(&m.predicted, "sallyport.predicted_cached_tokens", "{token}", "Prompt tokens that placement expected to find cached, of attempts whose engine reported what it did.")
	n.counter(&m.reported, "sallyport.reported_prompt_tokens", "{token}", "Prompt tokens of the same attempts.")
	n.counter(&m.cached, "sallyport.cached_tokens", "{token}", "Prompt tokens that the engine then reported as cached, of the same attempts.")

	n.counter(&m.prompts, "sallyport.prompts", "{prompt}", "Prompts counted, by model, basis, and why the last step of the chain that was passed over could not do it.")
	n.counter(&m.promptChecks, "sallyport.prompt.checks", "{check}", "Prompts that were held against what an engine made of them, by model and result.")
	n.counter(&m.divergences, "sallyport.prompt.divergences", "{prompt}", "Prompts that differed from the engine's, by model and the part of the prompt where they first do.")
	n.seconds(&m.count, "sallyport.prompt.count.duration", "Time that engines were given to count a prompt, by result.", short)
	return &m, n.err
}

// Bucket boundaries: those of the GenAI conventions, and our own for what takes
// microseconds.
var (
	durations   = []float64{0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}
	firsts      = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}
	perToken    = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5}
	tokenCounts = []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576}
	short       = []float64{50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1}
)

// begun counts a request that has arrived.
func (m *metrics) begun(ctx context.Context, x *exchange) {
	m.inFlight.Add(ctx, 1, metric.WithAttributes(attribute.String("operation", x.op.Name)))
}

// over counts a request that has been answered; f is nil where it was served.
func (m *metrics) over(ctx context.Context, x *exchange, f *Fault) {
	m.inFlight.Add(ctx, -1, metric.WithAttributes(attribute.String("operation", x.op.Name)))
	class := "none" // not read that far
	if x.label.Level != policy.Absent {
		class = x.class.String()
	}
	m.answered(ctx, x.op.Name, class, f)
	if genAIOperations[x.op.Name] == "" {
		return
	}
	m.serverDuration.Record(ctx, time.Since(x.began).Seconds(), metric.WithAttributes(withError(x.genAI(), f)...))
}

// answered counts an answer, also one on a route that does not exist.
func (m *metrics) answered(ctx context.Context, operation, class string, f *Fault) {
	code := "ok"
	if f != nil {
		code = f.Code
	}
	m.requests.Add(ctx, 1, metric.WithAttributes(
		attribute.String("operation", operation), attribute.String("class", class),
		attribute.Int("status", statusOf(f)), attribute.String("code", code)))
	if f != nil && slices.Contains(denialStatuses, f.Status) {
		// The reason as our own table has it: policy may have put its own words.
		m.denials.Add(ctx, 1, metric.WithAttributes(attribute.String("code", code), attribute.String("reason", faultOf(f.Err).Reason)))
	}
}

// denialStatuses are of refusals that are the caller's doing.
var denialStatuses = []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests}

func statusOf(f *Fault) int {
	if f == nil {
		return http.StatusOK
	}
	return f.Status
}

func withError(attrs []attribute.KeyValue, f *Fault) []attribute.KeyValue {
	if f == nil {
		return attrs
	}
	return append(attrs, attribute.String("error.type", f.Code))
}

func (m *metrics) decided(ctx context.Context, d time.Duration, allow bool, err error) {
	result := "deny"
	switch {
	case err != nil:
		result = "error"
		m.policyErrors.Add(ctx, 1, metric.WithAttributes(attribute.String("reason", faultOf(err).Reason)))
	case allow:
		result = "allow"
	}
	m.policy.Record(ctx, d.Seconds(), metric.WithAttributes(attribute.String("result", result)))
}

func (m *metrics) appended(ctx context.Context, kind audit.Kind, d time.Duration, err error) {
	attrs := metric.WithAttributes(attribute.String("kind", string(kind)))
	m.append.Record(ctx, d.Seconds(), attrs)
	if errors.Is(err, audit.ErrUnavailable) {
		m.unavailable.Add(ctx, 1, attrs)
	}
}

func (m *metrics) placed(ctx context.Context, x *exchange) {
	p := &x.reservation.Placement
	m.placements.Add(ctx, 1, metric.WithAttributes(
		attribute.String("pool", p.Pool), attribute.String("basis", string(p.Basis)), attribute.String("basis_reason", string(p.BasisReason)),
		attribute.String("chosen_because", string(p.ChosenBecause))))
	for reason, n := range p.Excluded {
		m.excluded.Add(ctx, int64(n), metric.WithAttributes(attribute.String("reason", string(reason))))
	}
}

// prompted counts a prompt.
func (m *metrics) prompted(ctx context.Context, x *exchange) {
	why := ""
	if n := len(x.tokens.why); n > 0 {
		why = x.tokens.why[n-1]
	}
	m.prompts.Add(ctx, 1, metric.WithAttributes(
		attribute.String("model", x.model.Name), attribute.String("basis", x.tokens.named()), attribute.String("why", why)))
}

// askedEngine counts a question to an engine.
func (m *metrics) askedEngine(ctx context.Context, why string, d time.Duration) {
	if why == "" {
		why = "ok"
	}
	m.count.Record(ctx, d.Seconds(), metric.WithAttributes(attribute.String("result", why)))
}

// checkedPrompt counts a prompt that was held against an engine's.
func (m *metrics) checkedPrompt(ctx context.Context, model, result string) {
	m.promptChecks.Add(ctx, 1, metric.WithAttributes(attribute.String("model", model), attribute.String("result", result)))
}

// diverged counts where a prompt first differed.
func (m *metrics) diverged(ctx context.Context, model, part string) {
	m.divergences.Add(ctx, 1, metric.WithAttributes(attribute.String("model", model), attribute.String("part", part)))
}

// ended counts an attempt.
func (m *metrics) ended(ctx context.Context, x *exchange, e ended) {
	m.attempts.Add(ctx, 1, metric.WithAttributes(attribute.String("operation", x.op.Name), attribute.String("status", e.status)))
	if x.sent.IsZero() {
		return // nothing was sent to an engine
	}
	var f *Fault
	if e.err != nil {
		f = faultOf(e.err)
	}
	attrs := x.genAI()
	m.callDuration.Record(ctx, time.Since(x.sent).Seconds(), metric.WithAttributes(withError(attrs, f)...))
	if !e.first.IsZero() {
		m.serverFirst.Record(ctx, e.ttft.Seconds(), metric.WithAttributes(attrs...))
		if x.request.Stream {
			m.callFirst.Record(ctx, e.first.Sub(x.sent).Seconds(), metric.WithAttributes(attrs...))
		}
	}
	if e.usage != nil {
		m.used(ctx, x, e, attrs)
	}
}

// used counts tokens.
func (m *metrics) used(ctx context.Context, x *exchange, e ended, attrs []attribute.KeyValue) {
	u := e.usage
	named := metric.WithAttributes(attrs...)
	m.inputTokens.Record(ctx, int64(u.PromptTokens), named)
	m.outputTokens.Record(ctx, int64(u.CompletionTokens), named)
	if n := u.CompletionTokens; x.request.Stream && e.err == nil && n > 1 {
		m.serverPerToken.Record(ctx, time.Since(e.first).Seconds()/float64(n-1), named)
	}
	spent := metric.WithAttributes(append(attrs, attribute.String("gen_ai.token.modality", x.modality()))...)
	m.inputUsage.Add(ctx, int64(u.PromptTokens), spent)
	m.outputUsage.Add(ctx, int64(u.CompletionTokens), spent)
	if u.CachedTokens != nil {
		m.cachedUsage.Add(ctx, int64(*u.CachedTokens), spent)
		by := metric.WithAttributes(attribute.String("pool", x.reservation.Placement.Pool), attribute.String("class", x.class.String()))
		m.predicted.Add(ctx, int64(x.reservation.Placement.Predicted), by)
		m.cached.Add(ctx, int64(*u.CachedTokens), by)
		m.reported.Add(ctx, int64(u.PromptTokens), by)
	}
}

// modality is text, unless the request holds something else: engines do not
// break their counts down.
func (x *exchange) modality() string {
	if x.request.Media {
		return "unknown"
	}
	return "text"
}

// instruments makes instruments and keeps the first error.
type instruments struct {
	m        metric.Meter
	observed []metric.Observable // those that are read when somebody looks
	err      error
}

func (n *instruments) keep(err error) {
	if n.err == nil {
		n.err = err
	}
}

func (n *instruments) counter(into *metric.Int64Counter, name, unit, what string) {
	c, err := n.m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(what))
	*into = c
	n.keep(err)
}

func (n *instruments) upDown(into *metric.Int64UpDownCounter, name, unit, what string) {
	c, err := n.m.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(what))
	*into = c
	n.keep(err)
}

func (n *instruments) seconds(into *metric.Float64Histogram, name, what string, buckets []float64) {
	h, err := n.m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(what), metric.WithExplicitBucketBoundaries(buckets...))
	*into = h
	n.keep(err)
}

func (n *instruments) tokens(into *metric.Int64Histogram, name, what string) {
	h, err := n.m.Int64Histogram(name, metric.WithUnit("{token}"), metric.WithDescription(what), metric.WithExplicitBucketBoundaries(tokenCounts...))
	*into = h
	n.keep(err)
}

func (n *instruments) gauge(name, unit, what string) metric.Int64ObservableGauge {
	g, err := n.m.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(what))
	n.observed = append(n.observed, g)
	n.keep(err)
	return g
}

func (n *instruments) ratio(name, unit, what string) metric.Float64ObservableGauge {
	g, err := n.m.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(what))
	n.observed = append(n.observed, g)
	n.keep(err)
	return g
}

func (n *instruments) count(name, unit, what string) metric.Int64ObservableCounter {
	c, err := n.m.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(what))
	n.observed = append(n.observed, c)
	n.keep(err)
	return c
}
