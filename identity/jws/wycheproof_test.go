package jws

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"strings"
	"testing"

	"github.com/c2sp/wycheproof"
	"github.com/go-json-experiment/json/jsontext"
)

// vectors are a file of Project Wycheproof.
type vectors struct {
	NumberOfTests int
	TestGroups    []struct {
		Comment string
		Public  json.RawMessage
		Tests   []struct {
			TcID    int
			Comment string
			JWS     json.RawMessage
			Result  string
		}
	}
}

func readVectors(t *testing.T, name string) (v vectors) {
	t.Helper()
	raw, err := fs.ReadFile(wycheproof.TestVectors, name)
	if err == nil {
		err = json.Unmarshal(raw, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// judge verifies a vector as tokens are: but for their claims, which it has not.
func judge(key, token json.RawMessage) error {
	if string(key) == "null" || len(key) == 0 {
		return errors.New("a shared secret")
	}
	var text string
	if json.Unmarshal(token, &text) != nil {
		return errors.New("not compact")
	}
	t, _, body, err := open(text, func(_ *Header, names map[string]jsontext.Value) error {
		if _, ok := names[jwkParameter]; ok {
			return notAccepted(jwkParameter)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if _, err := unbase64(body); err != nil {
		return err
	}
	members, err := membersOf(key, 0)
	if err != nil {
		return err
	}
	var j JWK
	if err := decode(key, members, jwkNames, &j); err != nil {
		return err
	}
	public, err := j.PublicKey()
	if err != nil {
		return err
	}
	if j.Algorithm != "" && j.Algorithm != t.Header.Algorithm {
		return errors.New("a key for another algorithm")
	}
	return t.Verify(public)
}

// Every vector is accounted for: what is invalid is refused, and what is valid
// and refused all the same is counted by the reason.
func TestWycheproofSignatures(t *testing.T) {
	v := readVectors(t, "json_web_signature_test.json")
	judged := 0
	refused := map[string]int{}
	for _, group := range v.TestGroups {
		for _, c := range group.Tests {
			judged++
			err := judge(group.Public, c.JWS)
			switch {
			case c.Result != "valid" && c.Result != "invalid":
				t.Errorf("%d: a result that this test does not know: %q", c.TcID, c.Result)
			case c.Result == "invalid" && err == nil:
				t.Errorf("%d (%s, %s): accepted", c.TcID, group.Comment, c.Comment)
			case c.Result == "valid" && err != nil:
				refused[err.Error()]++
				t.Logf("%d (%s, %s): %v", c.TcID, group.Comment, c.Comment, err)
			}
		}
	}
	if judged != v.NumberOfTests || judged < 400 {
		t.Errorf("judged %d of %d", judged, v.NumberOfTests)
	}
	want := map[string]int{
		"a shared secret":             10, // HS256, which no issuer here has
		"a key for another algorithm": 4,  // ES521, which there is not, and tokens of a key's other algorithm
	}
	if !maps.Equal(refused, want) {
		t.Errorf("refused though valid: %v, want %v", refused, want)
	}
}

// The vectors hold one key of the broken generator, which nothing else is wrong
// with.
func TestAKeyOfTheBrokenGeneratorIsNone(t *testing.T) {
	v := readVectors(t, "json_web_key_test.json")
	found := 0
	for _, group := range v.TestGroups {
		if group.Comment != "jws_rsa_roca_key" {
			continue
		}
		var set struct{ Keys []JWK }
		if err := json.Unmarshal(group.Public, &set); err != nil || len(set.Keys) != 1 {
			t.Fatal(err, len(set.Keys))
		}
		found++
		if key, err := set.Keys[0].PublicKey(); err == nil || !strings.Contains(err.Error(), "ROCA") {
			t.Errorf("%v, %v", key, err)
		}
	}
	if found == 0 {
		t.Error("the vectors hold no such key any more")
	}
	for p, powers := range map[int64]string{3: "12", 5: "1234", 7: "124563", 11: "1 10"} { // of 65537, which is 2, 2, 3 and 10 there
		for r := range p {
			want := strings.Contains(powers, fmt.Sprint(r)) && r != 0 && (p != 11 || r == 1 || r == 10)
			if got := isPower(r, p); got != want {
				t.Errorf("%d modulo %d: %v", r, p, got)
			}
		}
	}
}

func TestAnExponentMayTakeFourBytes(t *testing.T) {
	v := readVectors(t, "json_web_signature_test.json")
	for _, group := range v.TestGroups {
		var j JWK
		if group.Comment != "rs256" || json.Unmarshal(group.Public, &j) != nil {
			continue
		}
		for e, good := range map[string]bool{"f____w": true, "AQAB": true, "AAEAAQ": true, "gAAAAQ": false, "AAAAAAE": false, "AQAAAAE": false, "": false, "Aw": false} {
			j.E = e
			if _, err := j.PublicKey(); (err == nil) != good {
				t.Errorf("exponent %q: %v", e, err)
			}
		}
		return
	}
	t.Error("the vectors hold no RSA key")
}
