package tokenizer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tiny is the smallest file that loads: the 256 bytes and one merge.
func tiny() string {
	var vocab []string
	for b := range 256 {
		vocab = append(vocab, fmt.Sprintf("%q: %d", string(byteRune(byte(b))), b))
	}
	vocab[0x22] = `"\"": 34`
	vocab[0x5c] = `"\\": 92`
	vocab = append(vocab, `"ab": 256`)
	return `{"version": "1.0", "truncation": null, "padding": null,
 "added_tokens": [{"id": 257, "content": "<x>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
 "normalizer": {"type": "NFC"},
 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "` + strings.ReplaceAll(QwenPattern, `\`, `\\`) + `"}, "behavior": "Isolated", "invert": false},
  {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]},
 "post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
 "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
  "vocab": {` + strings.Join(vocab, ", ") + `}, "merges": ["a b"]}}`
}

func TestTinyLoads(t *testing.T) {
	tok, err := Parse([]byte(tiny()))
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(tok.AppendEncode(nil, "abba<x>", true)); got != "[256 98 97 257]" {
		t.Errorf("got %s", got)
	}
	if tok.VocabSize() != 258 {
		t.Errorf("%d ids", tok.VocabSize())
	}
}

func TestWhatIsNotImplementedIsRefusedByName(t *testing.T) {
	for _, c := range []struct{ claim, old, by, want string }{
		{"another version", `"version": "1.0"`, `"version": "2.0"`, "version 2.0"},
		{"an unknown member", `"version": "1.0"`, `"version": "1.0", "novelty": 1`, "novelty"},
		{"truncation", `"truncation": null`, `"truncation": {"max_length": 5}`, "truncation"},
		{"padding", `"padding": null`, `"padding": {}`, "padding"},
		{"another model", `"BPE"`, `"Unigram"`, "model type Unigram"},
		{"dropout", `"dropout": null`, `"dropout": 0.1`, "dropout 0.1"},
		{"an unknown token", `"unk_token": null`, `"unk_token": "<unk>"`, "unk_token <unk>"},
		{"a subword prefix", `"continuing_subword_prefix": ""`, `"continuing_subword_prefix": "##"`, "continuing_subword_prefix"},
		{"a word suffix", `"end_of_word_suffix": ""`, `"end_of_word_suffix": "</w>"`, "end_of_word_suffix"},
		{"fusing unknowns", `"fuse_unk": false`, `"fuse_unk": true`, "fuse_unk"},
		{"byte fallback in a byte-level file", `"byte_fallback": false`, `"byte_fallback": true`, "normalizer with byte_fallback NFC"},
		{"another normalizer", `"NFC"`, `"NFKC"`, "normalizer NFKC"},
		{"another expression", `\\p{N}|`, `\\p{N}{1,2}|`, `\p{N}{1,2}`},
		{"another behaviour", `"Isolated"`, `"Removed"`, "Split behavior Removed"},
		{"an inverted split", `"invert": false`, `"invert": true`, "invert true"},
		{"a literal pattern", `"pattern": {"Regex"`, `"pattern": {"String"`, "Split pattern"},
		{"a prefix space", `"ByteLevel", "add_prefix_space": false`, `"ByteLevel", "add_prefix_space": true`, "add_prefix_space"},
		{"byte level's own expression", `"trim_offsets": false, "use_regex": false`, `"trim_offsets": false, "use_regex": true`, "use_regex"},
		{"a post-processor", `"post_processor": null`, `"post_processor": {"type": "RobertaProcessing"}`, "post_processor RobertaProcessing"},
		{"another decoder", `"decoder": {"type": "ByteLevel"`, `"decoder": {"type": "Fuse"`, "decoder Fuse"},
		{"a token of white space that takes white space", `"<x>", "single_word": false, "lstrip": false, "rstrip": false`, `" x", "single_word": false, "lstrip": false, "rstrip": true`, "rstrip"},
		{"an empty added token", `"<x>"`, `""`, "empty content"},
		{"a template for two texts", `"post_processor": null`, `"post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B", "type_id": 0}}]}`, "TemplateProcessing"},
		{"a template with an id that there is not", `"post_processor": null`, `"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<x>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<x>": {"id": "<x>", "ids": [9999], "tokens": ["<x>"]}}}`, "9999"},
		{"an added token out of turn", `"id": 257`, `"id": 300`, "257 is its turn"},
		{"a missing byte", `"!": 33, `, ``, "no token for byte 0x21"},
		{"an id used twice", `"ab": 256`, `"ab": 33`, "two tokens have the id 33"},
		{"a merge of unknown tokens", `"a b"`, `"a q", "q xy"`, "not in the vocabulary"},
		{"a merge twice", `["a b"]`, `["a b", ["a", "b"]]`, "repetition"},
		{"a merge of three", `"a b"`, `"a b c"`, "not two tokens"},
		{"an enormous id", `"ab": 256`, `"ab": 99999999`, "too high"},
		{"text after the end", `["a b"]}}`, `["a b"]}} x`, "read tokenizer.json"},
	} {
		in := strings.Replace(tiny(), c.old, c.by, 1)
		if in == tiny() {
			t.Fatalf("%s: nothing was replaced", c.claim)
		}
		if _, err := Parse([]byte(in)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.claim, err, c.want)
		}
	}
}

func TestIgnoreMergesTakesWholeWordsFromTheVocabulary(t *testing.T) {
	in := strings.Replace(tiny(), `"ab": 256`, `"ab": 256, "bab": 257`, 1)
	in = strings.Replace(in, `"id": 257`, `"id": 258`, 1)
	for _, c := range []struct{ flag, want string }{{"false", "[98 256]"}, {"true", "[257]"}} {
		tok, err := Parse([]byte(strings.Replace(in, `"ignore_merges": false`, `"ignore_merges": `+c.flag, 1)))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(tok.AppendEncode(nil, "bab", true)); got != c.want {
			t.Errorf("ignore_merges %s: %s, want %s", c.flag, got, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(tiny()))
	if data, err := os.ReadFile(filepath.Join("..", "models", "small", "tokenizer_config.json")); err == nil {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := Parse(data)
		if err != nil {
			return
		}
		if got := tok.Decode(tok.AppendEncode(nil, "any text <x> at all", false)); got != "any text <x> at all" {
			t.Fatalf("a file loads that loses text: %q", got)
		}
	})
}
