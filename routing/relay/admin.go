package relay

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/go-chi/chi/v5"
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

// adminRoutes is the admin listener: no secrets, no prompts, no changes.
func (r *Relay) adminRoutes() http.Handler {
	mux := chi.NewRouter()
	mux.Get("/healthz", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok\n") })
	mux.Get("/readyz", r.ready)
	mux.Get("/metrics", r.metrics)
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
	switch {
	case err != nil:
		say(w, http.StatusServiceUnavailable, err.Error()+"\n")
	case in == nil:
		say(w, http.StatusServiceUnavailable, "engine not ready\n")
	case r.stopping.Load():
		say(w, http.StatusServiceUnavailable, "stopping\n")
	default:
		say(w, http.StatusOK, fmt.Sprintf("ready: %d isolated routes\n", len(in.routes)))
	}
}

// metrics is the Prometheus page.
func (r *Relay) metrics(w http.ResponseWriter, _ *http.Request) {
	var b strings.Builder
	sample := func(name, labels string, v any) { fmt.Fprintf(&b, "sallyport_relay_%s{%s} %v\n", name, labels, v) }
	r.counts.mu.Lock()
	for _, code := range slices.Sorted(maps.Keys(r.counts.refusals)) {
		sample("refused_total", fmt.Sprintf("code=%q", code), r.counts.refusals[code])
	}
	for _, status := range slices.Sorted(maps.Keys(r.counts.answers)) {
		sample("answered_total", fmt.Sprintf(`status="%d"`, status), r.counts.answers[status])
	}
	sample("subscribers_behind_total", "", r.counts.behind)
	r.counts.mu.Unlock()
	for _, s := range r.hub.summaries() {
		rank := fmt.Sprintf(`rank="%d"`, s.rank)
		sample("stream_state", rank+fmt.Sprintf(",state=%q", s.state), 1)
		sample("mirror_gpu_blocks", rank, s.blocks)
		sample("mirror_orphans", rank, s.adrift)
		sample("stream_restarts_total", rank, s.restarts)
		for _, why := range slices.Sorted(maps.Keys(s.skipped)) {
			sample("events_skipped_total", rank+fmt.Sprintf(",reason=%q", why), s.skipped[why])
		}
	}
	sample("event_lag_seconds", "", r.hub.eventLag().Seconds())
	say(w, http.StatusOK, b.String())
}
