package fleet

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/routing"
)

var errTest = errors.New("the engine broke")

func TestABreakerDoublesAndForgets(t *testing.T) {
	now := time.Unix(1000, 0)
	var b breaker
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		b.trip(now)
		b.trip(now.Add(time.Millisecond)) // of the same outage
		if got := b.until.Sub(now); got != want*time.Second {
			t.Errorf("opened %d times in a row: %v, want %v", i+1, got, want*time.Second)
		}
		if b.state(b.until.Add(-1)) != routing.Breaker || b.state(b.until) != "" {
			t.Errorf("opened %d times in a row: it is not open until %v", i+1, b.until)
		}
		now = b.until
	}
	b.works()
	if b.trip(now); b.until.Sub(now) != time.Second {
		t.Errorf("after it had worked: %v", b.until.Sub(now))
	}
}

func TestAnswersMustFailInARowToOpenABreaker(t *testing.T) {
	now := time.Unix(1000, 0)
	var b breaker
	for i := range 2 * errorsInRow {
		if b.failed(now, errorsInRow) != (i >= errorsInRow-1) {
			t.Fatalf("after %d failures: open %v", i+1, b.opened > 0)
		}
	}
	b = breaker{}
	for range 10 * errorsInRow {
		for range errorsInRow - 1 {
			if b.failed(now, errorsInRow) {
				t.Fatal("it opened although answers came in between")
			}
		}
		b.works()
	}
}

// expire ends the time of a replica's breaker.
func (f *Fleet) expire(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.byID(id).breaker.until = time.Now()
}

func TestAHalfOpenBreakerLetsOneRequestThrough(t *testing.T) {
	for _, c := range []struct {
		claim string
		end   func(*Fleet, *Reservation)
		after routing.Reason
		open  bool // it takes everybody
	}{
		{"and closes when it is answered", func(_ *Fleet, r *Reservation) { r.FirstToken(time.Now()) }, "", true},
		{"and closes when it has been answered", func(_ *Fleet, r *Reservation) { r.Finish(Result{}) }, "", true},
		{"and opens again when its connection fails", func(f *Fleet, r *Reservation) {
			f.ReportFailure(r.Replica.ID, false)
			r.Finish(Result{Err: errTest})
		}, routing.Breaker, false},
		{"and opens again when its answer fails", func(_ *Fleet, r *Reservation) { r.Finish(Result{Err: errTest, Blame: true}) }, routing.Breaker, false},
		{"and the next one if its caller left", func(_ *Fleet, r *Reservation) { r.Finish(Result{Err: context.Canceled}) }, "", false},
		{"and the next one if nothing was sent", func(_ *Fleet, r *Reservation) { r.Release() }, "", false},
	} {
		t.Run(c.claim, func(t *testing.T) {
			f, relays, _ := two(t)
			id := relays[0].id
			only := ask(prompt(5, 100))
			only.Exclude = map[string]routing.Reason{relays[1].id: routing.Unhealthy}
			f.ReportFailure(id, false)
			if _, err := f.Reserve(t.Context(), only); !errors.Is(err, routing.ErrNoReplica) {
				t.Fatalf("while it is open: %v", err)
			}
			f.expire(id)
			probe := reserve(t, f, only)
			if _, err := f.Reserve(t.Context(), only); !errors.Is(err, routing.ErrNoReplica) {
				t.Fatalf("a second request got through: %v", err)
			}
			c.end(f, probe)
			if got := f.status(0).Excluded; got != c.after {
				t.Fatalf("afterwards: %q, want %q", got, c.after)
			}
			if c.after != "" {
				return
			}
			reserve(t, f, only)
			if _, err := f.Reserve(t.Context(), only); (err == nil) != c.open {
				t.Errorf("afterwards the second request: %v", err)
			}
		})
	}
}

func TestABusyReplicaIsLeftAloneForAWhile(t *testing.T) {
	f, relays, _ := two(t)
	r := ask(prompt(5, 100))
	if wait, limited := f.Wait(r); wait != 0 || limited {
		t.Errorf("of replicas that serve: %v, %v", wait, limited)
	}
	f.ReportBusy(relays[0].id, true, time.Hour)
	if got := f.status(0).Excluded; got != routing.NoHeadroom {
		t.Errorf("excluded for %q", got)
	}
	if wait, limited := f.Wait(r); wait > busyMost || limited {
		t.Errorf("while one serves: %v, %v", wait, limited)
	}
	f.ReportBusy(relays[1].id, true, 7*time.Second)
	if wait, limited := f.Wait(r); wait > 7*time.Second || wait < 6*time.Second || !limited {
		t.Errorf("while both have too many requests: %v, %v", wait, limited)
	}
	f.ReportBusy(relays[1].id, false, 0)
	if wait, limited := f.Wait(r); wait > busyFirst || limited {
		t.Errorf("while one is overloaded: %v, %v", wait, limited)
	}
	until(t, "it is tried again", func() bool { return f.status(1).Excluded == "" })
	if wait, _ := f.Wait(Request{Pools: r.Pools, Model: "another", Operation: r.Operation}); wait != 0 {
		t.Errorf("for a model that nobody has: %v", wait)
	}
}
