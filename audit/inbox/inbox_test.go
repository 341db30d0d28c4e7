package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
)

// openLog opens a log in dir.
func openLog(t *testing.T, dir string) *tlog.Log {
	t.Helper()
	return tlogtest.Open(t, tlog.Config{Dir: dir})
}

// taken are the records that came from notes.
func taken(t *testing.T, dir string) (out []*audit.Record) {
	t.Helper()
	for _, r := range tlogtest.Records(t, dir, 0) {
		if r.Status == StatusRead || r.Status == StatusReported {
			out = append(out, r)
		}
	}
	return out
}

func TestANoteBecomesARecord(t *testing.T) {
	dir := t.TempDir()
	log := openLog(t, dir)
	if err := Leave(dir, audit.KindAccess, map[string]string{"command": "query"}); err != nil {
		t.Fatal(err)
	}
	if err := Leave(dir, audit.KindAdmin, map[string]string{"action": "destroy"}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing to take
		if err := Collect(t.Context(), dir, log); err != nil {
			t.Fatal(err)
		}
	}
	got := taken(t, dir)
	if len(got) != 2 || got[0].Kind != audit.KindAccess || got[0].Status != StatusRead || got[1].Kind != audit.KindAdmin || got[1].Status != StatusReported {
		t.Fatalf("%+v", got)
	}
	var ev event
	if err := json.Unmarshal(got[0].Event, &ev); err != nil || string(ev.Note) != `{"command":"query"}` || ev.Owner == nil || int(*ev.Owner) != os.Getuid() {
		t.Errorf("%s: %v", got[0].Event, err)
	}
	if age := time.Since(time.UnixMicro(ev.At)); age < 0 || age > time.Minute {
		t.Errorf("the note is %v old", age)
	}
}

func TestWhatIsNoNoteIsRecordedAsThat(t *testing.T) {
	dir := t.TempDir()
	log := openLog(t, dir)
	in := filepath.Join(dir, folder)
	if err := os.Mkdir(in, 0o700); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	put := func(name, text string) error {
		return os.WriteFile(filepath.Join(in, name+suffix), []byte(text), 0o600)
	}
	err := errors.Join(
		put("no-json", "hello"),
		put("another-kind", `{"kind":"decision","event":{"status":"allowed"}}`),
		put("too-long", `{"kind":"access","event":"`+strings.Repeat("x", maxNote)+`"}`),
		os.WriteFile(secret, []byte(`{"kind":"access","event":"secret"}`), 0o600),
		os.Symlink(secret, filepath.Join(in, "link"+suffix)),
		os.Mkdir(filepath.Join(in, "folder"+suffix), 0o700),
		os.WriteFile(filepath.Join(in, "new-12345"), []byte("{"), 0o600), // being written
	)
	if err != nil {
		t.Fatal(err)
	}
	if err := Collect(t.Context(), dir, log); err != nil {
		t.Fatal(err)
	}
	got := taken(t, dir)
	if len(got) != 5 {
		t.Errorf("%d records", len(got))
	}
	for _, r := range got {
		if r.Kind != audit.KindAdmin || r.Reason != "malformed_note" || strings.Contains(string(r.Event), "secret") {
			t.Errorf("%s %s %s", r.Kind, r.Reason, r.Event)
		}
	}
	left, err := os.ReadDir(in)
	if err != nil || len(left) != 1 {
		t.Errorf("%d files left, %v", len(left), err)
	}
	if _, err := os.Stat(secret); err != nil {
		t.Error("the file that the link led to is gone")
	}
}

// refusing is a log that takes nothing.
type refusing struct{}

func (refusing) Append(context.Context, *audit.Record) (audit.Position, error) {
	return audit.Position{}, audit.ErrUnavailable
}

