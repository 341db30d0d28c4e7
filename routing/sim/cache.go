package sim

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"

	"github.com/sallyport-ai/sallyport/routing/kvevents"
)

// digest names a block's content and everything before it.
type digest [sha256.Size]byte

// event is the form in which a digest is published: its low 64 bits.
func (d digest) event() kvevents.Hash { return kvevents.IntHash(binary.BigEndian.Uint64(d[24:])) }

// chain is a prompt as the cache sees it: the digest of each full block.
type chain struct {
	digests []digest
	salt    string
	adapter string
}

// cache is the engine's memory: a fixed number of physical blocks, of which
// those that nobody uses keep their content until they are needed.
//
// It is owned by the scheduler's goroutine.
type cache struct {
	blockSize int
	root      digest // random at start: digests mean nothing in another process
	blocks    []block
	copies    map[digest][]int32 // physical blocks with that content; more than one is legal
	head      int32              // free list: the next to be evicted
	tail      int32
	free      int
	events    []kvevents.Event
}

// block is one physical block. It is in the free list while uses is 0.
type block struct {
	content    digest
	full       bool
	uses       int32
	prev, next int32
}

const nowhere = -1

func newCache(blocks, blockSize int) *cache {
	c := &cache{blockSize: blockSize, blocks: make([]block, blocks), copies: make(map[digest][]int32), head: nowhere, tail: nowhere}
	_, _ = rand.Read(c.root[:]) // never fails: crypto/rand aborts the process instead
	for i := range c.blocks {
		c.push(int32(i))
	}
	return c
}

// extend adds the digests of the full blocks of tokens that ch does not have.
func (c *cache) extend(ch *chain, tokens []uint32) {
	for n := len(ch.digests); (n+1)*c.blockSize <= len(tokens); n++ {
		h := sha256.New()
		parent := c.root
		if n > 0 {
			parent = ch.digests[n-1]
		} else {
			h.Write([]byte(ch.salt)) // vLLM mixes the salt into the first block alone
			h.Write([]byte{0})
			h.Write([]byte(ch.adapter)) // and the adapter into each, which comes to the same
		}
		h.Write(parent[:])
		for _, t := range tokens[n*c.blockSize : (n+1)*c.blockSize] {
			var b [4]byte
			binary.LittleEndian.PutUint32(b[:], t)
			h.Write(b[:])
		}
		var d digest
		h.Sum(d[:0])
		ch.digests = append(ch.digests, d)
	}
}

// take claims the longest run of blocks, from the beginning, that the cache
// holds of the first limit digests.
func (c *cache) take(digests []digest, limit int) []int32 {
	var got []int32
	for _, d := range digests[:min(limit, len(digests))] {
		ids := c.copies[d]
		if len(ids) == 0 {
			break
		}
		id := ids[0]
		if c.blocks[id].uses == 0 {
			c.unlink(id)
		}
		c.blocks[id].uses++
		got = append(got, id)
	}
	return got
}

// allocate claims n empty blocks, evicting what was least recently used, or
// none if there are too few.
func (c *cache) allocate(n int) ([]int32, bool) {
	if n > c.free {
		return nil, false
	}
	ids := make([]int32, n)
	for i := range ids {
		id := c.head
		c.unlink(id)
		c.evict(id)
		c.blocks[id].uses = 1
		ids[i] = id
	}
	return ids, true
}

// fill says that blocks now hold the digests from..to of a chain, and publishes
// them as one run. Blocks are the sequence's, in order.
func (c *cache) fill(ch *chain, blocks []int32, tokens []uint32, from, to int) {
	if from >= to {
		return
	}
	e := kvevents.Event{
		Type:      kvevents.Stored,
		BlockSize: c.blockSize,
		Tokens:    append([]uint32(nil), tokens[from*c.blockSize:to*c.blockSize]...),
		Medium:    "GPU",
		LoRAID:    kvevents.None,
		Group:     0,
		SpecKind:  "full_attention",
		Adapter:   ch.adapter,
		Hashes:    make([]kvevents.Hash, 0, to-from),
	}
	if ch.adapter != "" {
		e.LoRAID = 1
		e.Extra = make([][]kvevents.ExtraKey, to-from)
		for i := range e.Extra {
			e.Extra[i] = []kvevents.ExtraKey{{Kind: kvevents.AdapterKey, ID: ch.adapter}}
		}
	}
	if from > 0 {
		e.Parent = ch.digests[from-1].event()
	} else if ch.salt != "" {
		e.Salt = ch.salt
		if e.Extra == nil {
			e.Extra = make([][]kvevents.ExtraKey, to-from)
		}
		e.Extra[0] = append(e.Extra[0], kvevents.ExtraKey{Kind: kvevents.SaltKey, ID: ch.salt})
	}
	for i := from; i < to; i++ {
		b := &c.blocks[blocks[i]]
		b.content, b.full = ch.digests[i], true
		c.copies[ch.digests[i]] = append(c.copies[ch.digests[i]], blocks[i])
		e.Hashes = append(e.Hashes, ch.digests[i].event())
	}
	c.events = append(c.events, e)
}

// release gives blocks back, the last first, so that a prompt's end is evicted
// before its beginning.
func (c *cache) release(blocks []int32) {
	for i := len(blocks) - 1; i >= 0; i-- {
		b := &c.blocks[blocks[i]]
		if b.uses--; b.uses == 0 {
			c.push(blocks[i])
		}
	}
}

// clear forgets everything. It reports false, and does nothing, while blocks
// are in use.
func (c *cache) clear() bool {
	if c.free != len(c.blocks) {
		return false
	}
	clear(c.copies)
	for i := range c.blocks {
		c.blocks[i].full = false
	}
	c.events = append(c.events, kvevents.Event{Type: kvevents.Cleared})
	return true
}

// takeEvents returns what happened since the last call.
func (c *cache) takeEvents() []kvevents.Event {
	events := c.events
	c.events = nil
	return events
}

// evict forgets the content of one physical block. Another copy may survive;
// the removal is published all the same, as vLLM does.
func (c *cache) evict(id int32) {
	b := &c.blocks[id]
	if !b.full {
		return
	}
	b.full = false
	ids := c.copies[b.content]
	for i, other := range ids {
		if other == id {
			ids = append(ids[:i], ids[i+1:]...)
			break
		}
	}
	if len(ids) == 0 {
		delete(c.copies, b.content)
	} else {
		c.copies[b.content] = ids
	}
	c.events = append(c.events, kvevents.Event{
		Type: kvevents.Removed, Hashes: []kvevents.Hash{b.content.event()}, Medium: "GPU", LoRAID: kvevents.None, Group: 0,
	})
}

func (c *cache) push(id int32) {
	b := &c.blocks[id]
	b.prev, b.next = c.tail, nowhere
	if c.tail == nowhere {
		c.head = id
	} else {
		c.blocks[c.tail].next = id
	}
	c.tail = id
	c.free++
}

func (c *cache) unlink(id int32) {
	b := &c.blocks[id]
	if b.prev == nowhere {
		c.head = b.next
	} else {
		c.blocks[b.prev].next = b.next
	}
	if b.next == nowhere {
		c.tail = b.prev
	} else {
		c.blocks[b.next].prev = b.prev
	}
	c.free--
}
