package splice

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestApply(t *testing.T) {
	set := func(name, raw string) Edit { return Set(name, []byte(raw)) }
	setIn := func(parent, name, raw string) Edit { return SetIn(parent, name, []byte(raw)) }
	cases := []struct {
		claim string
		body  string
		edits []Edit
		want  string
	}{
		{"no edit changes nothing", " {\t\"a\" : 1.50 } \n", nil, " {\t\"a\" : 1.50 } \n"},
		{"a value is replaced and its white space kept", `{"a": 1 ,"b":2}`, []Edit{set("a", `"x"`)}, `{"a": "x" ,"b":2}`},
		{"an escaped name is the name it spells", `{"\u006dodel":"a"}`, []Edit{set("model", `"b"`)}, `{"\u006dodel":"b"}`},
		{"an escaped name is deleted by the name it spells", `{"mode\u006c":"a","b":1}`, []Edit{Delete("model")}, `{"b":1}`},
		{"a new member goes last", `{"a":1 }`, []Edit{set("b", `2`)}, `{"a":1,"b":2 }`},
		{"a new member of an empty object has no comma", `{ }`, []Edit{set("b", `2`)}, `{"b":2 }`},
		{"new members keep the order of the edits", `{}`, []Edit{set("b", `2`), set("a", `1`)}, `{"b":2,"a":1}`},
		{"a new name is quoted", `{}`, []Edit{set("a\"\n", `1`)}, `{"a\"\n":1}`},
		{"the first member is deleted with its comma", `{ "a":1 , "b":2}`, []Edit{Delete("a")}, `{ "b":2}`},
		{"a middle member is deleted with one comma", `{"a":1, "b":2 , "c":3}`, []Edit{Delete("b")}, `{"a":1 , "c":3}`},
		{"the last member is deleted with the comma before", `{"a":1 , "b":2 }`, []Edit{Delete("b")}, `{"a":1 }`},
		{"a first member without a name is deleted with its comma", `{"":1,"a":1}`, []Edit{Delete("")}, `{"a":1}`},
		{"the only member is deleted", `{ "a":1 }`, []Edit{Delete("a")}, `{  }`},
		{"the first two are deleted", `{"a":1, "b":2, "c":3}`, []Edit{Delete("b"), Delete("a")}, `{"c":3}`},
		{"the last two are deleted", `{"a":1, "b":2, "c":3}`, []Edit{Delete("b"), Delete("c")}, `{"a":1}`},
		{"all are deleted and one added", `{"a":1, "b":2}`, []Edit{Delete("a"), Delete("b"), set("c", `3`)}, `{"c":3}`},
		{"the first is deleted and the last replaced", `{"a":1, "b":2}`, []Edit{Delete("a"), set("b", `3`)}, `{"b":3}`},
		{"deleting what is absent changes nothing", `{"a":1}`, []Edit{Delete("b")}, `{"a":1}`},
		{"a nested member is replaced", `{"o":{"u": false, "v":1}}`, []Edit{setIn("o", "u", "true")}, `{"o":{"u": true, "v":1}}`},
		{"a nested member is added", `{"o":{"v":1}}`, []Edit{setIn("o", "u", "true")}, `{"o":{"v":1,"u":true}}`},
		{"an absent parent is added", `{"a":1}`, []Edit{setIn("o", "u", "true")}, `{"a":1,"o":{"u":true}}`},
		{"a null parent becomes an object", `{"o": null}`, []Edit{setIn("o", "u", "true")}, `{"o": {"u":true}}`},
		{"two edits of one parent both count", `{"o":{"v":1}}`, []Edit{setIn("o", "u", "2"), DeleteIn("o", "v")}, `{"o":{"u":2}}`},
		{"a deep member is deleted", `{"o":{"p":{"q":1,"r":2}}}`, []Edit{DeleteIn("o", "p", "q")}, `{"o":{"p":{"r":2}}}`},
		{"a deep delete under no object changes nothing", `{"o":null,"p":[1]}`, []Edit{DeleteIn("o", "p", "q"), DeleteIn("p", "q")}, `{"o":null,"p":[1]}`},
		{"numbers keep their spelling", `{"n":9007199254740993,"m":1.0e+2,"a":0}`, []Edit{set("a", "1")}, `{"n":9007199254740993,"m":1.0e+2,"a":1}`},
		{"strings keep their escapes", `{"s":"\u00e9\/é","a":0}`, []Edit{set("a", "1")}, `{"s":"\u00e9\/é","a":1}`},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			body := []byte(c.body)
			got, err := Apply([]byte("dst"), body, c.edits...)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != "dst"+c.want {
				t.Errorf("got  %s\nwant dst%s", got, c.want)
			}
			if string(body) != c.body {
				t.Error("the body was changed")
			}
		})
	}
}

