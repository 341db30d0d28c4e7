package relay

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/routing/kvevents"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

const testBlock = 4

// ours resolves salts of the form "ours/<domain>".
func ours(salt string) (model, domain string, ok bool) {
	if len(salt) > 5 && salt[:5] == "ours/" {
		return "m", salt[5:], true
	}
	return "", "", false
}

func testMirror(edit ...func(*mirrorConfig)) *mirror {
	cfg := mirrorConfig{blockSize: testBlock, resolve: ours}
	for _, f := range edit {
		f(&cfg)
	}
	return newMirror(cfg)
}

// believer is a subscriber that checks the rules of the protocol as it follows.
type believer struct {
	t     testing.TB
	nodes map[uint32]*believed
}

type believed struct {
	parent uint32
	tiers  uint8
	path   string // namespace and all tokens from the beginning
}

func newBeliever(t testing.TB) *believer { return &believer{t: t, nodes: map[uint32]*believed{}} }

func (b *believer) store(s stored) {
	b.t.Helper()
	up := fmt.Sprintf("%+v", s.space.namespace())
	if s.parent != 0 {
		p := b.nodes[s.parent]
		if p == nil || p.tiers == 0 {
			b.t.Fatalf("node %d is told before its parent %d", s.node, s.parent)
		}
		up = p.path
	}
	path := fmt.Sprintf("%s|%v", up, s.tokens)
	if string(s.extra) != "" {
		path += fmt.Sprintf("+%q", s.extra)
	}
	if old := b.nodes[s.node]; old != nil && old.tiers != 0 {
		if old.path != path || old.tiers&(1<<s.tier) != 0 {
			b.t.Fatalf("node %d is told as %q in tier %d while it is %q in tiers %b", s.node, path, s.tier, old.path, old.tiers)
		}
		old.tiers |= 1 << s.tier
		return
	}
	b.nodes[s.node] = &believed{s.parent, 1 << s.tier, path}
}

func (b *believer) take(c *change) {
	b.t.Helper()
	if c == nil {
		return
	}
	if c.cleared {
		clear(b.nodes)
	}
	for t, nodes := range c.removed {
		for _, n := range nodes {
			x := b.nodes[n]
			if x == nil || x.tiers&(1<<t) == 0 {
				b.t.Fatalf("node %d leaves tier %d where it was not told to be", n, t)
			}
			x.tiers &^= 1 << t
		}
	}
	for _, s := range c.stored {
		b.store(s)
	}
	// Nothing may hang from what is not there.
	for n, x := range b.nodes {
		if x.tiers != 0 && x.parent != 0 && b.nodes[x.parent].tiers == 0 {
			b.t.Fatalf("node %d is told without its parent", n)
		}
	}
}

// credits lists what the believer would give credit for: path and tiers.
func (b *believer) credits() map[string]uint8 {
	out := map[string]uint8{}
	for _, x := range b.nodes {
		if x.tiers != 0 {
			out[x.path] |= x.tiers
		}
	}
	return out
}

// The events of tests.

func tokensOf(names ...byte) (out []uint32) {
	for _, n := range names {
		for i := range testBlock {
			out = append(out, uint32(n)*100+uint32(i))
		}
	}
	return out
}

// h chains a hash as vLLM does: over the parent, the block and, at the root,
// the salt.
func h(parent kvevents.Hash, name byte, salt string) kvevents.Hash {
	f := fnv.New64a()
	f.Write(parent.Bytes())
	f.Write([]byte{name})
	if parent.IsZero() {
		f.Write([]byte(salt))
	}
	return kvevents.IntHash(f.Sum64() | 1)
}

// chainOf returns the hashes of a prompt's blocks.
func chainOf(salt, names string) (out []kvevents.Hash) {
	var parent kvevents.Hash
	for _, n := range []byte(names) {
		parent = h(parent, n, salt)
		out = append(out, parent)
	}
	return out
}

// store is the event for blocks from..to of a prompt.
func store(salt, names string, from, to int) kvevents.Event {
	chain := chainOf(salt, names)
	ev := kvevents.Event{
		Type: kvevents.Stored, Hashes: chain[from:to], Tokens: tokensOf([]byte(names[from:to])...), BlockSize: testBlock,
		Medium: "GPU", LoRAID: kvevents.None, Group: 0, SpecKind: "full_attention",
	}
	if from > 0 {
		ev.Parent = chain[from-1]
	} else {
		ev.Salt = salt
	}
	return ev
}

