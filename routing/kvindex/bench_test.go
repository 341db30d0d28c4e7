package kvindex

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
)

// conversations fills an index as traffic does: a few system prompts that all
// replicas hold, and below them conversations of many turns, each held by one
// or two replicas, told turn by turn and with holes where blocks were evicted.
// It returns the longest prompts, of blocks blocks. hold, if not nil, is told of
// each path of which a replica holds what is from the given block on.
func conversations(b testing.TB, ix *Index, replicas, perReplica, blocks int, hold func(replica int, path []uint64, from int)) [][]uint64 {
	if hold == nil {
		hold = func(int, []uint64, int) {}
	}
	r := rand.New(rand.NewPCG(5, 6))
	systems := make([][]uint64, 8)
	for i := range systems {
		systems[i] = make([]uint64, 40+r.IntN(60))
		for k := range systems[i] {
			systems[i][k] = r.Uint64()
		}
	}
	streams := make([]*Stream, replicas)
	next := make([]uint32, replicas)
	for i := range streams {
		st, err := ix.Stream(i, 0)
		if err != nil {
			b.Fatal(err)
		}
		st.Begin()
		st.Commit()
		streams[i], next[i] = st, 1
	}
	b.Cleanup(func() { runtime.KeepAlive(streams) }) // whose tables are a part of what the index costs
	ends := make([][]uint32, replicas)               // node of the end of each system prompt
	for i, st := range streams {
		for _, s := range systems {
			if err := st.Store(1, 0, next[i], s, 0); err != nil {
				b.Fatal(err)
			}
			hold(i, s, 0)
			next[i] += uint32(len(s))
			ends[i] = append(ends[i], next[i]-1)
		}
	}
	var prompts [][]uint64
	for i := range replicas {
		for left := perReplica; left > 0; {
			k := r.IntN(len(systems))
			want := blocks - len(systems[k])
			if r.IntN(4) > 0 {
				want = 1 + r.IntN(want)
			}
			ids := make([]uint64, want)
			for j := range ids {
				ids[j] = r.Uint64()
			}
			prompt := append(append([]uint64{}, systems[k]...), ids...)
			holders := []int{i, r.IntN(replicas)}[:1+r.IntN(2)]
			if len(holders) == 2 && holders[1] == i {
				holders = holders[:1]
			}
			for _, h := range holders {
				hold(h, prompt, len(systems[k]))
				parent := ends[h][k]
				for at := 0; at < len(ids); {
					turn := min(1+r.IntN(40), len(ids)-at)
					if err := streams[h].Store(1, parent, next[h], ids[at:at+turn], 0); err != nil {
						b.Fatal(err)
					}
					next[h] += uint32(turn)
					parent = next[h] - 1
					at += turn
				}
			}
			if len(prompt) == blocks {
				prompts = append(prompts, prompt)
			}
			left -= len(ids)
		}
	}
	return prompts
}

func BenchmarkMatch(b *testing.B) {
	for _, replicas := range []int{100, 1000} {
		b.Run(fmt.Sprintf("2048 blocks, %d replicas", replicas), func(b *testing.B) {
			ix := newIndex(b, Config{ByteBudget: 4 << 30})
			prompts := conversations(b, ix, replicas, 2_000_000/replicas, 2048, nil)
			pairs := 0
			for _, s := range ix.shards {
				for _, c := range s.children.slots {
					if c.node != 0 {
						x := s.nodes.at(c.node)
						pairs += int(x.n) * int(x.gpu.n)
					}
				}
			}
			dst := make([]Match, 0, replicas)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				dst = ix.Match(dst[:0], 1, prompts[i%len(prompts)])
			}
			if len(dst) < replicas/2 {
				b.Fatalf("%d matches", len(dst))
			}
			b.ReportMetric(float64(ix.Bytes())/float64(pairs), "bytes/pair")
			b.ReportMetric(float64(len(prompts)), "prompts")
		})
	}
}

// BenchmarkApply stores conversations turn by turn and removes old blocks.
func BenchmarkApply(b *testing.B) {
	ix := newIndex(b, Config{})
	st, err := ix.Stream(0, 0)
	if err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(7, 8))
	const slots, turn = 10_000, 20
	ids := make([]uint64, turn)
	gone := make([]uint32, turn)
	b.ReportAllocs()
	i, ops := 0, 0
	for b.Loop() {
		slot := uint32(i%slots)*turn + 1
		if i >= slots {
			for k := range gone {
				gone[k] = slot + turn - 1 - uint32(k)
			}
			if err := st.Remove(gone, 0); err != nil {
				b.Fatal(err)
			}
			ops += turn
		}
		for k := range ids {
			ids[k] = r.Uint64()
		}
		if err := st.Store(1, 0, slot, ids, 0); err != nil {
			b.Fatal(err)
		}
		ops += turn
		i++
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(ops), "ns/block")
}
