package relay

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/sallyport-ai/sallyport/audit/inbox"
	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/routing/kvevents"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
	"github.com/sallyport-ai/sallyport/routing/ticket"
)

const (
	// replayTickets bounds the tickets that are remembered at once: about
	// 7,000 requests a second for as long as a ticket lives.
	replayTickets = 256 << 10
	// stopGrace is how long the servers may take to end once nothing is to be
	// waited for any more.
	stopGrace = time.Second
)

// Relay is one relay, listening but not serving until Run.
type Relay struct {
	cfg      Config
	id       string // our SPIFFE ID
	epoch    string // random per process
	log      *slog.Logger
	engine   *engine
	salts    *salter
	register *register
	replays  *ticket.ReplaySet
	load     *load
	tickets  *tickets
	access   *access
	counts   *counters
	hub      *hub
	lis      net.Listener
	tls      *tls.Config
	admin    net.Listener // nil if there is none
	events   *kvevents.Listener

	restarted chan struct{} // holds a value when the engine may have restarted

	mu       sync.Mutex
	info     *info         // nil while the engine is not ready
	epochEnd chan struct{} // closed when info is replaced

	drain    drain
	underWay atomic.Int64 // requests
	unused   unused
}

// New checks the configuration and binds the addresses. The caller must call
// Run or Close. It does not wait for the engine.
func New(cfg Config) (*Relay, error) {
	p, err := cfg.check()
	if err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Drain <= 0 {
		cfg.Drain = drainGrace
	}
	id := cfg.Source.ID()
	if id.IsZero() {
		return nil, fmt.Errorf("relay: %w", cfg.Source.Ready())
	}
	r := &Relay{
		cfg: cfg, id: id.String(), epoch: rand.Text(), log: cfg.Logger,
		register: newRegister(p, cfg.AllowUnpinned), replays: ticket.NewReplaySet(replayTickets),
		load: newLoad(), tickets: newTickets(), counts: newCounters(),
		restarted: make(chan struct{}, 1), epochEnd: make(chan struct{}),
	}
	if r.engine, err = newEngine(cfg.Engine); err != nil {
		return nil, err
	}
	if r.salts, err = newSalter(cfg.SaltKeyFile); err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	r.hub = newHub(cfg.Engine.ranks(), cfg.Engine.Events.Replay != "", r.mirrorConfig(cfg.Engine.BlockSize, cfg.Engine.NumBlocks), r.suspectRestart)
	if r.access, err = openAccess(&cfg, r.id); err != nil {
		return nil, err
	}
	if err := r.bind(workload.AuthorizeIDs(p.ids...)); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Relay) mirrorConfig(blockSize, capacity int) mirrorConfig {
	c := mirrorConfig{blockSize: blockSize, capacity: capacity, perEvent: r.cfg.Engine.Kind == SGLang, once: r.cfg.Engine.Events.FullReports, resolve: r.salts.resolve}
	if capacity > 0 {
		c.maxNodes = max(4*capacity, 64<<10)
	}
	return c
}

func (r *Relay) bind(authorize workload.Authorizer) error {
	tcp, err := net.Listen("tcp", r.cfg.Listen)
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	conf := workload.ServerConfig(r.cfg.Source, authorize)
	conf.NextProtos = []string{alpnGRPC, alpnHTTP}
	r.lis = tcp
	r.tls = conf
	if r.cfg.Admin.Address != "" {
		if r.admin, err = r.adminListener(); err != nil {
			return fmt.Errorf("relay: admin: %w", err)
		}
	}
	if ev := r.cfg.Engine.Events; ev.Listen {
		if r.events, err = kvevents.Listen(ev.Endpoint, kvevents.SUB, eventOptions); err != nil {
			return fmt.Errorf("relay: %w", err)
		}
	}
	return nil
}

