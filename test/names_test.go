package test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testNamed = regexp.MustCompile("`(Test[A-Z]\\w+)`")
	testThere = regexp.MustCompile(`(?m)^func (Test[A-Z]\w+)\(`)
	fileNamed = regexp.MustCompile("`((?:audit|cmd|deploy|gateway|identity|policies|policy|routing|test)/[\\w./-]+\\.\\w+)`")
)

// TestTheTestsThatTheDocumentsNameExist holds that what a document says is tested
// can be looked up.
func TestTheTestsThatTheDocumentsNameExist(t *testing.T) {
	there := make(map[string]bool)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range testThere.FindAllSubmatch(text, -1) {
			there[string(m[1])] = true
		}
		return err
	})
	if err != nil || len(there) < 500 {
		t.Fatalf("found %d tests, %v", len(there), err)
	}
	documents, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, document := range documents {
		text := readFile(t, document)
		for _, m := range testNamed.FindAllStringSubmatch(text, -1) {
			if named++; !there[m[1]] {
				t.Errorf("%s names %s, which there is not", filepath.Base(document), m[1])
			}
		}
		for _, m := range fileNamed.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join("..", m[1])); err != nil {
				t.Errorf("%s names a file: %v", filepath.Base(document), err)
			}
		}
	}
	if named < 50 {
		t.Errorf("only %d tests are named", named)
	}
}
