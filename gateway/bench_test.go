//go:build unix

package gateway

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/gateway/classify"
	"github.com/sallyport-ai/sallyport/gateway/detect"
	"github.com/sallyport-ai/sallyport/gateway/wire"
)

// sample is the n-th of a mix of requests: short and long, plain, with tools,
// with documents, with something to detect; no two prompts alike.
func sample(n int, more ...string) (who, body string) {
	system := "You answer for branch " + fmt.Sprint(n%8) + strings.Repeat(" and follow the house rules to the letter", 4)
	turns := ""
	for i := range n % 5 {
		turns += fmt.Sprintf(`{"role":"user","content":"Question %d of case %d%s?"},{"role":"assistant","content":"Answer %d%s."},`,
			i, n, strings.Repeat(" about the ledger", n%7), i, strings.Repeat(" which agrees", n%11))
	}
	last := fmt.Sprintf("And what of case %d on day %d%s?", n, n%365, strings.Repeat(" of the quarter", n%13))
	who = "acme"
	switch n % 8 {
	case 3:
		who = "agent"
		more = append(more, fmt.Sprintf(`"tools":[{"type":"function","function":{"name":"lookup_%d","description":"Looks up a case","parameters":{"type":"object","properties":{"id":{"type":"string"}}}}}]`, n%5))
	case 5:
		last += " Write to user" + fmt.Sprint(n) + "@example.org."
	case 6:
		who = "globex"
	case 7:
		more = append(more, fmt.Sprintf(`"documents":[{"title":"case %d","text":"Patient MRN: %08d was seen%s."}]`, n, 10000000+n, strings.Repeat(" again", n%17)))
	}
	fields := append([]string{`"model":"small"`, `"messages":[{"role":"system","content":"` + system + `"},` + turns + `{"role":"user","content":"` + last + `"}]`}, more...)
	return who, "{" + strings.Join(fields, ",") + "}"
}

// cpu is what this process has used.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// The whole path of a request but for the caller's own TLS: relays, engines,
// authority and issuer are in another process. cpu-µs/req is all that the
// gateway's process used, collection of garbage and its log included.
func BenchmarkPipeline(b *testing.B) {
	w := alone(b)
	cfg, err := w.config()
	if err != nil {
		b.Fatal(err)
	}
	cfg.Denials = audit.NewDenials(cfg.Log, 64)
	g, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(cfg.Upstream.Close)
	handler := g.Handler()
	var n atomic.Int64
	for name, more := range map[string][]string{"whole": {`"max_tokens":1`}, "stream": {`"max_tokens":16`, streamed}} {
		b.Run(name, func(b *testing.B) {
			b.SetParallelism(4)
			b.ReportAllocs()
			before := cpu(b)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					who, body := sample(int(n.Add(1)), more...)
					r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
					r.Header.Set("Content-Type", "application/json")
					r.Header.Set("Authorization", "Bearer "+w.tokens[who])
					rec := httptest.NewRecorder()
					handler.ServeHTTP(rec, r)
					if rec.Code != http.StatusOK {
						b.Errorf("%d %s", rec.Code, rec.Body)
						return
					}
				}
			})
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-µs/req")
		})
	}
}

// From the client's bytes to class and label, detectors included.
func BenchmarkClassify(b *testing.B) {
	bodies, bytes := make([][]byte, 256), 0
	for i := range bodies {
		_, body := sample(i)
		bodies[i], bytes = []byte(body), bytes+len(body)
	}
	var scanner detect.Scanner
	b.SetBytes(int64(bytes / len(bodies)))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		req, err := wire.Decode(wire.ChatCompletions, bodies[i%len(bodies)], wire.Limits{BodyBytes: 1 << 20})
		if err != nil {
			b.Fatal(err)
		}
		if c := classify.Classify(classify.Subject{Operation: wire.ChatCompletions, Request: req}); c.Class.String() == "unclassified" {
			b.Fatal("unclassified")
		}
		_, _ = classify.Label(classify.Sensitivity{TenantDefault: "internal", Scan: classify.Scan(scanner, req), Unscannable: req.Media})
	}
}

// Building the question and having it answered.
func BenchmarkDecide(b *testing.B) {
	s := serve(b)
	asked := make([]*exchange, 256)
	for i := range asked {
		who, body := sample(i)
		x, _ := s.g.begin(httptest.NewRecorder(), s.request(b.Context(), who, body), wire.ChatCompletions)
		x.snap = s.g.cfg.Policy.Snapshot()
		for _, step := range []func() error{func() error { return x.who(b.Context()) }, func() error { return x.what(b.Context()) }} {
			if err := step(); err != nil {
				b.Fatal(err)
			}
		}
		asked[i] = x
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		x := asked[i%len(asked)]
		x.input = x.question()
		if err := x.ask(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
