package gateway

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/gateway/wire"
)

// TestAnEstimateFarBeyondTheWindowIsTooLong sends bodies of more than 32 bytes
// for each token of the window, which nobody could count.
func TestAnEstimateFarBeyondTheWindowIsTooLong(t *testing.T) {
	s := serve(t, func(c *Config) { c.Live.Prompts = nil })
	for _, c := range []struct {
		claim   string
		op      wire.Operation
		body    string
		tooLong bool
	}{
		{"one long word", wire.ChatCompletions, `{"model":"small","messages":[{"role":"user","content":"MARK LONG"}]}`, true},
		{"a long conversation", wire.ChatCompletions, `{"model":"small","messages":[{"role":"user","content":"MARK"},{"role":"user","content":"LONG"}]}`, true},
		{"one long prompt", wire.Completions, `{"model":"small","prompt":"MARK LONG"}`, true},
		{"a long item", wire.Responses, `{"model":"small","input":"MARK LONG"}`, true},
		{"a long turn", wire.Messages, `{"model":"small","max_tokens":1,"messages":[{"role":"user","content":"MARK LONG"}]}`, true},
		{"one long input", wire.Embeddings, `{"model":"small","input":"MARK LONG"}`, true},
		{"some windows", wire.ChatCompletions, `{"model":"small","messages":[{"role":"user","content":"MARK SHORT"}]}`, false},
		{"many prompts", wire.Completions, `{"model":"small","prompt":["MARK","LONG"]}`, false},
		{"many inputs", wire.Embeddings, `{"model":"small","input":["MARK","LONG"]}`, false},
		{"a picture", wire.ChatCompletions, `{"model":"small","messages":[{"role":"user","content":[{"type":"text","text":"MARK"},{"type":"image_url","image_url":{"url":"data:image/png;base64,LONG"}}]}]}`, false},
	} {
		t.Run(c.claim, func(t *testing.T) {
			s.tb = t
			mark := s.newMark()
			body := strings.NewReplacer("MARK", mark, "LONG", strings.Repeat("a", 33*8192), "SHORT", strings.Repeat("a", 5*8192)).Replace(c.body)
			a := s.do(s.to(t.Context(), c.op, "acme", body))
			d, _ := s.story(a)
			if got := d[len(d)-1].Reason == reasonTooLong; got != c.tooLong {
				t.Fatalf("got %d %s, reason %s", a.status, a.body, d[len(d)-1].Reason)
			}
			if c.tooLong {
				if a.status != http.StatusBadRequest || !strings.Contains(a.body, "context window") {
					t.Errorf("got %d %s", a.status, a.body)
				}
				s.unreached(mark)
			}
		})
	}
}
