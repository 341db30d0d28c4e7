package relay

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/routing/ticket"
)

// TestEveryFieldOfATicketIsHeld changes each field of a good ticket to another
// value of its kind and has its gateway sign it: what the relay knows better must
// refuse it, and what is the gateway's to say must serve. A field that is added
// has to be decided about here.
func TestEveryFieldOfATicketIsHeld(t *testing.T) {
	f := newFaulty(t)
	w := newWorld(t, withEngine(f))
	w.ready()
	want := map[string]string{
		"V":        "malformed_ticket",
		"ID":       "", // the gateway's own
		"Attempt":  "",
		"N":        "",
		"Op":       "wrong_operation",
		"Log":      "wrong_log",
		"Audience": "wrong_audience",
		"Epoch":    "wrong_epoch",
		"Pool":     "wrong_pool",
		"Model":    "wrong_model", // than the body's
		"Adapter":  "wrong_model",
		"Domain":   "", // it has another salt
		"Rank":     "wrong_rank",
		"Tokens":   "", // its word about its own work
		"Body":     "wrong_body",
		"Exp":      "expires_too_late",
	}
	for i := range reflect.TypeFor[ticket.Ticket]().NumField() {
		name := reflect.TypeFor[ticket.Ticket]().Field(i).Name
		t.Run(name, func(t *testing.T) {
			code, decided := want[name]
			if !decided {
				t.Fatal("nobody has said whether the relay holds it")
			}
			tk := w.ticketFor(chatBody)
			switch field := reflect.ValueOf(&tk).Elem().Field(i); field.Kind() {
			case reflect.String:
				field.SetString(field.String() + "x")
			case reflect.Int, reflect.Int64:
				field.SetInt(field.Int() + 60)
			case reflect.Uint64:
				field.SetUint(field.Uint() + 1_000_000)
			case reflect.Array:
				field.Index(0).SetUint(field.Index(0).Uint() ^ 1)
			default:
				t.Fatalf("no other value for a %s", field.Kind())
			}
			header := w.sign(tk) // sets version and log itself
			if name == "V" || name == "Log" {
				header = w.signAs(t, tk, name)
			}
			before := len(f.forwards())
			status, text := w.post(header, chatBody)
			reached := len(f.forwards()) - before
			switch {
			case code == "" && (status != http.StatusOK || reached != 1):
				t.Errorf("got %d %s, want an answer", status, text)
			case code != "" && (status != http.StatusForbidden || !strings.Contains(text, `"code":"`+code+`"`) || reached != 0):
				t.Errorf("got %d %s, %d reached the engine, want 403 %s", status, text, reached, code)
			}
		})
	}
}

// signAs is a ticket with a version or a log that the gateway's own signer would
// not give it, yet signed by its key.
func (w *world) signAs(t *testing.T, tk ticket.Ticket, field string) string {
	t.Helper()
	replace := map[string][2]string{
		"V":   {`"v":1`, `"v":61`},
		"Log": {`"log":"example.org/gateway/a"`, `"log":"example.org/gateway/ax"`},
	}[field]
	return w.key.signRaw(t, tk, func(payload string) string { return strings.Replace(payload, replace[0], replace[1], 1) })
}

func TestEveryByteOfATicketIsHeld(t *testing.T) {
	f := newFaulty(t)
	w := newWorld(t, withEngine(f))
	w.ready()
	header := w.sign(w.ticketFor(chatBody))
	for i := range len(header) {
		changed := []byte(header)
		changed[i] ^= 1
		if changed[i] == header[i] || changed[i] < '!' || changed[i] > '~' {
			continue
		}
		if status, text := w.post(string(changed), chatBody); status != http.StatusForbidden {
			t.Errorf("with byte %d changed: %d %s", i, status, text)
		}
		if status, text := w.post(header[:i], chatBody); status != http.StatusForbidden {
			t.Errorf("cut at byte %d: %d %s", i, status, text)
		}
	}
	if n := len(f.forwards()); n != 0 {
		t.Errorf("%d reached the engine", n)
	}
	if status, text := w.post(header, chatBody); status != http.StatusOK {
		t.Errorf("the ticket itself, afterwards: %d %s", status, text)
	}
}

