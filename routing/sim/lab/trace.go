package lab

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"
)

// Trace is what is asked of the fleet, in the order of arrival.
type Trace struct {
	Name     string
	Block    int // tokens in a block
	Requests []Request

	// Spread is the resolution of the arrival times: within it they are drawn.
	Spread time.Duration

	parents []int32 // by block: the block before it in every prompt, or nowhere
	depths  []int32 // by block: how many are before it
	tenants []int32 // by block: whose it is
}

// Request is one request of a trace.
type Request struct {
	At      time.Duration // since the beginning of the trace
	Tenant  int32
	Session int32
	Prompt  int // tokens
	Output  int // tokens; at least 1
	// Blocks are the full blocks of the prompt. A block is known by number; the
	// number stands for its content and everything before it, of one tenant.
	Blocks []int32
}

// Blocks is how many different blocks the trace has.
func (t *Trace) Blocks() int { return len(t.parents) }

// First returns the first n requests as a trace.
func (t *Trace) First(n int) *Trace {
	if n <= 0 || n >= len(t.Requests) {
		return t
	}
	cut := *t
	cut.Requests = t.Requests[:n]
	// Blocks are numbered as they appear.
	known := int32(0)
	for _, r := range cut.Requests {
		for _, b := range r.Blocks {
			known = max(known, b+1)
		}
	}
	cut.parents, cut.depths, cut.tenants = t.parents[:known], t.depths[:known], t.tenants[:known]
	return &cut
}

// InfiniteHitShare is the share of prompt tokens that a single cache without
// limits would have found: what no placement can exceed.
func (t *Trace) InfiniteHitShare() float64 {
	seen := make([]bool, t.Blocks())
	hit, all := 0, 0
	for _, r := range t.Requests {
		n := 0
		for n < min(len(r.Blocks), (r.Prompt-1)/t.Block) && seen[r.Blocks[n]] {
			n++
		}
		for _, b := range r.Blocks {
			seen[b] = true
		}
		hit += n * t.Block
		all += r.Prompt
	}
	return share(float64(hit), float64(all))
}

func share(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// longest is the most tokens that one request holds.
func (t *Trace) longest() int {
	n := 0
	for _, r := range t.Requests {
		n = max(n, r.Prompt+r.Output)
	}
	return n
}

// arrivals are the times of the requests at so many a second, in ns, ascending,
// and the order in which the requests come.
func (t *Trace) arrivals(rate float64, seed uint64) (at []int64, order []int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	raw := make([]float64, len(t.Requests))
	order = make([]int, len(raw))
	last := 0.0
	for i, r := range t.Requests {
		raw[i] = float64(r.At) + rng.Float64()*float64(t.Spread)
		last = max(last, raw[i])
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case raw[a] < raw[b]:
			return -1
		case raw[a] > raw[b]:
			return 1
		}
		return 0
	})
	scale := float64(len(raw)) / rate * 1e9 / max(last, 1)
	at = make([]int64, len(raw))
	for i, o := range order {
		at[i] = int64(raw[o] * scale)
	}
	return at, order
}

// builder numbers blocks as they appear.
type builder struct {
	t     *Trace
	known map[edge]int32
}

// edge is a block by what came before it and an id that the source gave it.
type edge struct {
	tenant, parent int32
	id             uint64
}

func newBuilder(name string, block int) *builder {
	return &builder{t: &Trace{Name: name, Block: block}, known: make(map[edge]int32)}
}

// add appends a request whose full blocks have these ids.
func (b *builder) add(r Request, ids []uint64) {
	parent := int32(nowhere)
	r.Blocks = make([]int32, 0, len(ids))
	for d, id := range ids {
		k := edge{r.Tenant, parent, id}
		n, ok := b.known[k]
		if !ok {
			n = int32(len(b.t.parents))
			b.known[k] = n
			b.t.parents = append(b.t.parents, parent)
			b.t.depths = append(b.t.depths, int32(d))
			b.t.tenants = append(b.t.tenants, r.Tenant)
		}
		r.Blocks = append(r.Blocks, n)
		parent = n
	}
	b.t.Requests = append(b.t.Requests, r)
}

// Read reads a trace in Mooncake's form, one JSON object per line:
//
//	{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [ids of 512-token blocks]}
//
// https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release/traces. The
// last id of a prompt that is no multiple of 512 stands for a partial block,
// which no engine finds again, and is dropped.
func Read(name string, r io.Reader) (*Trace, error) {
	const block = 512
	b := newBuilder(name, block)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		var x struct {
			Timestamp int64    `json:"timestamp"`
			Input     int      `json:"input_length"`
			Output    int      `json:"output_length"`
			IDs       []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &x); err != nil {
			return nil, fmt.Errorf("trace %s:%d: %w", name, n, err)
		}
		full := x.Input / block
		if x.Input < 1 || x.Output < 0 || x.Timestamp < 0 || len(x.IDs) < full || x.Input > 1<<24 {
			return nil, fmt.Errorf("trace %s:%d: lengths do not fit together", name, n)
		}
		b.add(Request{At: time.Duration(x.Timestamp) * time.Millisecond, Prompt: x.Input, Output: max(x.Output, 1)}, x.IDs[:full])
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("trace %s: %w", name, err)
	}
	if len(b.t.Requests) == 0 {
		return nil, fmt.Errorf("trace %s: no requests", name)
	}
	b.t.Spread = b.t.resolution()
	b.t.sessions()
	return b.t, nil
}

// resolution is the smallest distance between different arrival times.
func (t *Trace) resolution() time.Duration {
	least := time.Duration(0)
	for i := 1; i < len(t.Requests); i++ {
		if d := t.Requests[i].At - t.Requests[i-1].At; d > 0 && (least == 0 || d < least) {
			least = d
		}
	}
	return least
}

// sessions finds conversations in a trace that does not name them: a request
// belongs with the one that first had the deepest block they share, unless so
// many share that block that it must be a common prompt.
func (t *Trace) sessions() {
	uses := make([]int, t.Blocks())
	for _, r := range t.Requests {
		for _, b := range r.Blocks {
			uses[b]++
		}
	}
	common := max(len(t.Requests)/100, 64)
	owner := make([]int32, t.Blocks())
	for i := range owner {
		owner[i] = nowhere
	}
	next := int32(0)
	for i := range t.Requests {
		r := &t.Requests[i]
		r.Session = nowhere
		for k := len(r.Blocks) - 1; k >= 0 && r.Session == nowhere; k-- {
			if b := r.Blocks[k]; uses[b] <= common {
				r.Session = owner[b]
			}
		}
		if r.Session == nowhere {
			r.Session = next
			next++
		}
		for _, b := range r.Blocks {
			if owner[b] == nowhere {
				owner[b] = r.Session
			}
		}
	}
}