func TestApplyRefuses(t *testing.T) {
	one := []byte("1")
	cases := []struct {
		claim string
		body  string
		edits []Edit
		want  error
	}{
		{"a duplicate name", `{"a":1,"a":2}`, nil, ErrSyntax},
		{"a duplicate spelt with an escape", `{"a":1,"\u0061":2}`, nil, ErrSyntax},
		{"a nested duplicate", `{"o":[{"a":1,"a":2}]}`, nil, ErrSyntax},
		{"an array", `[1]`, nil, ErrNotObject},
		{"a string", `"a"`, nil, ErrNotObject},
		{"nothing", ``, nil, ErrSyntax},
		{"half an object", `{"a":1`, nil, ErrSyntax},
		{"half an array", `[1`, nil, ErrSyntax},
		{"two objects", `{}{}`, nil, ErrSyntax},
		{"trailing text", `{} x`, nil, ErrSyntax},
		{"a byte order mark", "\xEF\xBB\xBF{}", nil, ErrSyntax},
		{"invalid UTF-8", "{\"a\":\"\xff\"}", nil, ErrSyntax},
		{"a value that is no JSON", `{}`, []Edit{Set("a", []byte("1,2"))}, ErrEdit},
		{"a nil value", `{"a":1}`, []Edit{Set("a", nil)}, ErrEdit},
		{"a value with duplicate names", `{}`, []Edit{Set("a", []byte(`{"b":1,"b":2}`))}, ErrEdit},
		{"two edits of one member", `{}`, []Edit{Set("a", one), Delete("a")}, ErrEdit},
		{"an edit of a member and of its parent", `{}`, []Edit{SetIn("a", "b", one), Delete("a")}, ErrEdit},
		{"two edits of one nested member", `{}`, []Edit{SetIn("a", "b", one), SetIn("a", "b", one)}, ErrEdit},
		{"no path", `{}`, []Edit{DeleteIn()}, ErrEdit},
		{"a nested set under a number", `{"a":1}`, []Edit{SetIn("a", "b", one)}, ErrNotObject},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			got, err := Apply(nil, []byte(c.body), c.edits...)
			if !errors.Is(err, c.want) || got != nil {
				t.Errorf("got %q, %v; want %v", got, err, c.want)
			}
		})
	}
}

func TestErrorsDoNotQuoteTheBody(t *testing.T) {
	for _, body := range []string{`{"secret":1,"secret":2}`, `{"secret":secret}`, `{"a":"secret` + "\xff" + `"}`} {
		if _, err := Apply(nil, []byte(body)); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("error %v of %s", err, body)
		}
	}
}

func TestHas(t *testing.T) {
	body := []byte(`{"a":{"b":1},"cache_\u0073alt":null}`)
	for name, want := range map[string]bool{"a": true, "b": false, "cache_salt": true, "": false} {
		if got, err := Has(body, name); err != nil || got != want {
			t.Errorf("Has(%q) = %v, %v; want %v", name, got, err, want)
		}
	}
	if _, err := Has([]byte(`{"a":1,"a":1}`), "a"); !errors.Is(err, ErrSyntax) {
		t.Errorf("a duplicate was accepted: %v", err)
	}
}

