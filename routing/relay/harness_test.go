package relay

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/mod/sumdb/note"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/identity/workload/workloadtest"
	residencyv1 "github.com/sallyport-ai/sallyport/routing/residency/v1"
	"github.com/sallyport-ai/sallyport/routing/ticket"
	"github.com/sallyport-ai/sallyport/test/await"
)

var domain = workloadtest.Domain

func authority(t testing.TB, ttl time.Duration) *workloadtest.Authority {
	t.Helper()
	return workloadtest.New(t, domain, ttl)
}

func sourceOf(t testing.TB, a *workloadtest.Authority, path string) *workload.Source {
	t.Helper()
	return a.Source(t, path, func(c *workload.SourceConfig) {
		// The partner's endpoint is away, which must disturb nothing.
		c.Federated = []workload.Federated{{TrustDomain: spiffeid.RequireTrustDomainFromString("partner.example"), Endpoint: "https://127.0.0.1:1"}}
	})
}

// logKey is a gateway's log.
type logKey struct {
	signer *ticket.Signer
	sign   func(msg []byte) ([]byte, error)
	vkey   string
}

// signRaw signs a payload that an edit has made of a ticket's.
func (k logKey) signRaw(t testing.TB, tk ticket.Ticket, edit func(string) string) string {
	t.Helper()
	good, err := k.signer.Sign(tk)
	if err != nil {
		t.Fatal(err)
	}
	encoded, _, _ := strings.Cut(good, ".")
	payload, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		t.Fatal(err)
	}
	edited := edit(string(payload))
	sig, err := k.sign([]byte("sallyport-ticket-v1\x00" + edited))
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString([]byte(edited)) + "." + base64.RawURLEncoding.EncodeToString(sig)
}

func newLogKey(t testing.TB, origin string) logKey {
	t.Helper()
	skey, vkey, err := note.GenerateKey(rand.Reader, origin)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := note.NewSigner(skey)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ticket.NewSigner(origin, ns.Sign)
	if err != nil {
		t.Fatal(err)
	}
	return logKey{s, ns.Sign, vkey}
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

// faulty is an engine whose failures tests choose: it serves chat with a cache
// of whole prompts by salt.
type faulty struct {
	*httptest.Server
	mu       sync.Mutex
	cache    map[string]bool
	requests []recorded
	lines    []string // method and path of every request
	noSalt   bool     // the salt is ignored
	noReport bool     // cached_tokens is not reported
	blocks   int      // of its cache
	asleep   bool     // says its metrics page
	answer   http.HandlerFunc
}

type recorded struct {
	path   string
	header http.Header
	body   []byte
}

func newFaulty(t testing.TB) *faulty {
	t.Helper()
	f := &faulty{cache: map[string]bool{}, blocks: 512}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	f.set(func() { f.lines = append(f.lines, r.Method+" "+r.RequestURI) })
	switch r.URL.Path {
	case "/v1/models":
		fmt.Fprint(w, `{"data":[{"id":"small"},{"id":"lora","parent":"small"}]}`)
		return
	case "/metrics":
		fmt.Fprintf(w, "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"%d\"} 1.0\nvllm:num_requests_waiting{engine=\"0\"} 0.0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n", f.blocks)
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.asleep {
			fmt.Fprint(w, "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0.0\n")
		}
		return
	case chatRoute.path(), completionRoute.path():
	default:
		http.NotFound(w, r)
		return
	}
	f.mu.Lock()
	f.requests = append(f.requests, recorded{r.URL.Path, r.Header.Clone(), body})
	answer := f.answer
	f.mu.Unlock()
	if answer != nil && r.URL.Path == chatRoute.path() && !bytes.Contains(body, []byte(`"max_tokens":1,`)) { // probes ask for one token
		answer(w, r)
		return
	}
	f.complete(w, body)
}

func (f *faulty) complete(w http.ResponseWriter, body []byte) {
	var req struct {
		CacheSalt string `json:"cache_salt"`
		Messages  json.RawMessage
		Prompt    json.RawMessage
	}
	if err := json.Unmarshal(body, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	key := req.CacheSalt + string(req.Messages) + string(req.Prompt)
	if f.noSalt {
		key = key[len(req.CacheSalt):]
	}
	tokens := len(key)
	usage := fmt.Sprintf(`"prompt_tokens":%d`, tokens)
	if !f.noReport {
		cached := 0
		if f.cache[key] {
			cached = (tokens - 1) / 16 * 16
		}
		usage += fmt.Sprintf(`,"prompt_tokens_details":{"cached_tokens":%d}`, cached)
	}
	f.cache[key] = true
	fmt.Fprintf(w, `{"choices":[],"usage":{%s}}`, usage)
}

func (f *faulty) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// seen lists every request that arrived.
func (f *faulty) seen() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.lines)
}