func remove(salt, names string, blocks ...int) kvevents.Event {
	chain := chainOf(salt, names)
	ev := kvevents.Event{Type: kvevents.Removed, Medium: "GPU", Group: kvevents.None}
	for _, b := range blocks {
		ev.Hashes = append(ev.Hashes, chain[b])
	}
	return ev
}

func with(ev kvevents.Event, f func(*kvevents.Event)) kvevents.Event { f(&ev); return ev }

func batchOf(evs ...kvevents.Event) *kvevents.Batch {
	return &kvevents.Batch{TS: 1, Rank: kvevents.None, Events: evs}
}

// depth is how many blocks of the prompt are credited to a domain, in any tier.
func (b *believer) depth(domain, adapter, names string) int {
	path := fmt.Sprintf("%+v", namespace{"m", adapter, domain})
	credits := b.credits()
	for i, n := range []byte(names) {
		path += fmt.Sprintf("|%v", tokensOf(n))
		if credits[path] == 0 {
			return i
		}
	}
	return len(names)
}

func TestMirrorTellsWhatAPromptCanReuse(t *testing.T) {
	const a, b = "ours/a", "ours/b"
	cleared := kvevents.Event{Type: kvevents.Cleared}
	type evs = []kvevents.Event
	for _, c := range []struct {
		name   string
		events evs
		want   int // blocks of "wxyz" credited to domain a
	}{
		{"a stored prompt", evs{store(a, "wxyz", 0, 4)}, 4},
		{"the same in four events", evs{store(a, "wxyz", 0, 1), store(a, "wxyz", 1, 2), store(a, "wxyz", 2, 3), store(a, "wxyz", 3, 4)}, 4},
		{"an evicted tail", evs{store(a, "wxyz", 0, 4), remove(a, "wxyz", 3, 2)}, 2},
		{"an evicted middle hides what follows", evs{store(a, "wxyz", 0, 4), remove(a, "wxyz", 1)}, 1},
		{"a middle that returns uncovers what followed", evs{store(a, "wxyz", 0, 4), remove(a, "wxyz", 1), store(a, "wxyz", 1, 2)}, 4},
		{"the first block alone evicted", evs{store(a, "wxyz", 0, 4), remove(a, "wxyz", 0)}, 0},
		{"two copies and one eviction", evs{store(a, "wx", 0, 2), store(a, "wx", 0, 2), remove(a, "wx", 1)}, 2},
		{"two copies and two evictions", evs{store(a, "wx", 0, 2), store(a, "wx", 0, 2), remove(a, "wx", 1), remove(a, "wx", 1)}, 1},
		{"an eviction too many changes nothing later", evs{remove(a, "wx", 0), store(a, "wx", 0, 2)}, 2},
		{"everything cleared", evs{store(a, "wxyz", 0, 4), cleared}, 0},
		{"stored again after a clear", evs{store(a, "wxyz", 0, 4), cleared, store(a, "wx", 0, 2)}, 2},
		{"an orphan is no root", evs{store(a, "wxyz", 2, 4)}, 0},
		{"an orphan counts once its parent comes", evs{store(a, "wxyz", 2, 4), store(a, "wxyz", 0, 2)}, 4},
		{"orphans upon orphans", evs{store(a, "wxyz", 3, 4), store(a, "wxyz", 2, 3), store(a, "wxyz", 1, 2), store(a, "wxyz", 0, 1)}, 4},
		{"an orphan evicted while it waits", evs{store(a, "wxyz", 2, 4), remove(a, "wxyz", 2), store(a, "wxyz", 0, 2)}, 2},
		{"an orphan evicted and stored again", evs{store(a, "wxyz", 2, 4), remove(a, "wxyz", 3, 2), store(a, "wxyz", 0, 2), store(a, "wxyz", 2, 3)}, 3},
		{"another domain's copy", evs{store(b, "wxyz", 0, 4)}, 0},
		{"a salt that is not ours", evs{store("theirs", "wxyz", 0, 4)}, 0},
		{"no salt", evs{store("", "wxyz", 0, 4)}, 0},
		{"another prompt with the same later blocks", evs{store(a, "vxyz", 0, 4)}, 0},
		{"an adapter's blocks", evs{with(store(a, "wx", 0, 2), func(e *kvevents.Event) { e.Adapter = "lora" })}, 0},
		{"an adapter known by number only", evs{with(store(a, "wx", 0, 2), func(e *kvevents.Event) { e.LoRAID = 7 })}, 0},
		{"an unknown extra key", evs{with(store(a, "wx", 0, 2), func(e *kvevents.Event) { e.Extra = [][]kvevents.ExtraKey{nil, {{}}} })}, 1},
		{"media of unknown place", evs{with(store(a, "wx", 0, 2), func(e *kvevents.Event) {
			e.Extra = [][]kvevents.ExtraKey{{{Kind: kvevents.MediaKey, ID: "i", Offset: kvevents.NoOffset}}, nil}
		})}, 0},
		{"media are not text", evs{with(store(a, "wx", 0, 2), func(e *kvevents.Event) {
			e.Extra = [][]kvevents.ExtraKey{nil, {{Kind: kvevents.MediaKey, ID: "i", Offset: 1}}}
		})}, 1},
		{"the salt among the extra keys is no unknown", evs{with(store(a, "wx", 0, 2), func(e *kvevents.Event) {
			e.Extra = [][]kvevents.ExtraKey{{{Kind: kvevents.SaltKey, ID: a}}, nil}
		})}, 2},
		{"a remote block", evs{with(store(a, "wx", 0, 2), func(e *kvevents.Event) { e.Locality = "REMOTE" })}, 0},
		{"an unheard-of medium", evs{with(store(a, "wx", 0, 2), func(e *kvevents.Event) { e.Medium = "TAPE" })}, 0},
		{"a hidden salt", evs{with(store(a, "wx", 0, 2), func(e *kvevents.Event) { e.SaltHidden = true })}, 0},
		{"tokens that do not fit the blocks", evs{with(store(a, "wx", 0, 2), func(e *kvevents.Event) { e.Tokens = e.Tokens[1:] })}, 0},
		{"a sliding-window group", evs{with(store(a, "wx", 0, 2), func(e *kvevents.Event) { e.SpecKind, e.SlidingWindow = "sliding_window", 128 })}, 0},
		{"a sliding-window group beside full attention", evs{
			store(a, "wx", 0, 2),
			with(store(a, "wx", 0, 2), func(e *kvevents.Event) { e.Group, e.SpecKind = 1, "sliding_window" }),
			with(remove(a, "wx", 0, 1), func(e *kvevents.Event) { e.Group = 1 }),
		}, 2},
		{"a second full group that evicts first", evs{
			store(a, "wx", 0, 2),
			with(store(a, "wx", 0, 2), func(e *kvevents.Event) { e.Group = 1 }),
			with(remove(a, "wx", 1), func(e *kvevents.Event) { e.Group = 1 }),
		}, 1},
		{"another block size", evs{with(store(a, "wx", 0, 2), func(e *kvevents.Event) {
			e.BlockSize, e.Tokens = 8, tokensOf([]byte("wxyz")...)
		})}, 0},
		{"in a lower tier", evs{with(store(a, "wx", 0, 2), func(e *kvevents.Event) { e.Medium = "CPU" })}, 2},
		{"moved to a lower tier", evs{
			store(a, "wx", 0, 2), remove(a, "wx", 1),
			with(store(a, "wx", 1, 2), func(e *kvevents.Event) { e.Medium = "CPU" }),
		}, 2},
		{"evicted from the tier it is not in", evs{
			store(a, "wx", 0, 2), with(remove(a, "wx", 0), func(e *kvevents.Event) { e.Medium = "CPU" }),
		}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, split := range []bool{false, true} { // told at once, or after each event
				m, sub := testMirror(), newBeliever(t)
				for _, ev := range c.events {
					if f := m.apply(batchOf(ev)); f != "" {
						t.Fatalf("fault %q", f)
					}
					if split {
						sub.take(m.flush())
					}
				}
				sub.take(m.flush())
				if got := sub.depth("a", "", "wxyz"); got != c.want {
					t.Errorf("split %v: credited %d blocks, want %d", split, got, c.want)
				}
				late := newBeliever(t)
				for _, s := range m.snapshot() {
					late.store(s)
				}
				if got := late.depth("a", "", "wxyz"); got != c.want {
					t.Errorf("split %v: snapshot credits %d blocks, want %d", split, got, c.want)
				}
			}
		})
	}
}

