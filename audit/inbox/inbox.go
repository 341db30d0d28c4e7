// Package inbox takes into a log what happened outside the process that writes
// it: that somebody read the log with our tools, or destroyed a key.
//
// Start at [Leave], which a tool calls, and at [Run], by which the log's writer
// takes in what was left. A log has one writer, and a tool that reads it has
// neither its lock nor its key; so the tool leaves a note beside the log, in
//
//	inbox/<id>.json
//
// and the writer appends it as a record, under the id of the note, within
// seconds or when it is started the next time. Until then a note is a file like
// any other: who may write there can take it away again, and what it says is
// what the tool says, but for the owner of the file, which the writer adds.
package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/sallyport-ai/sallyport/audit"
)

// The status of records that come from notes.
const (
	StatusRead     = "read"     // of kind access
	StatusReported = "reported" // of kind admin
)

const (
	folder = "inbox"
	suffix = ".json"

	maxNote  = 8 << 10 // of a note, in bytes
	maxNotes = 256     // taken in at once
)

// note is the content of a file.
type note struct {
	Kind  audit.Kind      `json:"kind"`
	At    int64           `json:"at"` // µs since the Unix epoch, by the tool's clock
	Event json.RawMessage `json:"event"`
}

// event is what becomes of it in the record.
type event struct {
	At    int64           `json:"at,omitempty"`
	Owner *uint32         `json:"owner"` // of the file; null where the system does not say
	Note  json.RawMessage `json:"note"`  // as the tool wrote it; null if it was none
}

// Leave leaves a note for the log in dir, durably. The kind is access or admin.
func Leave(dir string, kind audit.Kind, what any) error {
	body, err := json.Marshal(what)
	if err != nil {
		return fmt.Errorf("leave note: %w", err)
	}
	text, err := json.Marshal(note{Kind: kind, At: time.Now().UnixMicro(), Event: body})
	if err != nil {
		return fmt.Errorf("leave note: %w", err)
	}
	if len(text) > maxNote {
		return fmt.Errorf("leave note: %d bytes are more than %d", len(text), maxNote)
	}
	in := filepath.Join(dir, folder)
	if err := os.Mkdir(in, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("leave note: %w", err)
	}
	tmp, err := os.CreateTemp(in, "new-*")
	if err != nil {
		return fmt.Errorf("leave note: %w", err)
	}
	_, err = tmp.Write(text)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(in, audit.NewID()+suffix))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("leave note: %w", err), os.Remove(tmp.Name()))
	}
	return nil
}

// Run takes notes into the log, at each interval until ctx is done, then once
// more. What the log does not take stays for the next time.
func Run(ctx context.Context, dir string, log audit.Appender, every time.Duration, logger *slog.Logger) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for done := false; ; {
		if err := Collect(context.WithoutCancel(ctx), dir, log); err != nil {
			logger.Error("notes not taken into the audit log", "error", err)
		}
		if done {
			return
		}
		select {
		case <-ctx.Done():
			done = true
		case <-tick.C:
		}
	}
}

// appendTimeout bounds the wait for one record.
const appendTimeout = 5 * time.Second

// Collect takes in what there is now. A crash in between can take a note in
// twice, under the same id.
func Collect(ctx context.Context, dir string, log audit.Appender) error {
	in := filepath.Join(dir, folder)
	entries, err := os.ReadDir(in)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read inbox: %w", err)
	}
	taken := 0
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok || taken == maxNotes {
			continue
		}
		taken++
		path := filepath.Join(in, e.Name())
		rec, err := record(path, id)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, appendTimeout)
		_, err = log.Append(ctx, rec)
		cancel()
		if err != nil {
			return fmt.Errorf("take in note: %w", err)
		}
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("take in note: %w", err)
		}
	}
	return nil
}

// record makes the record of a note. Something else in its place is recorded as
// that: whoever put it there wanted it to be seen, or not to be.
func record(path, id string) (*audit.Record, error) {
	if _, err := uuid.Parse(id); err != nil {
		id = audit.NewID()
	}
	n, owner, err := read(path)
	if err != nil {
		return nil, err
	}
	rec := &audit.Record{Kind: audit.KindAdmin, ID: id, Durability: audit.Strict, Status: StatusReported}
	ev := event{At: n.At, Owner: owner, Note: n.Event}
	switch n.Kind {
	case audit.KindAccess:
		rec.Kind, rec.Status = audit.KindAccess, StatusRead
	case audit.KindAdmin:
	default:
		rec.Reason, ev.Note = "malformed_note", json.RawMessage("null")
	}
	rec.Event, err = json.Marshal(ev)
	return rec, err
}

// read reads a note. The zero note is one that is none.
func read(path string) (n note, owner *uint32, err error) {
	info, err := os.Lstat(path)
	if err != nil {
		return n, nil, fmt.Errorf("read note: %w", err)
	}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		owner = &sys.Uid
	}
	if !info.Mode().IsRegular() || info.Size() > maxNote {
		return n, owner, nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return n, owner, nil // such as a link that has just been put in its place
	}
	text, err := io.ReadAll(io.LimitReader(f, maxNote))
	if err := errors.Join(err, f.Close()); err != nil {
		return n, owner, fmt.Errorf("read note: %w", err)
	}
	if json.Unmarshal(text, &n) != nil {
		return note{}, owner, nil
	}
	return n, owner, nil
}
