package kvevents

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A python is a process that runs testdata/peer.py.
type python struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Scanner
}

func startPython(t *testing.T) *python {
	t.Helper()
	const bin = "/usr/bin/python3"
	if out, err := exec.Command(bin, "-c", "import zmq, msgpack").CombinedOutput(); err != nil {
		t.Skipf("needs %s with pyzmq and msgpack: %v\n%s", bin, err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	cmd := exec.CommandContext(ctx, bin, filepath.Join("testdata", "peer.py"))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // killed
	})
	return &python{t, in, bufio.NewScanner(out)}
}

type answer struct {
	Pub, Replay, Endpoint, Subscription string
	Frames                              []string
	Answers                             [][]string
}

// do has the process carry out one command and waits until it is done.
func (p *python) do(format string, args ...any) answer {
	p.t.Helper()
	p.ask(format, args...)
	return p.answer()
}

func (p *python) ask(format string, args ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		p.t.Fatal(err)
	}
}

func (p *python) answer() answer {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatalf("python ended: %v", p.out.Err())
	}
	var a answer
	if err := json.Unmarshal(p.out.Bytes(), &a); err != nil {
		p.t.Fatalf("python said %q: %v", p.out.Bytes(), err)
	}
	return a
}

func subscribed(t *testing.T, c *Conn, prefixes ...string) *Conn {
	t.Helper()
	t.Cleanup(func() { _ = c.Close() })
	for _, p := range prefixes {
		if err := c.Subscribe(p); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func dial(t *testing.T, endpoint string, kind SocketKind) *Conn {
	t.Helper()
	c, err := Dial(t.Context(), endpoint, kind, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func recvMessage(t *testing.T, c *Conn) Message {
	t.Helper()
	late := time.AfterFunc(10*time.Second, func() { _ = c.Close() })
	defer late.Stop()
	parts, err := c.Recv()
	if err != nil {
		t.Fatal(err)
	}
	m, err := ParseMessage(parts)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// checkBatch decodes what peer.py's batch(seq) made.
func checkBatch(t *testing.T, m Message) {
	t.Helper()
	var d Decoder
	b, err := d.Decode(m.Payload)
	if err != nil {
		t.Fatal(err)
	}
	base := m.Seq * 1000
	if len(b.Events) != 1 || b.Rank != 0 || b.TS != 1700000000.5+float64(m.Seq) {
		t.Fatalf("batch %d: %+v", m.Seq, b)
	}
	ev := b.Events[0]
	if !slices.Equal(ev.Hashes, []Hash{IntHash(1<<63 + base), IntHash(1<<63 + base + 1)}) ||
		len(ev.Tokens) != 32 || uint64(ev.Tokens[31]) != base+31 || !ev.Dense() {
		t.Errorf("batch %d: %+v", m.Seq, ev)
	}
}

func TestFollowsLibzmqPublisher(t *testing.T) {
	for _, transport := range []string{"tcp://127.0.0.1:*", "ipc"} {
		for _, bind := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s publisher binds %v", transport, bind), func(t *testing.T) {
				py := startPython(t)
				at := transport
				if at == "ipc" {
					at = "ipc://" + filepath.Join(t.TempDir(), "events")
				}
				var c *Conn
				if bind {
					c = dial(t, py.do(`{"do":"engine","pub":%q,"bind":true}`, at).Pub, SUB)
				} else {
					l, err := Listen(at, SUB, Options{})
					if err != nil {
						t.Fatal(err)
					}
					defer l.Close()
					py.do(`{"do":"engine","pub":%q,"bind":false}`, l.Addr())
					if c, err = l.Accept(); err != nil {
						t.Fatal(err)
					}
				}
				subscribed(t, c, "kv@a", "kv@b")
				for _, want := range []string{"kv@a", "kv@b"} {
					if got := py.do(`{"do":"subscription"}`).Subscription; got != "01"+hex.EncodeToString([]byte(want)) {
						t.Fatalf("publisher got subscription %q, want %q", got, want)
					}
				}
				py.do(`{"do":"publish","seq":0,"topics":["kv@a","kv@b","other","kv@ab"]}`)
				for _, want := range []Message{{Topic: "kv@a", Seq: 0}, {Topic: "kv@b", Seq: 1}, {Topic: "kv@ab", Seq: 3}} {
					m := recvMessage(t, c)
					if m.Topic != want.Topic || m.Seq != want.Seq {
						t.Errorf("message %s %d, want %s %d", m.Topic, m.Seq, want.Topic, want.Seq)
					}
					checkBatch(t, m)
				}
				if err := c.Unsubscribe("kv@a"); err != nil {
					t.Fatal(err)
				}
				py.do(`{"do":"subscription"}`)
				py.do(`{"do":"publish","seq":4,"topics":["kv@a","kv@b"]}`)
				if m := recvMessage(t, c); m.Seq != 5 {
					t.Errorf("message %d after unsubscribing, want 5", m.Seq)
				}
			})
		}
	}
}

func TestSeesLibzmqPublisherRestart(t *testing.T) {
	at := "ipc://" + filepath.Join(t.TempDir(), "events")
	py := startPython(t)
	py.do(`{"do":"engine","pub":%q,"bind":true}`, at)
	c := subscribed(t, dial(t, at, SUB), "")
	py.do(`{"do":"subscription"}`)
	py.do(`{"do":"publish","seq":0,"topics":["","",""]}`)
	for seq := range uint64(3) {
		if m := recvMessage(t, c); m.Seq != seq {
			t.Fatalf("message %d, want %d", m.Seq, seq)
		}
	}
	py.do(`{"do":"stop"}`)
	py.do(`{"do":"engine","pub":%q,"bind":true}`, at)
	if _, err := c.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("after the publisher restarted, Recv returned %v, want EOF", err)
	}
	if _, err := c.Recv(); err == nil {
		t.Fatal("a lost connection came back to life")
	}
	c = subscribed(t, dial(t, at, SUB), "")
	py.do(`{"do":"subscription"}`)
	py.do(`{"do":"publish","seq":0,"topics":[""]}`)
	if m := recvMessage(t, c); m.Seq != 0 {
		t.Errorf("first message of the new publisher is %d, want 0", m.Seq)
	}
}

func TestReplaysFromLibzmqRouter(t *testing.T) {
	for _, topicFrame := range []bool{false, true} {
		t.Run(fmt.Sprintf("topic frame %v", topicFrame), func(t *testing.T) {
			py := startPython(t)
			at := py.do(`{"do":"engine","pub":"tcp://127.0.0.1:*","bind":true,"replay":"tcp://127.0.0.1:*","topic_frame":%v}`, topicFrame).Replay
			py.do(`{"do":"publish","seq":5,"topics":["kv","kv","kv","kv"]}`)
			for _, tt := range []struct {
				name       string
				from, next uint64
				seqs       []uint64
				hole       bool
			}{
				{"all that is kept", 5, 9, []uint64{5, 6, 7, 8}, false},
				{"the tail", 8, 9, []uint64{8}, false},
				{"nothing new", 9, 9, nil, false},
				{"more than is kept is a hole", 2, 9, []uint64{5, 6, 7, 8}, true},
			} {
				t.Run(tt.name, func(t *testing.T) {
					var seqs []uint64
					next, err := Replay(t.Context(), at, tt.from, Options{}, func(m Message) error {
						seqs = append(seqs, m.Seq)
						checkBatch(t, m)
						if topicFrame != (m.Topic == "kv") {
							t.Errorf("topic %q", m.Topic)
						}
						return nil
					})
					var hole *HoleError
					if errors.As(err, &hole) != tt.hole || (err != nil && !tt.hole) {
						t.Fatalf("error %v, want a hole: %v", err, tt.hole)
					}
					if next != tt.next || !slices.Equal(seqs, tt.seqs) {
						t.Errorf("got %v, next %d; want %v, next %d", seqs, next, tt.seqs, tt.next)
					}
				})
			}
		})
	}
}

func TestPublishesToLibzmqSubscriber(t *testing.T) {
	for _, transport := range []string{"tcp://127.0.0.1:0", "ipc"} {
		t.Run(transport, func(t *testing.T) {
			py := startPython(t)
			at := transport
			if at == "ipc" {
				at = "ipc://" + filepath.Join(t.TempDir(), "events")
			}
			p := publisher(t, PublisherConfig{Listen: at})
			py.do(`{"do":"sub","topics":["kv","x"],"endpoint":%q}`, p.Addr())
			waitSubscriptions(t, p, 2)
			for seq, topic := range []string{"kv@1", "nothing", "x"} {
				publish(t, p, Message{topic, uint64(seq), []byte("payload")})
			}
			for _, want := range []Message{{Topic: "kv@1", Seq: 0}, {Topic: "x", Seq: 2}} {
				checkFrames(t, py.do(`{"do":"recv"}`).Frames, want)
			}
			py.do(`{"do":"unsubscribe","topic":"kv"}`)
			waitSubscriptions(t, p, 1)
			publish(t, p, Message{"kv@1", 3, []byte("payload")})
			publish(t, p, Message{"x", 4, []byte("payload")})
			checkFrames(t, py.do(`{"do":"recv"}`).Frames, Message{Topic: "x", Seq: 4})
		})
	}
}

func TestHeartbeatsAreAnsweredBothWays(t *testing.T) {
	const beats = 5
	py := startPython(t)
	p := publisher(t, PublisherConfig{Listen: "tcp://127.0.0.1:0"})
	py.do(`{"do":"sub","topics":[""],"endpoint":%q}`, p.Addr()) // beats every 100 ms
	waitSubscriptions(t, p, 1)
	first := onlySubscriber(p)
	engine := py.do(`{"do":"engine","pub":"tcp://127.0.0.1:*","bind":true}`).Pub
	c, err := Dial(t.Context(), engine, SUB, Options{Heartbeat: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	subscribed(t, c, "")
	py.do(`{"do":"subscription"}`)
	py.do(`{"do":"recv","wait":%d}`, beats*100)
	py.do(`{"do":"publish","seq":0,"topics":[""]}`)
	checkBatch(t, recvMessage(t, c))
	if onlySubscriber(p) != first {
		t.Error("libzmq gave up the connection and made another")
	}
}

func onlySubscriber(p *Publisher) *subscriber {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.subs {
		return s
	}
	return nil
}

func TestConnectsToBoundLibzmqSubscriber(t *testing.T) {
	py := startPython(t)
	at := py.do(`{"do":"sub","topics":[""],"bind":true,"endpoint":"tcp://127.0.0.1:*"}`).Endpoint
	p := publisher(t, PublisherConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Connect(ctx, at) }()
	py.ask(`{"do":"recv"}`) // a bound libzmq socket subscribes from within a call
	waitSubscriptions(t, p, 1)
	publish(t, p, Message{"kv", 7, []byte("payload")})
	checkFrames(t, py.answer().Frames, Message{Topic: "kv", Seq: 7})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Connect returned %v, want that it was cancelled", err)
	}
}

func TestAnswersLibzmqDealer(t *testing.T) {
	for _, topicFrame := range []bool{false, true} {
		t.Run(fmt.Sprintf("topic frame %v", topicFrame), func(t *testing.T) {
			py := startPython(t)
			s := replayServer(t, ReplayConfig{Listen: "tcp://127.0.0.1:0", Buffer: 3, TopicFrame: topicFrame})
			for seq := range uint64(5) {
				s.Append(Message{"kv", seq, []byte("payload")})
			}
			answers := py.do(`{"do":"replay","endpoint":%q,"seq":3}`, s.Addr()).Answers
			want := [][]string{
				{"", "0000000000000003", hex.EncodeToString([]byte("payload"))},
				{"", "0000000000000004", hex.EncodeToString([]byte("payload"))},
				{"", "ffffffffffffffff", ""},
			}
			if topicFrame {
				for i := range want {
					topic := hex.EncodeToString([]byte("kv"))
					if i == len(want)-1 {
						topic = ""
					}
					want[i] = slices.Insert(want[i], 1, topic)
				}
			}
			if !equal(answers, want) {
				t.Errorf("dealer got %q, want %q", answers, want)
			}
		})
	}
}

func checkFrames(t *testing.T, frames []string, want Message) {
	t.Helper()
	m, err := ParseMessage(unhex(t, frames))
	if err != nil {
		t.Fatal(err)
	}
	if m.Topic != want.Topic || m.Seq != want.Seq || string(m.Payload) != "payload" {
		t.Errorf("subscriber got %q %d %q, want %q %d", m.Topic, m.Seq, m.Payload, want.Topic, want.Seq)
	}
}

func publisher(t *testing.T, cfg PublisherConfig) *Publisher {
	t.Helper()
	p, err := NewPublisher(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func replayServer(t *testing.T, cfg ReplayConfig) *ReplayServer {
	t.Helper()
	s, err := NewReplayServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func publish(t *testing.T, p *Publisher, m Message) {
	t.Helper()
	if err := p.Publish(m.Topic, m.Seq, m.Payload); err != nil {
		t.Fatal(err)
	}
}

// waitSubscriptions waits until the publisher's subscribers have n between them.
func waitSubscriptions(t testing.TB, p *Publisher, n int) {
	t.Helper()
	have := -1
	for deadline := time.Now().Add(10 * time.Second); have != n; {
		if time.Now().After(deadline) {
			t.Fatalf("publisher has %d subscriptions, want %d", have, n)
		}
		time.Sleep(time.Millisecond) // polling: a subscription is not acknowledged
		have = 0
		p.mu.Lock()
		for s := range p.subs {
			have += len(s.prefixes)
		}
		p.mu.Unlock()
	}
}

func seq8(u uint64) []byte { return binary.BigEndian.AppendUint64(nil, u) }
