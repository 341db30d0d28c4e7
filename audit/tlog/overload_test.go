package tlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

// sluggishFile is a segment on a disk that takes its time over each sync.
type sluggishFile struct{ segmentFile }

func (f sluggishFile) Datasync() error {
	time.Sleep(20 * time.Millisecond)
	return f.segmentFile.Datasync()
}

func createSlowly(path string) (segmentFile, error) {
	f, err := createOSFile(path)
	return sluggishFile{f}, err
}

// large is a decision of some 60 kB, of which a batch holds few.
func large(i int) *audit.Record {
	r := decision(i)
	r.Input = json.RawMessage(`{"groups":"` + strings.Repeat("g", 60<<10) + `"}`)
	return r
}

// With far more than a disk takes, callers wait, and some wait in vain. But each
// is told: what was acknowledged is there, what was refused is not, or is
// followed by an outcome that says it was not acted on.
func TestWhatIsTooMuchWaitsOrIsRefusedAndIsNeverDropped(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	cfg.create, cfg.SegmentBytes = createSlowly, 8<<20
	l := mustOpen(t, cfg)
	// Some 70 MB are offered where the queue takes 32. Every second caller has the
	// patience of the request path, and may wait in vain.
	const offered = 1200
	patience := [...]time.Duration{250 * time.Millisecond, 30 * time.Second}
	var mu sync.Mutex
	acked, refused := make(map[string]uint64), make(map[string]error)
	var callers sync.WaitGroup
	for i := range offered {
		callers.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience[i%2])
			defer cancel()
			r := large(i)
			at, err := l.Append(ctx, r)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				refused[r.ID] = err
				return
			}
			acked[r.ID] = at.Index
		})
	}
	callers.Wait()
	mustClose(t, l)
	mustVerify(t, cfg)

	decided, undone := make(map[string]uint64), make(map[string]bool)
	for e, err := range Read(cfg.Dir, 0) {
		if err != nil {
			t.Fatal(err)
		}
		r, err := audit.Decode(e.Leaf)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case r.Kind == audit.KindDecision:
			decided[r.ID] = e.Index
		case r.Kind == audit.KindOutcome && r.Status == audit.StatusNotForwarded:
			undone[r.ID] = true
		}
	}
	for id, index := range acked {
		if at, ok := decided[id]; !ok || at != index || undone[id] {
			t.Errorf("%s was acknowledged at %d; in the log: %v, at %d, taken back: %v", id, index, ok, at, undone[id])
		}
	}
	full, late := 0, 0
	for id, err := range refused {
		_, there := decided[id]
		if !errors.Is(err, audit.ErrUnavailable) || there && !undone[id] {
			t.Errorf("%s was refused (%v), and stands in the log as if it had been acted on", id, err)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			late++
		} else {
			full++
		}
	}
	t.Logf("%d offered at once: %d acknowledged, %d gave up waiting, %d found the queue full", offered, len(acked), late, full)
	if len(acked)+len(refused) != offered || len(acked) == 0 || len(refused) < offered/4 {
		t.Errorf("%d acknowledged and %d refused of %d: that was not too much", len(acked), len(refused), offered)
	}
}

// While a disk hangs, what waits for it is bounded, and what is beyond that is
// refused at once: a log that grew in memory instead would lose it all at the end.
func TestNoMoreWaitsForADiskThanTheQueueHolds(t *testing.T) {
	d := &disk{}
	cfg := testConfig(t, testKey(t))
	cfg.create, cfg.SegmentBytes = d.create, 8<<20
	l := mustOpen(t, cfg)
	release := d.hang(t)
	const offered = 800 // of 60 kB each; the queue takes 32 MiB
	errs := make(chan error, offered)
	for i := range offered {
		go func() {
			_, err := l.Append(noDeadline{}, large(i))
			errs <- err
		}()
	}
	await(t, "full", func() bool { return len(errs) > 0 })
	l.mu.Lock()
	if l.queueBytes > maxQueueBytes+maxPayload {
		t.Errorf("%d bytes wait", l.queueBytes)
	}
	l.mu.Unlock()
	release()
	taken := 0
	for range offered {
		if err := <-errs; err == nil {
			taken++
		} else if !errors.Is(err, audit.ErrUnavailable) {
			t.Error(err)
		}
	}
	mustClose(t, l)
	if report := mustVerify(t, cfg); report.Decisions != taken || taken == 0 || taken == offered {
		t.Errorf("%d decisions in the log, of which %d were acknowledged, of %d", report.Decisions, taken, offered)
	}
}

