package relay

import (
	"slices"

	"github.com/sallyport-ai/sallyport/routing/kvevents"
)

// tiers is how many kinds of memory are told apart.
const tiers = 3

// tierNames names them; a tier's number is its index.
var tierNames = [tiers]string{"GPU", "CPU", "STORAGE"}

// tierOf maps what engines call their kinds of memory. Early engines name none
// and have only the GPU.
var tierOf = map[string]uint8{
	"": 0, "GPU": 0,
	"CPU": 1, "CPU_PINNED": 1,
	"STORAGE": 2, "DISK": 2, "FS": 2, "OBJ": 2, "EXTERNAL": 2,
}

// fullAttention are the kinds of attention for which a block, once stored, is
// useful to every longer prompt.
var fullAttention = map[string]bool{"full_attention": true, "mla_attention": true, "sink_full_attention": true}

// fault is why a mirror can no longer be believed; empty for none. It is told
// to subscribers as the reason of the stream's state.
type fault string

// What an engine can say that contradicts what it said before.
const (
	faultConflict fault = "hash_conflict"  // one hash, two contents
	faultCapacity fault = "over_capacity"  // more blocks than the engine has
	faultGroups   fault = "untyped_groups" // several cache groups and no telling which is which
)

// space is what blocks below one root have in common. A space that is not
// reported belongs to no tenant: its salt is not ours.
type space struct {
	key           spaceKey
	adapter       string
	model, domain string
	reported      bool
	roots         int // nodes that hold it directly below the root
}

// spaceKey is what tells spaces apart. An adapter that is known only by its
// number is not known, and not none either.
type spaceKey struct {
	salt, adapter string
	number        int64
}

func spaceKeyOf(ev *kvevents.Event) spaceKey {
	k := spaceKey{ev.Salt, ev.Adapter, kvevents.None}
	if ev.Adapter == "" {
		k.number = ev.LoRAID
	}
	return k
}

// block is one node of the forest, by number. Number 0 is the sentinel above
// all first blocks. A node whose copies are all gone stays while it has
// children, since they may become reachable again.
type block struct {
	hash   kvevents.Hash
	parent uint32 // 0 for a first block, and for a detached run's first
	child  uint32 // first child
	next   uint32 // siblings
	prev   uint32
	same   uint32 // next node with this hash, in another space
	space  *space // nil while detached
	copies [tiers]uint32
	told   uint8 // tiers that subscribers believe, a bit each
	want   uint8 // tiers that they should
	used   bool
	dirty  bool
	hidden bool // not to be taken for what its tokens say
	adrift bool // detached: it, or a block above it, waits for a parent
	tokens []uint32
	extra  []byte
}

// mirror is the cache of one engine rank as its events tell it. It is pure:
// no clock, no lock, no socket. The hub's lock guards it.
type mirror struct {
	cfg     mirrorConfig
	nodes   []block
	free    []uint32
	byHash  map[kvevents.Hash]uint32
	waiting map[kvevents.Hash]uint32 // missing parent → first of the runs that wait for it
	missing map[uint32]kvevents.Hash // the inverse
	spaces  map[spaceKey]*space
	groups  map[int]bool // cache group → it is full attention
	primary int          // group whose stores count
	typed   bool         // the engine names kinds of attention
	adrift  int          // detached nodes
	live    int          // nodes in use
	copies  [tiers]int
	dirty   []uint32
	cleared bool              // since the last flush
	skipped map[string]uint64 // events left out, by reason; for metrics

	saltHidden bool // an event had no place for a salt
}

type mirrorConfig struct {
	blockSize int // tokens in a block that is reported; 0: that of the first event
	capacity  int // of the GPU tier, in blocks; 0 unknown
	maxNodes  int // bound on memory
	perEvent  bool
	once      bool // a block that is stored again is no further copy
	// resolve says whose salt this is.
	resolve func(salt string) (model, domain string, ok bool)
}

// defaultMaxNodes bounds a mirror of an engine that does not tell its capacity.
const defaultMaxNodes = 1 << 20

func newMirror(cfg mirrorConfig) *mirror {
	if cfg.maxNodes <= 0 {
		cfg.maxNodes = defaultMaxNodes
	}
	m := &mirror{cfg: cfg, skipped: make(map[string]uint64)}
	m.clear()
	m.cleared = false
	return m
}

// clear forgets everything.
func (m *mirror) clear() {
	clear(m.nodes)
	m.nodes = append(m.nodes[:0], block{used: true, want: 1, told: 1})
	m.free = m.free[:0]
	m.byHash = make(map[kvevents.Hash]uint32)
	m.waiting = make(map[kvevents.Hash]uint32)
	m.missing = make(map[uint32]kvevents.Hash)
	m.spaces = make(map[spaceKey]*space)
	m.adrift, m.live, m.copies = 0, 0, [tiers]int{}
	m.dirty = m.dirty[:0]
	m.cleared = true
}

// restart forgets everything and what was learned of the engine besides.
func (m *mirror) restart() {
	m.clear()
	m.groups, m.primary, m.typed = nil, kvevents.None, false
}

