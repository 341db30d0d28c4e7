package tlog

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

// bareWriter is the least that a group-commit writer can do: gather, write into
// zeros, sync, answer. It hashes, signs and encodes nothing.
type bareWriter struct {
	mu    sync.Mutex
	queue []bareEntry
	wake  chan struct{}
	file  *os.File
	at    int64
	slow  time.Duration // how long a sync takes at least
	key   *Key          // whose log the records are said to be of
}

type bareEntry struct {
	data []byte
	done chan error
}

// slowFile is a segment on a disk whose sync takes at least so long.
type slowFile struct {
	segmentFile
	slow time.Duration
}

func (f *slowFile) Datasync() error { return atLeast(f.slow, f.segmentFile.Datasync) }

func atLeast(d time.Duration, do func() error) error {
	began := time.Now()
	err := do()
	if left := d - time.Since(began); left > 0 {
		time.Sleep(left)
	}
	return err
}

func newBareWriter(b *testing.B, size int64, slow time.Duration) *bareWriter {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), "bare"))
	if err != nil {
		b.Fatal(err)
	}
	zeros := make([]byte, 1<<20)
	for at := int64(0); at < size; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros, at); err != nil {
			b.Fatal(err)
		}
	}
	if err := datasync(f); err != nil {
		b.Fatal(err)
	}
	w := &bareWriter{wake: make(chan struct{}, 1), file: f, slow: slow, key: testKey(b)}
	go w.run()
	b.Cleanup(func() { close(w.wake); f.Close() })
	return w
}

func (w *bareWriter) run() {
	var buf []byte
	for range w.wake {
		for {
			w.mu.Lock()
			batch := w.queue
			w.queue = nil
			w.mu.Unlock()
			if len(batch) == 0 {
				break
			}
			buf = buf[:0]
			for _, e := range batch {
				buf = append(buf, e.data...)
			}
			_, err := w.file.WriteAt(buf, w.at)
			if err == nil {
				err = atLeast(w.slow, func() error { return datasync(w.file) })
			}
			w.at += int64(len(buf))
			for _, e := range batch {
				e.done <- err
			}
		}
	}
}

func (w *bareWriter) append(data []byte) error {
	e := bareEntry{data, make(chan error, 1)}
	w.mu.Lock()
	w.queue = append(w.queue, e)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return <-e.done
}

// encode appends a record as the log does, but for what hashing and signing take.
func (w *bareWriter) encode(r audit.Record) error {
	l := Log{cfg: Config{Key: w.key}}
	e, err := l.encode(&r)
	if err != nil {
		return err
	}
	e.finish(&r)
	return w.append(e.leaf)
}

// realRecords are decisions, each with its outcome, as large as real ones.
func realRecords(n int) (rs []*audit.Record, leaves [][]byte) {
	for i := range n {
		d := decision(i)
		for len(d.Placement.Candidates) < 4 {
			d.Placement.Candidates = append(d.Placement.Candidates, d.Placement.Candidates[0])
		}
		for _, r := range []*audit.Record{d, outcomeOf(d)} {
			leaf, err := audit.Encode(r)
			if err != nil {
				panic(err)
			}
			// Salt, origin and boot come on top.
			leaves, rs = append(leaves, append(leaf, make([]byte, 120)...)), append(rs, r)
		}
	}
	return rs, leaves
}

// run has so many writers do n things, and returns operations a second and the
// median.
func run(writers, n int, do func(i int) error) (rate float64, p50 time.Duration, err error) {
	took := make([]time.Duration, n)
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	began := time.Now()
	for range writers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				at := time.Now()
				if err := do(i); err != nil {
					failed.Store(&err)
					return
				}
				took[i] = time.Since(at)
			}
		})
	}
	wg.Wait()
	rate = float64(n) / time.Since(began).Seconds()
	if e := failed.Load(); e != nil {
		err = *e
	}
	slices.Sort(took)
	return rate, took[n/2], err
}

