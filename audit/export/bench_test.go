package export

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit/export/exporttest"
	"github.com/sallyport-ai/sallyport/audit/export/sink"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

// backlog is a log of n records that nobody appends to any more.
func backlog(b *testing.B, n int) *world {
	b.Helper()
	w := newWorld(b)
	var slow atomic.Int64
	for range 64 {
		go func() {
			for slow.Add(1) <= int64(n) {
				if _, err := w.log.Append(context.Background(), decision(int(slow.Load()))); err != nil {
					b.Error(err)
					return
				}
			}
		}()
	}
	w.until("appended", func() bool { return w.log.Head().Size > uint64(n) })
	return w
}

// BenchmarkExport drains a log of decisions with six candidates into one sink,
// whose receiver is a process of its own. cpu-µs/record is what this process
// computed for a record, from the disk to the wire; peak-MiB is how much its
// heap grew at most.
func BenchmarkExport(b *testing.B) {
	const n = 60_000
	w := backlog(b, n)
	size := 0
	for e, err := range tlog.Read(w.dir, 1) {
		if err != nil {
			b.Fatal(err)
		}
		size = len(e.Leaf)
		break
	}
	secret := filepath.Join(b.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("access\nsecretsecret\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	for _, c := range []SinkConfig{
		{Format: "record", To: sink.Config{File: &sink.FileConfig{}}},
		{Format: "ocsf", To: sink.Config{File: &sink.FileConfig{}}},
		{Format: "ecs", To: sink.Config{File: &sink.FileConfig{}}},
		{Format: "cef", To: sink.Config{File: &sink.FileConfig{}}},
		{Format: "ocsf", To: sink.Config{HEC: &sink.HECConfig{TokenFile: secret}}},
		{Format: "ocsf", To: sink.Config{OTLP: &sink.OTLPConfig{}}},
		{Format: "ocsf", To: sink.Config{Kafka: &sink.KafkaConfig{Topic: "audit", Plaintext: true}}},
		{Format: "ocsf", To: sink.Config{S3: &sink.S3Config{Bucket: "audit", Lock: "none", CredentialsFile: secret}}},
		{Format: "ocsf", To: sink.Config{RELP: &sink.RELPConfig{}}},
		{Format: "ocsf", To: sink.Config{Syslog: &sink.SyslogConfig{}}},
	} {
		kind, err := c.To.Kind()
		if err != nil {
			b.Fatal(err)
		}
		b.Run(kind.Name+"/"+c.Format, func(b *testing.B) {
			if c.To.RELP != nil || c.To.Syslog != nil {
				a := exporttest.NewAuthority(b)
				a.Leaf("server")
				a.Leaf("client.lab")
				r := exporttest.NewRsyslog(b, a, exporttest.OpenSSL)
				r.Start()
				format := c.Format
				c = rsyslogSink(kind.Name, r, a)
				c.Format = format
			}
			switch {
			case c.To.HEC != nil:
				c.To.HEC.URL = receiverProcess(b, kind.Name)
			case c.To.OTLP != nil:
				c.To.OTLP.URL = receiverProcess(b, kind.Name)
			case c.To.Kafka != nil:
				c.To.Kafka.Brokers = []string{receiverProcess(b, kind.Name)}
			case c.To.S3 != nil:
				c.To.S3.URL = receiverProcess(b, kind.Name)
			}
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				c.Name = fmt.Sprintf("%s-%s-%d-%d", kind.Name, c.Format, i, time.Now().UnixNano()%1_000_000)
				if c.To.File != nil {
					c.To.File = &sink.FileConfig{Path: filepath.Join(b.TempDir(), c.Name)}
				}
				drain(b, w, c, n, size)
			}
		})
	}
}

func drain(b *testing.B, w *world, c SinkConfig, n, size int) {
	b.Helper()
	w.cfg.pace = pace{record: time.Hour}
	// A sink without a cursor first looks for one in the whole log.
	if err := os.MkdirAll(filepath.Join(w.dir, folder), 0o700); err != nil {
		b.Fatal(err)
	}
	if err := (&Cursor{V: cursorVersion, Sink: c.Name, Origin: origin}).write(w.dir); err != nil {
		b.Fatal(err)
	}
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	b.StartTimer()
	began, used := time.Now(), cpuTime(b)
	x, stop := w.start(nil, c)
	peak := uint64(0)
	for x.Status()[0].Next <= uint64(n) {
		var now runtime.MemStats
		runtime.ReadMemStats(&now)
		peak = max(peak, now.HeapInuse+now.StackInuse)
		time.Sleep(20 * time.Millisecond)
		if time.Since(began) > 2*time.Minute {
			b.Fatalf("%+v", x.Status()[0])
		}
	}
	took := time.Since(began)
	b.StopTimer()
	stop()
	b.ReportMetric(float64(n)/took.Seconds(), "records/s")
	b.ReportMetric(float64(cpuTime(b)-used)/float64(n)/1000, "cpu-µs/record")
	b.ReportMetric(float64(int64(peak)-int64(before.HeapInuse+before.StackInuse))/(1<<20), "peak-MiB")
	b.ReportMetric(float64(size), "leaf-bytes")
	b.StartTimer()
}

func cpuTime(tb testing.TB) int64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		tb.Fatal(err)
	}
	return r.Utime.Nano() + r.Stime.Nano()
}
