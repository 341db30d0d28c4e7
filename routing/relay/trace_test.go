package relay

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/routing/blockid"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
	"github.com/sallyport-ai/sallyport/routing/sim"
)

func TestDivergeTellsWhereAPromptPartsFromWhatItMadeTheEngineStore(t *testing.T) {
	w, model, _, _ := simWorld(t, func(s *sim.Config, _ *Config) { s.Blocks = 96 })
	_, _, _ = w.believe() // its key is {7}
	client := w.residency(w.gateway)
	key := blockid.Key{7}
	ask := func(id string, tokens []uint32) *residencyv1.DivergeResponse {
		r, err := client.Diverge(t.Context(), &residencyv1.DivergeRequest{TicketId: id, Ids: blockid.Append(nil, &key, tokens, 16)})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	send := func(body string) (id string) {
		tk := w.ticketFor(body)
		if code, text := w.post(w.sign(tk), body); code != http.StatusOK {
			t.Fatalf("%d %s", code, text)
		}
		return tk.ID
	}
	body := longBody("traced")
	p, err := model.Chat(t.Context(), []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	blocks := uint32(len(p.IDs) / 16)
	first := send(body)
	// The whole path is known as soon as the mirror has it, any other when it is
	// told to subscribers.
	eventually(t, "another path", func() bool { return ask(first, []uint32{15: 1}).GetKnown() })
	if r := ask(first, p.IDs); !r.GetKnown() || r.GetIndex() != blocks {
		t.Errorf("the whole path: %v, want %d", r, blocks)
	}
	for _, at := range []uint32{0, 3, blocks - 1} {
		wrong := slices.Clone(p.IDs)
		wrong[at*16+5]++
		if r := ask(first, wrong); !r.GetKnown() || r.GetIndex() != at {
			t.Errorf("differing in block %d: %v", at, r)
		}
	}
	if r := ask("no such ticket", p.IDs); r.GetKnown() {
		t.Errorf("of an unknown ticket: %v", r)
	}
	// Others push it out of the engine's cache; what it made the engine store is
	// not forgotten with that.
	for i := range 8 {
		send(longBody(fmt.Sprintf("other %d", i)))
	}
	if r := ask(first, p.IDs); !r.GetKnown() || r.GetIndex() != blocks {
		t.Errorf("after its eviction: %v, want %d", r, blocks)
	}
	if r, err := w.residency(w.stranger).Diverge(t.Context(), &residencyv1.DivergeRequest{TicketId: first, Ids: []uint64{1}}); err == nil && r.GetKnown() {
		t.Errorf("a stranger was told %v", r)
	}
}

func TestTracesAreBounded(t *testing.T) {
	var h traces
	m := newMirror(mirrorConfig{blockSize: 16})
	sp := &space{domain: "d", reported: true}
	for i := range 10_000 {
		if i%100 == 0 {
			sp = &space{domain: fmt.Sprint(i), reported: true}
		}
		n := stored{node: uint32(i + 1), space: sp, tokens: []uint32{uint32(i)}}
		h.note(0, []stored{n}, m, time.Unix(int64(i), 0))
	}
	one := traced{tokens: []uint32{1}}
	if n := len(h.order); n > 200*tracesEach || h.bytes != 100*tracesEach*one.size() {
		t.Errorf("%d paths of %d bytes", n, h.bytes)
	}
	// Whatever blocks hold, of whatever size the engine makes them.
	path := func(rank, blocks, tokens, extra int) *trace {
		out := &trace{key: traceKey{rank: rank}}
		for range blocks {
			out.blocks = append(out.blocks, traced{make([]uint32, tokens), make([]byte, extra)})
		}
		return out
	}
	for rank, p := range []*trace{path(1, 2000, 1024, 0), path(2, 2000, 16, 4096), path(3, 2000, 1024, 4096)} {
		h.add(p)
		if h.bytes > tracedBytes || h.bytes < sizeOf(p.blocks) || h.by[p.key] == nil {
			t.Errorf("rank %d: %d bytes are remembered, at most %d, and %d of the last path", rank+1, h.bytes, tracedBytes, sizeOf(p.blocks))
		}
	}
	h.add(path(4, 1000, 0, 64<<10)) // more than there is room for
	if h.bytes != 0 || len(h.order) != 0 || len(h.by) != 0 {
		t.Errorf("%d bytes, %d paths in %d namespaces", h.bytes, len(h.order), len(h.by))
	}
}
