package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/routing/prompt"
	"github.com/sallyport-ai/sallyport/routing/sim"
)

// promptRun is what sallyport prompt writes, and its exit code.
func promptRun(t *testing.T, in string, args ...string) (string, int) {
	t.Helper()
	root := commands()
	var out bytes.Buffer
	root.SetIn(strings.NewReader(in))
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(append([]string{"prompt"}, args...))
	code := 0
	if err := root.ExecuteContext(t.Context()); err != nil {
		code = exitCannotTell
		var ee *exitError
		if errors.As(err, &ee) {
			code = ee.code
		}
		if ee == nil || ee.err != nil {
			fmt.Fprintln(&out, err)
		}
	}
	return out.String(), code
}

const helloChat = `{"chat": {"messages": [{"role": "user", "content": "Hello <b>"}]}}`

const helloPrompt = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHello <b><|im_end|>\n<|im_start|>assistant\n"

func TestPromptPrintsTheTokensOfEachLine(t *testing.T) {
	in := strings.Join([]string{`{"text": "Hello"}`, ``, helloChat, `{"completion": {"prompt": "Hello"}}`, `{"text": ""}`, `{"chat": {"messages": []}}`, `{"text": "a", "chat": {}}`, `nonsense`}, "\n")
	out, code := promptRun(t, in, "tokens")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != exitBad || len(lines) != 7 {
		t.Fatalf("exit %d, output %s", code, out)
	}
	model, err := prompt.LoadFS(prompt.Small())
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"Hello", helloPrompt, "Hello", "", "", "", ""} {
		var got struct {
			IDs   []uint32
			Basis string
			Error string
		}
		if err := json.Unmarshal([]byte(lines[i]), &got); err != nil {
			t.Fatal(err)
		}
		if text := model.Decode(got.IDs); text != want || (got.IDs == nil) != (i > 3) || (got.Error == "") != (i <= 3) || (got.Basis == "native") != (i <= 3) {
			t.Errorf("line %d: %s, want the ids of %q", i, lines[i], want)
		}
	}
}

func TestPromptRendersText(t *testing.T) {
	if out, code := promptRun(t, helloChat, "render"); out != helloPrompt || code != 0 {
		t.Errorf("%q, exit %d", out, code)
	}
	quoted := strings.ReplaceAll(helloPrompt, "\n", `\n`)
	if out, code := promptRun(t, helloChat+"\n"+`{"messages": 1}`, "render", "--json"); !strings.HasPrefix(out, `{"text":"`+quoted+`"}`+"\n"+`{"error":`) || code != exitBad {
		t.Errorf("%q, exit %d", out, code)
	}
	for _, command := range []string{"tokens", "render"} {
		if out, code := promptRun(t, helloChat+"\n"+helloChat, append([]string{command}, map[string][]string{"render": {"--json"}}[command]...)...); code != 0 || strings.Contains(out, "error") {
			t.Errorf("%s of good lines: %q, exit %d", command, out, code)
		}
	}
	if out, code := promptRun(t, helloChat+"\n"+helloChat, "render"); code != exitCannotTell || !strings.Contains(out, "--json") {
		t.Errorf("two prompts: %q, exit %d", out, code)
	}
	if out, code := promptRun(t, `{"chat": {}}`, "render"); code != exitBad {
		t.Errorf("a body without messages: %q, exit %d", out, code)
	}
}

// checkTemplate is a template with every part that prompts have.
const checkTemplate = `{{ bos_token }}<|im_start|>system
Today is {{ strftime_now('%d %B %Y') }}.
{% if tools %}{{ tools | tojson }}
{% endif %}<|im_end|>
{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}No thinking.
{% endif %}`

const checkConfig = `{"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}`

