package audit

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// reads fails if DecodeExact says something else of a leaf than encoding/json.
// It says whether DecodeExact says anything.
func reads(t testing.TB, leaf []byte) bool {
	t.Helper()
	got, ok := DecodeExact(leaf)
	if !ok {
		return false
	}
	want := new(Record)
	if err := json.Unmarshal(leaf, want); err != nil {
		t.Fatalf("read, but it cannot be: %v\n%s", err, leaf)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("read as\n%+v\nand not\n%+v\nof %s", got, want, leaf)
	}
	outline, ok := DecodeOutline(leaf)
	if want.Input = nil; want.Placement != nil {
		want.Placement.Candidates = nil
	}
	if !ok || !reflect.DeepEqual(outline, want) {
		t.Fatalf("its outline is read as\n%+v, %v\nand not\n%+v\nof %s", outline, ok, want, leaf)
	}
	return true
}

func TestEveryFieldIsReadAsItWasWritten(t *testing.T) {
	r := new(Record)
	fill(reflect.ValueOf(r).Elem(), new(counting))
	try := func(what string) {
		t.Helper()
		leaf, err := Encode(r)
		if err != nil {
			t.Fatal(err)
		}
		if !reads(t, leaf) {
			t.Fatalf("%s is not read: %s", what, leaf)
		}
	}
	try("all of a record")
	fields(reflect.ValueOf(r), "Record", func(name string, v reflect.Value) {
		held := reflect.New(v.Type()).Elem()
		held.Set(v)
		v.SetZero()
		try("all but " + name)
		v.Set(held)
	})
	r = new(Record)
	try("an empty record")
}

func TestRecordsByChanceAreReadAsTheyWereWritten(t *testing.T) {
	read, all := 0, 0
	for seed := range uint64(600) {
		var r Record
		fill(reflect.ValueOf(&r).Elem(), drawn{rand.New(rand.NewPCG(seed, 8))})
		leaf, err := Encode(&r)
		if err != nil {
			continue
		}
		all++
		if reads(t, leaf) {
			read++
		}
	}
	if all < 200 || read < all*3/4 { // the others hold JSON that is too deep
		t.Errorf("%d of %d were read", read, all)
	}
}

func TestOnlyTheExactFormIsRead(t *testing.T) {
	r := new(Record)
	fill(reflect.ValueOf(r).Elem(), new(counting))
	leaf, err := Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ what, old, with string }{
		{"a field stands twice", `,"attempt":`, `,"attempt":1,"attempt":`},
		{"a field is not known", `,"attempt":`, `,"new":1,"attempt":`},
		{"a name in other letters", `"kind":`, `"Kind":`},
		{"white space", `,"attempt":`, `, "attempt":`},
		{"an escape in a name", `"kind":`, `"k\u0069nd":`},
		{"a number with a zero before it", `"wall":`, `"wall":0`},
		{"a number below the least", `"wall":`, `"wall":-99999999999999999999`},
		{"minus zero", `"mono_ns":`, `"mono_ns":-0,"x":`},
		{"the input stands twice", `,"input":`, `,"input":1,"input":`},
		{"the candidates stand twice", `,"candidates":`, `,"candidates":[1],"candidates":`},
		{"a fraction", `,"mono_ns":`, `.0,"mono_ns":`},
		{"a reason stands twice", `"excluded":{`, `"excluded":{"a":1,"a":2,`},
		{"a list of nothing where there is none", `"candidates":[`, `"candidates":[],"x":[`},
		{"a control character in a text", `"status":"`, "\"status\":\"\n"},
		{"an escape that is none", `"status":"`, `"status":"\x`},
	} {
		changed := []byte(strings.Replace(string(leaf), c.old, c.with, 1))
		if string(changed) == string(leaf) {
			t.Fatalf("%s: nothing changed", c.what)
		}
		if reads(t, changed) {
			t.Errorf("%s: read all the same", c.what)
		}
		if _, ok := DecodeOutline(changed); ok {
			t.Errorf("%s: its outline is read all the same", c.what)
		}
	}
	for i := range leaf {
		if reads(t, leaf[:i]) {
			t.Errorf("read although only %d bytes of %d are there", i, len(leaf))
		}
	}
	for _, more := range []string{" ", "}", "{}", "\x00"} {
		if reads(t, append(leaf[:len(leaf):len(leaf)], more...)) {
			t.Errorf("read with %q after it", more)
		}
	}
}