// What the log costs over a bare writer, in turns on the same disk.
func BenchmarkAgainstABareWriter(b *testing.B) {
	rs, leaves := realRecords(2000)
	bytes := 0
	for _, leaf := range leaves {
		bytes += len(leaf)
	}
	for _, writers := range []int{1, 64} {
		for _, slow := range []time.Duration{0, time.Millisecond} {
			for _, kind := range []string{"bare", "encoding"} {
				b.Run(fmt.Sprintf("writers=%d/sync=%v/%s", writers, slow, kind), func(b *testing.B) {
					againstABareWriter(b, writers, slow, rs, leaves, kind == "encoding")
					b.ReportMetric(float64(bytes)/float64(len(leaves)), "bytes/record")
				})
			}
		}
	}
}

func againstABareWriter(b *testing.B, writers int, slow time.Duration, rs []*audit.Record, leaves [][]byte, encodes bool) {
	n := 900
	if writers > 1 {
		n = 24000
	}
	var ops, lat []float64
	var base, ours []time.Duration
	var cpu time.Duration
	for b.Loop() {
		bare := newBareWriter(b, 64<<20, slow)
		cfg := testConfig(b, testKey(b))
		cfg.SegmentBytes = 64 << 20
		cfg.create = func(path string) (segmentFile, error) {
			f, err := createOSFile(path)
			return &slowFile{f, slow}, err
		}
		l := mustOpen(b, cfg)
		for len(l.main.spare) == 0 {
			time.Sleep(time.Millisecond) // else the next segment is filled meanwhile, as once in a long while of writing
		}
		// In turns, so that both meet the same disk.
		for range 3 {
			bareRate, bareP50, err := run(writers, n/3, func(i int) error {
				if encodes {
					return bare.encode(*rs[i%len(rs)])
				}
				return bare.append(leaves[i%len(leaves)])
			})
			if err != nil {
				b.Fatal(err)
			}
			before := cpuTime()
			rate, p50, err := run(writers, n/3, func(i int) error {
				r := *rs[i%len(rs)]
				_, err := l.Append(b.Context(), &r)
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
			cpu += cpuTime() - before
			ops, lat = append(ops, rate/bareRate), append(lat, float64(p50)/float64(bareP50))
			base, ours = append(base, bareP50), append(ours, p50)
		}
		mustClose(b, l)
	}
	slices.Sort(ops)
	slices.Sort(lat)
	slices.Sort(base)
	slices.Sort(ours)
	b.ReportMetric(ops[len(ops)/2], "ops-ratio")
	b.ReportMetric(lat[len(lat)/2], "p50-ratio")
	b.ReportMetric(float64(base[len(base)/2].Microseconds()), "bare-p50-µs")
	b.ReportMetric(float64(ours[len(ours)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(cpu.Nanoseconds())/float64(n/3*len(ops))/1000, "cpu-µs/record")
}

// The log's own work on a record, without what the system does to write it.
func BenchmarkEncodeChainTreeAndSign(b *testing.B) {
	rs, _ := realRecords(2000)
	key := testKey(b)
	l := &Log{cfg: Config{Key: key}, boot: "0198c0de-0000-7000-8000-000000000000"}
	st := state{chain: genesis(origin)}
	const perBatch = 32
	var buf []byte
	cpu := cpuTime()
	i := 0
	for b.Loop() {
		r := *rs[i%len(rs)]
		e, err := l.encode(&r)
		if err != nil {
			b.Fatal(err)
		}
		r.Log.Seq = st.tree.size
		e.finish(&r)
		buf = st.appendRecord(buf, e.leaf)
		if i++; i%perBatch == 0 {
			buf = st.appendSeal(buf, key)
			if buf, err = st.appendTrailer(buf, key, st.tree.root(), 1); err != nil {
				b.Fatal(err)
			}
			buf = buf[:0]
		}
	}
	b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/float64(b.N)/1000, "cpu-µs/record")
}
