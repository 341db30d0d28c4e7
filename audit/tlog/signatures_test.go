package tlog

import (
	"os"
	"testing"
)

// unsignedLog is a log of n batches that its key wrote, but for the signatures
// of some.
func unsignedLog(t *testing.T, n int, unsigned ...int) Config {
	t.Helper()
	cfg := smallLog(t)
	remove(t, cfg.Dir, checkpointFile)
	path := segmentPath(cfg.Dir, 0)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var head, leaf []byte
	for _, f := range frames(t, whole) {
		switch payload := whole[f.from+frameHead : f.to]; f.kind {
		case frameHeader:
			head = payload
		case frameRecord:
			leaf = payload
		}
	}
	bad := make(map[int]bool)
	for _, i := range unsigned {
		bad[i] = true
	}
	s := state{chain: genesis(origin)}
	out := s.append(nil, frameHeader, head)
	for i := range n {
		out = s.appendRecord(out, leaf)
		tr := trailer{size: s.tree.size, root: s.tree.root(), wall: int64(i)}
		sig, err := cfg.Key.Sign(tr.message(origin, s.chain))
		if err != nil {
			t.Fatal(err)
		}
		if copy(tr.sig[:], sig); bad[i] {
			tr.sig[0] ^= 1
		}
		out = s.append(out, frameTrailer, tr.encode())
	}
	if err := os.WriteFile(path, out, 0o600); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestVerifyChecksTheSignaturesItIsAskedFor(t *testing.T) {
	const n = 2*signatureRun + 500 // two whole runs and a part
	cases := []struct {
		name     string
		unsigned []int
		which    Signatures
		bad      int64 // -1: none is found
		checked  int
	}{
		{"every one is good", nil, EverySignature, -1, n},
		{"one in 1024 and the last", nil, SampleSignatures, -1, 3},
		{"a small log: every one", nil, SignaturesBySize, -1, n},
		{"one inside is bad, and is vouched for by the next", []int{700}, SampleSignatures, -1, 3},
		{"one inside is bad", []int{700}, EverySignature, 700, 0},
		{"one inside a small log is bad", []int{700}, SignaturesBySize, 700, 0},
		{"the first is bad", []int{0}, EverySignature, 0, 0},
		{"one of the second run is bad", []int{signatureRun + 3}, EverySignature, signatureRun + 3, signatureRun},
		{"of several the first is named", []int{2100, 1900, 1901, 1100}, EverySignature, 1100, signatureRun},
		{"the last of a run is bad, and so is one before it", []int{900, signatureRun - 1}, SampleSignatures, 900, 0},
		{"the last is bad", []int{n - 1}, SampleSignatures, n - 1, 2},
		{"the last but one is bad", []int{n - 2}, EverySignature, n - 2, 2 * signatureRun},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cfg := unsignedLog(t, n, c.unsigned...)
			report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{Signatures: c.which})
			if err != nil {
				t.Fatal(err)
			}
			if report.FirstBad != c.bad || report.OK() != (c.bad < 0) || report.Signatures != c.checked {
				t.Errorf("%s at %d (%s), %d signatures checked; want %d, %d", report.Code, report.FirstBad, report.Detail, report.Signatures, c.bad, c.checked)
			}
			if c.bad < 0 && report.TreeSize != n {
				t.Errorf("%d records, want %d", report.TreeSize, n)
			}
		})
	}
}

func TestABadSignatureComesBeforeALaterFault(t *testing.T) {
	cfg := unsignedLog(t, signatureRun+40, 10)
	path := segmentPath(cfg.Dir, 0)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	fs := frames(t, whole)
	whole[fs[len(fs)-2].from+frameHead] ^= 1
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{Signatures: EverySignature})
	if err != nil || report.Code != BadSignature || report.FirstBad != 10 {
		t.Errorf("Verify = %s at %d, %v; want the signature of record 10", report.Code, report.FirstBad, err)
	}
}

func TestALogIsSmallUpToAQuarterOfAGiB(t *testing.T) {
	cfg := unsignedLog(t, 1)
	for _, c := range []struct {
		size  int64
		small bool
	}{{smallBytes, true}, {smallBytes + 1, false}} {
		if err := os.Truncate(segmentPath(cfg.Dir, 0), c.size); err != nil { // sparse
			t.Fatal(err)
		}
		small, err := isSmall(cfg.Dir, []int{0})
		if err != nil || small != c.small {
			t.Errorf("a log of %d bytes is small: %v, %v", c.size, small, err)
		}
	}
}
