package tlog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/sallyport-ai/sallyport/audit"
)

// fill appends decisions with their outcomes until the log has so many segments.
func fill(t *testing.T, l *Log, segments int) {
	t.Helper()
	for i := 0; ; i++ {
		d := decision(i)
		mustAppend(t, l, d)
		mustAppend(t, l, outcomeOf(d))
		if i%50 > 0 {
			continue
		}
		segs, err := listSegments(l.cfg.Dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(segs) >= segments {
			await(t, "checkpoint", func() bool { return l.publishedSize.Load() == l.Head().Size })
			return
		}
	}
}

func TestPrunedLogStaysProvable(t *testing.T) {
	for _, two := range []bool{false, true} {
		t.Run(fmt.Sprintf("two directories %v", two), func(t *testing.T) {
			cfg := testConfig(t, testKey(t))
			cfg.CheckpointEvery = 10 * time.Millisecond
			if two {
				cfg.Dir2 = t.TempDir()
			}
			l := mustOpen(t, cfg)
			fill(t, l, 3)
			early, err := os.ReadFile(filepath.Join(cfg.Dir, checkpointFile))
			if err != nil {
				t.Fatal(err)
			}
			// The key changes before and after: what was pruned must not hide how.
			first := cfg.Key
			cfg.Key = testKey(t)
			if _, err := l.Rotate(t.Context(), cfg.Key); err != nil {
				t.Fatal(err)
			}
			fill(t, l, 7)
			leaf, err := l.Get(l.Head().Size - 1)
			if err != nil {
				t.Fatal(err)
			}
			at := l.Head().Size - 1
			done, err := l.Prune(t.Context(), PruneOptions{Below: at, Before: time.Now(), Reason: "test", By: "ops"})
			if err != nil || done.Size == 0 || done.Size > at {
				t.Fatalf("Prune = %+v, %v", done, err)
			}
			if _, err := l.Prune(t.Context(), PruneOptions{Below: at}); !errors.Is(err, ErrNothingToPrune) {
				t.Errorf("a second time: %v", err)
			}
			if segs, err := listSegments(cfg.Dir); err != nil || segs[0] < 4 {
				t.Fatalf("segments left: %v, %v", segs, err)
			}
			if _, err := l.Get(0); !errors.Is(err, ErrNotFound) {
				t.Errorf("Get of what was pruned: %v", err)
			}
			mustAppend(t, l, decision(1))
			mustClose(t, l)

			check := func() {
				t.Helper()
				for _, key := range []*Key{first, cfg.Key} {
					report, err := Verify(cfg.Dir, key.Verifier(), VerifyOptions{Checkpoint: early})
					if err != nil || !report.OK() || report.Pruned != done.Size || report.Rotations != 1 {
						t.Errorf("Verify = %+v, %v", report, err)
					}
				}
				next := done.Size
				for e, err := range Read(cfg.Dir, 0) {
					if err != nil || e.Index != next {
						t.Fatalf("Read gives %d, %v where %d is due", e.Index, err, next)
					}
					next++
				}
				for _, index := range []uint64{done.Size, at} {
					if _, err := Prove(cfg.Dir, index); err != nil {
						t.Errorf("Prove(%d): %v", index, err)
					}
				}
				proof, err := Prove(cfg.Dir, at)
				if err != nil {
					t.Fatal(err)
				}
				if i, err := CheckProof(proof, leaf, cfg.Key.Verifier()); err != nil || i != at {
					t.Errorf("CheckProof = %d, %v", i, err)
				}
			}
			check()
			// After a restart, and after one without an orderly end, when the tiles
			// have to be made again.
			l = mustOpen(t, cfg)
			fill(t, l, 3)
			copied := cfg
			copied.Dir, copied.Dir2 = filepath.Join(t.TempDir(), "copy"), ""
			if err := os.CopyFS(copied.Dir, os.DirFS(cfg.Dir)); err != nil {
				t.Fatal(err)
			}
			mustClose(t, l)
			check()
			l = mustOpen(t, copied)
			fill(t, l, 3)
			mustClose(t, l)
			if report := mustVerify(t, copied); report.Pruned != done.Size {
				t.Errorf("Verify = %+v", report)
			}
		})
	}
}

func TestRecordsMissingWithoutAPruneRecordAreMissing(t *testing.T) {
	made := func(t *testing.T) (Config, audit.Prune) {
		cfg := testConfig(t, testKey(t))
		cfg.CheckpointEvery = 10 * time.Millisecond
		l := mustOpen(t, cfg)
		fill(t, l, 6)
		done, err := l.Prune(t.Context(), PruneOptions{Below: l.Head().Size / 2})
		if err != nil {
			t.Fatal(err)
		}
		mustClose(t, l)
		return cfg, done
	}
	cases := []struct {
		name string
		harm func(t *testing.T, cfg Config, done audit.Prune)
	}{
		{"one more segment than was pruned", func(t *testing.T, cfg Config, _ audit.Prune) {
			segs, err := listSegments(cfg.Dir)
			if err != nil {
				t.Fatal(err)
			}
			remove(t, cfg.Dir, walDir+"/"+filepath.Base(segmentPath("", segs[0])))
		}},
		{"and the tiles too", func(t *testing.T, cfg Config, _ audit.Prune) { remove(t, cfg.Dir, "tile") }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cfg, done := made(t)
			c.harm(t, cfg, done)
			report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{})
			if err != nil || report.Code != MissingSegment {
				t.Errorf("Verify = %+v, %v", report, err)
			}
			if _, err := Open(cfg); err == nil {
				t.Error("Open accepts it")
			}
		})
	}
	t.Run("a tile that lies", func(t *testing.T) {
		cfg, done := made(t)
		index := tlog.StoredHashIndex(0, int64(done.Size)-1)
		path, err := tileFile(cfg.Dir, tlog.TileForIndex(tileHeight, index))
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := range data {
			data[i] ^= 1
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{}); err != nil || done.Size%2 == 1 && report.Code != RootMismatch {
			t.Errorf("Verify = %+v, %v", report, err)
		}
	})
}

