package export

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/export/format"
	"github.com/sallyport-ai/sallyport/audit/export/sink"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
	"github.com/sallyport-ai/sallyport/test/await"
)

// world is a real log, and what is exported from it.
type world struct {
	t   testing.TB
	dir string
	log *tlog.Log
	cfg Config
}

const origin = "sallyport.test/g0"

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir()}
	w.log = tlogtest.Open(t, tlog.Config{
		Dir: w.dir, Key: tlogtest.Key(t, origin), Boot: audit.Gateway{SPIFFE: "spiffe://example.org/g0"}, SegmentBytes: 1 << 20,
		CheckpointEvery: 20 * time.Millisecond,
	})
	w.cfg = Config{
		Dir: w.dir, Origin: origin, Log: w.log, Head: func() uint64 { return w.log.Head().Size },
		pace: pace{
			poll: 2 * time.Millisecond, save: time.Millisecond, record: time.Hour, wait: 5 * time.Millisecond,
			retryMin: time.Millisecond, retryMax: 4 * time.Millisecond,
		},
	}
	return w
}

// decision is a record as large as one of a request with six candidates.
func decision(i int) *audit.Record {
	r := &audit.Record{
		Kind: audit.KindDecision, ID: audit.NewID(), Durability: audit.Strict, Status: audit.StatusDenied, Attempt: 1,
		Caller:  &audit.Caller{Mode: "clear", Ref: fmt.Sprintf("user-%d", i), Tenant: []string{"acme", "globex"}[i%2], Kind: "human", Method: "oidc"},
		Class:   &audit.Class{Name: "chat", Table: "t"},
		Label:   &audit.Label{Level: []string{"public", "internal", "confidential", "restricted"}[i%4], Rank: i % 4},
		Request: &audit.Request{Operation: "chat.completions", Model: "small", PromptTokens: i},
		Input:   json.RawMessage(`{"v":1,"principal":{"tenant":"acme"},"request":{"operation":"chat.completions","model":"small","stream":true}}`),
		Placement: &audit.Placement{
			Strategy: "deterministic", Basis: "kv_events", Pool: "general", Replica: "spiffe://example.org/pool/general/r1", ChosenBecause: "lowest_cost",
		},
	}
	for range 6 {
		r.Placement.Candidates = append(r.Placement.Candidates, audit.Candidate{
			Replica: "spiffe://example.org/pool/general/r1", Stream: "live", BlockSize: 16, Depth: i, Confidence: 990, CostNS: int64(i) * 1000, KVTotal: 8192,
		})
	}
	return r
}

