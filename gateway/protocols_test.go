package gateway

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/test/await"
)

// protocol is a route that streams, and what its streams are made of.
type protocol struct {
	op   wire.Operation
	body func(mark string, more ...string) string

	begin, end string              // of the engine's stream
	text       func(string) string // an event of it; JSON-escaped text

	shown  func(string) string // what the client gets for text
	opened string              // what it gets for begin
	closed string              // the end marker that it must not get from a broken stream
	broken string              // how an error event looks
}

func members(first string, more []string) string {
	return "{" + strings.Join(append([]string{first}, more...), ",") + "}"
}

func prompted(name string) func(string, ...string) string {
	return func(mark string, more ...string) string {
		return members(`"model":"small","`+name+`":"`+mark+` Tell me about harbours."`, more)
	}
}

func same(event func(string) string) func(string) string { return event }

var protocols = func() []protocol {
	const usage = `"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":0}}`
	chatText := func(s string) string {
		return `data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"` + s + `"},"finish_reason":null}]}` + "\n\n"
	}
	completionText := func(s string) string {
		return `data: {"id":"cmpl-1","choices":[{"index":0,"text":"` + s + `","finish_reason":null}]}` + "\n\n"
	}
	responseText := func(s string) string {
		return `event: response.output_text.delta` + "\n" + `data: {"type":"response.output_text.delta","item_id":"m","output_index":0,"content_index":0,"delta":"` + s + `","sequence_number":1}` + "\n\n"
	}
	chatBegin := `data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	chatEnd := `data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n" + `data: {"choices":[],` + usage + "}\n\n" + "data: [DONE]\n\n"
	created := `event: response.created` + "\n" + `data: {"type":"response.created","response":{"id":"resp_1","status":"in_progress"},"sequence_number":0}` + "\n\n"
	const plainError = `data: {"error":{"message":"The model server failed.","type":"server_error","code":"upstream_error","param":null}}`
	return []protocol{
		{
			op: wire.ChatCompletions, body: func(mark string, more ...string) string { return chat(mark, more...) },
			begin: chatBegin, text: chatText, end: chatEnd,
			opened: chatBegin, shown: same(chatText), closed: "[DONE]", broken: plainError,
		},
		{
			op: wire.Completions, body: prompted("prompt"),
			text: completionText, end: strings.ReplaceAll(chatEnd, `"delta":{}`, `"text":""`),
			shown: same(completionText), closed: "[DONE]", broken: plainError,
		},
		{
			op: wire.Responses, body: prompted("input"),
			begin: created, text: responseText,
			end:    "event: response.completed\n" + `data: {"type":"response.completed","response":{"id":"resp_1","status":"completed","usage":{"input_tokens":9,"output_tokens":3,"total_tokens":12,"input_tokens_details":{"cached_tokens":0}}},"sequence_number":2}` + "\n\n",
			opened: created, shown: same(responseText), closed: "response.completed",
			broken: "event: error\n" + `data: {"type":"error","code":"upstream_error","message":"The model server failed.","param":null,"sequence_number":2}`,
		},
		{
			op: wire.Messages, body: func(mark string, more ...string) string {
				return members(`"model":"small","max_tokens":64,"messages":[{"role":"user","content":"`+mark+` Tell me about harbours."}]`, more)
			},
			begin: chatBegin, text: chatText, end: chatEnd,
			shown: func(s string) string {
				return "event: content_block_delta\n" + `data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"` + s + `"}}` + "\n\n"
			},
			closed: "message_stop",
			broken: "event: error\n" + `data: {"type":"error","error":{"type":"api_error","message":"The model server failed."}}`,
		},
	}
}()

// onEach runs a test for each route that streams.
func onEach(t *testing.T, test func(t *testing.T, s *service, p protocol)) {
	t.Helper()
	s := serve(t)
	for _, p := range protocols {
		t.Run(p.op.Name, func(t *testing.T) {
			s.tb = t
			await.That(t, "routes", func() bool {
				for _, r := range s.fleet.Replicas() {
					if len(r.Routes) < 4 {
						return false
					}
				}
				return true
			})
			test(t, s, p)
		})
	}
}

// ask sends a request to the route.
func (s *service) ask(p protocol, who, body string, header ...string) answer {
	s.tb.Helper()
	return s.do(s.to(s.tb.Context(), p.op, who, body, header...))
}

func (s *service) to(ctx context.Context, op wire.Operation, who, body string, header ...string) *http.Request {
	req := s.request(ctx, who, body, header...)
	req.URL.Path = op.Path
	return req
}

