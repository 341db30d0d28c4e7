package relay

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/identity/workload"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
	"github.com/sallyport-ai/sallyport/routing/splice"
	"github.com/sallyport-ai/sallyport/routing/ticket"
	"github.com/sallyport-ai/sallyport/test/await"
)

func withEngine(f *faulty) func(*Config) {
	return func(c *Config) { c.Engine.URL = f.URL }
}

func TestARequestWithAGoodTicketReachesTheEngineSaltedAndOtherwiseUnchanged(t *testing.T) {
	f := newFaulty(t)
	w := newWorld(t, withEngine(f))
	w.ready()
	req := w.request(t.Context(), chatRoute.path(), w.sign(w.ticketFor(chatBody)), chatBody)
	for name, v := range map[string]string{
		"Authorization": "Bearer of-a-caller", "Cookie": "c=1", "X-Forwarded-For": "10.0.0.1", "X-Data-Parallel-Rank": "3",
		"Te": "trailers", "X-Request-Id": "abc",
	} {
		req.Header.Set(name, v)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d", resp.StatusCode)
	}
	got := f.forwards()
	if len(got) != 1 {
		t.Fatalf("%d requests arrived", len(got))
	}
	back, err := splice.Apply(nil, got[0].body, splice.Delete("cache_salt"))
	if err != nil || string(back) != chatBody {
		t.Errorf("without its salt the body is %q (%v)", back, err)
	}
	salt := w.relay.salts.secret("domain-a", "small")
	if !strings.Contains(string(got[0].body), `"cache_salt":"`+salt+`"`) {
		t.Errorf("no salt in %s", got[0].body)
	}
	for name := range got[0].header {
		switch name {
		case "Content-Type", "Content-Length", "Accept-Encoding":
		default:
			t.Errorf("header %s reached the engine", name)
		}
	}
}

func TestTwoDomainsHaveTwoSaltsAndNoRelayKnowsAnothers(t *testing.T) {
	a, err := newSalter("")
	if err != nil {
		t.Fatal(err)
	}
	b, err := newSalter("")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, s := range []string{a.salt("x", "m"), a.salt("y", "m"), a.salt("x", "n"), a.salt("xm", ""), b.salt("x", "m")} {
		if seen[s] || len(s) != 43 {
			t.Errorf("salt %q: seen %v", s, seen[s])
		}
		seen[s] = true
	}
	if m, d, ok := a.resolve(a.salt("x", "m")); !ok || m != "m" || d != "x" {
		t.Errorf("resolved to %q, %q, %v", m, d, ok)
	}
	if _, _, ok := a.resolve(a.secret("probe", "m")); ok {
		t.Error("a secret salt resolves")
	}
}

func TestTheSalterForgetsTheLeastRecentlyUsed(t *testing.T) {
	s, err := newSalter("")
	if err != nil {
		t.Fatal(err)
	}
	s.limit = 2
	x, y := s.salt("x", "m"), s.salt("y", "m")
	s.salt("x", "m")
	s.salt("z", "m")
	if _, _, ok := s.resolve(x); !ok {
		t.Error("x is forgotten")
	}
	if _, _, ok := s.resolve(y); ok {
		t.Error("y is not forgotten")
	}
}

func TestASaltKeyFileMustBePrivateAndWhole(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	for _, c := range []struct {
		size int
		mode os.FileMode
		ok   bool
	}{{32, 0o600, true}, {32, 0o644, false}, {31, 0o600, false}} {
		if err := errors.Join(os.WriteFile(file, make([]byte, c.size), 0o600), os.Chmod(file, c.mode)); err != nil {
			t.Fatal(err)
		}
		if _, err := newSalter(file); (err == nil) != c.ok {
			t.Errorf("%d bytes, mode %o: %v", c.size, c.mode, err)
		}
	}
}

