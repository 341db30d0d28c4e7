// Package gateway carries a request from an authenticated caller to a permitted
// replica and leaves a record of it.
//
// Start at pipeline.go, which reads from top to bottom in the order that is the
// product: who, what, may they, where, written down, forward, stream back,
// outcome. [New] checks the parts; [Gateway.Handler] is the public listener and
// [Gateway.Admin] the other one.
package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway/detect"
	"github.com/sallyport-ai/sallyport/gateway/rate"
	"github.com/sallyport-ai/sallyport/gateway/upstream"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/routing/fleet"
	"github.com/sallyport-ai/sallyport/routing/prompt"
	"github.com/sallyport-ai/sallyport/routing/ticket"
)

// Config holds the parts of a gateway. All of them are required, except where
// it says otherwise.
type Config struct {
	Live     Live // what [Gateway.Swap] may replace later
	Policy   *policy.Engine
	Fleet    *fleet.Fleet
	Upstream *upstream.Client
	Tickets  *ticket.Signer
	Log      audit.Appender
	Quotas   *audit.Quotas // of bytes in the log, by tenant; nil: none
	Denials  *audit.Denials
	Meter    metric.MeterProvider
	Tracer   trace.TracerProvider // nil traces nothing
	Region   string               // where we are
	Ready    func() error         // nil while the process's own identity holds
	// PromptMAC returns the MAC of a tenant's prompt under a key of that time,
	// for the record. nil: records have none.
	PromptMAC func(tenant string, at time.Time, prompt []byte) (string, error)
	Secret    [32]byte // seals conversations and pseudonyms; gateways of one fleet share it

	// TrustTraceparent lets a caller's traceparent be the parent of its
	// request's span, and so decide whether it is sampled. Otherwise it is
	// linked.
	TrustTraceparent bool

	// Durability is the least that any decision is written with, whatever
	// policy asks for. The zero value is strict.
	Durability    audit.Durability
	AppendTimeout time.Duration // 0 means 250 ms
	CountTimeout  time.Duration // how long an engine may take to count a prompt, its record included; 0 means 50 ms
	MaxAttempts   int           // replicas tried for one request; 0 means 3
	Total         time.Duration // longest time for one request, from its header to its last byte; 0 means 1 h
	Logger        *slog.Logger  // nil discards

	// NotifyPrompt is told when evidence changes how far a model's own tokenizer
	// is believed. It must not wait. nil: nobody is told.
	NotifyPrompt func(PromptNotice)
}

// Live is the part of a gateway that may change while it serves. A request uses
// one Live throughout.
type Live struct {
	Self     audit.Gateway             // who we are, and by which configuration, for records
	Identity identity.Chain            // TenantOf is filled in for each request
	Prompts  map[string]*prompt.Memory // by served name; a model without one is estimated
	Limits   wire.Limits
	Rates    Rates
	Resource Resource // what OAuth clients are told

	// InflightBytes bounds the bodies of all requests together. What a request
	// takes in memory is some six times its body, and up to fifteen while its
	// prompt is counted. 0 means 512 MiB.
	InflightBytes int64

	oauth     *oauth                      // Resource, made ready
	standings map[string]*prompt.Standing // of Prompts, by the same names
}

func (l Live) check() (*Live, error) {
	if l.Identity.Connection == nil && len(l.Identity.Request) == 0 {
		return nil, errors.New("gateway: a way to authenticate is required")
	}
	if l.Limits.BodyBytes <= 0 {
		l.Limits.BodyBytes = 16 << 20
	}
	if l.InflightBytes <= 0 {
		l.InflightBytes = 512 << 20
	}
	if l.InflightBytes < int64(l.Limits.BodyBytes) {
		return nil, errors.New("gateway: a single body may be larger than all bodies in flight together")
	}
	if err := l.Rates.check(); err != nil {
		return nil, fmt.Errorf("gateway: rates: %w", err)
	}
	var err error
	l.oauth, err = l.Resource.ready()
	return &l, err
}

// Gateway is the ingress. It is safe for concurrent use.
type Gateway struct {
	cfg          Config // but for its Live, which live holds
	live         atomic.Pointer[Live]
	keepAlive    time.Duration // how long a stream may be silent
	writeTimeout time.Duration // how long a client may leave an event unread
	detect       detect.Scanner
	convKey      conversationKey
	metrics      *metrics
	retries      budget
	running      running
	withdrawn    bell // rung when credentials may have been withdrawn
	inflight     inflight
	callers      *rate.Table
	sources      *rate.Table
	counting     counters
	looks        looks
	overlap      overlap
	tracer       trace.Tracer
}

