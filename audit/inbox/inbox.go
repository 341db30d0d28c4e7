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
	aside  = "refused" // where notes are kept that the log does not take

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
	c := newCollector(dir, log)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for done := false; ; {
		if err := c.collect(context.WithoutCancel(ctx)); err != nil {
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
	return newCollector(dir, log).collect(ctx)
}

// collector takes in the notes beside one log.
type collector struct {
	in     string
	log    audit.Appender
	remove func(path string) error
	stuck  map[string]bool // names of those that were taken in and cannot be removed
}

func newCollector(dir string, log audit.Appender) *collector {
	return &collector{in: filepath.Join(dir, folder), log: log, remove: os.RemoveAll, stuck: make(map[string]bool)}
}

// collect goes on past a note that cannot be taken in, but not where the log takes
// nothing at all.
func (c *collector) collect(ctx context.Context) error {
	entries, err := os.ReadDir(c.in)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read inbox: %w", err)
	}
	var errs []error
	taken := 0
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok || c.stuck[e.Name()] {
			continue
		}
		if taken++; taken > maxNotes {
			break
		}
		err := c.take(ctx, e.Name(), id)
		if errors.Is(err, audit.ErrUnavailable) {
			return errors.Join(append(errs, err)...)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// take makes a record of one note and takes it away. One that the log refuses is
// kept aside, on record.
func (c *collector) take(ctx context.Context, name, id string) error {
	path := filepath.Join(c.in, name)
	rec, err := record(path, id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // whoever left it has taken it away
	}
	if err != nil {
		return err
	}
	err = c.append(ctx, rec)
	switch {
	case err == nil:
		err = c.remove(path)
	case errors.Is(err, audit.ErrUnavailable):
		return fmt.Errorf("take in note: %w", err)
	default:
		if err = c.append(ctx, refusal(rec, name, err)); err != nil {
			return fmt.Errorf("record the refusal of a note: %w", err)
		}
		if err = os.Mkdir(filepath.Join(c.in, aside), 0o700); err == nil || errors.Is(err, fs.ErrExist) {
			err = os.Rename(path, filepath.Join(c.in, aside, name))
		}
	}
	if err != nil {
		c.stuck[name] = true // else it would be recorded over and over
		return fmt.Errorf("take away note %s, which has been recorded: %w", name, err)
	}
	return nil
}

func (c *collector) append(ctx context.Context, rec *audit.Record) error {
	ctx, cancel := context.WithTimeout(ctx, appendTimeout)
	defer cancel()
	_, err := c.log.Append(ctx, rec)
	return err
}

// refusal is the record that the log did not take a note.
func refusal(of *audit.Record, name string, why error) *audit.Record {
	var ev event
	if json.Unmarshal(of.Event, &ev) != nil {
		ev = event{} // then nothing is known of it
	}
	ev.Note = json.RawMessage("null")
	text, err := json.Marshal(ev)
	if err != nil {
		text = nil
	}
	return &audit.Record{
		Kind: audit.KindAdmin, ID: audit.NewID(), Durability: audit.Strict, Status: StatusReported, Reason: "refused_note",
		Detail: strings.ToValidUTF8(fmt.Sprintf("%.100q is kept in %s/%s: %.200v", name, folder, aside, why), "\ufffd"), Event: text,
	}
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