func TestATicketCountsOnceAndForItsOwnGateway(t *testing.T) {
	f := newFaulty(t)
	b := newLogKey(t, "example.org/gateway/b")
	w := newWorld(t, func(c *Config) {
		c.Engine.URL = f.URL
		c.Gateways = append(c.Gateways, Gateway{ID: "spiffe://example.org/gateway/b", LogVKey: b.vkey})
	})
	w.ready()
	asA, asB := w.client, w.clientOf(sourceOf(t, w.auth, "/gateway/b"))
	signedBy := func(k logKey) string {
		h, err := k.signer.Sign(w.ticketFor(chatBody))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	lasting := func(d time.Duration) string {
		tk := w.ticketFor(chatBody)
		tk.Exp = time.Now().Add(d).Unix()
		return w.sign(tk)
	}
	used := w.sign(w.ticketFor(chatBody))
	for _, c := range []struct {
		claim   string
		client  *http.Client
		headers []string
		status  int
		code    string
	}{
		{"a's ticket on a's connection", asA, []string{used}, 200, ""},
		{"the same again", asA, []string{used}, 403, "replayed"},
		{"the same on b's connection", asB, []string{used}, 403, "wrong_log"},
		{"b's ticket on b's connection", asB, []string{signedBy(b)}, 200, ""},
		{"b's ticket on a's connection", asA, []string{signedBy(b)}, 403, "wrong_log"},
		{"a's ticket on b's connection, before a used it", asB, []string{w.sign(w.ticketFor(chatBody))}, 403, "wrong_log"},
		{"two tickets", asA, []string{w.sign(w.ticketFor(chatBody)), w.sign(w.ticketFor(chatBody))}, 403, "no_ticket"},
		{"one ticket twice", asA, []string{used, used}, 403, "no_ticket"},
		{"a clock that is 4 s ahead of ours", asA, []string{lasting(ticket.Lifetime + 4*time.Second)}, 200, ""},
		{"a clock that is 10 s ahead of ours", asA, []string{lasting(ticket.Lifetime + 10*time.Second)}, 403, "expires_too_late"},
		{"a clock that is 25 s behind ours", asA, []string{lasting(ticket.Lifetime - 25*time.Second)}, 200, ""},
		{"a clock that is a lifetime behind ours", asA, []string{lasting(-time.Second)}, 403, "expired"},
	} {
		req := w.request(t.Context(), chatRoute.path(), "", chatBody)
		req.Header[ticket.Header] = c.headers
		resp, err := c.client.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", c.claim, err)
		}
		text, err := io.ReadAll(resp.Body)
		if _ = resp.Body.Close(); err != nil {
			t.Fatalf("%s: %v", c.claim, err)
		}
		if resp.StatusCode != c.status || c.code != "" && !strings.Contains(string(text), `"code":"`+c.code+`"`) {
			t.Errorf("%s: %d %s", c.claim, resp.StatusCode, text)
		}
	}
	w.relay.replays = ticket.NewReplaySet(1)
	for i, want := range []int{200, 403} {
		if status, text := w.post(w.sign(w.ticketFor(chatBody)), chatBody); status != want || want == 403 && !strings.Contains(text, "replay_set_full") {
			t.Errorf("ticket %d of a set that holds one: %d %s", i+1, status, text)
		}
	}
}

func TestAConnectionProvesNothingPastItsSVID(t *testing.T) {
	f := newFaulty(t)
	w := newWorld(t, withEngine(f))
	w.ready()
	svid, err := w.gateway.GetX509SVID()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		claim      string
		begin, end time.Duration // of the certificate, from now
		code       string
		connection string // the answer's header
	}{
		{"a fresh one", 0, time.Hour, "", ""},
		{"an hour's in its last minute", -time.Hour, 50 * time.Second, "", "close"},
		{"a short one in its first half", -10 * time.Second, 40 * time.Second, "", ""},
		{"a short one in its last fifth", -50 * time.Second, 9 * time.Second, "", "close"},
		{"one that has expired", -time.Hour, -time.Second, "svid_expired", "close"},
	} {
		leaf := *svid.Certificates[0]
		leaf.NotBefore, leaf.NotAfter = time.Now().Add(c.begin), time.Now().Add(c.end)
		answer, err := w.askedBy(&tls.ConnectionState{HandshakeComplete: true, PeerCertificates: []*x509.Certificate{&leaf}})
		if got := answer.Get("Connection"); got != c.connection {
			t.Errorf("%s: Connection is %q, want %q", c.claim, got, c.connection)
		}
		if codeOf(err) != c.code {
			t.Errorf("%s: %v, want %q", c.claim, err, c.code)
		}
	}
	for claim, state := range map[string]*tls.ConnectionState{"no TLS": nil, "no certificate": {HandshakeComplete: true}} {
		if _, err := w.askedBy(state); codeOf(err) != "no_svid" {
			t.Errorf("%s: %v", claim, err)
		}
	}
}

