package relay

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/go-chi/chi/v5"

	"github.com/sallyport-ai/sallyport/identity/workload"
)

// counters are what the relay counts for its metrics page.
type counters struct {
	mu       sync.Mutex
	refusals map[string]uint64 // by code
	answers  map[int]uint64    // by the engine's status
	behind   uint64            // subscribers that were ended for not keeping up
}

func newCounters() *counters {
	return &counters{refusals: make(map[string]uint64), answers: make(map[int]uint64)}
}

func (c *counters) refused(code string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refusals[code]++
}

func (c *counters) served(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[status]++
}

func (c *counters) lagged() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.behind++
}

// adminListener binds the admin address, under TLS if there are operators.
func (r *Relay) adminListener() (net.Listener, error) {
	operators, err := r.cfg.Admin.authorizer()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", r.cfg.Admin.Address)
	if err != nil || operators == nil {
		return l, err
	}
	return tls.NewListener(l, workload.OptionalClientConfig(workload.SVIDCertificate(r.cfg.Source), r.cfg.Source, operators)), nil
}

// forOperators refuses others: under TLS the handshake let in operators alone, and
// those who show nothing. Pages of other sites that an operator's browser has open
// are refused either way.
func (r *Relay) forOperators(next http.HandlerFunc) http.HandlerFunc {
	sameSite := http.NewCrossOriginProtection()
	return func(w http.ResponseWriter, req *http.Request) {
		if err := sameSite.Check(req); err != nil {
			say(w, http.StatusForbidden, "asked from another site\n")
			return
		}
		if req.TLS != nil {
			if _, err := workload.PeerID(*req.TLS); err != nil {
				say(w, http.StatusForbidden, "for operators\n")
				return
			}
		}
		next(w, req)
	}
}

// adminRoutes is the admin listener: no secrets, no prompts, and one switch.
func (r *Relay) adminRoutes() http.Handler {
	mux := chi.NewRouter()
	mux.Get("/healthz", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok\n") })
	mux.Get("/readyz", r.ready)
	mux.Get("/metrics", r.metrics)
	mux.Post("/drain", r.forOperators(r.drainTo(true)))
	mux.Post("/resume", r.forOperators(r.drainTo(false)))
	return mux
}

func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // a reader that left needs nothing
}

// ready is 200 while the relay can prove who it is and the engine is there.
func (r *Relay) ready(w http.ResponseWriter, _ *http.Request) {
	err := r.cfg.Source.Ready()
	in := r.engineInfo()
	draining, _ := r.drain.state()
	switch {
	case err != nil:
		say(w, http.StatusServiceUnavailable, err.Error()+"\n")
	case in == nil:
		say(w, http.StatusServiceUnavailable, "engine not ready\n")
	case draining:
		say(w, http.StatusServiceUnavailable, "draining\n")
	default:
		say(w, http.StatusOK, fmt.Sprintf("ready: %d isolated routes\n", len(in.routes)))
	}
}

// metrics is the Prometheus page. docs/metrics.md says what each means.
func (r *Relay) metrics(w http.ResponseWriter, _ *http.Request) {
	p := new(metricsPage)
	r.counts.write(p)
	streams := r.hub.summaries()
	each := func(name, kind string, write func(rank string, s summary)) {
		p.family(name, kind)
		for _, s := range streams {
			write(fmt.Sprintf(`rank="%d"`, s.rank), s)
		}
	}
	each("stream_state", "gauge", func(rank string, s summary) { p.sample(rank+fmt.Sprintf(",state=%q", s.state), 1) })
	each("stream_restarts_total", "counter", func(rank string, s summary) { p.sample(rank, s.restarts) })
	each("mirror_gpu_blocks", "gauge", func(rank string, s summary) { p.sample(rank, s.blocks) })
	each("mirror_orphans", "gauge", func(rank string, s summary) { p.sample(rank, s.adrift) })
	each("events_skipped_total", "counter", func(rank string, s summary) {
		for _, why := range slices.Sorted(maps.Keys(s.skipped)) {
			p.sample(rank+fmt.Sprintf(",reason=%q", why), s.skipped[why])
		}
	})
	p.family("event_lag_seconds", "gauge")
	p.sample("", r.hub.eventLag().Seconds())
	p.family("identity_remaining_seconds", "gauge")
	p.sample("", r.cfg.Source.Remaining().Seconds())
	p.family("identity_federation_age_seconds", "gauge")
	ages := r.cfg.Source.FederationAges()
	for _, td := range slices.Sorted(maps.Keys(ages)) {
		p.sample(fmt.Sprintf("trust_domain=%q", td), ages[td].Seconds())
	}
	p.family("draining", "gauge")
	draining := 0
	if on, _ := r.drain.state(); on {
		draining = 1
	}
	p.sample("", draining)
	p.family("requests_under_way", "gauge")
	p.sample("", r.underWay.Load())
	p.family("isolated_routes", "gauge")
	routes := 0
	if in := r.engineInfo(); in != nil {
		routes = len(in.routes)
	}
	p.sample("", routes)
	say(w, http.StatusOK, p.String())
}

func (c *counters) write(p *metricsPage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.family("refused_total", "counter")
	for _, code := range slices.Sorted(maps.Keys(c.refusals)) {
		p.sample(fmt.Sprintf("code=%q", code), c.refusals[code])
	}
	p.family("answered_total", "counter")
	for _, status := range slices.Sorted(maps.Keys(c.answers)) {
		p.sample(fmt.Sprintf(`status="%d"`, status), c.answers[status])
	}
	p.family("subscribers_behind_total", "counter")
	p.sample("", c.behind)
}

// metricsPage is written in Prometheus' text format, one family after another.
type metricsPage struct {
	strings.Builder
	name string
}

// family begins one: what follows are its samples.
func (p *metricsPage) family(name, kind string) {
	p.name = "sallyport_relay_" + name
	fmt.Fprintf(p, "# TYPE %s %s\n", p.name, kind)
}

func (p *metricsPage) sample(labels string, v any) {
	if labels != "" {
		labels = "{" + labels + "}"
	}
	fmt.Fprintf(p, "%s%s %v\n", p.name, labels, v)
}
