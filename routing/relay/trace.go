package relay

import (
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/sallyport-ai/sallyport/routing/blockid"
)

const (
	// tracedBytes bounds what is remembered in all, as if the mirror had forgotten
	// every block of it: some 100,000 blocks of 64 tokens.
	tracedBytes = 32 << 20
	// tracesEach bounds the paths of one namespace, and traceLength the blocks of
	// one path: what comes after tells nothing of how a prompt begins.
	tracesEach  = 64
	traceLength = 2048
)

// traces remembers the block paths that the engine stored last, by namespace:
// long enough to answer a gateway that asks where its own block ids part from
// what its ticket made the engine store. Engines do not say for which request
// they store a block, so a path is told to every ticket of its namespace that
// was being served meanwhile. The zero value is ready.
type traces struct {
	mu    sync.Mutex
	by    map[traceKey][]*trace
	order []*trace // oldest first, some of them forgotten
	bytes int
}

type traceKey struct {
	ns   namespace
	rank int
}

// trace is one path from a prompt's beginning.
type trace struct {
	key    traceKey
	leaf   uint32    // mirror's node of the last block; 0: it can grow no more
	blocks []traced  // nil: forgotten
	at     time.Time // of the last block
}

// traced is a block. Its slices belong to the mirror and are never written.
type traced struct {
	tokens []uint32
	extra  []byte
}

// size is what the block takes, in bytes.
func (b *traced) size() int { return int(unsafe.Sizeof(*b)) + 4*len(b.tokens) + len(b.extra) }

func sizeOf(blocks []traced) (n int) {
	for i := range blocks {
		n += blocks[i].size()
	}
	return n
}

// note takes what was stored in one flush of a mirror, parents first.
func (h *traces) note(rank int, nodes []stored, m *mirror, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range nodes {
		n := &nodes[i]
		if n.tier != 0 {
			continue
		}
		key := traceKey{n.space.namespace(), rank}
		if t := h.grown(key, n, m); t != nil {
			t.at = now
			continue
		}
		if blocks := pathOf(n, m); len(blocks) > 0 {
			h.add(&trace{key: key, leaf: n.node, blocks: blocks, at: now})
		}
	}
}

// grown is the path that n goes on, if there is one.
func (h *traces) grown(key traceKey, n *stored, m *mirror) *trace {
	for _, t := range h.by[key] {
		if t.leaf == 0 || t.leaf != n.parent || !sameBlock(t.blocks[len(t.blocks)-1], m.nodes[n.parent].tokens) {
			continue // node numbers are used again
		}
		t.leaf = n.node
		if len(t.blocks) >= traceLength {
			t.leaf = 0
			return t
		}
		t.blocks = append(t.blocks, traced{n.tokens, n.extra})
		h.bytes += t.blocks[len(t.blocks)-1].size()
		h.shrink()
		return t
	}
	return nil
}

// sameBlock reports whether a block is the very one of the mirror's.
func sameBlock(b traced, tokens []uint32) bool {
	return len(tokens) > 0 && len(b.tokens) > 0 && &b.tokens[0] == &tokens[0]
}

// pathOf is the blocks from the prompt's beginning to n, as far as is
// remembered of one path.
func pathOf(n *stored, m *mirror) []traced {
	depth := 1
	for p := n.parent; p != 0; p = m.nodes[p].parent {
		depth++
	}
	out := make([]traced, min(depth, traceLength))
	put := func(at int, b traced) {
		if at < len(out) {
			out[at] = b
		}
	}
	put(depth-1, traced{n.tokens, n.extra})
	for p, at := n.parent, depth-2; p != 0; p, at = m.nodes[p].parent, at-1 {
		put(at, traced{m.nodes[p].tokens, m.nodes[p].extra})
	}
	return out
}

// add remembers a path, and forgets the oldest ones that there is no room for.
func (h *traces) add(t *trace) {
	if h.by == nil {
		h.by = make(map[traceKey][]*trace)
	}
	if old := h.by[t.key]; len(old) >= tracesEach {
		h.forget(old[0])
	}
	h.by[t.key] = append(h.by[t.key], t)
	h.order = append(h.order, t)
	h.bytes += sizeOf(t.blocks)
	if len(h.order) > 2*len(h.by)*tracesEach {
		h.order = slices.DeleteFunc(h.order, func(o *trace) bool { return o.blocks == nil })
	}
	h.shrink()
}

func (h *traces) shrink() {
	for len(h.order) > 0 && (h.bytes > tracedBytes || h.order[0].blocks == nil) {
		h.forget(h.order[0])
		h.order = h.order[1:]
	}
}

// forget drops a path, but for its place in the order, which is found again when
// its turn comes.
func (h *traces) forget(t *trace) {
	if t.blocks == nil {
		return
	}
	h.bytes -= sizeOf(t.blocks)
	t.blocks, t.leaf = nil, 0
	list := h.by[t.key] // oldest first, at most tracesEach
	for i := range list {
		if list[i] == t {
			h.by[t.key] = append(list[:i], list[i+1:]...)
			break
		}
	}
	if len(h.by[t.key]) == 0 {
		delete(h.by, t.key)
	}
}

// follow returns how far ids, in the caller's key, follow any of the paths of a
// namespace, and whether any of them was stored since.
func (h *traces) follow(key traceKey, block *blockid.Key, ids []uint64, since time.Time) (depth int, seen bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.by[key] {
		seen = seen || !t.at.Before(since)
		at := 0
		for at < len(ids) && at < len(t.blocks) && blockid.Tokens(block, t.blocks[at].tokens, t.blocks[at].extra) == ids[at] {
			at++
		}
		depth = max(depth, at)
	}
	return depth, seen
}
