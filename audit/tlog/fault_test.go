package tlog

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

// disk makes segment files that fail when told to.
type disk struct {
	mu        sync.Mutex
	failSync  error         // the next sync of a segment in use fails, once
	failWrite error         // the next write of records fails half way, once
	nothing   bool          // failWrite writes nothing
	full      bool          // no file can be created
	room      int           // how many can be, once more, before it is full
	refused   int           // how many could not
	stall     chan struct{} // while set, syncs wait until it is closed
	afterFail atomic.Int32  // writes and syncs of a file that had failed
}

func (d *disk) create(path string) (segmentFile, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full && d.room == 0 {
		d.refused++
		return nil, syscall.ENOSPC
	}
	d.room = max(d.room-1, 0)
	f, err := createOSFile(path)
	return &faultyFile{segmentFile: f, disk: d}, err
}

// set changes the disk under its lock.
func (d *disk) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

// hang makes syncs wait until release is called, or the test ends.
func (d *disk) hang(t *testing.T) (release func()) {
	t.Helper()
	stall := make(chan struct{})
	d.set(func() { d.stall = stall })
	release = sync.OnceFunc(func() {
		d.set(func() { d.stall = nil })
		close(stall)
	})
	t.Cleanup(release)
	return release
}

// faultyFile is a segment on a disk. Faults strike only once records are
// written to it, not while it is being prepared.
type faultyFile struct {
	segmentFile
	disk   *disk
	used   atomic.Bool
	failed atomic.Bool
}

func (f *faultyFile) WriteAt(p []byte, off int64) (int, error) {
	if p[0] != 0 {
		f.used.Store(true)
	}
	if f.failed.Load() {
		f.disk.afterFail.Add(1)
	}
	f.disk.mu.Lock()
	err := f.disk.failWrite
	if err != nil && f.used.Load() {
		f.disk.failWrite = nil
		f.disk.mu.Unlock()
		f.failed.Store(true)
		if f.disk.nothing {
			return 0, err
		}
		n, _ := f.segmentFile.WriteAt(p[:len(p)/2], off)
		return n, err
	}
	f.disk.mu.Unlock()
	return f.segmentFile.WriteAt(p, off)
}

func (f *faultyFile) Datasync() error {
	if f.failed.Load() {
		f.disk.afterFail.Add(1)
	}
	f.disk.mu.Lock()
	err, stall := f.disk.failSync, f.disk.stall
	if err != nil && f.used.Load() {
		f.disk.failSync = nil
		f.disk.mu.Unlock()
		f.failed.Store(true)
		return err
	}
	f.disk.mu.Unlock()
	if stall != nil && f.used.Load() {
		<-stall
	}
	return f.segmentFile.Datasync()
}

func (f *faultyFile) Truncate(size int64) error {
	if f.failed.Load() {
		f.disk.afterFail.Add(1)
	}
	return f.segmentFile.Truncate(size)
}

func openFaulty(t *testing.T) (*disk, Config, *Log) {
	t.Helper()
	d := &disk{}
	cfg := testConfig(t, testKey(t))
	cfg.create = d.create
	return d, cfg, mustOpen(t, cfg)
}

func TestFailedBatchIsRefusedAndItsFateRecorded(t *testing.T) {
	eio := error(syscall.EIO)
	cases := []struct {
		name  string
		fault func(d *disk)
	}{
		{"sync fails", func(d *disk) { d.failSync = eio }},
		{"write fails half way", func(d *disk) { d.failWrite = eio }},
		{"disk is full", func(d *disk) { d.failWrite = syscall.ENOSPC }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d, cfg, l := openFaulty(t)
			before := decision(1)
			mustAppend(t, l, before)
			d.set(func() { c.fault(d) })
			lost := decision(2)
			if _, err := l.Append(t.Context(), lost); !errors.Is(err, audit.ErrUnavailable) {
				t.Fatalf("Append on a failing disk = %v", err)
			}
			mustAppend(t, l, outcomeOf(before))
			if err := l.Err(); err != nil {
				t.Errorf("log is halted: %v", err)
			}
			mustClose(t, l)
			fate := make(map[string]string)
			for _, r := range records(t, cfg.Dir) {
				if r.Kind == audit.KindOutcome {
					fate[r.ID] += r.Status + r.Reason
				}
			}
			if fate[before.ID] != "ok" || fate[lost.ID] != "not_forwardedaudit_unavailable" {
				t.Errorf("outcomes are %v", fate)
			}
			if report := mustVerify(t, cfg); report.Unresolved != 0 {
				t.Errorf("%d unresolved", report.Unresolved)
			}
			if n := d.afterFail.Load(); n != 0 {
				t.Errorf("a poisoned segment was touched %d times", n)
			}
			mustClose(t, mustOpen(t, cfg))
			mustVerify(t, cfg)
		})
	}
}

