package wire

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestMessageBody(t *testing.T) {
	usage := `,"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}`
	chat := func(message, finish string) string {
		return `{"id":"chatcmpl-7","model":"served","choices":[{"index":0,"message":` + message + `,` + finish + `}]` + usage
	}
	anthropic := func(content, reason, sequence, usage string) string {
		return `{"id":"msg_7","type":"message","role":"assistant","model":"alias","content":[` + content + `],"stop_reason":"` + reason + `","stop_sequence":` + sequence + `,"usage":{` + usage + `}}`
	}
	const plain = `"input_tokens":9,"output_tokens":3`
	call := `{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1.50}"}}]}`
	cases := []struct {
		claim string
		view  Answer
		think bool
		body  string
		want  string
	}{
		{"text", Answer{}, false, chat(`{"content":"hi <b>"}`, `"finish_reason":"stop"`), anthropic(`{"type":"text","text":"hi <b>"}`, "end_turn", "null", plain)},
		{"cached tokens where they may be seen", Answer{CachedTokens: true}, false, chat(`{"content":"hi"}`, `"finish_reason":"stop"`), anthropic(`{"type":"text","text":"hi"}`, "end_turn", "null", `"input_tokens":1,"cache_read_input_tokens":8,"output_tokens":3`)},
		{"nothing", Answer{}, false, chat(`{"content":null}`, `"finish_reason":"stop"`), anthropic(``, "end_turn", "null", plain)},
		{"too long", Answer{}, false, chat(`{"content":"hi"}`, `"finish_reason":"length"`), anthropic(`{"type":"text","text":"hi"}`, "max_tokens", "null", plain)},
		{"a stop sequence", Answer{}, false, chat(`{"content":"hi"}`, `"finish_reason":"stop","stop_reason":"\nEND"`), anthropic(`{"type":"text","text":"hi"}`, "stop_sequence", `"\nEND"`, plain)},
		{"a stop token is an end", Answer{}, false, chat(`{"content":"hi"}`, `"finish_reason":"stop","stop_reason":151645`), anthropic(`{"type":"text","text":"hi"}`, "end_turn", "null", plain)},
		{"a filter", Answer{}, false, chat(`{"content":"","refusal":"no"}`, `"finish_reason":"content_filter"`), anthropic(`{"type":"text","text":"no"}`, "refusal", "null", plain)},
		{"a call", Answer{}, false, chat(call, `"finish_reason":"tool_calls"`), anthropic(`{"type":"tool_use","id":"c1","name":"f","input":{"a":1.50}}`, "tool_use", "null", plain)},
		{"a forced call, which engines end with stop", Answer{}, false, chat(call, `"finish_reason":"stop"`), anthropic(`{"type":"tool_use","id":"c1","name":"f","input":{"a":1.50}}`, "tool_use", "null", plain)},
		{"a call cut short is left out", Answer{}, false, chat(`{"content":"x","tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{\"a\":"}}]}`, `"finish_reason":"length"`), anthropic(`{"type":"text","text":"x"}`, "max_tokens", "null", plain)},
		{"a call without an id gets one", Answer{}, false, chat(`{"tool_calls":[{"function":{"name":"f","arguments":""}}]}`, `"finish_reason":"tool_calls"`), anthropic(`{"type":"tool_use","id":"toolu_chatcmpl-7_0","name":"f","input":{}}`, "tool_use", "null", plain)},
		{"thoughts for who asked", Answer{}, true, chat(`{"content":"x","reasoning_content":"hm","reasoning":"hm"}`, `"finish_reason":"stop"`), anthropic(`{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"x"}`, "end_turn", "null", plain)},
		{"no thoughts for who did not", Answer{}, false, chat(`{"content":"x","reasoning_content":"hm"}`, `"finish_reason":"stop"`), anthropic(`{"type":"text","text":"x"}`, "end_turn", "null", plain)},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			a := c.view
			a.reader = &message{model: "alias", thinking: c.think}
			got, err := a.Body([]byte(c.body))
			if err != nil || string(got) != c.want {
				t.Errorf("%v, got\n%s\nwant\n%s", err, got, c.want)
			}
			if u := a.Usage; u == nil || u.PromptTokens != 9 || *u.CachedTokens != 8 {
				t.Errorf("usage %+v", u)
			}
		})
	}
	for claim, body := range map[string]string{
		"no choice":                 `{"choices":[]}`,
		"two choices":               `{"choices":[{"message":{},"finish_reason":"stop"},{"message":{},"finish_reason":"stop"}]}`,
		"no finish reason":          `{"choices":[{"message":{"content":"x"},"finish_reason":null}]}`,
		"an unknown finish reason":  `{"choices":[{"message":{"content":"x"},"finish_reason":"abort"}]}`,
		"broken arguments":          `{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":"{"}}]},"finish_reason":"tool_calls"}]}`,
		"arguments that are a list": `{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":"[]"}}]},"finish_reason":"tool_calls"}]}`,
		"content of another type":   `{"choices":[{"message":{"content":[]},"finish_reason":"stop"}]}`,
		"half a body":               `{"choices":[`,
	} {
		a := Answer{reader: new(message)}
		if got, err := a.Body([]byte(body)); !errors.Is(err, ErrAnswer) {
			t.Errorf("%s: got %s, %v", claim, got, err)
		}
	}
	a := Answer{reader: new(message)}
	if got, err := a.Body([]byte(`{"error":{"message":"x"}}`)); err != nil || len(got) > 0 || !a.Failed {
		t.Errorf("an error of the engine: %s, %v", got, err)
	}
}

