package kvindex

import (
	"testing"

	"pgregory.net/rapid"
)

func TestChildrenAreAMapThroughGrowthAndRemoval(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type key struct {
			kids uint32
			id   uint64
		}
		var m meter
		c := children{seed: [2]uint64{rapid.Uint64().Draw(t, "seed"), 3}}
		want := make(map[key]uint32)
		var keys []key
		for node := uint32(1); node < 700; node++ {
			k := key{rapid.Uint32Range(1, 4).Draw(t, "kids"), rapid.Uint64Range(0, 400).Draw(t, "id")}
			if _, there := want[k]; there {
				if c.remove(k.kids, k.id); c.find(k.kids, k.id) != 0 {
					t.Fatalf("%v is there after its removal", k)
				}
				delete(want, k)
				continue
			}
			c.add(&m, k.kids, k.id, node)
			want[k] = node
			keys = append(keys, k)
		}
		for _, k := range keys {
			if got := c.find(k.kids, k.id); got != want[k] {
				t.Fatalf("%v is %d, want %d", k, got, want[k])
			}
		}
		if c.n != len(want) || m.bytes.Load() != int64(len(c.slots)+len(c.old))*childSlotBytes {
			t.Fatalf("%d entries of %d in %d bytes", c.n, len(want), m.bytes.Load())
		}
		if c.drop(&m); m.bytes.Load() != 0 {
			t.Fatalf("%d bytes are left", m.bytes.Load())
		}
	})
}
