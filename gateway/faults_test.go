package gateway

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway/upstream"
	"github.com/sallyport-ai/sallyport/test/await"
)

// What engines do to a connection before they have answered. Each of these is
// tried once more, elsewhere.
var early = []struct {
	claim string
	act   act
	why   string // reason of the first outcome
}{
	{"a reset", cutsOff(), "upstream_error"},
	{"an end", writes(), "upstream_error"},
	{"bytes that are no HTTP", writes("\x00\xffSSH-2.0-OpenSSH_9.9\r\n\r\n"), "upstream_error"},
	{"a status line that is none", writes("HTTP/1.1 OK 200\r\n\r\n"), "upstream_error"},
	{"half a status line", writes("HTTP/1.1 20"), "upstream_error"},
	{"half a header", writes(streamHead), "upstream_error"},
	{"a reset inside the header", cutsOff(streamHead), "upstream_error"},
	{"a reset before the body", cutsOff(streamHead + chunkedEnd), "upstream_error"},
	{"an end before the body", writes(streamHead + sized(9)), "upstream_error"},
	{"a chunk that is none", writes(streamHead + chunkedEnd + "zz\r\n"), "upstream_error"},
	{"a header line that is none", writes(streamHead + "no colon\r\n\r\n"), "upstream_error"},
	{"a header that never ends", wired(func(c *net.TCPConn) {
		put(c, streamHead)
		for i := 0; ; i++ {
			if _, err := fmt.Fprintf(c, "X-%d: %s\r\n", i, strings.Repeat("x", 1000)); err != nil {
				return
			}
		}
	}), "upstream_error"},
	{"one header line that never ends", wired(func(c *net.TCPConn) {
		put(c, streamHead+"X: ")
		for {
			if _, err := io.WriteString(c, strings.Repeat("x", 1000)); err != nil {
				return
			}
		}
	}), "upstream_error"},
	{"two lengths", writes(streamHead + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n[]xxxx"), "upstream_error"},
	{"a length below zero", writes(streamHead + "Content-Length: -1\r\n\r\n"), "upstream_error"},
	{"a coding that nobody knows", writes(streamHead + "Transfer-Encoding: xchunked\r\n\r\n"), "upstream_error"},
	{"interim answers without end", wired(func(c *net.TCPConn) {
		for {
			if _, err := io.WriteString(c, "HTTP/1.1 102 Processing\r\nX: "+strings.Repeat("x", 1000)+"\r\n\r\n"); err != nil {
				return
			}
		}
	}), "upstream_error"},
	{"another protocol", writes("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nhello"), "upstream_error"},
	{"no content", writes("HTTP/1.1 204 No Content\r\n\r\n"), "upstream_error"},
	{"a part of it", writes("HTTP/1.1 206 Partial Content\r\nContent-Length: 2\r\n\r\n{}"), "upstream_error"},
	{"a redirect", writes("HTTP/1.1 307 Temporary Redirect\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"), "upstream_error"},
	{"a status that nobody knows", writes("HTTP/1.1 799 What\r\nContent-Length: 0\r\n\r\n"), "upstream_error"},
	{"an error whose body never ends", stalls("HTTP/1.1 500 Oops\r\nContent-Length: 9999999\r\n\r\n", "{"), "upstream_error"},
	{"no room", writes("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"), "engine_busy"},
}

func TestAnEngineThatFailsBeforeItAnswersIsReplaced(t *testing.T) {
	onEachRoute(t, func(t *testing.T, s *service, p protocol) {
		v := clean(p)
		s.g.retries = budget{} // this is more than a gateway tries again in so short a time
		for _, f := range early {
			for _, stream := range []bool{false, true} {
				if stream && p.text == nil {
					continue
				}
				t.Run(f.claim+", streamed "+strconv.FormatBool(stream), func(t *testing.T) {
					s.tb = t
					await.That(t, "every replica to be well", s.whole)
					mark, more, good, want := s.newMark(), []string(nil), writes(wholeHead+sized(len(v.body))+v.body), v.shown
					if stream {
						more = []string{streamed}
						good, want = writes(streamHead+chunkedEnd+piece(p.begin+p.text("héllo")+p.end)+lastPiece), v.begin+p.texts("héllo")+v.end
					}
					s.engine.on(mark, func(w http.ResponseWriter, r *http.Request, c call, pass func()) {
						if c.n == 1 {
							f.act(w, r, c, pass)
							return
						}
						good(w, r, c, pass)
					})
					a := s.ask(p, "acme", p.body(mark, more...))
					s.exactly(a, http.StatusOK, want)
					s.tells(a, told{attempts: 2, status: audit.StatusOK, reasons: []string{f.why}, http: 200})
				})
			}
		}
	})
}

// late is what engines do to a stream that has begun.
var late = []struct {
	claim  string
	act    func(p protocol, all, cut string) act // all: the whole stream; cut: its beginning, of which Hel is seen
	reason string                                // empty: the stream is whole all the same
}{
	{claim: "nothing odd", act: func(_ protocol, all, _ string) act { return writes(streamHead+chunkedEnd, piece(all), lastPiece) }},
	{claim: "in bytes", act: func(_ protocol, all, _ string) act {
		return writes(bytewise(streamHead + chunkedEnd + piece(all) + lastPiece)...)
	}},
	{claim: "in chunks of one byte", act: func(_ protocol, all, _ string) act {
		pieces := []string{streamHead + chunkedEnd}
		for _, b := range bytewise(all) {
			pieces = append(pieces, piece(b))
		}
		return writes(append(pieces, lastPiece)...)
	}},
	{claim: "as long as it says", act: func(_ protocol, all, _ string) act { return writes(streamHead+sized(len(all)), all) }},
	{claim: "until the connection ends", act: func(_ protocol, all, _ string) act { return writes(streamHead+"\r\n", all) }},
	{claim: "in HTTP/1.0", act: func(_ protocol, all, _ string) act {
		return writes(strings.Replace(streamHead, "/1.1", "/1.0", 1)+"\r\n", all)
	}},
	{claim: "after interim answers", act: func(_ protocol, all, _ string) act {
		return writes("HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", streamHead+chunkedEnd, piece(all), lastPiece)
	}},
	{claim: "with chunk extensions and trailers", act: func(_ protocol, all, _ string) act {
		return writes(streamHead+"Trailer: X-Usage\r\n"+chunkedEnd, fmt.Sprintf("%x;a=b\r\n%s\r\n", len(all), all), "0\r\nX-Usage: 1\r\n\r\n")
	}},
	{claim: "bytes after the last chunk", act: func(_ protocol, all, _ string) act {
		return writes(streamHead+chunkedEnd, piece(all), lastPiece, "HTTP/1.1 200 OK\r\n\r\ngarbage")
	}},
	{claim: "bytes after the length", act: func(_ protocol, all, _ string) act { return writes(streamHead+sized(len(all)), all+"garbage") }},
	{claim: "garbage after the end", act: func(_ protocol, all, _ string) act {
		return writes(streamHead+chunkedEnd, piece(all), piece("garbage\n\ndata: {\n\n"), lastPiece)
	}},
	{claim: "a reset after the end", act: func(_ protocol, all, _ string) act { return cutsOff(streamHead+chunkedEnd, piece(all)) }},
	{claim: "silence after the end", act: func(_ protocol, all, _ string) act { return stalls(streamHead+chunkedEnd, piece(all)) }},

	{"a reset", func(_ protocol, _, cut string) act { return cutsOff(streamHead+chunkedEnd, piece(cut)) }, "upstream_unreachable"},
	{"a reset inside a character", func(p protocol, _, cut string) act {
		text := p.text("é")
		return cutsOff(streamHead+chunkedEnd, piece(cut+text[:strings.Index(text, "é")+1]))
	}, "upstream_unreachable"},
	{"a reset inside a line end", func(p protocol, _, cut string) act {
		return cutsOff(streamHead+chunkedEnd, piece(cut+strings.TrimSuffix(p.text("lo"), "\n")))
	}, "upstream_unreachable"},
	{"a reset inside a chunk's length", func(_ protocol, _, cut string) act { return cutsOff(streamHead+chunkedEnd, piece(cut)+"1") }, "upstream_unreachable"},
	{"an end without the last chunk", func(_ protocol, _, cut string) act { return writes(streamHead+chunkedEnd, piece(cut)) }, "upstream_unreachable"},
	{"an end before the length", func(_ protocol, all, cut string) act { return writes(streamHead+sized(len(all)), cut) }, "upstream_unreachable"},
	{"a chunk that has no length", func(_ protocol, _, cut string) act { return writes(streamHead+chunkedEnd, piece(cut), "zz\r\nlo\r\n") }, "upstream_unreachable"},
	{"a chunk longer than it says", func(_ protocol, _, cut string) act {
		return writes(streamHead+chunkedEnd, piece(cut), "1\r\nlolo\r\n", lastPiece)
	}, "upstream_unreachable"},

	{"a length that is too short", func(_ protocol, all, cut string) act { return writes(streamHead+sized(len(cut)), all) }, "upstream_malformed"},
	{"an end too early", func(_ protocol, _, cut string) act { return writes(streamHead+chunkedEnd, piece(cut), lastPiece) }, "upstream_malformed"},
	{"an end of the connection too early", func(_ protocol, _, cut string) act { return writes(streamHead+"\r\n", cut) }, "upstream_malformed"},
	{"an end inside an event", func(p protocol, _, cut string) act {
		return writes(streamHead+chunkedEnd, piece(cut+p.text("lo")[:20]), lastPiece)
	}, "upstream_malformed"},
	{"garbage inside", func(_ protocol, _, cut string) act {
		return writes(streamHead+chunkedEnd, piece(cut+"data: \x00{\n\n"), lastPiece)
	}, "upstream_malformed"},
	{"a character that is none", func(p protocol, _, cut string) act {
		return writes(streamHead+chunkedEnd, piece(cut+p.text("\xe9")), lastPiece)
	}, "upstream_malformed"},
	{"an event that is two", func(p protocol, _, cut string) act {
		return writes(streamHead+chunkedEnd, piece(cut+"data: {}{}\n\n"), lastPiece)
	}, "upstream_malformed"},
	{"an error event", func(p protocol, all, cut string) act {
		return writes(streamHead+chunkedEnd, piece(cut+"data: "+engineText+"\n\n"+p.end), lastPiece)
	}, "upstream_error"},
}

func TestAStreamIsWholeOrSaysThatItIsNot(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		v := clean(p)
		cut := p.begin + p.text("Hel")
		for _, f := range late {
			t.Run(f.claim, func(t *testing.T) {
				s.tb = t
				mark := s.newMark()
				s.engine.on(mark, f.act(p, cut+p.text("lö 好")+p.end, cut))
				began := time.Now()
				a := s.ask(p, "acme", p.body(mark, streamed))
				if n := len(s.engine.got(mark)); n != 1 {
					t.Errorf("%d calls", n)
				}
				if took := time.Since(began); took > await.Limit/2 {
					t.Errorf("took %v", took)
				}
				if f.reason == "" {
					s.exactly(a, http.StatusOK, v.begin+p.texts("Hel", "lö 好")+v.end)
					s.tells(a, told{attempts: 1, status: audit.StatusOK, http: 200})
					return
				}
				s.exactly(a, http.StatusOK, v.begin+p.texts("Hel")+p.broke("upstream_error", failedText, 2))
				s.tells(a, told{attempts: 1, status: audit.StatusError, reasons: []string{f.reason}, http: 200})
			})
		}
	})
}

