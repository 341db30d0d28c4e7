package prompt

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
)

func small(t testing.TB) *Model {
	t.Helper()
	m, err := LoadFS(Small())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// variant is the small model with another chat template.
func variant(t testing.TB, template string) *Model {
	t.Helper()
	m, err := LoadFS(with(t, templateFile, template))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// with is the small model's files with one more or another one.
func with(t testing.TB, name, data string) fstest.MapFS {
	t.Helper()
	files := fstest.MapFS{}
	for _, n := range []string{tokenizerFile, configFile} {
		b, err := fs.ReadFile(Small(), n)
		if err != nil {
			t.Fatal(err)
		}
		files[n] = &fstest.MapFile{Data: b}
	}
	files[name] = &fstest.MapFile{Data: []byte(data)}
	return files
}

// golden.json holds texts and their ids, agreed with the tokenizers library
// (test/oracle/prompt); to make it anew, set SALLYPORT_UPDATE_GOLDEN=1.
func TestIDsAreTheGoldenOnes(t *testing.T) {
	file := filepath.Join("testdata", "golden.json")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Text string   `json:"text"`
		IDs  []uint32 `json:"ids"`
	}
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	m := small(t)
	for i := range cases {
		got := m.Encode(cases[i].Text, true)
		if os.Getenv("SALLYPORT_UPDATE_GOLDEN") != "" {
			cases[i].IDs = got
		} else if !slices.Equal(got, cases[i].IDs) {
			t.Errorf("%q: %v, want %v", cases[i].Text, got, cases[i].IDs)
		}
	}
	if len(cases) < 20 {
		t.Errorf("only %d cases", len(cases))
	}
	if os.Getenv("SALLYPORT_UPDATE_GOLDEN") != "" {
		var b strings.Builder
		for i, c := range cases {
			line, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			b.WriteString(map[bool]string{true: "[\n", false: ",\n"}[i == 0] + string(line))
		}
		if err := os.WriteFile(file, []byte(b.String()+"\n]\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// plain prints messages so that a test can read what the engine would see.
const plain = `{% for m in messages %}{{ m | tojson }};{% endfor %}{{ tools | tojson }};{{ documents | tojson }};{{ add_generation_prompt }};{{ eos_token }}`

func TestChatNormalizesAsVLLM(t *testing.T) {
	m := variant(t, plain)
	const tail = `null;null;True;<|im_end|>`
	for _, c := range []struct{ claim, body, want string }{
		{"a message keeps role, content and name", `{"messages": [{"name": "n", "content": "a", "role": "user", "x": 1}]}`, `{"role": "user", "content": "a", "name": "n"};` + tail},
		{"text parts that are not empty are joined by line ends", `{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": "b"}]}]}`, `{"role": "user", "content": "a\nb"};` + tail},
		{"absent content is empty", `{"messages": [{"role": "assistant", "content": null}]}`, `{"role": "assistant", "content": ""};` + tail},
		{"a call's arguments are parsed, its members ordered", `{"messages": [{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{\"b\": 1.0, \"a\": \"é\"}"}, "id": "1", "x": 2}]}]}`, `{"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"arguments": {"b": 1.0, "a": "é"}, "name": "f"}, "type": "function"}]};` + tail},
		{"absent arguments are an empty object", `{"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": ""}}]}]}`, `{"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"arguments": {}, "name": "f"}, "type": "function"}]};` + tail},
		{"no calls are as none", `{"messages": [{"role": "assistant", "content": "a", "tool_calls": []}]}`, `{"role": "assistant", "content": "a"};` + tail},
		{"a user's calls are dropped", `{"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]}`, `{"role": "user", "content": "a"};` + tail},
		{"a result keeps its call's id", `{"messages": [{"role": "tool", "content": "a", "tool_call_id": "1"}]}`, `{"role": "tool", "content": "a", "tool_call_id": "1"};` + tail},
		{"reasoning has two names", `{"messages": [{"role": "assistant", "content": "a", "reasoning": "r"}]}`, `{"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r"};` + tail},
		{"a tool has all members of its type", `{"messages": [{"role": "user", "content": "a"}], "tools": [{"function": {"strict": true, "parameters": {"z": 1, "a": 2}, "name": "f"}, "type": "function"}]}`, `{"role": "user", "content": "a"};[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"z": 1, "a": 2}, "strict": true}}];null;True;<|im_end|>`},
		{"documents pass", `{"messages": [{"role": "user", "content": "a"}], "documents": [{"b": "1", "a": "2"}], "add_generation_prompt": false}`, `{"role": "user", "content": "a"};null;[{"b": "1", "a": "2"}];False;<|im_end|>`},
	} {
		p, err := m.Chat(t.Context(), []byte(c.body))
		if err != nil || p.Text != c.want {
			t.Errorf("%s:\n got %s, %v\nwant %s", c.claim, p.Text, err, c.want)
		}
		if !slices.Equal(p.IDs, m.Encode(p.Text, true)) {
			t.Errorf("%s: the ids are not those of the text", c.claim)
		}
	}
}

func TestWhatCannotBeComputedIsUnsupported(t *testing.T) {
	m := variant(t, "{% for m in messages %}{{ m.content ~ m.reasoning_content }}{% endfor %}{{ reasoning_effort }}{{ tools }}{{ tool_choice }}{% if messages[0].content == 'no' %}{{ raise_exception('no') }}{% endif %}")
	const ok = `"messages": [{"role": "user", "content": "a"}]`
	if _, err := m.Chat(t.Context(), []byte(`{`+ok+`, "reasoning_effort": null, "temperature": 1}`)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ claim, body string }{
		{"no messages", `{}`},
		{"empty messages", `{"messages": []}`},
		{"a message that is no object", `{"messages": [1]}`},
		{"a role that is no string", `{"messages": [{"content": "a"}]}`},
		{"an image", `{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}`},
		{"a part that is no object", `{"messages": [{"role": "user", "content": ["a"]}]}`},
		{"content that is a number", `{"messages": [{"role": "user", "content": 1}]}`},
		{"arguments that are no JSON", `{"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]}`},
		{"arguments that are no object", `{"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}]}`},
		{"a custom tool call", `{"messages": [{"role": "assistant", "tool_calls": [{"type": "custom", "function": {"name": "f"}}]}]}`},
		{"a choice of tools that the template reads", `{` + ok + `, "tool_choice": "none"}`},
		{"a custom tool", `{` + ok + `, "tools": [{"type": "custom", "function": {"name": "f"}}]}`},
		{"reasoning_content that the template reads", `{"messages": [{"role": "assistant", "content": "a", "reasoning_content": "r"}]}`},
		{"a billing header", `{"messages": [{"role": "system", "content": "x-anthropic-billing-header: 1\na"}]}`},
		{"an effort that the template reads", `{` + ok + `, "reasoning_effort": "low"}`},
		{"a template in the body", `{` + ok + `, "chat_template": "x"}`},
		{"a truncated prompt", `{` + ok + `, "truncate_prompt_tokens": 5}`},
		{"messages by the back door", `{` + ok + `, "chat_template_kwargs": {"messages": []}}`},
		{"both ways to end", `{` + ok + `, "continue_final_message": true}`},
		{"a refusal of the template", `{"messages": [{"role": "user", "content": "no"}]}`},
		{"a number beyond 64 bits", `{` + ok + `, "documents": [99999999999999999999]}`},
		{"an endless word", `{"messages": [{"role": "user", "content": "` + strings.Repeat("a", 1<<20+1) + `"}]}`},
	} {
		if _, err := m.Chat(t.Context(), []byte(c.body)); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", c.claim, err)
		}
	}
	for _, body := range []string{``, `{`, `[]`, `{"messages": [], "messages": []}`, "{\"messages\": \"\xff\"}"} {
		if _, err := m.Chat(t.Context(), []byte(body)); err == nil {
			t.Errorf("%q was accepted", body)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	long := `{"messages": [{"role": "user", "content": "` + strings.Repeat("word ", 10_000) + `"}]}`
	if _, err := m.Chat(ctx, []byte(long)); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnsupported) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestResponsesAreTheChatsThatVLLMMakesOfThem(t *testing.T) {
	m := variant(t, `{% for m in messages %}{{ m | tojson }};{% endfor %}{{ tools | tojson }};{{ add_generation_prompt }}`)
	const tail = `null;True`
	for _, c := range []struct{ claim, body, want string }{
		{"a text is the user's", `{"input": "a"}`, `{"role": "user", "content": "a"};` + tail},
		{"instructions stand first", `{"instructions": "i", "input": "a", "tools": [], "tool_choice": "auto"}`, `{"role": "system", "content": "i"};{"role": "user", "content": "a"};` + tail},
		{"empty instructions are none", `{"instructions": "", "input": "a", "reasoning": {"effort": null, "summary": null}}`, `{"role": "user", "content": "a"};` + tail},
		{"parts are joined by line ends", `{"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}]}`, `{"role": "user", "content": "a\nb"};` + tail},
		{
			"an answer is one message with its calls", `{"input": [{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "t", "annotations": []}]}, {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"a\": 1}"}, {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"}]}`,
			`{"role": "assistant", "content": "t", "tool_calls": [{"id": "1", "function": {"arguments": {"a": 1}, "name": "f"}, "type": "function"}, {"id": "2", "function": {"arguments": {}, "name": "g"}, "type": "function"}]};` + tail,
		},
		{
			"reasoning belongs to the call after it", `{"input": [{"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "h"}]}, {"type": "function_call", "call_id": "1", "name": "f", "arguments": ""}]}`,
			`{"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"arguments": {}, "name": "f"}, "type": "function"}], "reasoning": "h", "reasoning_content": "h"};` + tail,
		},
		{"two answers are two messages", `{"input": [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]}`, `{"role": "assistant", "content": "a"};{"role": "assistant", "content": "b"};` + tail},
		{"a result keeps its call's id", `{"input": [{"type": "function_call_output", "call_id": "1", "output": "o"}]}`, `{"role": "tool", "content": "o", "tool_call_id": "1"};` + tail},
	} {
		p, err := m.Response(t.Context(), []byte(c.body))
		if err != nil || p.Text != c.want {
			t.Errorf("%s:\n got %s, %v\nwant %s", c.claim, p.Text, err, c.want)
		}
	}
	p, err := small(t).Response(t.Context(), []byte(`{"input": [{"role": "user", "content": "?"}, {"type": "message", "role": "assistant", "status": "incomplete", "content": [{"type": "output_text", "text": "It is"}]}]}`))
	if err != nil || !strings.HasSuffix(p.Text, "<|im_start|>assistant\nIt is") {
		t.Errorf("an answer that is not complete is continued: %q, %v", p.Text, err)
	}
	for _, body := range []string{
		`{}`, `{"input": 1}`, `{"input": [1]}`, `{"input": [{"type": "item_reference", "id": "x"}]}`, `{"input": "a", "truncation": "auto"}`,
		`{"input": "a", "tools": [{"type": "function", "name": "f"}]}`, `{"input": "a", "chat_template_kwargs": {"x": 1}}`, `{"input": "a", "previous_response_id": "r"}`,
		`{"input": [{"type": "reasoning", "encrypted_content": "x"}]}`, `{"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]}`,
		`{"input": [{"role": "assistant", "content": [{"type": "output_text", "text": "a"}, {"type": "output_text", "text": "b"}]}]}`,
		`{"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "["}]}`,
	} {
		if _, err := m.Response(t.Context(), []byte(body)); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestTemplatesThatLoopOverContentGetParts(t *testing.T) {
	m := variant(t, "{% for m in messages %}{% for p in m.content %}{{ p | tojson }}{% endfor %}{% endfor %}")
	p, err := m.Chat(t.Context(), []byte(`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}]}`))
	if want := `{"type": "text", "text": "a"}{"type": "text", "text": "b"}`; err != nil || p.Text != want {
		t.Errorf("got %s, %v", p.Text, err)
	}
	if got := m.Decode(p.FirstUserTurn); got != "a" {
		t.Errorf("first turn %q", got)
	}
}

func TestTemplateArgumentsAreVariables(t *testing.T) {
	m := variant(t, "{{ enable_thinking is defined }}{{ enable_thinking }}")
	for _, c := range []struct{ args, want string }{{`null`, "False"}, {`{"enable_thinking": false}`, "TrueFalse"}} {
		p, err := m.Chat(t.Context(), []byte(`{"messages": [{"role": "user"}], "chat_template_kwargs": `+c.args+`}`))
		if err != nil || p.Text != c.want {
			t.Errorf("%s: %q, %v", c.args, p.Text, err)
		}
	}
}

func TestARequestsArgumentsCountBeforeTheEnginesDefaults(t *testing.T) {
	m, err := Open(Config{Files: with(t, templateFile, "{{ style }}{{ enable_thinking }}"), TemplateArgs: []byte(`{"enable_thinking": false, "style": "s"}`)})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{{`null`, "sFalse"}, {`{}`, "sFalse"}, {`{"enable_thinking": true}`, "sTrue"}, {`{"style": null}`, "NoneFalse"}} {
		p, err := m.Chat(t.Context(), []byte(`{"messages": [{"role": "user"}], "chat_template_kwargs": `+c.args+`}`))
		if err != nil || p.Text != c.want {
			t.Errorf("%s: %q, %v", c.args, p.Text, err)
		}
	}
	if _, err := m.Chat(t.Context(), []byte(`{"messages": [{"role": "user"}], "reasoning_effort": "none"}`)); !errors.Is(err, ErrUnsupported) {
		t.Errorf("an effort where the template may be told to think: %v", err)
	}
	thoughts := variant(t, "{{ messages[0].reasoning }}")
	if _, err := thoughts.Chat(t.Context(), []byte(`{"messages": [{"role": "assistant", "reasoning_content": "r"}]}`)); !errors.Is(err, ErrUnsupported) {
		t.Errorf("reasoning under its older name: %v", err)
	}
}

func TestContinueFinalMessageEndsAtTheMessage(t *testing.T) {
	m := small(t)
	for _, c := range []struct{ content, end string }{
		{"The answer is", "<|im_start|>assistant\nThe answer is"},
		{"Padded  ", "<|im_start|>assistant\nPadded  "},
	} {
		p, err := m.Chat(t.Context(), []byte(`{"add_generation_prompt": false, "continue_final_message": true, "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "`+c.content+`"}]}`))
		if err != nil || !strings.HasSuffix(p.Text, c.end) {
			t.Errorf("%q: %q, %v", c.content, p.Text, err)
		}
	}
}

func TestTheFirstUserTurnStaysWhileAConversationGrows(t *testing.T) {
	m := small(t)
	turn := func(body string) []uint32 {
		p, err := m.Chat(t.Context(), []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return p.FirstUserTurn
	}
	first := turn(`{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "What is <|im_end|> here?"}]}`)
	second := turn(`{"messages": [{"role": "system", "content": "other"}, {"role": "user", "content": "What is <|im_end|> here?"}, {"role": "assistant", "content": "x"}, {"role": "user", "content": "And?"}]}`)
	if !slices.Equal(first, second) || m.Decode(first) != "What is <|im_end|> here?" {
		t.Errorf("%v, then %v", first, second)
	}
	if got := turn(`{"messages": [{"role": "user", "content": "` + strings.Repeat("é ", 10_000) + `"}]}`); len(m.Decode(got)) > turnBytes {
		t.Errorf("%d ids", len(got))
	}
}

func TestCompletion(t *testing.T) {
	m := small(t)
	text := "Once upon a time <|im_end|>"
	ids := m.Encode(text, true)
	list, err := json.Marshal(ids)
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{`{"prompt": "` + text + `"}`, `{"prompt": ["` + text + `"], "max_tokens": 5}`, `{"prompt": ` + string(list) + `}`} {
		p, err := m.Completion(t.Context(), []byte(body))
		if err != nil || p.Text != text || !slices.Equal(p.IDs, ids) || !slices.Equal(p.FirstUserTurn, ids) {
			t.Errorf("%s: %+v, %v", body, p, err)
		}
	}
	for _, body := range []string{`{}`, `{"prompt": null}`, `{"prompt": []}`, `{"prompt": ["a", "b"]}`, `{"prompt": [[1], [2]]}`, `{"prompt": [99999]}`, `{"prompt": [-1]}`, `{"prompt": "a", "suffix": "b"}`} {
		if _, err := m.Completion(t.Context(), []byte(body)); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestLoadRefusesWhatWouldDiffer(t *testing.T) {
	for _, c := range []struct{ claim, config, want string }{
		{"a token that transformers would add", `{"eos_token": "</s>"}`, `eos_token: unsupported: token "</s>"`},
		{"an additional one", `{"additional_special_tokens": ["<y>"]}`, "<y>"},
		{"one with another id", `{"added_tokens_decoder": {"5": {"content": "<|im_end|>"}}}`, "is 5 here"},
		{"a prefix space", `{"add_prefix_space": true}`, "add_prefix_space"},
		{"specials split", `{"split_special_tokens": true}`, "split_special_tokens"},
		{"extra tokens", `{"extra_special_tokens": {"image_token": "<i>"}}`, "extra_special_tokens"},
		{"several templates", `{"chat_template": [{"name": "default", "template": "x"}]}`, "chat_template"},
		{"a template beyond us", `{"chat_template": "{% include 'x' %}"}`, "chat template: template line 1: unsupported: tag include"},
		{"no JSON", `{`, configFile},
	} {
		if _, err := LoadFS(with(t, configFile, c.config)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.claim, err, c.want)
		}
	}
	if _, err := LoadFS(fstest.MapFS{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty folder: %v", err)
	}
}

func TestAFolderLoadsAsTheEmbeddedFiles(t *testing.T) {
	m, err := Load(filepath.Join("models", "small"))
	if err != nil {
		t.Fatal(err)
	}
	if m.VocabSize() < 8000 || m.VocabSize() != small(t).VocabSize() {
		t.Errorf("%d ids, embedded %d", m.VocabSize(), small(t).VocabSize())
	}
	if _, err := Load(t.TempDir()); err == nil {
		t.Error("an empty folder was loaded")
	}
}

func TestAModelWithoutTemplateCompletesOnly(t *testing.T) {
	m, err := LoadFS(with(t, configFile, `{"chat_template": null}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Chat(t.Context(), []byte(`{"messages": [{"role": "user", "content": "a"}]}`)); !errors.Is(err, ErrUnsupported) {
		t.Errorf("chat: %v", err)
	}
	if _, err := m.Completion(t.Context(), []byte(`{"prompt": "a"}`)); err != nil {
		t.Errorf("completion: %v", err)
	}
}

func TestManyRequestsShareAModel(t *testing.T) {
	m := small(t)
	body := conversation(3, 6)
	want, err := m.Chat(t.Context(), body)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10 {
				if p, err := m.Chat(t.Context(), body); err != nil || !slices.Equal(p.IDs, want.IDs) {
					t.Errorf("another answer: %v", err)
				}
			}
		})
	}
	wg.Wait()
}
