package tlog

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"pgregory.net/rapid"
)

// smallLog is a closed log of a few records in a few batches.
func smallLog(t *testing.T) Config {
	t.Helper()
	cfg := testConfig(t, testKey(t))
	l := mustOpen(t, cfg)
	for i := range 4 {
		mustAppend(t, l, decision(i))
	}
	mustClose(t, l)
	return cfg
}

// frames lists the frames of a segment: kind, sequence, start and end.
func frames(t *testing.T, data []byte) (out []frameAt) {
	t.Helper()
	for at := 0; ; {
		frame, kind, code := parseFrame(data[at:])
		if code != "" {
			t.Fatal(code)
		}
		if frame == nil {
			return out
		}
		out = append(out, frameAt{kind, binary.LittleEndian.Uint64(frame[8:]), at, at + len(frame)})
		at += len(frame)
	}
}

type frameAt struct {
	kind     frameKind
	seq      uint64
	from, to int
}

func TestVerifyNamesTheRecordOfEveryFlippedBit(t *testing.T) {
	cfg := smallLog(t)
	path := segmentPath(cfg.Dir, 0)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range frames(t, whole) {
		want, where := int64(f.seq), "record: "
		switch f.kind {
		case frameTrailer:
			want, where = want-1, "batch trailer after the record"
		case frameSeal:
			want, where = want-1, "batch seal after the record"
		case frameHeader:
			where = "segment header before the record"
		}
		for i := f.from; i < f.to; i += everyByte() {
			damaged := bytes.Clone(whole)
			damaged[i] ^= 1 << (i % 8)
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if report.OK() || report.FirstBad != want || !strings.Contains(report.Detail, where) {
				t.Fatalf("bit flipped in byte %d of the %s at sequence %d: %s at %d: %s", i-f.from, f.kind, f.seq, report.Code, report.FirstBad, report.Detail)
			}
			if i >= f.from+frameHead && report.Code != CRCMismatch {
				t.Fatalf("bit flipped in a payload is called %s", report.Code)
			}
		}
	}
	cp, err := os.ReadFile(filepath.Join(cfg.Dir, checkpointFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range cp {
		damaged := bytes.Clone(cp)
		damaged[i] ^= 1
		if err := os.WriteFile(filepath.Join(cfg.Dir, checkpointFile), damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{})
		if err != nil || report.OK() {
			t.Fatalf("checkpoint with byte %d changed is accepted: %v", i, err)
		}
	}
}

// everyByte is the step of exhaustive tests: in short ones a prime that still
// meets every field.
func everyByte() int {
	if testing.Short() {
		return 11
	}
	return 1
}

// rewrite makes a log anew from edited frames, with right CRCs and chains, as
// someone without the key could.
func rewrite(t *testing.T, cfg Config, edit func(kind frameKind, seq uint64, payload []byte) (frameKind, uint64, []byte)) {
	t.Helper()
	path := segmentPath(cfg.Dir, 0)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := state{chain: genesis(origin)}
	var out []byte
	for _, f := range frames(t, whole) {
		kind, seq, payload := edit(f.kind, f.seq, bytes.Clone(whole[f.from+frameHead:f.to]))
		if payload != nil {
			s.tree.size = seq
			out = s.append(out, kind, payload)
		}
	}
	if err := os.WriteFile(path, out, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestVerifyFindsForgeries(t *testing.T) {
	type edit = func(frameKind, uint64, []byte) (frameKind, uint64, []byte)
	renumber := func(drop uint64) edit {
		return func(k frameKind, seq uint64, p []byte) (frameKind, uint64, []byte) {
			if k == frameRecord && seq == drop {
				return k, seq, nil
			}
			if seq > drop {
				seq--
			}
			return k, seq, p
		}
	}
	cases := []struct {
		name  string
		edit  edit
		code  Code
		index int64
	}{
		{"a changed record", func(k frameKind, seq uint64, p []byte) (frameKind, uint64, []byte) {
			if k == frameRecord && seq == 2 {
				p = bytes.Replace(p, []byte("allowed"), []byte("denied!"), 1)
			}
			return k, seq, p
		}, RootMismatch, 2},
		{"a record left out", func(k frameKind, seq uint64, p []byte) (frameKind, uint64, []byte) {
			if k == frameRecord && seq == 2 {
				p = nil
			}
			return k, seq, p
		}, OutOfPlace, 1},
		{"a record left out and the rest renumbered", renumber(2), OutOfPlace, 1},
		{"a record under another number", func(k frameKind, seq uint64, p []byte) (frameKind, uint64, []byte) {
			if k == frameRecord && seq == 2 {
				seq = 7
			}
			return k, seq, p
		}, SequenceGap, 2},
		{"a changed record with its root recomputed", forgeRoots(2), BadSignature, 2},
		{"a changed time", func(k frameKind, seq uint64, p []byte) (frameKind, uint64, []byte) {
			if k == frameTrailer && seq == 3 {
				p[8+tlog.HashSize]++
			}
			return k, seq, p
		}, BadSignature, 2},
		{"another log's header", func(k frameKind, seq uint64, p []byte) (frameKind, uint64, []byte) {
			if k == frameHeader {
				p = bytes.Replace(p, []byte(origin), []byte("sallyport.test/gw-1"), 1)
			}
			return k, seq, p
		}, OriginMismatch, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cfg := smallLog(t)
			remove(t, cfg.Dir, checkpointFile)
			rewrite(t, cfg, c.edit)
			report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{})
			if err != nil || report.Code != c.code || report.FirstBad != c.index {
				t.Errorf("Verify = %s at %d (%s), %v; want %s at %d", report.Code, report.FirstBad, report.Detail, err, c.code, c.index)
			}
			if _, err := Open(cfg); err == nil {
				t.Error("Open accepts it")
			}
		})
	}
}

func TestFramesMoveNowhere(t *testing.T) {
	// Frames keep their CRCs, so only the chain tells that they were moved.
	cfg, other := smallLog(t), smallLog(t)
	path := segmentPath(cfg.Dir, 0)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := os.ReadFile(segmentPath(other.Dir, 0))
	if err != nil {
		t.Fatal(err)
	}
	at := func(data []byte, seq uint64) []byte {
		for _, f := range frames(t, data) {
			if f.kind == frameRecord && f.seq == seq {
				return data[f.from:f.to]
			}
		}
		t.Fatal("no such record")
		return nil
	}
	spliced := bytes.Replace(whole, at(whole, 2), at(foreign, 2), 1)
	if err := os.WriteFile(path, spliced, 0o600); err != nil {
		t.Fatal(err)
	}
	report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{})
	if err != nil || report.Code != ChainBroken || report.FirstBad != 2 {
		t.Errorf("Verify with a record of another log = %+v, %v", report, err)
	}
	if _, err := Open(cfg); err == nil {
		t.Error("Open accepts it")
	}
}

// forgeRoots changes a record and recomputes the roots of all trailers.
func forgeRoots(index uint64) func(frameKind, uint64, []byte) (frameKind, uint64, []byte) {
	var tr tree
	return func(k frameKind, seq uint64, p []byte) (frameKind, uint64, []byte) {
		switch k {
		case frameRecord:
			if seq == index {
				p = bytes.Replace(p, []byte("allowed"), []byte("denied!"), 1)
			}
			tr.add(tlog.RecordHash(p))
		case frameTrailer:
			root := tr.root()
			copy(p[8:], root[:])
		}
		return k, seq, p
	}
}

func TestVerifyComparesWithAHeldCheckpoint(t *testing.T) {
	cfg := smallLog(t)
	held, err := os.ReadFile(filepath.Join(cfg.Dir, checkpointFile))
	if err != nil {
		t.Fatal(err)
	}
	// The attacker cuts the log and signs a checkpoint for what is left.
	remove(t, cfg.Dir, checkpointFile)
	cutLastBatch(t, cfg.Dir)
	if report := mustVerify(t, cfg); report.TreeSize != 5 {
		t.Fatalf("cut log has %d records", report.TreeSize)
	}
	report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{Checkpoint: held})
	if err != nil || report.Code != CheckpointAhead || report.FirstBad != 5 {
		t.Errorf("Verify of a cut log = %+v, %v", report, err)
	}
	// Then lets it grow again, differently.
	mustClose(t, mustOpen(t, cfg))
	report, err = Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{Checkpoint: held})
	if err != nil || report.Code != RootMismatch {
		t.Errorf("Verify of a rewritten log = %+v, %v", report, err)
	}
}

