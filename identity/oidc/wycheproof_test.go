package oidc

import (
	"encoding/json"
	"io/fs"
	"maps"
	"testing"

	"github.com/c2sp/wycheproof"

	"github.com/sallyport-ai/sallyport/identity/jws"
)

// A set is good if every key of it is taken: what it holds of bad ones is left
// out, with the reason, and no token of theirs counts. Every vector is accounted
// for.
func TestWycheproofKeySets(t *testing.T) {
	raw, err := fs.ReadFile(wycheproof.TestVectors, "json_web_key_test.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		NumberOfTests int
		TestGroups    []struct {
			Comment string
			Public  json.RawMessage
			Private json.RawMessage
			Tests   []struct {
				TcID            int
				Comment, Result string
			}
		}
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	judged := 0
	refused := map[string]int{}
	for _, group := range v.TestGroups {
		set := group.Public
		if len(set) == 0 || string(set) == "null" {
			set = group.Private // of secrets alone: what an issuer must not publish
		}
		keys, skipped, err := parseKeys(set, jws.Algorithms)
		whole := err == nil && len(skipped) == 0 && len(keys) > 0
		for _, c := range group.Tests {
			judged++
			switch {
			case c.Result == "invalid" && whole:
				t.Errorf("%d (%s, %s): taken", c.TcID, group.Comment, c.Comment)
			case c.Result == "valid" && !whole:
				refused[group.Comment]++
			}
		}
	}
	if judged != v.NumberOfTests || judged < 26 {
		t.Errorf("judged %d of %d", judged, v.NumberOfTests)
	}
	// Sets of shared secrets.
	if want := map[string]int{"jws_keyset": 1, "HS256": 1, "HS384": 1, "HS512": 1}; !maps.Equal(refused, want) {
		t.Errorf("refused though valid: %v, want %v", refused, want)
	}
}