func TestTheRelayRefuses(t *testing.T) {
	f := newFaulty(t)
	w := newWorld(t, withEngine(f))
	w.ready()
	changed := func(change func(*ticket.Ticket)) string {
		tk := w.ticketFor(chatBody)
		change(&tk)
		return w.sign(tk)
	}
	forBody := func(body string) string { return w.sign(w.ticketFor(body)) }
	used := w.sign(w.ticketFor(chatBody))
	if code, _ := w.post(used, chatBody); code != http.StatusOK {
		t.Fatalf("first use: %d", code)
	}
	forger, err := ticket.NewSigner("example.org/gateway/a", func(msg []byte) ([]byte, error) { return ed25519.Sign(forgedKey(), msg), nil })
	if err != nil {
		t.Fatal(err)
	}
	forged, err := forger.Sign(w.ticketFor(chatBody))
	if err != nil {
		t.Fatal(err)
	}
	const salted = `{"model":"small","cache_salt":"mine","messages":[]}`
	const hidden = `{"model":"small","cache_\u0073alt":"mine","messages":[]}`
	const other = `{"model":"large","messages":[]}`
	const twice = `{"model":"small","model":"small","messages":[]}`
	for _, c := range []struct {
		name, header, body string
		status             int
		code               string
	}{
		{"no ticket", "", chatBody, 403, "no_ticket"},
		{"another audience", changed(func(t *ticket.Ticket) { t.Audience += "x" }), chatBody, 403, "wrong_audience"},
		{"a replayed ticket", used, chatBody, 403, "replayed"},
		{"an expired ticket", changed(func(t *ticket.Ticket) { t.Exp = time.Now().Unix() - 1 }), chatBody, 403, "expired"},
		{"a ticket that lives too long", changed(func(t *ticket.Ticket) { t.Exp += 60 }), chatBody, 403, "expires_too_late"},
		{"another body", w.sign(w.ticketFor(chatBody)), strings.Replace(chatBody, "hello", "hullo", 1), 403, "wrong_body"},
		{"another pool", changed(func(t *ticket.Ticket) { t.Pool = "restricted" }), chatBody, 403, "wrong_pool"},
		{"another operation", changed(func(t *ticket.Ticket) { t.Op = string(completionRoute) }), chatBody, 403, "wrong_operation"},
		{"an earlier relay's epoch", changed(func(t *ticket.Ticket) { t.Epoch = "before" }), chatBody, 403, "wrong_epoch"},
		{"a rank that is not there", changed(func(t *ticket.Ticket) { t.Rank = 1 }), chatBody, 403, "wrong_rank"},
		{"a forged signature", forged, chatBody, 403, "bad_signature"},
		{"no ticket at all but text", "hello", chatBody, 403, "malformed_ticket"},
		{"a salt in the body", forBody(salted), salted, 403, "cache_salt_present"},
		{"a salt under an escaped name", forBody(hidden), hidden, 403, "cache_salt_present"},
		{"another model than the ticket's", forBody(other), other, 403, "wrong_model"},
		{"a name twice", forBody(twice), twice, 400, "malformed_json"},
		{"no JSON", forBody("hello"), "hello", 400, "malformed_json"},
		{"an array", forBody("[]"), "[]", 400, "malformed_json"},
		{"nothing", forBody(""), "", 400, "malformed_json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(f.forwards())
			code, text := w.post(c.header, c.body)
			if code != c.status || !strings.Contains(text, `"code":"`+c.code+`"`) {
				t.Errorf("got %d %s, want %d %s", code, text, c.status, c.code)
			}
			if len(f.forwards()) != before {
				t.Error("it reached the engine")
			}
			if !strings.Contains(w.log.String(), "msg=\"request refused\" code="+c.code) {
				t.Error("no log line")
			}
		})
	}
	if strings.Contains(w.log.String(), "hullo") || strings.Contains(w.log.String(), "mine") {
		t.Error("the log quotes a body")
	}
}

