package kvevents

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// variedBatch is a busy engine's step: runs of different lengths, some of them
// roots with a salt, with adapters and media, and removals between.
func variedBatch(rng *rand.Rand, blocks, blockSize int) *Batch {
	b := &Batch{TS: 1.7e9 + rng.Float64(), Rank: rng.IntN(8)}
	for blocks > 0 {
		n := min(blocks, 1+rng.IntN(40))
		blocks -= n
		ev := newEvent()
		ev.Hashes, ev.Medium = make([]Hash, n), "GPU"
		for i := range ev.Hashes {
			ev.Hashes[i] = IntHash(rng.Uint64())
		}
		ev.Type = Removed
		if rng.IntN(3) > 0 {
			ev.Type, ev.BlockSize, ev.Group = Stored, blockSize, 0
			ev.Tokens = make([]uint32, n*blockSize)
			for i := range ev.Tokens {
				ev.Tokens[i] = uint32(rng.IntN(152_000))
			}
			switch rng.IntN(4) {
			case 0:
				ev.Salt = fmt.Sprintf("tenant-%d-0123456789abcdef0123456789abcdef", rng.IntN(50))
			case 1:
				ev.Adapter, ev.Parent = fmt.Sprintf("adapter-%d", rng.IntN(20)), IntHash(rng.Uint64())
			default:
				ev.Parent = IntHash(rng.Uint64())
			}
		}
		b.Events = append(b.Events, ev)
	}
	return b
}

func BenchmarkDecode(b *testing.B) {
	for _, form := range []Form{FormArray, FormMap} {
		for _, blockSize := range []int{16, 64} {
			name := map[Form]string{FormArray: "array", FormMap: "map"}[form]
			b.Run(fmt.Sprintf("%s/block=%d", name, blockSize), func(b *testing.B) {
				const blocks, variants = 512, 64
				rng := rand.New(rand.NewPCG(1, uint64(blockSize)))
				var payloads [][]byte
				size := 0
				for range variants {
					p := AppendBatch(nil, variedBatch(rng, blocks, blockSize), form)
					payloads, size = append(payloads, p), size+len(p)
				}
				var d Decoder
				b.SetBytes(int64(size / variants))
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					if _, err := d.Decode(payloads[i%variants]); err != nil {
						b.Fatal(err)
					}
					i++
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*blocks), "ns/block")
			})
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	const blocks, variants = 512, 64
	rng := rand.New(rand.NewPCG(2, 3))
	var batches []*Batch
	for range variants {
		batches = append(batches, variedBatch(rng, blocks, 16))
	}
	var buf []byte
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		buf = AppendBatch(buf[:0], batches[i%variants], FormMap)
		i++
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*blocks), "ns/block")
}

// BenchmarkFollow is the whole way from publisher to events, over a socket.
func BenchmarkFollow(b *testing.B) {
	const blocks, variants = 64, 64
	rng := rand.New(rand.NewPCG(4, 5))
	var payloads [][]byte
	for range variants {
		payloads = append(payloads, AppendBatch(nil, variedBatch(rng, blocks, 16), FormMap))
	}
	p, err := NewPublisher(PublisherConfig{Listen: "ipc://" + b.TempDir() + "/events"})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	c, err := Dial(b.Context(), p.Addr(), SUB, Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	if err := c.Subscribe(""); err != nil {
		b.Fatal(err)
	}
	waitSubscriptions(b, p, 1)
	var d Decoder
	b.ReportAllocs()
	seq := uint64(0)
	for b.Loop() {
		if err := p.Publish("kv", seq, payloads[seq%variants]); err != nil {
			b.Fatal(err)
		}
		parts, err := c.Recv()
		if err != nil {
			b.Fatal(err)
		}
		m, err := ParseMessage(parts)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := d.Decode(m.Payload); err != nil {
			b.Fatal(err)
		}
		seq++
	}
}
