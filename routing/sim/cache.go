package sim

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"

	"github.com/sallyport-ai/sallyport/routing/kvevents"
	"github.com/sallyport-ai/sallyport/routing/sim/blocks"
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
	pool      *blocks.Pool
	contents  []content          // by physical block
	copies    map[digest][]int32 // physical blocks with that content; more than one is legal
	events    []kvevents.Event
}

// content is what one physical block holds, if it is full.
type content struct {
	digest digest
	full   bool
}

func newCache(n, blockSize int) *cache {
	c := &cache{blockSize: blockSize, pool: blocks.New(n), contents: make([]content, n), copies: make(map[digest][]int32)}
	_, _ = rand.Read(c.root[:]) // never fails: crypto/rand aborts the process instead
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

// held is the longest run of blocks, from the beginning, that the cache holds of
// the first limit digests, and how many of those nobody uses.
func (c *cache) held(digests []digest, limit int) (found []int32, idle int) {
	for _, d := range digests[:min(limit, len(digests))] {
		ids := c.copies[d]
		if len(ids) == 0 {
			break
		}
		if !c.pool.Used(ids[0]) {
			idle++
		}
		found = append(found, ids[0])
	}
	return found, idle
}

// blocksFor is how many blocks so many tokens take.
func (c *cache) blocksFor(tokens int) int { return (tokens + c.blockSize - 1) / c.blockSize }

// allocate claims n empty blocks, evicting what was least recently used, or
// none if there are too few.
func (c *cache) allocate(n int) ([]int32, bool) {
	if n > c.pool.Idle() {
		return nil, false
	}
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = c.pool.Next()
		c.evict(ids[i])
	}
	return ids, true
}

// fill says that blocks now hold the digests from..to of a chain, and publishes
// them as one run. Blocks are the sequence's, in order.
func (c *cache) fill(ch *chain, ids []int32, tokens []uint32, from, to int) {
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
		c.contents[ids[i]] = content{ch.digests[i], true}
		c.copies[ch.digests[i]] = append(c.copies[ch.digests[i]], ids[i])
		e.Hashes = append(e.Hashes, ch.digests[i].event())
	}
	c.events = append(c.events, e)
}

// clear forgets everything. It reports false, and does nothing, while blocks
// are in use.
func (c *cache) clear() bool {
	if c.pool.Idle() != c.pool.Len() {
		return false
	}
	clear(c.copies)
	clear(c.contents)
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
	b := &c.contents[id]
	if !b.full {
		return
	}
	b.full = false
	ids := c.copies[b.digest]
	for i, other := range ids {
		if other == id {
			ids = append(ids[:i], ids[i+1:]...)
			break
		}
	}
	if len(ids) == 0 {
		delete(c.copies, b.digest)
	} else {
		c.copies[b.digest] = ids
	}
	c.events = append(c.events, kvevents.Event{
		Type: kvevents.Removed, Hashes: []kvevents.Hash{b.digest.event()}, Medium: "GPU", LoRAID: kvevents.None, Group: 0,
	})
}
