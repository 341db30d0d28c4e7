package tlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

// sealedLog is a log whose last batch, of two decisions, has lost its trailer.
func sealedLog(t *testing.T) (cfg Config, rs []*audit.Record, at, sealed position) {
	t.Helper()
	key := testKey(t)
	dir, rs := crashedLog(t, key, 2)
	at, after := lastBatch(t, dir, 0)
	data, err := os.ReadFile(segmentPath(dir, 0))
	if err != nil {
		t.Fatal(err)
	}
	sealed = after
	sealed.offset -= trailerFrame
	clear(data[sealed.offset:])
	if err := os.WriteFile(segmentPath(dir, 0), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return Config{Dir: dir, Key: key, Boot: self, SegmentBytes: minSegmentBytes}, rs, at, sealed
}

func TestWhatIsSealedIsNotVerifiedUntilTheLogHasSignedIt(t *testing.T) {
	cfg, rs, at, _ := sealedLog(t)
	report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{})
	if err != nil || report.Code != Unsigned || report.TreeSize != at.next || report.Sealed != 2 {
		t.Errorf("Verify = %+v, %v", report, err)
	}
	if n := len(records(t, cfg.Dir)); n != int(at.next) {
		t.Errorf("%d records are read, of which %d are signed", n, at.next)
	}

	mustClose(t, mustOpen(t, cfg))
	if report := mustVerify(t, cfg); report.Unresolved != 0 {
		t.Errorf("Verify = %+v", report)
	}
	now := records(t, cfg.Dir)
	for i, r := range rs {
		if now[i].ID != r.ID {
			t.Errorf("record %d is another", i)
		}
	}
	for _, r := range now[len(rs):] {
		var e bootEvent
		if r.Kind != audit.KindBoot {
			continue
		}
		if err := json.Unmarshal(r.Event, &e); err != nil || e.Countersigned != 2 || e.Clean {
			t.Errorf("boot record says %s, %v", r.Event, err)
		}
		return
	}
	t.Error("no boot record")
}

func TestACheckpointBeyondWhatIsSealedIsAheadOfTheLog(t *testing.T) {
	cfg, rs, _, _ := sealedLog(t)
	held := func(size int) []byte {
		var tr tree
		for i := range size {
			tr.add([32]byte{byte(i)})
		}
		text, err := signCheckpoint(cfg.Key, uint64(size), tr.root())
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for size, want := range map[int]Code{len(rs): Unsigned, len(rs) + 1: CheckpointAhead} {
		report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{Checkpoint: held(size)})
		if size == len(rs) && report.Code == RootMismatch {
			continue // the root is made up
		}
		if err != nil || report.Code != want {
			t.Errorf("against a checkpoint of %d of %d records: %s, %v; want %s", size, len(rs), report.Code, err, want)
		}
	}
}

func TestASealThatTheLogsKeyDidNotMakeIsDamage(t *testing.T) {
	other := testKey(t)
	for _, first := range []bool{false, true} {
		cfg, _, at, _ := sealedLog(t)
		data, err := os.ReadFile(segmentPath(cfg.Dir, 0))
		if err != nil {
			t.Fatal(err)
		}
		st, buf := state{chain: at.chain}, data[:at.offset]
		if first {
			st = state{chain: genesis(origin)}
			if buf, err = st.appendHeader(nil, header{Origin: origin, Key: cfg.Key.VerifierKey()}); err != nil {
				t.Fatal(err)
			}
		} else {
			st.tree.size = at.next
		}
		buf = st.appendRecord(buf, []byte(`{"v":1,"kind":"heartbeat","id":"forged","log":{}}`))
		seal := func(key *Key) []byte {
			st := st
			return append(st.appendSeal(bytes.Clone(buf), key), make([]byte, 4096)...)
		}
		for _, c := range []struct {
			name string
			data []byte
			ok   bool
		}{
			{"by the log's key", seal(cfg.Key), true},
			{"by another key", seal(other), false},
		} {
			if err := os.WriteFile(segmentPath(cfg.Dir, 0), c.data, 0o600); err != nil {
				t.Fatal(err)
			}
			rec, err := recoverLog(cfg.Dir, cfg.Dir, cfg.Key)
			var fault *Fault
			if c.ok && (err != nil || rec.countersigned != 1) || !c.ok && (!errors.As(err, &fault) || fault.Code != BadSeal) {
				t.Errorf("sealed %s, first in its segment %v: %v", c.name, first, err)
			}
		}
	}
}

