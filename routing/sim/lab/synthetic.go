package lab

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"
)

// Source makes the trace of a seed. A trace from a file is the same for every
// seed; only arrivals within its resolution are drawn anew.
type Source func(seed uint64) (*Trace, error)

// FromFile is the first n requests (0: all) of a file in Mooncake's form, called
// name.
func FromFile(path, name string, n int) (Source, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	defer func() { _ = f.Close() }() // only read from
	t, err := Read(name, f)
	if err != nil {
		return nil, err
	}
	t = t.First(n)
	return func(uint64) (*Trace, error) { return t, nil }, nil
}

// defaultRequests is how many a synthetic trace has.
const defaultRequests = 3000

// kinds are the synthetic traces, and what goes wrong in them.
var kinds = []struct {
	name   string
	grow   func(*garden)
	faults Faults
}{
	{"chat", chat, Faults{}},
	{"agents", agents, Faults{}},
	{"rag", rag, Faults{}},
	{"bursts", bursts, Faults{}},
	{"model-roll", chat, Faults{ModelRoll: true}},
	{"replica-loss", chat, Faults{ReplicaLoss: true}},
	{"event-loss", chat, Faults{EventLoss: 0.01}},
}

// Synthetic is a made-up trace of n requests (0: 3000), and what goes wrong in
// it:
//
//	chat          people of 40 tenants in conversations of several turns
//	agents        loops of tool calls whose context grows with each step
//	rag           questions with documents of shared corpora in front
//	bursts        conversations, among them batches with one long prompt in common
//	model-roll, replica-loss, event-loss: chat, with that fault
func Synthetic(name string, n int) (Source, Faults, error) {
	if n <= 0 {
		n = defaultRequests
	}
	names := make([]string, 0, len(kinds))
	for _, k := range kinds {
		if k.name == name {
			return func(seed uint64) (*Trace, error) {
				g := &garden{rng: rand.New(rand.NewPCG(seed, 7)), n: n}
				k.grow(g)
				return g.trace("synthetic:" + name), nil
			}, k.faults, nil
		}
		names = append(names, k.name)
	}
	return nil, Faults{}, fmt.Errorf("synthetic trace %q: want one of %s", name, strings.Join(names, ", "))
}

// gardenBlock is the block size of synthetic traces, in tokens.
const gardenBlock = 64

// garden grows a synthetic trace. A text is a list of ids of 64-token pieces.
type garden struct {
	rng     *rand.Rand
	n       int
	texts   uint64
	session int32
	asked   []question
}

// question is a request before blocks are numbered.
type question struct {
	Request
	text []uint64
}

// text is so many tokens that are nowhere else.
func (g *garden) text(tokens int) []uint64 {
	t := make([]uint64, max(tokens/gardenBlock, 1))
	for i := range t {
		g.texts++
		t[i] = g.texts
	}
	return t
}

// between draws a length whose logarithm is even.
func (g *garden) between(least, most float64) int {
	return int(least * math.Pow(most/least, g.rng.Float64()))
}

// wait draws an exponential time.
func (g *garden) wait(mean time.Duration) time.Duration {
	return time.Duration(g.rng.ExpFloat64() * float64(mean))
}

// zipf draws below n, small numbers most.
func (g *garden) zipf(n int) int {
	return int(rand.NewZipf(g.rng, 1.1, 4, uint64(n-1)).Uint64())
}

// ask adds a question, unless it was before the trace begins.
func (g *garden) ask(at time.Duration, tenant int, text []uint64, output int) {
	if at < 0 {
		return
	}
	g.asked = append(g.asked, question{
		Request{At: at, Tenant: int32(tenant), Session: g.session, Prompt: len(text)*gardenBlock + 1 + g.rng.IntN(gardenBlock-1), Output: max(output, 1)},
		slices.Clone(text),
	})
}

// trace numbers the first n questions.
func (g *garden) trace(name string) *Trace {
	slices.SortStableFunc(g.asked, func(a, b question) int { return cmp.Compare(a.At, b.At) })
	b := newBuilder(name, gardenBlock)
	for _, q := range g.asked[:min(g.n, len(g.asked))] {
		b.add(q.Request, q.text)
	}
	return b.t
}

// until begins sessions until there are more questions than are needed; the
// first began so long ago that as many are going on at the beginning as later.
func (g *garden) until(every time.Duration, begin func(at time.Duration)) {
	for at := -5 * time.Minute; len(g.asked) < 2*g.n; {
		at += g.wait(every)
		begin(at)
	}
}

// converse is one conversation: each prompt is everything said before.
func (g *garden) converse(at time.Duration, tenant int, system []uint64, turns int, think time.Duration) {
	g.session++
	text := slices.Clone(system)
	for range turns {
		answer := g.between(64, 512)
		text = append(text, g.text(g.between(64, 768))...)
		g.ask(at, tenant, text, answer)
		text = append(text, g.text(answer)...)
		at += g.wait(think)
	}
}

func (g *garden) turns(mean float64) int { return 1 + int(g.rng.ExpFloat64()*(mean-1)) }

func chat(g *garden) {
	systems := make([][]uint64, 40)
	for i := range systems {
		systems[i] = g.text(g.between(512, 4096))
	}
	g.until(800*time.Millisecond, func(at time.Duration) {
		tenant := g.zipf(len(systems))
		g.converse(at, tenant, systems[tenant], g.turns(6), 20*time.Second)
	})
}

func agents(g *garden) {
	tools := make([][]uint64, 12) // prompts and tool schemas of agents, of four tenants
	for i := range tools {
		tools[i] = g.text(g.between(4096, 12288))
	}
	g.until(2*time.Second, func(at time.Duration) {
		kind := g.zipf(len(tools))
		g.session++
		text := append(slices.Clone(tools[kind]), g.text(g.between(128, 2048))...)
		for range 2 + g.turns(14) {
			call := g.between(48, 256)
			g.ask(at, kind%4, text, call)
			text = append(text, g.text(call)...)
			text = append(text, g.text(g.between(128, 3072))...) // what the tool said
			at += 500*time.Millisecond + g.wait(4*time.Second)
		}
	})
}

func rag(g *garden) {
	type corpus struct {
		system    []uint64
		documents [][]uint64
	}
	corpora := make([]corpus, 12)
	for i := range corpora {
		corpora[i].system = g.text(512)
		for range 80 {
			corpora[i].documents = append(corpora[i].documents, g.text(g.between(512, 3072)))
		}
	}
	g.until(100*time.Millisecond, func(at time.Duration) {
		tenant := g.zipf(len(corpora))
		c := &corpora[tenant]
		g.session++
		text := slices.Clone(c.system)
		for range 2 + g.rng.IntN(4) {
			text = append(text, c.documents[g.zipf(len(c.documents))]...)
		}
		g.ask(at, tenant, append(text, g.text(g.between(64, 256))...), g.between(64, 384))
	})
}

func bursts(g *garden) {
	systems := make([][]uint64, 20)
	for i := range systems {
		systems[i] = g.text(g.between(512, 2048))
	}
	g.until(time.Second, func(at time.Duration) {
		tenant := g.zipf(len(systems))
		if g.rng.IntN(12) > 0 {
			g.converse(at, tenant, systems[tenant], g.turns(4), 20*time.Second)
			return
		}
		// A batch: 40 or so questions to one long text within seconds.
		text := append(slices.Clone(systems[tenant]), g.text(g.between(4096, 16384))...)
		for range 20 + g.rng.IntN(40) {
			g.session++
			g.ask(at+g.wait(3*time.Second), tenant, append(text, g.text(g.between(64, 1024))...), g.between(32, 256))
		}
	})
}
