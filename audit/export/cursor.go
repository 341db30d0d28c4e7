package export

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/durable"
	"github.com/sallyport-ai/sallyport/audit/export/format"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

// place is a point in the log between two records.
type place struct {
	Next uint64       `json:"next"`           // index of the first record behind it
	Last *format.Link `json:"last,omitempty"` // the last record before it that the sink was given
}

// Cursor says how far a sink is. It is kept beside the log, in
// export/NAME.json, and from time to time in the log itself.
type Cursor struct {
	V      int    `json:"v"`
	Sink   string `json:"sink"`
	Origin string `json:"origin"`
	place
	Replay  *place  `json:"replay,omitempty"`  // of a lossy sink: from here on it may have lost what it was given
	Sending *intent `json:"sending,omitempty"` // of an exact sink: the batch that is on its way
	Sent    uint64  `json:"sent"`              // records taken, each counted once
	Dead    uint64  `json:"dead"`              // records that the sink refused for good
	Lost    uint64  `json:"lost"`              // records that were pruned before the sink had them
	Time    int64   `json:"time"`              // µs since the Unix epoch
}

// Needs is the index of the first record that the sink may still ask for.
func (c *Cursor) Needs() uint64 {
	if c.Replay != nil {
		return min(c.Next, c.Replay.Next)
	}
	return c.Next
}

// intent is a batch as it was first put together, so that it is put together
// in the same way again.
type intent struct {
	Next       uint64 `json:"next"`
	Time       int64  `json:"time"`
	Checkpoint string `json:"checkpoint"`
}

const (
	cursorVersion = 1
	folder        = "export"
)

func cursorPath(dir, name string) string { return filepath.Join(dir, folder, name+".json") }

// errNoCursor says that a sink has none yet.
var errNoCursor = errors.New("no cursor")

func readCursor(dir, name string) (c Cursor, err error) {
	b, err := os.ReadFile(cursorPath(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return c, errNoCursor
	}
	if err != nil {
		return c, fmt.Errorf("read cursor: %w", err)
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("read cursor: %w", err)
	}
	if c.V != cursorVersion || c.Sink != name {
		return c, fmt.Errorf("read cursor: of version %d and sink %q", c.V, c.Sink)
	}
	return c, nil
}

// write replaces the cursor file in one step.
func (c *Cursor) write(dir string) error {
	b, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("write cursor: %w", err)
	}
	if err := durable.Replace(cursorPath(dir, c.Sink), append(b, '\n')); err != nil {
		return fmt.Errorf("write cursor: %w", err)
	}
	return nil
}

// fits says why a cursor cannot be of this log, or nil: it is another log's, it
// is ahead of it, or its last record is not the log's.
func (c *Cursor) fits(dir, origin string, size uint64) error {
	if c.Origin != origin {
		return fmt.Errorf("of log %q", c.Origin)
	}
	if c.Next > size {
		return fmt.Errorf("ahead of the log: at record %d of %d", c.Next, size)
	}
	if c.Last == nil {
		return nil
	}
	for e, err := range tlog.Read(dir, c.Last.Index) {
		if err != nil {
			return err
		}
		if e.Index == c.Last.Index && format.LeafHash(e.Leaf) != c.Last.Hash {
			return fmt.Errorf("record %d was another when it was sent", e.Index)
		}
		break
	}
	return nil
}

// recorded finds the last cursor of a sink that the log itself holds. It reads
// the whole log.
func recorded(dir, name, origin string) (c Cursor, found bool, err error) {
	prefix := fmt.Sprintf(`{"v":%d,"kind":%q`, audit.Version, audit.KindExport)
	for e, err := range tlog.Read(dir, 0) {
		if err != nil {
			return c, false, fmt.Errorf("look for cursor: %w", err)
		}
		if !strings.HasPrefix(string(e.Leaf[:min(len(e.Leaf), len(prefix))]), prefix) {
			continue
		}
		r, err := audit.Decode(e.Leaf)
		if err != nil {
			return c, false, fmt.Errorf("look for cursor: %w", err)
		}
		var n note
		if json.Unmarshal(r.Event, &n) == nil && n.Sink == name && n.Cursor != nil && n.Cursor.Origin == origin {
			c, found = *n.Cursor, true
		}
	}
	return c, found, nil
}

// Cursors returns the cursors of all sinks that a log has had, also of those
// that are not configured any more. Whoever prunes the log asks how far they
// are.
func Cursors(dir string) ([]Cursor, error) {
	entries, err := os.ReadDir(filepath.Join(dir, folder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list cursors: %w", err)
	}
	var all []Cursor
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok {
			continue
		}
		c, err := readCursor(dir, name)
		if err != nil {
			return nil, fmt.Errorf("sink %s: %w", name, err)
		}
		all = append(all, c)
	}
	return all, nil
}
