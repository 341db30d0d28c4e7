package tlog

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

// untilShort appends until the log is in its reserve, and returns the decisions
// that are still open.
func untilShort(t *testing.T, l *Log) (open []*audit.Record) {
	t.Helper()
	for i := 0; l.Short().IsZero(); i++ {
		d := decision(i)
		if _, err := l.Append(t.Context(), d); err != nil {
			if l.Short().IsZero() {
				t.Fatal(err)
			}
			return open
		}
		open = append(open, d)
	}
	return open
}

func TestAFullDiskTakesWhatIsOwedAndNothingNew(t *testing.T) {
	d := &disk{}
	cfg := testConfig(t, testKey(t))
	cfg.create, cfg.CheckpointEvery = d.create, 10*time.Millisecond
	l := mustOpen(t, cfg)
	await(t, "ready with a spare segment", func() bool { return len(l.main.spare) == 1 })
	d.set(func() { d.full = true })
	open := untilShort(t, l)
	for range 3 {
		if _, err := l.Append(t.Context(), decision(1)); !errors.Is(err, audit.ErrUnavailable) || !strings.Contains(err.Error(), "space") {
			t.Errorf("a decision on a full disk: %v", err)
		}
	}
	if err := l.Ready(audit.Strict); err == nil {
		t.Error("a log without space says that it is ready")
	}
	if err := l.Err(); err != nil {
		t.Errorf("halted: %v", err)
	}
	ended := open[len(open)-20:]
	for _, r := range ended {
		o := outcomeOf(r)
		o.Status, o.Reason, o.Outcome.Status = audit.StatusError, "audit_unavailable", audit.StatusError
		mustAppend(t, l, o)
	}
	d.set(func() { d.full = false })
	await(t, "out of its reserve", func() bool { return l.Short().IsZero() })
	mustAppend(t, l, decision(2))
	if err := l.Ready(audit.Strict); err != nil {
		t.Error(err)
	}
	mustClose(t, l)
	g := gaps(t, cfg.Dir)
	if len(g) != 1 || g[0].Reason != audit.GapHalted || g[0].Refused < 3 || g[0].Until < g[0].Since || g[0].Since == 0 {
		t.Errorf("the gap is recorded as %+v", g)
	}
	if report := mustVerify(t, cfg); report.Gaps != 1 || report.Outcomes != len(ended) {
		t.Errorf("report %+v", report)
	}
	mustClose(t, mustOpen(t, cfg))
	mustVerify(t, cfg)
}

func TestALogComesOutOfItsReserveHoweverSpaceComes(t *testing.T) {
	for claim, more := range map[string]func(d *disk, l *Log, open []*audit.Record){
		"at first for a segment alone": func(d *disk, l *Log, _ []*audit.Record) {
			d.set(func() { d.room, d.refused = 1, 0 })
			await(t, "without room for a reserve", func() bool {
				d.mu.Lock()
				defer d.mu.Unlock()
				return d.room == 0 && d.refused > 0
			})
		},
		"when the reserve has just been used up": func(d *disk, l *Log, open []*audit.Record) {
			l.mu.Lock()
			l.short.again = time.Now().Add(time.Hour)
			l.mu.Unlock()
			d.set(func() { d.room = 1 })
			for i := range 2 * reserveBytes / (30 << 10) {
				o := outcomeOf(open[i%len(open)])
				o.Detail = strings.Repeat("x", 30<<10)
				mustAppend(t, l, o)
				if d.mu.Lock(); d.room == 0 {
					d.mu.Unlock()
					break
				}
				d.mu.Unlock()
			}
			l.mu.Lock()
			l.short.again = time.Time{}
			l.mu.Unlock()
		},
	} {
		t.Run(claim, func(t *testing.T) {
			d := &disk{}
			cfg := testConfig(t, testKey(t))
			cfg.create, cfg.CheckpointEvery = d.create, 10*time.Millisecond
			l := mustOpen(t, cfg)
			await(t, "ready with a spare segment", func() bool { return len(l.main.spare) == 1 })
			d.set(func() { d.full = true })
			open := untilShort(t, l)
			more(d, l, open)
			if l.Short().IsZero() {
				t.Fatal("out of its reserve without room for another")
			}
			d.set(func() { d.full = false })
			await(t, "out of its reserve", func() bool { return l.Short().IsZero() })
			mustAppend(t, l, decision(2))
			mustClose(t, l)
			mustVerify(t, cfg)
			mustClose(t, mustOpen(t, cfg))
		})
	}
}

func TestALogThatStopsInItsReserveIsRecovered(t *testing.T) {
	d := &disk{}
	cfg := testConfig(t, testKey(t))
	cfg.create = d.create
	l := mustOpen(t, cfg)
	await(t, "ready with a spare segment", func() bool { return len(l.main.spare) == 1 })
	d.set(func() { d.full = true })
	open := untilShort(t, l)
	mustAppend(t, l, outcomeOf(open[0]))
	// The reserve is used up in the end, and then the log halts.
	o := outcomeOf(open[1])
	o.Detail = strings.Repeat("x", 30<<10)
	for l.Err() == nil {
		if _, err := l.Append(t.Context(), o); err != nil && !errors.Is(err, audit.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	l.Close()
	d.set(func() { d.full = false })
	mustClose(t, mustOpen(t, cfg))
	if report := mustVerify(t, cfg); report.Unresolved != 0 || report.Boots != 2 {
		t.Errorf("report %+v", report)
	}
}

func TestBoundedRecordsThatWereLostAreSaidToBe(t *testing.T) {
	d := &disk{}
	cfg := testConfig(t, testKey(t))
	cfg.create = d.create
	l := mustOpen(t, cfg)
	await(t, "ready with a spare segment", func() bool { return len(l.main.spare) == 1 })
	release := d.hang(t)
	for i := range 5 {
		r := decision(i)
		r.Durability = audit.Bounded
		mustAppend(t, l, r)
	}
	// The move is noticed once the sync has ended, and nothing can be written.
	move(t, filepath.Join(cfg.Dir, walDir), filepath.Join(cfg.Dir, "taken"))
	release()
	await(t, "halted", func() bool { return l.Err() != nil })
	l.Close()
	move(t, filepath.Join(cfg.Dir, "taken"), filepath.Join(cfg.Dir, walDir))
	cfg.create = nil
	mustClose(t, mustOpen(t, cfg))
	g := gaps(t, cfg.Dir)
	if len(g) != 1 || g[0].Reason != audit.GapBoundedLost || g[0].Records == 0 || g[0].Records > 5 {
		t.Errorf("gaps %+v", g)
	}
	mustClose(t, mustOpen(t, cfg))
	if g := gaps(t, cfg.Dir); len(g) != 1 {
		t.Errorf("it is said %d times", len(g))
	}
	mustVerify(t, cfg)
}