// modelDir is a folder with the tokenizer that ships, or another, and a template.
func modelDir(t *testing.T, template string, edit func([]byte) []byte) string {
	t.Helper()
	dir := t.TempDir()
	tokenizer, err := fs.ReadFile(prompt.Small(), "tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		tokenizer = edit(tokenizer)
	}
	for name, data := range map[string][]byte{"tokenizer.json": tokenizer, "tokenizer_config.json": []byte(checkConfig), "chat_template.jinja": []byte(template)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// simOf runs a stand-in engine whose prompts are made by c.
func simOf(t *testing.T, c prompt.Config) string {
	t.Helper()
	model, err := prompt.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	e, err := sim.New(sim.Config{Listen: "127.0.0.1:0", Model: "small", Prompt: model})
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
	return e.URL()
}

func TestPromptCheckNamesTheFirstDivergenceAndItsPart(t *testing.T) {
	dir := modelDir(t, checkTemplate, nil)
	replaced := func(from, to string) fs.FS {
		if !strings.Contains(checkTemplate, from) {
			t.Fatalf("no %q in the template", from)
		}
		return os.DirFS(modelDir(t, strings.Replace(checkTemplate, from, to, 1), nil))
	}
	const chat = `{"model":"small","messages":[{"role":"user","content":"  Where is the key to the gate?"}],"tools":[{"type":"function","function":{"name":"lookup","parameters":{"type":"object","properties":{}}}}]}`
	for _, c := range []struct {
		claim  string
		engine prompt.Config
		line   string
		part   string // empty: no divergence
	}{
		{"the same engine", prompt.Config{Files: os.DirFS(dir)}, chat, ""},
		{"the same completion", prompt.Config{Files: os.DirFS(dir)}, `{"completion":{"model":"small","prompt":"Hello"}}`, ""},
		{"the same response", prompt.Config{Files: os.DirFS(dir)}, `{"response":{"model":"small","instructions":"i","input":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]}}`, ""},
		{"the same text", prompt.Config{Files: os.DirFS(dir)}, `{"text":"Hello"}`, ""},
		{"an engine without the first token", prompt.Config{Files: replaced("{{ bos_token }}", "")}, chat, "bos"},
		{"an engine elsewhere", prompt.Config{Files: os.DirFS(dir), Now: func() time.Time { return time.Now().Add(10 * 24 * time.Hour) }}, chat, "date"},
		{"an engine that prints tools otherwise", prompt.Config{Files: replaced("tools | tojson", "tools | tojson(indent=2)")}, chat, "tool_json"},
		{"an engine with other defaults", prompt.Config{Files: os.DirFS(dir), TemplateArgs: []byte(`{"enable_thinking":false}`)}, chat, "kwargs"},
		{"an engine with another template", prompt.Config{Files: replaced("<|im_start|>{{ m.role }}", "<|im_start|>{{ m.role | upper }}")}, chat, "kwargs"},
		{"an engine that trims content", prompt.Config{Files: replaced("{{ m.content }}", "{{ m.content | trim }}")}, chat, "content"},
		{"an engine with another tokenizer", prompt.Config{Files: os.DirFS(modelDir(t, checkTemplate, withoutMerge))}, chat, "content"},
	} {
		line := c.line
		out, code := promptRun(t, line, "check", "--model", dir, "--engine", simOf(t, c.engine))
		var got divergence
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatalf("%s: exit %d: %s", c.claim, code, out)
		}
		if got.Same != (c.part == "") || string(got.Part) != c.part || (code == exitBad) != (c.part != "") {
			t.Errorf("%s: exit %d: %s", c.claim, code, out)
		}
	}
	if out, code := promptRun(t, helloChat, "check", "--engine", "http://127.0.0.1:1"); code != exitCannotTell {
		t.Errorf("no engine: %q, exit %d", out, code)
	}
}

// withoutMerge takes away from a tokenizer what makes one token of " key".
func withoutMerge(tokenizer []byte) []byte {
	var all map[string]any
	if json.Unmarshal(tokenizer, &all) != nil {
		return nil
	}
	model := all["model"].(map[string]any)
	model["merges"] = slices.DeleteFunc(model["merges"].([]any), func(m any) bool { return fmt.Sprint(m) == "[Ġke y]" })
	out, _ := json.Marshal(all) // it was JSON
	return out
}

func TestPromptCheckAsksOlderEnginesAtTokenize(t *testing.T) {
	model, err := prompt.LoadFS(prompt.Small())
	if err != nil {
		t.Fatal(err)
	}
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Prompt   string
			Messages []struct{ Content string }
		}
		if r.URL.Path != "/tokenize" {
			http.NotFound(w, r)
			return
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Errorf("asked %s: %v", r.URL, err)
		}
		text := body.Prompt
		if body.Messages != nil {
			text = strings.Replace(helloPrompt, "<|im_start|>assistant", "assistant", 1)
		}
		if err := json.NewEncoder(w).Encode(map[string]any{"tokens": model.Encode(text, true)}); err != nil {
			t.Error(err)
		}
	}))
	defer engine.Close()
	out, code := promptRun(t, `{"text": "Hello"}`+"\n"+helloChat, "check", "--engine", engine.URL)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != exitBad || len(lines) != 2 || !strings.HasPrefix(lines[0], `{"same":true`) {
		t.Fatalf("exit %d: %s", code, out)
	}
	for _, part := range []string{`"same":false`, `<b><|im_end|>\n"`, `"ours":"<|im_start|>assistant\n"`, `"engine":"assistant\n"`, `"part":"kwargs"`} {
		if !strings.Contains(lines[1], part) {
			t.Errorf("%s lacks %s", lines[1], part)
		}
	}
	if out, code := promptRun(t, `{"response": {"model": "small", "input": "a"}}`, "check", "--engine", engine.URL); code != exitCannotTell || !strings.Contains(out, "error") {
		t.Errorf("a response: %q, exit %d", out, code)
	}
}
