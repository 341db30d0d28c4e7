package gateway

import (
	"net/http"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
)

func TestATenantThatSpentItsShareOfTheLogIsOnlyCounted(t *testing.T) {
	var denials *audit.Denials
	s := serve(t, func(c *Config) {
		denials = audit.NewDenials(c.Log, 0)
		c.Quotas, c.Denials = audit.NewQuotas(100), denials
	})
	if a := s.post("acme", chat(s.newMark())); a.status != http.StatusOK {
		t.Fatalf("the first: %d %s", a.status, a.body)
	}
	if err := denials.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := countRecords(t, s.logDir)
	for range 5 {
		a := s.post("acme", chat(s.newMark()))
		s.want(a, http.StatusTooManyRequests, "rate_limited")
		if a.header.Get("Retry-After") == "" {
			t.Error("no word of when to come again")
		}
	}
	if a := s.post("globex", chat(s.newMark())); a.status != http.StatusOK {
		t.Errorf("another tenant: %d %s", a.status, a.body)
	}
	if err := denials.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	count := uint64(0)
	for _, r := range tlogtest.Records(t, s.logDir, before) {
		if r.Caller != nil && r.Caller.Tenant == "acme" && r.Kind == audit.KindDecision {
			t.Errorf("a refusal of acme is recorded in full: %+v", r)
		}
		for _, d := range r.Denials {
			if d.Prefix == "tenant:acme" && d.Code == "rate_limited" {
				count += d.Count
			}
		}
	}
	if count != 5 {
		t.Errorf("%d of 5 refusals are counted", count)
	}
}

func countRecords(t *testing.T, dir string) (n uint64) {
	t.Helper()
	for e, err := range tlog.Read(dir, 0) {
		if err != nil {
			t.Fatal(err)
		}
		n = e.Index + 1
	}
	return n
}
