package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/identity/workload/workloadtest"
	"github.com/sallyport-ai/sallyport/test/await"
)

var domain = spiffeid.RequireTrustDomainFromString("test.sallyport")

// world is one SPIFFE authority with a gateway and two replicas.
type world struct {
	gateway, r0, r1 *workload.Source
}

func newWorld(t *testing.T) world {
	t.Helper()
	a := workloadtest.New(t, domain, 0)
	return world{gateway: a.Source(t, "/gateway"), r0: a.Source(t, "/pool/general/r0"), r1: a.Source(t, "/pool/general/r1")}
}

func (w world) client(t *testing.T, cfg Config) *Client {
	t.Helper()
	cfg.Own = w.gateway
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// server is a replica that counts what reaches it.
type server struct {
	Replica
	connections atomic.Int32 // accepted
	requests    atomic.Int32
	idle        chan struct{} // receives when a connection turns idle, while there is room
}

// serve runs h as the replica that own proves, for clients that admit lets in.
func serve(t *testing.T, own *workload.Source, admit workload.Authorizer, h http.HandlerFunc) *server {
	t.Helper()
	s := &server{idle: make(chan struct{}, 100)}
	ts := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		h(w, r)
	}))
	ts.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	ts.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			s.connections.Add(1)
		case http.StateIdle:
			select {
			case s.idle <- struct{}{}:
			default:
			}
		default:
		}
	}
	_ = ts.Listener.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ts.Listener = tls.NewListener(l, workload.ServerConfig(own, admit))
	ts.Start()
	t.Cleanup(func() { ts.CloseClientConnections(); ts.Close() })
	s.Replica = Replica{Address: l.Addr().String(), ID: own.ID().String()}
	return s
}

// script runs f on every connection after its handshake; f ends by closing it.
func script(t *testing.T, own *workload.Source, f func(*tls.Conn, *bufio.Reader)) Replica {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", workload.ServerConfig(own, workload.AuthorizeDomains(domain)))
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); running.Wait() })
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer func() { _ = c.Close() }()
				_ = c.SetDeadline(time.Now().Add(10 * time.Second))
				f(c.(*tls.Conn), bufio.NewReader(c))
			})
		}
	})
	return Replica{Address: l.Addr().String(), ID: own.ID().String()}
}

// reset closes c so that the other side sees a reset, not an end.
func reset(c *tls.Conn) {
	_ = c.NetConn().(*net.TCPConn).SetLinger(0)
	_ = c.NetConn().Close()
}

func post(body string) Request {
	return Request{
		Method: http.MethodPost, Path: "/v1/chat/completions", Body: []byte(body),
		Header: http.Header{"Content-Type": {"application/json"}, "User-Agent": {"sallyport"}},
	}
}

func anyone() workload.Authorizer { return workload.AuthorizeDomains(domain) }

// do sends one request and reads its whole answer.
func do(ctx context.Context, c *Client, r Replica) (string, error) {
	resp, err := c.Do(ctx, r, post(`{"n":1}`))
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(resp.Body)
	return string(b), errors.Join(err, resp.Body.Close())
}

func answer(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, text)
	}
}

func TestTheReplicaAskedForAnswers(t *testing.T) {
	w := newWorld(t)
	type got struct {
		proto, path, body string
		header            http.Header
		length            int64
	}
	seen := make(chan got, 1)
	s := serve(t, w.r0, workload.ExactID(w.gateway.ID()), func(rw http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		seen <- got{r.Proto, r.URL.Path, string(b), r.Header, r.ContentLength}
		rw.Header().Set("X-Engine", "yes")
		rw.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(rw, "answer")
	})
	resp, err := w.client(t, Config{}).Do(t.Context(), s.Replica, post(`{"a": 1}`))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	if resp.Status != http.StatusTeapot || resp.Header.Get("X-Engine") != "yes" || string(b) != "answer" {
		t.Errorf("answer: %d %v %q", resp.Status, resp.Header, b)
	}
	if resp.Peer != w.r0.ID().String() {
		t.Errorf("peer is %q, the connection proved %q", resp.Peer, w.r0.ID())
	}
	g := <-seen
	if g.proto != "HTTP/1.1" || g.path != "/v1/chat/completions" || g.body != `{"a": 1}` || g.length != 8 {
		t.Errorf("request: %+v", g)
	}
	g.header.Del("Content-Length")
	if len(g.header) != 2 {
		t.Errorf("header fields that nobody chose: %v", g.header)
	}
}

