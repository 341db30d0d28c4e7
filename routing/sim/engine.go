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
	Ranks       int           // data-parallel ranks, each with a cache and endpoints of its own: the port is the configured one plus the rank; 0 means 1
	Topic       string
	Form        kvevents.Form // encoding of events
	Timing      Timing
	Sentences   int      // in an answer, or one more; 0 means 2
	SaltBlind   []string // paths that ignore cache_salt
	Logger      *slog.Logger
}

// Engine is one running stand-in.
type Engine struct {
	cfg   Config
	end   uint32 // id of the end token
	http  net.Listener
	ranks []*rank
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
	e := &Engine{cfg: cfg, end: end[0]}
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
	for i := range positive(e.cfg.Ranks, 1) {
		r := &rank{cfg: &e.cfg, number: i, commands: make(chan func(*scheduler)), stopped: make(chan struct{})}
		e.ranks = append(e.ranks, r)
		if err := r.bind(); err != nil {
			return fmt.Errorf("sim: rank %d: %w", i, err)
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
	for _, r := range e.ranks {
		errs = append(errs, r.close())
	}
	return errors.Join(errs...)
}

// URL is the base of the HTTP surface.
func (e *Engine) URL() string { return "http://" + e.http.Addr().String() }

// EventsEndpoint is where the first rank's events are published, as bound.
func (e *Engine) EventsEndpoint() string {
	if e.ranks[0].pub == nil {
		return ""
	}
	return e.ranks[0].pub.Addr()
}

// ReplayEndpoint is where the first rank's replays are asked for, as bound.
func (e *Engine) ReplayEndpoint() string {
	if e.ranks[0].replay == nil {
		return ""
	}
	return e.ranks[0].replay.Addr()
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
	for _, r := range e.ranks {
		if e.cfg.Connect {
			work.Go(func() { r.connect(ctx) })
		}
		work.Go(func() {
			defer close(r.stopped)
			r.loop(ctx)
		})
	}
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
