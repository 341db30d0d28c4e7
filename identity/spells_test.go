package identity

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// A header is taken for a credential's in each spelling that normal makes the
// same, and in no other: every byte at every place, and other headers as long.
func TestAHeaderIsTakenInEachSpellingAndNoOther(t *testing.T) {
	names := []string{authorizationHeader, apiKeyHeader, dpopHeader}
	for _, name := range names {
		for i := range len(name) {
			for c := range byte(0x80) {
				key := name[:i] + string(rune(c)) + name[i+1:]
				if got, want := spells(key, name), normal(key) == normal(name); got != want {
					t.Errorf("%q for %s: %v", key, name, got)
				}
			}
		}
		for _, key := range []string{strings.ToUpper(name), strings.ToLower(name), strings.ReplaceAll(name, "-", "_")} {
			if !spells(key, name) {
				t.Errorf("%q is not %s", key, name)
			}
		}
		for _, key := range slices.Concat(names, []string{"Cache-Control", "If-None-Match", "From", "Host", "Origin", "X-App-Key", name + "x", name[1:], ""}) {
			if spells(key, name) != (key == name) {
				t.Errorf("%q for %s", key, name)
			}
		}
	}
	r := httptest.NewRequest(http.MethodPost, "/?x=1", nil)
	r.Header = http.Header{"Cache-Control": {"no-cache"}, "From": {"a@b.test"}, "X-App-Key": {"k"}}
	if token, err := PresentedToken(r); !errors.Is(err, ErrNoCredential) {
		t.Errorf("%+v, %v", token, err)
	}
}