// Close releases what New took. Run does so itself when it ends.
func (r *Relay) Close() error {
	var errs []error
	for _, l := range []net.Listener{r.lis, r.admin} {
		if l == nil {
			continue
		}
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if r.events != nil {
		errs = append(errs, r.events.Close())
	}
	r.engine.transport.CloseIdleConnections()
	return errors.Join(append(errs, r.access.shut())...)
}

// Addr is where gateways connect.
func (r *Relay) Addr() string { return r.lis.Addr().String() }

// AdminAddr is the admin listener's address, or empty.
func (r *Relay) AdminAddr() string {
	if r.admin == nil {
		return ""
	}
	return r.admin.Addr().String()
}

// EventsAddr is the endpoint that a connecting engine publishes to, or empty.
func (r *Relay) EventsAddr() string {
	if r.events == nil {
		return ""
	}
	return r.events.Addr()
}

// Epoch names this process in tickets and frames.
func (r *Relay) Epoch() string { return r.epoch }

// Run serves until ctx ends or a listener breaks. When ctx ends the relay first
// drains: gateways are told, and running requests may end; the log is closed
// last.
func (r *Relay) Run(asked context.Context) error {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(asked))
	defer cancel(nil)
	var work sync.WaitGroup
	front := newFront(r.lis, r.tls, r.log)
	web := &http.Server{
		Handler: inFlight(&r.underWay, r.forward), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 5 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog:  slog.NewLogLogger(r.log.Handler(), slog.LevelDebug),
		ConnState: r.unused.note,
	}
	rpc := grpc.NewServer(
		grpc.Creds(handshaken{}), grpc.MaxRecvMsgSize(residencyv1.MaxFrame), grpc.MaxConcurrentStreams(64),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
	residencyv1.RegisterResidencyServer(rpc, &watchServer{r: r})
	serve := func(what string, f func() error) {
		work.Go(func() {
			if err := f(); ctx.Err() == nil {
				cancel(fmt.Errorf("relay: %s: %w", what, err))
			}
		})
	}
	serve("listener", func() error { return front.run(ctx) })
	serve("inference", func() error { return web.Serve(front.http) })
	serve("residency", func() error { return rpc.Serve(front.grpc) })
	if r.admin != nil {
		admin := &http.Server{Handler: r.adminRoutes(), ReadHeaderTimeout: 5 * time.Second}
		serve("admin", func() error { return admin.Serve(r.admin) })
		admin.ErrorLog = slog.NewLogLogger(r.log.Handler(), slog.LevelDebug)
		work.Go(func() { <-ctx.Done(); _ = admin.Close() }) // nothing there is worth waiting for
	}
	work.Go(func() { r.mind(ctx) })
	if r.access.log != nil {
		work.Go(func() { inbox.Run(ctx, r.cfg.Log.Dir, r.access.log, inboxEvery, r.log) })
	}
	r.followEvents(ctx, &work)
	r.log.Info("relay serving", "id", r.id, "address", r.Addr(), "pool", r.cfg.Pool, "epoch", r.epoch)
	select {
	case <-ctx.Done():
	case <-asked.Done():
		r.drainOut()
		cancel(nil)
	}
	return r.stop(ctx, front, web, rpc, &work)
}

// followEvents starts a follower per rank.
func (r *Relay) followEvents(ctx context.Context, work *sync.WaitGroup) {
	ev := r.cfg.Engine.Events
	for rank := range r.cfg.Engine.ranks() {
		if ev.Endpoint == "" {
			r.hub.update(rank, func(s *stream) { s.set(residencyv1.State_NONE, "no_events") })
			continue
		}
		// Both were checked by New.
		events, _ := rankEndpoint(ev.Endpoint, rank)
		replay, _ := rankEndpoint(ev.Replay, rank)
		f := &follower{hub: r.hub, rank: rank, events: events, replay: replayFrom(replay), listener: r.events, log: r.log}
		work.Go(func() { f.run(ctx) })
	}
}

func (r *Relay) stop(ctx context.Context, front *front, web *http.Server, rpc *grpc.Server, work *sync.WaitGroup) error {
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	front.close()
	r.setInfo(nil) // ends every Watch
	r.unused.close()
	if err := web.Shutdown(grace); err != nil {
		_ = web.Close() // what did not end in time is cut
	}
	rpc.Stop()
	work.Wait()
	r.hub.close()
	err := context.Cause(ctx)
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, r.Close())
}

// engineInfo is what the engine is, or nil while it is not ready.
func (r *Relay) engineInfo() *info {
	in, _ := r.currentInfo()
	return in
}

// currentInfo also returns a channel that is closed when the answer changes.
func (r *Relay) currentInfo() (*info, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.info, r.epochEnd
}

func (r *Relay) setInfo(in *info) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.info == nil && in == nil {
		return
	}
	r.info = in
	close(r.epochEnd)
	r.epochEnd = make(chan struct{})
}

// suspectRestart asks for a look at the engine.
func (r *Relay) suspectRestart() {
	select {
	case r.restarted <- struct{}{}:
	default:
	}
}
