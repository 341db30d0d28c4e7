package test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
)

// Killed is how often the gateway is killed under load, and longestLife how
// long it may serve before, once it has answered.
const (
	kills       = 50
	shortKills  = 8
	longestLife = 150 * time.Millisecond
	loaders     = 8
)

// attempt names one forwarding of one request.
type attempt struct {
	id string
	n  int
}

// TestAKilledGatewayForwardedNothingThatItsLogDoesNotHold kills the gateway at
// random moments under load and starts it again on the same log. The relays'
// own logs say, from the other side, what has reached an engine.
func TestAKilledGatewayForwardedNothingThatItsLogDoesNotHold(t *testing.T) {
	w := newWorld(t)
	rounds := kills
	if testing.Short() {
		rounds = shortKills
	}
	l := w.newLoad(t)
	stopLoad := l.run(t)
	for round := range rounds {
		gateway, url := w.serve(t)
		l.turnTo(t, url)
		time.Sleep(rand.N(longestLife))
		gateway.kill()
		if gateway.err == nil {
			t.Fatalf("round %d: the gateway had ended before it was killed", round)
		}
	}
	last, url := w.serve(t)
	l.turnTo(t, url)
	stopLoad()
	last.stop(t)
	for _, r := range w.replicas {
		r.relay.stop(t)
		r.engine.stop(t)
	}

	if _, code := sallyport(t, "audit", "verify", w.logDir, "--key", w.logKey); code != 0 {
		t.Fatalf("audit verify: exit %d", code)
	}
	if r, code := verifyBoth(t, w, w.replicas[0].logDir, w.replicas[1].logDir); code != 0 {
		t.Errorf("the logs of gateway and relays: exit %d, %+v", code, r)
	}
	h := readHistory(t, w.logDir)
	if h.boots != rounds+1 {
		t.Errorf("the log has %d starts, want %d", h.boots, rounds+1)
	}
	crashed := h.checkOutcomes(t)
	forwarded := w.checkForwarded(t, h)
	l.checkAnswered(t, h)
	t.Logf("%d kills; %d records, %d attempts allowed, %d forwarded, %d ended as unknown_crash; clients saw %d whole answers",
		rounds, h.records, len(h.decisions), forwarded, crashed, len(l.answered))
	if forwarded < 2*rounds || crashed < rounds/4 {
		t.Errorf("the kills hit nothing: %d forwarded, %d of them cut off in %d rounds", forwarded, crashed, rounds)
	}
}

// history is what a gateway's log says, by attempt.
type history struct {
	records   int
	boots     int
	decisions map[attempt]*audit.Record // those that allowed
	outcomes  map[attempt]*audit.Record
}

func readHistory(t *testing.T, dir string) history {
	t.Helper()
	h := history{decisions: make(map[attempt]*audit.Record), outcomes: make(map[attempt]*audit.Record)}
	for _, r := range tlogtest.Records(t, dir, 0) {
		h.records++
		at := attempt{r.ID, r.Attempt}
		var into map[attempt]*audit.Record
		switch {
		case r.Kind == audit.KindBoot:
			h.boots++
			continue
		case r.Kind == audit.KindDecision && r.Status == "allowed":
			into = h.decisions
		case r.Kind == audit.KindOutcome:
			into = h.outcomes
		default:
			continue
		}
		if into[at] != nil {
			t.Errorf("%v has two records of kind %s", at, r.Kind)
		}
		into[at] = r
	}
	return h
}

// checkOutcomes holds that each allowed attempt has an outcome: its own, or
// that of the process that found it without one.
func (h history) checkOutcomes(t *testing.T) (crashed int) {
	t.Helper()
	for at, decision := range h.decisions {
		outcome := h.outcomes[at]
		if outcome == nil {
			t.Errorf("%v was allowed and has no outcome", at)
			continue
		}
		sameBoot := outcome.Log.Boot == decision.Log.Boot
		if outcome.Outcome.Status == "unknown_crash" {
			crashed++
			if sameBoot {
				t.Errorf("%v: a process says of itself that it crashed", at)
			}
		} else if !sameBoot {
			t.Errorf("%v: another process says that it ended as %s", at, outcome.Outcome.Status)
		}
	}
	for at := range h.outcomes {
		if h.decisions[at] == nil {
			t.Errorf("%v has an outcome and was never allowed", at)
		}
	}
	return crashed
}

