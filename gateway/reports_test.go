package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway/upstream"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/routing/splice"
	"github.com/sallyport-ai/sallyport/test/await"
)

// What other gateways were reported to do wrong, tried on this one: a test for
// each report, which it names. Reports about what this gateway does not have,
// such as a cache of answers or MCP, are left out.

// B001, higress-group/higress#4620: events cut across writes are lost.
func TestB001EventsCutAcrossWrites(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		v := clean(p)
		half := len(p.begin) + len(p.text("one"))/2
		all := p.begin + p.text("one") + p.end
		a := s.through(p, wired(func(c *net.TCPConn) {
			put(c, streamHead+chunkedEnd, piece(all[:half]))
			time.Sleep(50 * time.Millisecond)
			put(c, piece(all[half:]), lastPiece)
		}))
		s.exactly(a, http.StatusOK, v.begin+p.texts("one")+v.end)
		if _, o := s.lone(a); o.Outcome.PromptTokens != 9 || o.Outcome.CompletionTokens != 3 {
			t.Errorf("outcome %+v", o.Outcome)
		}
	})
}

// through sends a streamed request to an engine that acts so.
func (s *service) through(p protocol, a act) answer {
	s.tb.Helper()
	mark := s.newMark()
	s.engine.on(mark, a)
	return s.ask(p, "acme", p.body(mark, streamed))
}

// B003, api7/aisix#111, and B004, musistudio/claude-code-router#1672: characters
// cut across writes are corrupted, on some routes.
func TestB003B004CharactersCutAcrossWrites(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		v := clean(p)
		all := p.begin + p.text("好😀") + p.end
		a := s.through(p, writes(append([]string{streamHead + "\r\n"}, bytewise(all)...)...))
		s.exactly(a, http.StatusOK, v.begin+p.texts("好😀")+v.end)
	})
}

// B006, cloudwego/hertz#1441 and others, and B007, zendev-sh/goai#70: a stream
// dies at one long line, on some routes.
func TestB006B007OneLongLine(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		v := clean(p)
		for _, n := range []int{200 << 10, 3 << 20} {
			long := strings.Repeat("0123456789abcde ", n/16)
			a := s.through(p, writes(streamHead+chunkedEnd, piece(p.begin+p.text(long)+p.end), lastPiece))
			s.exactly(a, http.StatusOK, v.begin+p.texts(long)+v.end)
		}
	})
}

// B009, NousResearch/hermes-agent#64554: a body without its last chunk ends
// cleanly at the client.
func TestB009ABodyWithoutItsLastChunk(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		v := clean(p)
		a := s.through(p, writes(streamHead+chunkedEnd, piece(p.begin), piece(p.text("two"))))
		s.exactly(a, http.StatusOK, v.begin+p.texts("two")+p.broke("upstream_error", failedText, 2))
	})
}

// B010, open-webui/open-webui#29628: a failure in mid-stream just stops the 200,
// or ends in an error without a terminator.
func TestB010AFailureInMidStreamIsOneEvent(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		a := s.through(p, cutsOff(streamHead+chunkedEnd, piece(p.begin+p.text("two"))))
		if n := strings.Count(a.body, failedText); n != 1 || !strings.HasSuffix(a.body, "\n\n") || strings.Contains(a.body, p.closed) {
			t.Errorf("%d errors: %q", n, a.body)
		}
	})
}

// B011, router-for-me/CLIProxyAPI#5028: a responses stream that is complete but
// has no [DONE] is called broken.
func TestB011AResponseNeedsNoDone(t *testing.T) {
	s := serve(t)
	p := protocols[2]
	v := clean(p)
	a := s.through(p, writes(streamHead+chunkedEnd, piece(p.begin+p.text("x")+p.end), lastPiece))
	s.exactly(a, http.StatusOK, v.begin+p.texts("x")+v.end)
	s.tells(a, told{attempts: 1, status: audit.StatusOK, http: 200})
}

