package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func synthetic(t testing.TB, name string, n int) (Source, Faults) {
	t.Helper()
	s, f, err := Synthetic(name, n)
	if err != nil {
		t.Fatal(err)
	}
	return s, f
}

// quick is a lab run of a second or so.
func quick(t testing.TB, name string) Config {
	source, faults := synthetic(t, name, 200)
	return Config{
		Source: source, Faults: faults, Replicas: 3, Gateways: 2, Seeds: 2,
		Loads: []float64{0.8}, Capacities: []float64{0.3}, OracleRequests: 80, TuneRequests: 40,
	}
}

func TestALabRunIsTheSameEveryTime(t *testing.T) {
	out := func() string {
		r, err := Run(context.Background(), quick(t, "chat"))
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := r.WriteTable(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	if a, b := out(), out(); a != b {
		t.Errorf("first:\n%s\nthen:\n%s", a, b)
	}
}

func TestResultsHaveTheirKeysAndMakeSense(t *testing.T) {
	r, err := Run(context.Background(), quick(t, "agents"))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != len(Strategies()) {
		t.Fatalf("%d results", len(r.Results))
	}
	for _, x := range r.Results {
		raw, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		var keys map[string]any
		if err := json.Unmarshal(raw, &keys); err != nil {
			t.Fatal(err)
		}
		want := []string{
			"trace", "strategy", "load", "capacity", "replicas", "gateways", "requests", "hit_tokens_share", "oracle_share",
			"ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms", "throughput_tok_s", "imbalance",
		}
		for _, k := range want {
			if _, ok := keys[k]; !ok {
				t.Errorf("%s: no key %s", x.Strategy, k)
			}
		}
		if len(keys) != len(want) {
			t.Errorf("%s: %d keys, want %d", x.Strategy, len(keys), len(want))
		}
		requests := 400
		if x.Strategy == "oracle" {
			requests = 160
			if x.OracleShare != 1 {
				t.Errorf("the oracle has %g of its own hits", x.OracleShare)
			}
		}
		switch {
		case x.Requests != requests:
			t.Errorf("%s: %d requests, want %d", x.Strategy, x.Requests, requests)
		case x.HitTokensShare < 0 || x.HitTokensShare > 1 || x.Imbalance < 1 || x.Imbalance > 3:
			t.Errorf("%s: %+v", x.Strategy, x)
		case x.TTFTP50 <= 0 || x.TTFTP50 > x.TTFTP90 || x.TTFTP90 > x.TTFTP99 || x.ThroughputTokS <= 0:
			t.Errorf("%s: %+v", x.Strategy, x)
		}
	}
	var page bytes.Buffer
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<svg", "round-robin", "TTFT p90"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, not := range []string{"http://", "https://", "<script", "ZgotmplZ"} {
		if strings.Contains(page.String(), not) {
			t.Errorf("the page has %q", not)
		}
	}
}

// Whatever goes wrong, every call ends, nobody finds more than there is, and
// the fleet computes what was not found.
func TestEveryCallEndsWhateverGoesWrong(t *testing.T) {
	for _, faults := range []string{"", "event-loss=0.1", "replica-loss", "model-roll", "event-loss=0.05,replica-loss,model-roll"} {
		for _, name := range Strategies() {
			t.Run(name+" "+faults, func(t *testing.T) {
				f, err := ParseFaults(faults)
				if err != nil {
					t.Fatal(err)
				}
				source, _ := synthetic(t, "bursts", 150)
				tr, err := source(3)
				if err != nil {
					t.Fatal(err)
				}
				choices, err := choicesOf(name)
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range choices {
					w, err := newWorld(setup{
						trace: tr, limits: engineLimits(tr.Block), replicas: 3, gateways: 4,
						blocks: ceil(tr.longest(), tr.Block) + 40, rate: 30, seed: 3, faults: f,
					}, c.make)
					if err != nil {
						t.Fatal(err)
					}
					if err := w.run(); err != nil {
						t.Fatal(c.params, err)
					}
					conserved(t, w, c.params)
				}
			})
		}
	}
}

func conserved(t *testing.T, w *world, params string) {
	t.Helper()
	computed, owed := int64(0), int64(0)
	for i, c := range w.calls {
		switch {
		case !c.over || c.first <= c.arrived:
			t.Fatalf("%s: call %d did not end", params, i)
		case !c.failed && c.job.made != c.req.Output:
			t.Fatalf("%s: call %d got %d of %d tokens", params, i, c.job.made, c.req.Output)
		case c.job.hit >= c.req.Prompt:
			t.Fatalf("%s: call %d found %d of %d tokens", params, i, c.job.hit, c.req.Prompt)
		}
		owed += int64(c.req.Prompt - c.job.hit)
	}
	preempted := 0
	for r, x := range w.replicas {
		computed += x.engine.computed
		preempted += x.engine.preemptions
		if !x.engine.idle() || x.engine.cache.used() != 0 || len(x.work) != 0 {
			t.Errorf("%s: replica %d is left with %d blocks in use and %d calls", params, r, x.engine.cache.used(), len(x.work))
		}
	}
	// One that is preempted may find on its return what others computed.
	if preempted == 0 && (computed < owed || w.faults == (Faults{}) && computed != owed) {
		t.Errorf("%s: %d prompt tokens computed, %d not found, %d preemptions", params, computed, owed, preempted)
	}
	for g := range w.gateways {
		if s, ok := w.strategy.(*kv); ok {
			for r, k := range s.books[g].replicas {
				if requests, tokens := k.work.Unseen(); requests != 0 || tokens != 0 || len(k.sent) != 0 {
					t.Errorf("gateway %d still counts %d tokens at replica %d", g, tokens, r)
				}
			}
		}
	}
}

func TestEventsTellWhatEnginesHold(t *testing.T) {
	for _, faults := range []Faults{{}, {EventLoss: 0.1}, {ReplicaLoss: true}, {ModelRoll: true}} {
		source, _ := synthetic(t, "agents", 150)
		tr, err := source(1)
		if err != nil {
			t.Fatal(err)
		}
		choices, err := choicesOf("kv")
		if err != nil {
			t.Fatal(err)
		}
		w, err := newWorld(setup{
			trace: tr, limits: engineLimits(tr.Block), replicas: 2, gateways: 1,
			blocks: ceil(tr.longest(), tr.Block) + 40, rate: 5, seed: 1, faults: faults,
		}, choices[0].make)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.run(); err != nil {
			t.Fatal(err)
		}
		for range 2000 { // what is on its way arrives
			if w.agenda.Len() > 0 {
				w.next()
			}
		}
		deep := make([]int, 2)
		for i := range tr.Requests {
			q := &tr.Requests[i]
			w.view.depths(deep, q)
			for r, x := range w.replicas {
				if x.hole { // its last batch was lost, and none has shown that yet
					continue
				}
				if held, _ := x.engine.cache.held(q.Blocks); held != deep[r] {
					t.Fatalf("%+v: replica %d holds %d blocks, events say %d", faults, r, held, deep[r])
				}
			}
		}
	}
}

func TestSyntheticTracesAreMadeFromTheirSeed(t *testing.T) {
	for _, k := range kinds {
		source, _ := synthetic(t, k.name, 300)
		var made []*Trace
		for _, seed := range []uint64{1, 1, 2} {
			tr, err := source(seed)
			if err != nil {
				t.Fatal(err)
			}
			made = append(made, tr)
		}
		switch {
		case len(made[0].Requests) != 300:
			t.Errorf("%s: %d requests", k.name, len(made[0].Requests))
		case !reflect.DeepEqual(made[0], made[1]):
			t.Errorf("%s: two traces from one seed", k.name)
		case reflect.DeepEqual(made[0].Requests, made[2].Requests):
			t.Errorf("%s: one trace from two seeds", k.name)
		case !slices.IsSortedFunc(made[0].Requests, func(a, b Request) int { return int(a.At - b.At) }):
			t.Errorf("%s: not in order", k.name)
		}
	}
}

func TestConfigsThatMeanNothingAreRefused(t *testing.T) {
	for claim, change := range map[string]func(*Config){
		"no trace":              func(c *Config) { c.Source = nil },
		"no such strategy":      func(c *Config) { c.Strategies = []string{"luck"} },
		"no load":               func(c *Config) { c.Loads = []float64{0} },
		"a negative capacity":   func(c *Config) { c.Capacities = []float64{-1} },
		"less than no replicas": func(c *Config) { c.Replicas = -1 },
		"nobody takes over":     func(c *Config) { c.Replicas, c.Faults = 1, Faults{ReplicaLoss: true} },
	} {
		c := quick(t, "chat")
		change(&c)
		if _, err := Run(t.Context(), c); err == nil {
			t.Errorf("%s: no error", claim)
		}
	}
	if _, _, err := Synthetic("nope", 0); err == nil {
		t.Error("a synthetic trace of no kind")
	}
}

func TestTheRealTraceIsRead(t *testing.T) {
	const path = "../../../../shared/traces/mooncake-conversation.jsonl"
	f, err := os.Open(path)
	if err != nil {
		t.Skipf("the Mooncake conversation trace is not at %s", path)
	}
	defer func() { _ = f.Close() }()
	tr, err := Read("mooncake", f)
	if err != nil {
		t.Fatal(err)
	}
	first := tr.First(2000)
	if len(tr.Requests) != 12_031 || len(first.Requests) != 2000 || first.Blocks() >= tr.Blocks() {
		t.Errorf("%d requests, %d blocks of %d in the first %d", len(tr.Requests), first.Blocks(), tr.Blocks(), len(first.Requests))
	}
	if got := first.InfiniteHitShare(); got < 0.29 || got > 0.30 {
		t.Errorf("a cache without limits finds %.3f of the first 2000", got)
	}
}
