package excerpt

import (
	"bytes"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
)

const origin = "example.org/gateway"

// writeLog writes a closed log with n records and what the log adds itself.
func writeLog(t testing.TB, n int) (dir string, key note.Verifier) {
	t.Helper()
	k := tlogtest.Key(t, origin)
	dir = t.TempDir()
	records := make([]*audit.Record, n)
	for i := range n {
		records[i] = &audit.Record{Kind: audit.KindAdmin, ID: fmt.Sprint(i), Durability: audit.Bounded, Detail: "<&>\u2028"}
	}
	tlogtest.Write(t, tlog.Config{Dir: dir, Key: k}, records...)
	return dir, k.Verifier()
}

// make writes an excerpt.
func excerptOf(t testing.TB, dir string, o Options) string {
	t.Helper()
	var b strings.Builder
	if _, err := Write(&b, dir, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// evens selects every second record.
func evens(records iter.Seq2[tlog.Entry, error]) iter.Seq2[tlog.Entry, error] {
	return func(yield func(tlog.Entry, error) bool) {
		for e, err := range records {
			if e.Index%2 == 0 && !yield(e, err) {
				return
			}
		}
	}
}

func TestEveryRangeOfALogVerifies(t *testing.T) {
	const n = 21 // with its start and its seal: several unequal subtrees
	dir, key := writeLog(t, n-2)
	for from := range uint64(n + 1) {
		for to := from; to <= n; to++ {
			if to == 0 {
				continue // means as far as there is
			}
			r, err := Verify(strings.NewReader(excerptOf(t, dir, Options{From: from, To: to})), key)
			if err != nil || !r.OK() || r.Records != to-from || r.TreeSize != n {
				t.Fatalf("records %d to %d: %+v, %v", from, to, r, err)
			}
		}
	}
	if _, err := Write(new(bytes.Buffer), dir, Options{To: n + 1}); err == nil {
		t.Error("more records than there are were written")
	}
}

func TestSelectedRecordsVerify(t *testing.T) {
	dir, key := writeLog(t, 600)
	text := excerptOf(t, dir, Options{From: 100, To: 500, Select: evens})
	r, err := Verify(strings.NewReader(text), key)
	if err != nil || !r.OK() || !r.Selected || r.Records != 200 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestAnExcerptIsReadAsTheLogIs(t *testing.T) {
	dir, _ := writeLog(t, 40)
	for name, o := range map[string]Options{"a range": {From: 7, To: 30}, "a selection": {Select: evens}} {
		path := filepath.Join(t.TempDir(), "x.jsonl")
		if err := os.WriteFile(path, []byte(excerptOf(t, dir, o)), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, _, ok := Of(path); !ok || got != origin {
			t.Errorf("%s: not known for an excerpt", name)
		}
		leaves := make(map[uint64]string)
		for e, err := range tlog.Read(dir, 0) {
			if err != nil {
				t.Fatal(err)
			}
			leaves[e.Index] = string(e.Leaf)
		}
		n := 0
		for e, err := range Read(path) {
			if err != nil || leaves[e.Index] != string(e.Leaf) {
				t.Fatalf("%s: record %d: %v", name, e.Index, err)
			}
			n++
		}
		if n == 0 {
			t.Errorf("%s: no records", name)
		}
	}
	if Is(filepath.Join(dir, "checkpoint")) {
		t.Error("a checkpoint is taken for an excerpt")
	}
}

func TestWhatWasDoneToAnExcerptIsFound(t *testing.T) {
	dir, key := writeLog(t, 30)
	foreign, otherKey := writeLog(t, 30)
	lines := strings.SplitAfter(excerptOf(t, dir, Options{From: 3, To: 20}), "\n")
	selected := strings.SplitAfter(excerptOf(t, dir, Options{From: 3, To: 20, Select: evens}), "\n")
	join := func(parts ...[]string) string {
		var all []string
		for _, p := range parts {
			all = append(all, p...)
		}
		return strings.Join(all, "")
	}
	const nowhere = -1
	for claim, c := range map[string]struct {
		text  string
		code  tlog.Code
		index int64
	}{
		"a record is missing":                       {join(lines[:5], lines[6:]), tlog.SequenceGap, 7},
		"a record stands twice":                     {join(lines[:6], lines[5:]), tlog.SequenceGap, 8},
		"two records are swapped":                   {join(lines[:5], lines[6:7], lines[5:6], lines[7:]), tlog.SequenceGap, 7},
		"a record is changed":                       {strings.Replace(join(lines), `"id":"9"`, `"id":"8"`, 1), tlog.RootMismatch, nowhere},
		"a record is taken from elsewhere":          {join(lines[:5], strings.SplitAfter(excerptOf(t, foreign, Options{From: 7, To: 8}), "\n")[1:2], lines[6:]), tlog.RootMismatch, nowhere},
		"the last records are missing":              {join(lines[:10], []string{`{"records":9}` + "\n"}), tlog.SizeMismatch, nowhere},
		"and the first line says so":                {strings.Replace(join(lines[:10], []string{`{"records":9}` + "\n"}), `"to":20`, `"to":12`, 1), tlog.RootMismatch, nowhere},
		"the end is cut off":                        {join(lines[:10]), tlog.Truncated, nowhere},
		"something follows the end":                 {join(lines) + "{}\n", tlog.TrailingData, nowhere},
		"the last line counts wrongly":              {strings.Replace(join(lines), `{"records":17}`, `{"records":18}`, 1), tlog.SizeMismatch, nowhere},
		"the last line says more":                   {strings.Replace(join(lines), `{"records":17}`, `{"records":17,"x":1}`, 1), tlog.BadFrame, nowhere},
		"it is another version":                     {strings.Replace(join(lines), `{"excerpt":1`, `{"excerpt":2`, 1), tlog.BadHeader, nowhere},
		"it is nothing":                             {"", tlog.Truncated, nowhere},
		"a line never ends":                         {lines[0] + strings.Repeat("x", maxLine+1), tlog.BadFrame, nowhere},
		"a selected record is changed":              {strings.Replace(join(selected), `"id":"9"`, `"id":"8"`, 1), tlog.RootMismatch, 10},
		"a selected record has another's proof":     {join(selected[:1], selected[1:2], selected[4:5], selected[3:]), tlog.RootMismatch, 6},
		"a selected record has no proof":            {join(selected[:2], selected[3:]), tlog.BadFrame, nowhere},
		"a selection does not say how much it left": {strings.Replace(join(selected), `"selected":true`, `"selected":false`, 1), tlog.BadHeader, nowhere},
	} {
		r, err := Verify(strings.NewReader(c.text), key)
		if err != nil || r.Code != c.code || r.FirstBad != c.index {
			t.Errorf("%s: %q at %d (%s), %v; want %q at %d", claim, r.Code, r.FirstBad, r.Detail, err, c.code, c.index)
		}
	}
	if r, err := Verify(strings.NewReader(join(lines)), otherKey); err != nil || r.Code != tlog.KeyMismatch {
		t.Errorf("under another key of that name: %+v, %v", r, err)
	}
	if _, err := Verify(strings.NewReader(join(lines)), nil); err == nil {
		t.Error("verified without a key")
	}
}

// Every byte counts, but for those that no reader takes for anything.
func TestEveryByteOfAnExcerptCounts(t *testing.T) {
	dir, key := writeLog(t, 6)
	for name, o := range map[string]Options{"a range": {From: 2, To: 6}, "a selection": {Select: evens}} {
		text := []byte(excerptOf(t, dir, o))
		for i := range text {
			forged := bytes.Clone(text)
			forged[i] ^= 1
			if r, err := Verify(bytes.NewReader(forged), key); err == nil && r.OK() {
				t.Errorf("%s: byte %d, %q instead of %q, makes no difference: %s", name, i, forged[i], text[i], text[max(0, i-20):i+1])
			}
		}
	}
}

func FuzzVerify(f *testing.F) {
	dir, key := writeLog(f, 12)
	whole := excerptOf(f, dir, Options{From: 2, To: 9})
	f.Add([]byte(whole))
	f.Add([]byte(excerptOf(f, dir, Options{Select: evens})))
	f.Add([]byte(`{"excerpt":1,"from":18446744073709551615,"to":18446744073709551615}`))
	genuine := make(map[string]bool)
	for e, err := range tlog.Read(dir, 0) {
		if err != nil {
			f.Fatal(err)
		}
		genuine[string(e.Leaf)] = true
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := Verify(bytes.NewReader(text), key)
		if err != nil || !r.OK() {
			return
		}
		for _, line := range bytes.Split(text, []byte("\n")) {
			if bytes.HasPrefix(line, recordPrefix) && !genuine[string(bytes.TrimSuffix(line, []byte("\r")))] {
				t.Fatalf("verified with a record that is not in the log: %s", line)
			}
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	dir, key := writeLog(b, 4096)
	text := excerptOf(b, dir, Options{})
	b.ResetTimer()
	for range b.N {
		if r, err := Verify(strings.NewReader(text), key); err != nil || !r.OK() {
			b.Fatal(r, err)
		}
	}
	b.ReportMetric(float64(4098*b.N)/b.Elapsed().Seconds(), "records/s")
}

func TestASelectionHoldsNoRecordTwice(t *testing.T) {
	dir, key := writeLog(t, 10)
	lines := strings.SplitAfter(excerptOf(t, dir, Options{Select: evens}), "\n")
	head, first, last := lines[0], lines[1:3], lines[len(lines)-2]
	for claim, records := range map[string][]string{
		"a record twice":       {first[0], first[1], first[0], first[1]},
		"records out of order": {lines[3], lines[4], first[0], first[1]},
	} {
		text := head + strings.Join(records, "") + "{\"records\":2}\n"
		r, err := Verify(strings.NewReader(text), key)
		if err != nil || r.Code != tlog.SequenceGap {
			t.Errorf("%s: %+v, %v", claim, r, err)
		}
	}
	if !strings.HasPrefix(last, "{\"records\":") {
		t.Errorf("the last line is %s", last)
	}
}

func TestAnExcerptHoldsACosignedCheckpointWhereOneCoversIt(t *testing.T) {
	key := tlogtest.Key(t, origin)
	cfg := tlog.Config{Dir: t.TempDir(), Key: key}
	tlogtest.Write(t, cfg, &audit.Record{Kind: audit.KindAdmin, ID: "1"})
	witness := tlogtest.NewMLDSAWitness(t, "w.example/w")
	tlogtest.Anchor(t, cfg.Dir, witness)
	_, anchored, err := tlog.Anchored(cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	tlogtest.Write(t, cfg, &audit.Record{Kind: audit.KindAdmin, ID: "2"})
	trusted, err := tlog.Trusted(1, witness.Key)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		options  Options
		cosigned bool
	}{
		{"all that is anchored", Options{To: uint64(anchored.N)}, true},
		{"some of it", Options{From: 1, To: 2}, true},
		{"some of it, selected", Options{To: uint64(anchored.N), Select: evens}, true},
		{"one record more", Options{To: uint64(anchored.N) + 1}, false},
		{"all there is", Options{}, false},
	} {
		r, err := Verify(strings.NewReader(excerptOf(t, cfg.Dir, c.options)), key.Verifier())
		if err != nil || !r.OK() {
			t.Fatalf("%s: %+v, %v", c.name, r, err)
		}
		if _, err := trusted.Vouch(r.Checkpoint); (err == nil) != c.cosigned {
			t.Errorf("%s: the witness: %v", c.name, err)
		}
	}
}

func TestAnExcerptOfNothingVerifiesWhereverItIs(t *testing.T) {
	dir, key := writeLog(t, 9)
	for _, at := range []uint64{0, 1, 8, 11} {
		text := excerptOf(t, dir, Options{From: at, None: true})
		r, err := Verify(strings.NewReader(text), key)
		if err != nil || !r.OK() || r.Records != 0 || r.From != at || r.To != at || r.TreeSize != 11 {
			t.Errorf("at %d: %+v, %v", at, r, err)
		}
	}
	if _, err := Write(new(bytes.Buffer), dir, Options{From: 12, None: true}); err == nil {
		t.Error("beyond the end nothing was written as if it were there")
	}
}