func TestMirrorKeepsAdaptersApart(t *testing.T) {
	m, sub := testMirror(), newBeliever(t)
	m.apply(batchOf(with(store("ours/a", "wx", 0, 2), func(e *kvevents.Event) { e.Adapter = "lora" })))
	sub.take(m.flush())
	if sub.depth("a", "lora", "wx") != 2 || sub.depth("a", "", "wx") != 0 {
		t.Errorf("credits %v", sub.credits())
	}
}

func TestMirrorFaults(t *testing.T) {
	const a = "ours/a"
	for _, c := range []struct {
		name string
		want fault
		evs  []kvevents.Event
	}{
		{"one hash with two contents", faultConflict, []kvevents.Event{
			store(a, "wx", 0, 2), with(store(a, "wx", 0, 2), func(e *kvevents.Event) { e.Tokens = tokensOf('q', 'x') }),
		}},
		{"one hash below two parents", faultConflict, []kvevents.Event{
			store(a, "wx", 0, 2), with(store(a, "wx", 1, 2), func(e *kvevents.Event) { e.Parent = kvevents.Hash{}; e.Salt = a }),
		}},
		{"more blocks than the engine has", faultCapacity, []kvevents.Event{store(a, "wxyz", 0, 4), store(a, "vwxyz", 0, 5)}},
		{"two groups of unknown kind", faultGroups, []kvevents.Event{
			with(store(a, "w", 0, 1), func(e *kvevents.Event) { e.SpecKind = "" }),
			with(store(a, "w", 0, 1), func(e *kvevents.Event) { e.SpecKind, e.Group = "", 1 }),
		}},
	} {
		m := testMirror(func(cfg *mirrorConfig) { cfg.capacity = 8 })
		if got := m.apply(batchOf(c.evs...)); got != c.want {
			t.Errorf("%s: fault %q, want %q", c.name, got, c.want)
		}
	}
}

