package tlog

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

func TestAPowerCutLosesNothingAcknowledged(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 12
	}
	rng := rand.New(rand.NewPCG(1, 2))
	torn, countersigned := 0, 0
	for round := range rounds {
		d := &powerDisk{files: make(map[string]*powerFile)}
		cfg := testConfig(t, testKey(t))
		cfg.CheckpointEvery = time.Hour
		durability := audit.Strict
		if round%2 == 0 {
			cfg.Dir2, durability = t.TempDir(), audit.Strict2
		}
		var mu sync.Mutex
		acked := make(map[uint64]string)
		halt := make(chan struct{})
		syncs := 0
		// The power goes while a batch is written and not synced, or a trailer.
		after, at := 3+rng.IntN(40), []string{"after write", "after trailer"}[round/2%2]
		cfg.create = d.create
		cfg.reach = func(point string) error {
			if point == at {
				if syncs++; syncs == after {
					close(halt)
					select {} // this machine is gone
				}
			}
			return nil
		}
		l, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for w := range 4 {
			go func() {
				for i := 0; ; i++ {
					r := decision(w<<20 + i)
					r.Durability = durability
					at, err := l.Append(noDeadline{}, r)
					if err != nil {
						return
					}
					mu.Lock()
					acked[at.Index] = r.ID
					mu.Unlock()
				}
			}()
		}
		<-halt
		time.Sleep(time.Millisecond) // acknowledgements on their way
		copied := cfg
		copied.Dir, copied.create, copied.reach = filepath.Join(t.TempDir(), "copy"), nil, nil
		d.cut(t, cfg.Dir, func() bool { return rng.IntN(2) == 0 })
		if err := os.CopyFS(copied.Dir, os.DirFS(cfg.Dir)); err != nil {
			t.Fatal(err)
		}
		if cfg.Dir2 != "" {
			copied.Dir2 = filepath.Join(t.TempDir(), "second")
			if err := os.CopyFS(copied.Dir2, os.DirFS(cfg.Dir2)); err != nil {
				t.Fatal(err)
			}
		}
		// What is signed, and the last batch if it is only sealed.
		rec, err := recoverLog(copied.Dir, copied.Dir, copied.Key)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		signed := 0
		for _, err := range Read(copied.Dir, 0) {
			if err != nil {
				break // of the batch in flight something is there, beyond what is not
			}
			signed++
		}
		if rec.state.tree.size != uint64(signed+rec.countersigned) {
			t.Errorf("round %d: %d signed and %d sealed of %d", round, signed, rec.countersigned, rec.state.tree.size)
		}
		if rec.countersigned > 0 {
			countersigned++
		}
		recovered, err := Open(copied)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		mustClose(t, recovered)
		if report := mustVerify(t, copied); report.Unresolved != 0 {
			t.Errorf("round %d: %+v", round, report)
		}
		rs := records(t, copied.Dir)
		mu.Lock()
		for index, id := range acked {
			if index >= uint64(len(rs)) || rs[index].ID != id {
				t.Errorf("round %d: acknowledged record %d is lost", round, index)
			}
		}
		mu.Unlock()
		for _, r := range rs {
			if r.Kind == "boot" && bytes.Contains(r.Event, []byte("torn_bytes")) {
				torn++
			}
		}
	}
	t.Logf("%d power cuts, %d with a torn batch, %d that took the last signature", rounds, torn, countersigned)
	if torn == 0 || countersigned == 0 {
		t.Error("no cut tore anything, or took a signature")
	}
}

// Only the last batch of a log may lack its signature, and the last of an older
// segment is not it.
func TestASegmentIsSyncedToItsEndBeforeTheNextOneBegins(t *testing.T) {
	d := &powerDisk{files: make(map[string]*powerFile)}
	cfg := testConfig(t, testKey(t))
	cfg.CheckpointEvery, cfg.Dir2, cfg.create = time.Hour, t.TempDir(), d.create
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for used := false; !used; n++ {
		mustAppend(t, l, decision(n))
		if used, err = inUse(segmentPath(cfg.Dir, 1)); err != nil {
			t.Fatal(err)
		}
	}
	d.cut(t, cfg.Dir, func() bool { return false })
	for _, dir := range []string{cfg.Dir, cfg.Dir2} {
		copied := Config{Dir: filepath.Join(t.TempDir(), "copy"), Key: cfg.Key, Boot: self, SegmentBytes: minSegmentBytes}
		if err := os.CopyFS(copied.Dir, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		mustClose(t, mustOpen(t, copied))
		if report := mustVerify(t, copied); report.Decisions != n {
			t.Errorf("%d decisions of %d", report.Decisions, n)
		}
	}
}

func TestOnlyTheLastBatchMayLackSectorsAndOnlyBeforeItIsSigned(t *testing.T) {
	key := testKey(t)
	dir, _ := crashedLog(t, key, 8)
	at, after := lastBatch(t, dir, 0)
	path := segmentPath(dir, 0)
	signed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	whole := bytes.Clone(signed)
	clear(whole[after.offset-trailerFrame:])
	zero := func(from int64) {
		t.Helper()
		data := bytes.Clone(whole)
		clear(data[from : from+sectorSize])
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cut, refused := 0, 0
	for from := int64(0); from < after.offset-trailerFrame-sealSize-frameHead-sectorSize; from += sectorSize {
		if from < at.offset && from+sectorSize > at.offset-trailerFrame-sealSize-frameHead {
			continue // no disk takes back what was synced, or all that tells of it
		}
		copy(whole, signed)
		zero(from)
		if _, err := recoverLog(dir, dir, key); err == nil {
			t.Errorf("a sector at %d of zeros before a signature", from)
		}
		clear(whole[after.offset-trailerFrame:])
		zero(from)
		rec, err := recoverLog(dir, dir, key)
		switch {
		case from >= at.offset && err == nil && rec.state.tree.size == at.next:
			cut++
		case from < at.offset && err != nil:
			refused++
		default:
			t.Errorf("a sector at %d of zeros (the last batch begins at %d): %v", from, at.offset, err)
		}
	}
	if cut < 5 || refused < 2 {
		t.Errorf("%d cut, %d refused", cut, refused)
	}
}

func TestStaleBytesOfAnotherSegmentAreNotRead(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	l := mustOpen(t, cfg)
	fill(t, l, 3)
	mustClose(t, l)
	remove(t, cfg.Dir, checkpointFile)
	size := mustVerify(t, cfg).TreeSize
	last := lastSegment(t, cfg.Dir)
	whole, err := os.ReadFile(segmentPath(cfg.Dir, last))
	if err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(segmentPath(cfg.Dir, 0))
	if err != nil {
		t.Fatal(err)
	}
	// Whole frames, and bytes from the middle of one, where zeros should be.
	for _, from := range []int{0, 777, len(old) / 2} {
		if err := os.WriteFile(segmentPath(cfg.Dir, last), append(bytes.Clone(whole), old[from:]...), 0o600); err != nil {
			t.Fatal(err)
		}
		report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{})
		if err != nil || report.OK() || report.TreeSize > size {
			t.Errorf("from byte %d: Verify = %+v, %v", from, report, err)
		}
		n := uint64(0)
		for e, err := range Read(cfg.Dir, 0) {
			if err != nil {
				break
			}
			n = e.Index + 1
		}
		if n > size {
			t.Errorf("from byte %d: %d records are read of %d", from, n, size)
		}
		var fault *Fault
		if _, err := Open(cfg); !errors.As(err, &fault) {
			t.Errorf("from byte %d: Open = %v: stale trailers are no torn write", from, err)
		}
	}
}