func TestOnlyTheInferenceRoutesExist(t *testing.T) {
	f := newFaulty(t)
	w := newWorld(t, withEngine(f))
	w.ready()
	for _, c := range []string{
		"GET /v1/chat/completions", "POST /v1/chat/completions/", "POST /v1//chat/completions", "POST /v1/chat%2Fcompletions",
		"POST /v1/chat/completions?x=1", "POST /V1/chat/completions", "POST /v1/x/../chat/completions", "GET /metrics", "GET /v1/models",
		"POST /reset_prefix_cache", "POST /sleep", "POST /v1/load_lora_adapter", "POST /", "POST /v1/messages", "OPTIONS *",
	} {
		method, path, _ := strings.Cut(c, " ")
		req := w.request(t.Context(), "/", w.sign(w.ticketFor(chatBody)), chatBody)
		req.Method = method
		req.URL.Opaque = path
		resp, err := w.client.Do(req)
		if err != nil {
			t.Errorf("%s: %v", c, err)
			continue
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound && !(c == "OPTIONS *" && resp.StatusCode == http.StatusOK) {
			t.Errorf("%s: %d", c, resp.StatusCode)
		}
	}
	if n := len(f.forwards()); n != 0 {
		t.Errorf("%d requests reached the engine", n)
	}
}

func TestABodyOverTheLimitIsRefused(t *testing.T) {
	f := newFaulty(t)
	w := newWorld(t, withEngine(f))
	w.ready()
	big := strings.Repeat(" ", maxBody+1)
	if code, text := w.post(w.sign(w.ticketFor(big)), big); code != http.StatusRequestEntityTooLarge {
		t.Errorf("got %d %s", code, text)
	}
}

func TestAGatewayOfAnotherPoolCompletesNoHandshake(t *testing.T) {
	f := newFaulty(t)
	w := newWorld(t, withEngine(f))
	w.ready()
	_, err := w.clientOf(w.stranger).Do(w.request(t.Context(), chatRoute.path(), w.sign(w.ticketFor(chatBody)), chatBody))
	if err == nil || !workload.IsIdentityError(err) {
		t.Errorf("inference: %v", err)
	}
	stream, err := w.residency(w.stranger).Watch(t.Context(), w.watchRequest())
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("residency: %v", err)
	}
	eventually(t, "a log line", func() bool {
		return strings.Contains(w.log.String(), "handshake refused") && strings.Contains(w.log.String(), "other-pool")
	})
	if len(f.forwards()) != 0 {
		t.Error("it reached the engine")
	}
}

func TestAClientWithoutAnSVIDCompletesNoHandshake(t *testing.T) {
	f := newFaulty(t)
	w := newWorld(t, withEngine(f))
	conf := workload.ClientConfig(w.gateway, nil)
	conf.GetClientCertificate = nil
	conf.VerifyConnection = nil
	tr := &http.Transport{TLSClientConfig: conf}
	defer tr.CloseIdleConnections()
	if _, err := (&http.Client{Transport: tr}).Do(w.request(t.Context(), chatRoute.path(), "", chatBody)); err == nil {
		t.Error("let in")
	}
}

func TestAnAnswerIsStreamedAsItComes(t *testing.T) {
	f := newFaulty(t)
	next := make(chan string)
	f.answer = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Set-Cookie", "engine=1")
		w.Header().Set("X-Engine", "secret")
		for piece := range next {
			fmt.Fprint(w, piece)
			w.(http.Flusher).Flush()
		}
	}
	w := newWorld(t, withEngine(f))
	w.ready()
	body := strings.Replace(chatBody, "{", `{"stream":true,`, 1)
	done := make(chan *http.Response)
	go func() {
		resp, err := w.client.Do(w.request(t.Context(), chatRoute.path(), w.sign(w.ticketFor(body)), body))
		if err != nil {
			t.Error(err)
		}
		done <- resp
	}()
	next <- "data: 1\n"
	resp := <-done
	defer resp.Body.Close()
	for name := range resp.Header {
		if name != "Content-Type" && name != "Date" {
			t.Errorf("header %s came back", name)
		}
	}
	lines := bufio.NewScanner(resp.Body)
	for i, want := range []string{"data: 1", "data: 2", "data: 3"} {
		if i > 0 {
			next <- want + "\n" // only once the one before has arrived
		}
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("got %q (%v), want %q", lines.Text(), lines.Err(), want)
		}
	}
	close(next)
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("end: %q, %v", lines.Text(), lines.Err())
	}
}

func TestAnEnginesErrorKeepsItsStatusAndText(t *testing.T) {
	f := newFaulty(t)
	f.answer = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.Header().Set("Location", "http://127.0.0.1/elsewhere")
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(w, `{"error":"busy"}`)
	}
	w := newWorld(t, withEngine(f))
	w.ready()
	resp, err := w.client.Do(w.request(t.Context(), chatRoute.path(), w.sign(w.ticketFor(chatBody)), chatBody))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusTooManyRequests || string(text) != `{"error":"busy"}` || resp.Header.Get("Retry-After") != "7" {
		t.Errorf("got %d %s %v (%v)", resp.StatusCode, text, resp.Header, err)
	}
	if resp.Header.Get("Location") != "" {
		t.Error("a redirect came back")
	}
}