// append adds n decisions, from several goroutines as a gateway does.
func (w *world) append(n int) {
	w.t.Helper()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := g; i < n; i += 8 {
				if _, err := w.log.Append(context.Background(), decision(i)); err != nil {
					w.t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// start runs an exporter until stop is called. change may replace sinks.
func (w *world) start(change func(*Exporter), sinks ...SinkConfig) (x *Exporter, stop func()) {
	w.t.Helper()
	cfg := w.cfg
	cfg.Sinks = sinks
	x, err := New(w.t.Context(), cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	if change != nil {
		change(x)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.Run(ctx)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
		if err := x.Close(); err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(stop)
	return x, stop
}

// until waits for something that happens soon.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	await.That(w.t, what, ok)
}

// caughtUp waits until every sink has all there is.
func (w *world) caughtUp(x *Exporter) {
	w.t.Helper()
	w.until("all delivered", func() bool {
		return !slices.ContainsFunc(x.Status(), func(s Status) bool { return s.Lag > 0 || s.LagTime > 0 })
	})
}

func toFile(name, path string) SinkConfig {
	return SinkConfig{Name: name, To: sink.Config{File: &sink.FileConfig{Path: path}}}
}

// leaves are the records of the log, from the log.
func (w *world) leaves() [][]byte {
	w.t.Helper()
	var all [][]byte
	for e, err := range tlog.Read(w.dir, 0) {
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, e.Leaf)
	}
	return all
}

type line struct {
	Kind       string
	Log        struct{ Seq uint64 }
	First      uint64
	Next       uint64
	Records    int
	Checkpoint string
}

// received reads a file of the record format: the records' indexes and the
// anchors.
func received(t testing.TB, path string) (indexes []uint64, anchors []line, text [][]byte) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var l line
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		if l.Kind == sink.KindAnchor {
			anchors = append(anchors, l)
			continue
		}
		indexes, text = append(indexes, l.Log.Seq), append(text, bytes.Clone(in.Bytes()))
	}
	return indexes, anchors, text
}

// contiguous fails unless indexes are 0, 1, 2, … of n.
func contiguous(t testing.TB, indexes []uint64, n int) {
	t.Helper()
	for i, got := range indexes {
		if got != uint64(i) {
			t.Fatalf("at %d stands record %d", i, got)
		}
	}
	if len(indexes) != n {
		t.Fatalf("%d records of %d", len(indexes), n)
	}
}

// firsts drops repetitions.
func firsts(indexes []uint64) []uint64 {
	seen := make(map[uint64]bool)
	var out []uint64
	for _, i := range indexes {
		if !seen[i] {
			out = append(out, i)
		}
		seen[i] = true
	}
	return out
}

func TestAFileHoldsEveryRecordOnceInOrderExactlyAsStored(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "out.jsonl")
	x, stop := w.start(nil, toFile("file", path))
	for range 4 { // also across a restart
		w.append(100)
		w.caughtUp(x)
		stop()
		w.append(50)
		x, stop = w.start(nil, toFile("file", path))
	}
	w.caughtUp(x)
	stop()
	want := w.leaves()
	indexes, anchors, text := received(t, path)
	contiguous(t, indexes, len(want))
	for i, l := range text {
		if !bytes.Equal(l, want[i]) {
			t.Fatalf("record %d is not as stored:\n%s\n%s", i, l, want[i])
		}
	}
	next, total, signed := uint64(0), 0, 0
	for _, a := range anchors {
		if a.First != next {
			t.Errorf("an anchor begins at %d, the one before ended at %d", a.First, next)
		}
		next, total = a.Next, total+a.Records
		if strings.HasPrefix(a.Checkpoint, origin+"\n") {
			signed++
		}
	}
	if total != len(want) || next != uint64(len(want)) || signed == 0 {
		t.Errorf("anchors tell of %d records up to %d, %d signed; there are %d", total, next, signed, len(want))
	}
}

func TestALoneRecordArrives(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "out.jsonl")
	x, _ := w.start(nil, toFile("file", path))
	w.caughtUp(x)
	w.append(1)
	w.caughtUp(x)
	indexes, _, _ := received(t, path)
	contiguous(t, indexes, 2)
}

// fake is a receiver whose failures a test decides.
type fake struct {
	mu    sync.Mutex
	got   []sink.Message
	calls int

	started atomic.Int64                               // calls that have begun
	send    func(call int, b *sink.Batch) (int, error) // what of a batch arrives and what is said; nil: all
}

func (f *fake) Send(_ context.Context, b *sink.Batch) (int, error) {
	f.started.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.send == nil {
		f.got = append(f.got, b.Messages...)
		return len(b.Messages), nil
	}
	return f.send(f.calls, b)
}

func (f *fake) Close() error { return nil }

func (f *fake) indexes() (out []uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.got {
		if m.Kind != sink.KindAnchor {
			out = append(out, m.Index)
		}
	}
	return out
}

// with puts a fake in the place of the first sink.
func with(f *fake, change func(*sink.Kind)) func(*Exporter) {
	return func(x *Exporter) {
		x.followers[0].out = f
		if change != nil {
			change(&x.followers[0].kind)
		}
	}
}

func small(k *sink.Kind) { k.Batch = 20 << 10 }

func anyFile(t testing.TB, name string) SinkConfig {
	return toFile(name, filepath.Join(t.TempDir(), name))
}