func TestAPruneThatWasCutShortIsFinishedWhenTheLogIsOpened(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	cfg.CheckpointEvery = 10 * time.Millisecond
	l := mustOpen(t, cfg)
	fill(t, l, 6)
	before := filepath.Join(t.TempDir(), "before")
	if err := os.CopyFS(before, os.DirFS(filepath.Join(cfg.Dir, walDir))); err != nil {
		t.Fatal(err)
	}
	done, err := l.Prune(t.Context(), PruneOptions{Below: l.Head().Size - 1})
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, l)
	// As if only the first had been removed when it was cut short.
	for number := 1; ; number++ {
		if _, err := os.Stat(segmentPath(cfg.Dir, number)); err == nil {
			break
		}
		if err := os.Rename(filepath.Join(before, filepath.Base(segmentPath("", number))), segmentPath(cfg.Dir, number)); err != nil {
			t.Fatal(err)
		}
	}
	report := mustVerify(t, cfg)
	if report.Pruned == 0 || report.Pruned >= done.Size {
		t.Fatalf("half pruned: %+v", report)
	}
	remove(t, cfg.Dir, checkpointFile)
	l = mustOpen(t, cfg)
	await(t, "published again", func() bool { return l.publishedSize.Load() == l.Head().Size })
	mustClose(t, l)
	if report := mustVerify(t, cfg); report.Pruned != done.Size {
		t.Errorf("after opening it: %+v", report)
	}
}