// broke is the last event of a stream that broke after so many.
func (p protocol) broke(code, message string, events int) string {
	return strings.Replace(p.failure("server_error", code, message, true), "SEQ", strconv.Itoa(events), 1)
}

// wholes is what engines do to an answer in one piece.
var wholes = []struct {
	claim  string
	act    func(body string) act
	reason string // empty: it is shown
}{
	{"as long as it says", func(b string) act { return writes(wholeHead+sized(len(b)), b) }, ""},
	{"in bytes", func(b string) act { return writes(bytewise(wholeHead + sized(len(b)) + b)...) }, ""},
	{"in chunks", func(b string) act { return writes(wholeHead+chunkedEnd, piece(b[:9]), piece(b[9:]), lastPiece) }, ""},
	{"until the connection ends", func(b string) act { return writes(wholeHead+"\r\n", b) }, ""},
	{"after interim answers", func(b string) act {
		return writes("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", wholeHead+sized(len(b)), b)
	}, ""},
	{"bytes after the length", func(b string) act { return writes(wholeHead+sized(len(b)), b+"}garbage") }, ""},
	{"no type", func(b string) act { return writes("HTTP/1.1 200 OK\r\n"+sized(len(b)), b) }, ""},

	{"a reset", func(b string) act { return cutsOff(wholeHead+sized(len(b)), b[:len(b)/2]) }, "upstream_unreachable"},
	{"an end before the length", func(b string) act { return writes(wholeHead+sized(len(b)), b[:len(b)/2]) }, "upstream_unreachable"},
	{"an end without the last chunk", func(b string) act { return writes(wholeHead+chunkedEnd, piece(b)) }, "upstream_unreachable"},
	{"a chunk that has no length", func(b string) act { return writes(wholeHead+chunkedEnd, piece(b[:9]), "zz\r\n") }, "upstream_unreachable"},
	{"a length that is too short", func(b string) act { return writes(wholeHead+sized(len(b)/2), b) }, "upstream_malformed"},
	{"half of it", func(b string) act { return writes(wholeHead+"\r\n", b[:len(b)/2]) }, "upstream_malformed"},
	{"nothing", func(string) act { return writes(wholeHead + sized(0)) }, "upstream_malformed"},
	{"garbage", func(string) act { return writes(wholeHead+sized(4), "\x00\xff{}") }, "upstream_malformed"},
	{"bytes after the object", func(b string) act { return writes(wholeHead+sized(len(b)+1), b+"}") }, "upstream_malformed"},
	{"an array", func(b string) act { return writes(wholeHead+sized(len(b)+2), "["+b+"]") }, "upstream_malformed"},
	{"compressed", func(b string) act {
		return writes(wholeHead+"Content-Encoding: gzip\r\n"+sized(len(zipped(b))), zipped(b))
	}, "upstream_malformed"},
	{"an error", func(string) act { return writes(wholeHead+sized(len(engineText)), engineText) }, "upstream_error"},
}