// B012, apache/apisix#13876, and B013, aden-hive/hive#6541: after part of an
// answer a second call is made, and text comes twice.
func TestB012B013NoSecondCallAfterTheFirstEvent(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		mark := s.newMark()
		s.engine.on(mark, first(writes(streamHead+chunkedEnd, piece(p.begin+p.text("Hel")))))
		a := s.ask(p, "acme", p.body(mark, streamed))
		if n := len(s.engine.got(mark)); n != 1 || strings.Count(a.body, "Hel") != 1 || !strings.Contains(a.body, failedText) {
			t.Errorf("%d calls: %s", n, a.body)
		}
	})
}

// B014, maximhq/bifrost#5395: an error in the second event passes for a stream.
func TestB014AnErrorInTheSecondEvent(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		first := p.begin
		if first == "" {
			first = p.text("x")
		}
		a := s.through(p, writes(streamHead+chunkedEnd, piece(first+"event: error\n"+`data: {"type":"error","error":{"type":"insufficient_quota","message":"SECRET"}}`+"\n\n"), lastPiece))
		if strings.Contains(a.body, "SECRET") || !strings.Contains(a.body, failedText) {
			t.Errorf("%d %s", a.status, a.body)
		}
		s.tells(a, told{attempts: 1, status: audit.StatusError, reasons: []string{"upstream_error"}, http: 200})
	})
}

// B015, maximhq/bifrost#7034: an upstream that accepts and stays silent blocks.
func TestB015AnEngineThatAcceptsAndStaysSilent(t *testing.T) {
	w := inWorld(t)
	s := serve(t, func(c *Config) {
		c.Upstream, _ = upstream.New(upstream.Config{Own: w.self, HeaderTimeout: 300 * time.Millisecond})
	})
	mark := s.newMark()
	s.engine.on(mark, stalls())
	began := time.Now()
	a := s.post("acme", chat(mark))
	if took := time.Since(began); took > await.Limit/2 {
		t.Errorf("took %v", took)
	}
	s.want(a, http.StatusGatewayTimeout, "upstream_timeout")
}

// B016, maximhq/bifrost#2786, B017, diegosouzapw/OmniRoute#5063, and B018,
// OpenRouterTeam/python-sdk#266: deltas come in lumps, silence ends the stream,
// and what breaks the silence breaks clients.
func TestB016B017B018SilenceIsBrokenAsTheProtocolDoes(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		s.g.keepAlive = 40 * time.Millisecond
		alive := ": keep-alive\n\n"
		if p.op.Shape == wire.Anthropic {
			alive = "event: ping\ndata: {\"type\":\"ping\"}\n\n"
		}
		var silence time.Duration
		a := s.through(p, wired(func(c *net.TCPConn) {
			put(c, streamHead+chunkedEnd, piece(p.begin+p.text("Hel")+p.text("lo")[:9]))
			began := time.Now()
			time.Sleep(600 * time.Millisecond)
			silence = time.Since(began)
			put(c, piece(p.text("lo")[9:]+p.end), lastPiece)
		}))
		v := clean(p)
		silent := strings.Index(a.body, p.shown("Hel")) + len(p.shown("Hel"))
		n := strings.Count(a.body[silent:], alive)
		if n < 2 || n > int(silence/s.g.keepAlive)+1 {
			t.Errorf("%d signs of life in %v of silence: %s", n, silence, a.body)
		}
		a.body = a.body[:silent] + strings.ReplaceAll(a.body[silent:], alive, "")
		s.exactly(a, http.StatusOK, v.begin+p.texts("Hel", "lo")+v.end)
	})
}

// B017, the other half: a client that leaves does not count against the replica.
func TestB017AClientThatLeavesIsNotTheReplicasFault(t *testing.T) {
	if blames(fmt.Errorf("%w: %w", errClientGone, context.Canceled)) || blames(context.Canceled) || !blames(errEngineFailed) {
		t.Error("the wrong side is blamed")
	}
}

