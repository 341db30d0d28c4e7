package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/routing/prompt"
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
	if code != 0 || len(lines) != 7 {
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
	if out, code := promptRun(t, helloChat+"\n"+`{"messages": 1}`, "render", "--json"); !strings.HasPrefix(out, `{"text":"`+quoted+`"}`+"\n"+`{"error":`) || code != 0 {
		t.Errorf("%q, exit %d", out, code)
	}
	if out, code := promptRun(t, helloChat+"\n"+helloChat, "render"); code != exitCannotTell || !strings.Contains(out, "--json") {
		t.Errorf("two prompts: %q, exit %d", out, code)
	}
	if out, code := promptRun(t, `{"chat": {}}`, "render"); code != exitBad {
		t.Errorf("a body without messages: %q, exit %d", out, code)
	}
}

func TestPromptCheckNamesTheFirstDivergence(t *testing.T) {
	model, err := prompt.LoadFS(prompt.Small())
	if err != nil {
		t.Fatal(err)
	}
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Prompt   string
			Messages []struct{ Content string }
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.URL.Path != "/tokenize" {
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
	for _, part := range []string{`"same":false`, `<b><|im_end|>\n"`, `"ours":"<|im_start|>assistant\n"`, `"engine":"assistant\n"`} {
		if !strings.Contains(lines[1], part) {
			t.Errorf("%s lacks %s", lines[1], part)
		}
	}
	if out, code := promptRun(t, helloChat, "check", "--engine", "http://127.0.0.1:1"); code != exitCannotTell {
		t.Errorf("no engine: %q, exit %d", out, code)
	}
}
