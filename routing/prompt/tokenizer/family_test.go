package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestFamiliesCutWordsInTheirWay(t *testing.T) {
	llama, o200k, nemo := []string{LlamaPattern}, []string{O200kPattern}, []string{NemoPattern}
	for _, c := range []struct {
		claim    string
		patterns []string
		in       string
		want     []string
	}{
		{"Llama takes digits by three", llama, "a12345 6", []string{"a", "123", "45", " ", "6"}},
		{"o200k parts words before upper case", o200k, "camelCaseName ABCdef", []string{"camel", "Case", "Name", " ABCdef"}},
		{"and not between two upper cases", o200k, "HTTPServer", []string{"HTTPServer"}},
		{"contractions stay with their word", o200k, "don't DON'T", []string{"don't", " DON'T"}},
		{"marks are part of words", o200k, "e\u0301a A\u0301B", []string{"e\u0301a", " A\u0301", "B"}},
		{"a mark before upper case is given back", o200k, "\u0301AB", []string{"\u0301", "AB"}},
		{"slashes follow symbols", o200k, "a.\n//b", []string{"a", ".\n//", "b"}},
		{"Nemo has no contractions", nemo, "don't", []string{"don", "'t"}},
		{"and single digits", nemo, "a12", []string{"a", "1", "2"}},
		{"DeepSeek takes digits by three", DeepSeekPatterns, "1234", []string{"123", "4"}},
		{"Chinese and kana are words apart from letters", DeepSeekPatterns, "ab中文カナcd", []string{"ab", "中文カナ", "cd"}},
		{"a symbol leads Latin letters only", DeepSeekPatterns, "_abé -ж", []string{"_ab", "é", " -", "ж"}},
		{"white space before a digit is at an end", DeepSeekPatterns, "a   1", []string{"a", "   ", "1"}},
		{"but not before a letter", DeepSeekPatterns, "a   b", []string{"a", "  ", " b"}},
		{"what nothing matches is a word", DeepSeekPatterns, "\x00\x01\x02a\x00", []string{"\x00\x01", "\x02a", "\x00"}},
		{"symbols inside kana are apart", DeepSeekPatterns, "ア・イ", []string{"ア", "・", "イ"}},
	} {
		if got := slices.Collect(Words(c.in, c.patterns...)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q gives %q, want %q", c.claim, c.in, got, c.want)
		}
	}
}

// tinyPieces is the smallest file as Gemma's are: the tokens of the bytes, some
// characters and two merges.
func tinyPieces() string {
	vocab := []string{`"<bos>": 256`, `"▁": 257`, `"a": 258`, `"b": 259`, `"▁a": 260`, `"▁ab": 261`, `"é": 262`, `"a b": 263`}
	for b := range 256 {
		vocab = append(vocab, fmt.Sprintf(`"<0x%02X>": %d`, b, b))
	}
	return `{"version": "1.0", "truncation": null, "padding": null,
 "added_tokens": [{"id": 256, "content": "<bos>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
 "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
 "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false},
 "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
  "special_tokens": {"<bos>": {"id": "<bos>", "ids": [256], "tokens": ["<bos>"]}}},
 "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]},
 "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
  "vocab": {` + strings.Join(vocab, ", ") + `}, "merges": [["▁", "a"], ["▁a", "b"]]}}`
}

func TestPieces(t *testing.T) {
	tok, err := Parse([]byte(tinyPieces()))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ claim, in, want string }{
		{"a space merges as U+2581 does", " ab▁ab", "[261 261]"},
		{"two spaces are two tokens where no merge has them", "  ab", "[257 261]"},
		{"a character in the vocabulary is itself", "é", "[262]"},
		{"any other is its bytes", "ж\x00", "[208 182 0]"},
		{"bytes that are not UTF-8 are bytes", "\xff\xfe", "[255 254]"},
		{"a byte token spelled out is text", "<0x41>", "[60 48 120 52 49 62]"},
		{"a token with a space is out of reach", "a b", "[258 257 259]"},
		{"added tokens are found", "a<bos>b", "[258 256 259]"},
	} {
		ids := tok.AppendEncode(nil, c.in, true)
		if got := fmt.Sprint(ids); got != c.want {
			t.Errorf("%s: %q gives %s, want %s", c.claim, c.in, got, c.want)
		}
		if got, want := tok.Decode(ids), strings.ReplaceAll(c.in, "▁", " "); got != want {
			t.Errorf("%s: %q decodes to %q", c.claim, c.in, got)
		}
	}
	prefix, suffix := tok.Around()
	if !slices.Equal(prefix, []uint32{256}) || len(suffix) != 0 {
		t.Errorf("around a text go %v and %v", prefix, suffix)
	}
}

