package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sallyport-ai/sallyport/routing/kvevents"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
)

// Waiting times between attempts to follow the engine.
const (
	retryFirst = 50 * time.Millisecond
	retryMost  = 2 * time.Second
)

// follower keeps one rank's stream fed.
type follower struct {
	hub      *hub
	rank     int
	events   string
	replay   replaySource
	listener *kvevents.Listener // where the engine connects to us
	log      *slog.Logger
	live     kvevents.Decoder
	old      kvevents.Decoder // of replays, which interrupt the live connection
}

// replaySource hands each batch that the engine still has from a number on to
// a function, in order. nil: the engine keeps none.
type replaySource func(ctx context.Context, from uint64, each func(kvevents.Message) error) error

// replayFrom asks the engine at an endpoint; "" is nowhere.
func replayFrom(endpoint string) replaySource {
	if endpoint == "" {
		return nil
	}
	return func(ctx context.Context, from uint64, each func(kvevents.Message) error) error {
		_, err := kvevents.Replay(ctx, endpoint, from, eventOptions, each)
		return err
	}
}

var eventOptions = kvevents.Options{Heartbeat: 2 * time.Second}

// run follows the engine until ctx ends.
func (f *follower) run(ctx context.Context) {
	wait := retryFirst
	for ctx.Err() == nil {
		began := time.Now()
		err := f.follow(ctx)
		f.hub.update(f.rank, func(s *stream) { s.lost("disconnected") })
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > retryMost {
			wait = retryFirst
		}
		f.log.Debug("event stream ended", "rank", f.rank, "error", err)
		if !sleep(ctx, wait) {
			return
		}
		wait = min(2*wait, retryMost)
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// connect makes one connection to the publisher.
func (f *follower) connect(ctx context.Context) (*kvevents.Conn, error) {
	if f.listener == nil {
		return kvevents.Dial(ctx, f.events, kvevents.SUB, eventOptions)
	}
	stop := context.AfterFunc(ctx, func() { _ = f.listener.Close() }) // Accept reports it
	defer stop()
	return f.listener.Accept()
}

// follow serves one connection. Subscribing comes first, so that nothing is
// published between the end of the replay and the first live batch.
func (f *follower) follow(ctx context.Context) error {
	c, err := f.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // Recv reported why
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if err := c.Subscribe(""); err != nil {
		return err
	}
	f.connected(ctx)
	for {
		parts, err := c.Recv()
		if err != nil {
			return err
		}
		msg, err := kvevents.ParseMessage(parts)
		if err != nil {
			return fmt.Errorf("rank %d: %w", f.rank, err)
		}
		f.receive(ctx, msg)
	}
}

// connected begins a new connection with what was missed before it.
func (f *follower) connected(ctx context.Context) {
	f.hub.update(f.rank, func(s *stream) { s.connected() })
	if f.replay != nil {
		f.catchUp(ctx)
	}
}

// receive takes one live batch, and first those before it that are missing.
func (f *follower) receive(ctx context.Context, msg kvevents.Message) {
	b, err := f.live.Decode(msg.Payload)
	if err != nil {
		f.log.Warn("event batch cannot be decoded", "rank", f.rank, "seq", msg.Seq, "error", err)
		b = nil
	}
	if b != nil && b.TS > 0 {
		f.hub.observe(time.Since(time.UnixMicro(int64(b.TS * 1e6))))
	}
	if f.offer(msg, b) != hole {
		return
	}
	f.catchUp(ctx)
	if f.offer(msg, b) == hole {
		f.hub.update(f.rank, func(s *stream) {
			s.skip()
			s.offer(msg, b)
		})
	}
}

func (f *follower) offer(msg kvevents.Message, b *kvevents.Batch) (v verdict) {
	f.hub.update(f.rank, func(s *stream) { v = s.offer(msg, b) })
	return v
}

// catchUp replays what is missing; if the engine turns out to be another
// process than before, everything that it still has.
func (f *follower) catchUp(ctx context.Context) {
	for range 2 {
		if !errors.Is(f.replayOnce(ctx), errOtherHistory) {
			return
		}
	}
	// It restarted again meanwhile, or contradicts itself.
	f.hub.update(f.rank, func(s *stream) { s.set(residencyv1.State_LIVE_PARTIAL, "replay_unstable") })
}

func (f *follower) replayOnce(ctx context.Context) (err error) {
	var r *replay
	var from uint64
	f.hub.update(f.rank, func(s *stream) { r, from = s.beginReplay(), s.resume() })
	err = f.replay(ctx, from, func(msg kvevents.Message) (err error) {
		b, bad := f.old.Decode(msg.Payload)
		if bad != nil {
			b = nil
		}
		f.hub.update(f.rank, func(*stream) { err = r.offer(msg, b) })
		return err
	})
	var lost *kvevents.HoleError
	if errors.As(err, &lost) {
		err = nil // the stream saw it too
	}
	if err != nil && !errors.Is(err, errOtherHistory) {
		f.log.Warn("replay of KV events failed", "rank", f.rank, "error", err)
	}
	f.hub.update(f.rank, func(*stream) { err = r.end(err) })
	return err
}
