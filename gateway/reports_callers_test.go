package gateway

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway/upstream"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/test/await"
)

// The reports go on: what a request, its caller and its headers can do.

// general are the two replicas of the pool that chats go to.
func (s *service) general() (all []*replica) {
	for _, r := range s.replicas {
		if strings.Contains(r.id, "/general/") {
			all = append(all, r)
		}
	}
	return all
}

// lead leads new inference connections of a replica to another address, until
// the test ends and all replicas are well again.
func (s *service) lead(t *testing.T, r *replica, to string) {
	t.Helper()
	r.front.astray.Store(&to)
	t.Cleanup(func() {
		r.front.astray.Store(nil)
		await.That(t, "every replica to be well", s.whole)
	})
}

// silentListener accepts and says nothing.
func silentListener(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
		}
	}()
	return l.Addr().String()
}

// closedPort is an address where nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// B049, vllm-project/production-stack#749: one dead backend stalls requests that
// healthy ones could take.
func TestB049ABlackHoleStallsNobodyElse(t *testing.T) {
	w := inWorld(t)
	s := serve(t, func(c *Config) {
		c.Upstream, _ = upstream.New(upstream.Config{Own: w.self, DialTimeout: 300 * time.Millisecond})
	})
	s.lead(t, s.general()[0], silentListener(t))
	slow := 0
	for range 20 {
		a := s.post("acme", chat(s.newMark()))
		if a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.body)
		}
		if decisions, _ := s.story(a); len(decisions) > 1 {
			slow++
		}
	}
	if slow > 3 {
		t.Errorf("%d of 20 requests waited for it", slow)
	}
}

// B050, vllm-project/production-stack#612: it works for the first requests only.
func TestB050ManyRequestsOnOneConnection(t *testing.T) {
	s := serve(t)
	var clients sync.WaitGroup
	for i := range 16 {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			for n := range 20 {
				body := chat("hello", `"user":"`+strings.Repeat("u", 1<<rng.IntN(17))+`"`)
				if n%2 == 0 {
					body = chat("hello", streamed)
				}
				req := s.request(t.Context(), "acme", body)
				resp, err := s.client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				b, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusOK || err != nil || n%2 == 0 && !strings.HasSuffix(string(b), "data: [DONE]\n\n") {
					t.Errorf("request %d of client %d: %d %v %s", n, i, resp.StatusCode, err, b)
					return
				}
			}
		})
	}
	clients.Wait()
}

// forged are headers with which callers say what is not theirs to say.
var forged = []string{
	"X-Authorization", "theirs", "Cookie", "session=theirs", "Proxy-Authorization", "Basic theirs",
	"X-Forwarded-For", "10.9.9.9", "X-Forwarded-Uri", "/theirs", "X-Forwarded-User", "theirs", "X_Forwarded_User", "theirs", "x-forwarded-USER", "theirs",
	"X-Forwarded-Client-Cert", "By=x;URI=spiffe://demo.sallyport/theirs", "X-Tenant-Id", "theirs", "X_Tenant_Id", "theirs", "Forwarded", "for=10.9.9.9",
	"X-Gateway-Destination-Endpoint", "10.9.9.9:1", "X-Data-Parallel-Rank", "9", "Sallyport-Ticket", "theirs", "X-Request-Id", "theirs", "Traceparent", "00-theirs", "Via", "theirs",
}

// B051, agentic-community/mcp-gateway-registry#1369, B056, GHSA-vjrc-mh2v-45x6,
// and B058, cloudfoundry/haproxy-boshrelease#86: what a caller says in headers
// reaches the upstream, or is believed.
func TestB051B056B058NoHeaderOfTheCallersIsPassedOnOrBelieved(t *testing.T) {
	onEachRoute(t, func(t *testing.T, s *service, p protocol) {
		mark := s.newMark()
		a := s.ask(p, "acme", p.body(mark), forged...)
		if a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.body)
		}
		for name, values := range s.engine.got(mark)[0].header {
			switch name {
			case "Content-Type", "Content-Length", "Accept", "User-Agent", "Accept-Encoding":
			default:
				t.Errorf("the engine got %s: %v", name, values)
			}
			if strings.Contains(fmt.Sprint(values), "theirs") {
				t.Errorf("the engine got %s: %v", name, values)
			}
		}
		if d, _ := s.lone(a); d.Caller.Tenant != "acme" || d.Caller.Workload != "" || strings.Contains(d.Caller.Ref, "theirs") {
			t.Errorf("caller %+v", d.Caller)
		}
	})
}