// piece is one event of a chat stream.
func piece(choice string) string {
	return `data: {"id":"chatcmpl-7","model":"served","choices":[` + choice + `]}` + "\n\n"
}

// TestMessageStream holds whole streams against the event sequences of
// Anthropic's reference.
func TestMessageStream(t *testing.T) {
	start := `event: message_start` + "\n" + `data: {"type":"message_start","message":{"id":"msg_7","type":"message","role":"assistant","model":"alias","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":9,"output_tokens":0}}}` + "\n\n" +
		"event: ping\ndata: {\"type\":\"ping\"}\n\n"
	event := func(name, members string) string {
		return "event: " + name + "\ndata: {\"type\":\"" + name + "\"," + members + "}\n\n"
	}
	end := func(reason, sequence string) string {
		return event("message_delta", `"delta":{"stop_reason":"`+reason+`","stop_sequence":`+sequence+`},"usage":{"input_tokens":9,"output_tokens":3}`) +
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	}
	text := func(i, s string) string {
		return event("content_block_delta", `"index":`+i+`,"delta":{"type":"text_delta","text":"`+s+`"}`)
	}
	json := func(i, s string) string {
		return event("content_block_delta", `"index":`+i+`,"delta":{"type":"input_json_delta","partial_json":"`+s+`"}`)
	}
	open := func(i, block string) string {
		return event("content_block_start", `"index":`+i+`,"content_block":{`+block+`}`)
	}
	const textBlock, thinking = `"type":"text","text":""`, `"type":"thinking","thinking":"","signature":""`
	stop := func(i string) string { return event("content_block_stop", `"index":`+i) }
	tail := usage + done
	role := piece(`{"index":0,"delta":{"role":"assistant","content":""}}`)
	finish := func(reason string) string {
		return piece(`{"index":0,"delta":{},"finish_reason":"` + reason + `"}`)
	}
	cases := []struct {
		claim  string
		think  bool
		stream string
		want   string
	}{
		{
			"text", false,
			role + piece(`{"delta":{"content":"Hel"}}`) + piece(`{"delta":{"content":"lo 好"}}`) + finish("stop") + tail,
			start + open("0", textBlock) + text("0", "Hel") + text("0", "lo 好") + stop("0") + end("end_turn", "null"),
		},
		{"nothing", false, role + finish("stop") + tail, start + end("end_turn", "null")},
		{
			"the finish reason in the last chunk of text, with usage, and its stop string", false,
			role + `data: {"id":"chatcmpl-7","choices":[{"delta":{"content":"x"},"finish_reason":"stop","stop_reason":"END"}],"usage":{"prompt_tokens":9,"completion_tokens":3}}` + "\n\n" + done,
			start + open("0", textBlock) + text("0", "x") + stop("0") + end("stop_sequence", `"END"`),
		},
		{
			"thoughts for who asked", true,
			role + piece(`{"delta":{"reasoning_content":"hm"}}`) + piece(`{"delta":{"content":"x"}}`) + finish("length") + tail,
			start + open("0", thinking) + event("content_block_delta", `"index":0,"delta":{"type":"thinking_delta","thinking":"hm"}`) + stop("0") + open("1", textBlock) + text("1", "x") + stop("1") + end("max_tokens", "null"),
		},
		{
			"no thoughts for who did not", false,
			role + piece(`{"delta":{"reasoning":"hm"}}`) + piece(`{"delta":{"content":"x"}}`) + finish("stop") + tail,
			start + open("0", textBlock) + text("0", "x") + stop("0") + end("end_turn", "null"),
		},
		{
			"text and two calls", false,
			role + piece(`{"delta":{"content":"x"}}`) +
				piece(`{"delta":{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}]}}`) +
				piece(`{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"n\":"}}]}}`) +
				piece(`{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}}`) +
				piece(`{"delta":{"tool_calls":[{"index":1,"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}]}}`) + finish("tool_calls") + tail,
			start + open("0", textBlock) + text("0", "x") + stop("0") +
				open("1", `"type":"tool_use","id":"a","name":"f","input":{}`) + json("1", `{\"n\":`) + json("1", `1}`) + stop("1") +
				open("2", `"type":"tool_use","id":"b","name":"g","input":{}`) + json("2", `{}`) + stop("2") + end("tool_use", "null"),
		},
		{
			"B032: two calls with the same index", false,
			role + piece(`{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}},{"index":0,"id":"b","function":{"name":"f","arguments":"{}"}}]}}`) + finish("tool_calls") + tail,
			start + open("0", `"type":"tool_use","id":"a","name":"f","input":{}`) + json("0", `{}`) + stop("0") +
				open("1", `"type":"tool_use","id":"b","name":"f","input":{}`) + json("1", `{}`) + stop("1") + end("tool_use", "null"),
		},
		{
			"B032: calls without an index", false,
			role + piece(`{"delta":{"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{"}}]}}`) + piece(`{"delta":{"tool_calls":[{"function":{"arguments":"}"}}]}}`) + piece(`{"delta":{"tool_calls":[{"id":"b","function":{"name":"f"}}]}}`) + finish("stop") + tail,
			start + open("0", `"type":"tool_use","id":"a","name":"f","input":{}`) + json("0", `{`) + json("0", `}`) + stop("0") +
				open("1", `"type":"tool_use","id":"b","name":"f","input":{}`) + stop("1") + end("tool_use", "null"),
		},
		{
			"a comment keeps the line alive", false,
			": early\n\n" + role + ": late\n\n" + finish("stop") + tail,
			start + "event: ping\ndata: {\"type\":\"ping\"}\n\n" + end("end_turn", "null"),
		},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			a := &Answer{PromptTokens: 9, reader: &message{model: "alias", thinking: c.think}}
			got, err := pass(t, a, c.stream+done) // ended once, whatever comes
			if err != nil || got != c.want {
				t.Errorf("%v, got\n%s\nwant\n%s", err, got, c.want)
			}
		})
	}
	// What is not a whole stream never looks like one.
	for claim, stream := range map[string]string{
		"it ends early":                     role + piece(`{"delta":{"content":"x"}}`),
		"it ends before [DONE]":             role + finish("stop") + usage,
		"it is done without a reason":       role + piece(`{"delta":{"content":"x"}}`) + done,
		"it is done at once":                done,
		"its reason is unknown":             role + finish("abort") + done,
		"it goes on after its reason":       role + finish("stop") + piece(`{"delta":{"content":"x"}}`) + done,
		"it goes back to a call":            role + piece(`{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f"}}]}}`) + piece(`{"delta":{"tool_calls":[{"index":1,"id":"b","function":{"name":"f"}}]}}`) + piece(`{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1"}}]}}`) + finish("stop") + done,
		"an event is broken":                role + `data: {"choices":[` + "\n\n" + done,
		"an event has content of no string": role + piece(`{"delta":{"content":{}}}`) + done,
	} {
		a := &Answer{reader: new(message)}
		got, err := pass(t, a, stream)
		if !errors.Is(err, ErrAnswer) && !errors.Is(err, ErrTruncated) || strings.Contains(got, "message_stop") || strings.Contains(got, "message_delta") {
			t.Errorf("%s: %v, got %s", claim, err, got)
		}
	}
}

