package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/routing/kvevents"
)

func eventsTailCommand() *cobra.Command {
	t := tail{wait: time.Second}
	cmd := &cobra.Command{
		Use:   "tail ENDPOINT",
		Short: "Follow the events that an engine publishes",
		Long: "Tail connects to a publisher (tcp://host:port or ipc://path) as a relay does, and prints what\n" +
			"it says until interrupted. A lost connection is reported and made again. With --replay it begins\n" +
			"with what the engine still has, and fills holes. Token ids and salts are never printed.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			t.endpoint, t.out, t.notes = args[0], cmd.OutOrStdout(), cmd.ErrOrStderr()
			return t.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&t.replay, "replay", "", "endpoint that answers for batches which were missed")
	cmd.Flags().BoolVar(&t.json, "json", false, "print JSON, one object per batch")
	return cmd
}

// tail prints one publisher's batches.
type tail struct {
	endpoint, replay string
	json             bool
	wait             time.Duration // before connecting again
	out, notes       io.Writer

	began   bool
	next    uint64 // expected sequence number
	ahead   bool   // a replay has printed what the live connection has yet to bring
	decoder kvevents.Decoder
}

// run ends without an error when it is interrupted.
func (t *tail) run(ctx context.Context) error {
	if err := kvevents.CheckEndpoint(t.endpoint); err != nil {
		return err
	}
	if t.replay != "" {
		if err := kvevents.CheckEndpoint(t.replay); err != nil {
			return err
		}
	}
	for {
		err := t.follow(ctx)
		var stop *printError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &stop):
			return err
		}
		fmt.Fprintf(t.notes, "%v; connecting again\n", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(t.wait):
		}
	}
}

// printError is a failure of the reader, not of the publisher.
type printError struct{ err error }

func (e *printError) Error() string { return "print batch: " + e.err.Error() }
func (e *printError) Unwrap() error { return e.err }

func (t *tail) follow(ctx context.Context) error {
	c, err := kvevents.Dial(ctx, t.endpoint, kvevents.SUB, kvevents.Options{Heartbeat: 2 * time.Second})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // Recv reported why
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if err := c.Subscribe(""); err != nil {
		return err
	}
	fmt.Fprintf(t.notes, "connected to %s\n", t.endpoint)
	if t.replay != "" {
		if err := t.fill(ctx); err != nil {
			return err
		}
	}
	for {
		parts, err := c.Recv()
		if err != nil {
			return err
		}
		m, err := kvevents.ParseMessage(parts)
		if err != nil {
			return err
		}
		if err := t.live(ctx, m); err != nil {
			return err
		}
	}
}

// live takes a published batch, and first those that are missing before it.
func (t *tail) live(ctx context.Context, m kvevents.Message) error {
	if t.began && m.Seq > t.next && t.replay != "" {
		if err := t.fill(ctx); err != nil {
			return err
		}
	}
	switch {
	case t.began && m.Seq > t.next:
		fmt.Fprintf(t.notes, "%d batches missing before %d\n", m.Seq-t.next, m.Seq)
	case t.began && m.Seq < t.next && t.ahead:
		return nil // the replay had it
	case t.began && m.Seq < t.next:
		fmt.Fprintf(t.notes, "sequence began anew at %d\n", m.Seq)
	}
	t.ahead = false
	return t.print(m)
}

// fill prints what the engine still has from the next batch on.
func (t *tail) fill(ctx context.Context) error {
	_, err := kvevents.Replay(ctx, t.replay, t.next, kvevents.Options{}, func(m kvevents.Message) error {
		t.ahead = true
		return t.print(m)
	})
	var hole *kvevents.HoleError
	var stop *printError
	switch {
	case errors.As(err, &stop):
		return err
	case errors.As(err, &hole):
		fmt.Fprintf(t.notes, "%d batches missing before %d\n", hole.First-hole.Asked, hole.First)
	case err != nil && ctx.Err() == nil:
		fmt.Fprintf(t.notes, "%v\n", err)
	}
	return nil
}

// messageJSON is a batch as published.
type messageJSON struct {
	Seq   uint64 `json:"seq"`
	Topic string `json:"topic"`
	batchJSON
	Error string `json:"error,omitempty"`
}

func (t *tail) print(m kvevents.Message) error {
	t.began, t.next = true, m.Seq+1
	out := messageJSON{Seq: m.Seq, Topic: m.Topic}
	b, err := t.decoder.Decode(m.Payload)
	if err == nil {
		out.batchJSON, err = describe(b)
	}
	if err != nil {
		out.Error = err.Error()
	}
	if t.json {
		err = json.NewEncoder(t.out).Encode(out)
	} else {
		_, err = io.WriteString(t.out, out.lines())
	}
	if err != nil {
		return &printError{err}
	}
	return nil
}

// lines is the batch as a person reads it: a line for each event.
//
//	12:00:01.250 #42 rank 0 stored 2 blocks of 16 after 1357… in GPU, salted
func (m *messageJSON) lines() string {
	head := fmt.Sprintf("#%d", m.Seq)
	if m.Error != "" {
		return head + " " + m.Error + "\n"
	}
	head = time.UnixMicro(int64(m.TS*1e6)).UTC().Format("15:04:05.000") + " " + head
	if m.Rank != nil {
		head += fmt.Sprintf(" rank %d", *m.Rank)
	}
	var b strings.Builder
	for i := range m.Events {
		fmt.Fprintf(&b, "%s %s\n", head, m.Events[i].line())
	}
	for reason, n := range m.Skipped {
		fmt.Fprintf(&b, "%s skipped %d: %s\n", head, n, reason)
	}
	if b.Len() == 0 {
		fmt.Fprintf(&b, "%s nothing\n", head)
	}
	return b.String()
}

func (e *eventJSON) line() string {
	if e.Type == "cleared" {
		return e.Type
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d blocks", e.Type, len(e.Hashes))
	if e.BlockSize > 0 {
		fmt.Fprintf(&b, " of %d, %d tokens", e.BlockSize, e.Tokens)
	}
	if len(e.Hashes) > 0 {
		fmt.Fprintf(&b, ", from %s", e.Hashes[0])
	}
	if e.Parent != nil {
		fmt.Fprintf(&b, ", after %s", *e.Parent)
	}
	for _, x := range []struct {
		name string
		text *string
	}{{"in", e.Medium}, {"adapter", e.Adapter}} {
		if x.text != nil { // what an engine says may hold what moves a terminal's cursor
			fmt.Fprintf(&b, ", %s %s", x.name, strings.Trim(strconv.QuoteToASCII(*x.text), `"`))
		}
	}
	if e.Salted {
		b.WriteString(", salted")
	}
	if e.Group != nil {
		fmt.Fprintf(&b, ", group %d", *e.Group)
	}
	return b.String()
}
