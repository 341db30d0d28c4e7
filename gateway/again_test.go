package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway/upstream"
	"github.com/sallyport-ai/sallyport/test/await"
)

func TestRetriesAreAShareOfTheRequests(t *testing.T) {
	now := time.Unix(1000, 0)
	outage := func(perSecond int) (tried int) { // in each second of the second minute
		var b budget
		for s := range 120 {
			for i := range perSecond {
				b.earn()
				if b.take(now.Add(time.Duration(s)*time.Second+time.Duration(i)*time.Second/time.Duration(perSecond))) && s >= 60 {
					tried++
				}
			}
		}
		return tried / 60
	}
	for perSecond, most := range map[int]int{5: 5, 100: 30, 1000: 210} {
		if got := outage(perSecond); got > most || got < most-1 {
			t.Errorf("of %d requests a second that fail, %d were tried again, want %d", perSecond, got, most)
		}
	}
}

func TestASpentBudgetIsWrittenDown(t *testing.T) {
	s := serve(t)
	mark := s.newMark()
	s.engine.on(mark, replies(500, engineText))
	s.g.retries.spent, s.g.retries.at = retryBurst, time.Now().Add(time.Minute) // nothing comes back meanwhile
	a := s.post("acme", chat(mark))
	s.want(a, http.StatusBadGateway, "upstream_error")
	if n := len(s.engine.got(mark)); n != 1 {
		t.Errorf("tried %d times", n)
	}
	if _, o := s.lone(a); o.Reason != "upstream_error" || o.Detail != budgetSpent || o.Outcome.HTTP != http.StatusBadGateway {
		t.Errorf("outcome %s, %s, %d", o.Reason, o.Detail, o.Outcome.HTTP)
	}
}