func TestVerifyNeedsTheRightKey(t *testing.T) {
	cfg := smallLog(t)
	if _, err := Verify(cfg.Dir, nil, VerifyOptions{}); !errors.Is(err, ErrNoKey) {
		t.Errorf("without a key: %v", err)
	}
	if report, err := Verify(cfg.Dir, testKey(t).Verifier(), VerifyOptions{}); err != nil || report.Code != KeyMismatch {
		t.Errorf("with another key of the same name: %+v, %v", report, err)
	}
	if _, err := Verify(t.TempDir(), cfg.Key.Verifier(), VerifyOptions{}); err == nil {
		t.Error("a directory without a log verifies")
	}
	if _, err := ReadVerifierFile(""); !errors.Is(err, ErrNoKey) {
		t.Errorf("no key file: %v", err)
	}
	path := filepath.Join(t.TempDir(), "vkey")
	if err := os.WriteFile(path, []byte(cfg.Key.VerifierKey()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	v, err := ReadVerifierFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if report, err := Verify(cfg.Dir, v, VerifyOptions{}); err != nil || !report.OK() {
		t.Errorf("with the pinned key: %+v, %v", report, err)
	}
}

func TestBytesAfterTheLastBatchAreNotAccepted(t *testing.T) {
	cfg := smallLog(t)
	path := segmentPath(cfg.Dir, 0)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tail := make([]byte, 4096)
	tail[1000] = 4
	if err := os.WriteFile(path, append(whole, tail...), 0o600); err != nil {
		t.Fatal(err)
	}
	report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{})
	if err != nil || report.Code != TrailingData || report.FirstBad != 5 {
		t.Errorf("Verify = %+v, %v", report, err)
	}
}

func TestKeyFileIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	vkey, err := CreateKeyFile(path, origin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := CreateKeyFile(path, origin); err == nil {
		t.Error("a key file was replaced")
	}
	key, err := ReadKeyFile(path)
	if err != nil || key.VerifierKey() != vkey {
		t.Fatalf("ReadKeyFile = %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file has mode %v, %v", info.Mode(), err)
	}
	sig, err := key.Sign([]byte("message"))
	if err != nil || !key.Verifier().Verify([]byte("message"), sig) {
		t.Error("what the key signs does not verify")
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKeyFile(path); err == nil {
		t.Error("a key open to others is accepted")
	}
	if _, _, err := GenerateKey("not an origin"); err == nil {
		t.Error("an origin with spaces is accepted")
	}
}

func TestTreeIsThatOfTheReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var (
			got    tree
			stored []tlog.Hash
		)
		reader := tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
			out := make([]tlog.Hash, len(indexes))
			for i, x := range indexes {
				out[i] = stored[x]
			}
			return out, nil
		})
		n := rapid.IntRange(0, 3000).Draw(t, "leaves")
		seed := rapid.Uint64().Draw(t, "seed")
		for i := range n {
			leaf := fmt.Append(nil, seed, i)
			got.add(tlog.RecordHash(leaf))
			hashes, err := tlog.StoredHashes(int64(i), leaf, reader)
			if err != nil {
				t.Fatal(err)
			}
			stored = append(stored, hashes...)
		}
		want, err := tlog.TreeHash(int64(n), reader)
		if err != nil {
			t.Fatal(err)
		}
		if got.root() != want {
			t.Fatalf("root of %d leaves is %s, want %s", n, got.root(), want)
		}
	})
}