// B053, blue-pen5805/llm-proxy-on-cloudflare-workers#350: of two credentials the
// wrong one wins.
func TestB053TwoCredentialsAreRefused(t *testing.T) {
	s := serve(t)
	for _, name := range []string{"Authorization", "authorization", "AUTHORIZATION"} {
		mark := s.newMark()
		s.want(s.post("acme", chat(mark), name, "Bearer "+s.tokens["globex"]), http.StatusUnauthorized, "bad_credential")
		s.unreached(mark)
	}
}

// B054, golang/go#50580: a client removes the proxy's headers by naming them in
// Connection.
func TestB054ConnectionNamesNothingOfOurs(t *testing.T) {
	s := serve(t)
	mark := s.newMark()
	c, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), &tls.Config{RootCAs: s.roots, ServerName: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	body := chat(mark)
	fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"+
		"Connection: \r\nConnection: sallyport-ticket, content-type, authorization, keep-alive\r\nTE: trailers\r\nUpgrade: h2c\r\n\r\n%s", s.tokens["acme"], len(body), body)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%v %v", resp, err)
	}
	if h := s.engine.got(mark)[0].header; h.Get("Upgrade")+h.Get("Te")+h.Get("Connection") != "" || h.Get("Content-Type") != "application/json" {
		t.Errorf("the engine got %v", h)
	}
}

// B057, oauth2-proxy/oauth2-proxy#3506: a forged path skips authentication, a
// forged address is taken for the source.
func TestB057TheSourceIsThePeerAndThePathIsThePath(t *testing.T) {
	s := serve(t)
	for _, name := range []string{"X-Forwarded-Uri", "X-Original-Url", "X-Rewrite-Url", "X-Forwarded-Path"} {
		s.want(s.post("", chat(s.newMark()), name, "/healthz"), http.StatusUnauthorized, "no_credential")
	}
	r := &http.Request{RemoteAddr: "192.0.2.7:1234", Header: http.Header{"X-Forwarded-For": {"10.0.0.1"}, "X-Real-Ip": {"10.0.0.1"}, "Forwarded": {"for=10.0.0.1"}}}
	if got := source(r); got != netip.MustParseAddr("192.0.2.7") {
		t.Errorf("the source is %v", got)
	}
}

// B060, api7/aisix#144: 429 comes without Retry-After.
func TestB060RetryAfterIsPassedOn(t *testing.T) {
	s := serve(t)
	mark := s.newMark()
	s.engine.on(mark, writes("HTTP/1.1 429 Slow\r\nretry-after: 2\r\nContent-Length: 0\r\n\r\n"))
	for range 2 { // asked, and while cooling
		a := s.post("acme", chat(mark))
		s.want(a, http.StatusTooManyRequests, "rate_limited")
		if got := a.header.Get("Retry-After"); got != "2" && got != "1" {
			t.Errorf("Retry-After %q", got)
		}
	}
}

