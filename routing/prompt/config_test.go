package prompt

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// around is the small model with a post-processor that adds <|endoftext|>
// before a text, and with the configuration.
func around(t *testing.T, config string) *Model {
	t.Helper()
	files := with(t, configFile, config)
	bos := fmt.Sprint(small(t).Encode("<|endoftext|>", true)[0])
	data := string(files[tokenizerFile].Data)
	at := strings.Index(data, `"post_processor": `)
	end := at + strings.Index(data[at:], `"decoder"`)
	data = data[:at] + `"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
 "pair": [], "special_tokens": {"x": {"id": "x", "ids": [` + bos + `], "tokens": ["<|endoftext|>"]}}}, ` + data[end:]
	files[tokenizerFile] = &fstest.MapFile{Data: []byte(data)}
	m, err := LoadFS(files)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestCompletionsHaveSpecialTokensAroundThem(t *testing.T) {
	const plain = `{"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"`
	for _, c := range []struct{ claim, config, want string }{
		{"as tokenizer.json says", plain + `}`, "<|endoftext|>hi"},
		{"and the flag too", plain + `, "add_bos_token": true, "bos_token": "<|endoftext|>"}`, "<|endoftext|>hi"},
		{"not if the flag says otherwise", plain + `, "add_bos_token": false}`, ""},
		{"nor if the class takes another default", plain + `, "tokenizer_class": "LlamaTokenizerFast"}`, ""},
		{"nor if an end is missing", plain + `, "add_eos_token": true, "eos_token": "<|im_end|>"}`, ""},
	} {
		m := around(t, c.config)
		p, err := m.Completion(t.Context(), []byte(`{"prompt": "hi"}`))
		if got := m.Decode(p.IDs); got != c.want || (c.want == "") != errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %q, %v", c.claim, got, err)
		}
		for body, want := range map[string]string{`{"prompt": "hi", "add_special_tokens": false}`: "hi", `{"prompt": [72]}`: m.Decode([]uint32{72})} {
			if p, err := m.Completion(t.Context(), []byte(body)); err != nil || m.Decode(p.IDs) != want {
				t.Errorf("%s: %s gives %q, %v", c.claim, body, m.Decode(p.IDs), err)
			}
		}
		const messages = `"messages": [{"role": "user", "content": "hi"}]`
		if p, err := m.Chat(t.Context(), []byte(`{`+messages+`}`)); err != nil || m.Decode(p.IDs) != "hi" {
			t.Errorf("%s: a chat gives %q, %v", c.claim, m.Decode(p.IDs), err)
		}
		if p, err := m.Chat(t.Context(), []byte(`{`+messages+`, "add_special_tokens": true}`)); m.Decode(p.IDs) != c.want || (c.want == "") != errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: a chat that asks for them gives %q, %v", c.claim, m.Decode(p.IDs), err)
		}
	}
}

func TestTheEnginesSettingsCount(t *testing.T) {
	files := with(t, configFile, `{"extra_special_tokens": {"image_token": "<|im_end|>"}, "chat_template": "{{ strftime_now('%d %H') }} {{ mode }} {{ image_token }}"}`)
	m, err := Open(Config{
		Files: files, TemplateArgs: []byte(`{"mode": "slow"}`), Zone: time.FixedZone("", 2*3600),
		Now: func() time.Time { return time.Date(2026, 5, 6, 23, 0, 0, 0, time.UTC) },
	})
	if err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{"": "07 01 slow <|im_end|>", `, "chat_template_kwargs": {"mode": "fast"}`: "07 01 fast <|im_end|>"} {
		p, err := m.Chat(t.Context(), []byte(`{"messages": [{"role": "user", "content": "a"}]`+args+`}`))
		if err != nil || p.Text != want {
			t.Errorf("%q gives %q, %v", args, p.Text, err)
		}
	}
	for _, bad := range []string{`[]`, `{"messages": 1}`, `{"range": 1}`, `{`} {
		if _, err := Open(Config{Files: files, TemplateArgs: []byte(bad)}); err == nil {
			t.Errorf("default arguments %s were accepted", bad)
		}
	}
}
