package policy

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestAdaptersAreChecked(t *testing.T) {
	for _, c := range []struct{ claim, models, want string }{
		{"an adapter of a model", `{"a": {"served": "a", "context_window": 0}, "b": {"served": "b", "base": "a", "context_window": 0}}`, ""},
		{"an adapter of nothing", `{"b": {"served": "b", "base": "a", "context_window": 0}}`, `models.b.base: no model "a"`},
		{"an adapter of an adapter", `{"a": {"served": "a", "context_window": 0}, "b": {"served": "b", "base": "a", "context_window": 0}, "c": {"served": "c", "base": "b", "context_window": 0}}`, `models.c.base: "b" is an adapter itself`},
		{"an adapter of itself", `{"a": {"served": "a", "base": "a", "context_window": 0}}`, `models.a.base: "a" is an adapter itself`},
	} {
		t.Run(c.claim, func(t *testing.T) {
			var models any
			if err := json.Unmarshal([]byte(c.models), &models); err != nil {
				t.Fatal(err)
			}
			_, err := parseData(map[string]any{"models": models})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
