package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// timeFormat is how the audit commands print times, in UTC.
const timeFormat = "2006-01-02T15:04:05.000Z"

// window is a range of time as users give it.
type window struct {
	sinceText, untilText, monthText string

	since, until time.Time // until is exclusive; zero: no bound
}

func (w *window) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&w.sinceText, "since", "", "first time: a date, an RFC 3339 time, or how long ago (36h)")
	cmd.Flags().StringVar(&w.untilText, "until", "", "time from which on nothing counts, given as for --since")
	cmd.Flags().StringVar(&w.monthText, "month", "", "a month of UTC, as 2026-11, instead of --since and --until")
	cmd.MarkFlagsMutuallyExclusive("since", "month")
	cmd.MarkFlagsMutuallyExclusive("until", "month")
}

func (w *window) parse(now time.Time) (err error) {
	if w.monthText != "" {
		if w.since, err = time.Parse("2006-01", w.monthText); err != nil {
			return cannotTell(fmt.Errorf("--month: want YYYY-MM, got %q", w.monthText))
		}
		w.until = w.since.AddDate(0, 1, 0)
		return nil
	}
	if w.since, err = parseWhen(w.sinceText, now); err != nil {
		return cannotTell(fmt.Errorf("--since: %w", err))
	}
	if w.until, err = parseWhen(w.untilText, now); err != nil {
		return cannotTell(fmt.Errorf("--until: %w", err))
	}
	if !w.until.IsZero() && !w.since.Before(w.until) {
		return cannotTell(fmt.Errorf("--since %s is not before --until %s", w.sinceText, w.untilText))
	}
	return nil
}

// contains says whether a time is in the window.
func (w *window) contains(at time.Time) bool {
	return !at.Before(w.since) && (w.until.IsZero() || at.Before(w.until))
}

func parseWhen(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago > 0 {
		return now.Add(-ago).UTC(), nil
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("want a date, an RFC 3339 time or a duration, got %q", text)
}
