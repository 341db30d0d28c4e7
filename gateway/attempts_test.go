package gateway

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway/upstream"
	"github.com/sallyport-ai/sallyport/test/await"
)

// replies answers every request at every engine alike.
func replies(status int, body string) act {
	return func(w http.ResponseWriter, _ *http.Request, _ call, _ func()) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// first answers the first request with a, and hands later ones to the engine.
func first(a act) act {
	return func(w http.ResponseWriter, r *http.Request, c call, pass func()) {
		if c.n == 1 {
			a(w, r, c, pass)
			return
		}
		pass()
	}
}

func resets(http.ResponseWriter, *http.Request, call, func()) { panic(http.ErrAbortHandler) }

// inner words that engines say and callers must not hear.
const engineText = `{"error":{"message":"CUDA out of memory at /opt/vllm/worker.py, prompt was: harbours","type":"oom","code":507}}`

func TestABusyOrBrokenEngineIsNotTheOnlyOne(t *testing.T) {
	s := serve(t)
	for _, c := range []struct {
		claim    string
		act      act
		reason   string
		upstream string // reason of the first outcome
	}{
		{"too many requests", replies(429, engineText), "engine_busy", "engine_busy"},
		{"overloaded", replies(503, engineText), "engine_busy", "engine_busy"},
		{"an error of its own", replies(500, engineText), "upstream_error", "upstream_error"},
		{"a route it has lost", replies(404, engineText), "upstream_error", "upstream_error"},
		{"a reset before the header", resets, "upstream_error", "upstream_error"},
	} {
		for _, more := range []string{"", streamed} {
			t.Run(c.claim+" "+more, func(t *testing.T) {
				s.tb = t
				await.That(t, "every replica to be well", s.whole)
				mark := s.newMark()
				s.engine.on(mark, first(c.act))
				fields := []string{}
				if more != "" {
					fields = append(fields, more)
				}
				a := s.post("acme", chat(mark, fields...))
				if a.status != http.StatusOK {
					t.Fatalf("%d %s", a.status, a.body)
				}
				got := s.engine.got(mark)
				if len(got) != 2 || got[0].replica == got[1].replica {
					t.Fatalf("tried %d times: %v", len(got), got)
				}
				d, o := s.story(a)
				if len(d) != 2 || len(o) != 2 || d[0].Placement.Replica != got[0].replica || d[1].Placement.Replica != got[1].replica {
					t.Fatalf("%d decisions, %d outcomes", len(d), len(o))
				}
				if d[1].Attempt != 2 || d[1].Reason != c.reason || d[1].Status != audit.StatusAllowed || excludedOf(d[1]) != 1 {
					t.Errorf("second decision: attempt %d, reason %q, excluded %v", d[1].Attempt, d[1].Reason, d[1].Placement.Excluded)
				}
				if o[0].Attempt != 1 || o[0].Status != audit.StatusError || o[0].Reason != c.upstream || o[0].Outcome.HTTP != 0 || o[1].Attempt != 2 || o[1].Status != audit.StatusOK {
					t.Errorf("outcomes: %d %s %s %d, %d %s", o[0].Attempt, o[0].Status, o[0].Reason, o[0].Outcome.HTTP, o[1].Attempt, o[1].Status)
				}
			})
		}
	}
}

// excludedOf counts the replicas that were no candidates: unhealthy, or as the
// lost holder of what the prompt begins with.
func excludedOf(d *audit.Record) int {
	return d.Placement.Excluded["unhealthy"] + d.Placement.Excluded["no_headroom"] + d.Placement.Excluded["holder_down"]
}

func TestWhenNoReplicaIsLeft(t *testing.T) {
	s := serve(t)
	mark := s.newMark()
	s.engine.on(mark, replies(503, engineText))
	a := s.post("acme", chat(mark))
	s.want(a, http.StatusServiceUnavailable, "no_replica")
	if n := len(s.engine.got(mark)); n != 2 {
		t.Errorf("%d engines were asked, there are two", n)
	}
	d, o := s.story(a)
	if len(d) != 3 || len(o) != 2 || d[2].Status != audit.StatusDenied || d[2].Reason != "no_replica" || d[2].Attempt != 3 {
		t.Errorf("%d decisions, %d outcomes, last %s %s", len(d), len(o), d[len(d)-1].Status, d[len(d)-1].Reason)
	}
}

// Another engine would be asked to overrule the first.
func TestARefusalOfTheContentIsFinal(t *testing.T) {
	s := serve(t)
	for _, status := range []int{400, 422} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			s.tb = t
			mark := s.newMark()
			s.engine.on(mark, replies(status, engineText))
			a := s.post("acme", chat(mark))
			s.want(a, http.StatusBadRequest, "invalid_request")
			s.silent(a)
			if n := len(s.engine.got(mark)); n != 1 {
				t.Errorf("%d engines were asked", n)
			}
			if d, o := s.lone(a); d.Status != audit.StatusAllowed || o.Status != audit.StatusRefused || o.Reason != "engine_refused" || o.Outcome.HTTP != 400 {
				t.Errorf("outcome %s %s", o.Status, o.Reason)
			}
		})
	}
}