// SGLang's hashes cover neither salt nor domain: the same prompt of two tenants
// has the same hashes, and a removal does not say whose.
func TestMirrorOfUnsaltedHashesNeverMixesTenants(t *testing.T) {
	plain := func(salt, names string, from, to int) kvevents.Event {
		ev := store("", names, from, to)
		ev.Salt = salt
		return ev
	}
	m, sub := testMirror(func(c *mirrorConfig) { c.perEvent = true }), newBeliever(t)
	apply := func(evs ...kvevents.Event) {
		t.Helper()
		if f := m.apply(batchOf(evs...)); f != "" {
			t.Fatalf("fault %q", f)
		}
		sub.take(m.flush())
	}
	apply(plain("ours/a", "wxy", 0, 3))
	if got := sub.depth("b", "", "wxy"); got != 0 {
		t.Fatalf("b is credited %d blocks of a's", got)
	}
	apply(plain("ours/b", "wx", 0, 2), plain("ours/c", "wxy", 2, 3))
	if a, b, c := sub.depth("a", "", "wxy"), sub.depth("b", "", "wxy"), sub.depth("c", "", "wxy"); a != 3 || b != 2 || c != 0 {
		t.Fatalf("depths %d, %d, %d, want 3, 2, 0", a, b, c)
	}
	apply(remove("", "wxy", 1))
	if a, b := sub.depth("a", "", "wxy"), sub.depth("b", "", "wxy"); a != 1 || b != 1 {
		t.Errorf("after one removal: depths %d and %d, want 1 and 1", a, b)
	}
}

func TestMirrorReturnsToNothing(t *testing.T) {
	m := testMirror(func(c *mirrorConfig) { c.maxNodes = 4096 })
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		prompt := make([]byte, 20)
		for i := range prompt {
			prompt[i] = byte('a' + r.IntN(20))
		}
		salt := fmt.Sprintf("ours/%d", r.IntN(10))
		m.apply(batchOf(store(salt, string(prompt), 0, 20)))
		m.apply(batchOf(remove(salt, string(prompt), r.Perm(20)...)))
		m.flush()
	}
	if m.live != 0 || len(m.byHash) != 0 || len(m.spaces) != 0 || len(m.waiting) != 0 || len(m.missing) != 0 || m.copies != [tiers]int{} {
		t.Errorf("left: %d nodes, %d hashes, %d spaces, %d waiting, copies %v", m.live, len(m.byHash), len(m.spaces), len(m.waiting), m.copies)
	}
	if len(m.nodes) > 100 {
		t.Errorf("%d slots were needed for 20 blocks at a time", len(m.nodes))
	}
}

func TestMirrorMemoryIsBounded(t *testing.T) {
	m := testMirror(func(c *mirrorConfig) { c.maxNodes = 64 })
	for i := range 1000 {
		salt := fmt.Sprintf("ours/%d", i)
		m.apply(batchOf(store(salt, "wxyz", 0, 4), store(salt, "abcdef", 4, 6)))
		m.flush()
	}
	if m.live > 64 || m.adrift > 16 || len(m.spaces) > 64 {
		t.Errorf("%d nodes, %d adrift, %d spaces", m.live, m.adrift, len(m.spaces))
	}
}