// apply takes one batch. After a fault the mirror must be restarted.
func (m *mirror) apply(b *kvevents.Batch) fault {
	for i := range b.Events {
		ev := &b.Events[i]
		var f fault
		switch ev.Type {
		case kvevents.Stored:
			f = m.stored(ev)
		case kvevents.Removed:
			m.removed(ev)
		case kvevents.Cleared:
			m.clear()
		}
		if f != "" {
			return f
		}
	}
	m.count(b)
	return ""
}

// count notes what could not be decoded of a batch.
func (m *mirror) count(b *kvevents.Batch) {
	for _, s := range b.Skipped {
		m.skipped["undecoded_"+s.Reason.String()] += uint64(s.N)
	}
}

// admit decides whether a stored event says anything that we can use, and in
// which tier. Leaving one out only makes the mirror say less.
func (m *mirror) admit(ev *kvevents.Event) (tier uint8, ok bool, f fault) {
	tier, known := tierOf[ev.Medium]
	full, f := m.group(ev)
	var why string
	switch {
	case f != "":
		return 0, false, f
	case !full:
		why = "group"
	case !known:
		why = "medium"
	case ev.Locality == "REMOTE":
		why = "remote"
	case ev.SaltHidden:
		m.saltHidden = true
		why = "salt_hidden"
	case !ev.Dense():
		why = "not_dense"
	default:
		if m.cfg.blockSize == 0 {
			m.cfg.blockSize = ev.BlockSize
		}
		return tier, true, ""
	}
	m.skipped[why]++
	return 0, false, ""
}

// group learns of the event's cache group and says whether its stores count:
// those of the first full-attention group do. Another one holds the same
// blocks, and what either evicts is gone.
func (m *mirror) group(ev *kvevents.Event) (counts bool, f fault) {
	full := ev.SlidingWindow == 0 && (ev.SpecKind == "" || fullAttention[ev.SpecKind])
	if m.groups == nil {
		m.groups = make(map[int]bool)
		m.primary = kvevents.None
	}
	if _, seen := m.groups[ev.Group]; !seen {
		if full && !slices.Contains(m.fullGroups(), m.primary) {
			m.primary = ev.Group
		}
		m.groups[ev.Group] = full
		m.typed = m.typed || ev.SpecKind != ""
		if len(m.groups) > 1 && !m.typed {
			return false, faultGroups
		}
	}
	return full && ev.Group == m.primary, ""
}

func (m *mirror) fullGroups() []int {
	var out []int
	for g, full := range m.groups {
		if full {
			out = append(out, g)
		}
	}
	return out
}

// stored takes a run of blocks.
func (m *mirror) stored(ev *kvevents.Event) fault {
	tier, ok, f := m.admit(ev)
	if !ok {
		return f
	}
	at, ok := m.place(ev)
	if !ok {
		return ""
	}
	for i, h := range ev.Hashes {
		n, f := m.find(at, h)
		switch {
		case f != "":
			return f
		case n == 0:
			if m.live >= m.cfg.maxNodes {
				m.skipped["memory_bound"]++
				return ""
			}
			n = m.add(at, h, ev, i)
		case !m.sameContent(n, ev, i):
			return faultConflict
		}
		if !m.cfg.once || m.nodes[n].copies[tier] == 0 {
			m.nodes[n].copies[tier]++
			m.copies[tier]++
		}
		m.touch(n)
		at = place{parent: n, space: m.nodes[n].space, adrift: m.nodes[n].adrift}
	}
	if m.cfg.capacity > 0 && m.copies[0] > m.cfg.capacity {
		return faultCapacity
	}
	return ""
}

// place is where a block hangs.
type place struct {
	parent uint32
	space  *space        // nil if adrift
	adrift bool          // parent waits, or is itself missing
	wait   kvevents.Hash // the missing parent, of the first block of a run adrift
}

// place finds where the run's first block hangs.
func (m *mirror) place(ev *kvevents.Event) (place, bool) {
	if ev.Parent.IsZero() {
		return place{space: m.spaceOf(ev)}, true
	}
	if m.cfg.perEvent {
		sp := m.spaces[spaceKeyOf(ev)]
		for n := m.byHash[ev.Parent]; n != 0; n = m.nodes[n].same {
			if sp != nil && m.nodes[n].space == sp {
				return place{parent: n, space: sp}, true
			}
		}
		// The hash does not tell spaces apart, so the run could only wait
		// for a parent that may be another tenant's.
		m.skipped["orphan"]++
		return place{}, false
	}
	if n := m.byHash[ev.Parent]; n != 0 {
		return place{parent: n, space: m.nodes[n].space, adrift: m.nodes[n].adrift}, true
	}
	if m.adrift >= m.cfg.maxNodes/4 {
		m.skipped["orphan_bound"]++
		return place{}, false
	}
	return place{adrift: true, wait: ev.Parent}, true
}

