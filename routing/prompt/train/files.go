package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/sallyport-ai/sallyport/routing/prompt/tokenizer"
)

// added are the tokens beside the vocabulary, in the order of their ids.
var added = []struct {
	content string
	special bool
}{
	{"<|endoftext|>", true},
	{"<|im_start|>", true},
	{"<|im_end|>", true},
	{"<tool_call>", false},
	{"</tool_call>", false},
	{"<tool_response>", false},
	{"</tool_response>", false},
	{"<think>", false},
	{"</think>", false},
}

func quote(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(err) // a string always encodes
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

// modelFiles are the files of the model by name.
func modelFiles(tokens []string, merges [][2]string) (map[string][]byte, error) {
	file := tokenizerFile(tokens, merges)
	if _, err := tokenizer.Parse(file); err != nil {
		return nil, fmt.Errorf("the tokenizer made does not load: %w", err)
	}
	return map[string][]byte{"tokenizer.json": file, "tokenizer_config.json": configFile()}, nil
}

func tokenizerFile(tokens []string, merges [][2]string) []byte {
	const byteLevel = `{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}`
	var b bytes.Buffer
	b.WriteString("{\n \"version\": \"1.0\",\n \"truncation\": null,\n \"padding\": null,\n \"added_tokens\": [")
	for i, a := range added {
		fmt.Fprintf(&b, "%s\n  {\"id\": %d, \"content\": %s, \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": %t}",
			comma(i), len(tokens)+i, quote(a.content), a.special)
	}
	fmt.Fprintf(&b, "\n ],\n \"normalizer\": {\"type\": \"NFC\"},\n \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [\n  {\"type\": \"Split\", \"pattern\": {\"Regex\": %s}, \"behavior\": \"Isolated\", \"invert\": false},\n  %s\n ]},\n", quote(tokenizer.QwenPattern), byteLevel)
	fmt.Fprintf(&b, " \"post_processor\": %s,\n \"decoder\": %s,\n", byteLevel, byteLevel)
	b.WriteString(" \"model\": {\n  \"type\": \"BPE\",\n  \"dropout\": null,\n  \"unk_token\": null,\n  \"continuing_subword_prefix\": \"\",\n  \"end_of_word_suffix\": \"\",\n  \"fuse_unk\": false,\n  \"byte_fallback\": false,\n  \"ignore_merges\": false,\n  \"vocab\": {")
	for i, t := range tokens {
		fmt.Fprintf(&b, "%s\n   %s: %d", comma(i), quote(t), i)
	}
	b.WriteString("\n  },\n  \"merges\": [")
	for i, m := range merges {
		fmt.Fprintf(&b, "%s\n   [%s, %s]", comma(i), quote(m[0]), quote(m[1]))
	}
	b.WriteString("\n  ]\n }\n}\n")
	return b.Bytes()
}

func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}

func configFile() []byte {
	return fmt.Appendf(nil, `{
 "tokenizer_class": "PreTrainedTokenizerFast",
 "bos_token": null,
 "eos_token": "<|im_end|>",
 "pad_token": "<|endoftext|>",
 "unk_token": null,
 "clean_up_tokenization_spaces": false,
 "model_max_length": 32768,
 "chat_template": %s
}
`, quote(chatTemplate))
}
