package tokenizer

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// small is the model that ships.
func small(t testing.TB) *Tokenizer {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "models", "small", "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestWordsAreThoseOfTheExpression(t *testing.T) {
	for _, c := range []struct {
		claim, in string
		want      []string
	}{
		{"a space belongs to the word after it", "a b  c", []string{"a", " b", " ", " c"}},
		{"any one character but a line end may lead letters", "\tx$y\u00a0z", []string{"\tx", "$y", "\u00a0z"}},
		{"a line end does not", "\nx", []string{"\n", "x"}},
		{"each digit stands alone", "a12", []string{"a", "1", "2"}},
		{"a digit has no space", " 1", []string{" ", "1"}},
		{"other numbers are digits too", "½Ⅻ٣", []string{"½", "Ⅻ", "٣"}},
		{"contractions end words, in either case", "I'm we'LL x'sy", []string{"I", "'m", " we", "'LL", " x", "'s", "y"}},
		{"the long s folds to s", "it'ſ", []string{"it", "'ſ"}},
		{"other apostrophes lead letters", "o'clock 'x", []string{"o", "'clock", " '", "x"}},
		{"symbols take one space before and line ends after", "a ?!\r\n\nb", []string{"a", " ?!\r\n\n", "b"}},
		{"marks are symbols, or lead letters", "e\u0301\u0301a", []string{"e", "\u0301\u0301", "a"}},
		{"white space up to the last line end is one word", " \n \t\n  x", []string{" \n \t\n", " ", " x"}},
		{"white space at the end is one word", "x   ", []string{"x", "   "}},
		{"white space leaves its last character to a word", "x   y", []string{"x", "  ", " y"}},
		{"also to a digit, by itself", "x   1", []string{"x", "  ", " ", "1"}},
		{"bytes that are not UTF-8 are symbols", "a\xff\xfeb", []string{"a", "\xff\xfe", "b"}},
		{"letters of Unicode 16 are letters", "\U00013460x", []string{"\U00013460x"}},
	} {
		if got := slices.Collect(Words(c.in, QwenPattern)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q gives %q, want %q", c.claim, c.in, got, c.want)
		}
	}
}

func FuzzWordsCoverTheText(f *testing.F) {
	f.Add("it's 12\r\n  x \u2028y'LL\xff")
	f.Fuzz(func(t *testing.T, s string) {
		for patterns := range scanners {
			var b strings.Builder
			for w := range Words(s, strings.Split(patterns, "\x00")...) {
				if w == "" {
					t.Fatal("an empty word")
				}
				b.WriteString(w)
			}
			if b.String() != s {
				t.Fatalf("%q: %q came back as %q", patterns, s, b.String())
			}
		}
	})
}

func FuzzDecodeUndoesEncode(f *testing.F) {
	for _, s := range []string{"", "Hello, world", "e\u0301\u0323 \u1100\u1161\u11a8 \u212b", "<|im_start|>user\n", "a\x00\u2028\ufeff", strings.Repeat("ab", 100), "\xff\xfe"} {
		f.Add(s)
	}
	tok := small(f)
	f.Fuzz(func(t *testing.T, s string) {
		want := s
		if utf8.ValidString(s) {
			want = reference(s)
		}
		for _, special := range []bool{true, false} {
			if got := tok.Decode(tok.AppendEncode(nil, s, special)); utf8.ValidString(s) && got != want {
				t.Fatalf("special=%v: %q came back as %q, want %q", special, s, got, want)
			}
		}
	})
}

// reference is NFC of what is between added tokens, by x/text where its tables
// and limits do not differ, else by nfc itself.
func reference(s string) string {
	for _, r := range s {
		if in(inert, r) {
			return nfcAround(s, nfc)
		}
	}
	if strings.ContainsRune(norm.NFC.String(s), 0x34f) {
		return nfcAround(s, nfc) // x/text may have cut a run of marks
	}
	return nfcAround(s, norm.NFC.String)
}

func nfcAround(s string, nfc func(string) string) string {
	for _, added := range []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"} {
		if before, after, ok := strings.Cut(s, added); ok {
			return nfcAround(before, nfc) + added + nfcAround(after, nfc)
		}
	}
	return nfc(s)
}

