package format

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
)

// byTags is the encoding that the struct tags of v say.
func byTags(t *testing.T, v any) string {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// fill gives every field a value of its own.
func fill(v reflect.Value, n *int) {
	*n += 2
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint("s<é\n", *n))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.SetBytes(fmt.Appendf(nil, `{"n":%d}`, *n))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	default:
		panic(fmt.Sprintf("a form has a %v", v.Type()))
	}
}

// each calls do for every field below v, however deep, with nothing in it.
func each(v reflect.Value, name string, do func(string)) {
	switch v.Kind() {
	case reflect.Pointer:
		each(v.Elem(), name, do)
	case reflect.Struct:
		for i := range v.NumField() {
			f, at := v.Field(i), name+"."+v.Type().Field(i).Name
			each(f, at, do)
			if f.Type() == reflect.TypeFor[json.RawMessage]() || f.Type() == reflect.TypeFor[ocsfUnmapped]() {
				continue // always there
			}
			held := reflect.New(f.Type()).Elem()
			held.Set(f)
			f.SetZero()
			do(at)
			f.Set(held)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Struct {
			each(v.Index(0), name+"[0]", do)
		}
	}
}

func TestEveryFieldOfAFormIsWrittenAsItsTagSays(t *testing.T) {
	n := 0
	var o ocsf
	fill(reflect.ValueOf(&o).Elem(), &n)
	var c ecs
	fill(reflect.ValueOf(&c).Elem(), &n)
	count := 0
	type form interface{ append([]byte) []byte }
	check := func(form form, what string) {
		t.Helper()
		count++
		// A list that is always there is one also when it is empty.
		if got, want := string(form.append(nil)), strings.ReplaceAll(byTags(t, form), ":null", ":[]"); got != want {
			t.Fatalf("%T, %s:\n got %s\nwant %s", form, what, got, want)
		}
	}
	for _, form := range []form{&o, &c} {
		check(form, "all of it")
		each(reflect.ValueOf(form), "all but ", func(what string) { check(form, what) })
	}
	o, c = ocsf{Unmapped: ocsfUnmapped{json.RawMessage(`1`)}}, ecs{Sallyport: json.RawMessage(`2`)}
	check(&o, "nothing of it")
	check(&c, "nothing of it")
	if count < 150 {
		t.Errorf("only %d fields were looked at", count)
	}
}

func TestDetailsHoldWhatIsNotCut(t *testing.T) {
	for _, e := range events(t) {
		var leaf map[string]any
		if err := json.Unmarshal(e.Leaf, &leaf); err != nil {
			t.Fatal(err)
		}
		for c := whole; c <= bare; c++ {
			want := map[string]any{"kind": leaf["kind"], "id": leaf["id"], "index": float64(e.Index), "boot": "b", "leaf_hash": e.Hash.String()}
			if e.Previous != nil {
				want["previous"] = map[string]any{"index": float64(e.Previous.Index), "hash": e.Previous.Hash.String()}
			}
			for name, cutAt := range map[string]cut{
				"gateway": bare + 1, "attempt": bare + 1, "status": bare + 1, "reason": bare + 1, "http": bare + 1, "durability": bare + 1,
				"class": bare, "label": bare,
				"caller": withoutDetail, "request": withoutDetail, "policy": withoutDetail, "decision": withoutDetail, "placement": withoutDetail,
				"outcome": withoutDetail, "denials": withoutDetail, "event": withoutDetail, "detail": withoutDetail,
			} {
				if v, ok := leaf[name]; ok && c < cutAt {
					want[name] = v
				}
			}
			if p, ok := want["placement"].(map[string]any); ok {
				delete(p, "candidates")
			}
			b, err := appendDetails(nil, e, c)
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]any
			if err := json.Unmarshal(b, &got); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("record %d, cut %d:\n got %v\nwant %v", e.Index, c, got, want)
			}
		}
	}
}

func TestEventsAreUTF8WhateverTheRecordIs(t *testing.T) {
	leaf, err := audit.Encode(&audit.Record{Kind: audit.KindAdmin, Detail: "\xff", Event: json.RawMessage("{\"a\":\"\xfe\xff<\u2028\"}")})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ocsf", "ecs"} {
		f, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		e, err := NewEvent(3, leaf)
		if err != nil {
			t.Fatal(err)
		}
		b, err := f.Event(e, 0)
		if err != nil || string(b) != strings.ToValidUTF8(string(b), "?") || !json.Valid(b) || !strings.Contains(string(b), `"a":"�<`) {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

func TestALeafOfAnotherFormIsTheSameEvent(t *testing.T) {
	for _, e := range events(t) {
		other, err := NewEvent(e.Index, append(e.Leaf[:len(e.Leaf):len(e.Leaf)], ' '))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(other.Record, e.Record) {
			t.Errorf("record %d with a space after it is %+v\nand without it %+v", e.Index, other.Record, e.Record)
		}
	}
}
