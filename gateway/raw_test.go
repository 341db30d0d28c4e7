package gateway

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway/wire"
)

// wired is an engine that has read a request and writes on the bare connection,
// which is closed after it.
func wired(write func(c *net.TCPConn)) act {
	return func(w http.ResponseWriter, _ *http.Request, _ call, _ func()) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err) // the script serves HTTP/1.1
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		write(c.(*net.TCPConn))
	}
}

// writes is an engine that writes these bytes, each piece by itself, and ends.
func writes(pieces ...string) act {
	return wired(func(c *net.TCPConn) { put(c, pieces...) })
}

// cutsOff is writes, and then a reset. It waits a moment: a reset destroys what
// the other side has not read yet.
func cutsOff(pieces ...string) act {
	return wired(func(c *net.TCPConn) {
		put(c, pieces...)
		if len(pieces) > 0 {
			time.Sleep(20 * time.Millisecond)
		}
		_ = c.SetLinger(0)
	})
}

// stalls is writes, and then nothing until the other side leaves.
func stalls(pieces ...string) act {
	return wired(func(c *net.TCPConn) {
		put(c, pieces...)
		_, _ = io.Copy(io.Discard, c)
	})
}

// put writes pieces, which leave as packets of their own: Go sets TCP_NODELAY.
func put(c net.Conn, pieces ...string) {
	for _, p := range pieces {
		if _, err := io.WriteString(c, p); err != nil {
			return
		}
	}
}

const (
	streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
	chunkedEnd = "Transfer-Encoding: chunked\r\n\r\n"
	wholeHead  = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
	lastPiece  = "0\r\n\r\n"
)

// piece is one chunk of a chunked body; of nothing there is none, as that would
// be the last.
func piece(s string) string {
	if s == "" {
		return ""
	}
	return fmt.Sprintf("%x\r\n%s\r\n", len(s), s)
}

// sized ends a header whose body has that length.
func sized(n int) string { return fmt.Sprintf("Content-Length: %d\r\n\r\n", n) }

// bytewise is s, cut between all its bytes.
func bytewise(s string) []string {
	out := make([]string, len(s))
	for i := range out {
		out[i] = s[i : i+1]
	}
	return out
}

func zipped(s string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, s)
	_ = z.Close()
	return b.String()
}

// seen is what a client gets of a route, byte for byte.
type seen struct {
	begin, end  string // of a stream
	body, shown string // of an answer in one piece: the engine's, and what is seen of it
}

const (
	wholeUsage   = `"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":0}}`
	shownUsage   = `"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12,"prompt_tokens_details":{}}`
	messageBegin = "event: message_start\n" + `data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"small","content":[],"stop_reason":null,"stop_sequence":null,"usage":{COUNTED}}}` + "\n\n" +
		"event: ping\n" + `data: {"type":"ping"}` + "\n\n"
	messageText = "event: content_block_start\n" + `data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}` + "\n\n"
	messageEnd  = "event: content_block_stop\n" + `data: {"type":"content_block_stop","index":0}` + "\n\n" +
		"event: message_delta\n" + `data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":9,"output_tokens":3}}` + "\n\n" +
		"event: message_stop\n" + `data: {"type":"message_stop"}` + "\n\n"
)