// FuzzAnAddedTokenCutsTheText holds what makes it sound to cache segments.
func FuzzAnAddedTokenCutsTheText(f *testing.F) {
	f.Add("Hello ", " world's", true)
	f.Add("e", "\u0301", false)
	tok := small(f)
	f.Fuzz(func(t *testing.T, a, b string, end bool) {
		mark := "<|im_end|>"
		if !end {
			mark = "<tool_call>"
		}
		if strings.ContainsAny(a+b, "<>") {
			t.Skip("may be part of another token")
		}
		id, _ := tok.Added(mark)
		want := append(append(tok.AppendEncode(nil, a, true), id), tok.AppendEncode(nil, b, true)...)
		if got := tok.AppendEncode(nil, a+mark+b, true); !slices.Equal(got, want) {
			t.Fatalf("%q: %v, want %v", a+mark+b, got, want)
		}
	})
}

func TestSpecialTokensInText(t *testing.T) {
	tok := small(t)
	start, _ := tok.Added("<|im_start|>")
	call, _ := tok.Added("<tool_call>")
	text := "<<|im_start|><|im_start<tool_call>"
	with, without := tok.AppendEncode(nil, text, true), tok.AppendEncode(nil, text, false)
	if !slices.Contains(with, start) || !slices.Contains(with, call) {
		t.Errorf("asked for, %v lacks a special or an added token", with)
	}
	if slices.Contains(without, start) {
		t.Error("not asked for, a special token is found")
	}
	if !slices.Contains(without, call) {
		t.Error("an added token that is not special must be found either way")
	}
}

func TestLongestAddedTokenWins(t *testing.T) {
	var a added
	for i, s := range []string{"<a", "<ab>", "<abc", "b"} {
		a.add(s, i)
	}
	for _, c := range []struct {
		text              string
		token, start, end int
	}{
		{"x<abd", 0, 1, 3},
		{"x<ab>", 1, 1, 5},
		{"x<abc>", 2, 1, 5},
		{"xb<a", 3, 1, 2},
		{"x<", -1, 2, 2},
		{"", -1, 0, 0},
	} {
		if token, start, end := a.find(c.text, 0); token != c.token || start != c.start || end != c.end {
			t.Errorf("%q: token %d at %d..%d, want %d at %d..%d", c.text, token, start, end, c.token, c.start, c.end)
		}
	}
}

func TestHeapAndScanMergeAlike(t *testing.T) {
	tok := small(t)
	r := rand.New(rand.NewPCG(1, 9))
	for range 3000 {
		b := make([]byte, 1+r.IntN(shortWord))
		for i := range b {
			b[i] = "aeinorst \n-ab"[r.IntN(13)]
		}
		w := string(b)
		if r.IntN(4) == 0 {
			w = strings.Repeat(w[:1], len(w))
		}
		if scan, heap := tok.appendWord(nil, w), tok.appendLongWord(nil, w); !slices.Equal(scan, heap) {
			t.Fatalf("%q: %v by scan, %v by heap", w, scan, heap)
		}
	}
}

func TestNormalizationDiffersFromTextOnlyWhereTheLibraryDoes(t *testing.T) {
	for _, c := range []struct{ claim, in, want string }{
		{"a composition", "e\u0301", "é"},
		{"marks are put in order", "q\u0307\u0323", "q\u0323\u0307"},
		{"singletons are replaced", "\u212b\u2126", "ÅΩ"},
		{"Hangul syllables are composed", "\u1100\u1161\u11a8", "각"},
		{"excluded compositions stay apart", "\u0958", "\u0915\u093c"},
		{"a mark newer than the library's tables cuts", "e\u08d3\u0301", "e\u08d3\u0301"},
		{"a newer composition is not made", "\U00011935\U00011930", "\U00011935\U00011930"},
		{"a run of marks has no limit", "a" + strings.Repeat("\u0300\u0323", 40), "ạ" + strings.Repeat("\u0323", 39) + strings.Repeat("\u0300", 40)},
		{"bytes that are not UTF-8 stay", "e\u0301\xffe\u0301", "é\xffé"},
	} {
		if got := nfc(c.in); got != c.want {
			t.Errorf("%s: %+q gives %+q, want %+q", c.claim, c.in, got, c.want)
		}
	}
	r := rand.New(rand.NewPCG(4, 4))
	for range 20000 {
		var b strings.Builder
		for range 1 + r.IntN(12) {
			c := rune(r.IntN(0x3400))
			if in(inert, c) || c == 0x34f {
				continue
			}
			b.WriteRune(c)
		}
		if s := b.String(); nfc(s) != norm.NFC.String(s) {
			t.Fatalf("%+q gives %+q, want %+q", s, nfc(s), norm.NFC.String(s))
		}
	}
}