// checkForwarded holds the relays' logs against the gateway's.
func (w *world) checkForwarded(t *testing.T, h history) (forwarded int) {
	t.Helper()
	for _, r := range w.replicas {
		for _, at := range r.served(t) {
			forwarded++
			decision := h.decisions[at]
			switch {
			case decision == nil:
				t.Errorf("%v reached %s, and the log holds no decision that allowed it", at, r.id)
			case decision.Placement.Replica != r.id:
				t.Errorf("%v was decided for %s and reached %s", at, decision.Placement.Replica, r.id)
			case h.outcomes[at] != nil && h.outcomes[at].Outcome.Status == "not_forwarded":
				t.Errorf("%v reached %s, and the log says that it was not forwarded", at, r.id)
			}
		}
	}
	return forwarded
}

// served reads which attempts a relay has taken tickets of.
func (r *replica) served(t *testing.T) (attempts []attempt) {
	t.Helper()
	for _, rec := range tlogtest.Records(t, r.logDir, 0) {
		if rec.Status != audit.StatusServed {
			continue
		}
		var event struct {
			Ticket  string `json:"ticket"`
			Attempt int    `json:"attempt"`
		}
		if err := json.Unmarshal(rec.Event, &event); err != nil {
			t.Fatal(err)
		}
		attempts = append(attempts, attempt{event.Ticket, event.Attempt})
	}
	return attempts
}

// load is clients that keep asking, at whatever gateway there is.
type load struct {
	url     atomic.Pointer[string] // nil before the first gateway
	client  *http.Client
	tokens  []string
	answers chan string // receives the URL of each whole answer, if somebody listens

	mu       sync.Mutex
	answered []string // ids of the whole answers
}

func (w *world) newLoad(t *testing.T) *load {
	return &load{
		client: w.client(t, nil), answers: make(chan string),
		tokens: []string{w.token(t, "alice@acme.example", "acme"), w.token(t, "bob@globex.example", "globex")},
	}
}

// turnTo sends the load to a gateway and returns once it has answered.
func (l *load) turnTo(t *testing.T, url string) {
	t.Helper()
	l.url.Store(&url)
	for late := time.After(startTime); ; {
		select {
		case from := <-l.answers:
			if from == url {
				return
			}
		case <-late:
			t.Fatalf("no good answer within %v", startTime)
		}
	}
}

// run starts the clients. The function returned lets them finish what they are
// at, and waits.
func (l *load) run(t *testing.T) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	var clients sync.WaitGroup
	for i := range loaders {
		clients.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				if !l.once(t.Context(), i, n) {
					time.Sleep(5 * time.Millisecond) // the gateway is down, or has no replica yet
				}
			}
		})
	}
	stop = sync.OnceFunc(func() { close(done); clients.Wait() })
	t.Cleanup(stop)
	return stop
}

// once makes the n-th request of client i and reports whether it was answered.
func (l *load) once(ctx context.Context, i, n int) bool {
	url := l.url.Load()
	if url == nil {
		return false
	}
	stream := (i+n)%2 == 0
	body := chat(fmt.Sprintf("What does paragraph %d of handbook %d say?", n, i), stream, 4+n%16)
	a, err := ask(ctx, l.client, *url, l.tokens[i%len(l.tokens)], body)
	if err != nil || !a.whole(stream) {
		return false
	}
	l.mu.Lock()
	l.answered = append(l.answered, a.id)
	l.mu.Unlock()
	select {
	case l.answers <- *url:
	default:
	}
	return true
}

// checkAnswered holds that whoever was answered finds the decision in the log.
func (l *load) checkAnswered(t *testing.T, h history) {
	t.Helper()
	ids := make(map[string]bool)
	for at := range h.decisions {
		ids[at.id] = true
	}
	for _, id := range l.answered {
		if !ids[id] {
			t.Errorf("a client was answered under decision %s, which the log does not hold", id)
		}
	}
}
