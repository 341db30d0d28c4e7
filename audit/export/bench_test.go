package export

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
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
	w.until("published", func() bool {
		note, err := os.ReadFile(filepath.Join(w.dir, "checkpoint"))
		return err == nil && strings.HasPrefix(string(note), fmt.Sprintf("%s\n%d\n", origin, w.log.Head().Size))
	})
	return w
}

// BenchmarkExport drains a log of decisions with six candidates into one sink,
// whose receiver is a process of its own. cpu-µs/record is what this process
// computed for a record, from the disk to the wire, receiver-cpu-µs/record what
// the other did, and peak-MiB how much the heap of
// this one grew at most.
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
	token, keys := filepath.Join(b.TempDir(), "token"), filepath.Join(b.TempDir(), "keys")
	for path, text := range map[string]string{token: "t", keys: "access\nsecretsecret\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	a := exporttest.NewAuthority(b)
	a.Leaf("server")
	a.Leaf("client.lab")
	trusting := sink.TLSConfig{CAFile: a.CAFile}
	for _, c := range []SinkConfig{
		{Format: "record", To: sink.Config{File: &sink.FileConfig{}}},
		{Format: "ocsf", To: sink.Config{File: &sink.FileConfig{}}},
		{Format: "ecs", To: sink.Config{File: &sink.FileConfig{}}},
		{Format: "cef", To: sink.Config{File: &sink.FileConfig{}}},
		{Format: "ocsf", To: sink.Config{HEC: &sink.HECConfig{TokenFile: token}}},
		{Format: "ocsf", To: sink.Config{OTLP: &sink.OTLPConfig{}}},
		{Format: "ocsf", To: sink.Config{Kafka: &sink.KafkaConfig{Topic: "audit", Plaintext: true}}},
		{Format: "ocsf", To: sink.Config{S3: &sink.S3Config{Bucket: "audit", Lock: "none", CredentialsFile: keys}}},
		{Format: "ocsf", To: sink.Config{RELP: &sink.RELPConfig{TLS: trusting}}},
		{Format: "ocsf", To: sink.Config{Syslog: &sink.SyslogConfig{TLS: trusting}}},
	} {
		kind, err := c.To.Kind()
		if err != nil {
			b.Fatal(err)
		}
		b.Run(kind.Name+"/"+c.Format, func(b *testing.B) {
			pid := 0
			address(&c.To, func() (to string) { to, pid = receiverProcess(b, kind.Name, a.Dir); return to })
			drains(b, w, c, pid, n, size)
		})
	}
	for _, name := range []string{"relp", "syslog"} {
		b.Run("rsyslog/"+name, func(b *testing.B) {
			r := exporttest.NewRsyslog(b, a, exporttest.OpenSSL)
			r.Start()
			c := rsyslogSink(name, r, a)
			c.Format = "ocsf"
			drains(b, w, c, r.PID(), n, size)
		})
	}
}

// address tells a sink where its receiver is.
func address(c *sink.Config, of func() string) {
	switch {
	case c.HEC != nil:
		c.HEC.URL = of()
	case c.OTLP != nil:
		c.OTLP.URL = of()
	case c.Kafka != nil:
		c.Kafka.Brokers = []string{of()}
	case c.S3 != nil:
		c.S3.URL = of()
	case c.RELP != nil:
		c.RELP.Address = of()
	case c.Syslog != nil:
		c.Syslog.Address = of()
	}
}

func drains(b *testing.B, w *world, c SinkConfig, receiver, n, size int) {
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		c.Name = fmt.Sprint("bench-", time.Now().UnixNano())
		if c.To.File != nil {
			c.To.File = &sink.FileConfig{Path: filepath.Join(b.TempDir(), c.Name)}
		}
		drain(b, w, c, receiver, n, size)
	}
}

func drain(b *testing.B, w *world, c SinkConfig, receiver, n, size int) {
	b.Helper()
	w.cfg.pace = pace{record: time.Hour, wait: 100 * time.Millisecond}
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
	began, used, theirs := time.Now(), cpuTime(b), cpuOf(receiver)
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
	if receiver != 0 {
		b.ReportMetric(float64((cpuOf(receiver)-theirs).Microseconds())/float64(n), "receiver-cpu-µs/record")
	}
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