// B019, golang/go#27816 and others: events come in bursts.
func TestB019EventsComeOneByOne(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		const n = 10
		next := make(chan struct{})
		mark := s.newMark()
		s.engine.on(mark, wired(func(c *net.TCPConn) {
			put(c, streamHead+chunkedEnd, piece(p.begin))
			for i := range n {
				put(c, piece(p.text(fmt.Sprintf("word %d.", i))))
				select { // the engine goes on only when the client has it
				case <-next:
				case <-time.After(await.Limit):
					return
				}
			}
			put(c, piece(p.end), lastPiece)
		}))
		resp, err := s.client.Do(s.to(t.Context(), p.op, "acme", p.body(mark, streamed)))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		lines, i := bufio.NewScanner(resp.Body), 0
		for lines.Scan() {
			if strings.Contains(lines.Text(), fmt.Sprintf("word %d.", i)) {
				i++
				next <- struct{}{}
			}
		}
		if i != n || lines.Err() != nil {
			t.Errorf("%d of %d events, %v", i, n, lines.Err())
		}
	})
}

// B020, BerriAI/litellm#29557: a stream is batched by a proxy in front.
func TestB020ProxiesAreToldNotToBufferStreams(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		for _, more := range [][]string{nil, {streamed}} {
			h := s.ask(p, "acme", p.body(s.newMark(), more...)).header
			if got := h.Get("X-Accel-Buffering") == "no" && h.Get("Cache-Control") == "no-store"; got != (more != nil) {
				t.Errorf("streamed %v: %v", more != nil, h)
			}
		}
	})
}

// B021, stacklok/toolhive#3691 and others: a stream is cut at a timeout of the
// server, in mid-event.
func TestB021AStreamOutlivesEveryTimeoutOfItsParts(t *testing.T) {
	const limit, pause, pauses = 2 * time.Second, 150 * time.Millisecond, 15 // a busy machine pauses too
	w := inWorld(t)
	for _, p := range protocols {
		t.Run(p.op.Name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(c *Config) {
				c.Upstream, _ = upstream.New(upstream.Config{Own: w.self, DialTimeout: limit, HeaderTimeout: limit, IdleTimeout: limit})
			})
			s.g.writeTimeout = limit
			v := clean(p)
			var words []string
			for i := range pauses {
				words = append(words, fmt.Sprint("w", i))
			}
			a := s.through(p, wired(func(c *net.TCPConn) {
				put(c, streamHead+chunkedEnd, piece(p.begin))
				for _, word := range words {
					time.Sleep(pause)
					put(c, piece(p.text(word)))
				}
				put(c, piece(p.end), lastPiece)
			}))
			s.exactly(a, http.StatusOK, v.begin+p.texts(words...)+v.end)
		})
	}
}

