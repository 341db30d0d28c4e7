package test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// performance is an answer of an engine that holds canaries.
type performance struct {
	name   string
	path   string // of the route
	stream bool
	serve  func(w http.ResponseWriter)
}

// repertoire is what engines may answer: a canary in each place. Engines echo
// prompts in errors, and put anything in an answer that a model says.
func (a *aviary) repertoire() (out []performance) {
	add := func(name, path string, stream bool, serve func(w http.ResponseWriter)) {
		out = append(out, performance{name, path, stream, serve})
	}
	in := func(place string) string { return "SSN " + ssn + ", " + a.in("answer: "+place) }
	write := func(kind string, status int, text string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text)
		}
	}
	const js, sse = "application/json", "text/event-stream"
	usage := `"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}`
	whole := func(id, model, content, finish, more string) string {
		return fmt.Sprintf(`{"id":%q,"object":"chat.completion","created":1,"model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":%q}],%s%s}`, id, model, content, finish, usage, more)
	}
	chatOf := func(place, text string) { add(place, completions, false, write(js, 200, text)) }
	chatOf("content", whole("c1", "small", in("content"), "stop", ""))
	chatOf("id", whole(a.in("answer: id"), "small", "x", "stop", ""))
	chatOf("model", whole("c1", a.in("answer: model"), "x", "stop", ""))
	chatOf("finish reason", whole("c1", "small", "x", a.in("answer: finish reason"), ""))
	chatOf("other fields", whole("c1", "small", "x", "stop", fmt.Sprintf(`,"system_fingerprint":%q,%q:%q`, a.in("answer: fingerprint"), a.in("answer: field"), in("field's value"))))
	chatOf("tool call", fmt.Sprintf(`{"id":"c1","object":"chat.completion","created":1,"model":"small","choices":[{"index":0,"message":{"role":"assistant","content":null,"reasoning_content":%q,"refusal":%q,
		"tool_calls":[{"id":%q,"type":"function","function":{"name":%q,"arguments":%q}}]},"finish_reason":"tool_calls"}],%s}`,
		in("reasoning"), in("refusal"), a.in("answer: call id"), a.in("answer: called tool"), fmt.Sprintf(`{"k":%q}`, in("arguments")), usage))
	chatOf("usage", fmt.Sprintf(`{"id":"c1","object":"chat.completion","created":1,"model":"small","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":%q,"completion_tokens":2,%q:1}}`, a.in("answer: usage"), a.in("answer: field of usage")))
	chatOf("cut short", fmt.Sprintf(`{"id":"c1","choices":[{"message":{"content":%q`, in("cut short")))
	chatOf("no JSON", in("no JSON"))
	chatOf("a key twice", fmt.Sprintf(`{"id":"c1","id":%q}`, in("a key twice")))
	chatOf("not UTF-8", "{\"id\":\""+in("not UTF-8")+"\xff\"}")
	add("a page", completions, false, write("text/html", 200, "<html>"+in("a page")))
	add("a content type", completions, false, write("text/"+a.in("answer: content type"), 200, whole("c1", "small", "x", "stop", "")))
	headers := map[string]string{http.TrailerPrefix + "X-Checksum": a.in("answer: trailer")}
	for _, name := range []string{"Server", "Set-Cookie", "X-Request-Id", "Location", "Retry-After", "Www-Authenticate", "Sallyport-Decision-Id", "Sallyport-Conversation", "X-Custom"} {
		headers[name] = a.in("answer: header " + name)
	}
	add("headers", completions, false, func(w http.ResponseWriter) {
		for name, value := range headers {
			w.Header().Set(name, value)
		}
		write(js, 200, whole("c1", "small", "x", "stop", ""))(w)
	})
	for _, status := range []int{201, 302, 400, 401, 422, 429, 500, 503} {
		for _, stream := range []bool{false, true} {
			if stream && status != 400 && status != 500 {
				continue
			}
			place := fmt.Sprintf("error %d, stream %t", status, stream)
			location, retry := "http://127.0.0.1:1/"+a.in("answer: location of "+place), a.in("answer: retry of "+place)
			body := write(js, status, fmt.Sprintf(`{"error":{"message":%q,"type":%q,"param":%q,"code":%q}}`, in("message of "+place), a.in("answer: type of "+place), a.in("answer: param of "+place), a.in("answer: code of "+place)))
			add(place, completions, stream, func(w http.ResponseWriter) {
				w.Header().Set("Location", location)
				w.Header().Set("Retry-After", retry)
				body(w)
			})
		}
	}
	broken := write(js, 200, `{"id":"`+in("broken off"))
	add("broken off", completions, false, func(w http.ResponseWriter) {
		w.Header().Set("Content-Length", "100000")
		broken(w)
	})

	// A transport that reads more than was announced says so, and quotes it.
	more := whole("c1", "small", "x", "stop", "")
	more = fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", js, len(more), more) + in("more than was announced")
	add("more than was announced", completions, false, func(w http.ResponseWriter) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = io.WriteString(conn, more)
		time.Sleep(50 * time.Millisecond) // while it is idle
		_ = conn.Close()                  // all was written that could be
	})

	chunk := func(delta, finish string) string {
		return fmt.Sprintf("data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"small\",\"choices\":[{\"index\":0,\"delta\":%s,\"finish_reason\":%s}]}\n\n", delta, finish)
	}
	const done = "data: [DONE]\n\n"
	stream := func(place, text string) { add("stream: "+place, completions, true, write(sse, 200, text)) }
	stream("content", chunk(fmt.Sprintf(`{"role":"assistant","content":%q}`, in("chunk")), "null")+chunk("{}", `"stop"`)+done)
	stream("tool call", chunk(fmt.Sprintf(`{"tool_calls":[{"index":0,"id":%q,"function":{"name":%q,"arguments":%q}}]}`, a.in("answer: chunk's call id"), a.in("answer: chunk's tool"), in("chunk's arguments")), "null")+chunk("{}", `"tool_calls"`)+done)
	stream("finish reason", chunk(`{"content":"x"}`, strconv.Quote(a.in("answer: chunk's finish reason")))+done)
	stream("framing", ": "+in("comment")+"\n\nevent: "+a.in("answer: event name")+"\nid: "+a.in("answer: event id")+"\nretry: "+a.in("answer: event retry")+"\n"+chunk(`{"content":"x"}`, `"stop"`)+done)
	stream("bad JSON", chunk(`{"content":"x"}`, "null")+"data: {"+in("bad chunk")+"\n\n"+done)
	stream("error", chunk(`{"content":"x"}`, "null")+fmt.Sprintf("data: {\"error\":{\"message\":%q,\"type\":%q,\"code\":%q}}\n\n", in("error event"), a.in("answer: type of error event"), a.in("answer: code of error event")))
	stream("after the end", chunk(`{"content":"x"}`, `"stop"`)+done+"data: "+in("after the end")+"\n\n")
	stream("no end", chunk(fmt.Sprintf(`{"content":%q}`, in("no end")), "null"))
	stream("a line without end", "data: "+in("a line without end"))

	add("completions", "/v1/completions", false, write(js, 200, fmt.Sprintf(`{"id":"c1","object":"text_completion","created":1,"model":"small","choices":[{"index":0,"text":%q,"finish_reason":"stop"}],%s}`, in("completion"), usage)))
	add("embeddings", "/v1/embeddings", false, write(js, 200, fmt.Sprintf(`{"object":"list","model":%q,"data":[{"object":"embedding","index":0,"embedding":%q}],%s}`, a.in("answer: embeddings model"), in("embedding"), usage)))
	add("responses", "/v1/responses", false, write(js, 200, fmt.Sprintf(`{"id":%q,"object":"response","status":%q,"model":"small","output":[{"type":"message","id":"m","role":"assistant","status":"completed","content":[{"type":"output_text","text":%q,"annotations":[]}]}],"incomplete_details":{"reason":%q},"usage":{"input_tokens":9,"output_tokens":2}}`,
		a.in("answer: response id"), a.in("answer: response status"), in("response"), a.in("answer: incomplete reason"))))
	add("messages", "/v1/messages", false, write(js, 200, whole(a.in("answer: messages id"), "small", in("messages"), "stop", "")))
	add("messages stop", "/v1/messages", false, write(js, 200, whole("c1", "small", "x", a.in("answer: messages finish reason"), `,"stop_reason":`+strconv.Quote(a.in("answer: messages stop reason")))))
	add("messages error", "/v1/messages", false, write(js, 400, fmt.Sprintf(`{"error":{"message":%q}}`, in("messages error"))))
	return out
}