// says is an act that streams, a piece at each write.
func says(pieces ...string) act {
	return func(w http.ResponseWriter, _ *http.Request, _ call, _ func()) {
		w.Header().Set("Content-Type", "Text/Event-Stream; Charset=UTF-8") // B031
		for _, p := range pieces {
			_, _ = io.WriteString(w, p)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

// breaks is says, and then the connection breaks.
func breaks(pieces ...string) act {
	return func(w http.ResponseWriter, r *http.Request, c call, pass func()) {
		says(pieces...)(w, r, c, pass)
		panic(http.ErrAbortHandler)
	}
}

func TestEachRouteIsAnsweredAndWrittenDown(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		for name, more := range map[string][]string{"whole": nil, "streamed": {streamed}} {
			mark := s.newMark()
			a := s.ask(p, "acme", p.body(mark, more...))
			if a.status != http.StatusOK || a.err != nil {
				t.Fatalf("%s: %d %s %v", name, a.status, a.body, a.err)
			}
			d, o := s.lone(a)
			if d.Request.Operation != p.op.Name || d.Class.Name != "chat" || o.Status != audit.StatusOK || o.Outcome.Finish == "" {
				t.Errorf("%s: decision %+v, outcome %+v", name, d.Request, o.Outcome)
			}
			got := s.engine.got(mark)
			if len(got) != 1 || got[0].path != p.op.Engine || !strings.Contains(got[0].body, `"cache_salt":`) {
				t.Fatalf("%s: the engine got %+v", name, got)
			}
			if !strings.HasPrefix(d.Request.PromptBasis, basisNative) || d.Request.PromptTokens != o.Outcome.PromptTokens {
				t.Errorf("%s: we counted %d (%s), the engine %d", name, d.Request.PromptTokens, d.Request.PromptBasis, o.Outcome.PromptTokens)
			}
			if o.Outcome.CompletionTokens == 0 || o.Outcome.CachedTokens == nil {
				t.Errorf("%s: outcome %+v", name, o.Outcome)
			}
			if name == "streamed" && strings.Count(a.body, "\n\n") < 4 || !strings.HasPrefix(a.header.Get("Content-Type"), map[string]string{"whole": "application/json", "streamed": "text/event-stream"}[name]) {
				t.Errorf("%s: %v %s", name, a.header, a.body)
			}
			if buffered := a.header.Get("X-Accel-Buffering") == "no" && a.header.Get("Cache-Control") != ""; buffered != (name == "streamed") { // B020
				t.Errorf("%s: header %v", name, a.header)
			}
		}
	})
}

// counted is what the gateway counted itself.
var counted = regexp.MustCompile(`"input_tokens":[0-9]+,"output_tokens":0`)

// B001, B003, B004: wherever the stream is cut, inside characters, line ends and
// JSON, the client gets the same.
func TestEachStreamMayBeCutAnywhere(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		stream := p.begin + p.text("好 👩‍👧 ") + strings.ReplaceAll(p.text("CR LF"), "\n", "\r\n") + p.text(`\ud83d\ude00`) + p.end
		send := func(a act) answer {
			mark := s.newMark()
			s.engine.on(mark, a)
			got := s.ask(p, "acme", p.body(mark, streamed))
			if d, o := s.lone(got); d.Status != audit.StatusAllowed || o.Status != audit.StatusOK || o.Outcome.CompletionTokens != 3 {
				t.Errorf("outcome %+v", o.Outcome)
			}
			got.body = counted.ReplaceAllString(got.body, "") // that of the mark
			return got
		}
		whole := send(says(stream))
		if !strings.Contains(whole.body, "好 👩‍👧 ") || strings.ContainsRune(whole.body, '\uFFFD') || !strings.Contains(whole.body, p.closed) {
			t.Fatalf("got %s", whole.body)
		}
		if p.op.Shape != wire.Anthropic && !strings.Contains(whole.body, strings.ReplaceAll(p.text("CR LF"), "\n", "\r\n")) {
			t.Errorf("bytes that pass were changed: %q", whole.body)
		}
		if bytes := send(says(strings.Split(stream, "")...)); bytes.body != whole.body {
			t.Errorf("in characters\n%s\nwhole\n%s", bytes.body, whole.body)
		}
		raw := make([]string, len(stream))
		for i := range raw {
			raw[i] = stream[i : i+1]
		}
		if bytes := send(says(raw...)); bytes.body != whole.body {
			t.Errorf("in bytes\n%s\nwhole\n%s", bytes.body, whole.body)
		}
	})
}

// B006, B007: one long line.
func TestEachStreamMayHaveLongLines(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		long := strings.Repeat("na ", 1<<20)
		mark := s.newMark()
		s.engine.on(mark, says(p.begin+p.text(long)+p.end))
		if a := s.ask(p, "acme", p.body(mark, streamed)); !strings.Contains(a.body, p.shown(long)) || !strings.Contains(a.body, p.closed) {
			t.Errorf("%d bytes of %d", len(a.body), len(long))
		}
	})
}

