package kvevents

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// quick keeps a test of a dead peer short.
var quick = Options{Handshake: 200 * time.Millisecond, Write: 200 * time.Millisecond}

// rawReady is what a well-behaved peer of some kind and version says first.
func rawReady(minor byte, kind string) []byte {
	g := greeting()
	g[11] = minor
	return append(g, appendCommand(nil, "READY", appendProperty(nil, "Socket-Type", kind))...)
}

// rawPeer listens, and lets a peer without manners loose on whoever connects.
func rawPeer(t *testing.T, behave func(net.Conn)) (endpoint string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		t.Cleanup(func() { _ = c.Close() })
		behave(c)
	}()
	return "tcp://" + l.Addr().String()
}

// says is a peer that says something and then keeps the line open.
func says(b ...[]byte) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = c.Write(bytes.Join(b, nil)) // the other side may hang up
	}
}

func TestRefusesPeersThatCannotGreet(t *testing.T) {
	with := func(at int, b ...byte) []byte {
		r := rawReady(1, "PUB")
		copy(r[at:], b)
		return r
	}
	command := func(b []byte) []byte { return append(greeting(), b...) }
	for _, tt := range []struct {
		name string
		raw  []byte
		want string
	}{
		{"says nothing", nil, "timeout"},
		{"greets by half", greeting()[:40], "timeout"},
		{"never gets ready", greeting(), "timeout"},
		{"speaks HTTP", []byte("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"), "does not speak ZMTP"},
		{"speaks ZMTP 2", with(10, 1, 0), "version 1"},
		{"wants CURVE", with(12, 'C', 'U', 'R', 'V', 'E'), `"CURVE"`},
		{"is a SUB as well", rawReady(1, "SUB"), `"SUB"`},
		{"has no type", command(appendCommand(nil, "READY", nil)), `""`},
		{"sends a message first", command(appendFrame(nil, 0, []byte("x"))), "message before READY"},
		{"sends another command first", command(appendCommand(nil, "PING", []byte{0, 0})), `"PING" before READY`},
		{"refuses us", command(appendCommand(nil, "ERROR", []byte("\x06go off"))), "go off"},
		{"cuts a property short", command(appendCommand(nil, "READY", []byte("\x0bSocket-Type\x00\x00\xff\xffPUB"))), "truncated property"},
		{"cuts a name short", command(appendCommand(nil, "READY", []byte("\x0bSocket"))), "truncated property"},
		{"has a command without a name", command(appendFrame(nil, flagCommand, nil)), "without a name"},
		{"has a command too large", command([]byte{flagCommand | flagLong, 0, 0, 0, 0, 0, 1, 0, 1}), "larger than the limit"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Dial(t.Context(), rawPeer(t, says(tt.raw)), SUB, quick)
			if err == nil {
				_ = c.Close()
				t.Fatal("a connection was made")
			}
			if tt.want == "timeout" {
				var ne net.Error
				if !errors.As(err, &ne) || !ne.Timeout() {
					t.Errorf("error %v, want a timeout", err)
				}
			} else if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q, want %q in it", err, tt.want)
			}
		})
	}
}

func TestPeerThatBreaksFramingIsLost(t *testing.T) {
	long := func(flags byte, n uint64) []byte {
		return binary.BigEndian.AppendUint64([]byte{flags | flagLong}, n)
	}
	for _, tt := range []struct {
		name string
		raw  []byte
		want string
	}{
		{"a frame larger than the limit", long(0, MaxFrame+1), "larger than the limit"},
		{"a frame of 2^64-1 bytes", long(0, 1<<64-1), "larger than the limit"},
		{"parts that are too large together", append(append(long(flagMore, MaxFrame/2), make([]byte, MaxFrame/2)...), long(0, MaxFrame/2+1)...), "larger than the limit"},
		{"endless parts", bytes.Repeat([]byte{flagMore, 0}, MaxParts+1), "more parts"},
		{"a reserved flag", []byte{0x08, 0}, "reserved"},
		{"a command with more to come", []byte{flagCommand | flagMore, 0}, "reserved"},
		{"a PING without a TTL", appendCommand(nil, "PING", []byte{1}), "malformed PING"},
		{"a PING with a long context", appendCommand(nil, "PING", make([]byte, 19)), "malformed PING"},
		{"a subscription from a publisher", appendCommand(nil, "SUBSCRIBE", nil), "SUBSCRIBE from"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Dial(t.Context(), rawPeer(t, says(rawReady(1, "PUB"), tt.raw)), SUB, quick)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if parts, err := c.Recv(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("received %d parts and %v, want %q", len(parts), err, tt.want)
			}
		})
	}
}

