package wire

import (
	"errors"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// bomb is a body that is small for what a careless reader makes of it: head,
// then unit over and over, then tail. A # in unit is a new number each time.
type bomb struct {
	claim            string
	op               Operation
	head, unit, tail string
}

func (b bomb) body(size int) []byte {
	sep := ","
	if strings.HasPrefix(b.claim, "one long") {
		sep = ""
	}
	n := (size - len(b.head) - len(b.tail)) / (len(b.unit) + len(sep))
	if !strings.Contains(b.unit, "#") {
		return []byte(b.head + strings.Repeat(b.unit+sep, n-1) + b.unit + b.tail)
	}
	body := append(make([]byte, 0, size), b.head...)
	before, after, _ := strings.Cut(b.unit, "#")
	for i := 0; len(body)+len(b.unit)+len(b.tail)+8 < size; i++ {
		if i > 0 {
			body = append(body, sep...)
		}
		body = append(strconv.AppendInt(append(body, before...), int64(i), 10), after...)
	}
	return append(body, b.tail...)
}

// inside puts a value where free content may stand: each is a bomb of its own.
func inside(claim string, op Operation, rest, head, tail string) []bomb {
	at := func(what, open, unit, shut string) bomb {
		return bomb{claim + " of " + what, op, rest + head + open, unit, shut + tail}
	}
	return []bomb{
		at("objects", `[`, `{}`, `]`),
		at("lists", `[`, `[]`, `]`),
		at("texts", `[`, `"a"`, `]`),
		at("escaped texts", `[`, `"\n"`, `]`),
		at("numbers", `[`, `1`, `]`),
		at("long numbers", `[`, `123456789`, `]`),
		at("nulls", `[`, `null`, `]`),
		at("names", `{`, `"#":0`, `}`),
		at("names in objects", `[`, `{"mrn":{"a":1}}`, `]`),
	}
}

func bombs() []bomb {
	const (
		small    = `{"model":"m",`
		chatted  = small + `"messages":[{"role":"user","content":"x"}],`
		prompted = small + `"prompt":"x",`
		embedded = small + `"input":"x",`
		asked    = small + `"max_tokens":1,"messages":[{"role":"user","content":"x"}],`
		messages = small + `"messages":[`
		parts    = messages + `{"role":"user","content":[`
		calls    = messages + `{"role":"assistant","tool_calls":[`
		turns    = small + `"max_tokens":1,"messages":[`
		blocks   = turns + `{"role":"user","content":[`
	)
	all := []bomb{
		{"messages of nothing", ChatCompletions, messages, `{}`, `]}`},
		{"messages of one letter", ChatCompletions, messages, `{"role":"user","content":"a"}`, `]}`},
		{"messages of a nameless field", ChatCompletions, messages, `{"":0}`, `]}`},
		{"messages of one part", ChatCompletions, messages, `{"content":["a"]}`, `]}`},
		{"parts of one letter", ChatCompletions, parts, `"a"`, `]}]}`},
		{"parts of nothing", ChatCompletions, parts, `{}`, `]}]}`},
		{"escaped parts", ChatCompletions, parts, `"\n"`, `]}]}`},
		{"calls of nothing", ChatCompletions, calls, `{}`, `]}]}`},
		{"calls by name", ChatCompletions, calls, `{"id":"1","type":"function","function":{"name":"f"}}`, `]}]}`},
		{"documents", ChatCompletions, chatted + `"documents":[`, `{}`, `]}`},
		{"tools", ChatCompletions, chatted + `"tools":[`, `{"type":"a"}`, `]}`},
		{"functions", ChatCompletions, chatted + `"functions":[`, `{"name":"f#"}`, `]}`},
		{"top-level fields", ChatCompletions, ``, `"x#":0`, `}`},
		{"fields of a message", ChatCompletions, messages + `{`, `"x#":0`, `}]}`},
		{"one long text", ChatCompletions, parts + `"`, `aaaaaaaaaaaaaaa`, `"]}]}`},
		{"one long escaped text", ChatCompletions, parts + `"`, `\n\n\n\n\n`, `"]}]}`},
		{"one long picture", ChatCompletions, parts + `{"type":"image_url","image_url":{"url":"data:;base64,`, `AAAAAAAAAA`, `"}}]}]}`},
		{"prompts", Completions, small + `"prompt":[`, `"a"`, `]}`},
		{"inputs", Embeddings, small + `"input":[`, `"a"`, `]}`},
		{"items of nothing", Responses, small + `"input":[`, `{"type":"reasoning"}`, `]}`},
		{"items of one letter", Responses, small + `"input":[`, `{"role":"user","content":"a"}`, `]}`},
		{"items of calls", Responses, small + `"input":[`, `{"type":"function_call"}`, `]}`},
		{"parts of an item", Responses, small + `"input":[{"role":"user","content":[`, `{}`, `]}]}`},
		{"parts of an item by type", Responses, small + `"input":[{"role":"user","content":[`, `{"type":"input_text","text":"a"}`, `]}]}`},
		{"turns of nothing", Messages, turns, `{}`, `]}`},
		{"turns of one letter", Messages, turns, `{"role":"user","content":"a"}`, `]}`},
		{"blocks of nothing", Messages, blocks, `{}`, `]}]}`},
		{"blocks of one letter", Messages, blocks, `{"type":"text","text":"a"}`, `]}]}`},
		{"calls of Anthropic's", Messages, turns + `{"role":"assistant","content":[`, `{"type":"tool_use","id":"","name":"f","input":{}}`, `]}]}`},
		{"results", Messages, turns + `{"role":"user","content":[`, `{"type":"tool_result","tool_use_id":""}`, `]}]}`},
		{"blocks of a result", Messages, turns + `{"role":"user","content":[{"type":"tool_result","tool_use_id":"","content":[`, `{"type":"text","text":""}`, `]}]}]}`},
		{"offers", Messages, asked + `"tools":[`, `{"name":"f"}`, `]}`},
		{"thoughts", Messages, turns + `{"role":"assistant","content":[`, `{"type":"thinking","thinking":""}`, `]}]}`},
		{"one long turn", Messages, blocks + `{"type":"text","text":"`, `aaaaaaaaaaaaaaa`, `"}]}]}`},
		{"one long escaped turn", Messages, blocks + `{"type":"text","text":"`, `\n\n\n\n\n`, `"}]}]}`},
		{"one long system", Messages, asked + `"system":"`, `aaaaaaaaaaaaaaa`, `"}`},
		{"one long picture of Anthropic's", Messages, blocks + `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"`, `AAAAAAAAAA`, `"}}]}]}`},
		{"one long input of a tool", Messages, turns + `{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"a":"`, `aaaaaaaaaaaa`, `"}}]}]}`},
	}
	all = append(all, inside("metadata", ChatCompletions, chatted, `"metadata":`, `}`)...)
	all = append(all, inside("a document", ChatCompletions, chatted, `"documents":[`, `]}`)...)
	all = append(all, inside("a tool's schema", ChatCompletions, chatted, `"tools":[{"type":"function","function":{"name":"f","parameters":`, `}}]}`)...)
	all = append(all, inside("arguments", ChatCompletions, messages, `{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":`, `}}]}]}`)...)
	all = append(all, inside("an answer's schema", ChatCompletions, chatted, `"response_format":{"type":"json_schema","json_schema":`, `}}`)...)
	all = append(all, inside("a picture", ChatCompletions, parts, `{"type":"image_url","image_url":`, `}]}]}`)...)
	all = append(all, inside("settings", ChatCompletions, chatted, `"logit_bias":`, `}`)...)
	all = append(all, inside("what is taken out", ChatCompletions, chatted, `"cache_salt":`, `}`)...)
	all = append(all, inside("what must be false", ChatCompletions, chatted, `"store":`, `}`)...)
	all = append(all, inside("a kept answer", ChatCompletions, messages, `{"role":"assistant","audio":`, `}]}`)...)
	all = append(all, inside("settings", Completions, prompted, `"logit_bias":`, `}`)...)
	all = append(all, inside("a user", Embeddings, embedded, `"user":`, `}`)...)
	all = append(all, inside("an item's output", Responses, small, `"input":[{"type":"mcp_call","arguments":`, `}]}`)...)
	all = append(all, inside("metadata", Responses, embedded, `"metadata":`, `}`)...)
	all = append(all, inside("a call's input", Messages, turns, `{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"a":`, `}}]}]}`)...)
	all = append(all, inside("a schema", Messages, asked, `"tools":[{"name":"f","input_schema":`, `}]}`)...)
	all = append(all, inside("a temperature", Messages, asked, `"temperature":`, `}`)...)
	all = append(all, inside("servers", Messages, asked, `"mcp_servers":`, `}`)...)
	all = append(all, inside("a cache control", Messages, asked, `"cache_control":`, `}`)...)
	return all
}

// allocated returns the bytes that f allocates, freed or not.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestNoBodyIsABomb decodes bodies made to cost memory, of three sizes: at the
// largest, at the number of values that is just taken, and in between.
func TestNoBodyIsABomb(t *testing.T) {
	if testing.Short() {
		t.Skip("measures allocations, for which the race detector, run with -short, has its own")
	}
	const fixed = 24 << 20
	for _, b := range bombs() {
		t.Run(b.op.Name+" "+b.claim, func(t *testing.T) {
			for _, size := range []int{256 << 10, 1 << 20, 16 << 20} {
				body := b.body(size)
				var err error
				cost := allocated(func() {
					var r *Request
					if r, err = Decode(b.op, body, Limits{}); err == nil {
						for text := range r.Texts() {
							_ = text
						}
					}
				})
				if most := uint64(6*len(body) + fixed); cost > most {
					t.Errorf("%d bytes cost %d, over %d (%v)", len(body), cost, most, err)
				}
				var e *Error
				if err != nil && !errors.As(err, &e) {
					t.Errorf("not a wire.Error: %v", err)
				}
			}
		})
	}
}

func TestWhatABodyHoldsIsBounded(t *testing.T) {
	fill := func(head, unit string, n int, tail string) string {
		return head + strings.Repeat(unit+",", n-1) + unit + tail
	}
	const model = `{"model":"m","max_tokens":1,`
	message := `{"role":"user","content":"a"}`
	cases := []struct {
		claim string
		op    Operation
		body  func(n int) string
		most  int
		param string
	}{
		{"values", ChatCompletions, func(n int) string { return fill(chat(`"metadata":[`)[:len(chat(`"metadata":[`))-1], `0`, n, `]}`) }, maxValues - 6, "metadata"},
		{"messages", ChatCompletions, func(n int) string { return fill(model+`"messages":[`, message, n, `]}`) }, maxEntries, "messages"},
		{"parts", ChatCompletions, func(n int) string { return fill(model+`"messages":[{"role":"user","content":[`, `"a"`, n, `]}]}`) }, maxEntries, "messages.content"},
		{"parts of all messages", ChatCompletions, func(n int) string {
			return fill(model+`"messages":[{"role":"user","content":["a"]},{"role":"user","content":[`, `"a"`, n, `]}]}`)
		}, maxEntries - 1, "messages.content"},
		{"calls", ChatCompletions, func(n int) string {
			return fill(model+`"messages":[{"role":"assistant","tool_calls":[`, `{"id":"1"}`, n, `]}]}`)
		}, maxEntries, "messages.tool_calls"},
		{"documents", ChatCompletions, func(n int) string { return fill(model+`"messages":[`+message+`],"documents":[`, `"a"`, n, `]}`) }, maxEntries, "documents"},
		{"prompts", Completions, func(n int) string { return fill(model+`"prompt":[`, `"a"`, n, `]}`) }, maxEntries, "prompt"},
		{"inputs", Embeddings, func(n int) string { return fill(`{"model":"m","input":[`, `"a"`, n, `]}`) }, maxEntries, "input"},
		{"items", Responses, func(n int) string { return fill(`{"model":"m","input":[`, message, n, `]}`) }, maxEntries, "input"},
		{"parts of an item", Responses, func(n int) string {
			return fill(`{"model":"m","input":[{"role":"user","content":[`, `{"type":"input_text","text":"a"}`, n, `]}]}`)
		}, maxEntries, "input.content"},
		{"turns", Messages, func(n int) string { return fill(model+`"messages":[`, message, n, `]}`) }, maxEntries, "messages"},
		{"blocks", Messages, func(n int) string {
			return fill(model+`"messages":[{"role":"user","content":[`, `{"type":"text","text":"a"}`, n, `]}]}`)
		}, maxEntries, "messages.content"},
	}
	for _, c := range cases {
		t.Run(c.op.Name+" "+c.claim, func(t *testing.T) {
			if _, err := Decode(c.op, []byte(c.body(c.most)), Limits{}); err != nil {
				t.Errorf("%d: %v", c.most, err)
			}
			var e *Error
			if _, err := Decode(c.op, []byte(c.body(c.most+1)), Limits{}); !errors.As(err, &e) || e.Code != InvalidRequest || e.Param != c.param {
				t.Errorf("%d: %v, want one that names %s", c.most+1, err, c.param)
			}
		})
	}
}

func TestCountingSeesNoPunctuationInStrings(t *testing.T) {
	text := strings.Repeat(`,{[\"\\`, maxValues)
	if _, err := Decode(ChatCompletions, []byte(said(`{"role":"user","content":"`+text+`"}`)), Limits{}); err != nil {
		t.Error(err)
	}
}