func TestFirstBatchOfASegmentMayFail(t *testing.T) {
	for _, d := range []*disk{{failSync: syscall.EIO}, {failWrite: syscall.EIO}, {failWrite: syscall.EIO, nothing: true}} {
		cfg := testConfig(t, testKey(t))
		cfg.create = d.create
		if _, err := Open(cfg); !errors.Is(err, audit.ErrUnavailable) {
			t.Fatalf("Open = %v", err)
		}
		cfg.create = nil
		l := mustOpen(t, cfg)
		mustAppend(t, l, decision(1))
		mustClose(t, l)
		if got, want := kinds(records(t, cfg.Dir)), "boot seal boot decision seal"; got != want {
			t.Errorf("log holds %q, want %q", got, want)
		}
		mustVerify(t, cfg)
	}
}

func TestCrashAfterAPoisonedSegment(t *testing.T) {
	d, cfg, l := openFaulty(t)
	mustAppend(t, l, decision(1))
	for i := range 3 {
		d.set(func() { d.failSync = syscall.EIO })
		if _, err := l.Append(t.Context(), decision(2)); err == nil {
			t.Fatal("a failed sync is acknowledged")
		}
		mustAppend(t, l, decision(3+i))
	}
	copied := cfg
	copied.Dir, copied.create = filepath.Join(t.TempDir(), "copy"), nil
	if err := os.CopyFS(copied.Dir, os.DirFS(cfg.Dir)); err != nil {
		t.Fatal(err)
	}
	mustClose(t, mustOpen(t, copied))
	if report := mustVerify(t, copied); report.Unresolved != 0 || report.Boots != 2 {
		t.Errorf("report %+v", report)
	}
	if got := strings.Count(kinds(records(t, copied.Dir)), "decision"); got != 7 {
		t.Errorf("%d decisions, want 7", got)
	}
}

func TestAppendRefuses(t *testing.T) {
	d, _, l := openFaulty(t)
	large := decision(1)
	large.Detail = strings.Repeat("x", maxPayload)
	broken := decision(1)
	broken.Input = []byte("{")
	unknown := decision(1)
	unknown.Durability = "eventual"
	for what, r := range map[string]*audit.Record{"a record over the size limit": large, "a record that is not JSON": broken, "an unknown durability": unknown} {
		if _, err := l.Append(t.Context(), r); err == nil || errors.Is(err, audit.ErrTooLarge) != (r == large) {
			t.Errorf("%s: %v", what, err)
		}
	}

	release := d.hang(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	big := strings.Repeat("x", 60000)
	for i := range maxQueueBytes/60000 + 64 { // more than the queue and the batch under way hold
		wg.Go(func() {
			r := decision(i)
			r.Detail = big
			if _, err := l.Append(ctx, r); err == nil {
				t.Error("a record is acknowledged while the disk stalls")
			}
		})
	}
	full := func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.queueBytes >= maxQueueBytes
	}
	for !full() {
		time.Sleep(time.Millisecond)
	}
	// The batch that is being gathered may have made room for a few more.
	for i := 0; ; i++ {
		ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err := l.Append(ctx, decision(0))
		stop()
		if !errors.Is(err, audit.ErrUnavailable) || i == 200 {
			t.Fatalf("Append to a full queue = %v", err)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			break // it was refused at once
		}
	}
	cancel()
	wg.Wait()
	release()
	for full() {
		time.Sleep(time.Millisecond)
	}
	mustAppend(t, l, decision(0))
	mustClose(t, l)
	if _, err := l.Append(t.Context(), decision(0)); !errors.Is(err, audit.ErrUnavailable) {
		t.Errorf("Append to a closed log = %v", err)
	}
}