// B009, B010, B012, B013: a stream that breaks ends with one error event in the
// route's own shape, without an end marker, and is not begun again elsewhere.
func TestEachStreamThatBreaksSaysSo(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		for claim, a := range map[string]act{
			"the connection breaks":             breaks(p.begin, p.text("Hel")),
			"the connection breaks in an event": breaks(p.begin, p.text("Hel"), p.text("lo")[:20]),
			"it ends early":                     says(p.begin, p.text("Hel")),
			"it ends in an event":               says(p.begin, p.text("Hel"), p.text("lo")[:20]),
			"an event is no JSON":               says(p.begin, p.text("Hel"), "data: {\"choices\":\n\n", p.end),
			"the engine reports an error":       says(p.begin, p.text("Hel"), `data: {"error":{"message":"SECRET","code":500}}`+"\n\n", p.end), // B014
			"an error event":                    says(p.begin, p.text("Hel"), "event: error\n"+`data: {"type":"error","error":{"message":"SECRET"}}`+"\n\n", p.end),
		} {
			mark := s.newMark()
			s.engine.on(mark, a)
			got := s.ask(p, "acme", p.body(mark, streamed))
			if got.status != http.StatusOK || !strings.Contains(got.body, p.shown("Hel")) || !strings.HasSuffix(got.body, p.broken+"\n\n") ||
				strings.Contains(got.body, p.closed) || strings.Contains(got.body, "SECRET") || strings.Count(got.body, "Hel") != 1 {
				t.Errorf("%s: %d %s", claim, got.status, got.body)
			}
			if calls := s.engine.got(mark); len(calls) != 1 {
				t.Errorf("%s: %d calls", claim, len(calls))
			}
			if _, o := s.lone(got); o.Status != audit.StatusError || o.Outcome.ErrorClass != "upstream_error" {
				t.Errorf("%s: outcome %+v", claim, o.Outcome)
			}
		}
	})
}

// B022: a client that goes away stops the engine.
func TestEachStreamEndsWithItsClient(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		mark := s.newMark()
		gone := make(chan struct{})
		s.engine.on(mark, func(w http.ResponseWriter, r *http.Request, c call, pass func()) {
			says(p.begin, p.text("Hel"))(w, r, c, pass)
			select {
			case <-r.Context().Done():
				close(gone)
			case <-time.After(await.Limit):
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		resp, err := s.client.Do(s.to(ctx, p.op, "acme", p.body(mark, streamed)))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		cancel()
		select {
		case <-gone:
		case <-time.After(await.Limit):
			t.Fatal("the engine was not told")
		}
		if _, o := s.storyOf(resp.Header.Get("Sallyport-Decision-Id")); o[0].Status != audit.StatusCancelled {
			t.Errorf("outcome %s", o[0].Status)
		}
	})
}

func TestEachRouteHidesWhatWasCached(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		for who, shown := range map[string]bool{"acme": false, "globex": true} {
			for name, more := range map[string][]string{"whole": nil, "streamed": {streamed}} {
				if name == "streamed" && (p.op.Name == "chat.completions" || p.op.Name == "completions") {
					more = append(more, `"stream_options":{"include_usage":true}`)
				}
				a := s.ask(p, who, p.body(s.newMark(), more...))
				got := strings.Contains(a.body, "cached_tokens") || strings.Contains(a.body, "cache_read_input_tokens")
				if a.status != http.StatusOK || got != shown {
					t.Errorf("%s %s: shown %v: %s", who, name, got, a.body)
				}
			}
		}
	})
}

func TestEachRouteRefusesInItsOwnShape(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		want := func(code, openAI, anthropic string) string {
			if p.op.Shape == wire.Anthropic {
				return `{"type":"error","error":{"type":"` + anthropic + `",`
			}
			return `"type":"` + openAI + `","code":"` + code + `"`
		}
		for claim, c := range map[string]struct {
			who, body string
			status    int
			want      string
		}{
			"no credential": {"", p.body(s.newMark()), 401, want("no_credential", "authentication_error", "authentication_error")},
			"denied":        {"initech", p.body(s.newMark()), 403, want("policy_denied", "permission_error", "permission_error")},
			"a bad field":   {"acme", p.body(s.newMark(), `"x_foo":1`), 400, want("unsupported_field", "invalid_request_error", "invalid_request_error")},
			"another model": {"acme", strings.Replace(p.body(s.newMark()), `"small"`, `"large"`, 1), 403, want("policy_denied", "permission_error", "permission_error")},
		} {
			if a := s.ask(p, c.who, c.body); a.status != c.status || !strings.Contains(a.body, c.want) {
				t.Errorf("%s: %d %s", claim, a.status, a.body)
			}
		}
		mark := s.newMark()
		s.engine.on(mark, func(w http.ResponseWriter, _ *http.Request, _ call, _ func()) {
			w.WriteHeader(http.StatusInternalServerError)
		})
		if a := s.ask(p, "acme", p.body(mark)); a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, want("no_replica", "server_error", "overloaded_error")) {
			t.Errorf("engines that fail: %d %s", a.status, a.body)
		}
	})
}

