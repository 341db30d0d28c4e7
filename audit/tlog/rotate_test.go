package tlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/sallyport-ai/sallyport/audit"
)

// rotated is a closed log whose key was changed twice, with records before,
// between and after. It returns the keys in their order.
func rotated(t *testing.T) (Config, []*Key) {
	t.Helper()
	keys := []*Key{testKey(t), testKey(t), testKey(t)}
	cfg := testConfig(t, keys[0])
	l := mustOpen(t, cfg)
	for i, next := range keys[1:] {
		d := decision(i)
		mustAppend(t, l, d)
		mustAppend(t, l, outcomeOf(d))
		if _, err := l.Rotate(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, l, decision(10+i))
	}
	mustClose(t, l)
	cfg.Key = keys[2]
	return cfg, keys
}

func TestVerifyFollowsTheKeyFromAnyThatIsPinned(t *testing.T) {
	cfg, keys := rotated(t)
	for i, key := range keys {
		report, err := Verify(cfg.Dir, key.Verifier(), VerifyOptions{Signatures: EverySignature})
		if err != nil || !report.OK() || report.Rotations != 2 {
			t.Errorf("with key %d pinned: %+v, %v", i, report, err)
		}
	}
	if report, err := Verify(cfg.Dir, testKey(t).Verifier(), VerifyOptions{}); err != nil || report.Code != KeyMismatch {
		t.Errorf("with a stranger's key pinned: %+v, %v", report, err)
	}
}

func TestOnlyTheNewestKeyOpensTheLog(t *testing.T) {
	cfg, keys := rotated(t)
	for _, old := range append(keys[:2:2], testKey(t)) {
		c := cfg
		c.Key = old
		var fault *Fault
		if _, err := Open(c); !errors.As(err, &fault) || fault.Code != KeyMismatch {
			t.Errorf("Open with a key that was replaced = %v", err)
		}
	}
	l := mustOpen(t, cfg)
	mustAppend(t, l, decision(99))
	mustClose(t, l)
	if report := mustVerify(t, cfg); report.Boots != 2 || report.Rotations != 2 {
		t.Errorf("report %+v", report)
	}
}

func TestACheckpointCountsOnlyUnderTheKeyOfItsTime(t *testing.T) {
	cfg, keys := rotated(t)
	size := mustVerify(t, cfg).TreeSize
	root := func(n uint64) tlog.Hash {
		var tr tree
		for e, err := range Read(cfg.Dir, 0) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Index < n {
				tr.add(tlog.RecordHash(e.Leaf))
			}
		}
		return tr.root()
	}
	for _, c := range []struct {
		key  int
		size uint64
		ok   bool
	}{
		{0, 2, true},
		{0, 4, true},
		{0, 5, false},
		{1, 4, false},
		{1, 5, true},
		{1, size, false},
		{2, size, true},
		{2, 5, false},
		{0, size, false},
	} {
		text, err := signCheckpoint(keys[c.key], c.size, root(c.size))
		if err != nil {
			t.Fatal(err)
		}
		report, err := Verify(cfg.Dir, keys[1].Verifier(), VerifyOptions{Checkpoint: text})
		if err != nil || report.OK() != c.ok {
			t.Errorf("checkpoint of %d records under key %d: %+v, %v", c.size, c.key, report, err)
		}
	}
	// An attacker with a key that was replaced cannot pass its checkpoint off as
	// the log's own.
	text, err := signCheckpoint(keys[0], size, root(size))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cfg.Dir, checkpointFile), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if report, err := Verify(cfg.Dir, keys[0].Verifier(), VerifyOptions{}); err != nil || report.Code != KeyMismatch {
		t.Errorf("Verify = %+v, %v", report, err)
	}
	if _, err := Open(cfg); err == nil {
		t.Error("Open accepts it")
	}
}

