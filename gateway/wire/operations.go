package wire

import (
	"maps"
	"slices"

	"github.com/sallyport-ai/sallyport/policy"
)

// Operation is one route. Values come from [Operations].
type Operation struct {
	Method string
	Path   string       // matched exactly
	Name   string       // as policy and records know it
	Class  policy.Class // the least that a request on this route is
	Shape  Shape        // of error bodies
	Engine string       // path of the engine's route, as tickets name it

	fields   map[string]field // allowed top-level fields; nil: no body
	required []string         // of these
	limits   []string         // fields that bound the answer; the first is set where the client names none

	asksUsage bool // a stream has usage only where it was asked for
	stateless bool // the engine would store the answer if it were not told
	translate func(Operation, []byte, Limits) (*Request, error)
	reader    func(*Request) reader // of answers
}

// HasBody reports whether requests of this operation carry a body to decode.
func (o Operation) HasBody() bool { return o.fields != nil }

// The operations.
var (
	ChatCompletions = Operation{
		Method: "POST", Path: "/v1/chat/completions", Name: "chat.completions",
		Class: policy.Chat, Engine: chatPath,
		fields: chatFields(), required: []string{"model", "messages"},
		limits: []string{"max_tokens", "max_completion_tokens"}, asksUsage: true,
	}
	Completions = Operation{
		Method: "POST", Path: "/v1/completions", Name: "completions",
		Class: policy.Chat, Engine: "/v1/completions",
		fields: completionFields(), required: []string{"model", "prompt"},
		limits: []string{"max_tokens"}, asksUsage: true,
	}
	Embeddings = Operation{
		Method: "POST", Path: "/v1/embeddings", Name: "embeddings",
		Class: policy.Embedding, Engine: "/v1/embeddings",
		fields: embeddingFields(), required: []string{"model", "input"},
	}
	// Responses is without state: nothing is stored, nothing stored is used.
	Responses = Operation{
		Method: "POST", Path: "/v1/responses", Name: "responses",
		Class: policy.Chat, Shape: OpenAIResponses, Engine: "/v1/responses",
		fields: responseFields(), required: []string{"model", "input"},
		limits: []string{"max_output_tokens"}, stateless: true, reader: readResponse,
	}
	// Messages is Anthropic's route, translated onto chat.
	Messages = Operation{
		Method: "POST", Path: "/v1/messages", Name: "messages",
		Class: policy.Chat, Shape: Anthropic, Engine: chatPath,
		fields: messageFields(), required: []string{"model", "max_tokens", "messages"},
		translate: decodeMessages, reader: readMessage,
	}
	ModelsList = Operation{
		Method: "GET", Path: "/v1/models", Name: "models.list",
		Class: policy.Discovery,
	}
)

const chatPath = "/v1/chat/completions"

// Operations returns the table of routes. Anything that is not in it is 404.
func Operations() []Operation {
	return []Operation{ChatCompletions, Completions, Responses, Embeddings, Messages, ModelsList}
}

// removed are client fields that are taken out and recorded instead of refused:
// clients send them in good faith, but their value is not theirs to choose.
var removed = []string{"cache_salt"}

// chatFields are the request fields of the OpenAI chat completions reference
// and the sampling and template parameters that vLLM documents for this route.
// Left out on purpose: store (unless false), prompt_cache_key and
// prompt_cache_retention steer what a provider keeps or shares;
// web_search_options and audio start work that no inspection sees.
func chatFields() map[string]field {
	fields := map[string]field{
		"model": (*parser).model, "messages": (*parser).messages, "documents": (*parser).documents,
		"stream": (*parser).stream, "stream_options": (*parser).streamOptions,
		"n": (*parser).n, "max_tokens": (*parser).maxTokens, "max_completion_tokens": (*parser).maxTokens,

		"tools": (*parser).tools, "tool_choice": (*parser).toolChoice,
		"functions": (*parser).functions, "function_call": (*parser).toolChoice,

		"response_format": (*parser).responseFormat, "structured_outputs": structured,
		"guided_json": structured, "guided_regex": structured, "guided_choice": structured,
		"guided_grammar": structured, "guided_decoding_backend": structured,
		"guided_whitespace_pattern": structured, "structural_tag": structured,

		"metadata": opaque, "prediction": opaque, "chat_template_kwargs": (*parser).templateKwargs,

		"store":        mustBe("false"),
		"service_tier": mustBe(`"auto"`, `"default"`),
		"modalities":   mustBe(`["text"]`),
	}
	for _, name := range slices.Concat(samplingFields, chatPlainFields) {
		fields[name] = plain
	}
	return fields
}

// samplingFields hold numbers, switches, short strings and lists of them, and
// go with every route that generates from a template or a prompt. The engine
// checks them; we only scan their strings.
var samplingFields = []string{
	// OpenAI
	"temperature", "top_p", "stop", "seed", "presence_penalty", "frequency_penalty",
	"logit_bias", "logprobs", "user",

	// vLLM sampling parameters
	"best_of", "use_beam_search", "top_k", "min_p", "repetition_penalty", "length_penalty",
	"stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens",
	"skip_special_tokens", "spaces_between_special_tokens", "truncate_prompt_tokens",
	"allowed_token_ids", "bad_words", "echo", "add_special_tokens", "return_tokens_as_token_ids",
}

// chatPlainFields are of the same kind, on the chat route alone.
var chatPlainFields = []string{
	"top_logprobs", "parallel_tool_calls", "safety_identifier", "reasoning_effort", "verbosity",
	"thinking_token_budget", "add_generation_prompt", "continue_final_message", "include_reasoning",
}

// sortedSet returns the distinct names in order.
func sortedSet(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// sortedNames returns a set's names in order.
func sortedNames(set map[string]bool) []string {
	return slices.Sorted(maps.Keys(set))
}