// fakeEngine is the reference: physical copies by hash, and everything that it
// published. It is the model of a cache, not of its timing.
type fakeEngine struct {
	r       *rand.Rand
	boot    uint32
	copies  map[kvevents.Hash]int
	paths   map[kvevents.Hash]string // of our domains, as believers spell them
	parents map[kvevents.Hash]kvevents.Hash
	log     []kvevents.Message
	batches []*kvevents.Batch
	kept    int // batches that replay still has
}

func (e *fakeEngine) restart() {
	e.boot = e.r.Uint32()
	e.copies, e.paths, e.parents = map[kvevents.Hash]int{}, map[kvevents.Hash]string{}, map[kvevents.Hash]kvevents.Hash{}
	e.log, e.batches = nil, nil
}

// step runs one random engine step and returns the number of its batch.
func (e *fakeEngine) step() int {
	var evs []kvevents.Event
	for range 1 + e.r.IntN(3) {
		switch k := e.r.IntN(20); {
		case k < 11:
			evs = append(evs, e.prefill()...)
		case k < 19:
			evs = append(evs, e.evict())
		case e.r.IntN(4) == 0:
			evs = append(evs, kvevents.Event{Type: kvevents.Cleared})
			clear(e.copies)
		}
	}
	seq := len(e.log)
	payload := binary.LittleEndian.AppendUint64(nil, uint64(e.boot)<<32|uint64(seq))
	e.log = append(e.log, kvevents.Message{Seq: uint64(seq), Payload: payload})
	e.batches = append(e.batches, batchOf(evs...))
	return seq
}

// prefill stores the blocks of a prompt that are not cached, as one run, or
// sometimes another copy of some that are.
func (e *fakeEngine) prefill() []kvevents.Event {
	salt := []string{"ours/a", "ours/b", "theirs", ""}[e.r.IntN(4)]
	names := make([]byte, 1+e.r.IntN(6))
	for i := range names {
		names[i] = byte('w' + e.r.IntN(3))
	}
	chain := chainOf(salt, string(names))
	from := 0
	for from < len(chain) && e.copies[chain[from]] > 0 {
		from++
	}
	if from > 0 && e.r.IntN(4) == 0 {
		from = e.r.IntN(from)
	}
	if from == len(chain) {
		return nil
	}
	path := ""
	if _, domain, ok := ours(salt); ok {
		path = fmt.Sprintf("%+v", namespace{"m", "", domain})
	}
	for i, hash := range chain {
		if path != "" {
			path += fmt.Sprintf("|%v", tokensOf(names[i]))
			e.paths[hash] = path
		}
		if i > 0 {
			e.parents[hash] = chain[i-1]
		}
		if i >= from {
			e.copies[hash]++
		}
	}
	if mid := from + (len(chain)-from)/2; mid > from && e.r.IntN(2) == 0 {
		return []kvevents.Event{store(salt, string(names), from, mid), store(salt, string(names), mid, len(chain))}
	}
	return []kvevents.Event{store(salt, string(names), from, len(chain))}
}

func (e *fakeEngine) evict() kvevents.Event {
	var held []kvevents.Hash
	for hash, n := range e.copies {
		if n > 0 {
			held = append(held, hash)
		}
	}
	slices.SortFunc(held, func(a, b kvevents.Hash) int { return strings.Compare(a.String(), b.String()) })
	ev := kvevents.Event{Type: kvevents.Removed, Medium: "GPU", Group: kvevents.None}
	for range min(len(held), 1+e.r.IntN(4)) {
		hash := held[e.r.IntN(len(held))]
		if e.copies[hash] > 0 {
			e.copies[hash]--
			ev.Hashes = append(ev.Hashes, hash)
		}
	}
	return ev
}

// truth lists what our domains can reuse.
func (e *fakeEngine) truth() map[string]bool {
	out := map[string]bool{}
	for hash, path := range e.paths {
		ok := true
		for x := hash; ok && !x.IsZero(); x = e.parents[x] {
			ok = e.copies[x] > 0
		}
		if ok {
			out[path] = true
		}
	}
	return out
}

