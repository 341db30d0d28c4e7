package gateway

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
)

func TestMalformedRequestsAreRefusedAndWrittenDown(t *testing.T) {
	s := serve(t, func(c *Config) { c.Live.Limits.BodyBytes = 4096 })
	const messages = `"messages":[{"role":"user","content":"MARK"}]`
	for _, c := range []struct {
		claim, body string
		status      int
		code        string
		header      []string
	}{
		{"nothing", ``, 400, "malformed_json", nil},
		{"half an object", `{"model":"small",` + messages, 400, "malformed_json", nil},
		{"an array", `[{"model":"small","x":"MARK"}]`, 400, "", nil},
		{"a string", `"MARK"`, 400, "", nil},
		{"data after the body", `{"model":"small",` + messages + `}{"x":1}`, 400, "malformed_json", nil},
		{"a name twice", `{"model":"small","model":"small",` + messages + `}`, 400, "malformed_json", nil},
		{"a name twice, deep down", `{"model":"small","messages":[{"role":"user","role":"system","content":"MARK"}]}`, 400, "malformed_json", nil},
		{"names that differ in case", `{"model":"small","Model":"other",` + messages + `}`, 400, "", nil},
		{"a name twice, once escaped", `{"model":"small","\u006dodel":"other",` + messages + `}`, 400, "malformed_json", nil},
		{"invalid UTF-8", "{\"model\":\"small\",\"messages\":[{\"role\":\"user\",\"content\":\"MARK\xff\"}]}", 400, "malformed_json", nil},
		{"half a surrogate", `{"model":"small","messages":[{"role":"user","content":"MARK\ud800"}]}`, 400, "malformed_json", nil},
		{"a byte order mark", "\ufeff" + `{"model":"small",` + messages + `}`, 400, "malformed_json", nil},
		{"a comment", `{"model":"small",/* x */` + messages + `}`, 400, "malformed_json", nil},
		{"a comma too many", `{"model":"small",` + messages + `,}`, 400, "malformed_json", nil},
		{"NaN", `{"model":"small","temperature":NaN,` + messages + `}`, 400, "malformed_json", nil},
		{"depth", `{"model":"small","metadata":` + strings.Repeat(`[`, 500) + strings.Repeat(`]`, 500) + `,` + messages + `}`, 400, "", nil},
		{"an endless number", `{"model":"small","temperature":` + strings.Repeat("9", 2000) + `,` + messages + `}`, 400, "", nil},
		{"no model", `{` + messages + `}`, 400, "invalid_request", nil},
		{"no messages", `{"model":"small","stop":"MARK"}`, 400, "invalid_request", nil},
		{"a model that is a number", `{"model":1,` + messages + `}`, 400, "invalid_request", nil},
		{"a stream that is a word", `{"model":"small","stream":"yes",` + messages + `}`, 400, "invalid_request", nil},
		{"a limit below one", `{"model":"small","max_tokens":-1,` + messages + `}`, 400, "invalid_request", nil},
		{"a field that nobody knows", `{"model":"small","colour":"red",` + messages + `}`, 400, "unsupported_field", nil},
		{"a field for the engine's queue", `{"model":"small","priority":-1,` + messages + `}`, 400, "unsupported_field", nil},
		{"a field for the engine's cache", `{"model":"small","kv_transfer_params":{},` + messages + `}`, 400, "unsupported_field", nil},
		{"a template", `{"model":"small","chat_template":"{{x}}",` + messages + `}`, 400, "unsupported_field", nil},
		{"a host to fetch from", `{"model":"small","bootstrap_host":"10.0.0.1",` + messages + `}`, 400, "unsupported_field", nil},
		{"state that a server holds", `{"model":"small","previous_response_id":"x",` + messages + `}`, 400, "unsupported_field", nil},
		{"too much", `{"model":"small","messages":[{"role":"user","content":"MARK` + strings.Repeat("x", 5000) + `"}]}`, 413, "too_large", nil},
		{"another type", `{"model":"small",` + messages + `}`, 415, "unsupported_media_type", []string{"Content-Type", "text/plain"}},
		{"another charset", `{"model":"small",` + messages + `}`, 415, "unsupported_media_type", []string{"Content-Type", "application/json; charset=utf-16"}},
		{"two types", `{"model":"small",` + messages + `}`, 415, "unsupported_media_type", []string{"Content-Type", "application/json", "Content-Type", "text/plain"}},
		{"a body in zstd", `{"model":"small",` + messages + `}`, 415, "unsupported_encoding", []string{"Content-Encoding", "zstd"}},
		{"a body that is not the gzip it says", `{"model":"small",` + messages + `}`, 400, "malformed_json", []string{"Content-Encoding", "gzip"}},
		{"a body compressed twice", zipped(zipped(`{"model":"small",` + messages + `}`)), 415, "unsupported_encoding", []string{"Content-Encoding", "gzip, gzip"}},
		{"too much, compressed", zipped(`{"model":"small","messages":[{"role":"user","content":"` + strings.Repeat("abcdefghij0123456789", 300) + `"}]}`), 413, "too_large", []string{"Content-Encoding", "gzip"}},
		{"a bomb", zipped(strings.Repeat(" ", 10<<20)), 413, "too_large", []string{"Content-Encoding", "gzip"}},
	} {
		t.Run(c.claim, func(t *testing.T) {
			s.tb = t
			mark := s.newMark()
			req := s.request(t.Context(), "acme", strings.ReplaceAll(c.body, "MARK", mark))
			for i := 0; i < len(c.header); i += 2 {
				if i == 0 {
					req.Header.Del(c.header[0])
				}
				req.Header.Add(c.header[i], c.header[i+1])
			}
			a := s.do(req)
			if a.status != c.status || c.code != "" && a.code() != c.code || a.code() == "" || a.code() == "internal" {
				t.Fatalf("got %d %s, want %d %s", a.status, a.body, c.status, c.code)
			}
			s.unreached(mark)
			for _, word := range []string{mark, "goroutine", ".go:", "jsontext", "json:", "wire:"} {
				if strings.Contains(a.body, word) {
					t.Errorf("the caller reads %q: %s", word, a.body)
				}
			}
			d, o := s.lone(a)
			if d.Status != audit.StatusDenied || d.HTTP != c.status || string(d.Decision) != "null" || d.Input != nil || o != nil {
				t.Errorf("record: %s %d, decision %s, input %s", d.Status, d.HTTP, d.Decision, d.Input)
			}
			if strings.Contains(d.Detail, mark) {
				t.Errorf("the record holds text of the prompt: %s", d.Detail)
			}
		})
	}
}