// spaceOf is the space of a first block; add remembers it.
func (m *mirror) spaceOf(ev *kvevents.Event) *space {
	key := spaceKeyOf(ev)
	if sp := m.spaces[key]; sp != nil {
		return sp
	}
	sp := &space{key: key, adapter: ev.Adapter}
	if ev.Salt != "" && key.number == kvevents.None {
		sp.model, sp.domain, sp.reported = m.cfg.resolve(ev.Salt)
	}
	return sp
}

// find returns the node of hash h that hangs at this place, or 0.
func (m *mirror) find(at place, h kvevents.Hash) (uint32, fault) {
	for n := m.byHash[h]; n != 0; n = m.nodes[n].same {
		b := &m.nodes[n]
		switch {
		case b.parent == at.parent && b.space == at.space && b.adrift == at.adrift && m.missing[n] == at.wait:
			return n, ""
		case !m.cfg.perEvent:
			// The hash covers the whole prefix, so it cannot hang elsewhere.
			return 0, faultConflict
		}
	}
	return 0, ""
}

// sameContent reports whether a block that is stored again is what it was.
func (m *mirror) sameContent(n uint32, ev *kvevents.Event, i int) bool {
	b := &m.nodes[n]
	return b.tokens == nil || slices.Equal(b.tokens, ev.BlockTokens(i))
}

// add makes a node for block i of the event.
func (m *mirror) add(at place, h kvevents.Hash, ev *kvevents.Event, i int) uint32 {
	n := m.alloc()
	extra, known := canonicalExtra(ev.BlockExtra(i))
	b := &m.nodes[n]
	*b = block{
		used: true, hash: h, parent: at.parent, space: at.space, adrift: at.adrift,
		same: m.byHash[h], extra: extra,
		hidden: !known || ev.BlockSize != m.cfg.blockSize || (at.space != nil && ev.Adapter != at.space.adapter),
	}
	if at.space == nil || at.space.reported {
		b.tokens = slices.Clone(ev.BlockTokens(i)) // the decoder reuses its memory
	}
	m.byHash[h] = n
	switch {
	case !at.wait.IsZero():
		m.missing[n] = at.wait
		m.push(n, m.waiting[at.wait])
		m.waiting[at.wait] = n
	default:
		m.push(n, m.nodes[at.parent].child)
		m.nodes[at.parent].child = n
	}
	if at.parent == 0 && at.space != nil {
		m.spaces[at.space.key] = at.space
		at.space.roots++
	}
	if at.adrift {
		m.adrift++
	}
	m.adopt(n)
	return n
}

func (m *mirror) alloc() uint32 {
	m.live++
	if k := len(m.free); k > 0 {
		n := m.free[k-1]
		m.free = m.free[:k-1]
		return n
	}
	m.nodes = append(m.nodes, block{})
	return uint32(len(m.nodes) - 1)
}

// push puts n before head in a list of siblings.
func (m *mirror) push(n, head uint32) {
	m.nodes[n].next, m.nodes[n].prev = head, 0
	if head != 0 {
		m.nodes[head].prev = n
	}
}

// adopt gives n the runs that were waiting for it.
func (m *mirror) adopt(n uint32) {
	h := m.nodes[n].hash
	head, ok := m.waiting[h]
	if !ok {
		return
	}
	delete(m.waiting, h)
	last := head
	for c := head; c != 0; c = m.nodes[c].next {
		delete(m.missing, c)
		m.nodes[c].parent = n
		last = c
	}
	first := m.nodes[n].child
	m.nodes[last].next = first
	if first != 0 {
		m.nodes[first].prev = last
	}
	m.nodes[n].child = head
	if !m.nodes[n].adrift {
		m.land(n)
	}
}

// land gives everything below n its space.
func (m *mirror) land(n uint32) {
	sp := m.nodes[n].space
	stack := []uint32{n}
	for len(stack) > 0 {
		p := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for c := m.nodes[p].child; c != 0; c = m.nodes[c].next {
			b := &m.nodes[c]
			if !b.adrift {
				continue
			}
			b.adrift, b.space = false, sp
			m.adrift--
			if !sp.reported {
				b.tokens = nil
			}
			m.touch(c)
			stack = append(stack, c)
		}
	}
}

// removed takes one copy of each block away.
func (m *mirror) removed(ev *kvevents.Event) {
	tier, known := tierOf[ev.Medium]
	if full, seen := m.groups[ev.Group]; !known || ev.Locality == "REMOTE" || (seen && !full) {
		return
	}
	for _, h := range ev.Hashes {
		for n := m.byHash[h]; n != 0; n = m.nodes[n].same {
			b := &m.nodes[n]
			if b.copies[tier] == 0 {
				continue
			}
			b.copies[tier]--
			m.copies[tier]--
			m.touch(n)
		}
	}
}

// touch notes that what is told of n may have to change.
func (m *mirror) touch(n uint32) {
	if b := &m.nodes[n]; !b.dirty {
		b.dirty = true
		m.dirty = append(m.dirty, n)
	}
}

// orphansPct is the share of blocks that wait for a parent.
func (m *mirror) orphansPct() uint32 {
	if m.live == 0 {
		return 0
	}
	return uint32(100 * m.adrift / m.live)
}
