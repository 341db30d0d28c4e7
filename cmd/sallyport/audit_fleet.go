package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sallyport-ai/sallyport/audit/claim"
	"github.com/sallyport-ai/sallyport/audit/excerpt"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

// missing is what a register makes one expect of a log, and is not so.
type missing struct {
	Origin string `json:"origin"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// The codes.
const (
	missingLog = "missing_log" // not there
	silentLog  = "silent_log"  // no record for too long
	lateLog    = "late_log"    // begins later than the register says
)

// registered verifies the logs of a register, and that they are all there.
func (v *verification) registered(ctx context.Context, entries []registered, to *side) error {
	for _, e := range entries {
		if e.Log == "" {
			if err := v.undecided(missing{e.origin, "no_log", "the register names no log of " + e.origin}); err != nil {
				return err
			}
			continue
		}
		lacks := v.there(e)
		if lacks == nil {
			known := len(to.logs)
			damaged, err := v.damaged(func() error { return v.target(ctx, e.Log, to) })
			if err != nil {
				return err
			}
			if damaged {
				continue // it has been told of, and may not be readable to its end
			}
			if len(to.logs) == known {
				if err := v.undecided(missing{e.origin, "selected", e.Log + " is a selection, which does not show what was left out"}); err != nil {
					return err
				}
				continue
			}
			if lacks, err = v.heard(e); err != nil {
				return err
			}
		}
		if lacks == nil {
			continue
		}
		v.bad = true
		if err := v.print(lacks, func() { sayf(v.out, "WRONG: %s: %s: %s\n", lacks.Code, lacks.Origin, lacks.Detail) }); err != nil {
			return err
		}
	}
	return nil
}

// damaged says whether something is wrong with what verify looks at, whatever was
// with others before.
func (v *verification) damaged(verify func() error) (bool, error) {
	before := v.bad
	v.bad = false
	err := verify()
	now := v.bad
	v.bad = v.bad || before
	return now, err
}

// undecided tells what keeps the answer from being given.
func (v *verification) undecided(m missing) error {
	v.unknown = true
	return v.print(m, func() { sayf(v.out, "undecided: %s: %s: %s\n", m.Code, m.Origin, m.Detail) })
}

// there says whether a log is not.
func (v *verification) there(e registered) *missing {
	origin, _, ok := excerpt.Of(e.Log)
	var err error
	if !ok {
		origin, err = tlog.Origin(e.Log)
	}
	switch {
	case err != nil:
		return &missing{e.origin, missingLog, err.Error()}
	case origin != e.origin:
		return &missing{e.origin, missingLog, fmt.Sprintf("%s is of log %s", e.Log, origin)}
	}
	return nil
}

// heard says whether a log has fallen silent, or begins too late.
func (v *verification) heard(e registered) (*missing, error) {
	first, last, err := ends(e.Log)
	if err != nil {
		return nil, cannotTell(err)
	}
	now := time.Now()
	if !v.window.until.IsZero() && v.window.until.Before(now) {
		now = v.window.until
	}
	switch quiet := now.Sub(last.at); {
	case e.until.IsZero() && quiet > v.fleet.SilentAfter:
		return &missing{e.origin, silentLog, fmt.Sprintf("the last record is of %s", last.at.Format(timeFormat))}, nil
	case first.index == 0 && !e.since.IsZero() && first.at.After(e.since.Add(claim.Slack)):
		return &missing{e.origin, lateLog, fmt.Sprintf("in service since %s, and its log begins at %s", e.since.Format(timeFormat), first.at.Format(timeFormat))}, nil
	}
	return nil, nil
}

// moment is a record's index and time.
type moment struct {
	index uint64
	at    time.Time
}

// ends are the first and the last record of a log or an excerpt.
func ends(path string) (first, last moment, err error) {
	for e, err := range records(path, 0) {
		if err != nil {
			return first, last, err
		}
		if first.at, err = timeOf(e.Leaf); err != nil {
			return first, last, err
		}
		first.index = e.Index
		break
	}
	last = first
	from := uint64(0)
	if _, tree, err := tlog.Published(path); err == nil && tree.N > 0 {
		from = uint64(tree.N) - 1 // the rest need not be read
	}
	for e, err := range records(path, from) {
		if err != nil {
			return first, last, err
		}
		if last.at, err = timeOf(e.Leaf); err != nil {
			return first, last, err
		}
		last.index = e.Index
	}
	return first, last, nil
}
