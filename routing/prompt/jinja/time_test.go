package jinja

import (
	"errors"
	"testing"
	"time"
)

func TestTheTimeIsTheCallers(t *testing.T) {
	tmpl, err := Parse("{{ strftime_now('%d %b %Y %H:%M') }}{{ strftime_now is defined }}")
	if err != nil {
		t.Fatal(err)
	}
	limits := Limits{Steps: 100, Bytes: 1000, Now: time.Date(2026, 2, 3, 23, 59, 0, 0, time.FixedZone("", 3600))}
	if got, err := tmpl.Render(t.Context(), &Dict{}, limits); err != nil || got != "03 Feb 2026 23:59True" {
		t.Errorf("got %q, %v", got, err)
	}
	limits.Now = time.Time{}
	if _, err := tmpl.Render(t.Context(), &Dict{}, limits); !errors.Is(err, ErrUnsupported) {
		t.Errorf("without a clock: %v", err)
	}
}
