package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/test/await"
)

// service is one gateway that serves.
type service struct {
	*world
	tb     testing.TB
	g      *Gateway
	url    string
	client *http.Client
	logged *lines
}

// lines collects log lines.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// serve starts a gateway in the world, with its configuration edited.
func serve(tb testing.TB, edits ...func(*Config)) *service {
	tb.Helper()
	w := inWorld(tb)
	await.That(tb, "every replica to be well", w.whole) // one that was busy is left alone for a while
	cfg, err := w.config()
	if err != nil {
		tb.Fatal(err)
	}
	s := &service{world: w, tb: tb, logged: new(lines)}
	cfg.Logger = slog.New(slog.NewTextHandler(s.logged, nil))
	for _, edit := range edits {
		edit(&cfg)
	}
	if cfg.Denials == nil {
		cfg.Denials = audit.NewDenials(cfg.Log, 64)
	}
	if s.g, err = New(cfg); err != nil {
		tb.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	conf := workload.OptionalClientConfig(w.show, w.self, workload.AuthorizeDomains(spiffeid.RequireTrustDomainFromString(testDomain)))
	conf.NextProtos = []string{"h2", "http/1.1"}
	server := &http.Server{Handler: s.g.Handler(), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(tls.NewListener(l, conf))
	}()
	s.url = "https://" + l.Addr().String()
	s.client = s.clientAs(nil)
	tb.Cleanup(func() {
		_ = server.Close()
		<-done
		cfg.Upstream.Close()
		if tb.Failed() {
			tb.Log(s.logged.String())
		}
	})
	return s
}

// clientAs is a client that shows the certificate of source, if any.
func (s *service) clientAs(source *workload.Source) *http.Client {
	conf := &tls.Config{RootCAs: s.roots}
	if source != nil {
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return workload.SVIDCertificate(source)(nil)
		}
	}
	tr := &http.Transport{TLSClientConfig: conf, DisableCompression: true}
	s.tb.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 2 * await.Limit}
}

// answer is what a client got.
type answer struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

func (a answer) id() string { return a.header.Get("Sallyport-Decision-Id") }

// code is that of an error body.
func (a answer) code() string {
	var b struct{ Error struct{ Code string } }
	_ = json.Unmarshal([]byte(a.body), &b)
	return b.Error.Code
}

// newMark is a word that no other test uses and that no detector minds.
func (w *world) newMark() string {
	letters := strings.Map(func(r rune) rune { return r - '0' + 'a' }, fmt.Sprint(w.marks.Add(1)))
	return "mark-" + letters + "-"
}

// chat is a body whose prompt holds mark, with more fields.
func chat(mark string, more ...string) string {
	fields := append([]string{`"model":"small"`, `"messages":[{"role":"user","content":"` + mark + ` Tell me about harbours."}]`}, more...)
	return "{" + strings.Join(fields, ",") + "}"
}

const streamed = `"stream":true`

// request builds a chat request of a caller; header is name, value, name, ….
func (s *service) request(ctx context.Context, who, body string, header ...string) *http.Request {
	s.tb.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		s.tb.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if who != "" {
		req.Header.Set("Authorization", "Bearer "+s.tokens[who])
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return req
}

// post sends a chat request and reads the whole answer.
func (s *service) post(who, body string, header ...string) answer {
	s.tb.Helper()
	return s.do(s.request(s.tb.Context(), who, body, header...))
}

func (s *service) do(req *http.Request) answer {
	s.tb.Helper()
	return s.doing(req, func() {})
}

// doing sends a request, and does meanwhile what there is to do once the answer
// has begun.
func (s *service) doing(req *http.Request, meanwhile func()) answer {
	s.tb.Helper()
	resp, err := s.client.Do(req)
	if err != nil {
		s.tb.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body := bufio.NewReader(resp.Body)
	if _, err := body.Peek(1); err == nil {
		meanwhile()
	}
	b, err := io.ReadAll(body)
	return answer{resp.StatusCode, resp.Header, string(b), err}
}

// want fails the test unless a has that status and, for refusals, that code.
func (s *service) want(a answer, status int, code string) {
	s.tb.Helper()
	if a.status != status || a.code() != code {
		s.tb.Fatalf("got %d %s, want %d %s", a.status, a.body, status, code)
	}
}

// records are those of one decision, in order.
func (w *world) records(tb testing.TB, id string) (records []*audit.Record) {
	tb.Helper()
	entries, err := tlog.Find(w.logDir, id, 0)
	if err != nil && !errors.Is(err, tlog.ErrNotFound) {
		tb.Fatal(err)
	}
	for _, e := range entries {
		records = append(records, tlogtest.Decode(tb, e))
	}
	return records
}

// story is what the log says of a request: its decisions and outcomes.
func (s *service) story(a answer) (decisions, outcomes []*audit.Record) {
	s.tb.Helper()
	if a.id() == "" {
		s.tb.Fatalf("no decision id with %d %s", a.status, a.body)
	}
	return s.storyOf(a.id())
}

// storyOf waits until each decision that allowed has its outcome, which is
// written after the caller's last byte.
func (s *service) storyOf(id string) (decisions, outcomes []*audit.Record) {
	s.tb.Helper()
	await.That(s.tb, "the outcome of "+id, func() bool {
		decisions, outcomes = nil, nil
		owed := 0
		for _, r := range s.records(s.tb, id) {
			switch r.Kind {
			case audit.KindDecision:
				decisions = append(decisions, r)
				if r.Status == audit.StatusAllowed {
					owed++
				}
			case audit.KindOutcome:
				outcomes = append(outcomes, r)
			default:
			}
		}
		return len(decisions) > 0 && owed == len(outcomes)
	})
	return decisions, outcomes
}

// lone is the story of a request that took one attempt.
func (s *service) lone(a answer) (decision, outcome *audit.Record) {
	s.tb.Helper()
	d, o := s.story(a)
	if len(d) != 1 || len(o) > 1 {
		s.tb.Fatalf("%d decisions and %d outcomes", len(d), len(o))
	}
	if len(o) == 0 {
		return d[0], nil
	}
	return d[0], o[0]
}

// unreached fails the test if an engine got a request with mark.
func (s *service) unreached(mark string) {
	s.tb.Helper()
	if got := s.engine.got(mark); len(got) != 0 {
		s.tb.Fatalf("an engine got %d requests", len(got))
	}
}

// events are the data of a stream of server-sent events.
func events(body string) (data []string) {
	for block := range strings.SplitSeq(body, "\n\n") {
		if d, ok := strings.CutPrefix(block, "data: "); ok {
			data = append(data, d)
		}
	}
	return data
}