func TestLogHaltsIfTheNewSegmentFailsToo(t *testing.T) {
	d, cfg, l := openFaulty(t)
	acked := decision(1)
	mustAppend(t, l, acked)
	d.set(func() { d.failSync, d.full = syscall.EIO, true })
	<-l.writer.main.spare // the segment prepared while the disk was well
	l.writer.main.spare <- spare{err: syscall.ENOSPC}
	reserve := l.writer.main.reserve
	l.writer.main.reserve = nil
	defer reserve.file.Close()
	for range 3 {
		if _, err := l.Append(t.Context(), decision(2)); !errors.Is(err, audit.ErrUnavailable) {
			t.Fatalf("Append = %v", err)
		}
	}
	if l.Err() == nil {
		t.Error("log does not say that it is halted")
	}
	if err := l.Close(); err == nil {
		t.Error("Close of a halted log reports nothing")
	}
	remove(t, cfg.Dir, walDir+"/00000001") // the spare that the test took away
	cfg.create = nil
	l = mustOpen(t, cfg)
	mustClose(t, l)
	if rs := records(t, cfg.Dir); rs[1].ID != acked.ID || !strings.Contains(kinds(rs), "outcome/unknown_crash boot seal") || rs[len(rs)-3].Reason != "crash" {
		t.Errorf("log holds %q", kinds(rs))
	}
	mustVerify(t, cfg)
}

func TestAppendGivesUpAtItsDeadline(t *testing.T) {
	d, cfg, l := openFaulty(t)
	release := d.hang(t)
	late := decision(1)
	denied := decision(2)
	denied.Status = "denied"
	var wg sync.WaitGroup
	for _, r := range []*audit.Record{late, denied} {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			start := time.Now()
			if _, err := l.Append(ctx, r); !errors.Is(err, audit.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Append = %v", err)
			}
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("Append took %v", took)
			}
		})
	}
	wg.Wait()
	release()
	mustClose(t, l)
	fates := 0
	for _, r := range records(t, cfg.Dir) {
		if r.Kind == audit.KindOutcome {
			fates++
			if r.ID != late.ID || r.Outcome.Status != audit.StatusNotForwarded {
				t.Errorf("outcome %q for %s", r.Status, r.ID)
			}
		}
	}
	if fates != 1 {
		t.Errorf("%d fates recorded, want that of the allowed decision", fates)
	}
	mustVerify(t, cfg)
}

// What the log writes of a decision that came too late is why its caller went.
func TestTheReasonOfALateDecisionIsWhyItsCallerLeft(t *testing.T) {
	stopping := errors.New("stopping")
	cases := []struct {
		reason, detail string
		leave          func(ctx context.Context) (context.Context, func())
	}{
		{"audit_timeout", "deadline exceeded", func(ctx context.Context) (context.Context, func()) {
			return context.WithTimeout(ctx, 10*time.Millisecond)
		}},
		{"client_gone", "canceled", func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(10*time.Millisecond, cancel)
			return ctx, cancel
		}},
		{"cancelled", "stopping", func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(10*time.Millisecond, func() { cancel(stopping) })
			return ctx, func() { cancel(nil) }
		}},
	}
	for _, c := range cases {
		t.Run(c.reason, func(t *testing.T) {
			d, cfg, l := openFaulty(t)
			release := d.hang(t)
			ctx, end := c.leave(t.Context())
			defer end()
			if _, err := l.Append(ctx, decision(1)); !errors.Is(err, audit.ErrUnavailable) {
				t.Fatalf("Append = %v", err)
			}
			release()
			mustClose(t, l)
			for _, r := range records(t, cfg.Dir) {
				if r.Kind == audit.KindOutcome && r.Status == audit.StatusNotForwarded && r.Reason == c.reason && strings.Contains(r.Detail, c.detail) {
					return
				}
			}
			t.Errorf("no outcome says so: %s", kinds(records(t, cfg.Dir)))
		})
	}
}

