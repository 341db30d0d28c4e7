package tlog

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

// displacements are ways to take a log's files from under it.
var displacements = []struct {
	claim string
	harm  func(t *testing.T, dir string)
}{
	{"the directory is deleted", func(t *testing.T, dir string) {
		await(t, "deleted", func() bool { return os.RemoveAll(dir) == nil }) // it may be making files yet
	}},
	{"the directory is renamed", func(t *testing.T, dir string) { move(t, dir, dir+".old") }},
	{"another directory stands in its place", func(t *testing.T, dir string) {
		move(t, dir, dir+".old")
		if err := os.CopyFS(dir, os.DirFS(dir+".old")); err != nil {
			t.Fatal(err)
		}
	}},
	{"the segments are deleted", func(t *testing.T, dir string) { remove(t, dir, walDir) }},
	{"the segment is deleted", func(t *testing.T, dir string) { remove(t, dir, walDir+"/00000000") }},
	{"the segment is replaced by its copy", func(t *testing.T, dir string) {
		if err := copyFile(segmentPath(dir, 0), segmentPath(dir, 0)); err != nil {
			t.Fatal(err)
		}
	}},
	{"the lock is deleted", func(t *testing.T, dir string) { remove(t, dir, lockName) }},
}

func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// listing are the paths below dir, if it is there.
func listing(dir string) string {
	var b strings.Builder
	_ = filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
		if err == nil {
			b.WriteString(path + "\n")
		}
		return nil
	})
	return b.String()
}

// openQuietly opens a log that touches no file until it is given a record: its
// spare segments are ready and its first checkpoint is published.
func openQuietly(t *testing.T, cfg Config) *Log {
	t.Helper()
	cfg.CheckpointEvery = time.Hour
	l := mustOpen(t, cfg)
	spares := []chan spare{l.main.spare}
	if l.mirror != nil {
		spares = append(spares, l.mirror.spare)
	}
	await(t, "quiet", func() bool {
		for _, c := range spares {
			if len(c) == 0 {
				return false
			}
		}
		cp, err := readCheckpoint(cfg.Dir, cfg.Key.Verifier())
		return err == nil && cp.size == 1
	})
	return l
}

// await fails the test if a log does not come to be as ok has it.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for a log that is %s", what)
		}
	}
}

func TestALogWhoseFilesAreTakenAwayHalts(t *testing.T) {
	for _, c := range displacements {
		t.Run(c.claim, func(t *testing.T) {
			cfg := testConfig(t, testKey(t))
			l := openQuietly(t, cfg)
			mustAppend(t, l, decision(1))
			c.harm(t, cfg.Dir)
			left := listing(cfg.Dir)
			for range 3 {
				if _, err := l.Append(t.Context(), decision(2)); !errors.Is(err, audit.ErrUnavailable) {
					t.Fatalf("Append = %v", err)
				}
			}
			if err := l.Err(); !errors.Is(err, errDisplaced) {
				t.Errorf("log is halted by %v", err)
			}
			if err := l.Close(); !errors.Is(err, errDisplaced) {
				t.Errorf("Close = %v", err)
			}
			if now := listing(cfg.Dir); now != left {
				t.Errorf("where the log was, it left\n%s\nnot\n%s", now, left)
			}
		})
	}
}

func TestALogNoticesBeforeItIsAsked(t *testing.T) {
	for _, c := range displacements {
		t.Run(c.claim, func(t *testing.T) {
			cfg := testConfig(t, testKey(t))
			cfg.CheckpointEvery = 5 * time.Millisecond
			l := mustOpen(t, cfg)
			c.harm(t, cfg.Dir)
			await(t, "halted", func() bool { return errors.Is(l.Ready(audit.Strict), errDisplaced) })
		})
	}
}

// That a log was opened where another one was must not be undone by the end of
// the other.
func TestALogLeavesAloneWhatTookItsPlace(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	first := mustOpen(t, cfg)
	mustAppend(t, first, decision(1))
	move(t, cfg.Dir, cfg.Dir+".old")
	second := mustOpen(t, cfg)
	mustAppend(t, second, decision(2))
	if _, err := first.Append(t.Context(), decision(3)); !errors.Is(err, audit.ErrUnavailable) {
		t.Errorf("Append to a log that has been moved = %v", err)
	}
	if err := first.Close(); !errors.Is(err, errDisplaced) {
		t.Errorf("Close = %v", err)
	}
	mustAppend(t, second, decision(4))
	mustClose(t, second)
	if got, want := kinds(records(t, cfg.Dir)), "boot decision decision seal"; got != want {
		t.Errorf("log holds %q, want %q", got, want)
	}
	mustVerify(t, cfg)
}

func TestASecondDirectoryThatIsTakenAwayIsGivenUp(t *testing.T) {
	for _, c := range displacements {
		t.Run(c.claim, func(t *testing.T) {
			cfg := testConfig(t, testKey(t))
			cfg.Dir2 = filepath.Join(t.TempDir(), "second")
			l := openQuietly(t, cfg)
			if err := l.Ready(audit.Strict2); err != nil {
				t.Error(err)
			}
			c.harm(t, cfg.Dir2)
			left := listing(cfg.Dir2)
			r := decision(1)
			r.Durability = audit.Strict2
			if _, err := l.Append(t.Context(), r); !errors.Is(err, audit.ErrUnavailable) {
				t.Errorf("strict-2 = %v", err)
			}
			mustAppend(t, l, decision(2))
			if err := l.Ready(audit.Strict); err != nil {
				t.Errorf("strict is not ready: %v", err)
			}
			if l.Ready(audit.Strict2) == nil {
				t.Error("strict-2 is ready")
			}
			mustClose(t, l)
			if now := listing(cfg.Dir2); now != left {
				t.Errorf("where the second directory was, there is\n%s\nnot\n%s", now, left)
			}
			mustVerify(t, cfg)
		})
	}
}

