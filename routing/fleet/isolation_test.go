package fleet

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/blockid"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

// tell feeds a replica's session with turns of a domain's content and removals.
// A block has one number, whatever becomes of it: that of its place in the list
// of the domain's prompts.
func tell(t *testing.T, f *Fleet, i int, domain string, r *rand.Rand, prompts [][]uint32, node uint32) {
	s := &session{f: f, r: f.replicas[i], id: f.replicas[i].id}
	frame := func(fr *residencyv1.Frame) {
		fr.Epoch = "e"
		if err := s.frame(fr); err != nil {
			t.Fatal(err)
		}
	}
	k := r.IntN(len(prompts))
	ids := blockid.Append(nil, &f.key, prompts[k], 16)
	first := node + uint32(k*len(ids))
	ids = ids[:1+r.IntN(len(ids))]
	ns := blockid.Namespace(&f.key, "small", "", domain)
	frame(&residencyv1.Frame{Body: &residencyv1.Frame_Stored{Stored: &residencyv1.Stored{Ns: ns, Node: first, Ids: ids}}})
	if r.IntN(3) == 0 {
		gone := first + uint32(r.IntN(len(ids)))
		frame(&residencyv1.Frame{Body: &residencyv1.Frame_Removed{Removed: &residencyv1.Removed{Nodes: []uint32{gone}}}})
	}
}

// TestNoTenantsContentMovesAnothersScore holds the load still and lets tenant A
// and replica 0 do as they like, with the very prompts of tenant B: to B, and
// at every other replica, everything that a placement looks at stays the same,
// byte for byte.
func TestNoTenantsContentMovesAnothersScore(t *testing.T) {
	const replicas = 3
	prompts := [][]uint32{prompt(1, 480), prompt(2, 480), prompt(3, 480)}
	f := watched(t, replicas, prompts) // holds them for acme
	seen := func(domain string, tokens []uint32) []routing.Candidate {
		for _, x := range f.replicas {
			x.heard.Store(time.Now().UnixNano()) // nobody sends heartbeats here
		}
		r := ask(tokens)
		r.Domain = domain
		_, s := f.Snapshot(r)
		out := slices.Clone(s.Candidates)
		for i := range out {
			out[i].ID = "" // compared by place
		}
		return out
	}
	r := rand.New(rand.NewPCG(1, 2))
	before := map[int][]routing.Candidate{}
	for k := range prompts {
		before[k] = seen("acme", prompts[k])
	}
	for range 300 {
		i := r.IntN(replicas)
		tell(t, f, i, "globex", r, prompts, 1000)
		k := r.IntN(len(prompts))
		if got := seen("acme", prompts[k]); !slices.Equal(got, before[k]) {
			t.Fatalf("another tenant's content moved a score:\n%+v\n%+v", before[k], got)
		}
	}
	moved := false
	for range 300 {
		tell(t, f, 0, "acme", r, prompts, 1)
		k := r.IntN(len(prompts))
		got := seen("acme", prompts[k])
		if !slices.Equal(got[1:], before[k][1:]) {
			t.Fatalf("replica 0's events moved another's score:\n%+v\n%+v", before[k], got)
		}
		moved = moved || got[0] != before[k][0]
	}
	if !moved {
		t.Error("test shows nothing: nothing moved")
	}
}