// clean is what p's client sees where nothing goes wrong.
func clean(p protocol) seen {
	v := seen{begin: p.begin}
	switch p.op.Name {
	case wire.ChatCompletions.Name:
		v.end = `data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
		v.body = `{"id":"chatcmpl-1", "choices":[{"index":0,"message":{"role":"assistant","content":"héé\u006co"},"finish_reason":"stop"}],` + wholeUsage + `,"x":1e2}`
	case wire.Completions.Name:
		v.end = `data: {"id":"chatcmpl-1","choices":[{"index":0,"text":"","finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
		v.body = `{"id":"cmpl-1", "choices":[{"index":0,"text":"héé\u006co","finish_reason":"stop"}],` + wholeUsage + `,"x":1e2}`
	case wire.Responses.Name:
		v.end = strings.Replace(p.end, `"cached_tokens":0`, ``, 1)
		v.body = `{"id":"resp_1", "status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"héé\u006co"}]}],"usage":{"input_tokens":9,"output_tokens":3,"input_tokens_details":{"cached_tokens":0}}}`
	case wire.Messages.Name:
		v.begin, v.end = messageBegin, messageEnd
		v.body = `{"id":"chatcmpl-1", "choices":[{"index":0,"message":{"role":"assistant","content":"héé\u006co"},"finish_reason":"stop"}],` + wholeUsage + `}`
		v.shown = `{"id":"msg_1","type":"message","role":"assistant","model":"small","content":[{"type":"text","text":"héélo"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":9,"output_tokens":3}}`
		return v
	case wire.Embeddings.Name:
		v.body = `{"object":"list", "data":[{"index":0,"embedding":[0.10,-0]}],"usage":{"prompt_tokens":9,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":0}}}`
	}
	v.shown = strings.Replace(v.body, `"cached_tokens":0`, ``, 1)
	return v
}

// texts is what the client sees of text events.
func (p protocol) texts(words ...string) string {
	var b strings.Builder
	if p.op.Shape == wire.Anthropic && len(words) > 0 {
		b.WriteString(messageText)
	}
	for _, w := range words {
		b.WriteString(p.shown(w))
	}
	return b.String()
}

// failure is what the client sees of an error, as an event or as a body.
func (p protocol) failure(kind, code, message string, event bool) string {
	switch {
	case p.op.Shape == wire.Anthropic:
		anthropic := map[string]string{"upstream_timeout": "timeout_error", "no_replica": "overloaded_error"}[code]
		switch {
		case anthropic != "":
		case kind == "server_error":
			anthropic = "api_error"
		default:
			anthropic = kind
		}
		body := `{"type":"error","error":{"type":"` + anthropic + `","message":"` + message + `"}}`
		if event {
			return "event: error\ndata: " + body + "\n\n"
		}
		return body + "\n"
	case p.op.Shape == wire.OpenAIResponses && event:
		return "event: error\n" + `data: {"type":"error","code":"` + code + `","message":"` + message + `","param":null,"sequence_number":SEQ}` + "\n\n"
	}
	body := `{"error":{"message":"` + message + `","type":"` + kind + `","code":"` + code + `","param":null}}`
	if event {
		return "data: " + body + "\n\n"
	}
	return body + "\n"
}

const (
	failedText = "The model server failed."
	lateText   = "The model server did not answer in time."
)

// told is the story that the log must tell of a request.
type told struct {
	attempts int
	status   string   // of the last outcome
	reasons  []string // of the outcomes that are not ok, in order
	http     int      // sent to the caller, as the last outcome has it
}

func (s *service) tells(a answer, want told) {
	s.tb.Helper()
	d, o := s.story(a)
	var reasons []string
	for _, r := range o {
		if r.Status != audit.StatusOK {
			reasons = append(reasons, r.Reason)
		}
	}
	if len(o) == 0 {
		s.tb.Fatalf("no outcome")
	}
	last := o[len(o)-1]
	if len(d) != want.attempts || last.Status != want.status || strings.Join(reasons, " ") != strings.Join(want.reasons, " ") || last.Outcome.HTTP != want.http {
		s.tb.Errorf("the log tells of %d attempts, the last %s %v with %d; want %+v", len(d), last.Status, reasons, last.Outcome.HTTP, want)
	}
}

// exactly fails the test unless the client got these bytes with that status.
func (s *service) exactly(a answer, status int, body string) {
	s.tb.Helper()
	got := counted.ReplaceAllString(a.body, "COUNTED")
	if a.err != nil || a.status != status || got != body {
		s.tb.Errorf("%d %v\ngot  %q\nwant %d\n     %q", a.status, a.err, got, status, body)
	}
}

var embeddingsRoute = protocol{op: wire.Embeddings, body: prompted("input")}

// onEachRoute runs a test for each route with a body, embeddings among them.
func onEachRoute(t *testing.T, test func(t *testing.T, s *service, p protocol)) {
	t.Helper()
	onEach(t, test)
	s := serve(t)
	t.Run(wire.Embeddings.Name, func(t *testing.T) {
		s.tb = t
		test(t, s, embeddingsRoute)
	})
}
