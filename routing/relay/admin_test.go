package relay

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sallyport-ai/sallyport/test/metricsdoc"
)

func TestEveryMetricIsDocumentedAndNoOther(t *testing.T) {
	f := newFaulty(t)
	w := newWorld(t, func(c *Config) { c.Engine.URL = f.URL })
	w.ready()
	w.relay.counts.refused("no_ticket")
	w.relay.counts.served(http.StatusOK)
	w.relay.hub.mu.Lock()
	w.relay.hub.streams[0].m.skipped = map[string]uint64{"orphan": 1}
	w.relay.hub.mu.Unlock()
	page := httptest.NewRecorder()
	w.relay.metrics(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	metricsdoc.Check(t, "Relay", metricsdoc.Scraped(t, page.Body.String()))
}
