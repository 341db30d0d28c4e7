package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// FuzzAnswerRoutes gives every reader any stream: what it lets through holds no
// cached tokens, an end is never made up, and Anthropic's events are whole.
func FuzzAnswerRoutes(f *testing.F) {
	f.Add([]byte(delta + stop + usage + done))
	f.Add([]byte(piece(`{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}]},"finish_reason":"tool_calls"}`) + done))
	f.Add([]byte("event: response.completed\ndata: " + `{"type":"response.completed","response":{"status":"completed","usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":8}}}}` + "\n\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		for _, op := range Operations() {
			if !op.HasBody() {
				continue
			}
			a := op.Answer(&Request{IncludeUsage: true})
			var out bytes.Buffer
			framer := NewFramer(bytes.NewReader(stream), 0)
			for {
				e, err := framer.Next()
				if err != nil || e.Open {
					break
				}
				shown, err := a.Event(e)
				if err != nil {
					if !errors.Is(err, ErrAnswer) {
						t.Fatalf("%s: %v", op.Name, err)
					}
					break
				}
				out.Write(shown)
			}
			got := out.String()
			if a.Usage != nil && a.Usage.CachedTokens != nil {
				// What the reader understood as cached tokens, another reader of
				// the same kind must not find again.
				b := op.Answer(&Request{IncludeUsage: true})
				again := NewFramer(strings.NewReader(got), 0)
				for op.Shape != Anthropic {
					e, err := again.Next()
					if err != nil {
						break
					}
					if _, err := b.Event(e); err != nil {
						t.Fatalf("%s: %q made %q: %v", op.Name, stream, got, err)
					}
				}
				if b.Usage != nil && b.Usage.CachedTokens != nil {
					t.Fatalf("%s: cached tokens are left in %q", op.Name, got)
				}
			}
			if op.Shape != Anthropic {
				continue
			}
			if strings.Contains(got, "\nevent: message_stop\n") != a.Done && got != "" {
				t.Fatalf("done %v, but %q", a.Done, got)
			}
			for e := range strings.SplitSeq(strings.TrimSuffix(got, "\n\n"), "\n\n") {
				_, data, found := strings.Cut(e, "\ndata: ")
				if got != "" && (!found || !jsontext.Value(data).IsValid()) {
					t.Fatalf("event %q of %q", e, got)
				}
			}
		}
	})
}

// BenchmarkStream passes streams of 50 events that differ, as each route does.
func BenchmarkStream(b *testing.B) {
	for _, op := range []Operation{ChatCompletions, Responses, Messages} {
		b.Run(op.Name, func(b *testing.B) {
			streams := make([]string, 16)
			for i := range streams {
				streams[i] = answerOf(op, rand.New(rand.NewPCG(uint64(i), 3)))
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				a := op.Answer(&Request{})
				f := NewFramer(strings.NewReader(streams[i%len(streams)]), 0)
				for {
					e, err := f.Next()
					if err != nil {
						break
					}
					if _, err := a.Event(e); err != nil {
						b.Fatal(err)
					}
				}
				if err := a.End(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func answerOf(op Operation, r *rand.Rand) string {
	words := strings.Fields("ledger patient the où claim 42 account note policy für reserve")
	var s strings.Builder
	for i := range 50 {
		word := words[r.IntN(len(words))]
		if op.Name == Responses.Name {
			fmt.Fprintf(&s, "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"item_id\":\"m\",\"output_index\":0,\"content_index\":0,\"delta\":\" %s\",\"sequence_number\":%d}\n\n", word, i)
			continue
		}
		s.WriteString(piece(`{"index":0,"delta":{"content":" ` + word + `"},"finish_reason":null}`))
	}
	if op.Name == Responses.Name {
		s.WriteString("data: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\"usage\":{\"input_tokens\":9,\"output_tokens\":50,\"input_tokens_details\":{\"cached_tokens\":8}}}}\n\n")
		return s.String()
	}
	return s.String() + stop + usage + done
}

// BenchmarkTranslate translates conversations that differ in length and content.
func BenchmarkTranslate(b *testing.B) {
	for _, size := range []int{2 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			bodies := make([][]byte, 8)
			for i := range bodies {
				bodies[i] = conversation(rand.New(rand.NewPCG(uint64(i), 7)), size)
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := Decode(Messages, bodies[i%len(bodies)], Limits{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
