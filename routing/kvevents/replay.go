package kvevents

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// endOfReplay is the sequence number, -1, that ends an engine's answer.
var endOfReplay = bytes.Repeat([]byte{0xff}, seqSize)

// A HoleError says that batches are gone from the engine's buffer: the caller
// asked for Asked and the oldest that came is First.
type HoleError struct{ Asked, First uint64 }

func (e *HoleError) Error() string {
	return fmt.Sprintf("replay begins at %d, asked for %d", e.First, e.Asked)
}

// errReplayOrder is a replay that contradicts itself.
var errReplayOrder = errors.New("replay out of sequence")

// replayStall is how long an engine may be silent within a replay. vLLM looks
// for requests every 100 ms when idle, and not at all while it publishes.
const replayStall = 10 * time.Second

// Replay asks the engine at endpoint for the batches it still has, numbered
// from and later, and gives each to deliver in order; an error of deliver ends
// the replay. It returns the number that should follow, which is from itself
// if there was nothing.
//
// An engine whose buffer no longer reaches back to from answers with what it
// has. All of that is delivered, and the error is then a [*HoleError]; deliver
// sees the same from the first message's Seq. An engine that restarted may
// have nothing as late as from: that looks like having missed nothing.
//
// Engines of the older form send no topic, and Message.Topic is empty.
func Replay(ctx context.Context, endpoint string, from uint64, opts Options, deliver func(Message) error) (next uint64, err error) {
	c, err := Dial(ctx, endpoint, DEALER, opts)
	if err != nil {
		return from, fmt.Errorf("replay: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer func() { _ = c.Close() }() // what it had to say has been read
	context.AfterFunc(ctx, func() { _ = c.Close() })
	stall := time.AfterFunc(replayStall, func() { cancel(fmt.Errorf("replay: no answer for %s", replayStall)) })
	defer stall.Stop()
	next, err = replay(c, from, func(m Message) error {
		stall.Stop() // the caller's time is not the engine's
		defer stall.Reset(replayStall)
		return deliver(m)
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return next, err
}

func replay(c *Conn, from uint64, deliver func(Message) error) (next uint64, err error) {
	request := binary.BigEndian.AppendUint64(nil, from)
	if err := c.Send([][]byte{{}, request}); err != nil {
		return from, fmt.Errorf("replay: %w", err)
	}
	var hole error
	for next = from; ; next++ {
		parts, err := c.Recv()
		if err != nil {
			return next, fmt.Errorf("replay: %w", err)
		}
		m, end, err := parseReplay(parts)
		if err != nil {
			return next, err
		}
		if end {
			return next, hole
		}
		if next == from && m.Seq > from {
			hole = &HoleError{from, m.Seq}
			next = m.Seq
		}
		if m.Seq != next {
			return next, fmt.Errorf("%w: %d, want %d", errReplayOrder, m.Seq, next)
		}
		if err := deliver(m); err != nil {
			return next, err
		}
	}
}

// parseReplay reads one answer, after the routing id has been taken off:
//
//	"" seq payload         vLLM before #45177, SGLang
//	"" topic seq payload   vLLM since
//
// It ends with a sequence number of -1 and an empty payload.
func parseReplay(parts [][]byte) (m Message, end bool, err error) {
	if len(parts) < 3 || len(parts) > 4 || len(parts[0]) != 0 {
		return Message{}, false, fmt.Errorf("replay answer of %d parts, want an empty one and 2 or 3 more", len(parts))
	}
	parts = parts[1:]
	if len(parts) == 2 {
		parts = [][]byte{nil, parts[0], parts[1]}
	}
	if bytes.Equal(parts[1], endOfReplay) || len(parts[2]) == 0 {
		return Message{}, true, nil
	}
	m, err = ParseMessage(parts)
	return m, false, err
}
