package tlog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

// childEnv makes the test binary append to a log until it is killed.
const childEnv = "TLOG_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		appendUntilKilled(dir)
		return
	}
	os.Exit(m.Run())
}

// appendUntilKilled prints "index id" of each decision once it is acknowledged.
// Every fourth has its outcome recorded.
func appendUntilKilled(dir string) {
	key, err := ReadKeyFile(filepath.Join(dir, "key"))
	if err != nil {
		panic(err)
	}
	l, err := Open(Config{Dir: filepath.Join(dir, "log"), Key: key, Boot: self, SegmentBytes: minSegmentBytes, CheckpointEvery: 20 * time.Millisecond, BoundedRecords: boundedLimit, reach: killAt(os.Getenv(pointEnv))})
	if err != nil {
		panic(err)
	}
	fmt.Println("open")
	if os.Getenv(pointEnv) != "" {
		go func() {
			for {
				// There is nothing to prune at first.
				_, _ = l.Prune(noDeadline{}, PruneOptions{Below: l.Head().Size / 2})
				time.Sleep(10 * time.Millisecond)
			}
		}()
	}
	durability := audit.Durability(os.Getenv(durabilityEnv))
	for w := range 8 {
		go func() {
			for i := 0; ; i++ {
				d := decision(w<<20 + i)
				d.Durability = durability
				at, err := l.Append(noDeadline{}, d)
				if err != nil {
					panic(err)
				}
				fmt.Println(at.Index, d.ID)
				if i%4 == 0 {
					if _, err := l.Append(noDeadline{}, outcomeOf(d)); err != nil {
						panic(err)
					}
				}
			}
		}()
	}
	select {}
}

// durabilityEnv is of the child's decisions; boundedLimit is how many of them may
// be unsynced if it is bounded.
const (
	durabilityEnv = "TLOG_TEST_DURABILITY"
	boundedLimit  = 64
)

// pointEnv names a point at which the child kills itself, and the how-manieth
// time: "after sync 3".
const pointEnv = "TLOG_TEST_POINT"

// killAt kills this process when it has reached a point so often.
func killAt(point string) func(string) error {
	at := strings.LastIndexByte(point, ' ')
	if at < 0 {
		return nil
	}
	n, err := strconv.Atoi(point[at+1:])
	if err != nil {
		panic(err)
	}
	var left atomic.Int32
	left.Store(int32(n))
	return func(reached string) error {
		if reached == point[:at] && left.Add(-1) == 0 {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				panic(err)
			}
			select {}
		}
		return nil
	}
}

// noDeadline is a context that never ends.
type noDeadline struct{}

func (noDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }
func (noDeadline) Done() <-chan struct{}       { return nil }
func (noDeadline) Err() error                  { return nil }
func (noDeadline) Value(any) any               { return nil }

// killedAfter runs the child and kills it after a while, counted from when it
// has opened the log or, to hit recovery too, from its start. It returns what
// the child was told is durable.
func killedAfter(t *testing.T, dir string, fromStart bool, d time.Duration) map[uint64]string {
	t.Helper()
	return killed(t, dir, fromStart, d, "")
}

// killed is killedAfter with a point at which the child kills itself before.
func killed(t *testing.T, dir string, fromStart bool, d time.Duration, point string) map[uint64]string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir, pointEnv+"="+point)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if fromStart {
		time.AfterFunc(d, func() { cmd.Process.Kill() })
	}
	acked := make(map[uint64]string)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if lines.Text() == "open" {
			if !fromStart {
				time.AfterFunc(d, func() { cmd.Process.Kill() })
			}
			continue
		}
		index, id, ok := strings.Cut(lines.Text(), " ")
		n, err := strconv.ParseUint(index, 10, 64)
		if !ok || err != nil || len(id) != 36 {
			continue // cut short by the kill
		}
		acked[n] = id
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the child was not killed")
	}
	return acked
}

// crashes is what became of a log over many kills.
type crashes struct {
	kills, acked, lost, unresolved, crashed int
}

func (c *crashes) add(o crashes) {
	c.kills, c.acked, c.lost = c.kills+o.kills, c.acked+o.acked, c.lost+o.lost
	c.unresolved, c.crashed = c.unresolved+o.unresolved, c.crashed+o.crashed
}