// TestOnlyOwnedBytesChange makes random objects from random pieces, edits them,
// and compares with the pieces: those of untouched members must be there, in
// order, byte for byte, and the result must mean the edited object.
func TestOnlyOwnedBytesChange(t *testing.T) {
	space := rapid.SampledFrom([]string{"", " ", "\n", "\t ", " \r\n "})
	value := rapid.SampledFrom([]string{
		`1`, `1.0`, `-0`, `9007199254740993`, `1E5`, `true`, `null`, `""`, `"a,b}"`, `"\u007d\"{"`, `"é"`,
		`[]`, `[1, {"a" : 2}]`, `{}`, `{ "a":1 , "b":[ ] }`, `{"\u0061":null}`,
	})
	name := rapid.SampledFrom([]string{"a", "b", "c", "model", "é", "", `q"`, "x\\y"})
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(name, 0, 6, rapid.ID[string]).Draw(t, "names")
		pieces, want := map[string]string{}, map[string]string{}
		var members []string
		for _, n := range names {
			v := value.Draw(t, "value")
			pieces[n] = spell(t, n) + space.Draw(t, "s1") + ":" + space.Draw(t, "s2") + v
			want[n] = v
			members = append(members, space.Draw(t, "s3")+pieces[n]+space.Draw(t, "s4"))
		}
		body := space.Draw(t, "s5") + "{" + strings.Join(members, ",") + "}" + space.Draw(t, "s6")

		var edits []Edit
		for _, n := range rapid.SliceOfNDistinct(name, 0, 4, rapid.ID[string]).Draw(t, "edited") {
			if rapid.Bool().Draw(t, "delete") {
				edits = append(edits, Delete(n))
				delete(want, n)
			} else {
				v := value.Draw(t, "new")
				edits = append(edits, Set(n, []byte(v)))
				want[n] = v
			}
			delete(pieces, n)
		}
		got, err := Apply(nil, []byte(body), edits...)
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if len(edits) == 0 && string(got) != body {
			t.Fatalf("no edits made %q from %q", got, body)
		}
		rest := string(got)
		for _, n := range names {
			piece, kept := pieces[n]
			if !kept {
				continue
			}
			_, after, found := strings.Cut(rest, piece)
			if !found {
				t.Fatalf("%q of %q is not in %q", piece, body, got)
			}
			rest = after
		}
		var have map[string]json.RawMessage
		if err := json.Unmarshal(got, &have); err != nil {
			t.Fatalf("%q: %v", got, err)
		}
		if !maps.EqualFunc(have, want, func(a json.RawMessage, b string) bool { return string(a) == b }) {
			t.Fatalf("%q means %s, want %v", got, have, want)
		}
	})
}

// spell writes a name as JSON, at times with an escape that it does not need.
func spell(t *rapid.T, name string) string {
	raw, err := json.Marshal(name)
	if err != nil {
		t.Fatal(err)
	}
	if len(name) > 0 && name[0] < 0x80 && rapid.Bool().Draw(t, "escape") {
		rest, err := json.Marshal(name[1:])
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`"\u%04X%s`, name[0], rest[1:])
	}
	return string(raw)
}

func FuzzApply(f *testing.F) {
	f.Add([]byte(`{"model":"a","stream_options":{"include_usage":false}}`))
	f.Add([]byte(` { "\u006dodel" : 1e5 , "o" : [ ] } `))
	f.Add([]byte(`{"stream_options":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		same, err := Apply(nil, body)
		if err != nil {
			return
		}
		if !bytes.Equal(same, body) {
			t.Fatalf("no edits made %q from %q", same, body)
		}
		once, err := Apply(nil, body, Set("model", []byte(`"m"`)), Delete("x"))
		if err != nil {
			t.Fatalf("an accepted body could not be edited: %v", err)
		}
		twice, err := Apply(nil, once, Set("model", []byte(`"m"`)), Delete("x"))
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("not idempotent: %q then %q, %v", once, twice, err)
		}
		if has, err := Has(once, "model"); err != nil || !has {
			t.Fatalf("no model in %q: %v", once, err)
		}
	})
}

// BenchmarkApply edits chat bodies of different sizes and contents.
func BenchmarkApply(b *testing.B) {
	for _, size := range []int{2 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			bodies := make([][]byte, 8)
			for i := range bodies {
				bodies[i] = chatBody(rand.New(rand.NewPCG(uint64(i), 1)), size)
			}
			salt := Set("cache_salt", []byte(`"abcdefghijklmnopqrstuvwxyz"`))
			dst := make([]byte, 0, 2*size)
			b.SetBytes(int64(size))
			for i := 0; b.Loop(); i++ {
				if _, err := Apply(dst, bodies[i%len(bodies)], salt); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func chatBody(r *rand.Rand, size int) []byte {
	words := []string{"ledger ", "patient ", "the ", "où ", "\\n", "claim ", "42 ", "\\\"quoted\\\" "}
	body := []byte(`{"model":"small","messages":[`)
	for len(body) < size {
		body = append(body, `{"role":"user","content":"`...)
		for range 20 + r.IntN(100) {
			body = append(body, words[r.IntN(len(words))]...)
		}
		body = append(body, `"},`...)
	}
	return slices.Concat(body, []byte(`{"role":"user","content":""}],"stream":true}`))
}