func TestAttemptsAreBounded(t *testing.T) {
	s := serve(t, func(c *Config) { c.MaxAttempts = 1 })
	mark := s.newMark()
	s.engine.on(mark, replies(500, engineText))
	a := s.post("acme", chat(mark))
	s.want(a, http.StatusBadGateway, "upstream_error")
	if _, o := s.lone(a); o.Detail != attemptsSpent {
		t.Errorf("outcome %s, %s", o.Reason, o.Detail)
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "0": 0, "7": 7 * time.Second, "-1": 0, "1.5": 0, "soon": 0, "99999999999999999999": 0,
		"Mon, 30 Nov 2026 12:00:09 GMT": 9 * time.Second, "Mon, 30 Nov 2026 11:00:00 GMT": 0,
	} {
		if got := retryAfter(http.Header{"Retry-After": {value}}, now); got != want {
			t.Errorf("%q is %v, want %v", value, got, want)
		}
	}
	for d, want := range map[time.Duration]string{0: "1", 1: "1", time.Second: "1", 1001 * time.Millisecond: "2", 30 * time.Second: "30"} {
		if got := seconds(d); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
}

// Too many requests everywhere is for the caller to know, with when to come
// again; and a replica that said so is left alone until then.
func TestTooManyRequestsEverywhere(t *testing.T) {
	limited := func(after string) act {
		return func(w http.ResponseWriter, _ *http.Request, _ call, _ func()) {
			w.Header().Set("Retry-After", after)
			http.Error(w, engineText, http.StatusTooManyRequests)
		}
	}
	onEachRoute(t, func(t *testing.T, s *service, p protocol) {
		await.That(t, "every replica to be well", s.whole)
		mark := s.newMark()
		s.engine.on(mark, limited("1"))
		a := s.ask(p, "acme", p.body(mark))
		if a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") != "1" {
			t.Fatalf("%d %v %s", a.status, a.header, a.body)
		}
		s.exactly(a, http.StatusTooManyRequests, p.failure("rate_limit_error", "rate_limited", "The model servers have too many requests.", false))
		d, o := s.story(a)
		if n := len(s.engine.got(mark)); n != 2 || len(d) != 3 || d[2].Reason != "rate_limited" || d[2].HTTP != 429 || o[0].Reason != "engine_busy" || o[1].Reason != "engine_busy" {
			t.Errorf("%d calls, %d decisions, last %q", n, len(d), d[len(d)-1].Reason)
		}
		// The next one does not even ask.
		next := s.newMark()
		if a := s.ask(p, "acme", p.body(next)); a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") != "1" {
			t.Errorf("%d %v", a.status, a.header)
		}
		s.unreached(next)
	})
	t.Run("one that is only overloaded", func(t *testing.T) {
		s := serve(t)
		mark := s.newMark()
		s.engine.on(mark, func(w http.ResponseWriter, r *http.Request, c call, pass func()) {
			if c.n == 1 {
				limited("1")(w, r, c, pass)
				return
			}
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		a := s.post("acme", chat(mark))
		s.want(a, http.StatusServiceUnavailable, "no_replica")
		if a.header.Get("Retry-After") != "1" {
			t.Errorf("header %v", a.header)
		}
	})
}

// A request is given up when it has taken too long in all, however lively.
func TestARequestTakesNoLongerThanItMay(t *testing.T) {
	const tooLong = "The request took too long."
	w := inWorld(t)
	drips := func(p protocol) act {
		return func(w http.ResponseWriter, r *http.Request, c call, pass func()) {
			says(p.begin, p.text("Hel"))(w, r, c, pass)
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, ": still here\n\n")
				_ = http.NewResponseController(w).Flush()
				time.Sleep(10 * time.Millisecond)
			}
		}
	}
	s := serve(t, func(c *Config) {
		c.Total = 300 * time.Millisecond
		c.Upstream, _ = upstream.New(upstream.Config{Own: w.self})
	})
	for _, p := range protocols {
		for _, stream := range []bool{false, true} {
			t.Run(p.op.Name+" "+strconv.FormatBool(stream), func(t *testing.T) {
				s.tb = t
				mark, more, status := s.newMark(), []string(nil), http.StatusGatewayTimeout
				s.engine.on(mark, stalls(wholeHead+sized(100), "{"))
				if stream {
					more, status = []string{streamed}, http.StatusOK
					s.engine.on(mark, drips(p))
				}
				began := time.Now()
				a := s.ask(p, "acme", p.body(mark, more...))
				if took := time.Since(began); took > await.Limit/2 || took < 250*time.Millisecond {
					t.Errorf("took %v", took)
				}
				if a.status != status || stream && !strings.HasSuffix(a.body, p.broke("upstream_timeout", tooLong, 2)) ||
					!stream && a.body != p.failure("server_error", "upstream_timeout", tooLong, false) {
					t.Errorf("%d %s", a.status, a.body)
				}
				s.tells(a, told{attempts: 1, status: audit.StatusError, reasons: []string{"total_timeout"}, http: status})
			})
		}
	}
}

// Stopped, a gateway ends what it is doing with a word and a record.
func TestAGatewayThatStopsEndsItsStreams(t *testing.T) {
	const stopping = "The gateway is stopping."
	for _, p := range protocols {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %v", p.op.Name, stream), func(t *testing.T) {
				s := serve(t)
				mark, more, status := s.newMark(), []string(nil), http.StatusServiceUnavailable
				s.engine.on(mark, func(_ http.ResponseWriter, r *http.Request, _ call, _ func()) {
					s.g.Stop()
					<-r.Context().Done()
				})
				if stream {
					more, status = []string{streamed}, http.StatusOK
					s.engine.on(mark, stalls(streamHead+chunkedEnd, piece(p.begin+p.text("Hel"))))
				}
				resp, err := s.client.Do(s.to(t.Context(), p.op, "acme", p.body(mark, more...)))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = resp.Body.Close() }()
				if stream {
					s.g.Stop() // it has begun
				}
				body, err := io.ReadAll(resp.Body)
				a := answer{resp.StatusCode, resp.Header, string(body), err}
				if stream && (!strings.Contains(a.body, "stopping") || !strings.HasSuffix(a.body, "\n\n") || strings.Contains(a.body, p.closed)) ||
					!stream && !strings.Contains(a.body, stopping) || a.status != status || a.err != nil {
					t.Errorf("%d %s", a.status, a.body)
				}
				s.tells(a, told{attempts: 1, status: audit.StatusError, reasons: []string{"stopping"}, http: status})
				if a := s.ask(p, "acme", p.body(s.newMark())); a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, stopping) {
					t.Errorf("the next one: %d %s", a.status, a.body)
				}
			})
		}
	}
}

