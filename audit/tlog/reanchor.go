package tlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/sumdb/note"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/durable"
)

// ErrSuperseded says that a log lost state and another goes on for it.
var ErrSuperseded = errors.New("log was superseded")

// supersededFile names, in the directory of a log that lost state, the one that
// goes on for it.
const supersededFile = "superseded"

// Lost is a log that lost records: it was restored from an old copy, cut back or
// wiped, and must not be appended to.
type Lost struct {
	Dir        string        // what there is of it; nothing of it is changed but that it is marked
	Key        note.Verifier // one that signed it
	Checkpoint []byte        // one of it that was held elsewhere, and that it does not reach
	By         string        // who says so
	Reason     string
}

// ErrNotLost says that a log reaches the checkpoint that is held against it.
var ErrNotLost = errors.New("the log reaches the checkpoint: nothing was lost")

// Reanchor begins the log of cfg, of another name, to go on for one that lost
// records. The second record of the new log says which, what was left of it, and
// what the checkpoint proves that there was. The old directory is evidence: it
// stays as it is, and can be verified, but is not opened any more.
func Reanchor(ctx context.Context, cfg Config, old Lost) (audit.Gap, error) {
	gap, err := old.assess(cfg)
	if err != nil {
		return gap, err
	}
	event, err := json.Marshal(gap)
	if err != nil {
		return gap, fmt.Errorf("encode gap record: %w", err)
	}
	l, err := Open(cfg)
	if err != nil {
		return gap, err
	}
	if _, err := l.Append(ctx, &audit.Record{Kind: audit.KindGap, ID: audit.NewID(), Gateway: &cfg.Boot, Event: event}); err != nil {
		return gap, errors.Join(err, l.Close())
	}
	if err := l.Close(); err != nil {
		return gap, err
	}
	return gap, old.mark(cfg.Key.Name())
}

// assess says what was lost.
func (o Lost) assess(cfg Config) (audit.Gap, error) {
	gap := audit.Gap{Reason: audit.GapReanchored, Origin: o.Key.Name(), Checkpoint: string(o.Checkpoint), Detail: o.Reason, Operator: o.By}
	switch {
	case cfg.Key == nil || cfg.Key.Name() == o.Key.Name():
		return gap, fmt.Errorf("re-anchor: the new log needs a name of its own: %s is the old one's", o.Key.Name())
	case o.By == "":
		return gap, errors.New("re-anchor: nobody says so")
	}
	if segs, err := listSegments(cfg.Dir); err != nil || len(segs) > 0 {
		return gap, errors.Join(err, fmt.Errorf("re-anchor: there is a log in %s already", cfg.Dir))
	}
	held, err := openCheckpoint(o.Checkpoint, o.Key)
	if err != nil {
		return gap, fmt.Errorf("re-anchor: held %w", err)
	}
	gap.Held = held.size
	if _, err := os.Stat(filepath.Join(o.Dir, walDir)); errors.Is(err, fs.ErrNotExist) {
		// Wiped: only the checkpoint tells of it, so the key at hand must have
		// signed it.
		if _, err := parseCheckpoint(o.Checkpoint, o.Key); err != nil {
			return gap, fmt.Errorf("re-anchor: held %w", err)
		}
		gap.Records = held.size
		return gap, nil
	}
	report, err := Verify(o.Dir, o.Key, VerifyOptions{Checkpoint: o.Checkpoint})
	switch {
	case err != nil:
		return gap, fmt.Errorf("re-anchor: %w", err)
	case report.OK():
		return gap, ErrNotLost
	case report.Code == KeyMismatch || report.Code == OriginMismatch || report.Code == BadCheckpoint:
		return gap, fmt.Errorf("re-anchor: %s", report.Detail)
	}
	gap.Size, gap.Root = report.TreeSize, report.RootHex
	gap.Records = held.size - min(held.size, report.TreeSize)
	gap.Detail = strings.TrimPrefix(gap.Detail+"; "+report.Detail, "; ")
	return gap, nil
}

// mark keeps the old log from being opened.
func (o Lost) mark(next string) error {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("re-anchor: %w", err)
	}
	if err := replaceFile(filepath.Join(o.Dir, supersededFile), []byte(next+"\n"), true); err != nil {
		return fmt.Errorf("re-anchor: %w", err)
	}
	return durable.SyncDir(o.Dir)
}

// superseded returns [ErrSuperseded] if another log goes on for the one in dir.
func superseded(dir string) error {
	next, err := os.ReadFile(filepath.Join(dir, supersededFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	return fmt.Errorf("%w by %s", ErrSuperseded, strings.TrimSpace(string(next)))
}
