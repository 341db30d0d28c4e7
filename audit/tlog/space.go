package tlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

// When no further segment can be made, the log goes on in its reserve, and takes
// only what is owed: outcomes, and its own records. Nothing new is decided. It
// looks from time to time whether there is space again, and then records that
// and how many it turned away.

// errNoSpace says that the log takes only outcomes.
var errNoSpace = errors.New("no space for new segments: only outcomes are taken, in the reserve")

// shortage is while the log is in its reserve.
type shortage struct {
	since   time.Time
	refused uint64    // records that were turned away
	again   time.Time // when to look next
	wait    time.Duration
}

// Short says since when the log has taken only what is owed, for want of space,
// or the zero time.
func (l *Log) Short() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.short.since
}

// economize turns away what is not owed from now on.
func (l *Log) economize() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.short.since.IsZero() {
		return
	}
	now := time.Now()
	l.short = shortage{since: now, wait: l.cfg.CheckpointEvery, again: now}
	l.log.Error("audit log is in its reserve: only outcomes are taken", "reserve", l.main.cur.size)
}

// admits says whether a record may still be taken. The caller holds mu.
func (l *Log) admits(kind audit.Kind, own bool) error {
	if l.short.since.IsZero() || own || kind == audit.KindOutcome {
		return nil
	}
	l.short.refused++
	return errNoSpace
}

// recoverSpace looks whether there is space again. To look costs writing a
// segment, so it is done ever more seldom.
func (l *Log) recoverSpace() {
	l.mu.Lock()
	if time.Now().Before(l.short.again) {
		l.mu.Unlock()
		return
	}
	l.short.wait = min(2*l.short.wait, 30*time.Second)
	l.short.again = time.Now().Add(l.short.wait)
	l.mu.Unlock()
	if err := l.main.refill(); err != nil {
		return
	}
	l.mu.Lock()
	was := l.short
	l.short = shortage{}
	l.mu.Unlock()
	l.log.Info("audit log has space again", "refused", was.refused)
	event, err := json.Marshal(audit.Gap{
		Reason: audit.GapHalted, Detail: errNoSpace.Error(), Since: was.since.UnixMicro(), Until: time.Now().UnixMicro(), Refused: was.refused,
	})
	if err == nil {
		err = l.note(&audit.Record{Kind: audit.KindGap, ID: audit.NewID(), Gateway: &l.cfg.Boot, Event: event})
	}
	if err != nil {
		l.log.Error("the gap is not recorded", "error", err)
	}
}

// lostFile says how many bounded records a log had let go and did not write when
// it was halted, for the next start to record.
const lostFile = "lost"

// rememberLost does what can be done on a disk that fails.
func (l *Log) rememberLost(records int) {
	if l.main.lock.check() != nil {
		return
	}
	raw, err := json.Marshal(audit.Gap{Reason: audit.GapBoundedLost, Records: uint64(records), Until: time.Now().UnixMicro()})
	if err == nil {
		err = replaceFile(filepath.Join(l.cfg.Dir, lostFile), raw, true)
	}
	if err != nil {
		l.log.Error("how many were lost is not kept", "error", err)
	}
}

// recordLost records what the run before lost.
func (l *Log) recordLost() error {
	path := filepath.Join(l.cfg.Dir, lostFile)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what was lost: %w", err)
	}
	if !json.Valid(raw) { // it was cut short: that something was lost remains
		raw = json.RawMessage(`{"reason":"` + audit.GapBoundedLost + `"}`)
	}
	if err := l.note(&audit.Record{Kind: audit.KindGap, ID: audit.NewID(), Gateway: &l.cfg.Boot, Event: raw}); err != nil {
		return err
	}
	return nil
}
