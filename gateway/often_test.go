package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/gateway/rate"
	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/test/await"
)

// serveLimited starts a gateway with limits of requests, and the counts of whom it refuses.
func serveLimited(t *testing.T, rates Rates, more ...func(*Config)) (*service, *audit.Denials) {
	t.Helper()
	var denials *audit.Denials
	s := serve(t, append(more, func(c *Config) {
		denials = audit.NewDenials(c.Log, 0)
		c.Denials, c.Live.Rates = denials, rates
	})...)
	return s, denials
}

// since is what the log has after so many records: how many decisions about a
// tenant, and how many refusals are counted under a name and code.
func (s *service) since(t *testing.T, denials *audit.Denials, from uint64, tenant, prefix, code string) (decisions, counted int) {
	t.Helper()
	if err := denials.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for e, err := range tlog.Read(s.logDir, from) {
		if err != nil {
			t.Fatal(err)
		}
		r, err := audit.Decode(e.Leaf)
		if err != nil {
			t.Fatal(err)
		}
		if r.Kind == audit.KindDecision && r.Caller != nil && r.Caller.Tenant == tenant {
			decisions++
		}
		for _, d := range r.Denials {
			if strings.HasPrefix(d.Prefix, prefix) && d.Code == code {
				counted += int(d.Count)
			}
		}
	}
	return decisions, counted
}

func TestACallerThatAsksTooOftenHindersItselfAlone(t *testing.T) {
	limit := rate.Limit{PerSecond: 2, Burst: 10}
	s, denials := serveLimited(t, Rates{Caller: limit})
	before, began := countRecords(t, s.logDir), time.Now()
	const asked = 1000 // a hundred times what it may
	var served, refused atomic.Int64
	var flood sync.WaitGroup
	for range 8 {
		flood.Go(func() {
			for range asked / 8 {
				a := s.post("acme", chat(s.newMark()))
				switch {
				case a.status == http.StatusOK:
					served.Add(1)
				case a.status == http.StatusTooManyRequests && a.code() == "rate_limited" && a.header.Get("Retry-After") == "1" && a.header.Get("Sallyport-Decision-Id") == "":
					refused.Add(1)
				default:
					t.Errorf("%d %v %s", a.status, a.header, a.body)
				}
			}
		})
	}
	for range limit.Burst {
		s.want(s.post("globex", chat(s.newMark())), http.StatusOK, "")
	}
	flood.Wait()
	if most := float64(limit.Burst) + limit.PerSecond*time.Since(began).Seconds(); float64(served.Load()) > most+1 || served.Load() < int64(limit.Burst) {
		t.Errorf("%d were served, may be %v", served.Load(), most)
	}
	decisions, counted := s.since(t, denials, before, "acme", "tenant:acme", "rate_limited")
	if int64(decisions) != served.Load() || int64(counted) != refused.Load() {
		t.Errorf("%d decisions for %d served, %d counted of %d refused", decisions, served.Load(), counted, refused.Load())
	}
}

// Streams that are opened to be reset at once must not fill the log: CVE-2023-44487,
// by somebody with a credential.
func TestThousandsOfResetsLeaveFewRecords(t *testing.T) {
	limit := rate.Limit{PerSecond: 1, Burst: 20}
	var arrived atomic.Int64 // with a credential that holds: most streams are reset before
	s, denials := serveLimited(t, Rates{Caller: limit}, func(c *Config) {
		next := c.Live.Identity.Request
		c.Live.Identity.Request = []identity.Authenticator{func(ctx context.Context, r *http.Request) (identity.Principal, error) {
			for _, method := range next {
				if p, err := method(ctx, r); err != identity.ErrNoCredential {
					if err == nil {
						arrived.Add(1)
					}
					return p, err
				}
			}
			return identity.Principal{}, identity.ErrNoCredential
		}}
	})
	before, began := countRecords(t, s.logDir), time.Now()
	h2 := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots}, ForceAttemptHTTP2: true}
	t.Cleanup(h2.CloseIdleConnections)
	var resets sync.WaitGroup
	for range 10 {
		resets.Go(func() {
			for range 300 {
				ctx, reset := context.WithCancel(t.Context())
				ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { reset() }})
				resp, err := h2.RoundTrip(s.request(ctx, "acme", chat(s.newMark())))
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body) // it was quicker
					_ = resp.Body.Close()
				}
				reset()
			}
		})
	}
	resets.Wait()
	// The server may yet come to streams that were reset.
	var decisions, counted int
	await.That(t, "each that arrived to be decided or counted", func() bool {
		if err := s.g.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		n := arrived.Load()
		decisions, counted = s.since(t, denials, before, "acme", "tenant:acme", "rate_limited")
		return int64(decisions+counted) == n && n == arrived.Load()
	})
	if most := float64(limit.Burst) + limit.PerSecond*time.Since(began).Seconds() + 1; float64(decisions) > most {
		t.Errorf("%d decisions, may be %v", decisions, most)
	}
	if records := countRecords(t, s.logDir) - before; records > uint64(3*decisions+4) {
		t.Errorf("%d records", records)
	}
	if n := arrived.Load(); n < 2*int64(limit.Burst) {
		t.Errorf("only %d arrived", n)
	}
}

