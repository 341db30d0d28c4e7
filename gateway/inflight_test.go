package gateway

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/test/await"
)

func TestBodiesInFlightAreBounded(t *testing.T) {
	s := serve(t, func(c *Config) { c.Live.Limits.BodyBytes, c.Live.InflightBytes = 4096, 5000 })

	// One caller is slow to send a body whose length it does not say.
	slow, body := io.Pipe()
	req := s.request(t.Context(), "acme", "")
	req.Body, req.ContentLength, req.GetBody = slow, -1, nil
	done := make(chan answer, 1)
	go func() { done <- s.do(req) }()
	first := chat(s.newMark())
	if _, err := io.WriteString(body, first[:10]); err != nil {
		t.Fatal(err)
	}
	await.That(t, "the slow body is counted", func() bool { return s.g.inflight.bytes.Load() == 4096 })

	// What still fits is served, what does not is refused and may come again.
	s.want(s.post("acme", chat(s.newMark())), http.StatusOK, "")
	mark := s.newMark()
	a := s.post("acme", chat(mark, `"user":"`+strings.Repeat("x", 2000)+`"`))
	s.want(a, http.StatusServiceUnavailable, "not_ready")
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	s.unreached(mark)
	if d, _ := s.lone(a); d.Reason != "inflight_bytes" {
		t.Errorf("reason %s", d.Reason)
	}

	if _, err := io.WriteString(body, first[10:]); err != nil {
		t.Fatal(err)
	}
	if err := body.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case a := <-done:
		s.want(a, http.StatusOK, "")
	case <-time.After(await.Limit):
		t.Fatal("no answer to the slow request")
	}
	await.That(t, "every body is given back", func() bool { return s.g.inflight.bytes.Load() == 0 })
}

func TestABodyMustFitWhatMayBeInFlight(t *testing.T) {
	l := Live{InflightBytes: 1 << 20}
	l.Limits.BodyBytes = 2 << 20
	if _, err := l.check(); err == nil {
		t.Error("a bound below one body was taken")
	}
}