// silent fails the test if the answer quotes the engine.
func (s *service) silent(a answer) {
	s.tb.Helper()
	for _, word := range []string{"CUDA", "/opt", "harbours", "507", "oom", "worker"} {
		if strings.Contains(a.body, word) {
			s.tb.Errorf("the caller reads %q of the engine's: %s", word, a.body)
		}
	}
}

// chunk is one event of a stream.
const chunk = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}` + "\n\n"

// streams begins a stream with events, flushed, and then does as end does.
func streams(events string, end func()) act {
	return func(w http.ResponseWriter, r *http.Request, _ call, _ func()) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, events)
		_ = http.NewResponseController(w).Flush()
		if end != nil {
			time.Sleep(20 * time.Millisecond) // a reset may overtake what was sent before it
			end()
		}
	}
}

func abort() { panic(http.ErrAbortHandler) }

func TestAStreamThatBreaksNeverLooksFinished(t *testing.T) {
	s := serve(t)
	for _, c := range []struct {
		claim, reason string
		act           act
	}{
		{"a reset", "upstream_unreachable", streams(chunk+chunk, abort)},
		{"a reset inside an event", "upstream_unreachable", streams(chunk+chunk+chunk[:40], abort)},
		{"an end without [DONE]", "upstream_malformed", streams(chunk+chunk, nil)},
		{"an end inside an event", "upstream_malformed", streams(chunk+chunk+chunk[:40], nil)},
		{"an end before the blank line", "upstream_malformed", streams(chunk+chunk+"data: [DONE]", nil)},
		{"an error event", "upstream_error", streams(chunk+chunk+"data: "+engineText+"\n\ndata: [DONE]\n\n", nil)},
		{"an event that is no JSON", "upstream_malformed", streams(chunk+chunk+"data: {CUDA\n\ndata: [DONE]\n\n", nil)},
	} {
		t.Run(c.claim, func(t *testing.T) {
			s.tb = t
			mark := s.newMark()
			s.engine.on(mark, c.act)
			a := s.post("acme", chat(mark, streamed))
			if a.status != http.StatusOK || a.err != nil {
				t.Fatalf("%d %s %v", a.status, a.body, a.err)
			}
			data := events(a.body)
			if len(data) != 3 || !strings.Contains(data[0], "hi") || !strings.Contains(data[2], `"code":"upstream_error"`) || strings.Contains(a.body, "[DONE]") {
				t.Fatalf("stream: %s", a.body)
			}
			s.silent(a)
			if n := len(s.engine.got(mark)); n != 1 {
				t.Errorf("tried %d times after the first byte", n)
			}
			if _, o := s.lone(a); o.Status != audit.StatusError || o.Reason != c.reason || o.Outcome.HTTP != 200 || o.Outcome.UpstreamHTTP != 200 || o.Outcome.ErrorClass != "upstream_error" {
				t.Errorf("outcome %s %s %d, want %s", o.Status, o.Reason, o.Outcome.HTTP, c.reason)
			}
		})
	}
}

func TestWhatComesAfterTheEndIsNoPartOfTheAnswer(t *testing.T) {
	s := serve(t)
	for claim, act := range map[string]act{
		"a reset":       streams(chunk+"data: [DONE]\n\n", abort),
		"half an event": streams(chunk+"data: [DONE]\n\n"+chunk[:40], nil),
		"more events":   streams(chunk+"data: [DONE]\n\n"+chunk, nil),
		"an error":      streams(chunk+"data: [DONE]\n\ndata: "+engineText+"\n\n", nil),
	} {
		t.Run(claim, func(t *testing.T) {
			s.tb = t
			mark := s.newMark()
			s.engine.on(mark, act)
			a := s.post("acme", chat(mark, streamed))
			if a.body != chunk+"data: [DONE]\n\n" || a.err != nil {
				t.Errorf("stream: %s %v", a.body, a.err)
			}
			if _, o := s.lone(a); o.Status != audit.StatusOK {
				t.Errorf("outcome %s %s", o.Status, o.Reason)
			}
		})
	}
}

// What goes wrong before the caller has read anything is an answer of its own.
func TestAnAnswerThatIsNoneIsAnError(t *testing.T) {
	s := serve(t)
	const half = `{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"harbours`
	for _, c := range []struct {
		claim, reason string
		more          []string
		act           act
	}{
		{"an error under 200", "upstream_error", nil, replies(200, engineText)},
		{"half a body", "upstream_malformed", nil, replies(200, half)},
		{"a body that is no JSON", "upstream_malformed", nil, replies(200, `CUDA`)},
		{"a stream where none was asked for", "upstream_malformed", nil, streams(chunk, nil)},
		{"an error event first", "upstream_error", []string{streamed}, streams("data: "+engineText+"\n\n", nil)},
		{"a body where a stream was asked for", "upstream_malformed", []string{streamed}, replies(200, engineText)},
		{"an empty stream", "upstream_malformed", []string{streamed}, streams("", nil)},
		{"a redirect", "upstream_error", nil, replies(302, engineText)},
	} {
		t.Run(c.claim, func(t *testing.T) {
			s.tb = t
			mark := s.newMark()
			s.engine.on(mark, c.act)
			a := s.post("acme", chat(mark, c.more...))
			if c.claim == "a redirect" {
				s.want(a, http.StatusServiceUnavailable, "no_replica") // both engines were asked
				return
			}
			s.want(a, http.StatusBadGateway, "upstream_error")
			s.silent(a)
			if _, o := s.lone(a); o.Status != audit.StatusError || o.Reason != c.reason || o.Outcome.HTTP != 502 {
				t.Errorf("outcome %s %s %d, want %s", o.Status, o.Reason, o.Outcome.HTTP, c.reason)
			}
		})
	}
	t.Run("a body that breaks off", func(t *testing.T) {
		s.tb = t
		mark := s.newMark()
		s.engine.on(mark, func(w http.ResponseWriter, _ *http.Request, _ call, _ func()) {
			_, _ = io.WriteString(w, half)
			_ = http.NewResponseController(w).Flush()
			time.Sleep(20 * time.Millisecond)
			abort()
		})
		a := s.post("acme", chat(mark))
		s.want(a, http.StatusBadGateway, "upstream_error")
		if _, o := s.lone(a); o.Status != audit.StatusError || o.Reason != "upstream_unreachable" {
			t.Errorf("outcome %s %s", o.Status, o.Reason)
		}
	})
}

