package sim

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestRenderingIsThePromptThatTheRouteComputes(t *testing.T) {
	e := start(t)
	for _, c := range []struct{ path, body string }{
		{"/v1/chat/completions", `{"model":"small","messages":[{"role":"system","content":"s"},{"role":"user","content":"Where is the key?"}],"cache_salt":"x"}`},
		{"/v1/chat/completions", `{"model":"small","messages":[{"role":"user","content":"?"},{"role":"assistant","content":"It is"}],"continue_final_message":true,"add_generation_prompt":false}`},
		{"/v1/completions", `{"model":"small","prompt":"Once upon a time"}`},
		{"/v1/responses", `{"model":"small","instructions":"i","input":[{"role":"user","content":"a"},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"t"}]},{"role":"user","content":"b"}]}`},
	} {
		answer := post(t, e, c.path+"/render", c.body)
		var one generateRequest
		if c.path == "/v1/completions" {
			var list []generateRequest
			if err := json.Unmarshal([]byte(answer), &list); err != nil || len(list) != 1 {
				t.Fatalf("%s: %s, %v", c.path, answer, err)
			}
			one = list[0]
		} else if err := json.Unmarshal([]byte(answer), &one); err != nil {
			t.Fatalf("%s: %s, %v", c.path, answer, err)
		}
		var spent struct {
			Usage struct {
				Prompt int `json:"prompt_tokens"`
				Input  int `json:"input_tokens"`
			} `json:"usage"`
		}
		if err := json.Unmarshal([]byte(post(t, e, c.path, c.body)), &spent); err != nil {
			t.Fatal(err)
		}
		if n := max(spent.Usage.Prompt, spent.Usage.Input); len(one.TokenIDs) != n || n == 0 {
			t.Errorf("%s: rendered %d tokens, computed %d", c.path, len(one.TokenIDs), n)
		}
		if salted := strings.Contains(c.body, "cache_salt"); (one.CacheSalt != nil) != salted {
			t.Errorf("%s: salt %v", c.path, one.CacheSalt)
		}
	}
}

func TestTokenizeTakesTextsAndMessages(t *testing.T) {
	e := start(t)
	for _, c := range []struct{ body, text string }{
		{`{"model":"small","prompt":"Hello","add_special_tokens":false}`, "Hello"},
		{`{"model":"small","messages":[{"role":"user","content":"Hello"}],"add_generation_prompt":false}`, "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"},
	} {
		var out tokenizeAnswer
		if err := json.Unmarshal([]byte(post(t, e, "/tokenize", c.body)), &out); err != nil {
			t.Fatal(err)
		}
		if want := e.cfg.Prompt.Encode(c.text, true); !slices.Equal(out.Tokens, want) || out.Count != len(want) || out.MaxModelLen != e.cfg.MaxModelLen {
			t.Errorf("%s: %+v, want %v", c.body, out, want)
		}
	}
	for _, body := range []string{`{}`, `[`, `{"messages":[]}`, `{"prompt":["a"]}`, `{"messages":[{"role":"user","content":"a"}],"documents":[]}`} {
		resp, err := http.Post(e.URL()+"/tokenize", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %d", body, resp.StatusCode)
		}
	}
}
