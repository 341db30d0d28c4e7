package tlog

import (
	"bytes"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

// The power goes, or the process, at any point, and before that any write or sync
// may have failed. So it is over two directories, of which the second may be all
// that is left, and while the key changes.
func TestAPowerCutLosesNothingAcknowledged(t *testing.T) {
	rounds := 80
	if testing.Short() {
		rounds = 12
	}
	var failures, torn, countersigned, turned int
	for round := range rounds {
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, uint64(round)))
			o := newOutage(t, round, rng)
			found := o.run(t, rng)
			failed, after := o.disk.failures()
			if failed > 0 {
				failures++
			}
			if after > 0 {
				t.Errorf("%d writes or syncs of a file that had failed", after)
			}
			if found.torn > 0 {
				torn++
			}
			if found.countersigned > 0 {
				countersigned++
			}
			if len(found.rotations) > 0 {
				turned++
			}
		})
	}
	t.Logf("%d power cuts: %d after a failure, %d with a torn batch, %d that took the last signature, %d after the key had changed", rounds, failures, torn, countersigned, turned)
	if min(failures, torn, countersigned, turned) == 0 {
		t.Error("some of that is not tested")
	}
}

// outage is a log that is written to until its machine stops.
type outage struct {
	cfg        Config
	durability audit.Durability
	next       *Key // the key changes to it, unless it is nil
	disk       *powerDisk
	fails      int             // one in so many writes and syncs, unless it is 0
	stopped    <-chan struct{} // closed when the machine stops
	end        func()          // lets what is held then fail

	mu    sync.Mutex
	acked map[uint64]string
}

func newOutage(t *testing.T, round int, rng *rand.Rand) *outage {
	o := &outage{cfg: testConfig(t, testKey(t)), durability: audit.Strict, disk: newPowerDisk(), acked: make(map[uint64]string)}
	o.cfg.CheckpointEvery = []time.Duration{time.Hour, 2 * time.Millisecond}[round%2]
	if round%3 == 0 {
		o.cfg.Dir2, o.durability = t.TempDir(), audit.Strict2
	}
	if round%5 == 0 {
		o.next = testKey(t)
	}
	if round%4 > 0 {
		o.fails = 4 + rng.IntN(30)
	}
	points := []string{"before write", "after write", "after sync", "before trailer", "after trailer", "before ack", "rolling"}
	o.cfg.create = o.disk.create
	o.cfg.reach, o.stopped, o.end = stopAt(points[rng.IntN(len(points))], 3+rng.IntN(60))
	return o
}

// stopAt holds whatever reaches a point once one of them has been reached so many
// times, until end is called; then that fails.
func stopAt(point string, times int) (reach func(string) error, stopped <-chan struct{}, end func()) {
	gone, over := make(chan struct{}), make(chan struct{})
	var left atomic.Int64
	left.Store(int64(times))
	reach = func(at string) error {
		if at == point && left.Add(-1) == 0 {
			close(gone)
		}
		select {
		case <-gone:
			<-over
			return syscall.EIO
		default:
			return nil
		}
	}
	return reach, gone, sync.OnceFunc(func() { close(over) })
}

// run writes to the log, stops it, and looks at what is left. It returns what a
// power cut left.
func (o *outage) run(t *testing.T, rng *rand.Rand) *recovered {
	l, err := Open(o.cfg)
	if err != nil {
		t.Fatal(err)
	}
	o.disk.fail(o.fails, rng.Uint64())
	var busy sync.WaitGroup
	for writer := range 3 {
		busy.Go(func() { o.write(l, writer) })
	}
	defer func() {
		o.end()
		busy.Wait()
		_ = l.Close() // it has failed
	}()
	done := make(chan struct{})
	go func() {
		busy.Wait()
		close(done)
	}()
	select {
	case <-o.stopped:
	case <-done: // it was halted before
	}
	o.mu.Lock()
	acked := maps.Clone(o.acked)
	o.mu.Unlock()
	dirs := []string{o.cfg.Dir}
	if o.cfg.Dir2 != "" {
		dirs = append(dirs, o.cfg.Dir2)
	}
	o.check(t, acked, o.disk.cut(t, everything, dirs...)...)
	if len(dirs) > 1 {
		o.check(t, acked, o.disk.cut(t, anything(rng), o.cfg.Dir2)...)
	}
	return o.check(t, acked, o.disk.cut(t, anything(rng), dirs...)...)
}

// write appends records, small ones and large, and changes the key meanwhile.
func (o *outage) write(l *Log, writer int) {
	for i := range 300 {
		if writer == 0 && i == 8 && o.next != nil {
			_, _ = l.Rotate(noDeadline{}, o.next) // what is in the log tells
		}
		r := decision(writer<<20 + i)
		if i%2 == 0 {
			r = &audit.Record{Kind: audit.KindHeartbeat, ID: audit.NewID()}
		}
		r.Durability = o.durability
		at, err := l.Append(noDeadline{}, r)
		if err == nil {
			o.mu.Lock()
			o.acked[at.Index] = r.ID
			o.mu.Unlock()
		} else if l.Err() != nil {
			return
		}
	}
}