// What one tenant caches is no hit for another, on any route. The first block,
// which holds little more than the template, may be the tenant's own of before.
func TestEachRouteKeepsTenantsApart(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		long := s.newMark() + strings.Repeat(" The harbour of the town lies in the north.", 20)
		cached := func(who string) int {
			_, o := s.lone(s.ask(p, who, strings.Replace(p.body("MARK"), "MARK", long, 1)))
			return *o.Outcome.CachedTokens
		}
		const block = 16
		if n := cached("acme"); n > block {
			t.Errorf("a prompt that is new: %d cached", n)
		}
		if n := cached("globex"); n > block {
			t.Errorf("a prompt of another tenant: %d cached", n)
		}
	})
}

func TestEmbeddings(t *testing.T) {
	s := serve(t)
	embed := protocol{op: wire.Embeddings, body: prompted("input")}
	mark := s.newMark()
	a := s.ask(embed, "acme", embed.body(mark, `"encoding_format":"base64"`)) // B047
	if a.status != http.StatusOK || !strings.Contains(a.body, `"embedding":"`) || strings.Contains(a.body, "cached_tokens") {
		t.Fatalf("%d %s", a.status, a.body)
	}
	d, o := s.lone(a)
	if d.Class.Name != "embedding" || d.Request.Operation != "embeddings" || o.Status != audit.StatusOK || o.Outcome.PromptTokens == 0 {
		t.Errorf("decision %+v, outcome %+v", d.Class, o.Outcome)
	}
	// B048: nothing is added that the client left out, but for the salt.
	mark = s.newMark()
	if a := s.ask(embed, "acme", embed.body(mark)); a.status != http.StatusOK || !strings.Contains(a.body, `"embedding":[`) {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if got := s.engine.got(mark)[0]; got.path != "/v1/embeddings" || !strings.HasPrefix(got.body, strings.TrimSuffix(embed.body(mark), "}")+`,"cache_salt":"`) {
		t.Errorf("the engine got %+v", got)
	}
	s.want(s.ask(embed, "globex", embed.body(s.newMark())), http.StatusForbidden, "policy_denied")
}

// TestMessagesCallTools goes twice around with a tool: the engine's call comes as
// a tool_use block, its result goes back as a tool message.
func TestMessagesCallTools(t *testing.T) {
	s := serve(t)
	const tools = `"tools":[{"name":"lookup","input_schema":{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}}]`
	p := protocols[3]
	for name, more := range map[string]string{"whole": "", "streamed": `,"stream":true`} {
		first := s.ask(p, "agent", p.body(s.newMark(), tools+more))
		if first.status != http.StatusOK || !strings.Contains(first.body, `"type":"tool_use"`) || !strings.Contains(first.body, `"stop_reason":"tool_use"`) {
			t.Fatalf("%s: %d %s", name, first.status, first.body)
		}
		if d, _ := s.lone(first); d.Class.Name != "agent_tool_call" || d.Placement.Pool != "agents" {
			t.Errorf("%s: class %s on %s", name, d.Class.Name, d.Placement.Pool)
		}
		mark := s.newMark()
		second := s.ask(p, "agent", `{"model":"small","max_tokens":64,`+tools+more+`,"messages":[{"role":"user","content":"`+mark+`"},`+
			`{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"lookup","input":{"id":7}}]},`+
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"in good order"}]}]}`)
		if second.status != http.StatusOK || !strings.Contains(second.body, `"type":"text"`) || !strings.Contains(second.body, `"stop_reason":"end_turn"`) {
			t.Fatalf("%s: %d %s", name, second.status, second.body)
		}
		if got := s.engine.got(mark)[0].body; !strings.Contains(got, `{"role":"tool","tool_call_id":"t1","content":"in good order"}`) {
			t.Errorf("%s: the engine got %s", name, got)
		}
	}
}

// Anthropic's clients send their credential and their version in headers of
// their own.
func TestMessagesTakeTheHeadersOfAnthropicsClients(t *testing.T) {
	s := serve(t)
	p := protocols[3]
	mark := s.newMark()
	a := s.ask(p, "", p.body(mark), "X-Api-Key", s.tokens["acme"], "Anthropic-Version", "2023-06-01", "Anthropic-Beta", "x")
	if a.status != http.StatusOK || !strings.HasPrefix(a.body, `{"id":"msg_`) {
		t.Fatalf("%d %s", a.status, a.body)
	}
	for name := range s.engine.got(mark)[0].header {
		if strings.HasPrefix(name, "Anthropic") || name == "X-Api-Key" {
			t.Errorf("the engine got %s", name)
		}
	}
}
