package relay

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/fleet"
	"github.com/sallyport-ai/sallyport/routing/ticket"
)

func TestNewRefusesWhatIsNotSafe(t *testing.T) {
	source := sourceOf(t, authority(t, time.Hour), "/pool/general/r0")
	vkey := newLogKey(t, "o").vkey
	good := func() Config {
		return Config{
			Listen: "127.0.0.1:0", Source: source, Pool: "general", Engine: Engine{URL: "http://127.0.0.1:1", Kind: VLLM},
			Gateways: []Gateway{{ID: "spiffe://example.org/gateway/a", LogVKey: vkey}},
		}
	}
	for _, c := range []struct {
		name string
		edit func(*Config)
		want string // in the error; empty: good
	}{
		{"a good configuration", func(*Config) {}, ""},
		{"an engine on a Unix socket", func(c *Config) { c.Engine.URL = "unix:///run/engine.sock" }, ""},
		{"an engine by IPv6", func(c *Config) { c.Engine.URL = "http://[::1]:8000" }, ""},
		{"an external engine", func(c *Config) { c.Engine = Engine{URL: "https://api.example.com", Kind: External} }, ""},
		{"an unpinned gateway in a demonstration", func(c *Config) { c.Gateways[0].LogVKey, c.AllowUnpinned = "", true }, ""},
		{"no identity", func(c *Config) { c.Source = nil }, "no identity source"},
		{"no pool", func(c *Config) { c.Pool = "" }, "pool"},
		{"an engine that others can reach", func(c *Config) { c.Engine.URL = "http://10.0.0.1:8000" }, "neither http on loopback"},
		{"an engine on every interface", func(c *Config) { c.Engine.URL = "http://0.0.0.0:8000" }, "neither http on loopback"},
		{"an engine named like loopback", func(c *Config) { c.Engine.URL = "http://127.0.0.1.example.com:8000" }, "neither http on loopback"},
		{"an engine URL with a path", func(c *Config) { c.Engine.URL = "http://127.0.0.1:1/v1" }, "has a path"},
		{"an engine URL with a password", func(c *Config) { c.Engine.URL = "http://u:p@127.0.0.1:1" }, "more than an address"},
		{"an external engine in clear", func(c *Config) { c.Engine = Engine{URL: "http://api.example.com", Kind: External} }, "neither"},
		{"an engine of no kind", func(c *Config) { c.Engine.Kind = "" }, "is not vllm"},
		{"events that others can reach", func(c *Config) { c.Engine.Events.Endpoint = "tcp://*:5557" }, "not on loopback"},
		{"replays that others can reach", func(c *Config) {
			c.Engine.Events = Events{Endpoint: "tcp://127.0.0.1:1", Replay: "tcp://0.0.0.0:2"}
		}, "not on loopback"},
		{"ranks over ipc", func(c *Config) { c.Engine.Events.Endpoint, c.Engine.Ranks = "ipc:///run/e", 2 }, "further ranks"},
		{"replays among the ranks' events", func(c *Config) {
			c.Engine.Ranks, c.Engine.Events = 2, Events{Endpoint: "tcp://127.0.0.1:5557", Replay: "tcp://127.0.0.1:5558"}
		}, "overlap"},
		{"replays beyond the ranks' events", func(c *Config) {
			c.Engine.Ranks, c.Engine.Events = 2, Events{Endpoint: "tcp://127.0.0.1:5557", Replay: "tcp://127.0.0.1:5559"}
		}, ""},
		{"a replay of nothing", func(c *Config) { c.Engine.Events.Replay = "tcp://127.0.0.1:2" }, "without an event endpoint"},
		{"nobody to serve", func(c *Config) { c.Gateways = nil }, "no gateway"},
		{"a gateway that is no SPIFFE ID", func(c *Config) { c.Gateways[0].ID = "gateway" }, `gateway "gateway"`},
		{"an unpinned gateway", func(c *Config) { c.Gateways[0].LogVKey = "" }, "not pinned"},
		{"a pinned key that is none", func(c *Config) { c.Gateways[0].LogVKey = "x" }, "verifier key"},
		{"a log without a key", func(c *Config) { c.Log.Dir = "x" }, "both"},
		{"a salt key that is not there", func(c *Config) { c.SaltKeyFile = "/nonexistent/key" }, "salt key"},
		{"a log key that is not there", func(c *Config) { c.Log = LogFiles{"/nonexistent/log", "/nonexistent/key"} }, "log key"},
		{"an address that is none", func(c *Config) { c.Listen = "nowhere" }, "nowhere"},
	} {
		cfg := good()
		c.edit(&cfg)
		r, err := New(cfg)
		switch {
		case err == nil && c.want != "":
			t.Errorf("%s: no error", c.name)
		case err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if err == nil {
			if err := r.Close(); err != nil {
				t.Errorf("%s: close: %v", c.name, err)
			}
		}
	}
}

func TestRanksPublishOnFollowingPorts(t *testing.T) {
	for _, c := range []struct {
		in   string
		rank int
		want string
	}{{"tcp://127.0.0.1:5557", 0, "tcp://127.0.0.1:5557"}, {"tcp://127.0.0.1:5557", 3, "tcp://127.0.0.1:5560"}, {"tcp://[::1]:1", 1, "tcp://[::1]:2"}} {
		if got, err := rankEndpoint(c.in, c.rank); err != nil || got != c.want {
			t.Errorf("%s rank %d: %q, %v", c.in, c.rank, got, err)
		}
	}
	if _, err := rankEndpoint("tcp://127.0.0.1:65535", 1); err == nil {
		t.Error("port 65536")
	}
}

// What a connection proved ends with the certificate that proved it.
func TestAWatchEndsWithTheSVIDThatOpenedIt(t *testing.T) {
	f := newFaulty(t)
	w := newWorldOf(t, authority(t, 3*time.Second), withEngine(f))
	w.ready()
	book := newPicturebook(t)
	err := follow(w.watch(t.Context()), book, func() bool { return false })
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("ended with %v", err)
	}
	if !book.ready {
		t.Error("it never began")
	}
	// By now the gateway has another SVID, and uses it.
	if code, text := w.post(w.sign(w.ticketFor(chatBody)), chatBody); code != http.StatusOK {
		t.Errorf("got %d %s", code, text)
	}
}

