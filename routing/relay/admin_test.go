package relay

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/identity/workload"
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

func TestNobodyElseTakesAReplicaOut(t *testing.T) {
	f := newFaulty(t)
	w := newWorld(t, func(c *Config) {
		c.Engine.URL = f.URL
		c.Admin = Admin{Address: "127.0.0.1:0", Operators: []string{"spiffe://example.org/ops"}}
	})
	w.ready()
	anonymous := &tls.Config{InsecureSkipVerify: true} // as a probe does
	as := func(path string) *tls.Config {
		return workload.ClientConfig(sourceOf(t, w.auth, path), workload.ExactID(spiffeid.RequireFromPath(domain, "/pool/general/r0")))
	}
	ask := func(conf *tls.Config, method, path string, header ...string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "https://"+w.relay.AdminAddr()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err != nil {
			return 0
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	for _, c := range []struct {
		claim        string
		conf         *tls.Config
		method, path string
		header       []string
		status       int // 0: no connection
		draining     bool
	}{
		{"a probe", anonymous, http.MethodGet, "/healthz", nil, http.StatusOK, false},
		{"a scraper", anonymous, http.MethodGet, "/metrics", nil, http.StatusOK, false},
		{"nobody drains", anonymous, http.MethodPost, "/drain", nil, http.StatusForbidden, false},
		{"a gateway drains", as("/gateway/a"), http.MethodPost, "/drain", nil, 0, false},
		{"a gateway asks for health", as("/gateway/a"), http.MethodGet, "/healthz", nil, 0, false},
		{"a page of another site drains", as("/ops"), http.MethodPost, "/drain", []string{"Origin", "https://evil.test"}, http.StatusForbidden, false},
		{"an operator drains", as("/ops"), http.MethodPost, "/drain", nil, http.StatusOK, true},
		{"nobody resumes", anonymous, http.MethodPost, "/resume", nil, http.StatusForbidden, true},
		{"an operator resumes", as("/ops"), http.MethodPost, "/resume", nil, http.StatusOK, false},
	} {
		if got := ask(c.conf, c.method, c.path, c.header...); got != c.status {
			t.Errorf("%s: %d", c.claim, got)
		}
		if on, _ := w.relay.drain.state(); on != c.draining {
			t.Errorf("%s: draining is %v", c.claim, on)
		}
	}
	if !strings.Contains(w.log.String(), "operator=spiffe://example.org/ops") {
		t.Error("it is not logged who did so")
	}
}

func TestAnAdminListenerThatAnybodyReachesNeedsOperators(t *testing.T) {
	ops := []string{"spiffe://example.org/ops"}
	for _, c := range []struct {
		claim string
		admin Admin
		ok    bool
	}{
		{"none", Admin{}, true},
		{"loopback", Admin{Address: "127.0.0.1:9102"}, true},
		{"loopback of IPv6", Admin{Address: "[::1]:9102"}, true},
		{"every interface", Admin{Address: ":9102"}, false},
		{"every interface, by address", Admin{Address: "0.0.0.0:9102"}, false},
		{"another interface", Admin{Address: "192.0.2.1:9102"}, false},
		{"a name", Admin{Address: "relay:9102"}, false},
		{"a name that begins like one of loopback", Admin{Address: "localhost.example:9102"}, false},
		{"no port", Admin{Address: "127.0.0.1"}, false},
		{"every interface, for operators", Admin{Address: ":9102", Operators: ops}, true},
		{"loopback, for operators", Admin{Address: "127.0.0.1:9102", Operators: ops}, true},
		{"an operator that is nobody", Admin{Address: ":9102", Operators: []string{"ops"}}, false},
		{"operators of nothing", Admin{Operators: ops}, false},
	} {
		if err := c.admin.Check(); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.claim, err)
		}
		config := Config{Admin: c.admin}
		if _, err := config.check(); strings.Contains(err.Error(), "relay: admin") == c.ok {
			t.Errorf("%s: a relay starts: %v", c.claim, err)
		}
	}
}
