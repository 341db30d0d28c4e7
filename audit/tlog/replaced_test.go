package tlog

import (
	"errors"
	"os"
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