// B022, BerriAI/litellm#30245, B024, BerriAI/litellm#37140, B025,
// BerriAI/litellm#30020, and B064, ENTERPILOT/GoModel#1000: the model goes on
// for a client that left, streaming or not; its slot is lost; and it is called
// the provider's error.
func TestB022B024B025B064AClientThatLeavesStopsTheEngine(t *testing.T) {
	onEachRoute(t, func(t *testing.T, s *service, p protocol) {
		for _, stream := range []bool{false, true} {
			if stream && p.text == nil {
				continue
			}
			mark, arrived, gone := s.newMark(), make(chan struct{}), make(chan struct{})
			begin := ""
			more := []string(nil)
			if stream {
				more, begin = []string{streamed}, streamHead+chunkedEnd+piece(p.begin)
			}
			s.engine.on(mark, wired(func(c *net.TCPConn) {
				put(c, begin)
				close(arrived)
				_, _ = io.Copy(io.Discard, c)
				close(gone)
			}))
			ctx, cancel := context.WithCancel(t.Context())
			var id string
			var done sync.WaitGroup
			done.Go(func() {
				resp, err := s.client.Do(s.to(ctx, p.op, "acme", p.body(mark, more...)))
				if err == nil {
					id = resp.Header.Get("Sallyport-Decision-Id")
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
			})
			<-arrived
			cancel()
			select {
			case <-gone:
			case <-time.After(await.Limit):
				t.Fatalf("streamed %v: the engine was not told", stream)
			}
			done.Wait()
			if id != "" {
				if _, o := s.storyOf(id); o[0].Status != audit.StatusCancelled || o[0].Reason != "client_gone" {
					t.Errorf("outcome %s %s", o[0].Status, o[0].Reason)
				}
			}
			if !await.Within(await.Limit, func() bool {
				for _, r := range s.fleet.Replicas() {
					if r.Running > 0 || r.Excluded != "" {
						return false
					}
				}
				return true
			}) {
				t.Fatalf("its place at the replica is not free: %+v", s.fleet.Replicas())
			}
		}
	})
}

// odd sends a chat stream of which one event is odd, and expects it unchanged.
func (s *service) odd(event string, more ...string) answer {
	s.tb.Helper()
	mark := s.newMark()
	s.engine.on(mark, writes(streamHead+chunkedEnd, piece(protocols[0].begin+event+"data: [DONE]\n\n"), lastPiece))
	return s.post("globex", chat(mark, append(more, streamed)...)) // whose policy shows cached tokens
}

const usageAsked = `"stream_options":{"include_usage":true}`

// B027, BerriAI/litellm#28735, B028, agentgateway/agentgateway#3455, B029,
// diegosouzapw/OmniRoute#9750, and B032, openai/openai-python#3246 and others:
// what an engine says in an odd form is changed, or its usage is not seen.
func TestB027B028B029B032OddChunksPassAndCount(t *testing.T) {
	s := serve(t)
	const usage = `"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}`
	for claim, event := range map[string]string{
		"B027 usage without choices": `data: {"choices":[],` + usage + "}\n\n",
		"B028 no delta":              `data: {"choices":[{"finish_reason":"tool_calls","index":0}],` + usage + "}\n\n",
		"B029 an empty delta":        `data: {"choices":[{"index":0,"delta":{}}],` + usage + "}\n\n",
		"B032 calls of one index": `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"x","arguments":"{}"}},` +
			`{"index":0,"id":"b","function":{"name":"y","arguments":"{}"}}]}}],` + usage + "}\n\n",
		"B032 calls without index": `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"id":"a","function":{"name":"x"}},{"id":"b","function":{"name":"y"}}]}}],` + usage + "}\n\n",
	} {
		t.Run(claim, func(t *testing.T) {
			s.tb = t
			a := s.odd(event, usageAsked)
			s.exactly(a, http.StatusOK, protocols[0].begin+event+"data: [DONE]\n\n")
			if _, o := s.lone(a); o.Outcome.CompletionTokens != 3 || *o.Outcome.CachedTokens != 4 {
				t.Errorf("outcome %+v", o.Outcome)
			}
		})
	}
}

// B030, mozilla-ai/any-llm#974: usage of streams is always zero, because nobody
// asked for it.
func TestB030UsageIsAskedForAndTakenOutAgain(t *testing.T) {
	s := serve(t)
	usage := `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}` + "\n\n"
	a := s.odd(usage)
	s.exactly(a, http.StatusOK, protocols[0].begin+"data: [DONE]\n\n")
	if _, o := s.lone(a); o.Outcome.CompletionTokens != 3 {
		t.Errorf("outcome %+v", o.Outcome)
	}
}

// B031, kubernetes-sigs/gateway-api-inference-extension#1627: a stream is known
// by one spelling of its type only.
func TestB031AStreamIsKnownByEverySpellingOfItsType(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		v := clean(p)
		for _, kind := range []string{"text/event-stream", "Text/Event-Stream", "text/event-stream;charset=utf-8", `TEXT/EVENT-STREAM ; charset="UTF-8"`} {
			a := s.through(p, writes("HTTP/1.1 200 OK\r\ncontent-TYPE: "+kind+"\r\n"+chunkedEnd, piece(p.begin+p.text("x")+p.end), lastPiece))
			s.exactly(a, http.StatusOK, v.begin+p.texts("x")+v.end)
		}
	})
}

