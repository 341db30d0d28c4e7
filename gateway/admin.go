package gateway

import (
	"errors"
	"io"
	"net/http"

	"github.com/go-chi/chi/v5"
)

// Admin serves the other listener, which is not for callers: health, readiness
// and metrics.
func (g *Gateway) Admin(metrics http.Handler) http.Handler {
	r := chi.NewRouter()
	r.Method(http.MethodGet, "/metrics", metrics)
	r.Get("/healthz", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok") })
	r.Get("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := g.CheckReady(); err != nil {
			say(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		say(w, http.StatusOK, "ready")
	})
	return r
}

// CheckReady says why traffic should not come here yet, or nil.
func (g *Gateway) CheckReady() error {
	return errors.Join(g.cfg.Ready(), g.cfg.Fleet.Ready())
}

func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // a prober that left needs no answer
}
