package export

import (
	"bytes"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit/export/sink"
)

func (f *fake) called() int { return int(f.started.Load()) }

// clock is time as a test has it.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func TestASinkThatIsDownForHoursIsWrittenDownOnceAndLosesNothing(t *testing.T) {
	w := newWorld(t)
	c := &clock{t: time.Now()}
	f := new(fake)
	up := false
	f.send = func(_ int, b *sink.Batch) (int, error) {
		if !up {
			c.pass(10 * time.Minute) // between two attempts
			return 0, errors.New("connection refused")
		}
		f.got = append(f.got, b.Messages...)
		return len(b.Messages), nil
	}
	w.append(100)
	x, stop := w.start(func(x *Exporter) { with(f, small)(x); x.followers[0].now = c.now }, anyFile(t, "down"))
	for range 5 {
		before := x.Status()[0].Errors
		w.append(50)
		w.until("tried some more", func() bool { return x.Status()[0].Errors > before+4 })
	}
	if s := x.Status()[0]; s.LagTime < 3*time.Hour || s.Lag < 351 || !s.Failing {
		t.Errorf("status while down: %+v", s)
	}
	f.mu.Lock()
	up = true
	f.mu.Unlock()
	w.caughtUp(x)
	stop()
	contiguous(t, firsts(f.indexes()), len(w.leaves()))
	all := bytes.Join(w.leaves(), nil)
	for _, action := range []string{actionDown, actionUp} {
		if n := bytes.Count(all, []byte(`{"action":"`+action+`","sink":"down"`)); n != 1 {
			t.Errorf("the log has %d records of %q", n, action)
		}
	}
}

func TestWhatIsReadAheadOfASinkIsBounded(t *testing.T) {
	w := newWorld(t)
	hung := make(chan struct{})
	f := new(fake)
	f.send = func(int, *sink.Batch) (int, error) { <-hung; return 0, errors.New("hung") }
	w.append(2000)
	x, stop := w.start(with(f, small), anyFile(t, "hung"))
	defer stop()
	defer close(hung)
	read := func() uint64 {
		x.followers[0].mu.Lock()
		defer x.followers[0].mu.Unlock()
		return x.followers[0].n
	}
	w.until("a batch is on its way", func() bool { return f.called() > 0 })
	before := read()
	w.append(500)
	// One batch of 20 KiB is with the sink; the rest stays in the log.
	if got := read(); got != before || got > 20 {
		t.Errorf("%d records were read, then %d", before, got)
	}
}

func TestPausesGrowAtRandomUpToTheLongest(t *testing.T) {
	f := &follower{cfg: &Config{pace: pace{}.withDefaults()}}
	seen := make(map[time.Duration]bool)
	for f.failures = 1; f.failures < 100; f.failures++ {
		most := min(f.cfg.pace.retryMin<<min(f.failures-1, 20), f.cfg.pace.retryMax)
		for range 10 {
			d := f.backoff()
			if d < most/2 || d > most {
				t.Fatalf("after %d failures a pause of %v", f.failures, d)
			}
			seen[d] = true
		}
	}
	if len(seen) < 900 {
		t.Errorf("only %d different pauses: gateways would come back together", len(seen))
	}
}

// A receiver that accepts connections and never answers must not hold a sink
// for ever, and one that reads slowly must get on.
func TestAReceiverThatNeverAnswersIsGivenUpAndTriedAgain(t *testing.T) {
	r := newReceiver(t, func(r *receiver, call int, w http.ResponseWriter, req *http.Request, body []byte) {
		if call < 3 {
			r.mu.Unlock()
			<-req.Context().Done()
			r.mu.Lock()
			return
		}
		_, _ = w.Write([]byte(`{"text":"Success","code":0}`))
	})
	w := newWorld(t)
	w.cfg.pace.attempt = 200 * time.Millisecond
	w.append(20)
	x, stop := w.start(nil, SinkConfig{Name: "hec", To: sink.Config{HEC: &sink.HECConfig{URL: r.URL, TokenFile: r.tokenFile, TLS: sink.TLSConfig{CAFile: r.caFile}}}})
	w.caughtUp(x)
	stop()
	if s := x.Status()[0]; s.Errors != 2 || s.Sent != uint64(len(w.leaves())) {
		t.Errorf("status %+v", s)
	}
}