// FuzzSegment feeds arbitrary bytes to the reader: whatever it returns as a
// batch, writing that batch again from the state before gives the same bytes.
func FuzzSegment(f *testing.F) {
	s := state{chain: genesis(origin)}
	key, err := ParseKey("PRIVATE+KEY+" + fuzzKey)
	if err != nil {
		f.Fatal(err)
	}
	seed, err := s.appendHeader(nil, header{Origin: origin, Key: key.VerifierKey()})
	if err != nil {
		f.Fatal(err)
	}
	for _, leaf := range []string{"{}", strings.Repeat("x", 500)} {
		seed = s.appendRecord(seed, []byte(leaf))
	}
	sealed := s
	f.Add(must(sealed.appendTrailer(sealed.appendSeal(bytes.Clone(seed), key), key, s.tree.root(), 1)))
	unsigned := s
	f.Add(unsigned.appendSeal(bytes.Clone(seed), key))
	f.Add(firstV1(key, "{}", "xyz"))
	if seed, err = s.appendTrailer(seed, key, s.tree.root(), 1); err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add(append(bytes.Clone(seed), make([]byte, 100)...))
	f.Add(seed[:len(seed)-1])
	f.Add([]byte{0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newSegmentReader(memory{bytes.NewReader(data)}, position{})
		if err := r.readHeader(); err != nil {
			return
		}
		for {
			b, err := r.next()
			if err != nil {
				return
			}
			s := state{chain: b.at.chain}
			s.tree.size = b.at.next
			write := s.append
			if b.at.v == formatV1 {
				write = s.appendV1
			}
			var again []byte
			for _, leaf := range b.leaves {
				again = write(again, frameRecord, leaf)
				s.tree.size++
			}
			if b.seal != nil {
				again = write(again, frameSeal, b.seal)
			}
			again = write(again, frameTrailer, b.trailer.encode())
			if !bytes.Equal(again, data[b.at.offset:b.after.offset]) || s.chain != b.after.chain {
				t.Fatalf("batch at byte %d does not encode to what was read", b.at.offset)
			}
		}
	})
}

