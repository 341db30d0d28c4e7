package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sallyport-ai/sallyport/routing/kvevents"
)

// rank is one data-parallel rank: a scheduler with a cache of its own, and the
// endpoints on which it tells of it.
type rank struct {
	cfg      *Config
	number   int
	pub      *kvevents.Publisher
	replay   *kvevents.ReplayServer
	commands chan func(*scheduler)
	stopped  chan struct{} // closed when the scheduler's goroutine has ended
	seq      uint64        // of the next batch; owned by the scheduler's goroutine
	requests atomic.Int64  // under way
}

// rankHeader is the header by which vLLM lets a caller choose the rank.
const rankHeader = "X-Data-Parallel-Rank"

var errRank = errors.New("there is no such data parallel rank")

// rankOf is the rank that a request asks for, else the one with the fewest
// requests.
func (e *Engine) rankOf(r *http.Request) (*rank, error) {
	if asked := r.Header.Get(rankHeader); asked != "" {
		n, err := strconv.Atoi(asked)
		if err != nil || n < 0 || n >= len(e.ranks) {
			return nil, fmt.Errorf("%w: %q", errRank, asked)
		}
		return e.ranks[n], nil
	}
	least := e.ranks[0]
	for _, r := range e.ranks[1:] {
		if r.requests.Load() < least.requests.Load() {
			least = r
		}
	}
	return least, nil
}

// rankEndpoint is where a rank publishes, as in vLLM: at the port plus its
// number, and over tcp:// only.
func rankEndpoint(endpoint string, rank int) (string, error) {
	if rank == 0 {
		return endpoint, nil
	}
	addr, isTCP := strings.CutPrefix(endpoint, "tcp://")
	host, port, err := net.SplitHostPort(addr)
	if !isTCP || err != nil {
		return "", fmt.Errorf("endpoint %q: further ranks need tcp://host:port", endpoint)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || n+uint64(rank) > 65535 {
		return "", fmt.Errorf("endpoint %q: no port for rank %d", endpoint, rank)
	}
	return "tcp://" + net.JoinHostPort(host, strconv.FormatUint(n+uint64(rank), 10)), nil
}

func (r *rank) bind() error {
	if r.cfg.Events != "" {
		listen, err := rankEndpoint(r.cfg.Events, r.number)
		if err != nil {
			return err
		}
		if r.cfg.Connect {
			listen = ""
		}
		if r.pub, err = kvevents.NewPublisher(kvevents.PublisherConfig{Listen: listen}); err != nil {
			return fmt.Errorf("publish events: %w", err)
		}
	}
	if r.cfg.Replay != "" {
		listen, err := rankEndpoint(r.cfg.Replay, r.number)
		if err != nil {
			return err
		}
		if r.replay, err = kvevents.NewReplayServer(kvevents.ReplayConfig{Listen: listen, TopicFrame: true}); err != nil {
			return fmt.Errorf("serve replays: %w", err)
		}
	}
	return nil
}

func (r *rank) close() error {
	var errs []error
	if r.pub != nil {
		errs = append(errs, r.pub.Close())
	}
	if r.replay != nil {
		errs = append(errs, r.replay.Close())
	}
	return errors.Join(errs...)
}

// connect keeps trying, since the other side may start later.
func (r *rank) connect(ctx context.Context) {
	for {
		endpoint, _ := rankEndpoint(r.cfg.Events, r.number) // bind has tried it
		err := r.pub.Connect(ctx, endpoint)
		if err == nil || ctx.Err() != nil {
			return
		}
		r.cfg.Logger.Debug("event subscriber not there yet", "endpoint", endpoint, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// loop owns the scheduler.
func (r *rank) loop(ctx context.Context) {
	s := &scheduler{cache: newCache(r.cfg.Blocks, r.cfg.BlockSize), timing: r.cfg.Timing, budget: 2048, maxRunning: 64}
	for {
		if s.idle() {
			select {
			case <-ctx.Done():
				return
			case f := <-r.commands:
				f(s)
			}
			continue
		}
		select {
		case f := <-r.commands:
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
		r.publish(s.cache.takeEvents())
		for _, o := range out {
			o.seq.emit(o.token, o.last)
		}
	}
}

// publish sends the events of one step as one batch.
func (r *rank) publish(events []kvevents.Event) {
	if r.pub == nil || len(events) == 0 {
		return
	}
	b := kvevents.Batch{TS: float64(time.Now().UnixMicro()) / 1e6, Rank: r.number, Events: events}
	m := kvevents.Message{Topic: r.cfg.Topic, Seq: r.seq, Payload: kvevents.AppendBatch(nil, &b, r.cfg.Form)}
	r.seq++
	if r.replay != nil {
		r.replay.Append(m)
	}
	if err := r.pub.Publish(m.Topic, m.Seq, m.Payload); err != nil {
		r.cfg.Logger.Warn("events not published", "error", err)
	}
}

// do runs f in the scheduler's goroutine and waits for it. It reports false if
// the engine or ctx has ended.
func (r *rank) do(ctx context.Context, f func(*scheduler)) bool {
	done := make(chan struct{})
	select {
	case r.commands <- func(s *scheduler) { defer close(done); f(s) }:
		<-done
		return true
	case <-ctx.Done():
	case <-r.stopped:
	}
	return false
}