func TestWhatFailsIsSentAgainUntilItIsTaken(t *testing.T) {
	for name, send := range map[string]func(f *fake) func(int, *sink.Batch) (int, error){
		"the receiver is down half the time": func(f *fake) func(int, *sink.Batch) (int, error) {
			return func(call int, b *sink.Batch) (int, error) {
				if call%2 == 1 {
					return 0, errors.New("connection refused")
				}
				f.got = append(f.got, b.Messages...)
				return len(b.Messages), nil
			}
		},
		"acknowledgements are lost": func(f *fake) func(int, *sink.Batch) (int, error) {
			return func(call int, b *sink.Batch) (int, error) {
				f.got = append(f.got, b.Messages...)
				if call%3 != 0 {
					return 0, errors.New("no answer")
				}
				return len(b.Messages), nil
			}
		},
		"part of a batch is taken": func(f *fake) func(int, *sink.Batch) (int, error) {
			return func(_ int, b *sink.Batch) (int, error) {
				n := (len(b.Messages) + 1) / 2
				f.got = append(f.got, b.Messages[:n]...)
				return n, nil
			}
		},
		"it is busy": func(f *fake) func(int, *sink.Batch) (int, error) {
			return func(call int, b *sink.Batch) (int, error) {
				if call%3 == 0 {
					return 0, &sink.Busy{After: time.Millisecond, Err: errors.New("503")}
				}
				f.got = append(f.got, b.Messages...)
				return len(b.Messages), nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			f := new(fake)
			f.send = send(f)
			w.append(300)
			x, stop := w.start(with(f, small), anyFile(t, "fake"))
			w.append(100)
			w.caughtUp(x)
			stop()
			contiguous(t, firsts(f.indexes()), len(w.leaves()))
			if s := x.Status()[0]; s.Failing || s.Dead != 0 || s.Sent < 401 {
				t.Errorf("status %+v", s)
			}
		})
	}
}

func TestASinkThatIsDownHoldsNeitherAnotherNorTheLog(t *testing.T) {
	w := newWorld(t)
	hung := make(chan struct{})
	f := new(fake)
	f.send = func(int, *sink.Batch) (int, error) { <-hung; return 0, errors.New("slow") }
	defer close(hung)
	path := filepath.Join(t.TempDir(), "out.jsonl")
	x, _ := w.start(with(f, nil), anyFile(t, "hung"), toFile("file", path))
	w.append(200)
	w.until("the other has all", func() bool { return x.Status()[1].Lag == 0 })
	if s := x.Status()[0]; s.Lag < 201 || s.LagBytes == 0 || s.LagTime == 0 {
		t.Errorf("the one that hangs: %+v", s)
	}
}

func TestWhatASinkRefusesIsPutAsideAndWrittenDown(t *testing.T) {
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprintf("known which: %v", known), func(t *testing.T) {
			w := newWorld(t)
			f := new(fake)
			f.send = func(_ int, b *sink.Batch) (int, error) {
				for i, m := range b.Messages {
					if m.Index%50 == 7 && m.Kind == "decision" {
						if !known {
							return 0, &sink.Refused{At: -1, Reason: "bad record"}
						}
						f.got = append(f.got, b.Messages[:i]...)
						return i, &sink.Refused{At: i, Reason: "bad record"}
					}
				}
				f.got = append(f.got, b.Messages...)
				return len(b.Messages), nil
			}
			w.append(200)
			x, stop := w.start(with(f, small), anyFile(t, "picky"))
			w.caughtUp(x)
			stop()
			if s := x.Status()[0]; s.Dead != 4 || s.Failing {
				t.Errorf("status %+v", s)
			}
			got := firsts(f.indexes())
			if len(got) != len(w.leaves())-4 || !slices.IsSorted(got) {
				t.Errorf("%d of %d records, sorted: %v", len(got), len(w.leaves()), slices.IsSorted(got))
			}
			letters, err := os.ReadFile(filepath.Join(w.dir, "export", "picky.dead.jsonl"))
			if err != nil || bytes.Count(letters, []byte("\n")) != 4 {
				t.Fatalf("dead letters: %s, %v", letters, err)
			}
			var d deadLetter
			if err := json.Unmarshal(letters[:bytes.IndexByte(letters, '\n')], &d); err != nil || d.Index != 7 || !bytes.Equal(d.Leaf, w.leaves()[7]) {
				t.Errorf("dead letter %+v, %v", d, err)
			}
			noted := 0
			for _, l := range w.leaves() {
				if bytes.Contains(l, []byte(`"action":"dead_letter"`)) {
					noted++
				}
			}
			if noted != 4 {
				t.Errorf("%d dead letters are in the log", noted)
			}
		})
	}
}

