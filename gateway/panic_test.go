package gateway

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/test/await"
)

// panicky panics instead of taking the n-th record.
type panicky struct {
	audit.Appender
	left int
}

func (p *panicky) Append(ctx context.Context, r *audit.Record) (audit.Position, error) {
	if p.left--; p.left == 0 {
		panic("a bug with a secret in its text")
	}
	return p.Appender.Append(ctx, r)
}

func TestAPanicIsAnAnswerAndALogLine(t *testing.T) {
	s := serve(t, func(c *Config) { c.Log = &panicky{Appender: c.Log, left: 1} })
	a := s.post("acme", chat(s.newMark()))
	s.want(a, http.StatusInternalServerError, "internal")
	if strings.Contains(a.body, "secret") || !strings.Contains(s.logged.String(), "a bug with a secret") {
		t.Errorf("answer %s, log %s", a.body, s.logged)
	}
	if decision, _ := s.lone(a); decision.Reason != "internal" || decision.Status != audit.StatusDenied {
		t.Errorf("decision %+v", decision)
	}
	for _, r := range s.fleet.Replicas() {
		if r.Running != 0 || r.Waiting != 0 {
			t.Errorf("%s is left with %d requests and %d tokens", r.ID, r.Running, r.Waiting)
		}
	}
}

func TestAPanicBesideARequestEndsNoMoreThanItself(t *testing.T) {
	s := serve(t)
	x := &exchange{g: s.g, id: "beside"}
	for range 2 * mostLooks { // each gives its place back
		ended := make(chan struct{})
		await.That(t, "a place", func() bool {
			return x.aside(t.Context(), func(context.Context) {
				defer close(ended)
				panic("a bug beside a request")
			})
		})
		<-ended
	}
	await.That(t, "its log line", func() bool { return strings.Contains(s.logged.String(), "a bug beside a request") })
}