func TestWhoIsNobodyIsSentAwayBeforeItsCredentialIsLookedAt(t *testing.T) {
	var looked atomic.Int64
	s, denials := serveLimited(t, Rates{Source: rate.Limit{PerSecond: 0.001, Burst: 5}}, func(c *Config) {
		next := c.Live.Identity.Request
		c.Live.Identity.Request = []identity.Authenticator{func(ctx context.Context, r *http.Request) (identity.Principal, error) {
			looked.Add(1)
			for _, method := range next {
				if p, err := method(ctx, r); err != identity.ErrNoCredential {
					return p, err
				}
			}
			return identity.Principal{}, identity.ErrNoCredential
		}}
	})
	before := countRecords(t, s.logDir)
	forged := func() answer {
		return s.post("", chat(s.newMark()), "Authorization", "Bearer "+s.tokens["acme"]+"AAAA")
	}
	for range 20 { // who authenticates costs nothing
		s.want(s.post("acme", chat(s.newMark())), http.StatusOK, "")
	}
	for range 5 {
		s.want(forged(), http.StatusUnauthorized, "bad_credential")
	}
	was := looked.Load()
	for range 100 {
		a := forged()
		s.want(a, http.StatusTooManyRequests, "rate_limited")
		if a.header.Get("Retry-After") == "1" || a.header.Get("WWW-Authenticate") != "" {
			t.Fatalf("told %v", a.header)
		}
	}
	s.want(s.post("acme", chat(s.newMark())), http.StatusTooManyRequests, "rate_limited") // of the same network
	if looked.Load() != was {
		t.Errorf("%d credentials were looked at", looked.Load()-was)
	}
	if _, counted := s.since(t, denials, before, "acme", "127.0.0.0/24", "rate_limited"); counted != 101 {
		t.Errorf("%d of 101 refusals are counted", counted)
	}
	without := *s.g.live.Load()
	without.Rates = Rates{}
	if err := s.g.Swap(without); err != nil {
		t.Fatal(err)
	}
	s.want(s.post("acme", chat(s.newMark())), http.StatusOK, "")
}

// A workload that no registration gives a tenant is known by where it is.
func TestAWorkloadOfNoTenantIsCountedByItsNetwork(t *testing.T) {
	s, denials := serveLimited(t, Rates{Caller: rate.Limit{PerSecond: 0.001, Burst: 2}})
	own, err := s.source(t.Context(), "/nobodys/batch")
	if err != nil {
		t.Fatal(err)
	}
	stranger := *s
	stranger.client = s.clientAs(own)
	before := countRecords(t, s.logDir)
	for range 2 {
		s.want(stranger.post("", chat(s.newMark())), http.StatusForbidden, "policy_denied")
	}
	for range 5 {
		s.want(stranger.post("", chat(s.newMark())), http.StatusTooManyRequests, "rate_limited")
	}
	if decisions, counted := s.since(t, denials, before, "", "127.0.0.0/24", "rate_limited"); decisions != 2 || counted != 5 {
		t.Errorf("%d decisions, %d refusals are counted", decisions, counted)
	}
}

// An IPv6 network has millions of source prefixes, which are remembered apart.
func TestANetworkOfVeryManyPrefixesHindersItselfAlone(t *testing.T) {
	s, _ := serveLimited(t, Rates{Source: rate.Limit{PerSecond: 0.001, Burst: 2}})
	s.g.sources = rate.NewTable(64, nil)
	h := s.g.Handler()
	ask := func(from string) int {
		r := s.request(t.Context(), "", chat(s.newMark()))
		r.RemoteAddr = "[" + from + "]:1234"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	for i := range 1000 {
		ask(fmt.Sprintf("2001:db8:%x:%x00::1", i>>8, i&255))
	}
	if got := ask("2001:db8:ffff:ff00::1"); got != http.StatusTooManyRequests {
		t.Errorf("one more prefix of the network is told %d", got)
	}
	for i := range 8 {
		for range 2 {
			if got := ask(fmt.Sprintf("2a00:%x::1", i)); got != http.StatusUnauthorized {
				t.Fatalf("another network, number %d, is told %d", i, got)
			}
		}
	}
	for _, odd := range []string{"::ffff:198.51.100.1", "fe80::1%eth0"} {
		if got := ask(odd); got != http.StatusUnauthorized {
			t.Errorf("%s is told %d", odd, got)
		}
	}
}

func TestATenantsCallersMayHaveALimitOfTheirOwn(t *testing.T) {
	s, _ := serveLimited(t, Rates{
		Caller:  rate.Limit{PerSecond: 0.001, Burst: 1},
		Tenants: map[string]rate.Limit{"acme": {PerSecond: 0.001, Burst: 3}, "initech": {}},
	})
	own, err := s.source(t.Context(), "/tenant/acme/batch")
	if err != nil {
		t.Fatal(err)
	}
	batch := *s
	batch.client = s.clientAs(own)
	for _, c := range []struct {
		claim string
		from  *service
		who   string
		most  int // 0: any number
	}{
		{"of a tenant with a limit of its own", s, "acme", 3},
		{"of one without", s, "globex", 1},
		{"of one that has none", s, "initech", 0},
		{"a workload of the first, known by its registration", &batch, "", 3},
	} {
		n := 0
		for ; n < 6 && c.from.post(c.who, chat(s.newMark())).status != http.StatusTooManyRequests; n++ {
		}
		if want := c.most; n != want && (want != 0 || n != 6) {
			t.Errorf("%s: %d requests", c.claim, n)
		}
	}
}