// crashSeries kills a process that appends to one log again and again, and
// counts what the log then lacks.
func crashSeries(t *testing.T, rounds int, kill func(dir string, round int) map[uint64]string) crashes {
	t.Helper()
	dir := t.TempDir()
	if _, err := CreateKeyFile(filepath.Join(dir, "key"), origin); err != nil {
		t.Fatal(err)
	}
	key, err := ReadKeyFile(filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "log")
	acked := make(map[uint64]string)
	for i := range rounds {
		for index, id := range kill(dir, i) {
			acked[index] = id
		}
		// What is read is signed: it must be there before the log is opened again.
		signed, first := make(map[uint64]string), uint64(math.MaxUint64)
		for e, err := range Read(log, 0) {
			if err != nil {
				t.Fatalf("log cannot be read before it is recovered: %v", err)
			}
			r, err := audit.Decode(e.Leaf)
			if err != nil {
				t.Fatal(err)
			}
			signed[e.Index], first = r.ID, min(first, e.Index)
		}
		for index, id := range acked {
			if index >= first && signed[index] != id {
				t.Errorf("kill %d: acknowledged record %d is not signed", i, index)
			}
		}
	}
	l := mustOpen(t, Config{Dir: log, Key: key, Boot: self, SegmentBytes: minSegmentBytes})
	mustClose(t, l)
	report, err := Verify(log, key.Verifier(), VerifyOptions{Signatures: EverySignature})
	if err != nil || !report.OK() {
		t.Fatalf("after %d kills: %+v, %v", rounds, report, err)
	}
	out := crashes{kills: rounds, acked: len(acked), unresolved: report.Unresolved}
	have := make(map[uint64]string)
	for e, err := range Read(log, 0) {
		if err != nil {
			t.Fatal(err)
		}
		r, err := audit.Decode(e.Leaf)
		if err != nil {
			t.Fatal(err)
		}
		have[e.Index] = r.ID
		if r.Kind == audit.KindOutcome && r.Status == audit.StatusUnknownCrash {
			out.crashed++
		}
	}
	for index, id := range acked {
		if index >= report.Pruned && have[index] != id {
			out.lost++
			t.Errorf("acknowledged record %d (%s) is not in the log", index, id)
		}
	}
	if report.Unresolved != 0 {
		t.Errorf("%d decisions are unresolved", report.Unresolved)
	}
	return out
}

func TestNothingAcknowledgedIsLostToKillAtAnyTime(t *testing.T) {
	const series = 4 // side by side, to be done sooner
	rounds := 51
	if testing.Short() {
		rounds = 3
	}
	var mu sync.Mutex
	var total crashes
	t.Run("series", func(t *testing.T) {
		for i := range series {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				c := crashSeries(t, rounds, func(dir string, i int) map[uint64]string {
					return killedAfter(t, dir, i%2 == 1, time.Duration(rand.Int64N(int64(60*time.Millisecond))))
				})
				mu.Lock()
				defer mu.Unlock()
				total.add(c)
			})
		}
	})
	t.Logf("%d kills at random: %d acknowledged, %d lost, %d decisions answered unknown_crash", total.kills, total.acked, total.lost, total.crashed)
	if total.acked == 0 || total.crashed == 0 || total.kills < series*rounds {
		t.Error("the children did no work")
	}
}

// points are all that a log passes.
var points = []string{
	"before write", "after write", "after sync", "before trailer", "after trailer", "before ack", "rolling", "preparing",
	"tile", "checkpoint", "prune recorded", "segments pruned",
}

func TestNothingAcknowledgedIsLostToKillAtAnyPoint(t *testing.T) {
	for i, point := range points {
		if testing.Short() && i%4 != 0 {
			continue
		}
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			times := []int{1, 2, 5}
			if strings.Contains(point, "prune") {
				times = []int{1, 1, 1} // reached seldom
			}
			c := crashSeries(t, len(times), func(dir string, i int) map[uint64]string {
				// Far later than any point is reached, so that it is that which kills.
				return killed(t, dir, false, 30*time.Second, fmt.Sprint(point, " ", times[i]))
			})
			t.Logf("%d kills at %q: %d acknowledged, %d lost, %d answered unknown_crash", c.kills, point, c.acked, c.lost, c.crashed)
		})
	}
}

func TestSecondProcessCannotOpen(t *testing.T) {
	dir := t.TempDir()
	if _, err := CreateKeyFile(filepath.Join(dir, "key"), origin); err != nil {
		t.Fatal(err)
	}
	key, err := ReadKeyFile(filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	mustOpen(t, Config{Dir: filepath.Join(dir, "log"), Key: key, Boot: self, SegmentBytes: minSegmentBytes})
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), ErrLocked.Error()) {
		t.Errorf("second process: %v\n%s", err, out)
	}
}

