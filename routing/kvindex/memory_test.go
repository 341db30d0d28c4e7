package kvindex

import (
	"runtime"
	"testing"
)

// bytesPerPair fills an index with conversations and returns the bytes for each
// block of each replica: as the index counts them, and as the heap grew.
func bytesPerPair(t testing.TB, replicas, perReplica int) (counted, heap float64) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	ix := newIndex(t, Config{ByteBudget: 8 << 30})
	pairs := 0
	conversations(t, ix, replicas, perReplica, 2048, func(_ int, path []uint64, from int) { pairs += len(path) - from })
	runtime.GC()
	runtime.ReadMemStats(&after)
	counted = float64(ix.Bytes()) / float64(pairs)
	heap = (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / float64(pairs)
	runtime.KeepAlive(ix)
	return counted, heap
}

func TestABlockOfAReplicaCostsAtMostFortyBytes(t *testing.T) {
	const most = 40
	counted, heap := bytesPerPair(t, 100, 5000)
	if counted > most || heap > most {
		t.Errorf("%.1f bytes counted, %.1f on the heap, want at most %d", counted, heap, most)
	}
	if heap > counted*1.1 {
		t.Errorf("%.1f bytes on the heap and only %.1f counted", heap, counted)
	}
}

// BenchmarkMemory is 100 replicas of 100,000 blocks.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		counted, heap := bytesPerPair(b, 100, 100_000)
		b.ReportMetric(counted, "bytes/pair")
		b.ReportMetric(heap, "heap-bytes/pair")
	}
}
