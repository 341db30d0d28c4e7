package fleet

import (
	"context"
	"fmt"
	"testing"
	"time"

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