func TestAnEngineThatDoesNotAnswerIsGivenUp(t *testing.T) {
	w := inWorld(t)
	s := serve(t, func(c *Config) {
		c.Upstream, _ = upstream.New(upstream.Config{Own: w.self, HeaderTimeout: 100 * time.Millisecond, IdleTimeout: 100 * time.Millisecond})
	})
	silent := func(w http.ResponseWriter, r *http.Request, _ call, _ func()) { <-r.Context().Done() }
	t.Run("no header", func(t *testing.T) {
		s.tb = t
		mark := s.newMark()
		s.engine.on(mark, silent)
		a := s.post("acme", chat(mark))
		s.want(a, http.StatusGatewayTimeout, "upstream_timeout")
		if n := len(s.engine.got(mark)); n != 1 {
			t.Errorf("tried %d times: the first may have worked on it all the while", n)
		}
		if _, o := s.lone(a); o.Status != audit.StatusError || o.Reason != "upstream_timeout" {
			t.Errorf("outcome %s %s", o.Status, o.Reason)
		}
	})
	t.Run("silence in a stream", func(t *testing.T) {
		s.tb = t
		mark := s.newMark()
		s.engine.on(mark, func(w http.ResponseWriter, r *http.Request, c call, pass func()) {
			streams(chunk, nil)(w, r, c, pass)
			silent(w, r, c, pass)
		})
		a := s.post("acme", chat(mark, streamed))
		if data := events(a.body); len(data) != 2 || !strings.Contains(data[1], `"code":"upstream_timeout"`) {
			t.Fatalf("stream: %s", a.body)
		}
		if _, o := s.lone(a); o.Status != audit.StatusError || o.Reason != "upstream_timeout" {
			t.Errorf("outcome %s %s", o.Status, o.Reason)
		}
	})
}

