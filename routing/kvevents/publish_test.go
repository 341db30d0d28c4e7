package kvevents

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSlowSubscriberMissesMessagesAndOthersDoNot(t *testing.T) {
	const messages, hwm = 400, 100
	p := publisher(t, PublisherConfig{Listen: "tcp://127.0.0.1:0", HWM: hwm})
	slow := subscribed(t, dial(t, p.Addr(), SUB), "") // reads nothing yet
	fast := subscribed(t, dial(t, p.Addr(), SUB), "")
	waitSubscriptions(t, p, 2)
	payload := make([]byte, 64<<10)
	for seq := range uint64(messages) {
		publish(t, p, Message{"kv", seq, payload})
		if m := recvMessage(t, fast); m.Seq != seq {
			t.Fatalf("fast subscriber got %d, want %d", m.Seq, seq)
		}
	}
	dropped := int(p.Dropped())
	if dropped == 0 || dropped > messages-hwm {
		t.Fatalf("dropped %d of %d at a high-water mark of %d", dropped, messages, hwm)
	}
	last := -1
	for range messages - dropped {
		m := recvMessage(t, slow)
		if int(m.Seq) <= last {
			t.Fatalf("message %d after %d", m.Seq, last)
		}
		last = int(m.Seq)
	}
}

func TestSubscriptionsAreCounted(t *testing.T) {
	p := publisher(t, PublisherConfig{Listen: "tcp://127.0.0.1:0"})
	c := subscribed(t, dial(t, p.Addr(), SUB), "kv", "kv", "other")
	waitSubscriptions(t, p, 2)
	if err := errors.Join(c.Unsubscribe("kv"), c.Unsubscribe("never"), c.Unsubscribe("other")); err != nil {
		t.Fatal(err)
	}
	waitSubscriptions(t, p, 1)
	publish(t, p, Message{"other", 1, []byte("x")})
	publish(t, p, Message{"kv", 2, []byte("x")})
	if m := recvMessage(t, c); m.Seq != 2 {
		t.Errorf("received %d, want 2", m.Seq)
	}
}

func TestSubscriberWithTooManySubscriptionsIsDropped(t *testing.T) {
	p := publisher(t, PublisherConfig{Listen: "tcp://127.0.0.1:0"})
	c := dial(t, p.Addr(), SUB)
	for i := range maxSubscriptions + 1 {
		if c.Subscribe(fmt.Sprint(i)) != nil {
			break // already dropped
		}
	}
	if _, err := c.Recv(); err == nil {
		t.Error("the subscriber was kept")
	}
}

func TestOnlySubscribersSubscribe(t *testing.T) {
	s := replayServer(t, ReplayConfig{Listen: "tcp://127.0.0.1:0"})
	if err := dial(t, s.Addr(), DEALER).Subscribe(""); err == nil {
		t.Error("a DEALER subscribed")
	}
}

func TestSendRefusesWhatAPeerWould(t *testing.T) {
	s := replayServer(t, ReplayConfig{Listen: "tcp://127.0.0.1:0"})
	c := dial(t, s.Addr(), DEALER)
	for name, parts := range map[string][][]byte{
		"no parts":       nil,
		"too many parts": make([][]byte, MaxParts+1),
		"too large":      {make([]byte, MaxFrame), {1}},
	} {
		if c.Send(parts) == nil {
			t.Errorf("sent a message of %s", name)
		}
	}
	if err := c.Send([][]byte{make([]byte, MaxFrame)}); err != nil {
		t.Errorf("the largest message was refused: %v", err)
	}
}

// replayOf collects the sequence numbers of a replay.
func replayOf(ctx context.Context, at string, from uint64) (seqs []uint64, next uint64, err error) {
	next, err = Replay(ctx, at, from, Options{}, func(m Message) error {
		seqs = append(seqs, m.Seq)
		return nil
	})
	return seqs, next, err
}

func TestReplayRingKeepsTheLast(t *testing.T) {
	s := replayServer(t, ReplayConfig{Listen: "tcp://127.0.0.1:0", Buffer: 4, TopicFrame: true})
	for seq := range uint64(11) {
		s.Append(Message{"kv", seq, []byte("x")})
	}
	seqs, next, err := replayOf(t.Context(), s.Addr(), 7)
	if err != nil || next != 11 || !slices.Equal(seqs, []uint64{7, 8, 9, 10}) {
		t.Errorf("from 7: %v, next %d, %v", seqs, next, err)
	}
	var hole *HoleError
	seqs, next, err = replayOf(t.Context(), s.Addr(), 6)
	if !errors.As(err, &hole) || *hole != (HoleError{6, 7}) || next != 11 || len(seqs) != 4 {
		t.Errorf("from 6: %v, next %d, %v; want a hole from 6 to 7", seqs, next, err)
	}
}

func TestReplayRefusesNonsense(t *testing.T) {
	answer := func(seqs ...uint64) []byte {
		var b []byte
		for _, s := range seqs {
			b = appendFrame(appendFrame(appendFrame(b, flagMore, nil), flagMore, seq8(s)), 0, []byte("x"))
		}
		return b
	}
	for _, tt := range []struct {
		name string
		raw  []byte
		seqs []uint64
		want string
	}{
		{"older than asked for", answer(4), nil, "out of sequence"},
		{"the same again", answer(5, 5), []uint64{5}, "out of sequence"},
		{"a gap within", answer(5, 7), []uint64{5}, "out of sequence"},
		{"too few parts", appendFrame(nil, 0, nil), nil, "1 parts"},
		{"no delimiter", appendFrame(appendFrame(appendFrame(nil, flagMore, []byte("x")), flagMore, seq8(5)), 0, []byte("x")), nil, "parts"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at := rawPeer(t, says(rawReady(1, "ROUTER"), tt.raw))
			seqs, _, err := replayOf(t.Context(), at, 5)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !slices.Equal(seqs, tt.seqs) {
				t.Errorf("%v, %v; want %v and %q", seqs, err, tt.seqs, tt.want)
			}
		})
	}
}

func TestReplayEndsWithItsContextAndItsCaller(t *testing.T) {
	silent := rawPeer(t, says(rawReady(1, "ROUTER")))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := replayOf(ctx, silent, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent engine: %v, want that the deadline passed", err)
	}
	lost := rawPeer(t, func(c net.Conn) {
		says(rawReady(1, "ROUTER"))(c)
		_ = c.Close()
	})
	if _, _, err := replayOf(t.Context(), lost, 0); err == nil {
		t.Error("a lost connection passed for the end")
	}
	s := replayServer(t, ReplayConfig{Listen: "tcp://127.0.0.1:0"})
	s.Append(Message{"", 0, []byte("x")})
	enough := errors.New("enough")
	if next, err := Replay(t.Context(), s.Addr(), 0, Options{}, func(Message) error { return enough }); !errors.Is(err, enough) || next != 0 {
		t.Errorf("next %d, %v; want the caller's error", next, err)
	}
}