func TestABrokenAnswerIsNotMadeWhole(t *testing.T) {
	f := newFaulty(t)
	f.answer = func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	w := newWorld(t, withEngine(f))
	w.ready()
	resp, err := w.client.Do(w.request(t.Context(), chatRoute.path(), w.sign(w.ticketFor(chatBody)), chatBody))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("a clean end after %q", text)
	}
}

func TestAGatewayThatLeavesCancelsTheEnginesWork(t *testing.T) {
	for _, when := range []string{"before the first byte", "mid-stream"} {
		t.Run(when, func(t *testing.T) {
			f := newFaulty(t)
			started, cancelled := make(chan struct{}), make(chan struct{})
			f.answer = func(w http.ResponseWriter, r *http.Request) {
				if when == "mid-stream" {
					fmt.Fprint(w, "data: 1\n\n")
					w.(http.Flusher).Flush()
				}
				close(started)
				<-r.Context().Done()
				close(cancelled)
			}
			w := newWorld(t, withEngine(f))
			w.ready()
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				resp, err := w.client.Do(w.request(ctx, chatRoute.path(), w.sign(w.ticketFor(chatBody)), chatBody))
				if err == nil {
					_, _ = io.ReadAll(resp.Body)
					_ = resp.Body.Close()
				}
			}()
			<-started
			g := gatewayLog{"spiffe://example.org/gateway/a", "example.org/gateway/a"}
			eventually(t, "the work is counted", func() bool {
				l := w.relay.load.report(g)
				return l.Running+l.Waiting == 1
			})
			cancel()
			select {
			case <-cancelled:
			case <-time.After(await.Limit):
				t.Fatal("the engine goes on")
			}
			eventually(t, "the work is gone", func() bool {
				l := w.relay.load.report(g)
				return l.Running+l.Waiting == 0 && l.Ack.NContiguous == 1
			})
		})
	}
}

func TestARouteWhoseIsolationIsNotProvenIsRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		fault  func(*faulty)
		domain string // that unproven routes serve
		status int
		log    string
	}{
		{"the engine ignores the salt", func(f *faulty) { f.noSalt = true }, "", 403, "ignores the salt"},
		{"the engine reports no cached tokens", func(f *faulty) { f.noReport = true }, "", 403, "reports no cached_tokens"},
		{"another domain is configured", func(f *faulty) { f.noSalt = true }, "domain-b", 403, "domain-b"},
		{"this domain is configured", func(f *faulty) { f.noSalt = true }, "domain-a", 200, "domain-a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFaulty(t)
			c.fault(f)
			w := newWorld(t, func(cfg *Config) {
				cfg.Engine.URL = f.URL
				cfg.SaltDomain = c.domain
			})
			w.ready()
			code, text := w.post(w.sign(w.ticketFor(chatBody)), chatBody)
			if code != c.status {
				t.Errorf("got %d %s", code, text)
			}
			if !strings.Contains(w.log.String(), c.log) {
				t.Error("the log does not say why")
			}
		})
	}
}

func TestInADemonstrationAGatewayBringsItsKeyWithItsWatch(t *testing.T) {
	f := newFaulty(t)
	w := newWorld(t, func(c *Config) {
		c.Engine.URL = f.URL
		c.AllowUnpinned = true
		c.Gateways[0].LogVKey = ""
	})
	w.ready()
	if code, text := w.post(w.sign(w.ticketFor(chatBody)), chatBody); code != http.StatusForbidden || !strings.Contains(text, "unknown_gateway") {
		t.Errorf("before: %d %s", code, text)
	}
	book := newPicturebook(t)
	if err := follow(w.watch(t.Context()), book, func() bool { return book.ready }); err != nil {
		t.Fatal(err)
	}
	if code, text := w.post(w.sign(w.ticketFor(chatBody)), chatBody); code != http.StatusOK {
		t.Errorf("after: %d %s", code, text)
	}
}

