package strictyaml

import (
	"strings"
	"testing"
	"time"
)

type sample struct {
	Name   string        `yaml:"name"`
	Count  int           `yaml:"count"`
	Flag   bool          `yaml:"flag"`
	Wait   time.Duration `yaml:"wait"`
	Size   Bytes         `yaml:"size"`
	Items  []item        `yaml:"items"`
	Option *item         `yaml:"option"`
}

type item struct {
	ID   string   `yaml:"id"`
	Tags []string `yaml:"tags"`
}

func TestDecodeFillsEveryKindOfField(t *testing.T) {
	var s sample
	f, err := Decode("c.yaml", strings.NewReader("name: a\ncount: 3\nflag: true\nwait: 250ms\nsize: 16MiB\nitems: [{id: x, tags: [p, q]}]\noption: {id: y}\n"), &s)
	if err != nil || f.Err() != nil {
		t.Fatal(err, f.Err())
	}
	if s.Name != "a" || s.Count != 3 || !s.Flag || s.Wait != 250*time.Millisecond || s.Size != 16<<20 || s.Items[0].Tags[1] != "q" || s.Option.ID != "y" {
		t.Fatalf("got %+v", s)
	}
}

func TestProblemsCarryLineAndColumn(t *testing.T) {
	for _, c := range []struct{ claim, text, want string }{
		{"an unknown field is named where it stands", "name: a\nnmae: b\n", "c.yaml:2:1: nmae: unknown field"},
		{"a field with another spelling is suggested", "Name: a\n", "did you mean name?"},
		{"an unknown field deep inside", "items:\n  - id: x\n    oops: 1\n", "c.yaml:3:5: items[0].oops: unknown field"},
		{"a repeated key", "name: a\nname: b\n", "c.yaml:2:1: name: given twice"},
		{"a number where a string belongs", "name: 7\n", "c.yaml:1:7: name: want a string"},
		{"text where a number belongs", "count: many\n", `c.yaml:1:8: count: want a whole number, got "many"`},
		{"a list where a mapping belongs", "option: [1]\n", "c.yaml:1:9: option: want a mapping"},
		{"a mapping where a list belongs", "items: {id: x}\n", "c.yaml:1:8: items: want a list"},
		{"a duration without a unit", "wait: 5\n", "c.yaml:1:7: wait: want a duration"},
		{"a negative size", "size: -1\n", "c.yaml:1:7: size: want a size"},
		{"a size beyond 64 bits", "size: 99999999999GiB\n", "size: want a size"},
		{"an alias", "name: &n a\noption: {id: *n}\n", "anchors and aliases are not supported"},
		{"a second document", "name: a\n---\nname: b\n", "more than one document"},
		{"an empty file", "", "c.yaml:1:1: the file is empty"},
		{"text that is not YAML", "name: [\n", "c.yaml:"},
	} {
		t.Run(c.claim, func(t *testing.T) {
			var s sample
			f, err := Decode("c.yaml", strings.NewReader(c.text), &s)
			if err != nil {
				t.Fatal(err)
			}
			if f.Err() == nil || !strings.Contains(f.Err().Error(), c.want) {
				t.Fatalf("got %v, want %q", f.Err(), c.want)
			}
		})
	}
}

func TestAllProblemsAtOnceInOrder(t *testing.T) {
	var s sample
	f, err := Decode("c.yaml", strings.NewReader("nope: 1\ncount: x\nitems: [{id: a}]\n"), &s)
	if err != nil {
		t.Fatal(err)
	}
	f.Problem("items[0].tags", "must not be empty")
	lines := strings.Split(f.Err().Error(), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[2], "c.yaml:3:9: items[0].tags: must not be empty") {
		t.Fatalf("got %q", lines)
	}
}

func FuzzDecodeNeverPanics(f *testing.F) {
	f.Add("name: a\nitems: [{id: x}]\n")
	f.Add("a: &x [*x]\n")
	f.Add("? {a: b}\n: c\n")
	f.Fuzz(func(t *testing.T, text string) {
		var s sample
		file, err := Decode("c.yaml", strings.NewReader(text), &s)
		if err != nil {
			t.Fatal(err)
		}
		_ = file.Err() // its text must be makeable
	})
}
