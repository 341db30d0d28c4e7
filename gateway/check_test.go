package gateway

import (
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/sallyport-ai/sallyport/routing/prompt"
	"github.com/sallyport-ai/sallyport/test/await"
)

// templated is the model of the engines but for its chat template.
func templated(t *testing.T, template string) *prompt.Memory {
	t.Helper()
	files := fstest.MapFS{"chat_template.jinja": {Data: []byte(template)}}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		b, err := fs.ReadFile(prompt.Small(), name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = &fstest.MapFile{Data: b}
	}
	m, err := prompt.LoadFS(files)
	if err != nil {
		t.Fatal(err)
	}
	return prompt.NewMemory(m, prompt.MemoryConfig{})
}

const (
	// without leaves out the system message that the engines' template adds.
	without = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n\n" // of two line ends at its end a template loses one
	// shouting is as long as the engines', but ends the system message with another sign.
	shouting = "<|im_start|>system\nYou are a helpful assistant!<|im_end|>\n" + without
)

// notices collects what evidence changed.
type notices struct {
	mu  sync.Mutex
	all []PromptNotice
}

func (n *notices) take(c *Config) {
	c.NotifyPrompt = func(p PromptNotice) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.all = append(n.all, p)
	}
}

// told lists the doubts with their ends, in order.
func (n *notices) told() (out []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.all {
		out = append(out, strings.Trim(p.Doubt+" "+p.From+" "+p.To, " "))
	}
	return out
}

func TestAWrongTemplateIsNotBelievedAndTheRightOneIsAfterItHasShownItself(t *testing.T) {
	var told notices
	s := serve(t, patient, told.take)
	live := *s.g.live.Load()
	live.Prompts = map[string]*prompt.Memory{"small": templated(t, without)}
	if err := s.g.Swap(live); err != nil {
		t.Fatal(err)
	}
	// ask sends a request and returns how its prompt was counted. Whatever is
	// thought of our tokenizer, it is served.
	ask := func() (basis string, why []string) {
		a := s.post("acme", chat(s.newMark(), `"max_tokens":2`))
		s.want(a, http.StatusOK, "")
		d, o := s.lone(a)
		if wrong := d.Request.PromptTokens != o.Outcome.PromptTokens; wrong != (d.Request.PromptBasis == "native_unverified" && len(told.told()) == 0) && !wrong {
			t.Errorf("counted %d (%s), the engine %d", d.Request.PromptTokens, d.Request.PromptBasis, o.Outcome.PromptTokens)
		}
		return d.Request.PromptBasis, d.Request.PromptWhy
	}
	for i := range 5 {
		if basis, _ := ask(); basis != "native_unverified" {
			t.Fatalf("request %d: %s", i, basis)
		}
	}
	for range 3 { // shadow checks that fail
		if basis, why := ask(); basis != basisEngine || !slices.Equal(why, []string{doubted}) {
			t.Fatalf("after the evidence: %s %v", basis, why)
		}
	}
	live.Prompts = map[string]*prompt.Memory{"small": prompt.NewMemory(s.model, prompt.MemoryConfig{})}
	if err := s.g.Swap(live); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		if basis, _ := ask(); basis != basisEngine {
			t.Fatalf("after %d clean checks: %s", i, basis)
		}
	}
	if basis, _ := ask(); basis != "native_unverified" {
		t.Fatalf("after 50 clean checks: %s", basis)
	}
	for range 60 { // some are only looked at after a while
		ask()
	}
	if basis, why := ask(); basis != "native_verified" || why != nil {
		t.Errorf("in the end: %s %v", basis, why)
	}
	want := []string{"prompt_mismatch unverified engine", "prompt_mismatch engine unverified", "prompt_mismatch unverified verified"}
	if got := told.told(); !slices.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
}

func TestAReloadOfTheSameFilesKeepsTheEvidence(t *testing.T) {
	s := serve(t)
	live := *s.g.live.Load()
	before := live.standings["small"]
	live.Prompts = map[string]*prompt.Memory{"small": prompt.NewMemory(s.model, prompt.MemoryConfig{})}
	if err := s.g.Swap(live); err != nil {
		t.Fatal(err)
	}
	if s.g.live.Load().standings["small"] != before {
		t.Error("the evidence was forgotten")
	}
	live.Prompts = map[string]*prompt.Memory{"small": templated(t, without)}
	if err := s.g.Swap(live); err != nil {
		t.Fatal(err)
	}
	if now := s.g.live.Load().standings["small"]; now == before || now.Level() != prompt.Unverified {
		t.Error("other files have the evidence of these")
	}
}

func TestAWrongTemplateOfTheSameLengthIsFoundOutByItsBlocksAndItsLackOfHits(t *testing.T) {
	var told notices
	w := watch(t, patient, told.take, func(c *Config) {
		c.Live.Prompts = map[string]*prompt.Memory{"small": templated(t, shouting)}
	})
	body := chat(w.newMark()+strings.Repeat(" and the harbour", 20), `"max_tokens":2`)
	for range 5*sampleOne + blindAfter {
		w.want(w.post("acme", body), http.StatusOK, "")
	}
	await.That(t, "both to be told", func() bool {
		got := told.told()
		return slices.Contains(got, "prompt_mismatch unverified engine") && slices.Contains(got, NoOverlap)
	})
	page := w.scrape()
	for _, line := range []string{
		`sallyport_prompt_divergences_total{model="small",part="kwargs"}`, `sallyport_prompt_checks_total{model="small",result="blocks"}`,
		`sallyport_prompt_level{level="engine",model="small"} 1`,
	} {
		if !strings.Contains(page, line) {
			t.Errorf("no %s in\n%s", line, page)
		}
	}
	// What engines count is foretold again.
	await.That(t, "the end of the alarm", func() bool {
		w.want(w.post("acme", body), http.StatusOK, "")
		alarms := slices.DeleteFunc(told.told(), func(s string) bool { return s != NoOverlap })
		return len(alarms) == 2 && strings.Contains(w.scrape(), `sallyport_prompt_no_overlap{model="small"} 0`)
	})
}

func TestTheAlarmNeedsARowOfRequestsAndEndsWithOnePrediction(t *testing.T) {
	var o overlap
	for i := range 3 * blindAfter {
		if changed, alarm := o.saw("m", i%blindAfter == blindAfter-1); changed || alarm {
			t.Fatalf("after %d requests with a prediction in each row: %v", i, alarm)
		}
	}
	for i := range blindAfter {
		if changed, alarm := o.saw("m", false); alarm != (i == blindAfter-1) || changed != alarm {
			t.Fatalf("after %d in a row: %v", i+1, alarm)
		}
	}
	if changed, alarm := o.saw("other", true); changed || alarm {
		t.Error("another model has the alarm")
	}
	if changed, alarm := o.saw("m", true); !changed || alarm {
		t.Error("a prediction did not end it")
	}
}