func TestWhatIsNotImplementedInPiecesIsRefused(t *testing.T) {
	for _, c := range []struct{ claim, old, by, want string }{
		{"another normalizer", `"type": "Replace", "pattern": {"String": " "}`, `"type": "Replace", "pattern": {"String": "x"}`, "normalizer"},
		{"another pre-tokenizer", `"Split"`, `"Whitespace"`, "pre_tokenizer"},
		{"another decoder", `{"type": "Fuse"}`, `{"type": "Fuse"}, {"type": "Fuse"}`, "decoder"},
		{"whole words", `"ignore_merges": false`, `"ignore_merges": true`, "ignore_merges"},
		{"a missing byte", `"<0x41>": 65`, `"c": 65`, "no token for byte 0x41"},
		{"a merge of bytes", `["▁", "a"]`, `["<0x41>", "<0x42>"]`, "not in the vocabulary"},
		{"a merge that spells a byte", `"é": 262`, `"<0x4": 262, "1>": 264`, "spelling of a byte"},
	} {
		in := strings.Replace(tinyPieces(), c.old, c.by, 1)
		if c.want == "spelling of a byte" {
			in = strings.Replace(in, `["▁", "a"]`, `["<0x4", "1>"]`, 1)
		}
		if _, err := Parse([]byte(in)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.claim, err, c.want)
		}
	}
}

func TestAddedTokensTakeWhatTheirFlagsSay(t *testing.T) {
	for _, c := range []struct{ claim, flag, in, want string }{
		{"nothing without flags", ``, "a <x> b", "[97 32 257 32 98]"},
		{"the white space before", `lstrip`, "a \u00a0<x> b", "[97 257 32 98]"},
		{"the white space after", `rstrip`, "a <x>\n b", "[97 32 257 98]"},
		{"not what a token before took", `lstrip`, "<x> <x>", "[257 257]"},
		{"alone between words", `single_word`, "a<x> <x>_ <x>", "[97 60 120 62 32 60 120 62 95 32 257]"},
	} {
		in := strings.Replace(tiny(), `"NFC"`, `"Sequence", "normalizers": []`, 1)
		in = strings.Replace(in, `"`+c.flag+`": false`, `"`+c.flag+`": true`, 1)
		tok, err := Parse([]byte(in))
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(tok.AppendEncode(nil, c.in, true))
		if got != c.want {
			t.Errorf("%s: %q gives %s, want %s", c.claim, c.in, got, c.want)
		}
	}
}

func FuzzPiecesDecodeWhatTheyEncode(f *testing.F) {
	for _, s := range []string{"", " ab a b", "▁a ▁", "ж\x00<0x41>", "<bos> é", "\xff\xfe ab"} {
		f.Add(s)
	}
	tok, err := Parse([]byte(tinyPieces()))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got, want := tok.Decode(tok.AppendEncode(nil, s, true)), strings.ReplaceAll(s, "▁", " "); got != want {
			t.Fatalf("%q came back as %q, want %q", s, got, want)
		}
	})
}

// FuzzSeamsDoNotMatter merges a text whole and in words.
func FuzzSeamsDoNotMatter(f *testing.F) {
	for _, s := range []string{" ab ab", "aab  b a", "é ab▁", strings.Repeat(" ab", 40)} {
		f.Add(s)
	}
	tok, err := Parse([]byte(tinyPieces()))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.Contains(s, "<bos>") || s == "" {
			t.Skip("it is cut at an added token")
		}
		if got, want := tok.AppendEncode(nil, s, true), tok.appendWord(nil, fromMetaspace(s)); !slices.Equal(got, want) {
			t.Fatalf("%q in words gives %v, whole %v", s, got, want)
		}
	})
}
