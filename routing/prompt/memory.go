package prompt

import (
	"context"
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	"github.com/sallyport-ai/sallyport/routing/blockid"
)

// Memory makes prompts of a model and remembers the token ids and the block ids
// of their parts, so that a conversation costs what is new in it.
//
// A prompt is cut at special tokens, where what stands on one side has no
// bearing on the ids of the other. A part is known by its text, compared in
// full; the block ids of a part are known by the path of parts before it.
//
// What one cache domain sends is remembered for that domain alone and in its
// own share of memory: how long a prompt takes tells nothing about others'.
type Memory struct {
	model *Model
	cfg   MemoryConfig

	mu      sync.Mutex
	domains map[string]*domain // guarded by mu
	clock   uint64             // guarded by mu; counts uses of domains
}

// MemoryConfig bounds a Memory.
type MemoryConfig struct {
	Bytes   int // of each domain; 32 MiB if 0
	Domains int // the least recently used is forgotten; 64 if 0
}

// NewMemory is an empty memory for the model's prompts, for use by many
// goroutines.
func NewMemory(m *Model, c MemoryConfig) *Memory {
	if c.Bytes <= 0 {
		c.Bytes = 32 << 20
	}
	if c.Domains <= 0 {
		c.Domains = 64
	}
	return &Memory{model: m, cfg: c, domains: map[string]*domain{}}
}

// Chat is [Model.Chat] for a request of the cache domain.
func (y *Memory) Chat(ctx context.Context, domain string, body []byte) (Prompt, error) {
	return y.model.chat(ctx, body, y.encoding(domain))
}

// Completion is [Model.Completion] for a request of the cache domain.
func (y *Memory) Completion(ctx context.Context, domain string, body []byte) (Prompt, error) {
	return y.model.complete(ctx, body, y.encoding(domain))
}

func (y *Memory) encoding(name string) encoding {
	return func(ctx context.Context, text, turn string, around bool) (Prompt, error) {
		prefix, suffix, err := y.model.wrapping(around)
		if err != nil {
			return Prompt{}, err
		}
		d := y.domain(name)
		p := Prompt{Text: text}
		ids := append(make([]uint32, 0, len(prefix)+len(text)/3+8), prefix...)
		var room [128]step
		ids, path, err := d.appendIDs(ctx, y.model, ids, room[:0], text)
		if err != nil {
			return Prompt{}, y.model.failed(ctx, "encode", err)
		}
		p.IDs = append(ids, suffix...)
		p.parts = &parts{domain: d, start: len(prefix), path: slices.Clone(path)}
		if p.FirstUserTurn, _, err = d.appendIDs(ctx, y.model, nil, nil, turn); err != nil {
			return Prompt{}, y.model.failed(ctx, "encode", err)
		}
		return p, nil
	}
}

// domain is the memory of a domain; the least recently used one makes room.
func (y *Memory) domain(name string) *domain {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.clock++
	d := y.domains[name]
	if d == nil {
		if len(y.domains) >= y.cfg.Domains {
			oldest, at := "", y.clock
			for n, other := range y.domains {
				if other.used < at {
					oldest, at = n, other.used
				}
			}
			delete(y.domains, oldest)
		}
		d = newDomain(y.cfg.Bytes)
		y.domains[name] = d
	}
	d.used = y.clock
	return d
}

// domain remembers parts in two generations: when the young one has half of
// the bytes it becomes the old one, which is forgotten, but for what was used
// since, which is in the young one too.
type domain struct {
	used uint64 // of Memory, guarded by its mu
	half int
	seed maphash.Seed

	mu         sync.Mutex
	key        *blockid.Key // of all block ids remembered; nil before the first
	last       uint64       // the last id given
	first      uint64       // hash of the part that a prompt last began with
	young, old generation
}

type generation struct {
	parts map[uint64]*part
	nodes map[nodeKey]*node
	bytes int
}

// part is a piece of text and its ids, under the hash of the text.
type part struct {
	id   uint64
	text string
	ids  []uint32
	next uint64 // hash of the part that last came after it
}

// node is a part at the end of a path of parts, with the ids of the blocks that
// end in it.
type node struct {
	id     uint64
	blocks []uint64
}

// nodeKey is the ids of a node, or the root, and of a part.
type nodeKey struct{ parent, part uint64 }

// What a part or node costs besides its contents, about.
const (
	partBytes = 160
	nodeBytes = 128
)

func newDomain(bytes int) *domain {
	return &domain{half: bytes / 2, seed: maphash.MakeSeed(), young: newGeneration(), old: newGeneration()}
}

func newGeneration() generation {
	return generation{parts: map[uint64]*part{}, nodes: map[nodeKey]*node{}}
}

// made counts the bytes of something new in the young generation.
func (d *domain) made(bytes int) {
	if d.young.bytes += bytes; d.young.bytes > d.half {
		d.old, d.young = d.young, newGeneration()
	}
}