// askedBy is what the relay makes of the peer of a connection.
func (w *world) askedBy(state *tls.ConnectionState) (http.Header, error) {
	req, answer := httptest.NewRequest(http.MethodPost, chatRoute.path(), nil), httptest.NewRecorder()
	req.TLS = state
	err := w.relay.findPeer(answer, req, new(forwarded))
	return answer.Header(), err
}

func codeOf(err error) string {
	var no *refusal
	if errors.As(err, &no) {
		return no.code
	}
	return ""
}

func TestABodyThatBreaksOffIsRefusedAsSuch(t *testing.T) {
	f := newFaulty(t)
	w := newWorld(t, withEngine(f))
	w.ready()
	raw := w.rawConn(t)
	if _, err := fmt.Fprintf(raw.c, "%s HTTP/1.1\r\nHost: relay\r\n%s: %s\r\nContent-Length: %d\r\n\r\n%s", chatRoute, ticket.Header, w.sign(w.ticketFor(chatBody)), len(chatBody)+1, chatBody); err != nil {
		t.Fatal(err)
	}
	if err := raw.c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a refusal", func() bool { return strings.Contains(w.log.String(), "code=unreadable_body") })
	if n := len(f.forwards()); n != 0 {
		t.Errorf("%d reached the engine", n)
	}
}

