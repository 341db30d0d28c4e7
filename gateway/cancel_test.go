package gateway

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/test/await"
)

// window is a phase of a request in which its client leaves.
type window struct {
	claim  string
	stream bool
	before string // what the engine has sent by then
	header bool   // whether it has sent anything
}

var windows = []window{
	{"not streaming", false, "", false},
	{"before the header", true, "", false},
	{"before the first token", true, "", true},
	{"before the first token, after a comment", true, ": wait\n\n", true},
	{"in mid-stream", true, chunk + chunk, true},
}

// The engine's work ends with its reader's interest, whatever the phase.
func TestAClientThatLeavesEndsTheEnginesWork(t *testing.T) {
	s := serve(t)
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		for _, w := range windows {
			t.Run(protocol+" "+w.claim, func(t *testing.T) {
				s.tb = t
				client := s.clientAs(nil)
				client.Transport.(*http.Transport).ForceAttemptHTTP2 = protocol == "HTTP/2.0"
				best := time.Hour
				for range 3 { // the machine may be busy; the gateway is not
					if best = min(best, s.leave(t, client, w)); best <= time.Second {
						return
					}
				}
				t.Errorf("the engine heard of it after %v", best)
			})
		}
	}
}

// leave has a client leave in a window and returns how long it took the engine
// to hear of it.
func (s *service) leave(t *testing.T, client *http.Client, w window) time.Duration {
	t.Helper()
	mark, arrived, heard := s.newMark(), make(chan struct{}), make(chan time.Time, 1)
	s.engine.on(mark, func(rw http.ResponseWriter, r *http.Request, _ call, _ func()) {
		if w.header {
			rw.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(rw, w.before)
			_ = http.NewResponseController(rw).Flush()
		}
		close(arrived)
		<-r.Context().Done()
		heard <- time.Now()
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	fields := []string{`"user":"` + mark + `"`}
	if w.stream {
		fields = append(fields, streamed)
	}
	var left atomic.Pointer[time.Time]
	leave := func() {
		now := time.Now()
		left.Store(&now)
		cancel()
	}
	from := s.log.Head().Size
	read := make(chan struct{})
	go func() {
		<-arrived
		if w.before != "" {
			<-read // the client has begun to read
		} else {
			time.Sleep(5 * time.Millisecond) // so that the header is underway, where there is one
		}
		leave()
	}()
	resp, err := client.Do(s.request(ctx, "acme", chat(mark, fields...)))
	if err == nil {
		lines := bufio.NewReader(resp.Body)
		if _, err := lines.ReadString('\n'); err == nil {
			close(read)
		}
		_, err = io.Copy(io.Discard, lines)
		_ = resp.Body.Close()
	}
	if err == nil {
		t.Fatal("the client got a whole answer")
	}
	var at time.Time
	select {
	case at = <-heard:
	case <-time.After(await.Limit):
		t.Fatal("the engine never heard of it")
	}
	s.cancelled(t, from, w)
	return at.Sub(*left.Load())
}

// cancelled checks the outcome of the newest request, which its client no
// longer waits for.
func (s *service) cancelled(t *testing.T, from uint64, w window) {
	t.Helper()
	var d, o *audit.Record
	await.That(t, "the outcome", func() bool {
		for i := from; i < s.log.Head().Size; i++ {
			leaf, err := s.log.Get(i)
			if err != nil {
				t.Fatal(err)
			}
			r, err := audit.Decode(leaf)
			if err != nil {
				t.Fatal(err)
			}
			switch r.Kind {
			case audit.KindDecision:
				d = r
			case audit.KindOutcome:
				o = r
			default:
			}
		}
		return d != nil && o != nil && o.ID == d.ID
	})
	sent := 499
	if w.before != "" {
		sent = 200 // the client has begun to read
	}
	if o.Status != audit.StatusCancelled || o.Reason != "client_gone" || o.Outcome.HTTP != sent {
		t.Errorf("outcome %s %s %d, want %d", o.Status, o.Reason, o.Outcome.HTTP, sent)
	}
}

func TestAClientThatLeavesWhileTheLogWritesIsNotForwarded(t *testing.T) {
	w := inWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	var id atomic.Pointer[string]
	s := serve(t, func(c *Config) {
		c.Log = appendFunc(func(within context.Context, r *audit.Record) (audit.Position, error) {
			at, err := w.log.Append(within, r)
			if allows(r) {
				id.Store(&r.ID)
				cancel()
				<-within.Done() // until the gateway has noticed
			}
			return at, err
		})
	})
	mark := s.newMark()
	if resp, err := s.client.Do(s.request(ctx, "acme", chat(mark))); err == nil {
		_ = resp.Body.Close()
		t.Fatal("the client got an answer")
	}
	if d, o := s.storyOf(*id.Load()); len(d) != 1 || len(o) != 1 || o[0].Status != audit.StatusNotForwarded {
		t.Errorf("%d decisions, outcome %+v", len(d), o)
	}
	s.unreached(mark)
}

// holds begins a stream and goes on for as long as somebody wants it.
func holds(w http.ResponseWriter, r *http.Request, c call, pass func()) {
	streams(chunk, nil)(w, r, c, pass)
	<-r.Context().Done()
}

func TestACredentialThatExpiresEndsTheStream(t *testing.T) {
	t.Parallel()
	s := serve(t, func(c *Config) {
		real := c.Live.Identity.Request[0]
		c.Live.Identity.Request = []identity.Authenticator{func(ctx context.Context, r *http.Request) (identity.Principal, error) {
			p, err := real(ctx, r)
			p.Expires = time.Now().Add(1500 * time.Millisecond)
			return p, err
		}}
	})
	mark := s.newMark()
	s.engine.on(mark, holds)
	began := time.Now()
	a := s.post("acme", chat(mark, streamed))
	if took := time.Since(began); took < 1500*time.Millisecond || took > await.Limit/2 {
		t.Errorf("ended after %v", took)
	}
	if data := events(a.body); len(data) != 2 || !strings.Contains(data[1], `"code":"bad_credential"`) || strings.Contains(a.body, "[DONE]") {
		t.Errorf("stream: %s", a.body)
	}
	if _, o := s.lone(a); o.Status != audit.StatusRefused || o.Reason != "credential_expired" || o.Outcome.HTTP != 200 {
		t.Errorf("outcome %s %s %d", o.Status, o.Reason, o.Outcome.HTTP)
	}
}

func TestACredentialThatExpiresBeforeForwardingIsRefused(t *testing.T) {
	w := inWorld(t)
	s := serve(t, func(c *Config) {
		real := c.Live.Identity.Request[0]
		c.Live.Identity.Request = []identity.Authenticator{func(ctx context.Context, r *http.Request) (identity.Principal, error) {
			p, err := real(ctx, r)
			p.Expires = time.Now().Add(30 * time.Millisecond)
			return p, err
		}}
		c.Log = appendFunc(func(ctx context.Context, r *audit.Record) (audit.Position, error) {
			at, err := w.log.Append(ctx, r)
			if allows(r) {
				time.Sleep(40 * time.Millisecond)
			}
			return at, err
		})
	})
	mark := s.newMark()
	a := s.post("acme", chat(mark))
	s.want(a, http.StatusUnauthorized, "bad_credential")
	s.unreached(mark)
	if _, o := s.lone(a); o.Status != audit.StatusNotForwarded || o.Reason != "credential_expired" || o.Outcome.HTTP != 401 {
		t.Errorf("outcome %s %s %d", o.Status, o.Reason, o.Outcome.HTTP)
	}
}

func TestAPolicyThatDeniesLaterEndsTheStream(t *testing.T) {
	t.Parallel()
	for _, denies := range []bool{true, false} {
		layer := editable(t)
		layer.set("acme", "reauthorize_s", 1)
		engine, err := loadPolicy(t.Context(), layer)
		if err != nil {
			t.Fatal(err)
		}
		s := serve(t, func(c *Config) { c.Policy = engine })
		mark := s.newMark()
		s.engine.on(mark, func(w http.ResponseWriter, r *http.Request, _ call, _ func()) {
			streams(chunk, func() {
				if denies {
					layer.set("acme", "models", []string{})
				}
				if _, err := engine.Reload(r.Context(), nil); err != nil {
					t.Error(err)
				}
			})(w, r, call{}, nil)
			most := 1500 * time.Millisecond // and the policy has been asked again
			if denies {
				most = await.Limit
			}
			select {
			case <-r.Context().Done():
			case <-time.After(most):
				_, _ = io.WriteString(w, "data: [DONE]\n\n")
			}
		})
		a := s.post("acme", chat(mark, streamed))
		_, o := s.lone(a)
		if !denies {
			if o.Status != audit.StatusOK || !strings.Contains(a.body, "[DONE]") {
				t.Errorf("a policy that still allows: %s, stream %s", o.Status, a.body)
			}
			continue
		}
		if data := events(a.body); len(data) != 2 || !strings.Contains(data[1], `"code":"policy_denied"`) || strings.Contains(a.body, "[DONE]") {
			t.Errorf("stream: %s", a.body)
		}
		if o.Status != audit.StatusRefused || o.Reason != "reauthorize_denied" {
			t.Errorf("outcome %s %s", o.Status, o.Reason)
		}
	}
}

// A client that stops reading must not hold a replica.
func TestAClientThatDoesNotReadMeetsADeadline(t *testing.T) {
	s := serve(t)
	s.g.writeTimeout = 200 * time.Millisecond
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(protocol, func(t *testing.T) {
			s.tb = t
			mark, over := s.newMark(), make(chan time.Time, 1)
			big := strings.Replace(chunk, "hi", strings.Repeat("x", 256<<10), 1)
			s.engine.on(mark, func(w http.ResponseWriter, r *http.Request, _ call, _ func()) {
				defer func() { over <- time.Now() }()
				w.Header().Set("Content-Type", "text/event-stream")
				for r.Context().Err() == nil {
					if _, err := io.WriteString(w, big); err != nil {
						return
					}
				}
			})
			client := s.clientAs(nil)
			client.Transport.(*http.Transport).ForceAttemptHTTP2 = protocol == "HTTP/2.0"
			resp, err := client.Do(s.request(t.Context(), "acme", chat(mark, streamed)))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			if _, err := io.ReadFull(resp.Body, make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
			select {
			case <-over:
			case <-time.After(await.Limit):
				t.Fatal("the engine still writes to a client that does not read")
			}
			if _, o := s.storyOf(resp.Header.Get("Sallyport-Decision-Id")); len(o) != 1 || o[0].Status != audit.StatusCancelled || o[0].Reason != "client_gone" {
				t.Errorf("outcome %+v", o)
			}
		})
	}
}
