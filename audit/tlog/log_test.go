package tlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

const origin = "sallyport.test/gw-0"

// testKey returns a new key for origin.
func testKey(t testing.TB) *Key {
	t.Helper()
	skey, _, err := GenerateKey(origin)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ParseKey(skey)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// self is the gateway that writes the logs of these tests.
var self = audit.Gateway{SPIFFE: "spiffe://test/gw", Build: "test", Config: strings.Repeat("0", 64)}

// testConfig is a log with small segments and no heartbeat during the test.
func testConfig(t testing.TB, key *Key) Config {
	t.Helper()
	return Config{
		Dir: filepath.Join(t.TempDir(), "log"), Key: key, SegmentBytes: minSegmentBytes, HeartbeatEvery: time.Hour,
		Boot: self,
	}
}

func mustOpen(t testing.TB, cfg Config) *Log {
	t.Helper()
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func mustClose(t testing.TB, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func mustAppend(t testing.TB, l *Log, r *audit.Record) uint64 {
	t.Helper()
	at, err := l.Append(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return at.Index
}

func mustVerify(t testing.TB, cfg Config) Report {
	t.Helper()
	report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !report.OK() {
		t.Fatalf("log does not verify: %s: %s", report.Code, report.Detail)
	}
	return report
}

// decision is an allowed decision about as large as a real one, different for
// each i.
func decision(i int) *audit.Record {
	rng := rand.New(rand.NewPCG(uint64(i), 1))
	tenant := []string{"acme", "globex", "initech"}[rng.IntN(3)]
	p := &audit.Placement{
		Strategy: "probabilistic", Basis: "kv_events", Pool: "general", Replica: fmt.Sprintf("r%d", rng.IntN(32)),
		Seed: rng.Uint64(), PredictedCached: 16 * rng.IntN(200), BlockSize: 16, Blocks: rng.IntN(400), ChosenBecause: "lowest_cost",
	}
	for range 1 + rng.IntN(3) {
		p.Candidates = append(p.Candidates, audit.Candidate{
			Replica: fmt.Sprintf("r%d", rng.IntN(32)), Depth: rng.IntN(300), Waiting: rng.Int64N(1e5), CostNS: rng.Int64N(1e9),
		})
	}
	return &audit.Record{
		Kind: audit.KindDecision, ID: audit.NewID(), Attempt: 1, Status: audit.StatusAllowed,
		Caller:    &audit.Caller{Mode: "clear", Ref: fmt.Sprintf("user-%d", rng.IntN(1e6)), Tenant: tenant, Kind: "user", Method: "oidc"},
		Policy:    &audit.Policy{Revision: "r1", Digest: fmt.Sprintf("%064x", rng.Uint64()), Rules: []string{"route.eu"}, EvalUS: rng.Int64N(300)},
		Input:     json.RawMessage(fmt.Sprintf(`{"tenant":%q,"class":"chat","n":%d}`, tenant, rng.IntN(1e6))),
		Decision:  json.RawMessage(`{"allow":true}`),
		Request:   &audit.Request{Operation: "chat", Model: "small", BodyBytes: rng.IntN(1e5), PromptTokens: rng.IntN(1e4)},
		Placement: p,
	}
}

func outcomeOf(r *audit.Record) *audit.Record {
	return &audit.Record{Kind: audit.KindOutcome, ID: r.ID, Attempt: r.Attempt, Status: "ok", Outcome: &audit.Outcome{Status: "ok", HTTP: 200}}
}

// records reads a whole log.
func records(t testing.TB, dir string) []*audit.Record {
	t.Helper()
	var out []*audit.Record
	for e, err := range Read(dir, 0) {
		if err != nil {
			t.Fatal(err)
		}
		r, err := audit.Decode(e.Leaf)
		if err != nil {
			t.Fatal(err)
		}
		if e.Index != uint64(len(out)) || r.Log.Seq != e.Index {
			t.Fatalf("record %d is at index %d with sequence %d", len(out), e.Index, r.Log.Seq)
		}
		out = append(out, r)
	}
	return out
}

func kinds(rs []*audit.Record) string {
	var out []string
	for _, r := range rs {
		k := string(r.Kind)
		if r.Kind == audit.KindOutcome {
			k += "/" + r.Status
		}
		out = append(out, k)
	}
	return strings.Join(out, " ")
}

func TestLogKeepsWhatItAcknowledges(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	l := mustOpen(t, cfg)
	d := decision(1)
	at := mustAppend(t, l, d)
	mustAppend(t, l, outcomeOf(d))

	leaf, err := l.Get(at)
	if err != nil {
		t.Fatal(err)
	}
	want, err := audit.Encode(d)
	if err != nil {
		t.Fatal(err)
	}
	if string(leaf) != string(want) {
		t.Errorf("stored leaf is not the encoding of the record:\n%s\n%s", leaf, want)
	}
	mustClose(t, l)
	if got, want := kinds(records(t, cfg.Dir)), "boot decision outcome/ok seal"; got != want {
		t.Errorf("log holds %q, want %q", got, want)
	}
	report := mustVerify(t, cfg)
	if report.TreeSize != 4 || report.Boots != 1 || report.Decisions != 1 || report.Outcomes != 1 || report.Unresolved != 0 {
		t.Errorf("report %+v", report)
	}
}

func TestReopeningStatesTheHeadBefore(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	l := mustOpen(t, cfg)
	mustAppend(t, l, &audit.Record{Kind: audit.KindAdmin, ID: "a"})
	mustClose(t, l)
	head := l.Head()
	l = mustOpen(t, cfg)
	var boot bootEvent
	leaf, err := l.Get(head.Size)
	if err != nil {
		t.Fatal(err)
	}
	r, err := audit.Decode(leaf)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(r.Event, &boot); err != nil {
		t.Fatal(err)
	}
	if boot.PreviousSize != head.Size || boot.PreviousRoot != head.Root || !boot.Clean {
		t.Errorf("boot record says %+v after head %+v", boot, head)
	}
	if *r.Gateway != cfg.Boot {
		t.Errorf("boot record names gateway %+v", r.Gateway)
	}
}

func TestConcurrentAppendersGetDistinctIndexesAcrossSegments(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	l := mustOpen(t, cfg)
	const writers, each = 16, 60
	var wg sync.WaitGroup
	got := make([]map[uint64]string, writers)
	for w := range writers {
		got[w] = make(map[uint64]string)
		wg.Go(func() {
			for i := range each {
				d := decision(w*each + i)
				at, err := l.Append(t.Context(), d)
				if err != nil {
					t.Error(err)
					return
				}
				got[w][at.Index] = d.ID
			}
		})
	}
	wg.Wait()
	mustClose(t, l)
	rs := records(t, cfg.Dir)
	if len(rs) != writers*each+2 {
		t.Fatalf("log holds %d records, want %d", len(rs), writers*each+2)
	}
	salts := make(map[string]bool)
	for _, r := range rs {
		salts[r.Salt] = true
	}
	if len(salts) != len(rs) {
		t.Errorf("%d salts for %d records", len(salts), len(rs))
	}
	for _, m := range got {
		for index, id := range m {
			if rs[index].ID != id {
				t.Errorf("record %d has id %s, want %s", index, rs[index].ID, id)
			}
		}
	}
	if report := mustVerify(t, cfg); report.Segments < 3 {
		t.Errorf("only %d segments: the test does not cross any", report.Segments)
	}
}

func TestVerifyWhileAppending(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	cfg.CheckpointEvery = 5 * time.Millisecond
	l := mustOpen(t, cfg)
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if _, err := l.Append(t.Context(), decision(w<<20+i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 20 {
		floor := l.Head().Size
		if report := mustVerify(t, cfg); report.TreeSize < floor {
			t.Errorf("verified %d records when %d were durable", report.TreeSize, floor)
		}
	}
	cancel()
	wg.Wait()
	mustClose(t, l)
	mustVerify(t, cfg)
}

func TestIdleLogBeatsAndPublishes(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	cfg.HeartbeatEvery, cfg.CheckpointEvery = 5*time.Millisecond, 5*time.Millisecond
	l := mustOpen(t, cfg)
	deadline := time.Now().Add(time.Minute)
	for {
		cp, err := readCheckpoint(cfg.Dir, cfg.Key.Verifier())
		if err != nil {
			t.Fatal(err)
		}
		if cp.size >= 3 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no checkpoint of three records")
		}
		time.Sleep(time.Millisecond)
	}
	mustClose(t, l)
	if got := kinds(records(t, cfg.Dir)); !strings.HasPrefix(got, "boot heartbeat heartbeat") || !strings.HasSuffix(got, " seal") {
		t.Errorf("log holds %q", got)
	}
}

// A follower at the end of the log looks at what is new only. One that begins
// its segment anew each time reads megabytes to find nothing.
func TestFollowDoesNotReadAgainWhatItHasSeen(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	l := mustOpen(t, cfg)
	for i := range 300 {
		mustAppend(t, l, decision(i))
	}
	f := follower{dir: cfg.Dir}
	defer f.close()
	seen := 0
	count := func(Entry, error) bool { seen++; return true }
	for range 3 {
		if err := f.read(count); err != nil {
			t.Fatal(err)
		}
	}
	at := f.w.pos
	mustAppend(t, l, decision(300))
	if err := f.open(); err != nil {
		t.Fatal(err)
	}
	if f.w.cur.pos.offset != at.offset {
		t.Errorf("goes on from %d, not from %d", f.w.cur.pos.offset, at.offset)
	}
	if err := f.read(count); err != nil || seen != 302 { // and the boot record
		t.Errorf("saw %d records, %v", seen, err)
	}
}

func TestFollowSeesEveryRecordOnce(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	l := mustOpen(t, cfg)
	const n = 500
	go func() {
		for i := range n {
			if _, err := l.Append(context.Background(), decision(i)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	due := uint64(0)
	for e, err := range Follow(t.Context(), cfg.Dir, func() uint64 { return l.Head().Size }, 0, time.Millisecond) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Index != due {
			t.Fatalf("record %d where %d is due", e.Index, due)
		}
		if due++; due == n+1 {
			break
		}
	}
}

func TestFindReturnsDecisionAndOutcome(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	l := mustOpen(t, cfg)
	var wanted *audit.Record
	for i := range 50 {
		d := decision(i)
		mustAppend(t, l, d)
		mustAppend(t, l, outcomeOf(d))
		if i == 20 {
			wanted = d
		}
	}
	found, err := Find(cfg.Dir, wanted.ID, 0)
	if err != nil || len(found) != 2 || found[0].Index != wanted.Log.Seq || found[1].Index != wanted.Log.Seq+1 {
		t.Errorf("Find = %v, %v", found, err)
	}
	if _, err := Find(cfg.Dir, "no-such-id", 0); !errors.Is(err, ErrNotFound) {
		t.Errorf("Find of an unknown id: %v", err)
	}
	if _, err := l.Get(1 << 40); !errors.Is(err, ErrNotFound) {
		t.Errorf("Get beyond the end: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	key := testKey(t)
	made := func(t *testing.T) Config {
		cfg := testConfig(t, key)
		l := mustOpen(t, cfg)
		for i := range 300 {
			mustAppend(t, l, decision(i))
		}
		mustClose(t, l)
		return cfg
	}
	cases := []struct {
		name string
		harm func(t *testing.T, cfg *Config)
		code Code
	}{
		{"another key", func(t *testing.T, cfg *Config) { cfg.Key = testKey(t) }, KeyMismatch},
		{"another key, without a checkpoint", func(t *testing.T, cfg *Config) {
			cfg.Key = testKey(t)
			remove(t, cfg.Dir, checkpointFile)
		}, KeyMismatch},
		{"a log that was wiped", func(t *testing.T, cfg *Config) { remove(t, cfg.Dir, walDir) }, CheckpointAhead},
		{"a log that was cut back at a batch boundary", func(t *testing.T, cfg *Config) { cutLastBatch(t, cfg.Dir) }, CheckpointAhead},
		{"a log whose first segment is gone", func(t *testing.T, cfg *Config) { remove(t, cfg.Dir, walDir+"/00000000") }, MissingSegment},
		{"a flipped bit in the middle", func(t *testing.T, cfg *Config) { flip(t, segmentPath(cfg.Dir, 0), 5000) }, CRCMismatch},
		{"a flipped bit in the last batch", func(t *testing.T, cfg *Config) {
			seg := lastSegment(t, cfg.Dir)
			flip(t, segmentPath(cfg.Dir, seg), fileSize(t, segmentPath(cfg.Dir, seg))-frameHead-trailerSize-10)
		}, CRCMismatch},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cfg := made(t)
			c.harm(t, &cfg)
			before := snapshot(t, cfg.Dir)
			_, err := Open(cfg)
			var fault *Fault
			if !errors.As(err, &fault) || fault.Code != c.code {
				t.Errorf("Open = %v, want %s", err, c.code)
			}
			if after := snapshot(t, cfg.Dir); after != before {
				t.Errorf("Open changed a log it refused:\n%s\n%s", before, after)
			}
		})
	}
}

func TestSecondProcessIsLockedOut(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	mustOpen(t, cfg)
	if _, err := Open(cfg); !errors.Is(err, ErrLocked) {
		t.Errorf("second Open = %v", err)
	}
}

func TestConfigIsCheckedWhole(t *testing.T) {
	_, err := Open(Config{SegmentBytes: 1, BoundedRecords: -1})
	for _, want := range []string{"no directory", "no key", "no identity", "least size", "negative"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not mention %q", err, want)
		}
	}
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func flip(t *testing.T, path string, at int64) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[at] ^= 1 << (at % 8)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func lastSegment(t *testing.T, dir string) int {
	t.Helper()
	segs, err := listSegments(dir)
	if err != nil || len(segs) == 0 {
		t.Fatal("no segments", err)
	}
	return segs[len(segs)-1]
}

// cutLastBatch truncates the last segment to just before its last batch.
func cutLastBatch(t *testing.T, dir string) {
	t.Helper()
	number := lastSegment(t, dir)
	r, err := openSegment(dir, number)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	last := r.pos.offset
	for {
		b, err := r.next()
		if err != nil {
			break
		}
		last = b.at.offset
	}
	if err := os.Truncate(segmentPath(dir, number), last); err != nil {
		t.Fatal(err)
	}
}

// snapshot lists the files of a directory with size and time of change.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			fmt.Fprintln(&b, path, info.Size(), info.ModTime())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