func TestASinkThatRefusesEverythingIsNotBelieved(t *testing.T) {
	w := newWorld(t)
	f := new(fake)
	f.send = func(call int, b *sink.Batch) (int, error) {
		if call < 200 {
			return 0, &sink.Refused{At: 0, Reason: "no such index"}
		}
		f.got = append(f.got, b.Messages...)
		return len(b.Messages), nil
	}
	w.append(100)
	x, stop := w.start(with(f, nil), anyFile(t, "wrong"))
	w.caughtUp(x)
	stop()
	if s := x.Status()[0]; s.Dead != deadLimit {
		t.Errorf("%d records were given up", s.Dead)
	}
	// An anchor may be among what it refused.
	if got := f.indexes(); len(got) == 0 || got[0] > deadLimit || len(got)+int(got[0]) != len(w.leaves()) {
		t.Errorf("%d of %d records: %v", len(got), len(w.leaves()), got)
	}
}

func TestALossySinkIsGivenAgainWhatItMayHaveLost(t *testing.T) {
	w := newWorld(t)
	f := new(fake)
	lost := 0
	f.send = func(call int, b *sink.Batch) (int, error) {
		switch {
		case call == 4 || call == 20 || call == 50: // written, and gone with the connection
			lost += len(b.Messages)
			return len(b.Messages), nil
		case call == 5 || call == 21 || call == 51:
			return 0, errors.New("connection reset")
		}
		f.got = append(f.got, b.Messages...)
		return len(b.Messages), nil
	}
	lossy := func(k *sink.Kind) { k.Lossy, k.Batch = true, 20<<10 }
	x, stop := w.start(with(f, lossy), anyFile(t, "lossy"))
	for range 6 {
		w.append(40)
		w.caughtUp(x)
	}
	w.append(1)
	w.until("nothing is missing", func() bool { return len(firsts(f.indexes())) == len(w.leaves()) })
	stop()
	got := firsts(f.indexes())
	slices.Sort(got)
	contiguous(t, got, len(w.leaves()))
	if s := x.Status()[0]; lost == 0 || s.Replayed == 0 || s.Sent != uint64(len(w.leaves())) {
		t.Errorf("%d lost, status %+v", lost, s)
	}
	for _, m := range f.got {
		if m.Replayed && m.Kind == sink.KindAnchor {
			t.Error("an anchor says it is a repetition")
		}
	}
}

func TestAnExactSinkGetsTheSameBatchesAfterACrash(t *testing.T) {
	w := newWorld(t)
	exact := func(k *sink.Kind) { k.Exact, k.Batch = true, 20<<10 }
	type object struct{ first, next uint64 }
	objects := make(map[object]string)
	put := func(b *sink.Batch) {
		var body strings.Builder
		for _, m := range b.Messages {
			body.Write(append(m.Body, '\n'))
		}
		name := object{b.First, b.Next}
		if old, ok := objects[name]; ok && old != body.String() {
			t.Errorf("records %d to %d were written in two ways:\n%s\n%s", b.First, b.Next, old[max(len(old)-600, 0):], body.String()[max(body.Len()-600, 0):])
		}
		objects[name] = body.String()
	}
	for range 12 {
		w.append(23)
		crash := new(fake)
		arrived := make(chan struct{})
		crash.send = func(call int, b *sink.Batch) (int, error) {
			if call == 2 { // arrives, and the process is gone before it hears
				put(b)
				close(arrived)
			}
			if call >= 2 {
				return 0, errors.New("no answer")
			}
			put(b)
			return len(b.Messages), nil
		}
		_, stop := w.start(with(crash, exact), anyFile(t, "exact"))
		<-arrived
		stop()
	}
	f := new(fake)
	f.send = func(_ int, b *sink.Batch) (int, error) { put(b); return len(b.Messages), nil }
	x, stop := w.start(with(f, exact), anyFile(t, "exact"))
	w.caughtUp(x)
	stop()
	next := uint64(0)
	for next < uint64(len(w.leaves())) {
		found := false
		for o := range objects {
			if o.first == next {
				if found {
					t.Fatalf("two objects begin at %d", next)
				}
				found = true
			}
		}
		for o := range objects {
			if o.first == next {
				next = o.next
				break
			}
		}
		if !found {
			t.Fatalf("no object begins at %d", next)
		}
	}
}