// check opens copies of the log's directories, and looks for what was
// acknowledged. It returns what was found before.
func (o *outage) check(t *testing.T, acked map[uint64]string, dirs ...string) *recovered {
	t.Helper()
	cfg := Config{Dir: dirs[0], Key: o.cfg.Key, SegmentBytes: o.cfg.SegmentBytes, HeartbeatEvery: time.Hour, Boot: self}
	if len(dirs) > 1 {
		cfg.Dir2 = dirs[1]
	}
	rec, err := recoverLog(cfg.Dir, cfg.Dir, cfg.Key)
	var fault *Fault
	if o.next != nil && errors.As(err, &fault) && fault.Code == KeyMismatch {
		cfg.Key = o.next
		rec, err = recoverLog(cfg.Dir, cfg.Dir, cfg.Key)
	}
	if err != nil {
		t.Fatal(err)
	}
	signed := uint64(0)
	for _, err := range Read(cfg.Dir, 0) {
		if err != nil {
			break // of the batch in flight something is there, beyond what is not
		}
		signed++
	}
	if rec.state.tree.size != signed+uint64(rec.countersigned) {
		t.Errorf("%d signed and %d sealed of %d", signed, rec.countersigned, rec.state.tree.size)
	}
	mustClose(t, mustOpen(t, cfg))
	report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{Signatures: EverySignature})
	if err != nil || !report.OK() || report.Unresolved != 0 {
		t.Fatalf("Verify = %+v, %v", report, err)
	}
	rs := records(t, cfg.Dir)
	for index, id := range acked {
		if index >= uint64(len(rs)) || rs[index].ID != id {
			t.Errorf("acknowledged record %d is lost", index)
		}
	}
	return rec
}

// Only the last batch of a log may lack its signature, and the last of an older
// segment is not it.
func TestASegmentIsSyncedToItsEndBeforeTheNextOneBegins(t *testing.T) {
	d := newPowerDisk()
	cfg := testConfig(t, testKey(t))
	cfg.CheckpointEvery, cfg.Dir2, cfg.create = time.Hour, t.TempDir(), d.create
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for used := false; !used; n++ {
		mustAppend(t, l, decision(n))
		if used, err = inUse(segmentPath(cfg.Dir, 1)); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range d.cut(t, nothing, cfg.Dir, cfg.Dir2) {
		copied := Config{Dir: dir, Key: cfg.Key, Boot: self, SegmentBytes: minSegmentBytes}
		mustClose(t, mustOpen(t, copied))
		if report := mustVerify(t, copied); report.Decisions != n {
			t.Errorf("%d decisions of %d", report.Decisions, n)
		}
	}
}

func TestOnlyTheLastBatchMayLackSectorsAndOnlyBeforeItIsSigned(t *testing.T) {
	key := testKey(t)
	dir, _ := crashedLog(t, key, 8)
	at, after := lastBatch(t, dir, 0)
	path := segmentPath(dir, 0)
	signed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	whole := bytes.Clone(signed)
	clear(whole[after.offset-trailerFrame:])
	zero := func(from int64) {
		t.Helper()
		data := bytes.Clone(whole)
		clear(data[from : from+sectorSize])
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cut, refused := 0, 0
	for from := int64(0); from < after.offset-trailerFrame-sealSize-frameHead-sectorSize; from += sectorSize {
		if from < at.offset && from+sectorSize > at.offset-trailerFrame-sealSize-frameHead {
			continue // no disk takes back what was synced, or all that tells of it
		}
		copy(whole, signed)
		zero(from)
		if _, err := recoverLog(dir, dir, key); err == nil {
			t.Errorf("a sector at %d of zeros before a signature", from)
		}
		clear(whole[after.offset-trailerFrame:])
		zero(from)
		rec, err := recoverLog(dir, dir, key)
		switch {
		case from >= at.offset && err == nil && rec.state.tree.size == at.next:
			cut++
		case from < at.offset && err != nil:
			refused++
		default:
			t.Errorf("a sector at %d of zeros (the last batch begins at %d): %v", from, at.offset, err)
		}
	}
	if cut < 5 || refused < 2 {
		t.Errorf("%d cut, %d refused", cut, refused)
	}
}

func TestStaleBytesOfAnotherSegmentAreNotRead(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	l := mustOpen(t, cfg)
	fill(t, l, 3)
	mustClose(t, l)
	remove(t, cfg.Dir, checkpointFile)
	size := mustVerify(t, cfg).TreeSize
	last := lastSegment(t, cfg.Dir)
	whole, err := os.ReadFile(segmentPath(cfg.Dir, last))
	if err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(segmentPath(cfg.Dir, 0))
	if err != nil {
		t.Fatal(err)
	}
	// Whole frames, and bytes from the middle of one, where zeros should be.
	for _, from := range []int{0, 777, len(old) / 2} {
		if err := os.WriteFile(segmentPath(cfg.Dir, last), append(bytes.Clone(whole), old[from:]...), 0o600); err != nil {
			t.Fatal(err)
		}
		report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{})
		if err != nil || report.OK() || report.TreeSize > size {
			t.Errorf("from byte %d: Verify = %+v, %v", from, report, err)
		}
		n := uint64(0)
		for e, err := range Read(cfg.Dir, 0) {
			if err != nil {
				break
			}
			n = e.Index + 1
		}
		if n > size {
			t.Errorf("from byte %d: %d records are read of %d", from, n, size)
		}
		var fault *Fault
		if _, err := Open(cfg); !errors.As(err, &fault) {
			t.Errorf("from byte %d: Open = %v: stale trailers are no torn write", from, err)
		}
	}
}
