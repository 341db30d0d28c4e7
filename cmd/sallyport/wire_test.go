package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/routing/prompt"
)

// smallModel is the configuration of the model that ships, its files copied.
func smallModel(t *testing.T) modelConfig {
	t.Helper()
	m := modelConfig{Name: "small", Dir: filepath.Join(t.TempDir(), "model")}
	if err := os.CopyFS(m.Dir, prompt.Small()); err != nil {
		t.Fatal(err)
	}
	return m
}

// tablesIn is the names of the files in dir; none if it is not there.
func tablesIn(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestTokenizerTablesAreKeptOnlyWhereConfiguredAndNeverByACheck(t *testing.T) {
	m := smallModel(t)
	var said bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&said, nil))
	load := func() {
		t.Helper()
		if _, err := loadPrompts([]modelConfig{m}, logger); err != nil {
			t.Fatal(err)
		}
	}
	before := tablesIn(t, m.Dir)
	load()
	if now := tablesIn(t, m.Dir); !slices.Equal(now, before) {
		t.Errorf("a model without a cache left %v", now)
	}
	m.Cache = filepath.Join(t.TempDir(), "tables")
	if err := checkModels([]modelConfig{m}); err != nil {
		t.Fatal(err)
	}
	if now := tablesIn(t, m.Cache); len(now) != 0 {
		t.Errorf("a check left %v", now)
	}
	load()
	if now := tablesIn(t, m.Cache); len(now) != 1 || !strings.HasSuffix(now[0], ".tables") {
		t.Errorf("kept: %v", now)
	}
	if said.Len() != 0 {
		t.Errorf("said: %s", &said)
	}
	// A cache that cannot be used makes starts slow, and is told; nothing else.
	m.Cache = filepath.Join(m.Dir, "tokenizer.json")
	load()
	if !strings.Contains(said.String(), "tokenizer tables not kept") {
		t.Errorf("said: %q", &said)
	}
}

func TestAModelIsTokenizedAsItsEngineWasStarted(t *testing.T) {
	for what, change := range map[string]func(*modelConfig){
		"zone: unknown time zone Nowhere":  func(m *modelConfig) { m.Zone = "Nowhere" },
		"default chat_template_kwargs: ":   func(m *modelConfig) { m.TemplateArgs = "[]" },
		"tokenizer.json: no such file or ": func(m *modelConfig) { m.Dir = t.TempDir() },
	} {
		m := smallModel(t)
		change(&m)
		_, err := loadPrompts([]modelConfig{m}, slog.New(slog.DiscardHandler))
		if cerr := checkModels([]modelConfig{m}); err == nil || cerr == nil || !strings.Contains(err.Error(), "model small: ") || !strings.Contains(cerr.Error(), what) {
			t.Errorf("want %q, got %v and, checking, %v", what, err, cerr)
		}
	}
	m := smallModel(t)
	if err := os.WriteFile(filepath.Join(m.Dir, "chat_template.jinja"), []byte(`{{ tone }}{{ strftime_now("%d %H") }}`), 0o600); err != nil {
		t.Fatal(err)
	}
	m.TemplateArgs, m.Zone = `{"tone":"calm "}`, "Pacific/Kiritimati" // 14 h before UTC
	there := func() string { return "calm " + time.Now().UTC().Add(14*time.Hour).Format("02 15") }
	loaded, err := loadPrompts([]modelConfig{m}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	before := there()
	p, err := loaded["small"].Chat(t.Context(), "acme", []byte(`{"model":"small","messages":[{"role":"user","content":"x"}]}`))
	if err != nil || p.Text != before && p.Text != there() {
		t.Errorf("%q, not %q: %v", p.Text, before, err)
	}
}