func TestARotationNeedsBothSignatures(t *testing.T) {
	forge := map[string]func(rot *audit.Rotation, thief *Key){
		"the old key's is missing":    func(rot *audit.Rotation, _ *Key) { rot.OldSig = nil },
		"the new key's is missing":    func(rot *audit.Rotation, _ *Key) { rot.NewSig = nil },
		"to a key that did not agree": func(rot *audit.Rotation, thief *Key) { rot.New = thief.VerifierKey() },
		"from another key":            func(rot *audit.Rotation, thief *Key) { rot.Old = thief.VerifierKey() },
		"for a later place":           func(rot *audit.Rotation, _ *Key) { rot.Size += 50 },
	}
	for name, edit := range forge {
		t.Run(name, func(t *testing.T) {
			old, next := testKey(t), testKey(t)
			rot, err := signRotation(old, next, 1)
			if err != nil {
				t.Fatal(err)
			}
			edit(&rot, testKey(t))
			r := ring{pinned: old.Verifier()}
			if err := r.start(old.VerifierKey(), 0); err != nil {
				t.Fatal(err)
			}
			if err := r.turn(rot, 3); err == nil {
				t.Error("the key is changed")
			}
		})
	}
	key := testKey(t)
	skey, _, err := GenerateKey("another.test/log")
	if err != nil {
		t.Fatal(err)
	}
	other, err := ParseKey(skey)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []*Key{key, other} {
		if _, err := signRotation(key, bad, 1); err == nil {
			t.Errorf("a log of %s can be turned to %s", key.VerifierKey(), bad.VerifierKey())
		}
	}
}

func TestAKeyFileIsRotatedWhateverStepWasCutShort(t *testing.T) {
	made := func(t *testing.T) (Config, string, string) {
		dir := t.TempDir()
		path := filepath.Join(dir, "key")
		vkey, err := CreateKeyFile(path, origin)
		if err != nil {
			t.Fatal(err)
		}
		cfg := Config{Dir: filepath.Join(dir, "log"), Boot: self, SegmentBytes: minSegmentBytes}
		if cfg.Key, err = ReadKeyFile(path); err != nil {
			t.Fatal(err)
		}
		l := mustOpen(t, cfg)
		mustAppend(t, l, decision(1))
		mustClose(t, l)
		return cfg, path, vkey
	}
	cases := map[string]func(t *testing.T, cfg Config, path string){
		"nothing was": func(*testing.T, Config, string) {},
		"after the new key was made": func(t *testing.T, _ Config, path string) {
			if _, err := nextKey(path, origin); err != nil {
				t.Fatal(err)
			}
		},
		"after the log had turned": func(t *testing.T, cfg Config, path string) {
			next, err := nextKey(path, origin)
			if err != nil {
				t.Fatal(err)
			}
			l := mustOpen(t, cfg)
			if _, err := l.Rotate(t.Context(), next); err != nil {
				t.Fatal(err)
			}
			mustClose(t, l)
		},
	}
	for name, cut := range cases {
		t.Run(name, func(t *testing.T) {
			cfg, path, first := made(t)
			cut(t, cfg, path)
			vkey, err := RotateKeyFile(t.Context(), cfg, path)
			if err != nil {
				t.Fatal(err)
			}
			now, err := ReadKeyFile(path)
			if err != nil || now.VerifierKey() != vkey || vkey == first {
				t.Fatalf("the key file holds %v, %v; the new key is %s", now, err, vkey)
			}
			if _, err := os.Stat(NextKeyFile(path)); err == nil {
				t.Error("the key that waited is still there")
			}
			cfg.Key = now
			mustClose(t, mustOpen(t, cfg))
			if report := mustVerify(t, cfg); report.Rotations != 1 {
				t.Errorf("report %+v", report)
			}
		})
	}
}