func TestNothingIsPrunedThatSomebodyNeeds(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	cfg.CheckpointEvery = 10 * time.Millisecond
	l := mustOpen(t, cfg)
	fill(t, l, 5)
	for name, o := range map[string]PruneOptions{
		"younger records":           {Before: time.Now().Add(-time.Hour)},
		"records that are exported": {Before: time.Now(), Below: 3},
	} {
		if _, err := l.Prune(t.Context(), o); !errors.Is(err, ErrNothingToPrune) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := l.Prune(t.Context(), PruneOptions{}); err == nil || errors.Is(err, ErrNothingToPrune) {
		t.Errorf("without a bound: %v", err)
	}
	mustClose(t, l)
	mustVerify(t, cfg)
}

func TestRetentionPrunesWhileServing(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	cfg.CheckpointEvery = 10 * time.Millisecond
	l := mustOpen(t, cfg)
	fill(t, l, 5)
	mustClose(t, l)
	cfg.Retention = time.Nanosecond
	cfg.Needed = func() uint64 { return 0 }
	l = mustOpen(t, cfg)
	await(t, "checkpoint", func() bool { return l.publishedSize.Load() > 0 })
	mustClose(t, l)
	if report := mustVerify(t, cfg); report.Pruned != 0 {
		t.Errorf("pruned though nobody knows what is needed: %+v", report)
	}
	cfg.Needed = nil
	l = mustOpen(t, cfg)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	await(t, "checkpoint", func() bool { return l.publishedSize.Load() > 0 })
	go l.retain(ctx)
	await(t, "prune", func() bool { return l.begins.Load() > 0 })
	mustClose(t, l)
	if report := mustVerify(t, cfg); report.Pruned == 0 {
		t.Errorf("report %+v", report)
	}
}

// firstBatchFails is the file of a segment whose first batch cannot be written or
// synced.
type firstBatchFails struct {
	segmentFile
	written func(batch int) int // of so many bytes
	failed  *atomic.Bool
	hit     bool
}

func (f *firstBatchFails) WriteAt(p []byte, off int64) (int, error) {
	if off > 0 || p[0] == 0 || f.failed.Swap(true) {
		return f.segmentFile.WriteAt(p, off)
	}
	f.hit = true
	n, err := f.segmentFile.WriteAt(p[:f.written(len(p))], off)
	if n < len(p) {
		err = syscall.EIO
	}
	return n, err
}

func (f *firstBatchFails) Datasync() error {
	if f.hit {
		return syscall.EIO
	}
	return f.segmentFile.Datasync()
}

func TestASegmentThatFailedAsItWasBegunIsPruned(t *testing.T) {
	cases := map[string]func(batch int) int{
		"its first batch was not synced":     func(n int) int { return n },
		"its first batch was half written":   func(n int) int { return n / 2 },
		"its header was half written":        func(int) int { return frameHead + 10 },
		"nothing of its batch was written":   func(int) int { return 0 },
		"its header was begun to be written": func(int) int { return 3 },
	}
	for name, written := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t, testKey(t))
			cfg.CheckpointEvery = 5 * time.Millisecond
			var failed atomic.Bool
			cfg.create = func(path string) (segmentFile, error) {
				f, err := createOSFile(path)
				if path == segmentPath(cfg.Dir, 2) {
					f = &firstBatchFails{segmentFile: f, written: written, failed: &failed}
				}
				return f, err
			}
			l := mustOpen(t, cfg)
			for i := 0; lastSegment(t, cfg.Dir) < 6; i++ {
				// One of them fails.
				if _, err := l.Append(t.Context(), decision(i)); err != nil && !errors.Is(err, audit.ErrUnavailable) {
					t.Fatal(err)
				}
			}
			if !failed.Load() {
				t.Fatal("no batch failed")
			}
			await(t, "published", func() bool { return l.publishedSize.Load() == l.Head().Size })
			if _, err := l.Prune(t.Context(), PruneOptions{Below: l.Head().Size, Reason: "test"}); err != nil {
				t.Fatal(err)
			}
			if segs, err := listSegments(cfg.Dir); err != nil || segs[0] < 4 {
				t.Errorf("segments %v, %v", segs, err)
			}
			mustClose(t, l)
			mustVerify(t, cfg)
			cfg.create = nil
			mustClose(t, mustOpen(t, cfg))
			mustVerify(t, cfg)
		})
	}
}
