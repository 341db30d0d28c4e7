package prompt

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sallyport-ai/sallyport/routing/prompt/tokenizer"
)

func opened(t *testing.T, cache string) *Model {
	t.Helper()
	m, err := Open(Config{Files: Small(), Cache: cache})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestTablesAreKeptAndUsed(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "new")
	text := "<|im_start|>user\nTell me of e\u0301 and 12 others.<|im_end|>"
	want := small(t).Encode(text, true)
	var kept os.FileInfo
	for start := range 3 {
		m := opened(t, cache)
		if got := m.Encode(text, true); !slices.Equal(got, want) || m.CacheErr() != nil {
			t.Fatalf("start %d: %v, want %v; %v", start, got, want, m.CacheErr())
		}
		files, err := filepath.Glob(filepath.Join(cache, "*"))
		if err != nil || len(files) != 1 {
			t.Fatalf("start %d: files %v, %v", start, files, err)
		}
		info, err := os.Stat(files[0])
		if err != nil || kept != nil && !info.ModTime().Equal(kept.ModTime()) || info.Mode().Perm() != 0o600 {
			t.Fatalf("start %d: %v, %v: the tables were written again", start, info, err)
		}
		kept = info
	}
}

func TestDamagedTablesAreMadeAnew(t *testing.T) {
	cache := t.TempDir()
	opened(t, cache)
	files, err := filepath.Glob(filepath.Join(cache, "*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.Truncate(files[0], 100_000); err != nil {
		t.Fatal(err)
	}
	if m := opened(t, cache); !errors.Is(m.CacheErr(), tokenizer.ErrTables) {
		t.Errorf("damaged: %v", m.CacheErr())
	}
	if m := opened(t, cache); m.CacheErr() != nil {
		t.Errorf("made anew: %v", m.CacheErr())
	}
}

func TestAModelLoadsWithoutItsCache(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if m := opened(t, file); m.CacheErr() == nil || len(m.Encode("a", true)) != 1 {
		t.Error("a cache that is no folder is not reported")
	}
}
