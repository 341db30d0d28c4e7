package upstream

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/test/await"
)

func TestTwoReplicasNeverShareAConnection(t *testing.T) {
	w := newWorld(t)
	c := w.client(t, Config{})
	s := serve(t, w.r0, anyone(), answer("r0"))
	if _, err := do(t.Context(), c, s.Replica); err != nil {
		t.Fatal(err)
	}
	wait(t, s.idle, "the connection to turn idle")
	// The same address, where r1 has moved as far as we were told: an idle
	// connection to r0 is no answer to that.
	if _, err := do(t.Context(), c, Replica{Address: s.Address, ID: w.r1.ID().String()}); !errors.Is(err, ErrIdentity) {
		t.Fatal(err)
	}
	if n := s.requests.Load(); n != 1 {
		t.Fatalf("%d requests reached r0, one was for it", n)
	}
	// While r0's own idle connection is used again.
	before := s.connections.Load()
	if _, err := do(t.Context(), c, s.Replica); err != nil {
		t.Fatal(err)
	}
	if n := s.connections.Load() - before; n != 0 {
		t.Fatalf("%d new connections", n)
	}
}

func TestPrepareMakesTheConnectionThatDoUses(t *testing.T) {
	w := newWorld(t)
	c := w.client(t, Config{})
	s := serve(t, w.r0, anyone(), answer("ok"))
	for range 10 {
		c.Prepare(t.Context(), s.Replica) // one is enough, however often it is asked for
	}
	p, err := c.peer(s.Replica)
	if err != nil {
		t.Fatal(err)
	}
	await.That(t, "a spare connection", func() bool { return len(p.spare) == 1 && !p.ahead.Load() })
	if n := s.requests.Load(); n != 0 {
		t.Fatalf("preparing sent %d requests", n)
	}
	resp, err := c.Do(t.Context(), s.Replica, post("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if resp.Peer != w.r0.ID().String() {
		t.Errorf("peer %q", resp.Peer)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if n := s.connections.Load(); n != 1 {
		t.Fatalf("%d handshakes for one prepared request", n)
	}

	wait(t, s.idle, "the connection to turn idle")
	c.Prepare(t.Context(), s.Replica)
	if p.ahead.Load() || len(p.spare) > 0 {
		t.Error("a connection is being made although one is idle")
	}
}

func TestASpareThatGrewOldIsDropped(t *testing.T) {
	w := newWorld(t)
	c := w.client(t, Config{})
	s := serve(t, w.r0, anyone(), answer("ok"))
	c.Prepare(t.Context(), s.Replica)
	p, err := c.peer(s.Replica)
	if err != nil {
		t.Fatal(err)
	}
	await.That(t, "a spare connection", func() bool { return len(p.spare) == 1 })
	old := <-p.spare
	old.made = time.Now().Add(-spareAge)
	p.spare <- old
	if _, err := do(t.Context(), c, s.Replica); err != nil {
		t.Fatal(err)
	}
	if n := s.connections.Load(); n != 2 {
		t.Fatalf("%d connections, want the old one and a new one", n)
	}
	if _, err := old.Write([]byte("x")); err == nil {
		t.Error("the old spare is still open")
	}
	if n := p.open.Load(); n != 1 {
		t.Errorf("%d connections counted as open", n)
	}
}

func TestAFailedPreparationIsReportedByDo(t *testing.T) {
	w := newWorld(t)
	c := w.client(t, Config{})
	s := serve(t, w.r1, anyone(), answer("no"))
	r := Replica{Address: s.Address, ID: w.r0.ID().String()}
	c.Prepare(t.Context(), r)
	p, err := c.peer(r)
	if err != nil {
		t.Fatal(err)
	}
	await.That(t, "the preparation to end", func() bool { return !p.ahead.Load() })
	if _, err := do(t.Context(), c, r); !errors.Is(err, ErrIdentity) {
		t.Fatal(err)
	}
}

// A request that was sent is ours to repeat, after a record of it: net/http's
// own second attempt on a connection that died would have none.
func TestNothingIsSentTwice(t *testing.T) {
	w := newWorld(t)
	var asked atomic.Int32
	r := script(t, w.r0, func(c *tls.Conn, r *bufio.Reader) {
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			if asked.Add(1) > 1 {
				return // hang up on every request but the first of all
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	c := w.client(t, Config{})
	if _, err := do(t.Context(), c, r); err != nil {
		t.Fatal(err)
	}
	p, err := c.peer(r)
	if err != nil {
		t.Fatal(err)
	}
	await.That(t, "the connection to be idle", func() bool { return p.open.Load() == 1 && p.busy.Load() == 0 })
	again := post(`{"n":2}`)
	again.Header.Set("Idempotency-Key", "k") // net/http takes this for permission
	if _, err := c.Do(t.Context(), r, again); !errors.Is(err, ErrUnreachable) {
		t.Fatal(err)
	}
	if n := asked.Load(); n != 2 {
		t.Fatalf("the replica was asked %d times, we asked twice", n)
	}
}

func TestRetainForgetsReplicasThatAreGone(t *testing.T) {
	w := newWorld(t)
	c := w.client(t, Config{})
	release := make(chan struct{})
	s := serve(t, w.r0, anyone(), func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = http.NewResponseController(rw).Flush()
		<-release
		_, _ = io.WriteString(rw, "late")
	})
	kept := serve(t, w.r1, workload.ExactID(w.gateway.ID()), answer("r1"))
	if _, err := do(t.Context(), c, kept.Replica); err != nil {
		t.Fatal(err)
	}
	wait(t, kept.idle, "r1's connection to turn idle")
	resp, err := c.Do(t.Context(), s.Replica, post("{}"))
	if err != nil {
		t.Fatal(err)
	}
	c.Retain(func(r Replica) bool { return r == kept.Replica })
	close(release)
	if b, err := io.ReadAll(resp.Body); string(b) != "late" || err != nil {
		t.Errorf("a running exchange was disturbed: %q, %v", b, err)
	}
	_ = resp.Body.Close()
	if _, err := do(t.Context(), c, kept.Replica); err != nil {
		t.Fatal(err)
	}
	if n := kept.connections.Load(); n != 1 {
		t.Errorf("the replica that stays needed %d connections", n)
	}
	if len(c.peers) != 1 {
		t.Errorf("%d transports left", len(c.peers))
	}
}

// A connection that is being made while its replica is forgotten belongs to
// nobody.
func TestAPreparationThatComesTooLateIsDropped(t *testing.T) {
	w := newWorld(t)
	c := w.client(t, Config{})
	s := serve(t, w.r0, anyone(), answer("ok"))
	for range 20 {
		p, err := c.peer(s.Replica)
		if err != nil {
			t.Fatal(err)
		}
		c.Prepare(t.Context(), s.Replica)
		c.Close()
		await.That(t, "the preparation to end", func() bool { return !p.ahead.Load() })
		if n := p.open.Load(); n != 0 {
			t.Fatalf("%d connections are left open", n)
		}
	}
}

func TestNewNeedsAnIdentity(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Fatal("a client without an identity was made")
	}
}

func TestAConnectionTakesNoRequestsOnceItsProofIsAboutToExpire(t *testing.T) {
	w := newWorld(t)
	s := serve(t, w.r0, anyone(), answer("hello"))
	c := w.client(t, Config{})
	ask := func(want int32) {
		t.Helper()
		if _, err := do(t.Context(), c, s.Replica); err != nil {
			t.Fatal(err)
		}
		if n := s.connections.Load(); n != want {
			t.Fatalf("%d connections, want %d", n, want)
		}
		wait(t, s.idle, "the connection to be idle")
	}
	ask(1)
	ask(1) // it is used again
	p := c.peers[s.Replica]
	svid, err := w.r0.GetX509SVID()
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	renew := p.renew
	p.mu.Unlock()
	if end := svid.Certificates[0].NotAfter; renew.IsZero() || !renew.Before(end) {
		t.Fatalf("connections take requests until %v; the replica's SVID expires at %v", renew, end)
	}
	expire := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.renew = time.Now()
	}
	expire()
	ask(2)
	ask(2)

	// The one kept ready for the next request is no exception.
	p.prepare(t.Context()) // the idle one serves
	expire()
	p.transport.CloseIdleConnections()
	await.That(t, "the idle connection to close", func() bool { return p.open.Load() == 0 })
	p.prepare(t.Context())
	await.That(t, "a spare", func() bool { return len(p.spare) == 1 })
	expire()
	ask(4)
}
