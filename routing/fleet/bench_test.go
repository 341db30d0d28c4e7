package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/blockid"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

// watched is a fleet of n replicas whose sessions are fed by hand, each holding
// its own prompts and one that all share.
func watched(b testing.TB, n int, prompts [][]uint32) *Fleet {
	var c Config
	for i := range n {
		c.Targets = append(c.Targets, Target{Address: fmt.Sprint("a", i), ID: fmt.Sprint(base, i), Pool: "general"})
	}
	c.TLS, c.PeerID, c.BlockKey = newAuthority(b).config(b).TLS, peerID, blockid.Key{1}
	f, err := New(c)
	if err != nil {
		b.Fatal(err)
	}
	ns := blockid.Namespace(&f.key, "small", "", "acme")
	for i, r := range f.replicas {
		s := &session{f: f, r: r, id: r.id}
		feed := func(frame *residencyv1.Frame) {
			frame.Epoch = "e"
			if err := s.frame(frame); err != nil {
				b.Fatal(err)
			}
		}
		feed(&residencyv1.Frame{Body: &residencyv1.Frame_Hello{Hello: &residencyv1.Hello{
			Replica: r.id, Pool: "general", Models: []string{"small"}, BlockSize: 16, NumBlocks: 100_000, Ranks: 1,
			RoutesIsolated: []string{chat}, SaltVisible: true,
		}}})
		feed(&residencyv1.Frame{Body: &residencyv1.Frame_State{State: &residencyv1.State{State: residencyv1.State_LIVE}}})
		node := uint32(1)
		for k := i % len(prompts); k < len(prompts); k += max(n, 1) {
			ids := blockid.Append(nil, &f.key, prompts[k], 16)
			feed(&residencyv1.Frame{Body: &residencyv1.Frame_Snapshot{Snapshot: &residencyv1.Snapshot{Nodes: []*residencyv1.Stored{{Ns: ns, Node: node, Ids: ids}}}}})
			node += uint32(len(ids))
		}
		feed(&residencyv1.Frame{Body: &residencyv1.Frame_SnapshotEnd{SnapshotEnd: &residencyv1.SnapshotEnd{}}})
	}
	return f
}

// BenchmarkReserve is a request from its tokens to the end of its reservation.
func BenchmarkReserve(b *testing.B) {
	for _, n := range []int{8, 100, 1000} {
		for _, tokens := range []int{500, 8000} {
			b.Run(fmt.Sprintf("%d replicas, %d tokens", n, tokens), func(b *testing.B) {
				prompts := make([][]uint32, 256)
				for i := range prompts {
					prompts[i] = prompt(uint64(i), tokens)
				}
				f := watched(b, n, prompts)
				cached := tokens - 1
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					i++
					if i%1000 == 0 { // nobody sends heartbeats here
						for _, r := range f.replicas {
							r.heard.Store(time.Now().UnixNano())
						}
					}
					r := ask(prompts[i%len(prompts)])
					r.Seed = uint64(i)
					res, err := f.Reserve(context.Background(), r)
					if err != nil {
						b.Fatal(err)
					}
					if res.Placement.Basis != routing.KVEvents {
						b.Fatalf("basis %s", res.Placement.Basis)
					}
					res.FirstToken(time.Now())
					res.Finish(Result{CachedTokens: &cached})
				}
			})
		}
	}
}

// BenchmarkReserveTogether is the same for as many requests at once as there are
// processors, over a thousand replicas: what they do one after the other shows in how
// it grows with -cpu.
func BenchmarkReserveTogether(b *testing.B) {
	const replicas = 1000
	prompts := make([][]uint32, 256)
	for i := range prompts {
		prompts[i] = prompt(uint64(i), 500)
	}
	f := watched(b, replicas, prompts)
	stop := make(chan struct{})
	var hearts sync.WaitGroup
	hearts.Go(func() {
		for tick := time.NewTicker(time.Second); ; {
			for _, r := range f.replicas {
				r.heard.Store(time.Now().UnixNano())
			}
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	})
	defer func() { close(stop); hearts.Wait() }()
	var next atomic.Uint64
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		cached := 499
		for pb.Next() {
			i := next.Add(1)
			r := ask(prompts[i%uint64(len(prompts))])
			r.Seed = i
			res, err := f.Reserve(b.Context(), r)
			if err != nil {
				b.Error(err)
				return
			}
			res.FirstToken(time.Now())
			res.Finish(Result{CachedTokens: &cached})
		}
	})
}

