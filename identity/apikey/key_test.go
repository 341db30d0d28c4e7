package apikey_test

import (
	"hash/crc32"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sallyport-ai/sallyport/identity/apikey"
)

const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// checksum is what the package comment says it is, written another way.
func checksum(body string) string {
	sum, out := uint64(crc32.ChecksumIEEE([]byte(body))), ""
	for range 6 {
		out = string(digits[sum%62]) + out
		sum /= 62
	}
	return out
}

// next is another digit.
func next(digit string) string { return string(digits[(strings.Index(digits, digit)+1)%62]) }

// documented is the pattern that secret scanners are told to look for.
var documented = regexp.MustCompile(`\bsp_[0-9A-Za-z]{11}_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}\b`)

func TestKeysLookAsDocumentedAndDiffer(t *testing.T) {
	seen, drawn := make(map[string]bool), make(map[rune]int)
	for range 2000 {
		key := apikey.NewKey()
		text := key.Secret()
		if parsed, err := apikey.ParseKey(text); err != nil || parsed != key {
			t.Fatalf("%s: %v", text, err)
		}
		if documented.FindString(`key = "`+text+`"`) != text || checksum(text[:58]) != text[59:] {
			t.Fatalf("%s is not as documented", text)
		}
		if seen[text] || seen[key.ID()] {
			t.Fatalf("%s again", text)
		}
		seen[text], seen[key.ID()] = true, true
		for _, c := range text[15:58] {
			drawn[c]++
		}
	}
	for _, c := range digits { // 86,000 draws: 1,387 each, and six deviations are 222
		if n := drawn[c]; n < 1165 || n > 1609 {
			t.Errorf("%c was drawn %d times", c, n)
		}
	}
	if (apikey.Key{}).ID() != "" {
		t.Error("the zero key has an ID")
	}
}

// One wrong digit, two swapped, one lost or one added: never a key again.
func TestAMistypedKeyIsNone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := apikey.NewKey().Secret()
		i := rapid.IntRange(0, len(text)-2).Draw(t, "at")
		wrong := text
		switch rapid.IntRange(0, 3).Draw(t, "how") {
		case 0:
			wrong = text[:i] + rapid.StringMatching(`[0-9A-Za-z_-]`).Draw(t, "digit") + text[i+1:]
		case 1:
			wrong = text[:i] + text[i+1:i+2] + text[i:i+1] + text[i+2:]
		case 2:
			wrong = text[:i] + text[i+1:]
		case 3:
			wrong = text[:i] + rapid.StringMatching(`[0-9A-Za-z_]`).Draw(t, "digit") + text[i:]
		}
		if wrong == text {
			t.Skip("no mistake")
		}
		if _, err := apikey.ParseKey(wrong); err == nil {
			t.Fatalf("%s, which was %s, is taken", wrong, text)
		}
	})
}

// What is parsed is a key with one text, in the documented form.
func FuzzParseKey(f *testing.F) {
	f.Add(apikey.NewKey().Secret())
	f.Add("sp_")
	f.Add("sp_00000000000_" + strings.Repeat("0", 43) + "_000000")
	f.Add("sp_00000000000_" + strings.Repeat("0", 43) + "_" + checksum("sp_00000000000_"+strings.Repeat("0", 43)))
	f.Fuzz(func(t *testing.T, text string) {
		key, err := apikey.ParseKey(text)
		if err != nil {
			if key != (apikey.Key{}) {
				t.Fatal("a key came with an error")
			}
			return
		}
		if key.Secret() != text || documented.FindString(text) != text || checksum(text[:58]) != text[59:] || text[3:14] != key.ID() {
			t.Fatalf("%q was taken", text)
		}
	})
}
