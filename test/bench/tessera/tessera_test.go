// Package tessera holds the log against Tessera's POSIX driver. It is a module of
// its own, so that nobody else needs what Tessera needs.
package tessera

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/transparency-dev/tessera"
	"github.com/transparency-dev/tessera/storage/posix"
	"golang.org/x/mod/sumdb/note"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

const origin = "example.org/log"

// record is one of about 1,200 bytes, as the mean of decisions and outcomes is.
func record(i int) *audit.Record {
	return &audit.Record{
		Kind: audit.KindDecision, ID: audit.NewID(), Attempt: 1, Status: audit.StatusDenied,
		Input: json.RawMessage(fmt.Sprintf(`{"n":%d,"x":%q}`, i, strings.Repeat("abcdefghij", 75+i%20))),
	}
}

// run has 64 writers do n things, and returns operations a second and the
// median.
func run(b *testing.B, n int, do func(ctx context.Context, i int) error) (rate float64, p50 time.Duration) {
	b.Helper()
	took := make([]time.Duration, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range 64 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				at := time.Now()
				if err := do(b.Context(), i); err != nil {
					b.Error(err)
					return
				}
				took[i] = time.Since(at)
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	return float64(n) / time.Since(began).Seconds(), took[n/2]
}

// theirs is Tessera as its own documentation has it for low latency: an entry is
// done once it is integrated, before a checkpoint of it is published.
func theirs(b *testing.B, key string) func(ctx context.Context, i int) error {
	b.Helper()
	signer, err := note.NewSigner(key)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	b.Cleanup(cancel)
	driver, err := posix.New(ctx, posix.Config{Path: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	appender, shutdown, _, err := tessera.NewAppender(ctx, driver, tessera.NewAppendOptions().
		WithCheckpointSigner(signer).WithBatching(64, time.Millisecond).WithCheckpointInterval(time.Second))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := shutdown(ctx); err != nil {
			b.Error(err)
		}
	})
	return func(ctx context.Context, i int) error {
		leaf, err := audit.Encode(record(i))
		if err != nil {
			return err
		}
		_, err = appender.Add(ctx, tessera.NewEntry(leaf))()
		return err
	}
}

// ours is done once the record is synced and signed.
func ours(b *testing.B, key string) func(ctx context.Context, i int) error {
	b.Helper()
	signer, err := tlog.ParseKey(key)
	if err != nil {
		b.Fatal(err)
	}
	l, err := tlog.Open(tlog.Config{Dir: b.TempDir(), Key: signer, Boot: audit.Gateway{SPIFFE: "spiffe://example.org/gateway"}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := l.Close(); err != nil {
			b.Error(err)
		}
	})
	return func(ctx context.Context, i int) error {
		_, err := l.Append(ctx, record(i))
		return err
	}
}

// In turns on one disk.
func BenchmarkAgainstTessera(b *testing.B) {
	key, _, err := note.GenerateKey(rand.Reader, origin)
	if err != nil {
		b.Fatal(err)
	}
	a, t := ours(b, key), theirs(b, key)
	var ops, lat []float64
	for b.Loop() {
		for range 3 {
			oursRate, oursP50 := run(b, 6000, a)
			theirsRate, theirsP50 := run(b, 1500, t)
			ops, lat = append(ops, oursRate/theirsRate), append(lat, float64(oursP50)/float64(theirsP50))
			b.Logf("ours %.0f/s, median %v; theirs %.0f/s, median %v", oursRate, oursP50, theirsRate, theirsP50)
		}
	}
	slices.Sort(ops)
	slices.Sort(lat)
	b.ReportMetric(ops[len(ops)/2], "ops-ratio")
	b.ReportMetric(lat[len(lat)/2], "p50-ratio")
	if ops[len(ops)/2] < 5 || lat[len(lat)/2] > 0.2 {
		b.Error("the log is not five times as fast")
	}
}