func TestANoteStaysUntilItIsTaken(t *testing.T) {
	dir := t.TempDir()
	if err := Leave(dir, audit.KindAccess, "x"); err != nil {
		t.Fatal(err)
	}
	if err := Collect(t.Context(), dir, refusing{}); !errors.Is(err, audit.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	log := openLog(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	Run(ctx, dir, log, time.Hour, slog.New(slog.DiscardHandler)) // the last round
	if got := taken(t, dir); len(got) != 1 {
		t.Errorf("%d records", len(got))
	}
}

func TestAFloodOfNotesIsTakenInTurns(t *testing.T) {
	dir := t.TempDir()
	log := openLog(t, dir)
	for i := range maxNotes + 1 {
		if err := Leave(dir, audit.KindAccess, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int{maxNotes, maxNotes + 1} {
		if err := Collect(t.Context(), dir, log); err != nil {
			t.Fatal(err)
		}
		if got := len(taken(t, dir)); got != want {
			t.Errorf("%d records, want %d", got, want)
		}
	}
	if err := Leave(dir, audit.KindAccess, strings.Repeat("x", maxNote)); err == nil {
		t.Error("a note of any length was left")
	}
	if i := slices.IndexFunc(taken(t, dir), func(r *audit.Record) bool { return r.Reason != "" }); i >= 0 {
		t.Errorf("note %d was not understood", i)
	}
}

// picky is a log that does not take some records, as one that cannot be encoded.
type picky struct {
	*tlog.Log
	refuses string
}

func (p picky) Append(ctx context.Context, r *audit.Record) (audit.Position, error) {
	if strings.Contains(string(r.Event), p.refuses) {
		return audit.Position{}, errors.New("cannot be encoded")
	}
	return p.Log.Append(ctx, r)
}

func TestANoteThatTheLogRefusesIsKeptAsideAndHoldsUpNoOther(t *testing.T) {
	dir := t.TempDir()
	log := picky{openLog(t, dir), "poison"}
	for _, what := range []string{"first", "poison", "last"} {
		if err := Leave(dir, audit.KindAccess, what); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := Collect(t.Context(), dir, log); err != nil {
			t.Fatal(err)
		}
	}
	got := taken(t, dir)
	if len(got) != 3 || !strings.Contains(string(got[0].Event), "first") || !strings.Contains(string(got[2].Event), "last") {
		t.Fatalf("%d records: %+v", len(got), got)
	}
	if r := got[1]; r.Kind != audit.KindAdmin || r.Reason != "refused_note" || !strings.Contains(r.Detail, "cannot be encoded") || strings.Contains(string(r.Event), "poison") {
		t.Errorf("the refusal is %s %s %s %s", r.Kind, r.Reason, r.Detail, r.Event)
	}
	kept, err := os.ReadDir(filepath.Join(dir, folder, aside))
	if err != nil || len(kept) != 1 {
		t.Fatalf("%d notes kept aside, %v", len(kept), err)
	}
	text, err := os.ReadFile(filepath.Join(dir, folder, aside, kept[0].Name()))
	if err != nil || !strings.Contains(string(text), "poison") {
		t.Errorf("what is kept is %q, %v", text, err)
	}
}

// Whatever stands in a note, nothing after it is held up.
func TestANoteOfAnyBytesIsTakenIn(t *testing.T) {
	dir := t.TempDir()
	log := openLog(t, dir)
	in := filepath.Join(dir, folder)
	if err := os.Mkdir(in, 0o700); err != nil {
		t.Fatal(err)
	}
	for i, text := range []string{
		"", "null", "[]", `{"kind":"access"}`, `{"kind":"access","event":null}`, "{\"kind\":\"access\",\"event\":\"\xff\"}", `{"kind":"access","event":{"a":1,"a":2}}`,
		`{"kind":"access","event":"\ud800"}`, `{"kind":"access","event":` + strings.Repeat("[", 3000) + strings.Repeat("]", 3000) + `}`, `{"kind":"access","at":1e9,"event":1}`,
	} {
		if err := os.WriteFile(filepath.Join(in, fmt.Sprintf("%02d%s", i, suffix)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Leave(dir, audit.KindAccess, "the last"); err != nil {
		t.Fatal(err)
	}
	if err := Collect(t.Context(), dir, log); err != nil {
		t.Error(err)
	}
	got := taken(t, dir)
	if len(got) != 11 || !slices.ContainsFunc(got, func(r *audit.Record) bool { return strings.Contains(string(r.Event), "the last") }) {
		t.Errorf("%d records", len(got))
	}
	left, err := filepath.Glob(filepath.Join(in, "*"+suffix))
	if err != nil || len(left) != 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

func TestANoteThatCannotBeRemovedIsRecordedOnce(t *testing.T) {
	dir := t.TempDir()
	log := openLog(t, dir)
	if err := Leave(dir, audit.KindAccess, "x"); err != nil {
		t.Fatal(err)
	}
	c := newCollector(dir, log)
	c.remove = func(string) error { return fs.ErrPermission }
	if err := c.collect(t.Context()); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v", err)
	}
	if err := c.collect(t.Context()); err != nil {
		t.Error(err)
	}
	if got := taken(t, dir); len(got) != 1 {
		t.Errorf("%d records", len(got))
	}
}