func TestIdentityFailuresAreTheirOwnKind(t *testing.T) {
	w := newWorld(t)
	t.Run("a replica that proves another ID gets no request", func(t *testing.T) {
		s := serve(t, w.r1, anyone(), answer("no"))
		_, err := do(t.Context(), w.client(t, Config{}), Replica{Address: s.Address, ID: w.r0.ID().String()})
		if !errors.Is(err, ErrIdentity) || errors.Is(err, ErrUnreachable) {
			t.Fatal(err)
		}
		if n := s.requests.Load(); n != 0 {
			t.Fatalf("%d requests reached the impostor", n)
		}
	})
	t.Run("a replica that refuses us, which shows after the handshake", func(t *testing.T) {
		s := serve(t, w.r0, workload.ExactID(w.r1.ID()), answer("no"))
		// Whether the write or the alert comes first is a race: try it often.
		for range 30 {
			if _, err := do(t.Context(), w.client(t, Config{}), s.Replica); !errors.Is(err, ErrIdentity) {
				t.Fatal(err)
			}
		}
		if n := s.requests.Load(); n != 0 {
			t.Fatalf("%d requests were served", n)
		}
	})
	t.Run("an ID that is none is never dialled", func(t *testing.T) {
		s := serve(t, w.r0, anyone(), answer("no"))
		c := w.client(t, Config{})
		for _, id := range []string{"", "r0", "https://test.sallyport/pool/general/r0"} {
			r := Replica{Address: s.Address, ID: id}
			c.Prepare(t.Context(), r)
			if _, err := do(t.Context(), c, r); !errors.Is(err, ErrIdentity) {
				t.Errorf("%q: %v", id, err)
			}
		}
		if n := s.connections.Load(); n != 0 {
			t.Fatalf("%d connections", n)
		}
	})
}

func TestABrokenConnectionIsUnreachable(t *testing.T) {
	w := newWorld(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	readRequest := func(r *bufio.Reader) {
		if req, err := http.ReadRequest(r); err == nil {
			_, _ = io.Copy(io.Discard, req.Body)
		}
	}
	for claim, r := range map[string]Replica{
		"refused":         {Address: closed.Addr().String(), ID: w.r0.ID().String()},
		"reset at once":   script(t, w.r0, func(c *tls.Conn, _ *bufio.Reader) { _ = c.Handshake(); reset(c) }),
		"closed at once":  script(t, w.r0, func(c *tls.Conn, _ *bufio.Reader) { _ = c.Handshake() }),
		"reset on asking": script(t, w.r0, func(c *tls.Conn, r *bufio.Reader) { readRequest(r); reset(c) }),
		"half a header": script(t, w.r0, func(c *tls.Conn, r *bufio.Reader) {
			readRequest(r)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Le")
		}),
		"not HTTP": script(t, w.r0, func(c *tls.Conn, r *bufio.Reader) {
			readRequest(r)
			_, _ = io.WriteString(c, "SSH-2.0-OpenSSH\r\n\r\n")
		}),
		"an endless header": script(t, w.r0, func(c *tls.Conn, r *bufio.Reader) {
			readRequest(r)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 2*maxHeaderBytes)+"\r\n\r\n")
		}),
	} {
		t.Run(claim, func(t *testing.T) {
			_, err := do(t.Context(), w.client(t, Config{}), r)
			if !errors.Is(err, ErrUnreachable) || errors.Is(err, ErrIdentity) || errors.Is(err, ErrTimeout) {
				t.Fatal(err)
			}
			if !strings.Contains(err.Error(), r.ID) {
				t.Errorf("does not say which replica: %v", err)
			}
		})
	}
}

func TestABodyThatBreaksOffIsAnError(t *testing.T) {
	w := newWorld(t)
	for claim, end := range map[string]func(*tls.Conn){"reset": reset, "closed short": func(*tls.Conn) {}} {
		t.Run(claim, func(t *testing.T) {
			r := script(t, w.r0, func(c *tls.Conn, r *bufio.Reader) {
				_, _ = http.ReadRequest(r)
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
				time.Sleep(20 * time.Millisecond) // a reset may overtake what was sent before it
				end(c)
			})
			got, err := do(t.Context(), w.client(t, Config{}), r)
			if got != "half" || !errors.Is(err, ErrUnreachable) {
				t.Fatalf("%q, %v", got, err)
			}
		})
	}
}

