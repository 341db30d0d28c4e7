package policy

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The words stand beside the code that they explain; this holds them together.
func TestEveryClampHasWords(t *testing.T) {
	source, err := os.ReadFile("clamp.go")
	if err != nil {
		t.Fatal(err)
	}
	codes := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?:return|append\(clamps,) "([a-z_:]+)"`).FindAllStringSubmatch(string(source), -1) {
		if m[1] != "pool:" {
			codes[m[1]] = true
		}
	}
	if len(codes) < 10 {
		t.Fatalf("found %v only", codes)
	}
	if got, want := slices.Sorted(maps.Keys(clampWords)), slices.Sorted(maps.Keys(codes)); !slices.Equal(got, want) {
		t.Errorf("words for %v\nclamps %v", got, want)
	}
	if got := ClampText("pool:a:b:residency"); got != "pool a:b is left out: "+clampWords["residency"] {
		t.Error(got)
	}
}

func TestTheRulesThatShipSayWhatTheyAreFor(t *testing.T) {
	rules := demoSnapshot(t).Rules()
	if len(rules) < 3 || !strings.HasPrefix(rules["allow.content"], "A request with content") {
		t.Errorf("rules %q", rules)
	}
}

func TestAnInputIsReadStrictly(t *testing.T) {
	for text, want := range map[string]string{
		`{"v":1}`:              "",
		`{"v":2}`:              "version 2",
		`{}`:                   "version 0",
		`{"v":1,"time":3}`:     `unknown field "time"`,
		`{"v":1} {"v":1}`:      "something follows",
		`{"v":1,"exemptions"`:  "unexpected EOF",
		`{"v":1,"request":[]}`: "cannot unmarshal",
		``:                     "EOF",
	} {
		_, err := ParseInput([]byte(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