// B034, maximhq/bifrost#6967: an upstream that closes early, says nothing or
// garbage crashes the process.
func TestB034GarbageIsAnError(t *testing.T) {
	for claim, a := range map[string]act{"a close": writes(), "an empty reply": writes("\r\n\r\n"), "garbage": writes("garbage\r\n\r\n")} {
		t.Run(claim, func(t *testing.T) {
			s := serve(t, func(c *Config) { c.MaxAttempts = 1 })
			mark := s.newMark()
			s.engine.on(mark, a)
			s.want(s.post("acme", chat(mark)), http.StatusBadGateway, "upstream_error")
		})
	}
}

// B035, llm-d/llm-d-router#2518 and others: big integers change on their way.
func TestB035BigIntegersKeepTheirDigits(t *testing.T) {
	s := serve(t)
	for _, n := range []string{"9007199254740993", "9223372036854775807", "-9223372036854775808"} {
		mark := s.newMark()
		body := strings.Replace(chat(mark, `"seed":`+n), `"small"`, `"small-latest"`, 1)
		if a := s.post("acme", body); a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.body)
		}
		if got := s.engine.got(mark)[0].body; !strings.Contains(got, `"seed":`+n+`,`) || !strings.Contains(got, `"model":"small"`) {
			t.Errorf("the engine got %s", got)
		}
	}
}

// B037, NVIDIA-NeMo/Guardrails#2060: new parameters are dropped without a word,
// and extra fields of answers vanish. Here a parameter is forwarded or refused
// by name.
func TestB037NothingIsDroppedWithoutAWord(t *testing.T) {
	s := serve(t)
	mark := s.newMark()
	const extra = `{"id":"c","x_foo":{"a":[1,{"b":null}]},"choices":[{"index":0,"message":{"role":"assistant","content":"x","x_bar":1.50}}]}`
	s.engine.on(mark, writes(wholeHead+sized(len(extra)), extra))
	a := s.post("acme", chat(mark, `"reasoning_effort":"low"`))
	s.exactly(a, http.StatusOK, extra)
	if got := s.engine.got(mark)[0].body; !strings.Contains(got, `"reasoning_effort":"low"`) {
		t.Errorf("the engine got %s", got)
	}
	a = s.post("acme", chat(s.newMark(), `"x_foo":{"a":[1]}`))
	if s.want(a, http.StatusBadRequest, "unsupported_field"); !strings.Contains(a.body, `"param":"x_foo"`) {
		t.Error(a.body)
	}
}

// B038, BerriAI/litellm#30544, and B048, BerriAI/litellm#38774: the engine gets
// fields that the caller never sent.
func TestB038B048TheEngineGetsTheCallersBody(t *testing.T) {
	onEachRoute(t, func(t *testing.T, s *service, p protocol) {
		if p.op.Shape == wire.Anthropic {
			return // translated
		}
		mark := s.newMark()
		body := p.body(mark)
		if a := s.ask(p, "acme", body); a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.body)
		}
		got := []byte(s.engine.got(mark)[0].body)
		var err error
		for _, ours := range []string{"cache_salt", "max_tokens", "max_output_tokens", "store"} { // as documented
			if got, err = splice.Apply(nil, got, splice.Delete(ours)); err != nil {
				t.Fatal(err)
			}
		}
		if string(got) != body {
			t.Errorf("the engine got %s", got)
		}
	})
}

