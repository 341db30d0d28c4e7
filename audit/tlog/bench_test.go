package tlog

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

// cpuTime is what this process has used, in user and system mode.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkAppend(b *testing.B) {
	pool := make([]*audit.Record, 4096)
	for i := range pool {
		pool[i] = decision(i)
	}
	for _, writers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			cfg := testConfig(b, testKey(b))
			cfg.SegmentBytes = 64 << 20
			l := mustOpen(b, cfg)
			took := make([]time.Duration, b.N)
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			cpu := cpuTime()
			for range writers {
				wg.Go(func() {
					for {
						i := int(next.Add(1)) - 1
						if i >= b.N {
							return
						}
						r := *pool[i%len(pool)]
						start := time.Now()
						if _, err := l.Append(b.Context(), &r); err != nil {
							b.Error(err)
							return
						}
						took[i] = time.Since(start)
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(b.N), "cpu-µs/record")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
			slices.Sort(took)
			b.ReportMetric(float64(took[b.N/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[b.N*99/100].Microseconds()), "p99-µs")
		})
	}
}

// What each batch pays to know that its files are still where they were.
func BenchmarkLookForFiles(b *testing.B) {
	l := mustOpen(b, testConfig(b, testKey(b)))
	for b.Loop() {
		if err := l.main.check(); err != nil {
			b.Fatal(err)
		}
	}
}

// benchLog is a closed log of n records, decisions with their outcomes, in
// batches of about size.
func benchLog(b *testing.B, n, size int) Config {
	cfg := testConfig(b, testKey(b))
	cfg.SegmentBytes = 64 << 20
	l := mustOpen(b, cfg)
	rs, _ := realRecords(n / 2)
	var wg sync.WaitGroup
	for w := range size {
		wg.Go(func() {
			for i := 2 * w; i < n; i += 2 * size {
				for _, r := range rs[i : i+2] {
					if _, err := l.Append(b.Context(), r); err != nil {
						b.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	mustClose(b, l)
	return cfg
}

func BenchmarkVerify(b *testing.B) {
	const n = 20000
	for _, size := range []int{1, 64} {
		cfg := benchLog(b, n, size)
		var bytes int64
		for e, err := range Read(cfg.Dir, 0) {
			if err != nil {
				b.Fatal(err)
			}
			bytes += int64(len(e.Leaf))
		}
		for _, which := range []struct {
			name string
			Signatures
		}{{"sample", SampleSignatures}, {"every", EverySignature}} {
			b.Run(fmt.Sprintf("writers=%d/%s", size, which.name), func(b *testing.B) {
				b.SetBytes(bytes)
				cpu := cpuTime()
				batches := 0
				for b.Loop() {
					report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{Signatures: which.Signatures})
					if err != nil || !report.OK() {
						b.Fatal(report, err)
					}
					batches = report.Batches
				}
				b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/float64(b.N)/n, "cpu-ns/record")
				b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "records/s")
				b.ReportMetric(float64(batches)*float64(b.N)/b.Elapsed().Seconds(), "batches/s")
			})
		}
	}
}

func BenchmarkRecover(b *testing.B) {
	const n = 20000
	cfg := benchLog(b, n, 64)
	for b.Loop() {
		if _, err := recoverLog(cfg.Dir, cfg.Dir, cfg.Key); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}
