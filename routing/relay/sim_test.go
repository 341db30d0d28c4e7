package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/routing/blockid"
	"github.com/sallyport-ai/sallyport/routing/prompt"
	"github.com/sallyport-ai/sallyport/routing/residency"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
	"github.com/sallyport-ai/sallyport/routing/sim"
	"github.com/sallyport-ai/sallyport/test/await"
)

// startSim runs a stand-in engine until the returned function is called.
func startSim(t *testing.T, cfg sim.Config) (stop func()) {
	t.Helper()
	e, err := sim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("sim ended: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// freeAddr is an address that was free a moment ago.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// simWorld is a relay in front of a stand-in engine that it follows over ipc://.
func simWorld(t *testing.T, edit func(*sim.Config, *Config)) (w *world, model *prompt.Model, engine sim.Config, stop func()) {
	t.Helper()
	model, err := prompt.LoadFS(prompt.Small())
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "sp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	engine = sim.Config{
		Listen: freeAddr(t), Model: "small", Prompt: model, Blocks: 256,
		Events: "ipc://" + dir + "/e", Replay: "ipc://" + dir + "/r", Logger: slog.New(slog.DiscardHandler),
	}
	var conf Config
	edit(&engine, &conf)
	if !conf.Engine.Events.Listen {
		stop = startSim(t, engine)
	}
	w = newWorld(t, func(c *Config) {
		c.Engine.URL, c.Engine.Ranks = "http://"+engine.Listen, engine.Ranks
		c.Engine.Events = Events{Endpoint: engine.Events, Replay: engine.Replay, Listen: conf.Engine.Events.Listen}
	})
	if conf.Engine.Events.Listen {
		stop = startSim(t, engine)
	}
	w.ready()
	return w, model, engine, stop
}

// believe watches with the gateways' own client and keeps a picturebook.
func (w *world) believe() (book *picturebook, lock *sync.Mutex, ended <-chan error) {
	w.t.Helper()
	conf := workload.ClientConfig(w.gateway, workload.ExactID(spiffeid.RequireFromPath(domain, "/pool/general/r0")))
	conn, err := residency.Connect(w.t.Context(), w.relay.Addr(), conf)
	if err != nil {
		w.t.Fatal(err)
	}
	book, lock = newPicturebook(w.t), new(sync.Mutex)
	end := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(func() { cancel(); _ = conn.Close() })
	go func() {
		end <- conn.Watch(ctx, residency.Request{BlockKey: [16]byte{7}, KeyID: "k", LogVKey: w.key.vkey}, func(f *residencyv1.Frame) error {
			lock.Lock()
			defer lock.Unlock()
			book.take(f)
			return nil
		})
	}()
	return book, lock, end
}

// chat sends one turn in a domain and returns what the engine says was cached.
func (w *world) chat(domain, body string) (promptTokens, cached int) {
	w.t.Helper()
	tk := w.ticketFor(body)
	tk.Domain = domain
	code, text := w.post(w.sign(tk), body)
	if code != http.StatusOK {
		w.t.Fatalf("%d %s", code, text)
	}
	var answer struct {
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		w.t.Fatal(err)
	}
	return answer.Usage.Prompt, answer.Usage.Details.Cached
}

// predicted is what a gateway would predict for a body: the blocks of its
// prompt that the book says are held, but never the last token.
func predicted(t *testing.T, book *picturebook, model *prompt.Model, domain, body string) int {
	t.Helper()
	p, err := model.Chat(t.Context(), []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	key := blockid.Key{7}
	path := fmt.Sprintf("%x", blockid.Namespace(&key, "small", "", domain))
	held, depth := book.paths(), 0
	for _, id := range blockid.Append(nil, &key, p.IDs, 16) {
		path = fmt.Sprintf("%s/%x", path, id)
		if !held[path] {
			break
		}
		depth++
	}
	return min(depth, (len(p.IDs)-1)/16) * 16
}

func longBody(words string) string {
	text := strings.Repeat(words+" and the quick brown fox jumps over the lazy dog. ", 12)
	return fmt.Sprintf(`{"model":"small","max_tokens":4,"messages":[{"role":"user","content":%q}]}`, text)
}

func TestWhatTheRelayTellsIsWhatTheEngineServesFromItsCache(t *testing.T) {
	w, model, _, _ := simWorld(t, func(s *sim.Config, _ *Config) { s.Blocks = 128 })
	book, lock, _ := w.believe()
	eventually(t, "a live stream", func() bool { lock.Lock(); defer lock.Unlock(); return book.state[0] == residencyv1.State_LIVE })
	foretold := func(domain, body string) int {
		lock.Lock()
		defer lock.Unlock()
		return predicted(t, book, model, domain, body)
	}
	for i := range 8 {
		body := longBody(fmt.Sprintf("turn %d", i))
		shared := foretold("a", body) // the chat template's beginning, from the second turn on
		total, cached := w.chat("a", body)
		if cached != shared || cached > 16 {
			t.Errorf("of a new prompt %d tokens were foretold and %d cached", shared, cached)
		}
		want := (total - 1) / 16 * 16
		eventually(t, "the prompt's blocks", func() bool { return foretold("a", body) == want })
		if _, cached := w.chat("a", body); cached != want {
			t.Errorf("predicted %d, cached %d", want, cached)
		}
		shared = foretold("b", body)
		if _, cached := w.chat("b", body); cached != shared || cached > 16 {
			t.Errorf("of another domain %d tokens were foretold and %d cached", shared, cached)
		}
		eventually(t, "the other domain's blocks", func() bool { return foretold("b", body) == want })
	}
	// Eight prompts of two domains have been through 128 blocks: whatever was
	// evicted is not told any more, and what is told is served.
	misses, hits := 0, 0
	for i := range 8 {
		body := longBody(fmt.Sprintf("turn %d", 7-i)) // the newest are still there
		time.Sleep(4 * flushEvery)                    // no event is on its way
		want := foretold("a", body)
		_, cached := w.chat("a", body)
		if cached < want {
			t.Errorf("turn %d: predicted %d, cached %d", i, want, cached)
		}
		if want <= 16 {
			misses++
		} else {
			hits++
		}
	}
	if hits == 0 || misses == 0 {
		t.Errorf("test shows nothing: %d prompts foretold, %d not", hits, misses)
	}
}

func TestARouteOnWhichTheEngineIgnoresTheSaltIsRefusedAndTheOthersServe(t *testing.T) {
	w, _, _, _ := simWorld(t, func(s *sim.Config, _ *Config) { s.SaltBlind = []string{"/v1/completions"} })
	for _, r := range w.relay.engineInfo().routes {
		if r == completionRoute {
			t.Errorf("isolated routes %v", w.relay.engineInfo().routes)
		}
	}
	if !w.relay.engineInfo().isolated("POST /v1/chat/completions") {
		t.Error("a route that keeps domains apart is refused with the other")
	}
	body := `{"model":"small","prompt":"hello","max_tokens":2}`
	tk := w.ticketFor(body)
	tk.Op = string(completionRoute)
	resp, err := w.client.Do(w.request(t.Context(), completionRoute.path(), w.sign(tk), body))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("status %d", resp.StatusCode)
	}
}

func TestARestartedEngineHoldsNothingUntilItSaysSo(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*sim.Config, *Config)
	}{
		{"with replay", func(*sim.Config, *Config) {}},
		{"without replay", func(s *sim.Config, _ *Config) { s.Replay = "" }},
		{"an engine that connects to us", func(s *sim.Config, c *Config) {
			s.Connect, c.Engine.Events.Listen, s.Replay = true, true, ""
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // most of the time is spent waiting for the next probe
			w, model, engine, stop := simWorld(t, c.edit)
			book, lock, ended := w.believe()
			body := longBody("restart")
			w.chat("a", body)
			held := func(book *picturebook, lock *sync.Mutex) func() bool {
				return func() bool {
					lock.Lock()
					defer lock.Unlock()
					return predicted(t, book, model, "a", body) > 0
				}
			}
			eventually(t, "the blocks", held(book, lock))
			stop()
			select {
			case <-ended: // the engine's death ends the watch
			case <-time.After(await.Limit):
				t.Fatal("the watch goes on without an engine")
			}
			startSim(t, engine)
			w.ready()
			again, relock, _ := w.believe()
			eventually(t, "a stream", func() bool { relock.Lock(); defer relock.Unlock(); return live(again.state[0]) })
			if held(again, relock)() {
				t.Fatal("the old engine's blocks are told of the new one")
			}
			if _, cached := w.chat("a", body); cached != 0 {
				t.Errorf("cached %d", cached)
			}
			eventually(t, "the blocks again", held(again, relock))
		})
	}
}

func TestARelayThatStartsLateLearnsFromTheReplayButNotItsPredecessorsSalts(t *testing.T) {
	w, _, engine, _ := simWorld(t, func(*sim.Config, *Config) {})
	body := longBody("late")
	w.chat("a", body)
	late := newWorld(t, func(c *Config) {
		c.Engine.URL, c.Engine.Ranks = "http://"+engine.Listen, engine.Ranks
		c.Engine.Events = Events{Endpoint: engine.Events, Replay: engine.Replay}
	})
	late.ready()
	book, lock, _ := late.believe()
	eventually(t, "a live stream", func() bool { lock.Lock(); defer lock.Unlock(); return book.state[0] == residencyv1.State_LIVE })
	if n := len(book.paths()); n != 0 {
		t.Errorf("%d blocks under another relay's salt are told", n)
	}
	late.relay.hub.mu.Lock()
	defer late.relay.hub.mu.Unlock()
	if n := late.relay.hub.streams[0].m.live; n == 0 {
		t.Error("the replay brought nothing")
	}
}
