package lab

import (
	"bytes"
	"math"
	"slices"
	"testing"
	"time"
)

// still is a world of n replicas in which nothing has happened.
func still(t *testing.T, n int, name, params string) *world {
	t.Helper()
	b := newBuilder("still", 64)
	b.add(Request{Prompt: 1000, Output: 10, Session: 1}, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	choices, err := choicesOf(name)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(choices, func(c choice) bool { return c.params == params })
	if i < 0 {
		t.Fatalf("%s has no parameters %q", name, params)
	}
	w, err := newWorld(setup{trace: b.t, limits: engineLimits(64), replicas: n, gateways: 1, blocks: 100, rate: 1, seed: 1}, choices[i].make)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// holds makes replica r hold the first n blocks, as far as events say.
func (w *world) holds(t *testing.T, r, n int) {
	t.Helper()
	var all []change
	for b := range n {
		all = append(all, change{int32(b), true})
	}
	if err := w.view.apply(r, all); err != nil {
		t.Fatal(err)
	}
}

func (w *world) ask() *call {
	return &call{req: &w.trace.Requests[0], uncached: w.trace.Requests[0].Prompt}
}

func TestDynamoCostsWhatItsFormulaSays(t *testing.T) {
	for _, c := range []struct {
		claim                   string
		scale                   float64
		active, prompt, overlap int64
		decode                  int
		want                    float64
	}{
		{"nothing cached: 10 blocks of prefill, 12 of decode", 1, 0, 640, 0, 12, 22},
		{"half cached", 1, 0, 640, 320, 12, 17},
		{"active prefill counts in full", 1, 1280, 640, 320, 12, 37},
		{"the scale weighs prefill alone", 2, 1280, 640, 320, 12, 62},
		{"more overlap than prompt is none to do", 4, 0, 640, 960, 3, 3},
	} {
		if got := dynamoCost(c.scale, c.active, c.prompt, c.overlap, 64, c.decode); got != c.want {
			t.Errorf("%s: %g, want %g", c.claim, got, c.want)
		}
	}
}

func TestDynamoWeighsOverlapAgainstWork(t *testing.T) {
	for _, c := range []struct {
		claim   string
		prefill int64 // at the holder
		want    int
	}{
		{"an idle holder of 10 blocks wins", 0, 1},
		{"with 9 blocks of work ahead it still does", 9 * 64, 1},
		{"with 11 it does not", 11 * 64, 0},
	} {
		w := still(t, 2, "dynamo", "prefill-scale=1 predict=false")
		w.holds(t, 1, 10)
		w.strategy.(*dynamo).active[1].prefill = c.prefill
		if got := w.strategy.pick(w, w.ask()); got != c.want {
			t.Errorf("%s: replica %d", c.claim, got)
		}
	}
}

func TestDynamoCountsSharedBlocksOnce(t *testing.T) {
	w := still(t, 1, "dynamo", "prefill-scale=1 predict=false")
	a := &w.strategy.(*dynamo).active[0]
	one, two := w.ask(), w.ask()
	for _, c := range []*call{one, two} {
		w.strategy.pick(w, c)
	}
	if a.blocks != 15 || a.rest != 2 || a.with(one.req) != 18 || a.prefill != 2000 {
		t.Errorf("two of the same: %+v", *a)
	}
	w.strategy.first(w, one)
	one.first = 1
	w.strategy.end(w, one)
	w.strategy.end(w, two)
	if a.blocks != 0 || a.rest != 0 || a.prefill != 0 {
		t.Errorf("at the end: %+v", *a)
	}
}

func TestLLMDScores(t *testing.T) {
	for _, c := range []struct {
		claim          string
		w              float64
		matched, total int
		want           float64
	}{
		{"nothing", 0.5, 0, 1000, 0},
		{"w = 0 is the share", 0, 500, 1000, 0.5},
		{"half of 8192 squared is a quarter", 1, 4096, 100_000, 0.25},
		{"long matches saturate", 1, 20_000, 100_000, 1},
		{"both in equal parts", 0.5, 4096, 8192, 0.375},
	} {
		if got := prefixScore(c.w, c.matched, c.total); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%s: %g, want %g", c.claim, got, c.want)
		}
	}
	got := make([]float64, 3)
	if queueScores(got, []int{4, 0, 1}); !slices.Equal(got, []float64{0, 1, 0.75}) {
		t.Errorf("queues 4, 0, 1 score %v", got)
	}
	if queueScores(got, []int{2, 2, 2}); !slices.Equal(got, []float64{1, 1, 1}) {
		t.Errorf("equal queues score %v", got)
	}
}

func TestLLMDProfileAddsItsScores(t *testing.T) {
	w := still(t, 2, "llm-d", "prefix:kv:queue=3:1:1 w=0")
	w.holds(t, 0, 5) // 320 of 1000 tokens: 3 · 0.32 = 0.96
	s := w.strategy.(*llmd)
	for _, c := range []struct {
		claim string
		used  int // blocks of 100 at the holder
		want  int
	}{
		{"0.96 − 0.90 is a reason to go there", 90, 0},
		{"0.96 − 1 is none", 100, 1},
	} {
		s.report(w, 0, report{usedBlocks: c.used})
		call := w.ask()
		w.view.depths(s.deep, call.req)
		if got := s.choose(w, call); got != c.want {
			t.Errorf("%s: replica %d", c.claim, got)
		}
	}
}

func TestLLMDFilterBreaksWhenTheHolderIsTooSlow(t *testing.T) {
	for _, c := range []struct {
		claim   string
		blocks  int
		prefill int64 // at the holder: 15928 tokens are a second
		want    int
	}{
		{"93 % of the prompt is sticky", 15, 15_000, 1},
		{"more than 2 s behind the other is not", 15, 32_000, 0},
		{"77 % is not sticky: the least loaded", 12, 1, 0},
	} {
		w := still(t, 2, "llm-d", "affinity-filter penalty=2s speculative=false")
		w.holds(t, 1, c.blocks)
		s := w.strategy.(*llmd)
		s.by[0][1].prefill = c.prefill
		if got := s.pick(w, w.ask()); got != c.want {
			t.Errorf("%s: replica %d", c.claim, got)
		}
	}
}

func TestLLMDKnowsTenHolders(t *testing.T) {
	deep := []int{3, 0, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3}
	limitHolders(deep)
	if want := []int{3, 0, 3, 3, 3, 3, 3, 3, 3, 3, 3, 0, 0}; !slices.Equal(deep, want) {
		t.Errorf("%v, want %v", deep, want)
	}
}

func TestSpeculativeEntriesEnd(t *testing.T) {
	w := still(t, 2, "llm-d", "affinity-filter penalty=2s speculative=true")
	s, c := w.strategy.(*llmd), w.ask()
	r := s.pick(w, c)
	if d := s.routed.deepen(c, r, 0, guessTTL-1); d != 15 {
		t.Errorf("just before 2 s: %d blocks", d)
	}
	if d := s.routed.deepen(c, r, 0, guessTTL); d != 0 {
		t.Errorf("after 2 s: %d blocks", d)
	}
}

func TestApproxRemembersWhereItSent(t *testing.T) {
	w := still(t, 2, "approx", "prefix:queue:kv=3:1:1 lru=default")
	s := w.strategy.(*approx)
	first := s.pick(w, w.ask())
	for range 5 {
		if got := s.pick(w, w.ask()); got != first {
			t.Fatalf("the same prompt went to %d, then to %d", first, got)
		}
	}
}

func TestLRUDropsTheOldest(t *testing.T) {
	l := newLRU(2, 4)
	for _, b := range []int32{0, 1, 0, 2} {
		l.touch(b)
	}
	if l.held([]int32{0}) != 1 || l.held([]int32{1}) != 0 || l.held([]int32{2}) != 1 || l.held([]int32{0, 1, 2}) != 1 {
		t.Error("after 0, 1, 0, 2 in room for two it should have 0 and 2")
	}
}

func TestBoundedLoadsPassOn(t *testing.T) {
	for _, c := range []struct {
		factor float64
		all, n int
		want   int
	}{{1.25, 8, 4, 3}, {1.25, 1, 4, 1}, {2, 10, 4, 5}, {0, 10, 4, math.MaxInt}} {
		if got := bounded(c.factor, c.all, c.n); got != c.want {
			t.Errorf("%g times the mean of %d over %d: %d, want %d", c.factor, c.all, c.n, got, c.want)
		}
	}
	w := still(t, 4, "sticky", "bound=1.25")
	s, counts := w.strategy.(*hashed), make([]int, 4)
	for range 8 {
		counts[s.pick(w, w.ask())]++
	}
	if slices.Max(counts) != 3 {
		t.Errorf("8 requests of one session went %v; nobody may have more than 1.25 of the mean", counts)
	}
}

func TestSimpleStrategies(t *testing.T) {
	w := still(t, 3, "round-robin", "")
	for i := range 6 {
		if got := w.strategy.pick(w, w.ask()); got != i%3 {
			t.Errorf("round robin: %d-th went to %d", i, got)
		}
	}
	w = still(t, 3, "least-load", "tokens=true")
	s := w.strategy.(*leastLoad)
	s.by[0] = []tally{{prompts: 500}, {prompts: 400, requests: 9}, {prompts: 600}}
	if got := s.pick(w, w.ask()); got != 1 {
		t.Errorf("least load went to %d", got)
	}
	w.replicas[0].out, w.replicas[1].out, w.replicas[2].out = true, true, true
	if got := s.pick(w, w.ask()); got != nowhere {
		t.Errorf("with nobody in service it went to %d", got)
	}
}

func TestTheOracleTakesTheSoonest(t *testing.T) {
	w := still(t, 2, "oracle", "")
	c := w.ask()
	// Replica 0 has the prompt but 40,000 tokens to compute first; replica 1 has nothing.
	busy := w.replicas[0].engine
	warm := &job{contents: c.req.Blocks, prompt: 1000, output: 1}
	busy.arrive(warm, 0)
	for busy.busy {
		busy.complete()
		busy.begin(busy.end)
	}
	if got := w.strategy.pick(w, w.ask()); got != 0 {
		t.Errorf("the holder was idle, and it went to %d", got)
	}
	busy.arrive(&job{prompt: 6000, output: 1}, 0)
	if got := w.strategy.pick(w, w.ask()); got != 1 {
		t.Errorf("the holder was busy, and it went to %d", got)
	}
}

func TestOurLoadIsCountedUntilTheRelayReportsIt(t *testing.T) {
	w := still(t, 1, "kv", "")
	s := w.strategy.(*kv)
	c, k := w.ask(), s.books[0].replicas[0]
	unseen := func() int64 {
		_, tokens := k.work.Unseen()
		return tokens
	}
	c.replica = s.pick(w, c)
	if unseen() != 1000 {
		t.Fatalf("%d tokens not acknowledged, want 1000", unseen())
	}
	s.report(w, 0, report{at: 5})
	if unseen() != 1000 {
		t.Error("acknowledged before it arrived")
	}
	c.landed = 4
	s.report(w, 0, report{at: 5, waiting: 1, waitingTokens: 1000})
	if got := k.candidate(w, &s.books[0].pool, false).WaitingTokens; unseen() != 0 || got != 1000 {
		t.Errorf("%d tokens are counted, %d of them not acknowledged", got, unseen())
	}
}

func TestReadChecksAndDerivesSessions(t *testing.T) {
	const good = `{"timestamp":0,"input_length":1100,"output_length":5,"hash_ids":[7,8,9]}
{"timestamp":3000,"input_length":1600,"output_length":5,"hash_ids":[7,8,10,11]}
{"timestamp":3000,"input_length":600,"output_length":0,"hash_ids":[20,21]}
`
	tr, err := Read("t", bytes.NewBufferString(good))
	if err != nil {
		t.Fatal(err)
	}
	q := tr.Requests
	if len(q) != 3 || len(q[0].Blocks) != 2 || len(q[1].Blocks) != 3 || q[2].Output != 1 || tr.Spread != 3*time.Second {
		t.Errorf("%+v, spread %v", q, tr.Spread)
	}
	if q[0].Session != q[1].Session || q[0].Session == q[2].Session {
		t.Errorf("sessions %d, %d, %d", q[0].Session, q[1].Session, q[2].Session)
	}
	// Of 3300 tokens only the two blocks of the first prompt come again.
	if got := tr.InfiniteHitShare(); math.Abs(got-1024.0/3300) > 1e-12 {
		t.Errorf("infinite hit share %g", got)
	}
	for _, bad := range []string{"", "{", `{"timestamp":0,"input_length":1100,"output_length":5,"hash_ids":[7]}`, `{"timestamp":0,"input_length":0,"hash_ids":[]}`} {
		if _, err := Read("t", bytes.NewBufferString(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestFaultsAreRead(t *testing.T) {
	for in, want := range map[string]Faults{
		"":                            {},
		"event-loss=0.01":             {EventLoss: 0.01},
		" replica-loss, model-roll":   {ReplicaLoss: true, ModelRoll: true},
		"event-loss=0.1,replica-loss": {EventLoss: 0.1, ReplicaLoss: true},
	} {
		if got, err := ParseFaults(in); err != nil || got != want {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
	}
	for _, bad := range []string{"event-loss", "event-loss=1", "event-loss=-0.1", "event-loss=x", "nope", "replica-loss=1"} {
		if _, err := ParseFaults(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
