package kvevents

import (
	"reflect"
	"testing"
)

// equal compares values, taking nil and empty slices for the same.
func equal(a, b any) bool {
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	if va.Kind() != reflect.Slice {
		return reflect.DeepEqual(a, b)
	}
	if va.Len() != vb.Len() {
		return false
	}
	for i := range va.Len() {
		if !equal(va.Index(i).Interface(), vb.Index(i).Interface()) {
			return false
		}
	}
	return true
}

func equalEvent(a, b Event) bool {
	if !equal(a.Hashes, b.Hashes) || !equal(a.Tokens, b.Tokens) || !equal(a.Extra, b.Extra) {
		return false
	}
	a.Hashes, a.Tokens, a.Extra = nil, nil, nil
	b.Hashes, b.Tokens, b.Extra = nil, nil, nil
	return reflect.DeepEqual(a, b)
}

func diffEvents(t *testing.T, got, want []Event) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d events, want %d", len(got), len(want))
	}
	for i := range got {
		if !equalEvent(got[i], want[i]) {
			t.Errorf("event %d:\n got %+v\nwant %+v", i, got[i], want[i])
		}
	}
}