func TestAnAnswerInOnePieceIsWholeOrAnError(t *testing.T) {
	onEachRoute(t, func(t *testing.T, s *service, p protocol) {
		v := clean(p)
		for _, f := range wholes {
			t.Run(f.claim, func(t *testing.T) {
				s.tb = t
				mark := s.newMark()
				s.engine.on(mark, f.act(v.body))
				a := s.ask(p, "acme", p.body(mark))
				if n := len(s.engine.got(mark)); n != 1 {
					t.Errorf("%d calls", n)
				}
				if f.reason == "" {
					s.exactly(a, http.StatusOK, v.shown)
					s.tells(a, told{attempts: 1, status: audit.StatusOK, http: 200})
					return
				}
				s.exactly(a, http.StatusBadGateway, p.failure("server_error", "upstream_error", failedText, false))
				s.tells(a, told{attempts: 1, status: audit.StatusError, reasons: []string{f.reason}, http: 502})
			})
		}
	})
}

// What comes in place of a stream, before any of it, is an answer of its own.
func TestAStreamThatDoesNotBeginIsAnError(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, p protocol) {
		v := clean(p)
		all := p.begin + p.text("x") + p.end
		for _, f := range []struct {
			claim, reason string
			act           act
		}{
			{"an answer in one piece", "upstream_malformed", writes(wholeHead+sized(len(v.body)), v.body)},
			{"no type", "upstream_malformed", writes("HTTP/1.1 200 OK\r\n"+sized(len(all)), all)},
			{"nothing", "upstream_malformed", writes(streamHead + sized(0))},
			{"compressed", "upstream_malformed", writes(streamHead+"Content-Encoding: gzip\r\n"+sized(len(zipped(all))), zipped(all))},
			{"an error event", "upstream_error", writes(streamHead+chunkedEnd, piece("data: "+engineText+"\n\n"), lastPiece)},
			{"an event that is too long", "upstream_malformed", wired(func(c *net.TCPConn) {
				put(c, streamHead+"\r\ndata: {\"x\":\"")
				for range 18 {
					put(c, strings.Repeat("x", 1<<20))
				}
			})},
		} {
			t.Run(f.claim, func(t *testing.T) {
				s.tb = t
				mark := s.newMark()
				s.engine.on(mark, f.act)
				a := s.ask(p, "acme", p.body(mark, streamed))
				s.exactly(a, http.StatusBadGateway, p.failure("server_error", "upstream_error", failedText, false))
				s.tells(a, told{attempts: 1, status: audit.StatusError, reasons: []string{f.reason}, http: 502})
			})
		}
	})
}