// appendV1 is [state.append] in format 1.
func (s *state) appendV1(buf []byte, kind frameKind, payload []byte) []byte {
	frame := binary.LittleEndian.AppendUint32(nil, uint32(kind)<<24|uint32(len(payload)))
	frame = binary.LittleEndian.AppendUint64(append(frame, 0, 0, 0, 0), s.tree.size)
	frame = append(append(frame, s.chain[:]...), payload...)
	s.chain = link(frame, s.chain)
	copy(frame[16:], s.chain[:])
	binary.LittleEndian.PutUint32(frame[4:], frameCRC(frame))
	return append(buf, frame...)
}

// firstV1 is a first segment in format 1, with one batch for each leaf.
func firstV1(key *Key, leaves ...string) []byte {
	s := state{chain: genesis(key.Name())}
	h := must(json.Marshal(header{V: formatV1, Origin: key.Name(), Key: key.VerifierKey(), Prev: s.chain}))
	buf := s.appendV1(nil, frameHeader, h)
	for _, leaf := range leaves {
		buf = s.appendV1(buf, frameRecord, []byte(leaf))
		s.tree.add(tlog.RecordHash([]byte(leaf)))
		t := trailer{size: s.tree.size, root: s.tree.root(), wall: 1}
		copy(t.sig[:], must(key.Sign(t.message(key.Name(), s.chain))))
		buf = s.appendV1(buf, frameTrailer, t.encode())
	}
	return buf
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// memory is a segment that is not in a file.
type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }

// fuzzKey signs only the seeds of FuzzSegment.
var fuzzKey = func() string {
	skey, _, err := note.GenerateKey(zeroReader{}, origin)
	if err != nil {
		panic(err)
	}
	return strings.TrimPrefix(skey, "PRIVATE+KEY+")
}()

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }
