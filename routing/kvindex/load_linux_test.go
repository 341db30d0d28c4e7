package kvindex

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkMatchUnderLoad is a match against 1,000 replicas while 2M block
// operations a second are applied, most of them in the same namespace. Chains
// are distinct and, in all, many times the last-level cache. A prompt's ids are
// written just before, as a request's are. Samples during which the thread was
// preempted are left out, and those in which it slept because the writer that
// it waited for was.
func BenchmarkMatchUnderLoad(b *testing.B) {
	for _, blocks := range []int{2048, 8192} {
		b.Run(fmt.Sprintf("%d blocks", blocks), func(b *testing.B) {
			const replicas, perSecond = 1000, 2_000_000
			ix := newIndex(b, Config{ByteBudget: 8 << 30})
			prompts := conversations(b, ix, replicas, 20_000, blocks, nil)
			applied, stop := applier(b, ix, replicas, perSecond)
			defer stop()
			ids, dst := make([]uint64, blocks), make([]Match, 0, replicas)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var samples []time.Duration
			preempted, slept, i := 0, 0, 0
			began := time.Now()
			from := applied.Load()
			for b.Loop() {
				i++
				copy(ids, prompts[i%len(prompts)])
				forced, voluntary := switches(b)
				at := time.Now()
				dst = ix.Match(dst[:0], 1, ids)
				took := time.Since(at)
				switch f, v := switches(b); {
				case f != forced:
					preempted++
				case v != voluntary:
					slept++
				default:
					samples = append(samples, took)
				}
			}
			rate := float64(applied.Load()-from) / time.Since(began).Seconds()
			if len(dst) < replicas/2 {
				b.Fatalf("%d matches", len(dst))
			}
			slices.Sort(samples)
			at := func(p float64) float64 {
				if len(samples) == 0 {
					return 0
				}
				return float64(samples[int(p*float64(len(samples)-1))].Nanoseconds()) / 1000
			}
			b.ReportMetric(at(0.5), "p50-µs")
			b.ReportMetric(at(0.99), "p99-µs")
			b.ReportMetric(100*float64(preempted)/float64(i), "%preempted")
			b.ReportMetric(100*float64(slept)/float64(i), "%slept")
			b.ReportMetric(rate/1e6, "Mops/s")
			b.ReportMetric(float64(ix.Bytes())/(1<<20), "MiB")
		})
	}
}

// switches is how often the thread was preempted, and how often it slept.
func switches(b testing.TB) (forced, voluntary int64) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		b.Fatal(err)
	}
	return u.Nivcsw, u.Nvcsw
}

// applier stores and removes turns on 50 more replicas at a rate, three of four
// in namespace 1, until stopped; it counts what it has applied.
func applier(b testing.TB, ix *Index, from, perSecond int) (*atomic.Int64, func()) {
	const turn, slots, writers = 32, 200, 50
	var applied atomic.Int64
	streams := make([]*Stream, writers)
	for i := range streams {
		st, err := ix.Stream(from+i, 0)
		if err != nil {
			b.Fatal(err)
		}
		st.Commit()
		streams[i] = st
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		r := rand.New(rand.NewPCG(9, 10))
		ids, gone := make([]uint64, turn), make([]uint32, turn)
		began, ops := time.Now(), 0
		for i := 0; ; i++ {
			st := streams[i%writers]
			first := uint32(i/writers%slots)*turn + 1
			if i >= writers*slots {
				for k := range gone {
					gone[k] = first + turn - 1 - uint32(k)
				}
				if err := st.Remove(gone, 0); err != nil {
					b.Error(err)
					return
				}
				ops += turn
			}
			for k := range ids {
				ids[k] = r.Uint64()
			}
			ns := uint64(1)
			if i%writers%4 == 3 {
				ns = uint64(2 + i%writers)
			}
			if err := st.Store(ns, 0, first, ids, 0); err != nil {
				b.Error(err)
				return
			}
			ops += turn
			applied.Store(int64(ops))
			select {
			case <-done:
				return
			default:
			}
			ahead := time.Duration(ops)*time.Second/time.Duration(perSecond) - time.Since(began)
			if ahead > time.Millisecond {
				time.Sleep(ahead)
			}
		}
	}()
	return &applied, func() {
		close(done)
		<-ended
	}
}