func TestAHostedAPIGetsTheRelaysCredentialAndOneDomainOnly(t *testing.T) {
	f := newFaulty(t)
	credential := filepath.Join(t.TempDir(), "credential")
	if err := os.WriteFile(credential, []byte("sk-relay\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(c *Config) {
		c.Engine = Engine{URL: f.URL, Kind: External, CredentialFile: credential}
		c.SaltDomain = "domain-a"
	})
	w.ready()
	if code, text := w.post(w.sign(w.ticketFor(chatBody)), chatBody); code != http.StatusOK {
		t.Fatalf("got %d %s", code, text)
	}
	got := f.forwards()[0]
	if string(got.body) != chatBody || got.header.Get("Authorization") != "Bearer sk-relay" {
		t.Errorf("the API got %s with %v", got.body, got.header)
	}
	tk := w.ticketFor(chatBody)
	tk.Domain = "domain-b"
	if code, text := w.post(w.sign(tk), chatBody); code != http.StatusForbidden || !strings.Contains(text, "route_not_isolated") {
		t.Errorf("another domain: %d %s", code, text)
	}
	book := newPicturebook(t)
	if err := follow(w.watch(t.Context()), book, func() bool { return book.state[0] == residencyv1.State_NONE }); err != nil {
		t.Fatal(err)
	}
	if len(book.hello.GetRoutesIsolated()) != 0 || book.hello.GetSaltVisible() {
		t.Errorf("hello %v", book.hello)
	}
}

func TestAnEngineThatRestartsIsProbedAgain(t *testing.T) {
	f := newFaulty(t)
	w := newWorld(t, withEngine(f))
	w.ready()
	if code, _ := w.post(w.sign(w.ticketFor(chatBody)), chatBody); code != http.StatusOK {
		t.Fatalf("before: %d", code)
	}
	f.set(func() { f.noSalt = true })
	w.relay.suspectRestart()
	eventually(t, "a refusal", func() bool {
		_, text := w.post(w.sign(w.ticketFor(chatBody)), chatBody)
		return strings.Contains(text, "route_not_isolated")
	})
}

func TestNothingIsForwardedWithoutAnEngine(t *testing.T) {
	f := newFaulty(t)
	f.Close()
	w := newWorld(t, withEngine(f))
	if code, text := w.post(w.sign(w.ticketFor(chatBody)), chatBody); code != http.StatusServiceUnavailable || !strings.Contains(text, "not_ready") {
		t.Errorf("got %d %s", code, text)
	}
}

func TestATicketServedIsInTheLogBeforeTheEngineSeesIt(t *testing.T) {
	dir := t.TempDir()
	keyFile := filepath.Join(dir, "key")
	if _, err := tlog.CreateKeyFile(keyFile, "example.org/relay/r0"); err != nil {
		t.Fatal(err)
	}
	f := newFaulty(t)
	w := newWorld(t, func(c *Config) {
		c.Engine.URL = f.URL
		c.Log = LogFiles{Dir: filepath.Join(dir, "log"), KeyFile: keyFile}
	})
	w.ready()
	log := w.relay.access.log.(*tlog.Log)
	var before uint64
	f.set(func() { f.answer = func(http.ResponseWriter, *http.Request) { before = log.Head().Size } })
	start := log.Head().Size
	if code, text := w.post(w.sign(w.ticketFor(chatBody)), chatBody); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	if before <= start {
		t.Fatal("the engine saw the request first")
	}
	leaf, err := log.Get(before - 1)
	if err != nil {
		t.Fatal(err)
	}
	sum := ticket.Digest(sha256.Sum256([]byte(chatBody)))
	digest, err := sum.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"kind":"access"`, `"ticket":"decision-1"`, `"gateway":"spiffe://example.org/gateway/a"`, `"log":"example.org/gateway/a"`, `"domain":"domain-a"`} {
		if !strings.Contains(string(leaf), want) {
			t.Errorf("no %s in %s", want, leaf)
		}
	}
	if strings.Contains(string(leaf), string(digest)) {
		t.Error("the record holds the body's hash")
	}
	// A log that takes nothing stops the relay from forwarding.
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	n := len(f.forwards())
	if code, text := w.post(w.sign(w.ticketFor(chatBody)), chatBody); code != http.StatusServiceUnavailable || !strings.Contains(text, "audit_unavailable") {
		t.Errorf("got %d %s", code, text)
	}
	if len(f.forwards()) != n {
		t.Error("forwarded without a record")
	}
}