func TestPeerThatStopsWithinAFrameIsLost(t *testing.T) {
	whole := appendFrame(appendFrame(nil, flagMore, []byte("topic")), 0, make([]byte, 300))
	for _, n := range []int{1, 2, 4, 7, 8, 12, len(whole) - 1} {
		c, err := Dial(t.Context(), rawPeer(t, func(c net.Conn) {
			says(rawReady(1, "PUB"), whole[:n])(c)
			_ = c.(*net.TCPConn).CloseWrite()
		}), SUB, quick)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Recv(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("after %d of %d bytes: %v, want an unexpected EOF", n, len(whole), err)
		}
		_ = c.Close()
	}
}

func TestLengthAloneAllocatesLittle(t *testing.T) {
	lie := binary.BigEndian.AppendUint64([]byte{flagLong}, MaxFrame)
	r := bufio.NewReader(io.MultiReader(bytes.NewReader(lie), bytes.NewReader(make([]byte, 100_000))))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := readFrame(r, MaxFrame); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("a claim of 16 MiB with 100 kB behind it allocated %d bytes", got)
	}
}

func TestCommandsMayFallBetweenParts(t *testing.T) {
	ping := appendCommand(nil, "PING", append([]byte{0, 0}, "context"...))
	raw := bytes.Join([][]byte{
		ping, appendFrame(nil, flagMore, []byte("a")), ping,
		appendCommand(nil, "SOMETHING", []byte("new")), appendFrame(nil, 0, []byte("b")),
	}, nil)
	pongs := make(chan []byte, 1)
	at := rawPeer(t, func(c net.Conn) {
		says(rawReady(1, "PUB"), raw)(c)
		r := bufio.NewReader(c)
		if _, err := io.CopyN(io.Discard, r, greetingSize); err != nil {
			return
		}
		var got []byte
		for range 3 { // READY and two PONGs
			f, err := readFrame(r, MaxFrame)
			if err != nil {
				break
			}
			got = append(got, f.body...)
		}
		pongs <- got
	})
	c := dial(t, at, SUB)
	parts, err := c.Recv()
	if err != nil || string(bytes.Join(parts, []byte("|"))) != "a|b" {
		t.Errorf("received %q, %v", parts, err)
	}
	if got := <-pongs; !bytes.HasSuffix(got, []byte("\x04PONGcontext\x04PONGcontext")) {
		t.Errorf("answered %q, want two PONGs with the context", got)
	}
}

func TestCommandMayFollowALargestPart(t *testing.T) {
	raw := binary.BigEndian.AppendUint64([]byte{flagMore | flagLong}, MaxFrame)
	raw = append(raw, make([]byte, MaxFrame)...)
	raw = append(raw, appendCommand(nil, "PING", []byte{0, 0})...)
	raw = append(raw, appendFrame(nil, 0, nil)...)
	c := dial(t, rawPeer(t, says(rawReady(1, "PUB"), raw)), SUB)
	if parts, err := c.Recv(); err != nil || len(parts) != 2 || len(parts[0]) != MaxFrame {
		t.Errorf("received %d parts, %v", len(parts), err)
	}
}

func TestSubscribesAsThePeersVersionHasIt(t *testing.T) {
	for minor, want := range map[byte][]byte{
		0: append(appendFrame(nil, 0, []byte("\x01kv")), appendFrame(nil, 0, []byte("\x00kv"))...),
		1: append(appendCommand(nil, "SUBSCRIBE", []byte("kv")), appendCommand(nil, "CANCEL", []byte("kv"))...),
	} {
		got := make(chan []byte, 1)
		at := rawPeer(t, func(c net.Conn) {
			says(rawReady(minor, "XPUB"))(c)
			ready := len(rawReady(1, "SUB"))
			b := make([]byte, ready+len(want))
			_, _ = io.ReadFull(c, b) // what is missing shows in the comparison
			got <- b[ready:]
		})
		c := dial(t, at, SUB)
		if err := errors.Join(c.Subscribe("kv"), c.Unsubscribe("kv")); err != nil {
			t.Fatal(err)
		}
		if b := <-got; !bytes.Equal(b, want) {
			t.Errorf("a peer of ZMTP 3.%d got %q, want %q", minor, b, want)
		}
	}
}

func TestPublisherTakesSubscriptionsOfBothVersions(t *testing.T) {
	for minor, sub := range map[byte][]byte{
		0: appendFrame(nil, 0, []byte("\x01kv")),
		1: appendCommand(nil, "SUBSCRIBE", []byte("kv")),
	} {
		p := publisher(t, PublisherConfig{Listen: "tcp://127.0.0.1:0"})
		nc, err := net.Dial("tcp", strings.TrimPrefix(p.Addr(), "tcp://"))
		if err != nil {
			t.Fatal(err)
		}
		says(rawReady(minor, "SUB"), sub)(nc)
		waitSubscriptions(t, p, 1)
		_ = nc.Close()
	}
}