// holder has a replica hold a prompt and returns it with a body that goes on
// from there.
func (s *service) holder(who string) (replicaID, mark, body string) {
	s.tb.Helper()
	await.That(s.tb, "every replica to be well", s.whole)
	mark = s.newMark()
	long := mark + strings.Repeat(" The ships came in with the tide.", 12)
	for range 20 {
		a := s.post(who, chat(long))
		if a.status != http.StatusOK {
			s.tb.Fatal(a.body)
		}
		d, o := s.lone(a)
		replicaID = d.Placement.Replica
		if cached := o.Outcome.CachedTokens; cached != nil && *cached > 0 && d.Placement.PredictedCached > 0 {
			return replicaID, mark, chat(long + " And then?")
		}
	}
	s.tb.Fatal("no replica came to hold the prompt")
	return "", "", ""
}

// These two break replicas for a second or so, which others would notice.
func TestAConnectionThatFailsIsTriedElsewhere(t *testing.T) {
	w := inWorld(t)
	for _, c := range []struct {
		claim          string
		breakIt, mend  func(f *front, other *replica)
		reason, status string
		excluded       string
	}{
		{
			"reset at its next byte", func(f *front, _ *replica) { f.cut.Store(true) }, func(f *front, _ *replica) { f.cut.Store(false) },
			"holder_down", "upstream_unreachable", "holder_down",
		},
		{
			"another identity", func(f *front, other *replica) { to := other.relay.Addr(); f.astray.Store(&to) }, func(f *front, _ *replica) { f.astray.Store(nil) },
			"svid_mismatch", "replica_identity", "svid_mismatch",
		},
	} {
		t.Run(c.claim, func(t *testing.T) {
			id, mark, body := serve(t).holder("acme")
			holder := w.replicas[id]
			var other *replica
			for _, r := range w.replicas {
				if r.id != id && strings.Contains(r.id, "/general/") {
					other = r
				}
			}
			before := len(w.engine.got(mark))
			var meanwhile string
			w.engine.on(mark, func(_ http.ResponseWriter, _ *http.Request, _ call, pass func()) {
				for _, r := range w.fleet.Replicas() {
					if r.ID == id {
						meanwhile = string(r.Excluded)
					}
				}
				pass()
			})
			c.breakIt(holder.front, other)
			defer c.mend(holder.front, other)
			s := serve(t) // which has no connection yet
			a := s.post("acme", body)
			if a.status != http.StatusOK {
				t.Fatalf("%d %s", a.status, a.body)
			}
			if got := w.engine.got(mark)[before:]; len(got) != 1 || got[0].replica != other.id {
				t.Errorf("engines got %v", got)
			}
			d, o := s.story(a)
			if len(d) != 2 || len(o) != 2 {
				t.Fatalf("%d decisions, %d outcomes", len(d), len(o))
			}
			if d[0].Placement.Replica != id || d[1].Placement.Replica != other.id || d[1].Reason != c.reason || d[1].Placement.Excluded[c.excluded] != 1 {
				t.Errorf("second decision for %s: reason %q, excluded %v", d[1].Placement.Replica, d[1].Reason, d[1].Placement.Excluded)
			}
			if o[0].Status != audit.StatusError || o[0].Reason != c.status || o[1].Status != audit.StatusOK || o[1].Outcome.Peer != other.id {
				t.Errorf("outcomes: %s %s, %s by %s", o[0].Status, o[0].Reason, o[1].Status, o[1].Outcome.Peer)
			}
			if meanwhile == "" {
				t.Error("the replica would have been tried again meanwhile")
			}
			c.mend(holder.front, other)
			await.That(t, "the replica to be trusted again", w.whole)
		})
	}
}
