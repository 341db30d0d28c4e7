package prompt

import (
	"context"
	"hash/maphash"
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
	Bytes     int         // of each domain; 32 MiB if 0
	Domains   int         // the least recently used is forgotten; 64 if 0
	Key       blockid.Key // of block ids
	BlockSize int         // tokens in a block; without, no block ids are made
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
	p, err := y.model.complete(ctx, body, y.encoding(domain))
	if err == nil && p.Blocks == nil && y.cfg.BlockSize > 0 { // it came as ids
		p.Blocks = blockid.Append(nil, &y.cfg.Key, p.IDs, y.cfg.BlockSize)
	}
	return p, err
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
		if y.cfg.BlockSize > 0 {
			blocks := make([]uint64, 0, len(p.IDs)/y.cfg.BlockSize)
			p.Blocks = d.appendBlocks(&y.cfg, blocks, len(prefix), path, p.IDs)
		}
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
	last       uint64 // the last id given
	first      uint64 // hash of the part that a prompt last began with
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

// nodeKey is the ids of a node, or 0 for the beginning, and of a part.
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

// appendBlocks appends the ids of the full blocks of ids, which begin with
// start ids and then those of the path.
func (d *domain) appendBlocks(c *MemoryConfig, dst []uint64, start int, path []step, ids []uint32) []uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := nodeKey{}
	if start > 0 {
		key.parent = ^uint64(0) // another beginning
	}
	for _, s := range path {
		key.part = s.part
		n := d.node(key)
		if n == nil {
			from := len(dst) * c.BlockSize
			d.last++
			n = &node{id: d.last, blocks: blockid.Append(nil, &c.Key, ids[from:s.end], c.BlockSize)}
			d.young.nodes[key] = n
			d.made(nodeBytes + 8*len(n.blocks))
		}
		dst = append(dst, n.blocks...)
		key.parent = n.id
	}
	return blockid.Append(dst, &c.Key, ids[len(dst)*c.BlockSize:], c.BlockSize)
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