func TestRoutesKeepRegulatedRecordsApart(t *testing.T) {
	w := newWorld(t)
	paths := make(map[string]string)
	config := func(name string, only, except Filter) SinkConfig {
		paths[name] = filepath.Join(t.TempDir(), name)
		c := toFile(name, paths[name])
		c.Only, c.Except = only, except
		return c
	}
	w.append(80)
	if _, err := w.log.Append(t.Context(), &audit.Record{Kind: audit.KindDecision, ID: "early", Status: audit.StatusDenied, Caller: &audit.Caller{Tenant: "acme"}}); err != nil {
		t.Fatal(err)
	}
	for _, label := range []string{"", "secret"} { // neither is one
		r := &audit.Record{Kind: audit.KindDecision, ID: "odd", Status: audit.StatusDenied, Caller: &audit.Caller{Tenant: "globex"}, Label: &audit.Label{Level: label}}
		if _, err := w.log.Append(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.log.Append(t.Context(), &audit.Record{Kind: audit.KindOutcome, ID: "early", Status: audit.StatusUnknownCrash}); err != nil { // by the log itself
		t.Fatal(err)
	}
	x, stop := w.start(
		nil, config("restricted", Filter{Labels: []string{"restricted"}}, Filter{}), config("rest", Filter{}, Filter{Labels: []string{"restricted"}}),
		config("acme", Filter{Tenants: []string{"acme"}, Kinds: []string{"decision"}}, Filter{}), config("boots", Filter{Kinds: []string{"boot"}}, Filter{}),
		config("globex", Filter{Tenants: []string{"globex"}, Kinds: []string{"decision", "outcome"}}, Filter{}),
	)
	w.caughtUp(x)
	stop()
	for name, want := range map[string]int{
		"restricted": 20 + 4 + 1, // records without a label count as restricted, and the boot record goes to all
		"globex":     40 + 2,     // and not the one that names no tenant
		"rest":       60 + 1,
		"acme":       40 + 1,
		"boots":      1,
	} {
		indexes, anchors, _ := received(t, paths[name])
		told := 0
		for _, a := range anchors {
			told += a.Records
		}
		if len(indexes) != want || told != want {
			t.Errorf("%s has %d records and says %d, want %d", name, len(indexes), told, want)
		}
	}
}

func TestAPlaceThatCannotBeRightIsTakenFromTheLog(t *testing.T) {
	for name, spoil := range map[string]func(c *Cursor) []byte{
		"damaged":                    func(*Cursor) []byte { return []byte(`{"v":1,"sink":"fi`) },
		"gone":                       func(*Cursor) []byte { return nil },
		"ahead of the log":           func(c *Cursor) []byte { c.Next += 1000; return marshal(c) },
		"of another log":             func(c *Cursor) []byte { c.Origin = "elsewhere"; return marshal(c) },
		"of a record that was other": func(c *Cursor) []byte { c.Last.Hash[0]++; return marshal(c) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.cfg.pace.record = time.Millisecond
			f := new(fake)
			w.append(50)
			x, stop := w.start(with(f, nil), anyFile(t, "file"))
			w.caughtUp(x)
			w.append(1) // after which the cursor goes into the log
			w.until("the log has a cursor", func() bool { _, ok, err := recorded(w.dir, "file", origin); return ok && err == nil })
			stop()
			c, err := readCursor(w.dir, "file")
			if err != nil {
				t.Fatal(err)
			}
			path := cursorPath(w.dir, "file")
			if b := spoil(&c); b == nil {
				err = os.Remove(path)
			} else {
				err = os.WriteFile(path, b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			before := len(f.indexes())
			w.append(20)
			x, stop = w.start(with(f, nil), anyFile(t, "file"))
			w.until("placed", func() bool { return x.Status()[0].Next > 0 })
			w.caughtUp(x)
			stop()
			got := firsts(f.indexes())
			contiguous(t, got, max(len(got), 72)) // what the log was told last may come too late
			if again := len(f.indexes()) - before; again > 60 {
				t.Errorf("%d records sent to go on", again)
			}
			if n := bytes.Count(bytes.Join(w.leaves(), nil), []byte(`"action":"cursor_lost"`)); n != 1 {
				t.Errorf("the log tells of it %d times", n)
			}
		})
	}
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func TestRecordsThatWerePrunedFirstAreCountedAndWrittenDown(t *testing.T) {
	w := newWorld(t)
	w.append(2500) // some segments
	segments, err := filepath.Glob(filepath.Join(w.dir, "wal", "*"))
	if err != nil || len(segments) < 3 {
		t.Fatalf("%d segments, %v", len(segments), err)
	}
	all := len(w.leaves())
	for _, s := range segments[:2] {
		if err := os.Remove(s); err != nil {
			t.Fatal(err)
		}
	}
	f := new(fake)
	x, stop := w.start(with(f, nil), anyFile(t, "late"))
	w.until("read", func() bool { return x.Status()[0].Next >= uint64(all) })
	w.caughtUp(x)
	stop()
	got := f.indexes()
	if s := x.Status()[0]; s.Lost == 0 || s.Lost != got[0] {
		t.Errorf("%d lost, the first that came is %d", s.Lost, got[0])
	}
	noted := false
	for _, l := range w.leaves() {
		noted = noted || bytes.Contains(l, fmt.Appendf(nil, `"action":"gap","sink":"late","kind":"file","first":0,"next":%d,"count":%d`, got[0], got[0]))
	}
	if !noted {
		t.Error("the log does not tell of it")
	}
	cursors, err := Cursors(w.dir)
	if err != nil || len(cursors) != 1 || cursors[0].Next != x.Status()[0].Next || cursors[0].Lost != got[0] {
		t.Errorf("cursors %+v, %v", cursors, err)
	}
}

func TestConfigurationsThatCannotWorkAreRefused(t *testing.T) {
	for _, c := range []struct {
		why   string
		spoil func(*SinkConfig)
	}{
		{"name", func(c *SinkConfig) { c.Name = "../etc" }},
		{"format", func(c *SinkConfig) { c.Format = "leef" }},
		{"limit", func(c *SinkConfig) { c.Limit = 100 }},
		{"only.labels", func(c *SinkConfig) { c.Only.Labels = []string{"secret"} }},
		{"except.kinds", func(c *SinkConfig) { c.Except.Kinds = []string{"decisions"} }},
		{"only.classes", func(c *SinkConfig) { c.Only.Classes = []string{"agent"} }},
		{"except.classes", func(c *SinkConfig) { c.Except.Classes = []string{""} }},
		{"only.tenants", func(c *SinkConfig) { c.Only.Tenants = []string{""} }},
		{"to: want one of", func(c *SinkConfig) { c.To = sink.Config{} }},
		{"to.file.path: required", func(c *SinkConfig) { c.To.File.Path = "" }},
	} {
		s := toFile("file", filepath.Join(t.TempDir(), "x"))
		c.spoil(&s)
		if err := Check([]SinkConfig{s}, false); err == nil || !strings.Contains(err.Error(), "[0]."+c.why) {
			t.Errorf("%s: %v", c.why, err)
		}
	}
	if err := Check([]SinkConfig{toFile("a", "x"), toFile("a", "y")}, true); err == nil || !strings.Contains(err.Error(), "[1].name: sink a stands twice") {
		t.Errorf("twice the same name: %v", err)
	}
}

func TestEventsOfASinkAreLinked(t *testing.T) {
	w := newWorld(t)
	w.append(40)
	c := anyFile(t, "linked")
	c.Format, c.Only = "ecs", Filter{Tenants: []string{"acme"}}
	f := new(fake)
	x, stop := w.start(with(f, small), c)
	w.caughtUp(x)
	stop()
	w.append(10)
	x, stop = w.start(with(f, small), c)
	w.until("placed", func() bool { return x.Status()[0].Next > 0 })
	w.caughtUp(x)
	stop()
	var last *format.Link
	leaves := w.leaves()
	for _, m := range f.got {
		if m.Kind == sink.KindAnchor {
			continue
		}
		var v struct {
			Sallyport struct{ Previous *format.Link }
		}
		if err := json.Unmarshal(m.Body, &v); err != nil {
			t.Fatal(err)
		}
		if got := v.Sallyport.Previous; fmt.Sprint(got) != fmt.Sprint(last) && (got == nil || last == nil || *got != *last) {
			t.Fatalf("record %d follows %v, before it came %v", m.Index, got, last)
		}
		last = &format.Link{Index: m.Index, Hash: format.LeafHash(leaves[m.Index])}
	}
}
