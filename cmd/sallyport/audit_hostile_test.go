package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
)

// rewriting is a text that takes the place of a line that a terminal shows.
const rewriting = "\x1b[2K\rx\nwhole: 9 records of example.org/gateway\u202e"

// Evidence comes from those whom it is about. What is said of it is ours, also where
// it is damaged.
func TestVerifySaysNothingInTheWordsOfWhatItVerifies(t *testing.T) {
	dir := t.TempDir()
	log, key := namedLog(t, dir, "gateway", &audit.Record{Kind: audit.KindAdmin, ID: "1"})
	at := func(name string) string { return filepath.Join(dir, name) }
	runKeys(t, "audit", "export", log, "--out", at("good.jsonl"))
	good, err := os.ReadFile(at("good.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	quoted, err := json.Marshal(rewriting)
	if err != nil {
		t.Fatal(err)
	}
	with := func(name string, n int) string { // the n-th name of a log in an excerpt is another
		parts := bytes.SplitN(good, []byte(`"example.org/gateway"`), n+1)
		if len(parts) <= n {
			t.Fatalf("an excerpt names its log %d times", len(parts)-1)
		}
		text := append(bytes.Join(parts[:n], []byte(`"example.org/gateway"`)), quoted...)
		if err := os.WriteFile(at(name), append(text, parts[n]...), 0o600); err != nil {
			t.Fatal(err)
		}
		return at(name)
	}
	bundled := func(name, file string) string {
		runKeys(t, "audit", "bundle", log, "--out", at(name))
		if err := os.WriteFile(filepath.Join(at(name), file), good, 0o600); err != nil {
			t.Fatal(err)
		}
		return at(name)
	}
	listed := func(name, file string) string {
		text, err := os.ReadFile(filepath.Join(bundled(name, "more"), "manifest.json"))
		if err == nil {
			member, _ := json.Marshal(file) // a string always can be
			text = bytes.Replace(text, []byte(`"files": {`), append([]byte(`"files": {`), append(member, `:"00",`...)...), 1)
			err = os.WriteFile(filepath.Join(at(name), "manifest.json"), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return at(name)
	}
	for claim, path := range map[string]string{
		"the name that an excerpt says it is of": with("header.jsonl", 1),
		"the name that a record says it is of":   with("record.jsonl", 2),
		"the name of a file in a bundle":         bundled("strange", strings.ReplaceAll(rewriting, "/", "_")),
		"the name of a file in a bundle's list":  listed("listed", rewriting),
	} {
		out, code := output(t, "audit", "verify", path, "--key", key)
		if code == 0 {
			t.Errorf("%s: it is good", claim)
		}
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "whole: 9") || strings.ContainsAny(line, "\x1b\r\u202e") {
				t.Errorf("%s: it says %q", claim, out)
				break
			}
		}
	}
	for claim, err := range map[string]error{
		"one error": errors.New("no key for " + rewriting),
		"several":   errors.Join(errors.New("no key for \x1b[2K"), errors.New("and \u202eno other")),
	} {
		var told bytes.Buffer
		complain(&told, err)
		if strings.ContainsAny(told.String(), "\x1b\r\u202e") || !strings.HasPrefix(told.String(), "sallyport: no key for ") || !strings.HasSuffix(told.String(), "\n") {
			t.Errorf("%s is told as %q", claim, told.String())
		}
	}
}

// What stands before damage is shown, and the exit code says that there is some.
func TestWhatIsSoundBeforeDamageIsListed(t *testing.T) {
	log, _ := namedLog(t, t.TempDir(), "gateway", &audit.Record{Kind: audit.KindAdmin, ID: "sound"}, &audit.Record{Kind: audit.KindAdmin, ID: "spoilt"})
	segment := filepath.Join(log, "wal", "00000000")
	text, err := os.ReadFile(segment)
	if err == nil {
		err = os.WriteFile(segment, bytes.Replace(text, []byte("spoilt"), []byte("Spoilt"), 1), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"show", "query"} {
		if rows, code := output(t, "audit", command, log); code != 2 || !strings.Contains(rows, "sound") {
			t.Errorf("%s: exit %d\n%s", command, code, rows)
		}
	}
}