// collect puts a stream of events together as clients do.
func collect(t *rapid.T, stream string) map[string]any {
	var message map[string]any
	blocks := map[float64]map[string]any{}
	partial := map[float64]string{}
	for _, e := range strings.Split(strings.TrimSpace(stream), "\n\n") {
		_, data, _ := strings.Cut(e, "\ndata: ")
		var ev map[string]any
		if err := json.Unmarshal([]byte(data), &ev); err != nil {
			t.Fatalf("%q: %v", e, err)
		}
		index, _ := ev["index"].(float64)
		delta, _ := ev["delta"].(map[string]any)
		switch ev["type"] {
		case "message_start":
			message = ev["message"].(map[string]any)
		case "content_block_start":
			blocks[index] = ev["content_block"].(map[string]any)
		case "content_block_delta":
			for from, to := range map[string]string{"text": "text", "thinking": "thinking"} {
				if s, ok := delta[from].(string); ok {
					blocks[index][to] = blocks[index][to].(string) + s
				}
			}
			if s, ok := delta["partial_json"].(string); ok {
				partial[index] += s
			}
		case "content_block_stop":
			if blocks[index]["type"] == "tool_use" && partial[index] != "" {
				var input any
				if err := json.Unmarshal([]byte(partial[index]), &input); err != nil {
					t.Fatalf("%q: %v", partial[index], err)
				}
				blocks[index]["input"] = input
			}
			message["content"] = append(message["content"].([]any), blocks[index])
		case "message_delta":
			message["stop_reason"], message["stop_sequence"] = delta["stop_reason"], delta["stop_sequence"]
			message["usage"] = ev["usage"]
		}
	}
	return message
}