// Without a deadline nobody is refused: the log takes what the disk does, and
// its writers wait.
func TestWritersWaitForADiskThatIsSlow(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	cfg.create = createSlowly
	l := mustOpen(t, cfg)
	const writers, each = 64, 8
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				if _, err := l.Append(noDeadline{}, decision(w<<8+i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	mustClose(t, l)
	if report := mustVerify(t, cfg); report.Decisions != writers*each {
		t.Errorf("%d decisions of %d", report.Decisions, writers*each)
	}
}

// TestAKilledLogLosesNoMoreBoundedRecordsThanItsLimit kills a process that lets
// bounded decisions go before they are durable.
func TestAKilledLogLosesNoMoreBoundedRecordsThanItsLimit(t *testing.T) {
	dir := t.TempDir()
	if _, err := CreateKeyFile(filepath.Join(dir, "key"), origin); err != nil {
		t.Fatal(err)
	}
	t.Setenv(durabilityEnv, string(audit.Bounded))
	rounds := 25
	if testing.Short() {
		rounds = 5
	}
	most, lost, acked := 0, 0, 0
	for range rounds {
		mine := killedAfter(t, dir, false, time.Duration(5+rand.IntN(60))*time.Millisecond)
		have := make(map[uint64]string)
		for e, err := range Read(filepath.Join(dir, "log"), 0) {
			if err != nil {
				t.Fatal(err)
			}
			if r, err := audit.Decode(e.Leaf); err == nil && r.Kind == audit.KindDecision {
				have[e.Index] = r.ID
			}
		}
		gone := 0
		for index, id := range mine {
			if have[index] != id {
				gone++
			}
		}
		acked, lost, most = acked+len(mine), lost+gone, max(most, gone)
	}
	t.Logf("%d kills: %d let go, %d lost, at most %d at once", rounds, acked, lost, most)
	if most > boundedLimit {
		t.Errorf("%d records were lost by one kill, where %d may be unsynced", most, boundedLimit)
	}
	if acked == 0 {
		t.Error("nothing was let go")
	}
	key, err := ReadKeyFile(filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, mustOpen(t, Config{Dir: filepath.Join(dir, "log"), Key: key, Boot: self, SegmentBytes: minSegmentBytes}))
}

// ours are the goroutines that are in code of this package.
func ours() (out []string) {
	buf := make([]byte, 4<<20)
	for _, g := range bytes.Split(buf[:runtime.Stack(buf, true)], []byte("\n\n")) {
		if bytes.Contains(g, []byte("audit/tlog.(*")) && !bytes.Contains(g, []byte("testing.tRunner")) {
			out = append(out, string(g))
		}
	}
	return out
}

func TestALogThatWasClosedLeavesNoGoroutine(t *testing.T) {
	before := len(ours())
	w := newFakeWitness(t, "a.example/w")
	for i := range 5 {
		cfg := witnessed(t, 1, w.config("a.example"))
		cfg.Key = namedKey(t, fmt.Sprintf("x.test/%d", i))
		cfg.Dir2, cfg.Retention = filepath.Join(t.TempDir(), "second"), time.Hour
		w.mu.Lock()
		w.size = 0
		w.mu.Unlock()
		l := mustOpen(t, cfg)
		for j := range 60 {
			mustAppend(t, l, decision(j))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, _ = l.Append(ctx, decision(0)) // whose caller has gone
		mustClose(t, l)
		if _, err := Open(Config{Dir: cfg.Dir, Key: testKey(t), Boot: self}); err == nil {
			t.Error("a log opens under another's key")
		}
	}
	await(t, "without goroutines", func() bool { return len(ours()) <= before })
}
