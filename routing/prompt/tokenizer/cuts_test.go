package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// withAdded is the tiny file with more added tokens, each a special one.
func withAdded(t *testing.T, flag string, contents ...string) *Tokenizer {
	t.Helper()
	var list []string
	for i, c := range append([]string{"<x>"}, contents...) {
		list = append(list, fmt.Sprintf(`{"id": %d, "content": %q, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}`, 257+i, c))
	}
	in := tiny()
	at, end := strings.Index(in, `"added_tokens": [`), strings.Index(in, `"normalizer"`)
	in = in[:at] + `"added_tokens": [` + strings.Join(list, ", ") + "],\n" + in[end:]
	if flag != "" {
		in = strings.Replace(in, `"`+flag+`": false`, `"`+flag+`": true`, 1)
	}
	tok, err := Parse([]byte(in))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestTextIsCutWhereNothingReachesOver(t *testing.T) {
	for _, c := range []struct {
		claim string
		tok   *Tokenizer
		text  string
		want  []int
	}{
		{"before each special token, but at 0", withAdded(t, ""), "<x>ab<x><x>c", []int{5, 8}},
		{"not where another token reaches into it", withAdded(t, "", "b<"), "ab<x>c<x>", []int{1}},
		{"nor where it reaches into itself", withAdded(t, "", "z<yz"), "az<yz<yz", nil},
		{"a longer one that begins there does no harm", withAdded(t, "", "<x>>"), "a<x>>b", []int{1}},
		{"nowhere if a token takes white space", withAdded(t, "lstrip"), "a <x>", nil},
	} {
		var got []int
		for at := 0; ; {
			if at = c.tok.Cut(c.text, at+1); at == len(c.text) {
				break
			}
			got = append(got, at)
			if !c.tok.CanCut(c.text, at) {
				t.Errorf("%s: cannot cut %q at %d after all", c.claim, c.text, at)
			}
			parts := append(c.tok.AppendEncode(nil, c.text[:at], true), c.tok.AppendEncode(nil, c.text[at:], true)...)
			if whole := c.tok.AppendEncode(nil, c.text, true); !slices.Equal(parts, whole) {
				t.Errorf("%s: %q cut at %d gives %v, whole %v", c.claim, c.text, at, parts, whole)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q is cut at %v, want %v", c.claim, c.text, got, c.want)
		}
	}
}