// A batch that nothing but its seal vouches for, and further ones after it, are
// not what a power cut leaves.
func TestNothingWholeFollowsABatchThatIsOnlySealed(t *testing.T) {
	cfg, _, _, sealed := sealedLog(t)
	data, err := os.ReadFile(segmentPath(cfg.Dir, 0))
	if err != nil {
		t.Fatal(err)
	}
	st := state{chain: sealed.chain}
	st.tree.size = sealed.next
	next := st.appendRecord(nil, []byte(`{"v":1,"kind":"heartbeat","id":"x","log":{}}`))
	next = st.appendSeal(next, cfg.Key)
	signed, err := st.appendTrailer(bytes.Clone(next), cfg.Key, st.tree.root(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		at   int64
		data []byte
		ok   bool
	}{
		"a batch in flight, whose first sector was not written": {sealed.offset + trailerFrame, next, true},
		"a batch that is signed":                                {sealed.offset + trailerFrame, signed, false},
		"a batch that follows at once":                          {sealed.offset, next, false},
	} {
		damaged := bytes.Clone(data)
		copy(damaged[c.at:], c.data)
		if c.ok {
			clear(damaged[c.at : c.at/sectorSize*sectorSize+sectorSize])
		}
		if err := os.WriteFile(segmentPath(cfg.Dir, 0), damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if rec, err := recoverLog(cfg.Dir, cfg.Dir, cfg.Key); (err == nil) != c.ok || c.ok && rec.countersigned != 2 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The batch that was acknowledged last goes along to the new segment: its trailer
// may be lost with the old one.
func TestWhatWasAcknowledgedGoesAlongWhenASegmentFails(t *testing.T) {
	cases := map[string]struct {
		every time.Duration // when the log looks, and syncs what it has to
		fail  func(d *disk)
		next  bool // with the next batch
	}{
		"the sync of the next batch fails":   {time.Hour, func(d *disk) { d.failSync = syscall.EIO }, true},
		"the write of the next batch fails":  {time.Hour, func(d *disk) { d.failWrite = syscall.EIO }, true},
		"the sync of the last trailer fails": {5 * time.Millisecond, func(d *disk) { d.failSync = syscall.EIO }, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := &disk{}
			cfg := testConfig(t, testKey(t))
			cfg.create, cfg.CheckpointEvery = d.create, c.every
			var armed atomic.Bool
			cfg.reach = func(point string) error {
				if point == "after trailer" && armed.Swap(false) {
					d.set(func() { c.fail(d) })
				}
				return nil
			}
			l := mustOpen(t, cfg)
			kept := decision(1)
			armed.Store(true)
			mustAppend(t, l, kept)
			if c.next {
				if _, err := l.Append(t.Context(), decision(2)); !errors.Is(err, audit.ErrUnavailable) {
					t.Fatalf("Append = %v", err)
				}
			} else {
				await(t, "in the next segment", func() bool { used, err := inUse(segmentPath(cfg.Dir, 1)); return used && err == nil })
			}
			mustAppend(t, l, decision(3))
			mustClose(t, l)
			if n := d.afterFail.Load(); n > 0 {
				t.Errorf("the file that failed was touched %d times", n)
			}
			// Of the old segment nothing is needed that was not durable.
			at, _ := lastBatch(t, cfg.Dir, 0)
			data, err := os.ReadFile(segmentPath(cfg.Dir, 0))
			if err != nil {
				t.Fatal(err)
			}
			clear(data[at.offset:])
			if err := os.WriteFile(segmentPath(cfg.Dir, 0), data, 0o600); err != nil {
				t.Fatal(err)
			}
			mustVerify(t, cfg)
			n := 0
			for _, r := range records(t, cfg.Dir) {
				if r.ID == kept.ID && r.Kind == audit.KindDecision {
					n++
				}
			}
			if n != 1 {
				t.Errorf("the acknowledged record is there %d times: %s", n, kinds(records(t, cfg.Dir)))
			}
		})
	}
}

// Whoever opens the log next may have the new key alone, and no other can check a
// seal of the old one.
func TestTheLastBatchUnderAKeyIsSignedBeforeItIsWritten(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	l := mustOpen(t, cfg)
	mustAppend(t, l, decision(1))
	next := testKey(t)
	if _, err := l.Rotate(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	r, err := openSegment(cfg.Dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var seals []bool
	for {
		b, err := r.next()
		if err != nil {
			break
		}
		seals = append(seals, b.seal != nil)
	}
	if len(seals) != 3 || !seals[0] || !seals[1] || seals[2] {
		t.Errorf("batches with a seal: %v; want boot, decision, and not the rotation", seals)
	}
	mustClose(t, l)
}

func TestALogOfFormat1IsReadAndGoesOn(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	heartbeat := func(seq string) string {
		return `{"v":1,"kind":"heartbeat","id":"x","log":{"origin":"` + origin + `","seq":` + seq + `}}`
	}
	old := firstV1(cfg.Key, heartbeat("0"), heartbeat("1"), heartbeat("2"))
	if err := os.MkdirAll(cfg.Dir+"/"+walDir, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(data []byte) {
		t.Helper()
		if err := os.WriteFile(segmentPath(cfg.Dir, 0), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i := range len(old) - 1 {
		damaged := bytes.Clone(old)
		damaged[i] ^= 1
		write(damaged)
		if report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{}); err != nil || report.OK() {
			t.Fatalf("byte %d is changed: %+v, %v", i, report, err)
		}
	}
	write(old)
	if report := mustVerify(t, cfg); report.Records != 3 || report.Signatures != 3 {
		t.Errorf("Verify = %+v", report)
	}
	torn := bytes.Clone(old)
	clear(torn[len(torn)-8:]) // a signature may end with one zero
	write(append(torn, make([]byte, 100)...))
	l := mustOpen(t, cfg)
	mustAppend(t, l, decision(1))
	mustClose(t, l)
	if got := kinds(records(t, cfg.Dir)); !strings.HasPrefix(got, "heartbeat heartbeat boot decision") {
		t.Errorf("log holds %q", got)
	}
	mustVerify(t, cfg)
}

// What makes the trailer before durable in the first directory may have failed
// before it came to the second.
func TestNoTrailerIsLeftBehindInTheSecondDirectory(t *testing.T) {
	d := newPowerDisk()
	cfg := testConfig(t, testKey(t))
	cfg.Dir2, cfg.create, cfg.CheckpointEvery = t.TempDir(), d.create, time.Hour
	var armed atomic.Bool
	cfg.reach = func(point string) error {
		if point == "before trailer" && armed.Swap(false) {
			return syscall.EIO
		}
		return nil
	}
	l := mustOpen(t, cfg)
	mustAppend(t, l, decision(1))
	armed.Store(true)
	if _, err := l.Append(t.Context(), decision(2)); !errors.Is(err, audit.ErrUnavailable) {
		t.Fatalf("Append = %v", err)
	}
	kept := decision(3)
	kept.Durability = audit.Strict2
	mustAppend(t, l, kept)
	await(t, "quiet", func() bool { return len(l.main.spare) == 1 && len(l.mirror.spare) == 1 })
	left := d.cut(t, nothing, cfg.Dir, cfg.Dir2)
	copied := cfg
	copied.Dir, copied.Dir2, copied.create, copied.reach = left[0], left[1], nil, nil
	mustClose(t, mustOpen(t, copied))
	mustVerify(t, copied)
	for _, r := range records(t, copied.Dir2) {
		if r.ID == kept.ID {
			return
		}
	}
	t.Error("what was acknowledged is not in the second directory")
}
