package relay

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/routing"
	"github.com/sallyport-ai/sallyport/routing/fleet"
	"github.com/sallyport-ai/sallyport/routing/kvevents"
	"github.com/sallyport-ai/sallyport/routing/sim"
)

// freePorts is the first of n ports in a row that were free a moment ago.
func freePorts(t testing.TB, n int) int {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		first := l.Addr().(*net.TCPAddr).Port
		all := []net.Listener{l}
		for k := 1; k < n; k++ {
			if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first+k))); err != nil {
				break
			}
			all = append(all, l)
		}
		for _, l := range all {
			_ = l.Close()
		}
		if len(all) == n {
			return first
		}
	}
	t.Fatal("no ports in a row")
	return 0
}

func tcpAt(port int) string { return fmt.Sprintf("tcp://127.0.0.1:%d", port) }

// fleetOf is a gateway's fleet that watches the world's relay.
func (w *world) fleetOf() *fleet.Fleet {
	w.t.Helper()
	id := spiffeid.RequireFromPath(domain, "/pool/general/r0")
	f, err := fleet.New(fleet.Config{
		Targets: []fleet.Target{{Address: w.relay.Addr(), ID: id.String(), Pool: "general"}},
		TLS: func(fleet.Target) (*tls.Config, error) {
			return workload.ClientConfig(w.gateway, workload.ExactID(id)), nil
		},
		PeerID: func(s tls.ConnectionState) (string, error) {
			peer, err := workload.PeerID(s)
			return peer.String(), err
		},
		BlockKey: [16]byte{7}, KeyID: "k", LogVKey: w.key.vkey, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	w.t.Cleanup(func() { cancel(); <-done })
	return f
}

// An engine with two ranks, from the placement to the cache of the very rank.
func TestARequestReachesTheRankThatHoldsItsPrefix(t *testing.T) {
	port := freePorts(t, 4)
	w, model, _, _ := simWorld(t, func(s *sim.Config, _ *Config) {
		s.Ranks, s.Events, s.Replay = 2, tcpAt(port), tcpAt(port+2)
	})
	f := w.fleetOf()
	request := func(body string) fleet.Request {
		p, err := model.Chat(t.Context(), []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return fleet.Request{Pools: []string{"general"}, Model: "small", Domain: "a", Operation: string(chatRoute), Tokens: p.IDs, TokensExact: true, Strategy: routing.Probabilistic}
	}
	eventually(t, "both streams to be live", func() bool { s := f.Replicas()[0]; return s.Excluded == "" && s.Stream.Credits() })
	used := map[int]bool{}
	for i := range 6 {
		body := longBody(fmt.Sprintf("turn %d", i))
		turn := func(want func(rank, predicted int) bool) (rank, cached int) {
			var res *fleet.Reservation
			eventually(t, "the placement", func() bool {
				q := request(body)
				q.Seed = uint64(i)
				var err error
				if res, err = f.Reserve(t.Context(), q); err != nil {
					t.Fatal(err)
				}
				if want(res.Replica.Rank, res.Placement.Predicted) {
					return true
				}
				res.Release()
				return false
			})
			tk := w.ticketFor(body)
			tk.Domain, tk.Rank, tk.N = "a", res.Replica.Rank, res.Counter
			code, text := w.post(w.sign(tk), body)
			var answer struct {
				Usage struct {
					Details struct {
						Cached int `json:"cached_tokens"`
					} `json:"prompt_tokens_details"`
				}
			}
			if err := json.Unmarshal([]byte(text), &answer); code != http.StatusOK || err != nil {
				t.Fatalf("%d %s", code, text)
			}
			res.Finish(fleet.Result{})
			return res.Replica.Rank, answer.Usage.Details.Cached
		}
		rank, _ := turn(func(int, int) bool { return true })
		used[rank] = true
		most := (len(request(body).Tokens) - 1) / 16 * 16
		again, cached := turn(func(_, predicted int) bool { return predicted == most })
		if again != rank || cached != most {
			t.Errorf("first on rank %d, then on %d with %d tokens cached, %d predicted", rank, again, cached, most)
		}
	}
	if len(used) != 2 {
		t.Errorf("all conversations went to rank %v", used)
	}
}

// SGLang's ranks publish at ports in a row, and its requests choose no rank.
func TestEachRankOfSGLangIsFollowed(t *testing.T) {
	port := freePorts(t, 2)
	var pubs [2]*kvevents.Publisher
	for rank := range pubs {
		var err error
		if pubs[rank], err = kvevents.NewPublisher(kvevents.PublisherConfig{Listen: tcpAt(port + rank)}); err != nil {
			t.Fatal(err)
		}
		defer pubs[rank].Close()
	}
	engine := newBalanced(t, 2, true)
	w := newWorld(t, func(c *Config) {
		c.Engine = Engine{URL: engine.URL, Kind: SGLang, Ranks: 2, BlockSize: 16, NumBlocks: 1000, Events: Events{Endpoint: tcpAt(port)}}
	})
	w.ready()
	book := newPicturebook(t)
	stream := w.watch(t.Context())
	if err := follow(stream, book, func() bool { return live(book.state[0]) && live(book.state[1]) }); err != nil {
		t.Fatal(err)
	}
	if h := book.hello; h.GetRanks() != 2 || h.GetRanksAddressable() || len(h.GetRoutesIsolated()) != 1 {
		t.Errorf("hello %v", h)
	}
	salt := w.relay.salts.salt("domain-a", "small")
	for rank, pub := range pubs {
		eventually(t, "the relay's subscription", func() bool { return pub.Subscribers() > 0 })
		ev := block16(salt, nil, uint64(rank+1), 0, 3)
		ev.SpecKind, ev.Group = "", kvevents.None
		// Without parallel attention every rank says that it is 0.
		b := kvevents.Batch{TS: 1, Rank: 0, Events: []kvevents.Event{ev}}
		if err := pub.Publish("", 0, kvevents.AppendBatch(nil, &b, kvevents.FormMap)); err != nil {
			t.Fatal(err)
		}
	}
	told := map[uint32]int{}
	for told[0] < 3 || told[1] < 3 {
		f, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if s := f.GetStored(); s != nil {
			told[s.GetRank()] += len(s.GetIds())
		}
	}
	tk := w.ticketFor(chatBody)
	if code, text := w.post(w.sign(tk), chatBody); code != http.StatusOK {
		t.Errorf("%d %s", code, text)
	}
	tk = w.ticketFor(chatBody)
	tk.Rank = 1
	if code, text := w.post(w.sign(tk), chatBody); code != http.StatusForbidden || !strings.Contains(text, "wrong_rank") {
		t.Errorf("a rank that nobody can choose: %d %s", code, text)
	}
	if engine.pinned.Load() {
		t.Error("a request named its rank")
	}
}

// balanced is an engine that spreads requests over ranks by itself, each with a
// cache of whole prompts.
type balanced struct {
	*httptest.Server
	mu     sync.Mutex
	ranks  []map[string]bool
	next   int
	salted bool // it honours the salt
	pinned atomic.Bool
}

func newBalanced(t testing.TB, ranks int, salted bool) *balanced {
	b := &balanced{salted: salted}
	for range ranks {
		b.ranks = append(b.ranks, map[string]bool{})
	}
	b.Server = httptest.NewServer(b)
	t.Cleanup(b.Close)
	return b
}

func (b *balanced) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/models":
		fmt.Fprint(w, `{"data":[{"id":"small"}]}`)
		return
	case "/metrics":
		return
	case chatRoute.path():
	default:
		http.NotFound(w, r)
		return
	}
	if r.Header.Get(rankHeader) != "" {
		b.pinned.Store(true)
	}
	body, err := io.ReadAll(r.Body)
	var req struct {
		CacheSalt string `json:"cache_salt"`
		Messages  json.RawMessage
	}
	if err != nil || json.Unmarshal(body, &req) != nil {
		http.Error(w, "bad", http.StatusBadRequest)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	key := string(bytes.TrimSpace(req.Messages))
	if b.salted {
		key += req.CacheSalt
	}
	cache := b.ranks[b.next%len(b.ranks)]
	b.next++
	cached := 0
	if cache[key] {
		cached = len(req.Messages) / 16 * 16
	}
	cache[key] = true
	fmt.Fprintf(w, `{"choices":[],"usage":{"prompt_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`, len(req.Messages), cached)
}

// A probe that came to another rank than the one before shows nothing.
func TestIsolationIsProvenOverRanksThatTheEngineChooses(t *testing.T) {
	for _, c := range []struct {
		name   string
		ranks  int
		salted bool
	}{
		{"two ranks, the salt is honoured", 2, true},
		{"two ranks, the salt is ignored", 2, false},
		{"three ranks, the salt is honoured", 3, true},
		{"three ranks, the salt is ignored", 3, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			engine := newBalanced(t, c.ranks, c.salted)
			w := newWorld(t, func(cfg *Config) {
				cfg.Engine = Engine{URL: engine.URL, Kind: SGLang, Ranks: c.ranks, BlockSize: 16}
			})
			w.ready()
			if got := w.relay.engineInfo().isolated(chatRoute); got != c.salted {
				t.Errorf("proven: %v", got)
			}
		})
	}
}

// What serves one domain only is for that domain, on both sides: gateways are
// told which it is in a form that only who knows it can read.
func TestARouteWithoutIsolationServesTheConfiguredDomainAndNoOther(t *testing.T) {
	for _, c := range []struct {
		name   string
		engine func(*faulty) Engine
	}{
		{"an engine that ignores the salt", func(f *faulty) Engine { f.noSalt = true; return Engine{URL: f.URL, Kind: VLLM} }},
		{"a hosted API", func(f *faulty) Engine { return Engine{URL: f.URL, Kind: External} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFaulty(t)
			w := newWorld(t, func(cfg *Config) {
				cfg.Engine = c.engine(f)
				cfg.SaltDomain = "domain-a"
			})
			w.ready()
			flt := w.fleetOf()
			eventually(t, "the replica is watched", func() bool { return flt.Replicas()[0].Excluded == "" })
			ask := func(domain string) error {
				res, err := flt.Reserve(t.Context(), fleet.Request{Pools: []string{"general"}, Model: "small", Domain: domain, Operation: string(chatRoute), PromptTokens: 10})
				if err == nil {
					res.Release()
				}
				return err
			}
			if err := ask("domain-a"); err != nil {
				t.Errorf("the gateway, its domain: %v", err)
			}
			for _, domain := range []string{"domain-b", "", "domain-a "} {
				if err := ask(domain); err == nil || !strings.Contains(err.Error(), "route_not_isolated") {
					t.Errorf("the gateway, domain %q: %v", domain, err)
				}
			}
			if code, text := w.post(w.sign(w.ticketFor(chatBody)), chatBody); code != http.StatusOK {
				t.Errorf("the relay, its domain: %d %s", code, text)
			}
			other := w.ticketFor(chatBody)
			other.Domain = "domain-b"
			if code, text := w.post(w.sign(other), chatBody); code != http.StatusForbidden || !strings.Contains(text, "route_not_isolated") {
				t.Errorf("the relay, another domain: %d %s", code, text)
			}
			book := newPicturebook(t)
			if err := follow(w.watch(t.Context()), book, func() bool { return book.ready }); err != nil {
				t.Fatal(err)
			}
			if h := book.hello; strings.Contains(h.String(), "domain-a") || h.GetSoleDomain() == 0 || len(h.GetRoutesSole()) == 0 || len(h.GetRoutesIsolated()) != 0 {
				t.Errorf("hello %v", h)
			}
		})
	}
}

func TestWithoutAConfiguredDomainAnUnprovenRouteIsNobodys(t *testing.T) {
	f := newFaulty(t)
	f.noSalt = true
	w := newWorld(t, withEngine(f))
	w.ready()
	book := newPicturebook(t)
	if err := follow(w.watch(t.Context()), book, func() bool { return book.ready }); err != nil {
		t.Fatal(err)
	}
	if h := book.hello; h.GetSoleDomain() != 0 || len(h.GetRoutesSole()) != 0 {
		t.Errorf("hello %v", h)
	}
}