func TestAnUnsupportedFieldIsNamed(t *testing.T) {
	s := serve(t)
	a := s.post("acme", chat(s.newMark(), `"colour":"red"`))
	s.want(a, http.StatusBadRequest, "unsupported_field")
	if !strings.Contains(a.body, `"param":"colour"`) {
		t.Error(a.body)
	}
}

// A body whose framing is broken is the client's fault, while the client is
// there to be told.
func TestABodyThatCannotBeReadIsRefused(t *testing.T) {
	s := serve(t)
	for _, c := range []struct{ claim, body string }{
		{"a chunk size that is no number", "zz\r\n{}"},
		{"a chunk longer than its size", "1\r\n{}\r\n0\r\n\r\n"},
	} {
		t.Run(c.claim, func(t *testing.T) {
			conn, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), &tls.Config{RootCAs: s.roots, ServerName: "localhost"})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if _, err := fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %s\r\n"+
				"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n%s", s.tokens["acme"], c.body); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			if err := errors.Join(err, resp.Body.Close()); err != nil {
				t.Fatal(err)
			}
			a := answer{status: resp.StatusCode, header: resp.Header, body: string(b)}
			s.want(a, http.StatusBadRequest, "invalid_request")
			if decision, _ := s.lone(a); decision.Reason != "unreadable_body" {
				t.Errorf("reason %q", decision.Reason)
			}
		})
	}
}
