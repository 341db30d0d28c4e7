package relay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/routing/blockid"
	"github.com/sallyport-ai/sallyport/routing/kvevents"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

// prompts are distinct prompts of 16 domains, 25 blocks of 16 tokens each.
func prompts(n int) []kvevents.Event {
	r := rand.New(rand.NewPCG(1, 2))
	out := make([]kvevents.Event, n)
	for i := range out {
		out[i] = block16(fmt.Sprintf("ours/%d", r.IntN(16)), r, uint64(i+1), 0, 25)
	}
	return out
}

func bigMirror(n int) (*mirror, []kvevents.Event) {
	m := newMirror(mirrorConfig{blockSize: 16, resolve: ours})
	evs := prompts(n)
	for i := range evs {
		m.apply(batchOf(evs[i]))
	}
	m.flush()
	return m, evs
}

// BenchmarkMirrorChurn replaces the oldest of 4,000 prompts by one that is not
// held, with a flush for each ten.
func BenchmarkMirrorChurn(b *testing.B) {
	m, evs := bigMirror(4000)
	more := prompts(8000)[4000:]
	evs = append(evs, more...)
	for i := range more {
		m.apply(batchOf(gone16(uint64(i+1), seqDown(25)...))) // slots and maps at their final size
		m.apply(batchOf(evs[4000+i]))
		m.flush()
	}
	b.ReportAllocs()
	i, ops := 0, 0
	for b.Loop() {
		out, in := (4000+i)%8000, i%8000
		m.apply(batchOf(gone16(uint64(out+1), seqDown(25)...), evs[in]))
		if i%10 == 0 {
			m.flush()
		}
		i++
		ops += 50
	}
	b.ReportMetric(float64(ops)/b.Elapsed().Seconds(), "block-ops/s")
}

func seqDown(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = n - 1 - i
	}
	return out
}

// BenchmarkSnapshot100kBlocks is what a new subscriber costs: the copy under
// the lock, and ids and frames outside of it.
func BenchmarkSnapshot100kBlocks(b *testing.B) {
	m, _ := bigMirror(4000)
	r := rand.New(rand.NewPCG(3, 4))
	b.Run("locked", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if n := len(m.snapshot()); n != 100_000 {
				b.Fatal(n)
			}
		}
	})
	b.Run("ids", func(b *testing.B) {
		nodes := m.snapshot()
		b.ReportAllocs()
		var runs []*residencyv1.Stored
		for b.Loop() {
			w := watch{key: blockid.Key{byte(r.Uint32())}}
			runs = w.runs(0, nodes)
		}
		b.ReportMetric(float64(len(runs)), "runs")
	})
}

// BenchmarkWatchSnapshot100k is a whole Watch over mTLS until the snapshot has
// ended.
func BenchmarkWatchSnapshot100k(b *testing.B) {
	w, _ := watchWorld(b, false)
	w.relay.hub.update(0, func(s *stream) {
		s.m, _ = bigMirror(4000)
		s.m.cfg.resolve = w.relay.salts.resolve
	})
	for b.Loop() {
		ctx, cancel := context.WithCancel(b.Context())
		stream, blocks := w.watch(ctx), 0
		for whole := false; !whole; {
			f, err := stream.Recv()
			if err != nil {
				b.Fatal(err)
			}
			for _, run := range f.GetSnapshot().GetNodes() {
				blocks += len(run.GetIds())
			}
			whole = f.GetSnapshotEnd() != nil
		}
		cancel()
		if blocks != 100_000 {
			b.Fatal(blocks)
		}
	}
}

// BenchmarkForward is a request of about 8 KiB through mTLS, ticket, splice and
// back, without a log, against an engine that does nothing.
func BenchmarkForward(b *testing.B) {
	f := newFaulty(b)
	w := newWorld(b, withEngine(f))
	w.ready()
	f.set(func() { f.answer = func(http.ResponseWriter, *http.Request) {} })
	r := rand.New(rand.NewPCG(5, 6))
	b.ReportAllocs()
	for b.Loop() {
		body := fmt.Sprintf(`{"model":"small","messages":[{"role":"user","content":"%d %s"}]}`, r.Uint64(), strings.Repeat("lorem ipsum ", 680))
		if code, text := w.post(w.sign(w.ticketFor(body)), body); code != http.StatusOK {
			b.Fatal(code, text)
		}
	}
}
