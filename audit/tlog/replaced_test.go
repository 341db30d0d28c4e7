package tlog

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

// What has been read goes along to the new segment if its trailer may be lost: it
// is not read twice, and what follows is found.
func TestAFollowerGoesOnWhereASegmentFailed(t *testing.T) {
	cases := map[string]func(t *testing.T, d *disk, l *Log){
		"the sync of the next batch fails": func(t *testing.T, d *disk, l *Log) {
			d.set(func() { d.failSync = syscall.EIO })
			if _, err := l.Append(t.Context(), decision(2)); !errors.Is(err, audit.ErrUnavailable) {
				t.Fatalf("Append = %v", err)
			}
		},
		"the write of the next batch fails": func(t *testing.T, d *disk, l *Log) {
			d.set(func() { d.failWrite = syscall.EIO })
			if _, err := l.Append(t.Context(), decision(2)); !errors.Is(err, audit.ErrUnavailable) {
				t.Fatalf("Append = %v", err)
			}
		},
		"the sync of the last trailer fails": func(t *testing.T, d *disk, l *Log) {
			d.set(func() { d.failSync = syscall.EIO })
			l.look.Reset(time.Millisecond)
			await(t, "in the next segment", func() bool { used, err := inUse(segmentPath(l.cfg.Dir, 1)); return used && err == nil })
		},
	}
	for name, fail := range cases {
		t.Run(name, func(t *testing.T) {
			d := &disk{}
			cfg := testConfig(t, testKey(t))
			cfg.create, cfg.CheckpointEvery = d.create, time.Hour
			l := mustOpen(t, cfg)
			mustAppend(t, l, decision(1))
			f := follower{dir: cfg.Dir}
			defer f.close()
			due := uint64(0)
			take := func(e Entry, _ error) bool {
				if e.Index != due {
					t.Errorf("record %d where %d is due", e.Index, due)
				}
				due++
				return true
			}
			if err := f.read(take); err != nil || due != 2 {
				t.Fatalf("%d records are read, %v", due, err)
			}
			fail(t, d, l)
			mustAppend(t, l, decision(3))
			if err := f.read(take); err != nil || due != l.Head().Size {
				t.Errorf("%d records are read of %d, %v", due, l.Head().Size, err)
			}
			mustClose(t, l)
			if err := f.read(take); err != nil || due != l.Head().Size {
				t.Errorf("%d records are read of %d, %v", due, l.Head().Size, err)
			}
		})
	}
}

// What is written anew with a batch that failed was acknowledged before, and is in
// the failed segment until all of that is in the next one.
func TestASegmentThatReplacesIsFollowedOnceItsFirstBatchIsWhole(t *testing.T) {
	failures := map[string]func(d *disk){
		"the sync fails":             func(d *disk) { d.failSync = syscall.EIO },
		"the write fails half way":   func(d *disk) { d.failWrite = syscall.EIO },
		"the write fails altogether": func(d *disk) { d.failWrite, d.nothing = syscall.EIO, true },
	}
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) {
			d := &disk{}
			cfg := testConfig(t, testKey(t))
			cfg.create, cfg.CheckpointEvery = d.create, time.Hour
			l := mustOpen(t, cfg)
			acked := mustAppend(t, l, decision(1))
			d.set(func() { fail(d) })
			if _, err := l.Append(t.Context(), decision(2)); !errors.Is(err, audit.ErrUnavailable) {
				t.Fatalf("Append = %v", err)
			}
			mustAppend(t, l, decision(3))
			dir := filepath.Join(t.TempDir(), "copy")
			if err := os.CopyFS(dir, os.DirFS(cfg.Dir)); err != nil {
				t.Fatal(err)
			}
			path := segmentPath(dir, 1)
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			r, err := openSegment(dir, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			first := r.pos
			b, err := r.next()
			if err != nil || !r.header.Poisoned || b.at.next > acked || b.after.next <= acked {
				t.Fatalf("segment 1 begins with %+v: %v", b, err)
			}
			for size := first.offset; size < b.after.offset; size += 1 + (b.after.offset-first.offset)/40 {
				data := bytes.Clone(whole)
				clear(data[size:])
				if err := os.WriteFile(path, data, 0o600); err != nil {
					t.Fatal(err)
				}
				f := follower{dir: dir, next: acked}
				due := acked
				take := func(e Entry, err error) bool {
					if e.Index != due || err != nil {
						t.Errorf("%d bytes of segment 1: record %d where %d is due, %v", size, e.Index, due, err)
					}
					due++
					return true
				}
				if err := f.read(take); err != nil || due != acked+1 {
					t.Errorf("%d bytes of segment 1: read up to record %d of %d, %v", size, due, acked, err)
				}
				if rs := records(t, dir); uint64(len(rs)) != acked+1 {
					t.Errorf("%d bytes of segment 1: %d records are read of %d", size, len(rs), acked+1)
				}
				report, err := Verify(dir, cfg.Key.Verifier(), VerifyOptions{})
				if err != nil || report.OK() || report.TreeSize != acked+1 {
					t.Errorf("%d bytes of segment 1: Verify = %+v, %v", size, report, err)
				}
				rec, err := recoverLog(dir, dir, cfg.Key)
				if err != nil || rec.state.tree.size < acked+1 {
					t.Errorf("%d bytes of segment 1: %+v, %v", size, rec, err)
				}
				if err := os.WriteFile(path, whole, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := f.read(take); err != nil || due < b.after.next {
					t.Errorf("a follower is at record %d of %d once all is written, %v", due, b.after.next, err)
				}
				f.close()
			}
		})
	}
}

