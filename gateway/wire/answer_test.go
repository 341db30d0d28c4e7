package wire

import (
	"bytes"
	"compress/gzip"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

const (
	delta  = `data: {"id":"1","choices":[{"index":0,"delta":{"content":"好"},"finish_reason":null}]}` + "\n\n"
	stop   = `data: {"id":"1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	usage  = `data: {"id":"1","choices":[],"usage":{"prompt_tokens":9,"total_tokens":12,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}` + "\n\n"
	hidden = `data: {"id":"1","choices":[],"usage":{"prompt_tokens":9,"total_tokens":12,"completion_tokens":3,"prompt_tokens_details":{}}}` + "\n\n"
	done   = "data: [DONE]\n\n"
)

// pass sends a stream through a and returns what the client gets.
func pass(t *testing.T, a *Answer, stream string) (string, error) {
	t.Helper()
	var out strings.Builder
	for _, e := range frame(t, strings.NewReader(stream)) {
		data, err := a.Event(e)
		if err != nil {
			return out.String(), err
		}
		out.Write(data)
	}
	return out.String(), a.End()
}

func TestAnswerStream(t *testing.T) {
	cases := []struct {
		claim  string
		view   Answer
		stream string
		want   string
	}{
		{"a client that may see all gets every byte", Answer{IncludeUsage: true, CachedTokens: true}, delta + stop + usage + done, delta + stop + usage + done},
		{"the usage chunk that only we asked for is dropped", Answer{}, delta + stop + usage + done, delta + stop + done},
		{"cached tokens are taken out", Answer{IncludeUsage: true}, delta + stop + usage + done, delta + stop + hidden + done},
		{"usage of null is dropped with the rest", Answer{}, `data: {"choices":[{"delta":{}}],"usage":null}` + "\n\n" + usage + done, `data: {"choices":[{"delta":{}}]}` + "\n\n" + done},
		{"usage on a chunk with an answer is taken out, the chunk stays", Answer{}, `data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}` + "\r\n\r\n" + done, `data: {"choices":[{"delta":{},"finish_reason":"stop"}]}` + "\r\n\r\n" + done},
		{"a chunk without a delta passes", Answer{IncludeUsage: true, CachedTokens: true}, `data: {"choices":[{"finish_reason":"stop","index":0}],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}` + "\n\n" + done, `data: {"choices":[{"finish_reason":"stop","index":0}],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}` + "\n\n" + done},
		{"the event's type stays", Answer{IncludeUsage: true}, "event: x\n" + usage + stop + done, "event: x\n" + hidden + stop + done},
		{"what steers a reconnection is dropped", Answer{IncludeUsage: true}, "id: 7\n" + strings.TrimSuffix(usage, "\n") + "retry: 1\n\n" + stop + done, hidden + stop + done},
		{"a comment passes without its text", Answer{}, ": cached_tokens=99 engine=vllm7\n\n" + stop + usage + done, ":\n\n" + stop + done},
		{"a comment of a CR LF stream passes without its text", Answer{}, ":x\r\n\r\n" + stop + usage + done, ":\r\n\r\n" + stop + done},
		{"a comment after a byte order mark passes without its text", Answer{}, "\xEF\xBB\xBF: x\n\n" + stop + usage + done, ":\n\n" + stop + done},
		{"a comment beside data loses its text", Answer{}, ": a\n" + strings.TrimSuffix(stop, "\n") + ": b\n\n" + usage + done, ":\n" + strings.TrimSuffix(stop, "\n") + ":\n\n" + done},
		{"a comment beside the end loses its text", Answer{}, stop + usage + ": a\n" + done, stop + ":\n" + done},
		{"a field that nobody reads is dropped", Answer{}, "engine: vllm7\ncached=99\n" + stop + usage + done, stop + done},
		{"JSON over several data lines is one value", Answer{IncludeUsage: true}, "data: {\"choices\":[],\ndata: \"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\n" + stop + done, "data: {\"choices\":[], \"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\"prompt_tokens_details\":{}}}\n\n" + stop + done},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			a := c.view
			got, err := pass(t, &a, c.stream)
			if err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
			if u := a.Usage; u == nil || u.PromptTokens != 9 || u.CompletionTokens != 3 || u.CachedTokens == nil || *u.CachedTokens != 8 {
				t.Errorf("usage %+v", u)
			}
			if !a.Done || a.Failed {
				t.Errorf("learnt %+v", a)
			}
		})
	}
}

func TestAnswerStreamEnds(t *testing.T) {
	var a Answer
	if got, err := pass(t, &a, delta+stop); !errors.Is(err, ErrTruncated) || got != delta+stop {
		t.Errorf("a stream that ends early: %q, %v", got, err)
	}
	if a.Finish != "stop" || a.Events != 2 || a.Usage != nil {
		t.Errorf("learnt %+v", a)
	}
	if _, err := pass(t, &a, delta+`data: "[DONE]"`+"\n\n"); !errors.Is(err, ErrAnswer) {
		t.Errorf("a quoted [DONE]: %v", err)
	}
	if _, err := pass(t, new(Answer), `data: {"choices":[`+"\n\n"); !errors.Is(err, ErrAnswer) {
		t.Errorf("a broken chunk: %v", err)
	}
	if _, err := pass(t, new(Answer), `data: {"usage":{},"usage":{"prompt_tokens_details":{"cached_tokens":8}}}`+"\n\n"); !errors.Is(err, ErrAnswer) {
		t.Errorf("usage twice: %v", err)
	}
	failed := `data: {"error":{"message":"out of memory","code":500}}` + "\n\n"
	var b Answer
	if got, err := pass(t, &b, failed+done); err != nil || got != failed+done || !b.Failed {
		t.Errorf("an error of the engine: %q, %v, %+v", got, err, b)
	}
}

func TestAnswerBody(t *testing.T) {
	const whole = `{"choices":[{"message":{"content":"hi"},"finish_reason":"length"}],"usage":{"prompt_tokens":9,"completion_tokens":3, "prompt_tokens_details":{"cached_tokens":0,"audio_tokens":1}}}`
	var a Answer
	got, err := a.Body([]byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(whole, `"cached_tokens":0,`, "", 1); string(got) != want {
		t.Errorf("got %s", got)
	}
	if a.Finish != "length" || a.Usage == nil || a.Usage.CachedTokens == nil || *a.Usage.CachedTokens != 0 {
		t.Errorf("learnt %+v", a)
	}
	open := Answer{CachedTokens: true}
	if got, err := open.Body([]byte(whole)); err != nil || string(got) != whole {
		t.Errorf("a client that may see it got %s, %v", got, err)
	}
	silent := Answer{}
	plain := `{"usage":{"prompt_tokens":9,"prompt_tokens_details":null,"completion_tokens":"3"}}`
	if got, err := silent.Body([]byte(plain)); err != nil || string(got) != plain || silent.Usage.CachedTokens != nil || silent.Usage.CompletionTokens != 0 {
		t.Errorf("an engine that does not say: %s, %v, %+v", got, err, silent.Usage)
	}
	for _, bad := range []string{``, `[]`, `null`, `{}{}`, `{"a":1`, "<html>"} {
		if _, err := new(Answer).Body([]byte(bad)); !errors.Is(err, ErrAnswer) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":8}}}`))
	f.Add([]byte(`{"usage":{"cached_tokens":1,"prompt_tokens_details":[]},"choices":{},"error":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var a, b Answer
		out, err := a.Body(body)
		if err != nil {
			return
		}
		if _, err := b.Body(out); err != nil {
			t.Fatalf("%q made %q: %v", body, out, err)
		}
		if b.Usage != nil && b.Usage.CachedTokens != nil {
			t.Fatalf("cached tokens are left in %q", out)
		}
	})
}

func TestCheckContent(t *testing.T) {
	cases := []struct {
		claim  string
		header http.Header
		code   Code // empty: accepted
	}{
		{"plain JSON", http.Header{"Content-Type": {"application/json"}}, ""},
		{"JSON in UTF-8", http.Header{"Content-Type": {"Application/JSON; charset=\"UTF-8\""}}, ""},
		{"identity coding", http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"identity"}}, ""},
		{"no type", http.Header{}, UnsupportedMediaType},
		{"text", http.Header{"Content-Type": {"text/plain"}}, UnsupportedMediaType},
		{"a form", http.Header{"Content-Type": {"multipart/form-data; boundary=x"}}, UnsupportedMediaType},
		{"UTF-16", http.Header{"Content-Type": {"application/json; charset=utf-16"}}, UnsupportedMediaType},
		{"two types", http.Header{"Content-Type": {"application/json", "text/plain"}}, UnsupportedMediaType},
		{"a type that does not parse", http.Header{"Content-Type": {"application/json; charset"}}, UnsupportedMediaType},
		{"gzip", http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"GZip"}}, ""},
		{"gzip twice", http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip", "gzip"}}, UnsupportedEncoding},
		{"gzip twice, in one line", http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip, gzip"}}, UnsupportedEncoding},
		{"zstd", http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"zstd"}}, UnsupportedEncoding},
		{"an unknown coding", http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"foo"}}, UnsupportedEncoding},
		{"a second coding", http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"identity", "zstd"}}, UnsupportedEncoding},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			gzipped, err := CheckContent(c.header)
			if gzipped != (err == nil && c.claim == "gzip") {
				t.Errorf("gzipped: %v", gzipped)
			}
			var e *Error
			if errors.As(err, &e) != (c.code != "") || e != nil && e.Code != c.code {
				t.Errorf("got %v, want %q", err, c.code)
			}
		})
	}
}

func TestGunzip(t *testing.T) {
	zip := func(s string) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write([]byte(s))
		_ = z.Close()
		return b.Bytes()
	}
	const body = `{"model":"small"}`
	limits := Limits{BodyBytes: 1 << 20}
	for _, c := range []struct {
		claim string
		in    []byte
		want  string
		code  Code
	}{
		{"a body", zip(body), body, ""},
		{"a body in two members", append(zip(body[:5]), zip(body[5:])...), body, ""},
		{"nothing", nil, "", MalformedJSON},
		{"no gzip", []byte(body), "", MalformedJSON},
		{"half of it", zip(body)[:20], "", MalformedJSON},
		{"a wrong checksum", append(zip(body)[:len(zip(body))-8], 1, 2, 3, 4, 17, 0, 0, 0), "", MalformedJSON},
		{"something after it", append(zip(body), "{}"...), "", MalformedJSON},
		{"more than the limit", zip(strings.Repeat("abcdefghij0123456789", 1<<20)), "", TooLarge},
		{"a bomb", zip(strings.Repeat("a", 900<<10)), "", TooLarge},
		{"a bomb of many members", bytes.Repeat(zip(strings.Repeat("a", 100<<10)), 20), "", TooLarge},
	} {
		t.Run(c.claim, func(t *testing.T) {
			got, err := Gunzip(c.in, limits)
			var e *Error
			if errors.As(err, &e) != (c.code != "") || e != nil && e.Code != c.code || string(got) != c.want {
				t.Errorf("got %d bytes, %v, want %q", len(got), err, c.code)
			}
		})
	}
}

func TestIsEventStream(t *testing.T) {
	for value, want := range map[string]bool{
		"text/event-stream": true, "Text/Event-Stream; Charset=utf-8": true,
		"application/json": false, "": false, "text/event-streams": false,
	} {
		if IsEventStream(value) != want {
			t.Errorf("%q is taken for %v", value, !want)
		}
	}
}

func TestErrorBodies(t *testing.T) {
	w := httptest.NewRecorder()
	WriteError(w, OpenAI, 400, "invalid_request_error", "unsupported_field", "this \"field\"\n", "x")
	if got, want := w.Body.String(), `{"error":{"message":"this \"field\"\n","type":"invalid_request_error","code":"unsupported_field","param":"x"}}`+"\n"; got != want || w.Code != 400 || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("got %d %q", w.Code, got)
	}
	w = httptest.NewRecorder()
	WriteError(w, Anthropic, 403, "permission_error", "policy_denied", "no", "x")
	if got, want := w.Body.String(), `{"type":"error","error":{"type":"permission_error","message":"no"}}`+"\n"; got != want {
		t.Errorf("got %q", got)
	}
	if got, want := string((&Answer{}).ErrorEvent(OpenAI, "server_error", "upstream_error", "a\nb")), `data: {"error":{"message":"a\nb","type":"server_error","code":"upstream_error","param":null}}`+"\n\n"; got != want {
		t.Errorf("got %q", got)
	}
	if got, want := string((&Answer{}).ErrorEvent(Anthropic, "api_error", "upstream_error", "a")), "event: error\ndata: "+`{"type":"error","error":{"type":"api_error","message":"a"}}`+"\n\n"; got != want {
		t.Errorf("got %q", got)
	}
}