func TestRotationGoesOnWhileRecordsCome(t *testing.T) {
	cfg := testConfig(t, testKey(t))
	l := mustOpen(t, cfg)
	done := make(chan error)
	for w := range 8 {
		go func() {
			for i := range 60 {
				if _, err := l.Append(t.Context(), decision(w*100+i)); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 3 {
		cfg.Key = testKey(t)
		if _, err := l.Rotate(t.Context(), cfg.Key); err != nil {
			t.Error(err)
		}
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	mustClose(t, l)
	if report := mustVerify(t, cfg); report.Decisions != 480 || report.Rotations != 3 {
		t.Errorf("report %+v", report)
	}
	mustClose(t, mustOpen(t, cfg))
}

func TestGlanceReadsWhatTheJSONSays(t *testing.T) {
	var z summarizer
	check := func(leaf []byte) {
		t.Helper()
		quick, ok := glance(leaf)
		if !ok {
			return
		}
		z.buf.Reset()
		z.buf.Write(leaf)
		z.dec.Reset(&z.buf)
		if slow, err := z.object(); err != nil || slow != quick {
			t.Errorf("glance = %+v, the JSON says %+v, %v:\n%s", quick, slow, err, leaf)
		}
	}
	hard := []json.RawMessage{
		[]byte(`{"status":"allowed","attempt":9,"x":{"status":"ok"}}`),
		[]byte(`{"a":1,"attempt":7,"status":"allowed"}`),
		[]byte(`{"s":"\",\"status\":\"ok\",\"attempt\":3,"}`),
	}
	quick := 0
	for i := range 200 {
		d := decision(i)
		d.Input, d.Decision, d.Attempt = hard[i%3], hard[(i+1)%3], i%4
		d.Detail, d.Reason = `,"status":"denied","attempt":5,`, `x",,"attempt":2,`
		if i%2 > 0 {
			d.Reason += "}]"
		}
		o := outcomeOf(d)
		o.Detail, o.Event = d.Detail, nil
		for _, r := range []*audit.Record{d, o, {Kind: audit.KindFleet, ID: "x", Event: hard[i%3]}, {Kind: audit.KindBoot, ID: `q"q`}, {Kind: audit.KindDecision, ID: "y", Input: hard[i%3]}} {
			r.V = audit.Version
			leaf, err := audit.Encode(r)
			if err != nil {
				t.Fatal(err)
			}
			check(leaf)
			if _, ok := glance(leaf); ok {
				quick++
			}
			check(bytes.Replace(leaf, []byte(`"status"`), []byte(`"Status"`), 1))
			check([]byte(strings.ToUpper(string(leaf))))
		}
	}
	if quick < 250 {
		t.Errorf("only %d of 1000 records were taken at a glance", quick)
	}
}

// The key is changed in the first directory before it is in the second.
func TestASecondDirectoryThatDoesNotKnowOfARotationIsCaughtUp(t *testing.T) {
	cut := func(to int64) func(t *testing.T, dir string, before, sealed position) {
		return func(t *testing.T, dir string, before, sealed position) {
			t.Helper()
			data, err := os.ReadFile(segmentPath(dir, 0))
			if err != nil {
				t.Fatal(err)
			}
			clear(data[min(max(to, before.offset), sealed.offset):])
			if err := os.WriteFile(segmentPath(dir, 0), data, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(segmentPath(dir, 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	forge := func(t *testing.T, dir string, before, sealed position) {
		t.Helper()
		cut(0)(t, dir, before, sealed)
		data, err := os.ReadFile(segmentPath(dir, 0))
		if err != nil {
			t.Fatal(err)
		}
		st := state{chain: before.chain, tree: tree{size: before.next}}
		forged := st.appendRecord(nil, []byte(`{"v":1,"kind":"heartbeat","id":"forged","log":{}}`))
		copy(data[before.offset:], st.appendSeal(forged, testKey(t)))
		if err := os.WriteFile(segmentPath(dir, 0), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cases := map[string]struct {
		harm func(t *testing.T, dir string, before, sealed position)
		ok   bool
	}{
		"its last batch is signed":             {cut(0), true},
		"its last batch is only sealed":        {cut(1 << 40), true},
		"its last batch is sealed by a forger": {forge, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "key")
			if _, err := CreateKeyFile(path, origin); err != nil {
				t.Fatal(err)
			}
			key, err := ReadKeyFile(path)
			if err != nil {
				t.Fatal(err)
			}
			next, err := nextKey(path, origin)
			if err != nil {
				t.Fatal(err)
			}
			cfg := testConfig(t, key)
			cfg.Dir2 = t.TempDir()
			l := mustOpen(t, cfg)
			mustAppend(t, l, decision(1))
			before, after := lastBatch(t, cfg.Dir2, 0)
			if _, err := l.Rotate(t.Context(), next); err != nil {
				t.Fatal(err)
			}
			mustAppend(t, l, decision(2))
			mustClose(t, l)
			after.offset -= trailerFrame
			c.harm(t, cfg.Dir2, before, after)
			cfg.Key = nil
			if _, err := RotateKeyFile(t.Context(), cfg, path); (err == nil) != c.ok {
				t.Fatalf("RotateKeyFile = %v", err)
			}
			cfg.Key = next
			if !c.ok {
				if _, err := Open(cfg); err == nil {
					t.Error("Open takes it with the new key")
				}
				return
			}
			a, b := mustVerify(t, cfg), mustVerify(t, Config{Dir: cfg.Dir2, Key: next})
			if a.RootHex != b.RootHex || b.Rotations != 1 {
				t.Errorf("directories differ: %+v and %+v", a, b)
			}
		})
	}
}