func TestBoundedNeverRunsFurtherAheadThanItsLimits(t *testing.T) {
	cases := []struct {
		name    string
		records int
		age     time.Duration
		admits  int
	}{
		{"by number of records", 5, time.Hour, 5},
		{"by age of the oldest", 1000, 30 * time.Millisecond, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := &disk{}
			cfg := testConfig(t, testKey(t))
			cfg.create, cfg.BoundedRecords, cfg.BoundedInterval = d.create, c.records, c.age
			l := mustOpen(t, cfg)
			release := d.hang(t)
			bounded := func(i int, within time.Duration) error {
				r := decision(i)
				r.Durability = audit.Bounded
				ctx, cancel := context.WithTimeout(t.Context(), within)
				defer cancel()
				_, err := l.Append(ctx, r)
				return err
			}
			for i := range c.admits {
				if err := bounded(i, time.Minute); err != nil {
					t.Fatalf("bounded record %d: %v", i, err)
				}
			}
			if c.age < time.Hour {
				<-time.After(c.age)
			}
			if err := bounded(99, 50*time.Millisecond); !errors.Is(err, audit.ErrUnavailable) {
				t.Errorf("bounded record over the limit = %v, want it to wait like a strict one", err)
			}
			release()
			if err := bounded(100, time.Minute); err != nil {
				t.Error(err)
			}
			mustAppend(t, l, decision(101))
			if l.mu.Lock(); len(l.loose) != 0 {
				t.Errorf("%d bounded records count as unsynced after a strict one", len(l.loose))
			}
			l.mu.Unlock()
			mustClose(t, l)
			if got := strings.Count(kinds(records(t, cfg.Dir)), "decision"); got != c.admits+3 {
				t.Errorf("%d decisions in the log, want %d: bounded drops nothing", got, c.admits+3)
			}
		})
	}
}

func TestStrict2NeedsBothDirectories(t *testing.T) {
	strict2 := func(i int) *audit.Record {
		r := decision(i)
		r.Durability = audit.Strict2
		return r
	}
	key := testKey(t)
	l := mustOpen(t, testConfig(t, key))
	if _, err := l.Append(t.Context(), strict2(0)); !errors.Is(err, audit.ErrUnavailable) {
		t.Errorf("strict-2 with one directory = %v", err)
	}

	d := &disk{}
	cfg := testConfig(t, key)
	cfg.Dir2, cfg.create = t.TempDir(), d.create
	l = mustOpen(t, cfg)
	for i := range 400 {
		mustAppend(t, l, strict2(i))
	}
	mustClose(t, l)
	second := Config{Dir: cfg.Dir2, Key: key, Boot: self}
	if a, b := mustVerify(t, cfg), mustVerify(t, second); a.RootHex != b.RootHex || a.Segments < 2 {
		t.Errorf("directories differ: %+v and %+v", a, b)
	}

	// A directory that fell behind is caught up, one that is ahead is not.
	remove(t, cfg.Dir2, walDir)
	l = mustOpen(t, cfg)
	mustAppend(t, l, strict2(1000))
	mustClose(t, l)
	if a, b := mustVerify(t, cfg), mustVerify(t, second); a.RootHex != b.RootHex {
		t.Errorf("second directory was not caught up: %+v and %+v", a, b)
	}
	remove(t, cfg.Dir, checkpointFile)
	cutLastBatch(t, cfg.Dir)
	var fault *Fault
	if _, err := Open(cfg); !errors.As(err, &fault) || fault.Code != CheckpointAhead {
		t.Errorf("Open of a log that its second directory is ahead of = %v", err)
	}
}

func TestStrictGoesOnWithoutTheSecondDirectory(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	cfg.Dir2 = t.TempDir()
	second := &disk{}
	cfg.create = func(path string) (segmentFile, error) {
		if strings.HasPrefix(path, cfg.Dir2) {
			return second.create(path)
		}
		return createOSFile(path)
	}
	l := mustOpen(t, cfg)
	second.set(func() { second.failSync = syscall.EIO })
	r := decision(1)
	r.Durability = audit.Strict2
	if _, err := l.Append(t.Context(), r); !errors.Is(err, audit.ErrUnavailable) {
		t.Errorf("strict-2 with a failing second directory = %v", err)
	}
	mustAppend(t, l, decision(2))
	mustClose(t, l)
	for _, o := range records(t, cfg.Dir) {
		if o.Kind == audit.KindOutcome && o.Status == audit.StatusNotForwarded && o.ID == r.ID && o.Reason == "audit_unavailable" {
			mustVerify(t, cfg)
			return
		}
	}
	t.Errorf("log holds %q", kinds(records(t, cfg.Dir)))
}