func TestAnEngineThatStallsIsGivenUpOnEveryRoute(t *testing.T) {
	w := inWorld(t)
	s := serve(t, func(c *Config) {
		c.Upstream, _ = upstream.New(upstream.Config{Own: w.self, HeaderTimeout: 150 * time.Millisecond, IdleTimeout: 150 * time.Millisecond})
	})
	for _, p := range append(protocols[:len(protocols):len(protocols)], embeddingsRoute) {
		v := clean(p)
		late := p.failure("server_error", "upstream_timeout", lateText, false)
		for _, f := range []struct {
			claim  string
			act    act
			stream bool
			status int
			want   string
		}{
			{"before the header", stalls(), false, 504, late},
			{"inside the header", stalls(wholeHead), false, 504, late},
			{"before the body", stalls(wholeHead + sized(9)), false, 504, late},
			{"inside the body", stalls(wholeHead+sized(len(v.body)), v.body[:9]), false, 504, late},
			{"before the header of a stream", stalls(), true, 504, late},
			{"before the first event", stalls(streamHead + chunkedEnd), true, 504, late},
			{"inside the first event", stalls(streamHead+chunkedEnd, piece("data: {")), true, 504, late},
			{"inside a stream", nil, true, 200, ""},
		} {
			if f.stream && p.text == nil {
				continue
			}
			t.Run(p.op.Name+" "+f.claim, func(t *testing.T) {
				s.tb = t
				more := []string(nil)
				if f.stream {
					more = []string{streamed}
				}
				if f.act == nil {
					f.act = stalls(streamHead+chunkedEnd, piece(p.begin+p.text("Hel")+p.text("lo")[:9]))
					f.want = v.begin + p.texts("Hel") + p.broke("upstream_timeout", lateText, 2)
				}
				mark := s.newMark()
				s.engine.on(mark, f.act)
				began := time.Now()
				a := s.ask(p, "acme", p.body(mark, more...))
				if took := time.Since(began); took > await.Limit/2 {
					t.Errorf("took %v", took)
				}
				s.exactly(a, f.status, f.want)
				s.tells(a, told{attempts: 1, status: audit.StatusError, reasons: []string{"upstream_timeout"}, http: f.status})
			})
		}
	}
}