// spellings are ways to write a path that some server takes for the path.
func spellings(path string) []string {
	out := []string{
		path + "/", path + "//", "/" + path, path + "?", path + "?x=1", path + "#", path + ";x=1", path + "%00", path + "%20", path + ".", path + "/.",
		"/." + path, "/x/.." + path, "/%2e%2e" + path, "/.%2e" + path, path + "/../" + strings.TrimPrefix(path, "/v1/"), `\` + path, strings.ReplaceAll(path, "/", `\`),
		strings.ReplaceAll(path, "/", "%2F"), strings.ReplaceAll(path, "/", "%2f"), strings.ReplaceAll(path, "/", "//"),
		strings.ToUpper(path), strings.ToUpper(path[:2]) + path[2:], "http://engine" + path, "https://engine" + path, "//engine" + path, path[1:], "*", "",
	}
	for i := range len(path) {
		out = append(out, fmt.Sprintf("%s%%%02X%s", path[:i], path[i], path[i+1:]), fmt.Sprintf("%s%%25%02X%s", path[:i], path[i], path[i+1:]))
	}
	return out
}

// engineOnly are routes by which vLLM and SGLang are administered, debugged or
// asked for what a prompt held.
var engineOnly = []string{
	"/", "/health", "/ping", "/version", "/metrics", "/docs", "/openapi.json", "/redoc", "/load", "/server_info", "/get_server_info", "/get_model_info", "/model_info",
	"/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/flush_cache", "/clear_hicache_storage_backend", "/sleep", "/wake_up", "/is_sleeping", "/collective_rpc",
	"/pause", "/resume", "/is_paused", "/scale_elastic_ep", "/is_scaling_elastic_ep", "/abort_request", "/abort_requests", "/shutdown",
	"/start_profile", "/stop_profile", "/start_expert_distribution_record", "/stop_expert_distribution_record", "/dump_expert_distribution_record",
	"/init_weight_transfer_engine", "/update_weights", "/update_weights_from_disk", "/update_weights_from_tensor", "/update_weights_from_distributed", "/init_weights_update_group",
	"/destroy_weights_update_group", "/get_weights_by_name", "/release_memory_occupation", "/resume_memory_occupation", "/slow_down", "/set_internal_state", "/get_internal_state",
	"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/load_lora_adapter", "/unload_lora_adapter", "/configure_logging", "/freeze_gc", "/hicache/storage-backend",
	"/detokenize", "/tokenizer_info", "/pooling", "/classify", "/score", "/rerank", "/v1/rerank", "/v2/rerank", "/v1/score", "/generate", "/encode", "/invocations", "/inference/v1/generate",
	"/v1/models", "/v1/models/small", "/v1/messages", "/v1/messages/count_tokens", "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/realtime",
	"/v1/responses/resp_1", "/v1/responses/resp_1/cancel", "/v1/completions/render/x", "/v1/files", "/v1/batches", "/open_session", "/close_session", "/parse_function_call", "/separate_reasoning",
	"/debug/pprof/", "/api/chat", "/api/generate", "/vertex_generate",
}

func TestNothingButTheRoutesIsReachableHoweverItIsSpelt(t *testing.T) {
	f := newFaulty(t)
	w := newWorld(t, withEngine(f))
	w.ready()
	var routes []route
	for r := range probes {
		routes = append(routes, r)
	}
	for r := range countings {
		routes = append(routes, r)
	}
	var lines []string
	for _, r := range routes {
		for _, path := range spellings(r.path()) {
			lines = append(lines, "POST "+path)
		}
		for _, method := range []string{"GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "post", "Post"} {
			lines = append(lines, method+" "+r.path())
		}
	}
	for _, path := range engineOnly {
		lines = append(lines, "POST "+path, "GET "+path, "DELETE "+path)
	}
	probed := len(f.seen())
	raw := w.rawConn(t)
	for _, line := range lines {
		status, ok := raw.ask(t, w, line)
		if !ok {
			raw = w.rawConn(t) // the relay gave the connection up, which is as well
			continue
		}
		if status != http.StatusNotFound && status != http.StatusBadRequest && line != "OPTIONS *" {
			t.Errorf("%s: %d", line, status)
		}
	}
	// Over HTTP/2 there is the residency service and nothing else.
	conf := workload.ClientConfig(w.gateway, workload.ExactID(spiffeid.RequireFromPath(domain, "/pool/general/r0")))
	h2 := &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true}
	defer h2.CloseIdleConnections()
	for _, path := range append(engineOnly, chatRoute.path(), completionRoute.path()) {
		resp, err := h2.RoundTrip(w.request(t.Context(), path, w.sign(w.ticketFor(chatBody)), chatBody))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.ProtoMajor != 2 || resp.StatusCode < http.StatusBadRequest {
			t.Errorf("%s over %s: %d", path, resp.Proto, resp.StatusCode)
		}
	}
	for _, path := range f.seen()[probed:] {
		if path != "GET /v1/models" && path != "GET /metrics" { // the relay's own looks
			t.Errorf("%s reached the engine", path)
		}
	}
	t.Logf("%d request lines", len(lines))
}

// rawConn is a connection on which nothing tidies what is written.
type rawConn struct {
	c *tls.Conn
	r *bufio.Reader
}

func (w *world) rawConn(t *testing.T) rawConn {
	t.Helper()
	conf := workload.ClientConfig(w.gateway, workload.ExactID(spiffeid.RequireFromPath(domain, "/pool/general/r0")))
	c, err := tls.Dial("tcp", w.relay.Addr(), conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return rawConn{c, bufio.NewReader(c)}
}

// ask sends a request with a good ticket for whatever route the line names; ok is
// false if the connection is of no more use.
func (c rawConn) ask(t *testing.T, w *world, line string) (status int, ok bool) {
	t.Helper()
	tk := w.ticketFor(chatBody)
	tk.Op = line
	if _, err := fmt.Fprintf(c.c, "%s HTTP/1.1\r\nHost: relay\r\n%s: %s\r\nContent-Length: %d\r\n\r\n%s", line, ticket.Header, w.sign(tk), len(chatBody), chatBody); err != nil {
		return 0, false
	}
	method, _, _ := strings.Cut(line, " ")
	resp, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		return 0, false
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode, err == nil && !resp.Close
}