// framer makes the frames of one replica's Watch: turns of 67 blocks that come
// and, once many are held, go.
type framer struct {
	r    *rand.Rand
	ns   uint64
	turn int
}

const turnBlocks = 67

func (g *framer) next() *residencyv1.Frame {
	const slots = 64
	first := uint32(g.turn/2%slots)*turnBlocks + 1
	defer func() { g.turn++ }()
	if g.turn%2 == 0 { // what has been in the slot leaves it
		nodes := make([]uint32, turnBlocks)
		for i := range nodes {
			nodes[i] = first + turnBlocks - 1 - uint32(i)
		}
		return &residencyv1.Frame{Body: &residencyv1.Frame_Removed{Removed: &residencyv1.Removed{Nodes: nodes}}}
	}
	ids := make([]uint64, turnBlocks)
	for i := range ids {
		ids[i] = g.r.Uint64()
	}
	return &residencyv1.Frame{Body: &residencyv1.Frame_Stored{Stored: &residencyv1.Stored{Ns: g.ns, Node: first, Ids: ids}}}
}

// BenchmarkApplyFrames is what the Watches of 1,000 replicas cost once their
// frames have been read: to decode them and to apply them to the index.
func BenchmarkApplyFrames(b *testing.B) {
	const replicas = 1000
	f := watched(b, replicas, [][]uint32{prompt(1, 500)})
	sessions, framers := make([]*session, replicas), make([]*framer, replicas)
	for i, r := range f.replicas {
		sessions[i] = &session{f: f, r: r, id: r.id}
		framers[i] = &framer{rand.New(rand.NewPCG(uint64(i), 3)), uint64(i % 20), 0}
	}
	encoded := make([][]byte, 128*replicas)
	for i := range encoded {
		var err error
		if encoded[i], err = proto.Marshal(framers[i%replicas].next()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		var frame residencyv1.Frame
		if err := proto.Unmarshal(encoded[i%len(encoded)], &frame); err != nil {
			b.Fatal(err)
		}
		if err := sessions[i%replicas].frame(&frame); err != nil {
			b.Fatal(err)
		}
		i++
	}
	b.ReportMetric(float64(i)/b.Elapsed().Seconds(), "frames/s")
	b.ReportMetric(turnBlocks*float64(i)/b.Elapsed().Seconds(), "block-ops/s")
}

// BenchmarkWatchFrames is the same from the wire: gRPC over mTLS, from 20
// relays whose own work is in the time.
func BenchmarkWatchFrames(b *testing.B) {
	const n = 20
	a := newAuthority(b)
	relays, targets := make([]*relay, n), make([]Target, n)
	for i := range relays {
		relays[i] = a.relay(b, fmt.Sprint(base, i), "general", "127.0.0.1:0")
		targets[i] = relays[i].target("general")
	}
	f := start(b, a.config(b, targets...))
	up(b, f, n)
	framers := make([]*framer, n)
	for i := range framers {
		framers[i] = &framer{rand.New(rand.NewPCG(uint64(i), 3)), uint64(i), 0}
	}
	i := 0
	for b.Loop() {
		relays[i%n].say(framers[i%n].next)
		i++
	}
	for k, r := range relays {
		done := f.status(k).LagMS + 1
		r.say(func() *residencyv1.Frame {
			return &residencyv1.Frame{Body: &residencyv1.Frame_Heartbeat{Heartbeat: &residencyv1.Heartbeat{EventLagUs: done * 1000}}}
		})
		until(b, "everything is applied", func() bool { return f.status(k).LagMS == done || f.status(k).LagMS == 7 })
	}
	b.ReportMetric(float64(i)/b.Elapsed().Seconds(), "frames/s")
	b.ReportMetric(turnBlocks*float64(i)/b.Elapsed().Seconds(), "block-ops/s")
}
