package prompt

import (
	"strings"
	"testing"
	"time"
)

// made is a template with every part that prompts have.
const made = `Today is {{ strftime_now('%d %B %Y') }}.{% if tools %}Tools: {{ tools | tojson }}{% endif %}
{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if style is defined %}Style: {{ style }}
{% endif %}<|im_start|>assistant
`

func TestAPlaceInAPromptHasItsPart(t *testing.T) {
	m, err := Open(Config{Files: with(t, templateFile, made), Now: func() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }})
	if err != nil {
		t.Fatal(err)
	}
	body := []byte(`{"messages": [{"role": "system", "content": "Be brief and kind to everybody."}, {"role": "user", "content": "What is a sallyport?"}],
		"tools": [{"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}], "chat_template_kwargs": {"style": "formal"}}`)
	p, err := m.Chat(t.Context(), body)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		at   string
		want Part
	}{
		{"30 November", Date},
		{"2026", Date},
		{`"name": "lookup"`, ToolJSON},
		{`"parameters"`, ToolJSON},
		{"brief", Content},
		{"sallyport", Content},
		{"<|im_start|>user", Kwargs},
		{"formal", Kwargs},
		{"<|im_start|>assistant", Kwargs},
	} {
		offset, from := strings.Index(p.Text, c.at), 0
		for m.bytes(p.IDs[:from+1]) <= offset {
			from++
		}
		if got := m.PartAt(t.Context(), ChatBody, body, p.IDs, from, from+1, len(p.IDs)+7); got != c.want {
			t.Errorf("at %q: %q, want %q", c.at, got, c.want)
		}
	}
	n := len(p.IDs)
	for _, c := range []struct {
		claim            string
		from, to, theirs int
		want             Part
	}{
		{"the first token is the beginning", 0, 1, 0, BOS},
		{"a token more and a difference in the first block is the beginning", 0, 16, n + 1, BOS},
		{"a token less too", 0, 16, n - 1, BOS},
		{"as long, the first block is its date", 0, 16, n, Date},
		{"behind the end the template goes on", n, n + 1, n + 4, Kwargs},
		{"nonsense is borne", -5, n + 100, -1, Date},
	} {
		if got := m.PartAt(t.Context(), ChatBody, body, p.IDs, c.from, c.to, c.theirs); got != c.want {
			t.Errorf("%s: %q, want %q", c.claim, got, c.want)
		}
	}
	if got := m.PartAt(t.Context(), ChatBody, []byte(`{`), p.IDs, 9, 10, 0); got != "" {
		t.Errorf("a body without a prompt: %q", got)
	}
	if got := m.PartAt(t.Context(), ResponseBody, []byte(`{"input":"What is it?"}`), m.Encode("Today is 30 November 2026.\n<|im_start|>user\nWhat", true), 8, 9, 0); got == "" {
		t.Error("a response has no parts")
	}
	if got := m.PartAt(t.Context(), CompletionBody, []byte(`{"prompt":"abc abc"}`), m.Encode("abc abc", true), 1, 2, 0); got != Content {
		t.Errorf("a completion: %q", got)
	}
}