// forwards lists what arrived that was no probe.
func (f *faulty) forwards() (out []recorded) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		if !bytes.Contains(r.body, []byte(`"max_tokens":1,`)) {
			out = append(out, r)
		}
	}
	return out
}

// world is a relay in front of an engine, with a gateway of its pool and one of
// another.
type world struct {
	t        testing.TB
	relay    *Relay
	auth     *workloadtest.Authority
	gateway  *workload.Source
	stranger *workload.Source
	key      logKey
	log      *lines
	n        uint64
	client   *http.Client
	stop     func() error // ends the relay and returns what Run returned
}

func newWorld(t testing.TB, edit func(*Config)) *world {
	t.Helper()
	return newWorldOf(t, authority(t, time.Hour), edit)
}

func newWorldOf(t testing.TB, a *workloadtest.Authority, edit func(*Config)) *world {
	t.Helper()
	w := &world{
		t: t, auth: a, gateway: sourceOf(t, a, "/gateway/a"), stranger: sourceOf(t, a, "/gateway/other-pool"),
		key: newLogKey(t, "example.org/gateway/a"), log: new(lines),
	}
	cfg := Config{
		Listen: "127.0.0.1:0", Source: sourceOf(t, a, "/pool/general/r0"), Pool: "general",
		Gateways: []Gateway{{ID: "spiffe://example.org/gateway/a", LogVKey: w.key.vkey}},
		Engine:   Engine{Kind: VLLM}, Logger: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	edit(&cfg)
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.relay = r
	w.client = w.clientOf(w.gateway)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	w.stop = sync.OnceValue(func() error {
		cancel()
		w.client.CloseIdleConnections()
		return <-done
	})
	t.Cleanup(func() {
		if err := w.stop(); err != nil {
			t.Errorf("relay ended: %v", err)
		}
		if t.Failed() {
			t.Log(w.log.String())
		}
	})
	return w
}

// clientOf speaks HTTP/1.1 to the relay as one identity.
func (w *world) clientOf(s *workload.Source) *http.Client {
	conf := workload.ClientConfig(s, workload.ExactID(spiffeid.RequireFromPath(domain, "/pool/general/r0")))
	tr := &http.Transport{TLSClientConfig: conf, DisableCompression: true}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	await.That(t, what, ok)
}

func (w *world) ready() {
	w.t.Helper()
	eventually(w.t, "engine ready", func() bool { return w.relay.engineInfo() != nil })
}

const chatBody = `{"model":"small","messages":[{"role":"user","content":"hello"}],"temperature":0.70}`

// ticketFor is a good ticket for a body on the chat route.
func (w *world) ticketFor(body string) ticket.Ticket {
	w.n++
	return ticket.Ticket{
		ID: fmt.Sprintf("decision-%d", w.n), Attempt: 1, N: w.n, Op: string(chatRoute), Audience: w.relay.id,
		Epoch: w.relay.Epoch(), Pool: "general", Model: "small", Domain: "domain-a",
		Body: sha256.Sum256([]byte(body)), Exp: time.Now().Add(ticket.Lifetime).Unix(),
	}
}

func (w *world) sign(tk ticket.Ticket) string {
	w.t.Helper()
	h, err := w.key.signer.Sign(tk)
	if err != nil {
		w.t.Fatal(err)
	}
	return h
}

func (w *world) request(ctx context.Context, path, header, body string) *http.Request {
	w.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+w.relay.Addr()+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if header != "" {
		req.Header.Set(ticket.Header, header)
	}
	return req
}

// post sends a body on the chat route and returns status and answer.
func (w *world) post(header, body string) (int, string) {
	w.t.Helper()
	resp, err := w.client.Do(w.request(w.t.Context(), chatRoute.path(), header, body))
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// residency is a client of the residency service.
func (w *world) residency(s *workload.Source) residencyv1.ResidencyClient {
	w.t.Helper()
	conf := workload.ClientConfig(s, workload.ExactID(spiffeid.RequireFromPath(domain, "/pool/general/r0")))
	conn, err := grpc.NewClient("passthrough:///"+w.relay.Addr(), grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return residencyv1.NewResidencyClient(conn)
}

func (w *world) watchRequest() *residencyv1.WatchRequest {
	return &residencyv1.WatchRequest{Version: 1, BlockKey: bytes.Repeat([]byte{7}, 16), KeyId: "k1", LogVkey: w.key.vkey}
}

func forgedKey() ed25519.PrivateKey { return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{9}, 32)) }