// Two logs under one key would have one origin and different records.
func TestAKeyFileSignsOneLogAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if _, err := CreateKeyFile(path, origin); err != nil {
		t.Fatal(err)
	}
	keyed := func() Config {
		key, err := ReadKeyFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return testConfig(t, key)
	}
	cfg := keyed()
	first := mustOpen(t, cfg)
	move(t, cfg.Dir, cfg.Dir+".old")
	for claim, again := range map[string]Config{"in the place of one that was moved": cfg, "elsewhere": keyed()} {
		if _, err := Open(again); !errors.Is(err, ErrLocked) {
			t.Errorf("a second log %s: %v", claim, err)
		}
	}
	if first.Close() == nil {
		t.Error("Close of a log that was moved reports nothing")
	}
	move(t, cfg.Dir+".old", cfg.Dir)
	mustClose(t, mustOpen(t, cfg))
}

// copied is a copy of a log's directory, and of the file of its key if that is
// copied too.
func copied(t *testing.T, cfg Config, keyFile string) Config {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "log"), os.DirFS(cfg.Dir)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(cfg.Key.path)
	if err == nil && keyFile == "" {
		keyFile = filepath.Join(dir, "key")
		err = os.WriteFile(keyFile, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Key, err = ReadKeyFile(keyFile); err != nil {
		t.Fatal(err)
	}
	cfg.Dir = filepath.Join(dir, "log")
	return cfg
}

// A copy of the directory has a lock of its own. On one machine its key's file
// protects it, of a copy of that too a witness, and without one both go on: then
// each looks whole, and only who holds a checkpoint of one can tell.
func TestACopiedDirectoryIsNotASecondLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if _, err := CreateKeyFile(path, origin); err != nil {
		t.Fatal(err)
	}
	key, err := ReadKeyFile(path)
	if err != nil {
		t.Fatal(err)
	}
	w := newFakeWitness(t, "a.example/w")
	cfg := witnessed(t, 1, w.config("a.example"))
	cfg.Key = key
	made(t, cfg)
	early := copied(t, cfg, "")
	l := mustOpen(t, cfg)
	mustAppend(t, l, decision(2))
	await(t, "anchored", func() bool { return l.Anchors().Records == 0 })
	if _, err := Open(copied(t, cfg, path)); !errors.Is(err, ErrLocked) {
		t.Errorf("a copy with the same key file: Open = %v", err)
	}
	if _, err := Open(early); !errors.Is(err, ErrRefused) {
		t.Errorf("an older copy, with its key: Open = %v", err)
	}

	// As new as the original, it is opened: nobody can say which is the copy. The
	// first that is witnessed stays the log, and the other halts at its next record.
	late := copied(t, cfg, "")
	second := mustOpen(t, late)
	await(t, "witnessed", func() bool { return second.Anchors().Records == 0 })
	if _, err := l.Append(t.Context(), decision(4)); err != nil && !errors.Is(err, audit.ErrUnavailable) {
		t.Error(err)
	}
	await(t, "of one of them alone", func() bool { return errors.Is(l.Err(), ErrRefused) || errors.Is(second.Err(), ErrRefused) })
	if l.Err() == nil || second.Err() != nil {
		t.Errorf("the original is halted by %v, its copy, which was witnessed first, by %v", l.Err(), second.Err())
	}

	alone := copied(t, late, "")
	alone.Witnesses = Witnesses{}
	fork := mustOpen(t, alone)
	mustAppend(t, fork, decision(3))
	mustClose(t, fork)
	mustVerify(t, alone)
	held, err := os.ReadFile(filepath.Join(alone.Dir, checkpointFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); !errors.Is(err, ErrRefused) {
		t.Errorf("Close of the one that was refused = %v", err)
	}
	mustClose(t, second)
	if report, err := Verify(cfg.Dir, key.Verifier(), VerifyOptions{Checkpoint: held}); err != nil || report.Code != RootMismatch && report.Code != CheckpointAhead {
		t.Errorf("held against the fork's checkpoint: Verify = %+v, %v", report, err)
	}
}

func TestALogThatCannotPublishIsNotReady(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	cfg.CheckpointEvery = 2 * time.Millisecond
	if err := os.MkdirAll(filepath.Join(cfg.Dir, checkpointFile+".tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	l := mustOpen(t, cfg)
	await(t, "not ready", func() bool { return l.Ready(audit.Strict) != nil })
	if err := l.Err(); err != nil {
		t.Errorf("log is halted: %v", err)
	}
	mustAppend(t, l, decision(1)) // it is durable and signed all the same
	remove(t, cfg.Dir, checkpointFile+".tmp")
	await(t, "ready", func() bool { return l.Ready(audit.Strict) == nil })
}
