// Package metricsdoc holds docs/metrics.md against what a process shows, for
// the tests of whatever shows it. Start at [Check].
package metricsdoc

import (
	"bufio"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Thing is a metric or a span: what kind it is of, and the names of its labels
// or attributes, sorted.
type Thing struct {
	Kind string
	Keys []string
}

// Documented returns the rows of the tables under a heading of the document, by
// name. A row is
//
//	| `name` | kind | `key`, `key` | meaning |
func Documented(tb testing.TB, heading string) map[string]Thing {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(root(tb), "docs", "metrics.md"))
	if err != nil {
		tb.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n## "+heading+"\n")
	if !ok {
		tb.Fatalf("docs/metrics.md has no heading %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	things := make(map[string]Thing)
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 6 || !strings.HasPrefix(cells[1], " `") {
			continue
		}
		if strings.TrimSpace(cells[4]) == "" {
			tb.Errorf("no meaning: %s", line)
		}
		things[strings.Trim(cells[1], " `")] = Thing{Kind: strings.TrimSpace(cells[2]), Keys: quoted(cells[3])}
	}
	return things
}

// root is the directory of go.mod.
func root(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if filepath.Dir(dir) == dir {
			tb.Fatal("no go.mod above the test")
		}
		dir = filepath.Dir(dir)
	}
}

func quoted(cell string) []string {
	keys := []string{}
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
		keys = append(keys, m[1])
	}
	slices.Sort(keys)
	return keys
}

var (
	sample = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*?)(_bucket|_sum|_count)?(\{(.*)\})? \S+$`)
	label  = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="`)
)

// Scraped returns what pages in Prometheus' text format hold, but for the
// metrics of the Go client itself.
func Scraped(tb testing.TB, pages ...string) map[string]Thing {
	tb.Helper()
	things := make(map[string]Thing)
	lines := bufio.NewScanner(strings.NewReader(strings.Join(pages, "\n")))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if fields := strings.Fields(line); len(fields) == 4 && fields[1] == "TYPE" {
			if name := fields[2]; !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
				things[name] = Thing{Kind: fields[3], Keys: things[name].Keys}
			}
			continue
		}
		m := sample.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name := m[1]
		if _, ok := things[name]; !ok {
			name += m[2] // not a histogram's suffix after all
		}
		t, ok := things[name]
		if !ok {
			continue
		}
		for _, l := range label.FindAllStringSubmatch(m[4], -1) {
			if l[1] != "le" && !slices.Contains(t.Keys, l[1]) {
				t.Keys = append(t.Keys, l[1])
			}
		}
		things[name] = t
	}
	if err := lines.Err(); err != nil {
		tb.Fatal(err)
	}
	return things
}

// Check fails the test for everything that is shown and not documented under
// the heading, documented and not shown, or of another kind or with other keys
// than documented.
func Check(tb testing.TB, heading string, shown map[string]Thing) {
	tb.Helper()
	documented := Documented(tb, heading)
	for _, name := range slices.Sorted(maps.Keys(shown)) {
		want, ok := documented[name]
		got := shown[name]
		slices.Sort(got.Keys)
		switch {
		case !ok:
			tb.Errorf("%s is not documented: | `%s` | %s | %v |", name, name, got.Kind, got.Keys)
		case got.Kind != want.Kind || !slices.Equal(got.Keys, want.Keys):
			tb.Errorf("%s is a %s of %v, documented as a %s of %v", name, got.Kind, got.Keys, want.Kind, want.Keys)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(documented)) {
		if _, ok := shown[name]; !ok {
			tb.Errorf("%s is documented and does not show", name)
		}
	}
}