// replayInto plays the follower's part.
func (e *fakeEngine) replayInto(s *stream) {
	for range 2 {
		r, from := s.beginReplay(), s.resume()
		var err error
		for seq := max(int(from), len(e.log)-e.kept, 0); seq < len(e.log) && err == nil; seq++ {
			err = r.offer(e.log[seq], e.batches[seq])
		}
		if r.end(err) == nil {
			return
		}
	}
}

func (e *fakeEngine) deliver(s *stream, seq int) {
	if s.offer(e.log[seq], e.batches[seq]) != hole {
		return
	}
	e.replayInto(s)
	if s.offer(e.log[seq], e.batches[seq]) == hole {
		s.skip()
		s.offer(e.log[seq], e.batches[seq])
	}
}

// TestMirrorNeverSaysMoreThanTheEngineHolds runs random engines with random
// losses, duplicates, disconnections and restarts, seen and unseen, against the
// stream, and compares what a subscriber believes with the engine's cache.
func TestMirrorNeverSaysMoreThanTheEngineHolds(t *testing.T) {
	runs := 150
	if testing.Short() {
		runs = 60
	}
	credited, complete := 0, 0
	for seed := range uint64(runs) {
		runEngine(t, seed, &credited, &complete)
	}
	if credited < 1000 || complete < 300 {
		t.Errorf("test shows nothing: %d blocks credited, %d times complete", credited, complete)
	}
}

// FuzzMirrorNeverSaysMoreThanTheEngineHolds is the same for other seeds.
func FuzzMirrorNeverSaysMoreThanTheEngineHolds(f *testing.F) {
	f.Add(uint64(1000))
	f.Fuzz(func(t *testing.T, seed uint64) {
		var credited, complete int
		runEngine(t, seed, &credited, &complete)
	})
}

func runEngine(t *testing.T, seed uint64, credited, complete *int) {
	t.Helper()
	e := &fakeEngine{r: rand.New(rand.NewPCG(seed, 7)), kept: []int{0, 3, 1000}[seed%3]}
	e.restart()
	s := newStream(0, e.kept > 0, mirrorConfig{blockSize: testBlock, resolve: ours})
	sub := newBeliever(t)
	joined := e.r.IntN(30) // steps before the relay comes
	for range joined {
		e.step()
	}
	connect := func() {
		s.connected()
		if s.replayable {
			e.replayInto(s)
		}
	}
	connect()
	lossless := e.kept == 1000 || joined == 0
	for range 120 {
		lost := false
		switch k := e.r.IntN(40); {
		case k == 0: // the engine restarts, and by chance overtakes its old numbers unseen
			s.lost("test")
			e.restart()
			for range e.r.IntN(2 * (int(s.next) + 1)) {
				e.step()
			}
			connect()
			lossless = e.kept == 1000
		case k == 1: // the connection breaks
			s.lost("test")
			for range e.r.IntN(3) {
				e.step()
			}
			connect()
			lossless = lossless && e.kept == 1000
		case k == 2: // a batch is lost
			e.step()
			lost = true
			lossless = lossless && e.kept == 1000
		case k == 3 && len(e.log) > 0: // a batch comes twice
			e.deliver(s, len(e.log)-1)
		case k == 4: // the numbers begin anew on a connection that seems the same
			e.restart()
			lossless = true
		}
		seq := e.step()
		e.deliver(s, seq)
		if e.r.IntN(3) > 0 && !lost {
			continue // let changes gather
		}
		sub.take(s.m.flush())
		check(t, seed, e, s, sub, lossless, credited, complete)
	}
}

func check(t *testing.T, seed uint64, e *fakeEngine, s *stream, sub *believer, lossless bool, credited, complete *int) {
	t.Helper()
	truth, got := e.truth(), sub.credits()
	for path := range got {
		*credited++
		if !truth[path] {
			t.Fatalf("seed %d: credited but not held: %s (state %v)", seed, path, s.state)
		}
	}
	if s.state.code == residencyv1.State_LIVE {
		*complete++
		if len(got) != len(truth) {
			t.Fatalf("seed %d: live, but %d of %d blocks credited", seed, len(got), len(truth))
		}
	} else if lossless && s.state.code != residencyv1.State_LIVE {
		t.Fatalf("seed %d: nothing was lost, yet the stream is %v", seed, s.state)
	}
	late := newBeliever(t)
	for _, n := range s.m.snapshot() {
		late.store(n)
	}
	if a, b := fmt.Sprint(late.credits()), fmt.Sprint(got); a != b {
		t.Fatalf("seed %d: snapshot differs from changes:\n%s\n%s", seed, a, b)
	}
}