// theatre stands before an engine: requests that ask for a performance get it,
// and it is noted in played.
func theatre(t *testing.T, acts []performance, played []atomic.Int32) func(engine string) string {
	asked := regexp.MustCompile(`ACT-(\d+)\.`)
	return func(engine string) string {
		target, err := url.Parse(engine)
		if err != nil {
			t.Fatal(err)
		}
		proxy := httputil.NewSingleHostReverseProxy(target)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return // the relay went away
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			m := asked.FindSubmatch(body)
			if m == nil || strings.HasPrefix(r.URL.Path, "/tokenize") || strings.HasSuffix(r.URL.Path, "/render") {
				proxy.ServeHTTP(w, r)
				return
			}
			i, err := strconv.Atoi(string(m[1]))
			if err != nil || i >= len(acts) {
				t.Errorf("no act %s", m[1])
				return
			}
			played[i].Add(1)
			acts[i].serve(w)
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
}

// request asks for the i-th performance.
func (p performance) request(i int) flight {
	text := fmt.Sprintf("Please play ACT-%d.", i)
	var body string
	switch p.path {
	case "/v1/completions":
		body = fmt.Sprintf(`{"model":"small","prompt":%q,"max_tokens":2}`, text)
	case "/v1/embeddings":
		body = fmt.Sprintf(`{"model":"small","input":[%q]}`, text)
	case "/v1/responses":
		body = fmt.Sprintf(`{"model":"small","input":%q,"max_output_tokens":2}`, text)
	case "/v1/messages":
		body = fmt.Sprintf(`{"model":"small","max_tokens":2,"messages":[{"role":"user","content":%q}]}`, text)
	default:
		body = string(chat(text, p.stream, 2))
	}
	return flight{method: http.MethodPost, path: p.path, body: []byte(body)}
}

// TestNothingThatAnEngineAnswersIsWrittenAnywhere has engines answer with personal
// data and canaries in every place, well formed and not, and looks for them where
// the canaries of clients are looked for.
func TestNothingThatAnEngineAnswersIsWrittenAnywhere(t *testing.T) {
	a := newAviary()
	acts := a.repertoire()
	played := make([]atomic.Int32, len(acts))
	o := newOverheard(t, theatre(t, acts, played))
	good := o.token(t, "alice@acme.example", "acme")
	client := o.client(t, nil)
	awaitOK(t, client, o.url, good)
	statuses := make(map[int]int)
	for i, act := range acts {
		// Replicas are shunned for a while for what an engine said before.
		for range 5 {
			status := o.fly(t, o.url, good, act.request(i))
			statuses[status]++
			if act.name == "content" && status != http.StatusOK {
				t.Errorf("a good answer came as %d", status)
			}
			if status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
				awaitOK(t, client, o.url, good)
			}
			if played[i].Load() > 0 {
				break
			}
		}
		if played[i].Load() == 0 {
			t.Errorf("%s never got to be played", act.name)
		}
	}
	t.Logf("%d answers with %d canaries; statuses %v", len(acts), len(a.places), statuses)
	o.search(t, a, nil)
}