// crashedLog returns a directory as a kill leaves it: no seal, spare segment
// in place. The log's last batch holds n records.
func crashedLog(t *testing.T, key *Key, n int) (dir string, rs []*audit.Record) {
	t.Helper()
	d := &disk{}
	cfg := testConfig(t, key)
	cfg.create = d.create
	l := mustOpen(t, cfg)
	mustAppend(t, l, decision(0))
	// While one sync waits, the others gather into a batch.
	release := d.hang(t)
	errs := make(chan error, n+1)
	add := func(i int) {
		go func() {
			_, err := l.Append(noDeadline{}, decision(i))
			errs <- err
		}()
		for l.sequenced() < uint64(i+2) {
			time.Sleep(time.Millisecond)
		}
	}
	add(1)
	for {
		l.mu.Lock()
		taken := len(l.queue) == 0
		l.mu.Unlock()
		if taken {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for i := range n {
		add(2 + i)
	}
	release()
	for range n + 1 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	dir = filepath.Join(t.TempDir(), "crashed")
	if err := os.CopyFS(dir, os.DirFS(cfg.Dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, checkpointFile)); err != nil {
		t.Fatal(err)
	}
	rs = records(t, dir)
	mustClose(t, l)
	return dir, rs
}

func (l *Log) sequenced() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next
}

// lastBatch returns where the last batch of a segment starts and ends.
func lastBatch(t *testing.T, dir string, number int) (at, after position) {
	t.Helper()
	r, err := openSegment(dir, number)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		b, err := r.next()
		if err != nil {
			return at, after
		}
		at, after = b.at, b.after
	}
}

func TestTornTailIsCutAtEveryByte(t *testing.T) {
	key := testKey(t)
	dir, rs := crashedLog(t, key, 2)
	at, after := lastBatch(t, dir, 0)
	path := segmentPath(dir, 0)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if after.next-at.next != 2 {
		t.Fatalf("the last batch holds %d records", after.next-at.next)
	}
	sealed := after.offset - trailerFrame
	for cut := at.offset; cut <= after.offset; cut += int64(everyByte()) {
		// Both ends that a torn write can have: zeros, and the end of the file.
		for _, size := range []int64{cut, after.offset + 4096} {
			torn := make([]byte, size)
			copy(torn, whole[:cut])
			if err := os.WriteFile(path, torn, 0o600); err != nil {
				t.Fatal(err)
			}
			rec, err := recoverLog(dir, dir, key)
			if err != nil {
				t.Fatalf("cut at byte %d of the batch: %v", cut-at.offset, err)
			}
			want, countersigned := at, 0
			switch {
			case size >= after.offset && bytes.Equal(torn[:after.offset], whole[:after.offset]):
				want = after
			case cut >= sealed:
				want, countersigned = position{next: after.next, offset: sealed, chain: rec.signed}, 2
			}
			if rec.state.tree.size != want.next || rec.state.chain != want.chain || rec.ends[0] != want.offset || rec.countersigned != countersigned {
				t.Fatalf("cut at byte %d of the batch: recovered %d records, %d bytes", cut-at.offset, rec.state.tree.size, rec.ends[0])
			}
		}
	}

	// One of them all the way: what is open is answered, and the log verifies.
	if err := os.WriteFile(path, whole[:sealed-1], 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Dir: dir, Key: key, Boot: self, SegmentBytes: minSegmentBytes}
	report, err := Verify(dir, key.Verifier(), VerifyOptions{})
	if err != nil || report.Code != Truncated && report.Code != CRCMismatch {
		t.Errorf("Verify of a torn log = %+v, %v", report, err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, mustOpen(t, cfg))
	mustVerify(t, cfg)
	if now, err := os.Stat(path); err != nil || os.SameFile(before, now) {
		t.Errorf("the last segment was not copied and synced: %v", err)
	}
	got := kinds(records(t, dir))
	want := kinds(rs[:at.next]) + strings.Repeat(" outcome/unknown_crash", 2) + " boot seal"
	if got != want {
		t.Errorf("recovered log holds %q, want %q", got, want)
	}
}

func TestDamageThatACrashDoesNotExplainIsNotCut(t *testing.T) {
	key := testKey(t)
	dir, _ := crashedLog(t, key, 2)
	at, after := lastBatch(t, dir, 0)
	path := segmentPath(dir, 0)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// Up to the trailer: what is damaged is signed for.
	for i := int64(0); i < after.offset-frameHead-trailerSize; i += 7 {
		damaged := append([]byte(nil), whole...)
		damaged[i] ^= 0x10
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		var fault *Fault
		if _, err := recoverLog(dir, dir, key); !errors.As(err, &fault) {
			t.Fatalf("damage at byte %d (last batch at %d): %v", i, at.offset, err)
		}
	}
}
