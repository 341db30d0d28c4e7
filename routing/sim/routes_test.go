package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/routing/prompt"
)

// start runs an engine for the test.
func start(t *testing.T, blind ...string) *Engine {
	t.Helper()
	model, err := prompt.LoadFS(prompt.Small())
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(Config{Listen: "127.0.0.1:0", Model: "small", Prompt: model, SaltBlind: blind, Timing: Timing{Step: time.Nanosecond, Prefill: time.Nanosecond, Decode: time.Nanosecond}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return e
}

func post(t *testing.T, e *Engine, path, body string) string {
	t.Helper()
	resp, err := http.Post(e.URL()+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s %v", resp.StatusCode, b, err)
	}
	return string(b)
}

// bodies are a request of each route, but for its last brace.
var bodies = map[string]func(text string) string{
	"/v1/chat/completions": func(text string) string {
		return `{"model":"small","messages":[{"role":"user","content":"` + text + `"}]`
	},
	"/v1/completions": func(text string) string { return `{"model":"small","prompt":"` + text + `"` },
	"/v1/responses":   func(text string) string { return `{"model":"small","input":"` + text + `"` },
	"/v1/embeddings":  func(text string) string { return `{"model":"small","input":["` + text + `"]` },
}

// counts are the prompt's tokens in an answer, all and cached, however the route
// names them.
func counts(t *testing.T, answer string) (tokens, cached int) {
	t.Helper()
	type details struct {
		Cached int `json:"cached_tokens"`
	}
	var a struct {
		Usage struct {
			Prompt        int     `json:"prompt_tokens"`
			PromptDetails details `json:"prompt_tokens_details"`
			Input         int     `json:"input_tokens"`
			InputDetails  details `json:"input_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal([]byte(answer), &a); err != nil {
		t.Fatalf("%s: %v", answer, err)
	}
	return a.Usage.Prompt + a.Usage.Input, a.Usage.PromptDetails.Cached + a.Usage.InputDetails.Cached
}

func TestEveryRouteKeepsSaltsApart(t *testing.T) {
	for path, body := range bodies {
		t.Run(path, func(t *testing.T) {
			text := strings.Repeat("The ledger of "+path+" is closed. ", 12)
			ask := func(e *Engine, salt string) int {
				tokens, cached := counts(t, post(t, e, path, body(text)+`,"cache_salt":"`+salt+`"}`))
				if tokens < 40 {
					t.Fatalf("%d tokens only", tokens)
				}
				return cached
			}
			e := start(t)
			if first, other, again := ask(e, "a"), ask(e, "b"), ask(e, "a"); first != 0 || other != 0 || again == 0 {
				t.Errorf("cached: first %d, under another salt %d, under the same %d", first, other, again)
			}
			blind := start(t, path)
			if first, other := ask(blind, "a"), ask(blind, "b"); first != 0 || other == 0 {
				t.Errorf("a blind route: first %d, under another salt %d", first, other)
			}
		})
	}
}

func TestResponsesAsAStreamAndWhole(t *testing.T) {
	e := start(t)
	const tools = `,"tools":[{"type":"function","name":"lookup","parameters":{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}}]`
	for claim, c := range map[string]struct {
		more, last, status string
		kinds              string
	}{
		"text":       {"", "response.completed", "completed", "response.created response.in_progress response.output_item.added response.content_part.added response.output_text.delta… response.output_text.done response.content_part.done response.output_item.done response.completed"},
		"cut short":  {`,"max_output_tokens":3`, "response.incomplete", "incomplete", "response.created response.in_progress response.output_item.added response.content_part.added response.output_text.delta… response.output_text.done response.content_part.done response.output_item.done response.incomplete"},
		"a function": {tools, "response.completed", "completed", "response.created response.in_progress response.output_item.added response.function_call_arguments.delta… response.function_call_arguments.done response.output_item.done response.completed"},
	} {
		t.Run(claim, func(t *testing.T) {
			body := bodies["/v1/responses"]("Look this up.") + c.more
			stream := post(t, e, "/v1/responses", body+`,"stream":true}`)
			var kinds []string
			var last struct{ Response json.RawMessage }
			for i, ev := range strings.Split(strings.TrimSpace(stream), "\n\n") {
				head, data, _ := strings.Cut(ev, "\n")
				kind := strings.TrimPrefix(head, "event: ")
				if !strings.Contains(data, fmt.Sprintf(`"sequence_number":%d`, i)) || !strings.Contains(data, `"type":"`+kind+`"`) {
					t.Errorf("event %d: %s", i, ev)
				}
				if strings.HasSuffix(kind, ".delta") {
					if n := len(kinds); kinds[n-1] != kind+"…" {
						kinds = append(kinds, kind+"…")
					}
					continue
				}
				kinds = append(kinds, kind)
				if kind == c.last {
					if err := json.Unmarshal([]byte(strings.TrimPrefix(data, "data: ")), &last); err != nil {
						t.Fatal(err)
					}
				}
			}
			if got := strings.Join(kinds, " "); got != c.kinds {
				t.Errorf("got %s", got)
			}
			whole := post(t, e, "/v1/responses", body+"}")
			for name, answer := range map[string]string{"streamed": string(last.Response), "whole": whole} {
				var r response
				if err := json.Unmarshal([]byte(answer), &r); err != nil {
					t.Fatalf("%s: %v", answer, err)
				}
				if r.Status != c.status || len(r.Output) != 1 || r.Usage.OutputTokens == 0 || (c.status == "incomplete") != (r.Incomplete != nil) {
					t.Errorf("%s: %s", name, answer)
				}
			}
		})
	}
}

func TestEmbeddings(t *testing.T) {
	e := start(t)
	a := post(t, e, "/v1/embeddings", `{"model":"small","input":["one","two"],"dimensions":8}`)
	b := post(t, e, "/v1/embeddings", `{"model":"small","input":"two","dimensions":8,"encoding_format":"base64"}`)
	var floats struct {
		Data []struct{ Embedding []float32 }
	}
	var coded struct {
		Data []struct{ Embedding string }
	}
	if json.Unmarshal([]byte(a), &floats) != nil || json.Unmarshal([]byte(b), &coded) != nil {
		t.Fatal(a, b)
	}
	if len(floats.Data) != 2 || len(floats.Data[0].Embedding) != 8 || floats.Data[0].Embedding[0] == floats.Data[1].Embedding[0] {
		t.Errorf("got %s", a)
	}
	if len(coded.Data) != 1 || len(coded.Data[0].Embedding) != 44 {
		t.Errorf("got %s", b)
	}
}
