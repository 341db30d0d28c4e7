package gateway

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
)

// script stands between relays and engines. A request whose body holds a mark
// is noted, and answered as the test that made the mark wants; all else passes.
// What only counts a prompt is apart.
type script struct {
	mu     sync.Mutex
	acts   map[string]act
	calls  map[string][]call
	counts map[string]act
	asked  map[string][]call
}

// act answers one request at an engine. pass hands it to the real one.
type act func(w http.ResponseWriter, r *http.Request, c call, pass func())

// call is a request as an engine got it.
type call struct {
	replica string
	n       int // of this mark, from 1
	path    string
	header  http.Header
	body    string
}

var markPattern = regexp.MustCompile(`mark-[a-z]+-`)

func newScript() *script {
	return &script{acts: map[string]act{}, calls: map[string][]call{}, counts: map[string]act{}, asked: map[string][]call{}}
}

// on sets what becomes of requests that hold mark.
func (s *script) on(mark string, a act) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acts[mark] = a
}

// onCount sets what becomes of counts of prompts that hold mark.
func (s *script) onCount(mark string, a act) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[mark] = a
}

// counted lists the counts of prompts that held mark.
func (s *script) counted(mark string) []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]call(nil), s.asked[mark]...)
}

// got lists the requests that held mark.
func (s *script) got(mark string) []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]call(nil), s.calls[mark]...)
}

// before puts the script before an engine.
func (s *script) before(replica, engine string) (*httptest.Server, error) {
	target, err := url.Parse(engine)
	if err != nil {
		return nil, err
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = -1
	proxy.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		pass := func() { proxy.ServeHTTP(w, r) }
		mark := markPattern.FindString(string(body))
		if mark == "" {
			pass()
			return
		}
		acts, calls := s.acts, s.calls
		if strings.HasSuffix(r.URL.Path, "/render") || r.URL.Path == "/tokenize" {
			acts, calls = s.counts, s.asked
		}
		s.mu.Lock()
		c := call{replica, len(calls[mark]) + 1, r.URL.Path, r.Header.Clone(), string(body)}
		calls[mark] = append(calls[mark], c)
		a := acts[mark]
		s.mu.Unlock()
		if a == nil {
			pass()
			return
		}
		a(w, r, c, pass)
	}))
	server.Config.ErrorLog = proxy.ErrorLog
	server.Start()
	return server, nil
}

// front is the wire before a relay. Inference on it can be cut or led elsewhere,
// while the residency stream goes on.
type front struct {
	listener net.Listener
	relay    string
	cut      atomic.Bool            // reset inference connections at their next byte
	astray   atomic.Pointer[string] // where new inference connections go instead
	running  sync.WaitGroup
	mu       sync.Mutex
	open     map[net.Conn]bool
}

func newFront(relay string) (*front, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &front{listener: l, relay: relay, open: map[net.Conn]bool{}}
	f.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.keep(c)
			f.running.Go(func() { f.carry(c) })
		}
	})
	return f, nil
}

func (f *front) address() string { return f.listener.Addr().String() }

func (f *front) keep(c net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open[c] = true
}

func (f *front) close() error {
	err := f.listener.Close()
	f.mu.Lock()
	for c := range f.open {
		_ = c.Close()
	}
	f.mu.Unlock()
	f.running.Wait()
	return err
}

// carry copies one connection. That of the residency stream is known by the
// protocol that its first bytes ask for in the clear.
func (f *front) carry(c net.Conn) {
	defer f.end(c)
	buf := make([]byte, 64<<10)
	n, err := c.Read(buf)
	if err != nil {
		return
	}
	inference := !bytes.Contains(buf[:n], []byte("\x02h2"))
	to := f.relay
	if p := f.astray.Load(); p != nil && inference {
		to = *p
	}
	up, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	f.keep(up)
	defer f.end(up)
	f.running.Go(func() {
		_, _ = io.Copy(c, up)
		_ = c.(*net.TCPConn).CloseWrite()
	})
	for err == nil {
		if inference && f.cut.Load() {
			_ = c.(*net.TCPConn).SetLinger(0) // a reset, not an end
			return
		}
		if _, err = up.Write(buf[:n]); err == nil {
			n, err = c.Read(buf)
		}
	}
	if errors.Is(err, io.EOF) {
		_ = up.(*net.TCPConn).CloseWrite()
	}
}

func (f *front) end(c net.Conn) {
	_ = c.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, c)
}