func TestALeafWithAByteChangedIsReadAsItNowIs(t *testing.T) {
	r := new(Record)
	fill(reflect.ValueOf(r).Elem(), new(counting))
	leaf, err := Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	with := []byte("\"\\,:{}[]019-.e nx\x00\x80")
	for i := range leaf {
		for n := range 3 {
			was := leaf[i]
			leaf[i] = with[(3*i+n)%len(with)]
			reads(t, leaf)
			leaf[i] = was
		}
	}
}

func TestADecodedRecordSharesNothingWithItsLeaf(t *testing.T) {
	r := new(Record)
	fill(reflect.ValueOf(r).Elem(), new(counting))
	leaf, err := Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(leaf)
	if err != nil {
		t.Fatal(err)
	}
	clear(leaf)
	if !reflect.DeepEqual(got, r) {
		t.Errorf("read as %+v once the leaf is gone", got)
	}
}

func TestAnotherFormIsDecodedToo(t *testing.T) {
	r, err := Decode([]byte(` {"kind": "decision", "status":"allowed", "unheard_of": {"a": [1]}} `))
	if err != nil || r.Kind != KindDecision || r.Status != StatusAllowed {
		t.Errorf("%+v, %v", r, err)
	}
	for _, bad := range []string{"", "{", `{"v":"1"}`, `{"v":1}x`} {
		if r, err := Decode([]byte(bad)); err == nil {
			t.Errorf("%q was decoded as %+v", bad, r)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for seed := range uint64(40) {
		var r Record
		fill(reflect.ValueOf(&r).Elem(), drawn{rand.New(rand.NewPCG(seed, 9))})
		if leaf, err := Encode(&r); err == nil {
			f.Add(leaf)
		}
	}
	for _, r := range benchRecords(2) {
		leaf, err := Encode(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(leaf)
	}
	f.Fuzz(func(t *testing.T, leaf []byte) { reads(t, leaf) })
}

// BenchmarkDecode reads decisions with four candidates and their outcomes in
// turn, by our decoder and by the struct tags.
func BenchmarkDecode(b *testing.B) {
	var leaves [][]byte
	size := 0
	for _, r := range benchRecords(512) {
		leaf, err := Encode(r)
		if err != nil {
			b.Fatal(err)
		}
		leaves, size = append(leaves, leaf), size+len(leaf)
	}
	for _, c := range []struct {
		name string
		do   func([]byte) error
	}{
		{"leaf", func(leaf []byte) error {
			if _, ok := DecodeExact(leaf); !ok {
				return fmt.Errorf("not read: %s", leaf)
			}
			return nil
		}},
		{"tags", func(leaf []byte) error { return json.Unmarshal(leaf, new(Record)) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			i, began := 0, cpu(b)
			for b.Loop() {
				if err := c.do(leaves[i%len(leaves)]); err != nil {
					b.Fatal(err)
				}
				i++
			}
			b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/record")
			b.ReportMetric(float64(size)/float64(len(leaves)), "bytes/record")
		})
	}
}

func TestATicketIsReadAsItWasWritten(t *testing.T) {
	for seed := range uint64(60) {
		var s Served
		fill(reflect.ValueOf(&s).Elem(), drawn{rand.New(rand.NewPCG(seed, 10))})
		if seed == 0 {
			fill(reflect.ValueOf(&s).Elem(), new(counting))
		}
		event, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var want Served
		if err := json.Unmarshal(event, &want); err != nil {
			t.Fatal(err)
		}
		got, ok := DecodeServed(event)
		if !ok || *got != want {
			t.Fatalf("%s is read as %+v, %v", event, got, ok)
		}
		for i := range event {
			if _, ok := DecodeServed(event[:i]); ok {
				t.Fatalf("read although only this is there: %s", event[:i])
			}
		}
	}
	if s, ok := DecodeServed([]byte(`{"attempt":1}`)); ok {
		t.Errorf("another form is read as %+v", s)
	}
}
