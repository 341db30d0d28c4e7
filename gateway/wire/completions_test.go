package wire

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestPrompts(t *testing.T) {
	cases := []struct {
		claim string
		op    Operation
		body  string
		code  Code // empty: accepted
		param string
		texts []string
	}{
		{"a prompt", Completions, `{"model":"m","prompt":"a"}`, "", "", []string{"a"}},
		{"several prompts", Completions, `{"model":"m","prompt":["a","b"],"suffix":"c"}`, "", "", []string{"a", "b", "c"}},
		{"an input", Embeddings, `{"model":"m","input":"a","encoding_format":"base64"}`, "", "", []string{"a", "base64"}},
		{"several inputs", Embeddings, `{"model":"m","input":["a","b"],"dimensions":256}`, "", "", []string{"a", "b"}},
		{"no prompt", Completions, `{"model":"m"}`, InvalidRequest, "prompt", nil},
		{"a prompt that is null", Completions, `{"model":"m","prompt":null}`, InvalidRequest, "prompt", nil},
		{"no prompts", Completions, `{"model":"m","prompt":[]}`, InvalidRequest, "prompt", nil},
		{"a prompt of token ids", Completions, `{"model":"m","prompt":[1,2]}`, UnsupportedField, "prompt", nil},
		{"prompts of token ids", Completions, `{"model":"m","prompt":[[1],[2]]}`, UnsupportedField, "prompt", nil},
		{"a token id among texts", Completions, `{"model":"m","prompt":["a",2]}`, UnsupportedField, "prompt", nil},
		{"one token id", Embeddings, `{"model":"m","input":1}`, UnsupportedField, "input", nil},
		{"an input of token ids", Embeddings, `{"model":"m","input":[1,2]}`, UnsupportedField, "input", nil},
		{"an input that is an object", Embeddings, `{"model":"m","input":{"text":"a"}}`, InvalidRequest, "input", nil},
		{"messages where a prompt belongs", Completions, `{"model":"m","messages":[]}`, UnsupportedField, "messages", nil},
		{"messages to embed", Embeddings, `{"model":"m","messages":[]}`, UnsupportedField, "messages", nil},
		{"a stream of embeddings", Embeddings, `{"model":"m","input":"a","stream":true}`, UnsupportedField, "stream", nil},
		{"embedded prompts", Completions, `{"model":"m","prompt":"a","prompt_embeds":"x"}`, UnsupportedField, "prompt_embeds", nil},
		{"prompt logprobs", Completions, `{"model":"m","prompt":"a","prompt_logprobs":1}`, UnsupportedField, "prompt_logprobs", nil},
		{"a priority", Embeddings, `{"model":"m","input":"a","priority":1}`, UnsupportedField, "priority", nil},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			r, err := Decode(c.op, []byte(c.body), Limits{})
			if c.code != "" {
				var e *Error
				if !errors.As(err, &e) || e.Code != c.code || e.Param != c.param {
					t.Fatalf("got %v, want %s of %s", err, c.code, c.param)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var texts []string
			for text := range r.Texts() {
				texts = append(texts, string(text.Data))
			}
			if !reflect.DeepEqual(texts, c.texts) || r.Model != "m" {
				t.Errorf("got %q of %s", texts, r.Model)
			}
		})
	}
}

func TestUpstreamOfOtherRoutes(t *testing.T) {
	ten := int64(10)
	cases := []struct {
		claim string
		op    Operation
		body  string
		want  string
	}{
		{"a completion is limited", Completions, `{"model":"a","prompt":"x","cache_salt":"s"}`, `{"model":"b","prompt":"x","max_tokens":10}`},
		{"a stream of completions asks for usage", Completions, `{"model":"a","prompt":"x","stream":true,"max_tokens":3}`, `{"model":"b","prompt":"x","stream":true,"max_tokens":3,"stream_options":{"include_usage":true}}`},
		{"embeddings have no limit, and nothing is added that the client left out", Embeddings, `{"model":"a","input":"x"}`, `{"model":"b","input":"x"}`},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			r, err := Decode(c.op, []byte(c.body), Limits{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := r.Upstream(Edits{Model: "b", MaxOutputTokens: &ten})
			if err != nil || string(got) != c.want {
				t.Errorf("got %s, %v\nwant %s", got, err, c.want)
			}
		})
	}
}

// neverForwarded are fields that no table may let through: they name hosts,
// files, code, queue places, cache partitions or other requests of the engine.
var neverForwarded = map[string]bool{
	"cache_salt": true, // removed before the tables are asked

	// vLLM
	"kv_transfer_params": true, "priority": true, "data_parallel_rank": true,
	"request_id": true, "extra_args": true, "vllm_xargs": true,
	"chat_template": true, "mm_processor_kwargs": true, "media_io_kwargs": true,
	"cache_report_mode": true, "return_token_ids": true, "prompt_logprobs": true,
	"logits_processors": true, "prompt_embeds": true, "prompt_token_ids": true,

	// SGLang
	"rid": true, "extra_key": true, "lora_path": true, "session_params": true,
	"custom_logit_processor": true, "custom_params": true, "input_ids": true,
	"input_embeds": true, "return_hidden_states": true, "routed_dp_rank": true,
	"disagg_prefill_dp_rank": true, "routing_key": true,

	// State that a server holds between requests.
	"previous_response_id": true, "conversation": true, "conversation_id": true,
	"background": true,
}

func never(name string) bool {
	return neverForwarded[name] || strings.HasPrefix(name, "bootstrap_")
}

// TestNeverMeansNever holds the tables against the list: what names hosts, queue
// places or cache partitions is on no route's table but to refuse its values.
func TestNeverMeansNever(t *testing.T) {
	for _, op := range Operations() {
		for name := range op.fields {
			if !never(name) {
				continue
			}
			body := []byte(`{"` + name + `":"x"}`)
			var e *Error
			if _, err := Decode(op, body, Limits{}); !errors.As(err, &e) || e.Code != UnsupportedField {
				t.Errorf("%s takes %s: %v", op.Name, name, err)
			}
		}
		for _, name := range slices.Concat(op.required, op.limits) {
			if op.fields[name] == nil {
				t.Errorf("%s needs %s and does not know it", op.Name, name)
			}
		}
	}
}

func TestAnswerOfEmbeddings(t *testing.T) {
	body := `{"object":"list","data":[{"embedding":"AAAA","index":0}],"usage":{"prompt_tokens":5,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":4}}}`
	want := `{"object":"list","data":[{"embedding":"AAAA","index":0}],"usage":{"prompt_tokens":5,"total_tokens":5,"prompt_tokens_details":{}}}`
	a := Embeddings.Answer(&Request{})
	got, err := a.Body([]byte(body))
	if err != nil || string(got) != want || a.Usage.PromptTokens != 5 || *a.Usage.CachedTokens != 4 {
		t.Errorf("got %s, %v", got, err)
	}
}