// New returns a gateway, or an error that names what is missing.
func New(cfg Config) (*Gateway, error) {
	missing := func(name string, absent bool) error {
		if absent {
			return fmt.Errorf("gateway: %s is required", name)
		}
		return nil
	}
	if err := errors.Join(
		missing("Policy", cfg.Policy == nil), missing("Fleet", cfg.Fleet == nil),
		missing("Upstream", cfg.Upstream == nil), missing("Tickets", cfg.Tickets == nil),
		missing("Log", cfg.Log == nil), missing("Denials", cfg.Denials == nil),
		missing("Meter", cfg.Meter == nil),
		missing("Ready", cfg.Ready == nil), missing("Secret", cfg.Secret == [32]byte{}),
	); err != nil {
		return nil, err
	}
	if cfg.AppendTimeout <= 0 {
		cfg.AppendTimeout = 250 * time.Millisecond
	}
	if cfg.CountTimeout <= 0 {
		cfg.CountTimeout = 50 * time.Millisecond
	}
	if cfg.MaxAttempts <= 0 {
		cfg.MaxAttempts = 3
	}
	if cfg.Total <= 0 {
		cfg.Total = time.Hour
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Tracer == nil {
		cfg.Tracer = noop.NewTracerProvider()
	}
	m, err := newMetrics(cfg.Meter)
	if err == nil {
		err = watchFleet(cfg.Meter, cfg.Fleet)
	}
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	g := &Gateway{cfg: cfg, callers: rate.NewTable(0, nil), sources: rate.NewTable(0, nil), keepAlive: keepAlive, writeTimeout: writeTimeout, metrics: m, tracer: cfg.Tracer.Tracer(scope)}
	g.cfg.Live = Live{}
	g.convKey = conversationKey(g.derive("conversation"))
	if err := g.Swap(cfg.Live); err != nil {
		return nil, err
	}
	if err := g.watchPrompts(cfg.Meter); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	return g, nil
}

// Swap replaces what may change while the gateway serves. Requests that are
// running keep what they began with. After an error nothing has changed.
func (g *Gateway) Swap(l Live) error {
	checked, err := l.check()
	if err != nil {
		return err
	}
	checked.standings = standings(checked.Prompts, g.live.Load())
	g.live.Store(checked)
	return nil
}

// standings is the evidence on each model: what there is already, where the
// model is what it was.
func standings(prompts map[string]*prompt.Memory, before *Live) map[string]*prompt.Standing {
	out := make(map[string]*prompt.Standing, len(prompts))
	for name, m := range prompts {
		out[name] = new(prompt.Standing)
		if before == nil || before.Prompts[name] == nil {
			continue
		}
		switch old := before.standings[name]; {
		case before.Prompts[name].Model().Digest() == m.Model().Digest():
			out[name] = old
		case old.Level() == prompt.Distrusted:
			// What takes the place of files that were wrong must be shown to be right
			// before it is used.
			out[name] = prompt.NewStanding(prompt.Distrusted)
		}
	}
	return out
}

// Reauthenticate asks for the caller of every request again, for when credentials
// were withdrawn: at once where it streams, of others before they are forwarded
// and, once more, as soon as they stream.
func (g *Gateway) Reauthenticate() { g.withdrawn.ring() }

// Handler serves the public routes: those of [wire.Operations] and the metadata
// of the [Resource], matched exactly, and nothing else. Paths are not cleaned, so an encoded slash, a doubled one or
// a trailing one is another route, which does not exist.
func (g *Gateway) Handler() http.Handler {
	r := chi.NewRouter()
	for _, op := range wire.Operations() {
		r.MethodFunc(op.Method, op.Path, func(w http.ResponseWriter, req *http.Request) {
			if req.URL.RawPath != "" || req.URL.Path != op.Path {
				g.nowhere(w, req, errNotFound)
				return
			}
			g.serve(w, req, op)
		})
	}
	r.MethodFunc(http.MethodGet, metadataPath, g.metadata)
	r.NotFound(func(w http.ResponseWriter, req *http.Request) { g.nowhere(w, req, errNotFound) })
	r.MethodNotAllowed(func(w http.ResponseWriter, req *http.Request) {
		for _, op := range wire.Operations() {
			if op.Path == req.URL.Path {
				w.Header().Add("Allow", op.Method)
			}
		}
		if req.URL.Path == metadataPath {
			if g.live.Load().oauth.document == nil {
				g.nowhere(w, req, errNotFound)
				return
			}
			w.Header().Add("Allow", http.MethodGet)
		}
		g.nowhere(w, req, errMethodNotAllowed)
	})
	return r
}

// nowhere refuses a request that no route takes.
func (g *Gateway) nowhere(w http.ResponseWriter, r *http.Request, err error) {
	g.metrics.answered(r.Context(), "none", "none", faultOf(err))
	g.turnAway(w, r, wire.OpenAI, err, 0)
}

// turnAway refuses somebody who was not authenticated. They leave no record of
// their own, or anybody could fill the log; they are counted exactly.
func (g *Gateway) turnAway(w http.ResponseWriter, r *http.Request, shape wire.Shape, err error, wait time.Duration) {
	f := faultOf(err)
	g.cfg.Denials.Count(source(r), f.Code)
	if f.Status == http.StatusUnauthorized {
		g.live.Load().oauth.challenge(w.Header(), r, err)
	}
	f.sayWhen(w.Header(), wait)
	wire.WriteError(w, shape, f.Status, f.Type, f.Code, f.Message, f.Param)
}

// source is the address of the peer; never of a header that it sent.
func source(r *http.Request) netip.Addr {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap()
}