// B061, voidmind-io/voidllm#184: 429 counts as success, and nobody else is asked.
func TestB061AnotherReplicaIsAskedAfter429(t *testing.T) {
	s := serve(t)
	mark := s.newMark()
	s.engine.on(mark, first(writes("HTTP/1.1 429 Slow\r\nContent-Length: 0\r\n\r\n")))
	if a := s.post("acme", chat(mark)); a.status != http.StatusOK {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// B063, maximhq/bifrost#543: a timeout is reported as a failure to connect.
func TestB063FailuresAreToldApart(t *testing.T) {
	w := inWorld(t)
	for _, c := range []struct {
		claim, to string
		status    int
		code      string
		reason    string
	}{
		{"a port where nobody listens", closedPort(t), http.StatusBadGateway, "upstream_error", "upstream_unreachable"},
		{"a handshake that does not come", silentListener(t), http.StatusGatewayTimeout, "upstream_timeout", "upstream_timeout"},
		{"another identity", "", http.StatusBadGateway, "replica_identity", "replica_identity"},
	} {
		t.Run(c.claim, func(t *testing.T) {
			s := serve(t, func(cfg *Config) {
				cfg.MaxAttempts = 1
				cfg.Upstream, _ = upstream.New(upstream.Config{Own: w.self, DialTimeout: 200 * time.Millisecond})
			})
			for _, r := range s.general() {
				to := c.to
				if to == "" {
					to = s.replicas["spiffe://"+testDomain+"/pool/agents/r0"].relay.Addr()
				}
				s.lead(t, r, to)
			}
			a := s.post("acme", chat(s.newMark()))
			s.want(a, c.status, c.code)
			s.tells(a, told{attempts: 1, status: audit.StatusError, reasons: []string{c.reason}, http: c.status})
		})
	}
}

// B065, IBM/mcp-context-forge#2152: OPTIONS is proxied, or answered with data.
// This gateway is not for pages of other origins: it says so by saying nothing.
func TestB065PreflightsAreNotAnswered(t *testing.T) {
	s := serve(t)
	for _, op := range wire.Operations() {
		req := s.to(t.Context(), op, "acme", "", "Origin", "https://evil.example", "Access-Control-Request-Method", "POST")
		req.Method = http.MethodOptions
		a := s.do(req)
		if a.status != http.StatusMethodNotAllowed || a.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %d %v", op.Path, a.status, a.header)
		}
	}
}

// B067, BerriAI/litellm#40957: an alias reaches a model that its name may not.
func TestB067AnAliasIsAllowedOnlyWhereItsModelIs(t *testing.T) {
	s := serve(t)
	alias := strings.Replace(chat(s.newMark()), `"small"`, `"small-latest"`, 1)
	a := s.post("acme", alias)
	if d, _ := s.lone(a); a.status != http.StatusOK || d.Request.Model != "small-latest" || d.Request.Served != "small" {
		t.Errorf("%d, recorded %+v", a.status, d.Request)
	}
	layer := editable(t)
	layer.set("acme", "models", []string{"small-latest"}) // the alias, not what it stands for
	if _, err := loadPolicy(t.Context(), layer); err == nil {
		t.Error("a grant of an alias was taken")
	}
	layer.set("acme", "models", []string{})
	engine, err := loadPolicy(t.Context(), layer)
	if err != nil {
		t.Fatal(err)
	}
	s = serve(t, func(c *Config) { c.Policy = engine })
	s.want(s.post("acme", alias), http.StatusForbidden, "policy_denied")
}

// B068, BerriAI/litellm#33030: a grant matches more names than it says.
func TestB068ModelNamesMatchExactly(t *testing.T) {
	s := serve(t)
	for _, name := range []string{"smallx", "small/x", "small/", "SMALL", "Small", " small", "small ", "small/../small", "./small", `small\u0000`, "small-latest-2", "*", "small*", "smal"} {
		mark := s.newMark()
		a := s.post("acme", strings.Replace(chat(mark), `"small"`, `"`+name+`"`, 1))
		if a.status != http.StatusForbidden && a.status != http.StatusBadRequest {
			t.Errorf("%q: %d", name, a.status)
		}
		s.unreached(mark)
	}
}

// B071, sxueck/llm-gateway#34 and others: keys are in logs and errors.
func TestB071KeysAreInNoLogAndNoError(t *testing.T) {
	s := serve(t)
	const key = "sk-theirs-0123456789abcdef"
	var all strings.Builder
	for _, h := range [][]string{{"Authorization", "Bearer " + key}, {"X-Api-Key", key}} {
		all.WriteString(s.post("", chat(s.newMark()), h...).body)
	}
	req := s.request(t.Context(), "", chat(s.newMark()))
	req.URL.RawQuery = "key=" + key + "&api_key=" + key
	all.WriteString(s.do(req).body)
	mark := s.newMark()
	echo := `{"error":{"message":"bad key ` + key + `"}}`
	s.engine.on(mark, writes("HTTP/1.1 401 No\r\n"+sized(len(echo)), echo))
	all.WriteString(s.post("acme", chat(mark)).body)
	if all.WriteString(s.logged.String()); strings.Contains(all.String(), "theirs") {
		t.Error(all.String())
	}
}

// B074, BerriAI/litellm#39548, and B075, higress-group/higress#3841: state kept
// under an id is another tenant's, or on another replica. There is none.
func TestB074B075NoStateIsNamedByAnId(t *testing.T) {
	s := serve(t)
	p := protocols[2]
	answers := map[string]bool{}
	for _, who := range []string{"acme", "globex"} {
		for _, id := range []string{"resp_1", "resp_that_never_was"} {
			a := s.ask(p, who, p.body(s.newMark(), `"previous_response_id":"`+id+`"`))
			s.want(a, http.StatusBadRequest, "unsupported_field")
			answers[a.body] = true
		}
	}
	if len(answers) != 1 {
		t.Errorf("they differ: %v", answers)
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		req := s.to(t.Context(), p.op, "acme", "")
		req.Method, req.URL.Path = method, "/v1/responses/resp_1"
		s.want(s.do(req), http.StatusNotFound, "not_found")
	}
}

// B077, Yeachan-Heo/gajae-code#5614: a request is sent again after a reset,
// unseen. Here it may be sent to one replica once, and each time is written down.
func TestB077NothingIsSentAgainUnseen(t *testing.T) {
	onEachRoute(t, func(t *testing.T, s *service, p protocol) {
		mark := s.newMark()
		s.engine.on(mark, cutsOff())
		a := s.ask(p, "acme", p.body(mark))
		d, o := s.story(a)
		calls := s.engine.got(mark)
		if len(calls) != 2 || calls[0].replica == calls[1].replica || len(o) != 2 {
			t.Fatalf("%d calls, %d outcomes", len(calls), len(o))
		}
		for i, c := range calls {
			if d[i].Placement.Replica != c.replica {
				t.Errorf("call %d went to %s, written down for %s", i, c.replica, d[i].Placement.Replica)
			}
		}
	})
}

// B081, vllm-project/semantic-router#640: what stands far into a text is not
// looked at. B082, BerriAI/litellm#39050: what cannot be looked at is called
// clean.
func TestB081B082WhatIsFarInOrUnreadableCounts(t *testing.T) {
	s := serve(t)
	// Too long for the model: refused, and yet seen.
	a := s.post("acme", chat(s.newMark()+strings.Repeat(" harbour", 64<<10)+" patient record: MRN 48213377"))
	if d, _ := s.lone(a); d.Label == nil || d.Label.Level != "restricted" {
		t.Errorf("far in: %+v", d.Label)
	}
	image := `{"model":"small","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}]}]}`
	d, _ := s.lone(s.post("acme", image))
	found := false
	if d.Label != nil {
		for _, src := range d.Label.Sources {
			found = found || src.Source == "not_scanned"
		}
	}
	if !found || d.Label.Rank < 2 {
		t.Errorf("an image: %+v", d.Label)
	}
}

// B083, kubernetes-sigs/gateway-api-inference-extension#2935: repeated headers
// collapse into one.
func TestB083RepeatedHeadersThatDecideAreRefused(t *testing.T) {
	s := serve(t)
	for _, name := range []string{labelHeader, classHeader, conversationHeader} {
		s.want(s.post("acme", chat(s.newMark()), name, "internal", name, "internal"), http.StatusBadRequest, "invalid_request")
	}
}