// slow makes the engine's answers wait: entered is closed when the first has
// come, and it ends when leave is closed.
func slow(f *faulty) (entered, leave chan struct{}) {
	entered, leave = make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(entered) })
	f.answer = func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "begun, ")
		_ = http.NewResponseController(w).Flush()
		once()
		<-leave
		_, _ = io.WriteString(w, "whole")
	}
	return entered, leave
}

func TestStoppingTellsGatewaysAndLetsRequestsEnd(t *testing.T) {
	f := newFaulty(t)
	entered, leave := slow(f)
	w := newWorld(t, withEngine(f))
	w.ready()
	flt := w.fleetOf()
	eventually(t, "the replica is watched", func() bool { return flt.Replicas()[0].Excluded == "" })
	stream, book := w.watch(t.Context()), newPicturebook(t)
	if err := follow(stream, book, func() bool { return book.ready }); err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	go func() {
		_, text := w.post(w.sign(w.ticketFor(chatBody)), chatBody)
		got <- text
	}()
	<-entered
	stopped := make(chan error, 1)
	go func() { stopped <- w.stop() }()
	if err := follow(stream, book, func() bool { return book.draining }); err != nil {
		t.Fatal(err)
	}
	ask := fleet.Request{Pools: []string{"general"}, Model: "small", Domain: "d", Operation: string(chatRoute), PromptTokens: 10}
	eventually(t, "the gateway excludes it", func() bool {
		_, err := flt.Reserve(t.Context(), ask)
		return err != nil && strings.Contains(err.Error(), "draining 1")
	})
	close(leave)
	if text := <-got; text != "begun, whole" {
		t.Errorf("the request got %q", text)
	}
	if err := follow(stream, book, func() bool { return false }); status.Code(err) != codes.Unavailable {
		t.Errorf("the watch ended with %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestARequestThatOutlastsTheDrainIsCut(t *testing.T) {
	f := newFaulty(t)
	entered, leave := slow(f)
	defer close(leave)
	w := newWorld(t, func(c *Config) {
		c.Engine.URL = f.URL
		c.Drain = 50 * time.Millisecond
	})
	w.ready()
	got := make(chan error, 1)
	go func() {
		resp, err := w.client.Do(w.request(t.Context(), chatRoute.path(), w.sign(w.ticketFor(chatBody)), chatBody))
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		got <- err
	}()
	<-entered
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if err := <-got; err == nil {
		t.Error("a cut answer looked whole")
	}
}

func TestAnOperatorDrainsAReplicaAndTakesItBack(t *testing.T) {
	f := newFaulty(t)
	w := newWorld(t, func(c *Config) {
		c.Engine.URL = f.URL
		c.Admin.Address = "127.0.0.1:0"
	})
	w.ready()
	flt := w.fleetOf()
	is := func(want routing.Reason) func() bool {
		return func() bool { return flt.Replicas()[0].Excluded == want }
	}
	eventually(t, "the replica is watched", is(""))
	admin := func(method, path string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+w.relay.AdminAddr()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if code := admin(http.MethodGet, "/drain"); code != http.StatusMethodNotAllowed {
		t.Errorf("a look drains: %d", code)
	}
	for range 2 {
		if code := admin(http.MethodPost, "/drain"); code != http.StatusOK {
			t.Fatal(code)
		}
		eventually(t, "it drains", is(routing.Draining))
		if code := admin(http.MethodGet, "/readyz"); code != http.StatusServiceUnavailable {
			t.Errorf("ready while draining: %d", code)
		}
		// What a gateway had sent before it knew is served.
		if code, text := w.post(w.sign(w.ticketFor(chatBody)), chatBody); code != http.StatusOK {
			t.Errorf("%d %s", code, text)
		}
		// Who comes now is told at once.
		book := newPicturebook(t)
		if err := follow(w.watch(t.Context()), book, func() bool { return book.draining }); err != nil {
			t.Fatal(err)
		}
		if code := admin(http.MethodPost, "/resume"); code != http.StatusOK {
			t.Fatal(code)
		}
		eventually(t, "it serves again", is(""))
	}
}

func TestTheAdminListenerTellsHealthAndCountsOnly(t *testing.T) {
	f := newFaulty(t)
	w := newWorld(t, func(c *Config) {
		c.Engine.URL = f.URL
		c.Admin.Address = "127.0.0.1:0"
	})
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := http.Get("http://" + w.relay.AdminAddr() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	w.ready()
	if code, _ := w.post("", chatBody); code != http.StatusForbidden {
		t.Fatal(code)
	}
	for path, want := range map[string]string{
		"/healthz": "ok", "/readyz": "ready: 2 isolated routes", "/metrics": `sallyport_relay_refused_total{code="no_ticket"} 1`,
	} {
		if code, text := get(path); code != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	if code, _ := get("/v1/chat/completions"); code != http.StatusNotFound {
		t.Errorf("inference on the admin listener: %d", code)
	}
}

func TestParseMetrics(t *testing.T) {
	for _, c := range []struct {
		name, page string
		want       metrics
	}{
		{"nothing", "", metrics{}},
		{
			"vLLM, two ranks",
			"# TYPE vllm:num_requests_running gauge\n" +
				"vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 2.0\nvllm:num_requests_running{engine=\"1\",model_name=\"m\"} 3.0\n" +
				"vllm:num_requests_waiting{engine=\"0\"} 1.0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.5\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.25\n" +
				"vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",num_gpu_blocks=\"1000\",num_gpu_blocks_override=\"None\"} 1.0\n" +
				"process_start_time_seconds 1.7e+09\n",
			metrics{blockSize: 16, numBlocks: 1000, running: 5, waiting: 1, hasWaiting: true, usage: 0.5, started: 1.7e9},
		},
		{
			"SGLang",
			"sglang:num_running_reqs{model_name=\"m\"} 4\nsglang:num_queue_reqs 0\nsglang:token_usage 0.1\nsglang:cache_config_info{page_size=\"1\",num_pages=\"99\"} 1\n",
			metrics{blockSize: 1, numBlocks: 99, running: 4, hasWaiting: true, usage: 0.1},
		},
		{"noise", "vllm:num_requests_running{broken 1\nvllm:num_requests_running\nvllm:num_requests_running{a=\"b\"} x\n\nother 5\n", metrics{}},
		{"awake", "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 1\nvllm:engine_sleep_state{engine=\"0\",sleep_state=\"discard_all\"} 0\n", metrics{}},
		{"asleep", "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0\nvllm:engine_sleep_state{engine=\"0\",sleep_state=\"discard_all\"} 1\n", metrics{asleep: true}},
		{"a time stamp", "vllm:num_requests_running{a=\"b\"} 7 1700000000000\n", metrics{running: 7}},
	} {
		got, err := parseMetrics(strings.NewReader(c.page))
		if err != nil || got != c.want {
			t.Errorf("%s: %+v (%v), want %+v", c.name, got, err, c.want)
		}
	}
}

func TestWorkWaitsUntilItsFirstByteOrUntilTheEngineHasNoQueue(t *testing.T) {
	l, g, at := newLoad(), gatewayLog{"p", "o"}, time.Now()
	stream, whole, late := &work{tokens: 100, stream: true, started: at}, &work{tokens: 10, started: at}, &work{tokens: 1, started: at.Add(time.Hour)}
	for n, w := range []*work{stream, whole, late} {
		l.start(g, uint64(n+1), w)
	}
	check := func(what string, running, waiting uint32, tokens uint64) {
		t.Helper()
		if got := l.report(g); got.Running != running || got.Waiting != waiting || got.WaitingPrefillTokens != tokens {
			t.Errorf("%s: %v", what, got)
		}
	}
	check("all sent", 0, 3, 111)
	l.scraped(at.Add(time.Second), metrics{hasWaiting: true, waiting: 1})
	check("the engine has a queue", 0, 3, 111)
	l.scraped(at.Add(time.Second), metrics{})
	check("the engine does not say", 0, 3, 111)
	l.scraped(at.Add(time.Second), metrics{hasWaiting: true, usage: 0.5, numBlocks: 10})
	check("the engine has no queue", 1, 2, 101)
	l.answer(stream)
	check("a first byte", 2, 1, 1)
	for _, w := range []*work{stream, whole, late} {
		l.end(w)
	}
	check("all done", 0, 0, 0)
	if got := l.report(g); got.KvUsedBlocks != 5 || got.Ack.NContiguous != 3 {
		t.Errorf("report %v", got)
	}
}

func TestWorkCountsTheTokensThatItsTicketNames(t *testing.T) {
	for _, c := range []struct {
		claim   string
		named   int
		body    int
		stream  bool
		tokens  uint64
		counted int64
	}{
		{"what the gateway expects to be computed", 812, 9000, true, 812, 812},
		{"a body of unknown tokens has one for four bytes", 0, 9001, true, 2251, 0},
		{"nobody's word makes a prompt longer than its body", 1 << 28, 9000, true, 9000, 9000},
		{"an answer in one piece does not show its first token", 812, 9000, false, 812, 0},
	} {
		w := newWork(&ticket.Ticket{Tokens: c.named}, c.body, c.stream, time.Now())
		if w.tokens != c.tokens || w.counted != c.counted {
			t.Errorf("%s: %d tokens, %d of them measured", c.claim, w.tokens, w.counted)
		}
	}
}

func TestWhatIsNoWorkChangesNoRate(t *testing.T) {
	l, g := newLoad(), gatewayLog{"p", "o"}
	w := newWork(&ticket.Ticket{Tokens: 8000}, 40_000, true, time.Now())
	l.start(g, 1, w)
	before := *l.meter(w)
	count := newWork(&ticket.Ticket{}, 40_000, true, time.Now())
	l.ack(g, 2) // a prompt was counted: the engine computes nothing
	l.answer(count)
	l.end(count)
	if got := *l.meter(w); got != before {
		t.Errorf("an answer on a route that counts made the meter %+v of %+v", got, before)
	}
}

func TestTheReportedRateIsThatOfFirstTokens(t *testing.T) {
	l, g, at := newLoad(), gatewayLog{"p", "o"}, time.Now()
	for n := range 4 {
		w := newWork(&ticket.Ticket{Tokens: 4000}, 20_000, true, at)
		l.start(g, uint64(n+1), w)
		if got := l.report(g).GetPrefillRate(); n < 2 && got != 0 {
			t.Errorf("%d tokens a second after %d requests", got, n)
		}
		at = at.Add(500 * time.Millisecond)
		l.mu.Lock()
		l.first(w, at)
		l.mu.Unlock()
		l.end(w)
	}
	if got := l.report(g).GetPrefillRate(); got != 8000 {
		t.Errorf("4,000 tokens in half a second are %d a second", got)
	}
}