func TestSilentPeerIsLost(t *testing.T) {
	opts := Options{Heartbeat: 20 * time.Millisecond}
	t.Run("when it answers no PING", func(t *testing.T) {
		c, err := Dial(t.Context(), rawPeer(t, says(rawReady(1, "PUB"))), SUB, opts)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Recv(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Recv returned %v, want a deadline exceeded", err)
		}
	})
	t.Run("but not while it answers", func(t *testing.T) {
		p := publisher(t, PublisherConfig{Listen: "tcp://127.0.0.1:0"})
		c, err := Dial(t.Context(), p.Addr(), SUB, opts)
		if err != nil {
			t.Fatal(err)
		}
		subscribed(t, c, "")
		waitSubscriptions(t, p, 1)
		time.AfterFunc(10*opts.Heartbeat, func() { _ = p.Publish("kv", 1, []byte("late")) })
		if m := recvMessage(t, c); m.Seq != 1 {
			t.Errorf("received %+v", m)
		}
	})
}

func TestDialEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	at := rawPeer(t, func(net.Conn) { cancel() })
	if _, err := Dial(ctx, at, SUB, Options{Handshake: time.Minute}); !errors.Is(err, context.Canceled) {
		t.Errorf("Dial returned %v, want that it was cancelled", err)
	}
}

func TestSlowConnectionsDoNotKeepOthersOut(t *testing.T) {
	l, err := Listen("tcp://127.0.0.1:*", SUB, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 10 {
		c, err := net.Dial("tcp", strings.TrimPrefix(l.Addr(), "tcp://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	p := publisher(t, PublisherConfig{})
	go func() { _ = p.Connect(t.Context(), l.Addr()) }()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	subscribed(t, c, "")
	waitSubscriptions(t, p, 1)
	publish(t, p, Message{"kv", 3, []byte("payload")})
	if m := recvMessage(t, c); m.Seq != 3 {
		t.Errorf("received %+v", m)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	before := runtime.NumGoroutine()
	p := publisher(t, PublisherConfig{Listen: "tcp://127.0.0.1:0", Options: Options{Heartbeat: time.Second}})
	s := replayServer(t, ReplayConfig{Listen: "tcp://127.0.0.1:0"})
	l, err := Listen("tcp://127.0.0.1:0", SUB, Options{Handshake: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	sub, err := Dial(t.Context(), p.Addr(), SUB, Options{Heartbeat: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	dealer, err := Dial(t.Context(), s.Addr(), DEALER, Options{})
	if err != nil {
		t.Fatal(err)
	}
	half, err := net.Dial("tcp", strings.TrimPrefix(l.Addr(), "tcp://")) // never greets
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	go func() { _, err := sub.Recv(); ended <- err }()
	go func() { _, err := l.Accept(); ended <- err }()
	time.AfterFunc(20*time.Millisecond, func() { _ = sub.Close(); _ = l.Close() })
	for range 2 {
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("ended with %v, want that it was closed", err)
		}
	}
	if err := half.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, half); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a connection in its handshake outlived the listener")
	}
	if err := errors.Join(p.Close(), s.Close(), dealer.Close(), half.Close()); err != nil {
		t.Error(err)
	}
	if err := p.Publish("kv", 1, []byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed publisher published: %v", err)
	}
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; {
		if time.Now().After(deadline) {
			buf := make([]byte, 64<<10)
			t.Fatalf("goroutines are left:\n%s", buf[:runtime.Stack(buf, true)])
		}
		time.Sleep(time.Millisecond) // polling: an exit is not announced
	}
}

func TestIPCSocketIsPrivateAndReplacesADeadOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	p := publisher(t, PublisherConfig{Listen: "ipc://" + path})
	fi, err := os.Stat(path)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("socket has mode %v, %v; want 0600", fi.Mode(), err)
	}
	if other, err := NewPublisher(PublisherConfig{Listen: "ipc://" + path}); err == nil {
		_ = other.Close()
		t.Error("a second publisher took the socket of a live one")
	}
	dial(t, p.Addr(), SUB)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen("ipc://"+file, PUB, Options{}); err == nil {
		t.Error("a file that is no socket was replaced")
	}
}

func TestRefusesEndpointsThatAreNone(t *testing.T) {
	for _, s := range []string{"", "tcp://", "127.0.0.1:5557", "tcp://localhost", "inproc://x", "ipc://", "udp://127.0.0.1:1"} {
		if _, err := Dial(t.Context(), s, SUB, quick); err == nil {
			t.Errorf("dialled %q", s)
		}
		if _, err := Listen(s, SUB, quick); err == nil {
			t.Errorf("listened on %q", s)
		}
	}
	if _, err := Listen("tcp://127.0.0.1:0", 0, quick); err == nil {
		t.Error("listened as no kind of socket")
	}
}
