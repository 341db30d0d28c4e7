package main

import (
	"bytes"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/sallyport-ai/sallyport/audit"
)

// hostile are texts that a caller may have put into a record.
var hostile = []string{
	"small\n7\t2026-11-01\tdecision", "\x1b[2J\x1b[31m", "a\rb", "a\x00b", "a\u202eb", "a\u2066b", "a\u0085b", "a\u009bb", "\xff\xfe", "a\u2028b", "a\u00a0b",
}

func TestARecordPrintsAsOneLineWhateverItSays(t *testing.T) {
	of := func(text string) *audit.Record {
		return &audit.Record{
			Kind: audit.KindDecision, ID: text, Status: text, Reason: text, Caller: &audit.Caller{Tenant: text, Ref: text, Chain: []audit.Actor{{Type: text, Subject: text}}},
			Class: &audit.Class{Name: text, Facts: []string{text}}, Label: &audit.Label{Level: text, Categories: []string{text}, Sources: []audit.LabelSource{{Source: text, Detail: text}}},
			Request:   &audit.Request{Model: text, Operation: text, Removed: []string{text}},
			Placement: &audit.Placement{Replica: text, Basis: text, Pool: text, ChosenBecause: text, Excluded: map[string]int{text: 1}}, Detail: text,
			Policy: &audit.Policy{Revision: text, Rules: []string{text}, Clamps: []string{text}, ShadowDiff: text},
		}
	}
	var plain bytes.Buffer
	if err := (&story{Decision: of("x")}).print(&plain); err != nil {
		t.Fatal(err)
	}
	for _, text := range hostile {
		r := of(text)
		var list, words bytes.Buffer
		table := tabwriter.NewWriter(&list, 0, 0, 2, ' ', 0)
		listRow(table, 7, r)
		if err := table.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := (&story{Decision: r}).print(&words); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(list.String(), "\n"); n != 1 {
			t.Errorf("%q: %d lines", text, n)
		}
		if strings.Count(words.String(), "\n") != strings.Count(plain.String(), "\n") {
			t.Errorf("%q makes lines of its own:\n%s", text, words.String())
		}
		leaf, err := audit.Encode(r)
		var view bytes.Buffer
		if err == nil {
			err = printLeaf(&view, leaf, false)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, out := range []string{list.String(), words.String(), view.String()} {
			if i := strings.IndexAny(out, "\x1b\r\x00\u202e\u2066\u0085\u009b\u2028\u00a0"); i >= 0 {
				t.Errorf("%q is printed as it is: %q", text, out[i:min(len(out), i+20)])
			}
		}
	}
	if got := printable("Grüße, 世界 ✓"); got != "Grüße, 世界 ✓" {
		t.Errorf("harmless text became %q", got)
	}
}