// TestStreamAndBodySayTheSame makes an answer, sends it whole and in pieces, and
// expects the same message.
func TestStreamAndBodySayTheSame(t *testing.T) {
	quoted := func(s string) string { return string(quote(s)) }
	rapid.Check(t, func(t *rapid.T) {
		thought := rapid.String().Draw(t, "thought")
		text := rapid.String().Draw(t, "text")
		names := rapid.SliceOfN(rapid.StringMatching("[a-z]{1,5}"), 0, 3).Draw(t, "calls")
		var pieces, calls []string
		cut := func(s string, member func(string) string) {
			for rest := []rune(s); len(rest) > 0; {
				n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
				pieces = append(pieces, piece(`{"delta":{`+member(quoted(string(rest[:n])))+`}}`))
				rest = rest[n:]
			}
		}
		cut(thought, func(s string) string { return `"reasoning":` + s })
		cut(text, func(s string) string { return `"content":` + s })
		for i, name := range names {
			arguments := `{"v":` + quoted(rapid.String().Draw(t, "argument")) + `}`
			id := string(rune('a' + i))
			calls = append(calls, `{"id":"`+id+`","type":"function","function":{"name":"`+name+`","arguments":`+quoted(arguments)+`}}`)
			pieces = append(pieces, piece(`{"delta":{"tool_calls":[{"index":`+string(rune('0'+i))+`,"id":"`+id+`","type":"function","function":{"name":"`+name+`"}}]}}`))
			cut(arguments, func(s string) string {
				return `"tool_calls":[{"index":` + string(rune('0'+i)) + `,"function":{"arguments":` + s + `}}]`
			})
		}
		finish := rapid.SampledFrom([]string{"stop", "length", "tool_calls"}).Draw(t, "finish")
		counts := `"usage":{"prompt_tokens":9,"completion_tokens":3}`
		whole := `{"id":"chatcmpl-7","choices":[{"message":{"reasoning":` + quoted(thought) + `,"content":` + quoted(text) + `,"tool_calls":[` + strings.Join(calls, ",") + `]},"finish_reason":"` + finish + `"}],` + counts + `}`
		stream := strings.Join(pieces, "") + piece(`{"delta":{},"finish_reason":"`+finish+`"}`) + `data: {"choices":[],` + counts + "}\n\n" + done

		a, b := Answer{reader: &message{thinking: true}}, Answer{reader: &message{thinking: true}}
		body, err := a.Body([]byte(whole))
		if err != nil {
			t.Fatal(err)
		}
		var want map[string]any
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatal(err)
		}
		var sent strings.Builder
		f := NewFramer(strings.NewReader(stream), 0)
		for {
			e, err := f.Next()
			if err != nil {
				break
			}
			out, err := b.Event(e)
			if err != nil {
				t.Fatal(err)
			}
			sent.Write(out)
		}
		if got := collect(t, sent.String()); b.End() != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%v, in pieces\n%v\nwhole\n%v", b.End(), got, want)
		}
	})
}