func TestByteLevelSpellingIsABijection(t *testing.T) {
	seen := map[rune]bool{}
	for b := range 256 {
		r := byteRune(byte(b))
		back, ok := runeByte(r)
		if seen[r] || !ok || back != byte(b) {
			t.Errorf("byte %#x is spelled %q, which reads %#x, %v", b, r, back, ok)
		}
		seen[r] = true
	}
	if byteRune(' ') != 'Ġ' || byteRune('\n') != 'Ċ' {
		t.Error("space and line end are not spelled as in GPT-2")
	}
}

func TestEncodingStops(t *testing.T) {
	tok := small(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tok.AppendEncodeContext(ctx, nil, strings.Repeat("word ", 10_000), true); !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled context: %v", err)
	}
	if _, err := tok.AppendEncodeContext(t.Context(), nil, strings.Repeat("a", MaxWord+1), true); !errors.Is(err, ErrWordTooLong) {
		t.Errorf("with an endless word: %v", err)
	}
}

func TestManyGoroutinesShareATokenizer(t *testing.T) {
	tok := small(t)
	texts := make([]string, 200)
	want := make([][]uint32, len(texts))
	r := rand.New(rand.NewPCG(2, 3))
	for i := range texts {
		texts[i] = prose(r, 60)
		want[i] = tok.AppendEncode(nil, texts[i], true)
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range texts {
				j := (i*7 + g*31) % len(texts)
				if got := tok.AppendEncode(nil, texts[j], true); !slices.Equal(got, want[j]) {
					t.Errorf("%q: %v, want %v", texts[j], got, want[j])
				}
			}
		})
	}
	wg.Wait()
}

// prose is n words, some of them made up.
func prose(r *rand.Rand, n int) string {
	known := strings.Fields("the account of customer was blocked because payment patient hospital would however immediately confirmation ministry responsible 2026 limit, (see) it's")
	var b strings.Builder
	for range n {
		if r.IntN(5) > 0 {
			b.WriteString(known[r.IntN(len(known))])
		} else {
			for range 2 + r.IntN(8) {
				b.WriteByte(byte('a' + r.IntN(26)))
			}
		}
		b.WriteByte(" \n    "[r.IntN(6)])
	}
	return b.String()
}

func TestWordsAreKnownByAllTheirBytes(t *testing.T) {
	seen := map[[2]uint64]string{}
	var words []string
	for n := 1; n <= frontText; n++ {
		for _, fill := range []string{"a", "b", "\x00", "\xff"} {
			words = append(words, strings.Repeat(fill, n))
			for i := range n {
				words = append(words, strings.Repeat(fill, i)+"z"+strings.Repeat(fill, n-i-1))
			}
		}
	}
	for _, w := range words {
		lo, hi := pack(w)
		if old, ok := seen[[2]uint64{lo, hi}]; ok && old != w {
			t.Errorf("%q and %q are one", old, w)
		}
		if hi == 0 {
			t.Errorf("%q is the empty entry", w)
		}
		seen[[2]uint64{lo, hi}] = w
	}
}

func TestNoMoreFrontsAreMadeThanAreUsedAtOnce(t *testing.T) {
	p := &fronts{}
	var taken []*front
	for range 20 {
		if f := p.take(); f != nil {
			taken = append(taken, f)
		}
	}
	if len(taken) > len(p.idle) || len(taken) > runtime.GOMAXPROCS(0) || len(taken) == 0 {
		t.Errorf("%d fronts", len(taken))
	}
	for _, f := range taken {
		p.give(f)
	}
	p.give(nil)
	if f := p.take(); !slices.Contains(taken, f) {
		t.Error("one was made although one was idle")
	}
}