func TestAReplicaIsNotWaitedForForever(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		claim string
		cfg   Config
		serve http.HandlerFunc
		want  string
	}{
		{"no header", Config{HeaderTimeout: 60 * time.Millisecond}, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}, ""},
		{"a body that falls silent", Config{IdleTimeout: 60 * time.Millisecond}, func(rw http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(rw, "first")
			_ = http.NewResponseController(rw).Flush()
			<-r.Context().Done()
		}, "first"},
	} {
		t.Run(c.claim, func(t *testing.T) {
			gone := make(chan struct{})
			s := serve(t, w.r0, anyone(), func(rw http.ResponseWriter, r *http.Request) {
				defer close(gone)
				c.serve(rw, r)
			})
			client := w.client(t, c.cfg)
			var got string
			resp, err := client.Do(t.Context(), s.Replica, post("{}"))
			if err == nil {
				var b []byte
				b, err = io.ReadAll(resp.Body)
				got = string(b)
				_ = resp.Body.Close()
			}
			if got != c.want || !errors.Is(err, ErrTimeout) || errors.Is(err, ErrUnreachable) {
				t.Fatalf("%q, %v", got, err)
			}
			wait(t, gone, "the replica to be told")
		})
	}
	t.Run("a handshake that never ends", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		client := w.client(t, Config{DialTimeout: 60 * time.Millisecond})
		if _, err := do(t.Context(), client, Replica{Address: l.Addr().String(), ID: w.r0.ID().String()}); !errors.Is(err, ErrTimeout) {
			t.Fatal(err)
		}
	})
	t.Run("a slow body that never falls silent is left alone", func(t *testing.T) {
		s := serve(t, w.r0, anyone(), func(rw http.ResponseWriter, r *http.Request) {
			for range 6 {
				_, _ = io.WriteString(rw, ".")
				_ = http.NewResponseController(rw).Flush()
				time.Sleep(150 * time.Millisecond)
			}
		})
		if got, err := do(t.Context(), w.client(t, Config{IdleTimeout: 800 * time.Millisecond, HeaderTimeout: 800 * time.Millisecond}), s.Replica); got != "......" || err != nil {
			t.Fatalf("%q, %v", got, err)
		}
	})
}

// wait fails the test if c does not come soon.
func wait(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(await.Limit):
		t.Fatalf("waited in vain for %s", what)
	}
}

func TestCancellationEndsEveryPhase(t *testing.T) {
	w := newWorld(t)
	errStop := errors.New("the caller's own reason")

	t.Run("connecting", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			if c, err := l.Accept(); err == nil {
				defer func() { _ = c.Close() }()
				cancel(errStop)
				_, _ = io.Copy(io.Discard, c)
			}
		}()
		_, err = do(ctx, w.client(t, Config{}), Replica{Address: l.Addr().String(), ID: w.r0.ID().String()})
		if !errors.Is(err, errStop) {
			t.Fatal(err)
		}
	})
	for _, headers := range []bool{false, true} {
		t.Run(fmt.Sprintf("headers sent: %v", headers), func(t *testing.T) {
			arrived, gone := make(chan struct{}), make(chan struct{})
			s := serve(t, w.r0, anyone(), func(rw http.ResponseWriter, r *http.Request) {
				defer close(gone)
				_, _ = io.Copy(io.Discard, r.Body)
				if headers {
					_ = http.NewResponseController(rw).Flush()
				}
				close(arrived)
				<-r.Context().Done()
			})
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				<-arrived
				cancel(errStop)
			}()
			_, err := do(ctx, w.client(t, Config{}), s.Replica)
			if !errors.Is(err, errStop) || errors.Is(err, ErrUnreachable) {
				t.Fatal(err)
			}
			wait(t, gone, "the replica to be told")
		})
	}
	t.Run("closing the body", func(t *testing.T) {
		gone := make(chan struct{})
		s := serve(t, w.r0, anyone(), func(rw http.ResponseWriter, r *http.Request) {
			defer close(gone)
			_, _ = io.Copy(io.Discard, r.Body)
			_ = http.NewResponseController(rw).Flush()
			<-r.Context().Done()
		})
		resp, err := w.client(t, Config{}).Do(t.Context(), s.Replica, post("{}"))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		wait(t, gone, "the replica to be told")
	})
}