// A batch that is signed before it is written can be read before it is durable.
func TestAFollowerInTheProcessReadsNothingThatIsNotDurable(t *testing.T) {
	d, cfg, l := openFaulty(t)
	size := func() uint64 { return l.Head().Size }
	mustAppend(t, l, decision(1))
	before := size()
	release := d.hang(t)
	rotated := make(chan error, 1)
	go func() {
		_, err := l.Rotate(t.Context(), testKey(t))
		rotated <- err
	}()
	await(t, "written", func() bool { return len(records(t, cfg.Dir)) > int(before) })
	f := follower{dir: cfg.Dir, size: size}
	defer f.close()
	due := uint64(0)
	take := func(Entry, error) bool { due++; return true }
	if err := f.read(take); err != nil || due != before {
		t.Errorf("%d records are read of %d that are durable, %v", due, before, err)
	}
	release()
	if err := <-rotated; err != nil {
		t.Fatal(err)
	}
	if err := f.read(take); err != nil || due != before+1 {
		t.Errorf("%d records are read of %d, %v", due, before+1, err)
	}
}

// What is written anew is one batch then, of which some may be read already.
func TestAFollowerStopsInTheMiddleOfABatch(t *testing.T) {
	d, cfg, l := openFaulty(t)
	mustAppend(t, l, decision(1))
	d.set(func() { d.failSync = syscall.EIO })
	if _, err := l.Append(t.Context(), decision(2)); !errors.Is(err, audit.ErrUnavailable) {
		t.Fatalf("Append = %v", err)
	}
	mustAppend(t, l, decision(3))
	size, due := uint64(0), uint64(0)
	goesOn := follower{dir: cfg.Dir, size: func() uint64 { return size }}
	defer goesOn.close()
	for ; size <= l.Head().Size; size++ {
		err := goesOn.read(func(e Entry, _ error) bool {
			if e.Index != due {
				t.Errorf("record %d where %d is due", e.Index, due)
			}
			due++
			return true
		})
		begins, n := follower{dir: cfg.Dir, size: goesOn.size}, uint64(0)
		beginErr := begins.read(func(Entry, error) bool { n++; return true })
		begins.close()
		if err != nil || beginErr != nil || due != size || n != size {
			t.Errorf("%d and %d records are read of %d, %v, %v", due, n, size, err, beginErr)
		}
	}
}

// A process can be killed after it wrote its very last batch and before that was
// synced. What is then read is in memory alone.
func TestTheEndOfARunIsSyncedAgainUnlessACheckpointCoversIt(t *testing.T) {
	for _, covered := range []bool{true, false} {
		cfg := testConfig(t, testKey(t))
		l := mustOpen(t, cfg)
		mustAppend(t, l, decision(1))
		mustClose(t, l)
		if !covered {
			remove(t, cfg.Dir, checkpointFile)
		}
		before, err := os.Stat(segmentPath(cfg.Dir, 0))
		if err != nil {
			t.Fatal(err)
		}
		mustClose(t, mustOpen(t, cfg))
		if now, err := os.Stat(segmentPath(cfg.Dir, 0)); err != nil || os.SameFile(before, now) != covered {
			t.Errorf("covered by a checkpoint %v: segment copied %v, %v", covered, !covered, err)
		}
	}
}

// The numbers of two records, in their frames, are how trailers and seals begin.
func TestTheNumberOfARecordIsNoTrailer(t *testing.T) {
	for _, mark := range [][]byte{trailerMark, sealMark} {
		s := state{}
		for i, b := range mark {
			s.tree.size |= uint64(b) << (8 * i)
		}
		buf := s.appendRecord(nil, []byte(strings.Repeat("x", 300)))
		if nextMark(buf) < 0 {
			t.Fatalf("record %#x has nothing that looks like a mark", s.tree.size)
		}
		if found := ends(buf); len(found) != 0 {
			t.Errorf("record %#x passes for the end of a batch", s.tree.size)
		}
		buf = s.appendSeal(buf, testKey(t))
		if found := ends(buf); len(found) != 1 || found[0].after != len(buf) {
			t.Errorf("after record %#x: %v, want the seal", s.tree.size, found)
		}
	}
}