// step is a part of a prompt and where its ids end.
type step struct {
	part uint64
	end  int
}

// leastPart is the least bytes of a part, unless the text ends: shorter ones
// cost more to find than to encode.
const leastPart = 64

// appendIDs appends the ids of text, and to path the parts it was cut into.
func (d *domain) appendIDs(ctx context.Context, m *Model, dst []uint32, path []step, text string) ([]uint32, []step, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := &d.first
	for text != "" {
		p := d.expected(m, *next, text)
		if p == nil {
			end := len(text)
			if end > leastPart {
				end = m.tokenizer.Cut(text, leastPart)
			}
			var err error
			if p, *next, err = d.part(ctx, m, text[:end]); err != nil {
				return dst, path, err
			}
		}
		dst = append(dst, p.ids...)
		path = append(path, step{p.id, len(dst)})
		text = text[len(p.text):]
		next = &p.next
	}
	return dst, path, nil
}

// expected is the part with the hash h, if the text begins with it and can be
// cut there. To compare is much cheaper than to search and to hash.
func (d *domain) expected(m *Model, h uint64, text string) *part {
	p := d.find(h)
	if p == nil || !strings.HasPrefix(text, p.text) || len(p.text) < len(text) && !m.tokenizer.CanCut(text, len(p.text)) {
		return nil
	}
	return p
}

// find is the part with the hash, which is kept for it.
func (d *domain) find(h uint64) *part {
	if p := d.young.parts[h]; p != nil {
		return p
	}
	p := d.old.parts[h]
	if p != nil {
		d.keep(h, p)
	}
	return p
}

// part finds the part, or makes it; d.mu is given back meanwhile.
func (d *domain) part(ctx context.Context, m *Model, text string) (*part, uint64, error) {
	h := maphash.String(d.seed, text)
	if p := d.find(h); p != nil && p.text == text {
		return p, h, nil
	}
	d.mu.Unlock()
	ids, err := m.tokenizer.AppendEncodeContext(ctx, make([]uint32, 0, len(text)/3+8), text, true)
	p := &part{text: string([]byte(text)), ids: append([]uint32(nil), ids...)}
	d.mu.Lock()
	if err != nil {
		return nil, 0, err
	}
	d.last++
	p.id = d.last
	d.keep(h, p)
	return p, h, nil
}

// keep puts the part into the young generation, unless it would fill it.
func (d *domain) keep(h uint64, p *part) {
	bytes := partBytes + len(p.text) + 4*len(p.ids)
	if bytes > d.half/2 {
		return
	}
	d.young.parts[h] = p
	d.made(bytes)
}

// parts is how a prompt was cut: start ids, then those of the path.
type parts struct {
	domain *domain
	start  int
	path   []step
}

// AppendBlocks appends to dst the ids under key of the full blocks of size
// tokens, in order; of a prompt that a [Memory] made, those of known parts are
// remembered.
func (p *Prompt) AppendBlocks(dst []uint64, key *blockid.Key, size int) []uint64 {
	if size < 1 {
		return dst
	}
	dst = slices.Grow(dst, len(p.IDs)/size)
	done := len(dst)
	if p.parts != nil {
		dst = p.parts.appendBlocks(dst, key, size, p.IDs)
	}
	return blockid.Append(dst, key, p.IDs[(len(dst)-done)*size:], size)
}

// appendBlocks appends the ids of the blocks that end in the path. A domain
// remembers those of one key; a process has no other.
func (q *parts) appendBlocks(dst []uint64, key *blockid.Key, size int, ids []uint32) []uint64 {
	d := q.domain
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.key == nil {
		k := *key
		d.key = &k
	}
	if *d.key != *key {
		return dst
	}
	done := len(dst)
	at := nodeKey{parent: root(size, q.start)}
	for _, s := range q.path {
		at.part = s.part
		n := d.node(at)
		if n == nil {
			from := (len(dst) - done) * size
			d.last++
			n = &node{id: d.last, blocks: blockid.Append(nil, key, ids[from:s.end], size)}
			d.young.nodes[at] = n
			d.made(nodeBytes + 8*len(n.blocks))
		}
		dst = append(dst, n.blocks...)
		at.parent = n.id
	}
	return dst
}

// root is the parent of the first parts of prompts with this size of block and
// as many ids before them. It is the id of no node.
func root(size, start int) uint64 {
	return 1<<63 | uint64(size)<<16 | uint64(start)&0xffff
}

func (d *domain) node(key nodeKey) *node {
	if n := d.young.nodes[key]; n != nil {
		return n
	}
	n := d.old.nodes[key]
	if n != nil {
		d.young.nodes[key] = n
		d.made(nodeBytes + 8*len(n.blocks))
	}
	return n
}