// B039, agentgateway/agentgateway#2402 and others: compressed bodies fail as
// invalid JSON, or pass unseen.
func TestB039CompressedBodies(t *testing.T) {
	s := serve(t)
	mark := s.newMark()
	if a := s.post("acme", zipped(chat(mark)), "Content-Encoding", "gzip"); a.status != http.StatusOK {
		t.Errorf("gzip: %d %s", a.status, a.body)
	}
	if got := s.engine.got(mark); len(got) != 1 || got[0].header.Get("Content-Encoding") != "" {
		t.Errorf("the engine got %v", got)
	}
	for _, coding := range []string{"zstd", "foo", "br", "deflate", "gzip, zstd"} {
		a := s.post("acme", chat(s.newMark()), "Content-Encoding", coding)
		if s.want(a, http.StatusUnsupportedMediaType, "unsupported_encoding"); !strings.Contains(a.body, "gzip") && !strings.Contains(a.body, "once") {
			t.Errorf("%s: %s", coding, a.body)
		}
	}
}

// B041, mlflow/mlflow#24784: a small body expands without bound.
func TestB041ABombIsRefusedBeforeItExpands(t *testing.T) {
	s := serve(t)
	var bomb bytes.Buffer
	for range 10 { // 1 GiB in about 1 MiB
		bomb.WriteString(zipped(strings.Repeat(" ", 100<<20)))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s.want(s.post("acme", bomb.String(), "Content-Encoding", "gzip"), http.StatusRequestEntityTooLarge, "too_large")
	runtime.ReadMemStats(&after)
	if made := after.TotalAlloc - before.TotalAlloc; made > 256<<20 {
		t.Errorf("%d bytes were made of it", made)
	}
}

// B044, kubernetes-sigs/gateway-api-inference-extension#854, and B045,
// silogen/cluster-forge#832: long prompts fail, or are decided on without having
// been read.
func TestB044B045LongBodies(t *testing.T) {
	s := serve(t, func(c *Config) { c.Live.Limits.BodyBytes = 9 << 20 })
	const answered = `{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"x"}}]}`
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{300 << 10, 1 << 20, 8 << 20} {
		for _, chunked := range []bool{false, true} {
			mark := s.newMark()
			s.engine.on(mark, writes(wholeHead+sized(len(answered)), answered))
			words := make([]byte, n)
			for i := range words {
				words[i] = "abcdefghijklmnopqrstuvwxyz      "[rng.IntN(32)]
			}
			body := `{"messages":[{"role":"user","content":"` + mark + `"}],"user":"` + string(words) + `","model":"small"}` // the model comes last
			req := s.request(t.Context(), "acme", body)
			if chunked {
				req.ContentLength = -1
			}
			if a := s.do(req); a.status != http.StatusOK {
				t.Fatalf("%d bytes, chunked %v: %d %s", n, chunked, a.status, a.body)
			}
			denied := s.request(t.Context(), "acme", strings.Replace(body, `"model":"small"`, `"model":"other"`, 1))
			s.want(s.do(denied), http.StatusForbidden, "policy_denied")
			over := s.request(t.Context(), "acme", `{"model":"small","user":"`+strings.Repeat("x", 9<<20)+`"}`)
			if chunked {
				over.ContentLength = -1
			}
			s.want(s.do(over), http.StatusRequestEntityTooLarge, "too_large")
		}
	}
}

// B046, agentgateway/agentgateway#1685, and B047, api7/aisix#397: large answers,
// and embeddings in base64, are refused.
func TestB046B047LargeEmbeddings(t *testing.T) {
	s := serve(t)
	for claim, vector := range map[string]string{
		"B046 numbers": "[" + strings.Repeat("0.0123456,", 800<<10) + "0]",
		"B047 base64":  `"` + strings.Repeat("AAAA", 2<<20) + `"`,
	} {
		mark := s.newMark()
		body := `{"data":[{"index":0,"embedding":` + vector + `}],"usage":{"prompt_tokens":9,"total_tokens":9}}`
		s.engine.on(mark, writes(wholeHead+sized(len(body)), body))
		if a := s.ask(embeddingsRoute, "acme", embeddingsRoute.body(mark)); a.status != http.StatusOK || a.body != body {
			t.Errorf("%s: %d, %d bytes of %d", claim, a.status, len(a.body), len(body))
		}
	}
}
