package kvindex

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// A relay is authenticated, and may still be broken or lie. Whatever two
// publishers say, in or out of the protocol, the forest stays a forest, nothing
// is left once both are gone, and who keeps to the protocol loses nothing.
func TestNoPublisherCanBreakTheIndex(t *testing.T) { rapid.Check(t, anyPublisher) }

func FuzzNoPublisherCanBreakTheIndex(f *testing.F) { f.Fuzz(rapid.MakeFuzz(anyPublisher)) }

func anyPublisher(rt *rapid.T) {
	ix := newIndex(rt, Config{Replicas: 100})
	honest := newPublisher(rt, ix, 7, 0)
	long := chain(0, 100)
	honest.store(rt, 7, 0, long, 0, 1000)
	liars := make([]*Stream, 2)
	for i := range liars {
		var err error
		if liars[i], err = ix.Stream(64+i, 50); err != nil {
			rt.Fatal(err)
		}
		liars[i].Commit()
	}
	who, node, parent := rapid.IntRange(0, 1), rapid.Uint32Range(0, 12), rapid.SampledFrom([]uint32{0, 0, 0, 1, 2, 3, 4, 5, 6})
	ns := rapid.SampledFrom([]uint64{7, 7 + shards, 8})
	ids, tier := rapid.SliceOfN(rapid.Uint64Range(0, 2), 0, 6), rapid.SampledFrom([]int{0, 0, 0, 0, 1, 2, -1, MaxTiers})
	rt.Repeat(map[string]func(*rapid.T){
		"store": func(rt *rapid.T) {
			// A refusal is one of the answers that are right.
			_ = liars[who.Draw(rt, "liar")].Store(ns.Draw(rt, "ns"), parent.Draw(rt, "parent"), node.Draw(rt, "first"), ids.Draw(rt, "ids"), tier.Draw(rt, "tier"))
		},
		"store along the honest one": func(rt *rapid.T) {
			from := rapid.IntRange(0, 99).Draw(rt, "from")
			_ = liars[who.Draw(rt, "liar")].Store(7, parent.Draw(rt, "parent"), node.Draw(rt, "first"), long[from:rapid.IntRange(from, 100).Draw(rt, "to")], 0)
		},
		"remove": func(rt *rapid.T) {
			_ = liars[who.Draw(rt, "liar")].Remove(rapid.SliceOfN(node, 0, 8).Draw(rt, "nodes"), tier.Draw(rt, "tier"))
		},
		"begin anew": func(rt *rapid.T) {
			st := liars[who.Draw(rt, "liar")]
			switch rapid.IntRange(0, 15).Draw(rt, "how") {
			case 0:
				st.Clear()
			case 1:
				st.Begin()
			case 2:
				st.Suspend()
			case 3:
				st.Commit()
			}
		},
		"": func(rt *rapid.T) {
			if err := check(ix); err != nil {
				rt.Fatal(err)
			}
			for _, st := range liars {
				if err := checkEntries(st); err != nil {
					rt.Fatal(err)
				}
			}
			if got := depths(ix.Match(nil, 7, long))[7]; got != len(long) {
				rt.Fatalf("the honest one holds %d blocks and gets %d", len(long), got)
			}
		},
	})
	honest.st.Close()
	for _, st := range liars {
		st.Close()
	}
	if got := ix.Bytes(); got != 0 {
		rt.Fatalf("%d bytes left after everything closed", got)
	}
}

// checkEntries verifies that whatever a stream has on a tier, the forest has
// as held by it.
func checkEntries(st *Stream) error {
	for n := range uint32(pageEntries) { // the liars use small numbers
		e := st.entry(n)
		if e == nil || e.tiers == 0 {
			continue
		}
		s := st.index.shard(st.spaces[e.ns].ns)
		if int(e.node) >= len(s.nodes.slabs)*slabItems {
			return fmt.Errorf("entry %d is in memory that was given back", n)
		}
		i, off := s.resolve(e.node, e.off)
		x := s.nodes.at(i)
		if off >= x.n || (s.mask(&x.gpu, st.replica, x.n)|s.mask(&x.low, st.replica, x.n))>>off&1 == 0 {
			return fmt.Errorf("entry %d is on tiers %b and its block is not held", n, e.tiers)
		}
	}
	return nil
}