// A log that takes only what is owed ends streams with a word and a record, and
// costs nobody who comes later anything.
func TestALogWithoutRoomEndsStreams(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.op.Name, func(t *testing.T) {
			s := serve(t)
			mark := s.newMark()
			s.engine.on(mark, stalls(streamHead+chunkedEnd, piece(p.begin+p.text("Hel"))))
			resp, err := s.client.Do(s.to(t.Context(), p.op, "acme", p.body(mark, streamed)))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			s.g.EndAll()
			body, err := io.ReadAll(resp.Body)
			a := answer{resp.StatusCode, resp.Header, string(body), err}
			if !strings.Contains(a.body, "can be recorded no further") || strings.Contains(a.body, p.closed) || a.err != nil {
				t.Errorf("%d %s", a.status, a.body)
			}
			s.tells(a, told{attempts: 1, status: audit.StatusError, reasons: []string{"audit_unavailable"}, http: http.StatusOK})
			if a := s.ask(p, "acme", p.body(s.newMark())); a.status != http.StatusOK {
				t.Errorf("the next one: %d %s", a.status, a.body)
			}
		})
	}
}

// The end of a process must not cost the record of how a request ended.
func TestAStopWaitsForWhatIsYetToBeWrittenDown(t *testing.T) {
	w, hold := inWorld(t), make(chan struct{})
	s := serve(t, func(c *Config) {
		c.Log = appendFunc(func(ctx context.Context, r *audit.Record) (audit.Position, error) {
			if r.Kind == audit.KindOutcome {
				<-hold
			}
			return w.log.Append(ctx, r)
		})
	})
	if err := s.g.Wait(t.Context()); err != nil {
		t.Errorf("with nothing to wait for: %v", err)
	}
	mark := s.newMark()
	s.engine.on(mark, holds)
	resp, err := s.client.Do(s.request(t.Context(), "acme", chat(mark, streamed)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	s.g.Stop()
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.g.Wait(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while the outcome is not written: %v", err)
	}
	close(hold)
	if err := s.g.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if rs := s.records(t, resp.Header.Get("Sallyport-Decision-Id")); len(rs) != 2 || rs[1].Reason != "stopping" {
		t.Errorf("%d records when there is nothing left to wait for", len(rs))
	}
}

// Compressed, a request is the same request.
func TestACompressedBodyIsJudgedAndForwardedPlain(t *testing.T) {
	onEachRoute(t, func(t *testing.T, s *service, p protocol) {
		for _, phi := range []string{"", " patient MRN 48213377"} {
			if phi != "" && p.text == nil {
				continue // no pool for this takes such texts
			}
			var records [2]string
			var bodies [2]string
			for i, compressed := range []bool{false, true} {
				mark := s.newMark()
				body := p.body(mark + phi)
				req := s.to(t.Context(), p.op, "acme", body)
				if compressed {
					req = s.to(t.Context(), p.op, "acme", zipped(body), "Content-Encoding", "gzip")
				}
				a := s.do(req)
				if a.status != http.StatusOK {
					t.Fatalf("compressed %v: %d %s", compressed, a.status, a.body)
				}
				d, _ := s.lone(a)
				records[i] = fmt.Sprint(d.Label.Level, d.Class.Name, d.Placement.Pool, d.Request.BodyBytes-len(mark))
				c := s.engine.got(mark)[0]
				bodies[i] = string(bytes.Split([]byte(strings.ReplaceAll(c.body, mark, "")), []byte(`"cache_salt"`))[0])
				if c.header.Get("Content-Encoding") != "" {
					t.Errorf("the engine got %v", c.header)
				}
			}
			if records[0] != records[1] || bodies[0] != bodies[1] {
				t.Errorf("plain %s\n%s\ncompressed %s\n%s", records[0], bodies[0], records[1], bodies[1])
			}
		}
	})
}
