package tlog

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
)

// namedKey returns a new key of a log of that name.
func namedKey(t *testing.T, name string) *Key {
	t.Helper()
	skey, _, err := GenerateKey(name)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ParseKey(skey)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestARestoredLogIsRefusedUntilItIsReanchored(t *testing.T) {
	for _, wiped := range []bool{false, true} {
		w := newFakeWitness(t, "a.example/w")
		cfg := witnessed(t, 1, w.config("a.example"))
		l := mustOpen(t, cfg)
		mustAppend(t, l, decision(1))
		mustClose(t, l)
		backup := filepath.Join(t.TempDir(), "backup")
		if err := os.CopyFS(backup, os.DirFS(cfg.Dir)); err != nil {
			t.Fatal(err)
		}
		l = mustOpen(t, cfg)
		mustAppend(t, l, decision(2))
		mustClose(t, l)
		held, err := os.ReadFile(filepath.Join(cfg.Dir, anchoredFile))
		if err != nil {
			t.Fatal(err)
		}
		size := mustVerify(t, cfg).TreeSize
		next := cfg
		next.Dir, next.Key, next.Witnesses = filepath.Join(t.TempDir(), "next"), namedKey(t, "sallyport.test/gw-0/2"), Witnesses{}
		lost := Lost{Dir: cfg.Dir, Key: cfg.Key.Verifier(), Checkpoint: held, By: "ops@acme.example", Reason: "restored"}
		if _, err := Reanchor(t.Context(), next, lost); !errors.Is(err, ErrNotLost) {
			t.Fatalf("Reanchor of a log that lost nothing = %v", err)
		}

		// The machine is set back to the backup.
		remove(t, cfg.Dir, "")
		left := uint64(0)
		if !wiped {
			if err := os.CopyFS(cfg.Dir, os.DirFS(backup)); err != nil {
				t.Fatal(err)
			}
			left = mustVerify(t, cfg).TreeSize
		}
		if _, err := Open(cfg); !errors.Is(err, ErrRefused) {
			t.Fatalf("Open after the restore = %v", err)
		}
		gap, err := Reanchor(t.Context(), next, lost)
		if err != nil {
			t.Fatal(err)
		}
		if gap.Size != left || gap.Held != size || gap.Records != size-left {
			t.Errorf("wiped %v: gap %+v", wiped, gap)
		}
		if _, err := Open(cfg); !errors.Is(err, ErrSuperseded) {
			t.Errorf("Open of the old log = %v", err)
		}
		if !wiped {
			mustVerify(t, cfg)
		}
		l = mustOpen(t, next)
		mustAppend(t, l, decision(3))
		mustClose(t, l)
		mustVerify(t, next)
		g := gaps(t, next.Dir)
		if len(g) != 1 || g[0].Reason != audit.GapReanchored || g[0].Origin != origin || g[0].Checkpoint != string(held) || g[0].Operator != "ops@acme.example" {
			t.Errorf("the new log says %+v", g)
		}
	}
}

func TestReanchorRefuses(t *testing.T) {
	cfg := smallLog(t)
	held, err := os.ReadFile(filepath.Join(cfg.Dir, checkpointFile))
	if err != nil {
		t.Fatal(err)
	}
	remove(t, cfg.Dir, checkpointFile)
	cutLastBatch(t, cfg.Dir)
	good := Lost{Dir: cfg.Dir, Key: cfg.Key.Verifier(), Checkpoint: held, By: "ops"}
	cases := map[string]func(c *Config, l *Lost){
		"the old name again":     func(c *Config, _ *Lost) { c.Key = testKey(t) },
		"a directory with a log": func(c *Config, _ *Lost) { c.Dir = cfg.Dir },
		"nobody who says so":     func(_ *Config, l *Lost) { l.By = "" },
		"a checkpoint of nobody": func(_ *Config, l *Lost) { l.Checkpoint = []byte("nonsense") },
		"a checkpoint under a stranger's key": func(_ *Config, l *Lost) {
			text, err := signCheckpoint(testKey(t), 99, new(tree).root())
			if err != nil {
				t.Fatal(err)
			}
			l.Checkpoint = text
		},
		"the same, of a log that is gone": func(_ *Config, l *Lost) {
			text, err := signCheckpoint(testKey(t), 99, new(tree).root())
			if err != nil {
				t.Fatal(err)
			}
			l.Checkpoint, l.Dir = text, filepath.Join(t.TempDir(), "gone")
		},
		"another log's key": func(_ *Config, l *Lost) { l.Key = namedKey(t, "x.test/other").Verifier() },
	}
	for name, edit := range cases {
		next := Config{Dir: filepath.Join(t.TempDir(), "next"), Key: namedKey(t, "x.test/next"), Boot: self, SegmentBytes: minSegmentBytes}
		lost := good
		edit(&next, &lost)
		if gap, err := Reanchor(t.Context(), next, lost); err == nil {
			t.Errorf("%s is taken: %+v", name, gap)
		}
		if strings.HasSuffix(next.Dir, "next") {
			if _, err := os.Stat(filepath.Join(next.Dir, walDir)); err == nil {
				t.Errorf("%s: a log was begun", name)
			}
		}
	}
	if err := superseded(cfg.Dir); err != nil {
		t.Errorf("the old log was marked: %v", err)
	}
}
