package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sallyport-ai/sallyport/routing/kvevents"
	"github.com/sallyport-ai/sallyport/routing/prompt"
)

// Config describes one stand-in engine. Listen, Model and Prompt are required.
type Config struct {
	Listen      string        // host:port of the HTTP surface
	Model       string        // served name
	Adapters    []string      // names of LoRA adapters on it
	Prompt      *prompt.Model // tokenizer and chat template
	EndToken    string        // special token that ends an answer; empty means <|im_end|>
	Blocks      int           // capacity of the cache; 0 means 1024
	BlockSize   int           // tokens in a block; 0 means 16
	MaxModelLen int           // 0 means 8192 tokens, or the cache if that is smaller
	Events      string        // endpoint the events are published on; empty publishes none
	Connect     bool          // connect to Events instead of binding it, as vLLM does for some endpoints
	Replay      string        // endpoint that answers for past batches; empty for none, vLLM's default
	Topic       string
	Form        kvevents.Form // encoding of events
	Timing      Timing
	Sentences   int      // in an answer, or one more; 0 means 2
	SaltBlind   []string // paths that ignore cache_salt
	Logger      *slog.Logger
}

// Engine is one running stand-in.
type Engine struct {
	cfg      Config
	end      uint32 // id of the end token
	http     net.Listener
	pub      *kvevents.Publisher
	replay   *kvevents.ReplayServer
	commands chan func(*scheduler)
	stopped  chan struct{} // closed when the scheduler's goroutine has ended
	seq      uint64        // of the next batch; owned by the scheduler's goroutine
}

// New binds the engine's addresses. The caller must call Run or Close.
func New(cfg Config) (*Engine, error) {
	if cfg.Model == "" || cfg.Prompt == nil {
		return nil, errors.New("sim: model and prompt are required")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Blocks = positive(cfg.Blocks, 1024)
	cfg.Sentences = positive(cfg.Sentences, 2)
	cfg.BlockSize = positive(cfg.BlockSize, 16)
	cfg.MaxModelLen = min(positive(cfg.MaxModelLen, 8192), cfg.Blocks*cfg.BlockSize)
	cfg.Timing = cfg.Timing.withDefaults()
	if cfg.EndToken == "" {
		cfg.EndToken = "<|im_end|>"
	}
	end := cfg.Prompt.Encode(cfg.EndToken, true)
	if len(end) != 1 {
		return nil, fmt.Errorf("sim: %q is not one token of the model", cfg.EndToken)
	}
	e := &Engine{cfg: cfg, end: end[0], commands: make(chan func(*scheduler)), stopped: make(chan struct{})}
	if err := e.bind(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func positive(n, def int) int {
	if n <= 0 {
		return def
	}
	return n
}

func (e *Engine) bind() (err error) {
	if e.http, err = net.Listen("tcp", e.cfg.Listen); err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	if e.cfg.Events != "" {
		listen := e.cfg.Events
		if e.cfg.Connect {
			listen = ""
		}
		if e.pub, err = kvevents.NewPublisher(kvevents.PublisherConfig{Listen: listen}); err != nil {
			return fmt.Errorf("sim: publish events: %w", err)
		}
	}
	if e.cfg.Replay != "" {
		if e.replay, err = kvevents.NewReplayServer(kvevents.ReplayConfig{Listen: e.cfg.Replay, TopicFrame: true}); err != nil {
			return fmt.Errorf("sim: serve replays: %w", err)
		}
	}
	return nil
}

// Close releases what New bound. Run does so itself when it ends.
func (e *Engine) Close() error {
	var errs []error
	if e.http != nil {
		if err := e.http.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if e.pub != nil {
		errs = append(errs, e.pub.Close())
	}
	if e.replay != nil {
		errs = append(errs, e.replay.Close())
	}
	return errors.Join(errs...)
}

// URL is the base of the HTTP surface.
func (e *Engine) URL() string { return "http://" + e.http.Addr().String() }

// EventsEndpoint is where events are published, as bound.
func (e *Engine) EventsEndpoint() string {
	if e.pub == nil {
		return ""
	}
	return e.pub.Addr()
}

// ReplayEndpoint is where replays are asked for, as bound.
func (e *Engine) ReplayEndpoint() string {
	if e.replay == nil {
		return ""
	}
	return e.replay.Addr()
}

// Run serves until ctx ends.
func (e *Engine) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	server := &http.Server{
		Handler:           e.routes(),
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	if e.cfg.Connect {
		work.Go(func() { e.connect(ctx) })
	}
	work.Go(func() {
		defer close(e.stopped)
		e.loop(ctx)
	})
	work.Go(func() {
		<-ctx.Done()
		_ = server.Close() // an engine that dies does not say goodbye
	})
	err := server.Serve(e.http)
	cancel()
	work.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return errors.Join(err, e.Close())
}

// connect keeps trying, since the other side may start later.
func (e *Engine) connect(ctx context.Context) {
	for {
		err := e.pub.Connect(ctx, e.cfg.Events)
		if err == nil || ctx.Err() != nil {
			return
		}
		e.cfg.Logger.Debug("event subscriber not there yet", "endpoint", e.cfg.Events, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// loop owns the scheduler.
func (e *Engine) loop(ctx context.Context) {
	s := &scheduler{cache: newCache(e.cfg.Blocks, e.cfg.BlockSize), timing: e.cfg.Timing, budget: 2048, maxRunning: 64}
	for {
		if s.idle() {
			select {
			case <-ctx.Done():
				return
			case f := <-e.commands:
				f(s)
			}
			continue
		}
		select {
		case f := <-e.commands:
			f(s)
			continue
		default:
		}
		out, cost := s.step()
		select {
		case <-ctx.Done():
			return
		case <-time.After(cost):
		}
		e.publish(s.cache.takeEvents())
		for _, o := range out {
			o.seq.emit(o.token, o.last)
		}
	}
}

// publish sends the events of one step as one batch.
func (e *Engine) publish(events []kvevents.Event) {
	if e.pub == nil || len(events) == 0 {
		return
	}
	b := kvevents.Batch{TS: float64(time.Now().UnixMicro()) / 1e6, Rank: 0, Events: events}
	m := kvevents.Message{Topic: e.cfg.Topic, Seq: e.seq, Payload: kvevents.AppendBatch(nil, &b, e.cfg.Form)}
	e.seq++
	if e.replay != nil {
		e.replay.Append(m)
	}
	if err := e.pub.Publish(m.Topic, m.Seq, m.Payload); err != nil {
		e.cfg.Logger.Warn("events not published", "error", err)
	}
}

// do runs f in the scheduler's goroutine and waits for it. It reports false if
// the engine or ctx has ended.
func (e *Engine) do(ctx context.Context, f func(*scheduler)) bool {
	done := make(chan struct{})
	select {
	case e.commands <- func(s *scheduler) { defer close(done); f(s) }:
		<-done
		return true
	case <-ctx.Done():
	case <-e.stopped:
	}
	return false
}
