package tlog

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// clockedWitness is a fake witness whose clock is as it is told; nil: a right one.
func clockedWitness(t *testing.T, name string, clock func() uint64) *fakeWitness {
	t.Helper()
	f := newFakeWitness(t, name)
	if clock == nil {
		return f
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key := append([]byte{algCosignature}, public...)
	hash := sha256.Sum256(append([]byte(name+"\n"), key...))
	f.key = fmt.Sprintf("%s+%x+%s", name, hash[:4], base64.StdEncoding.EncodeToString(key))
	f.cosign = func(text []byte) []byte {
		now := clock()
		sig := binary.BigEndian.AppendUint64(bytes.Clone(hash[:4]), now)
		sig = append(sig, ed25519.Sign(private, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", now, text))...)
		return fmt.Appendf(nil, "— %s %s\n", name, base64.StdEncoding.EncodeToString(sig))
	}
	return f
}

func TestAWitnessIsAskedForItsMemoryAndNotForTheTime(t *testing.T) {
	at := func(d time.Duration) func() uint64 {
		return func() uint64 { return uint64(time.Now().Add(d).Unix()) }
	}
	exactly := func(seconds uint64) func() uint64 { return func() uint64 { return seconds } }
	const year = 365 * 24 * time.Hour
	for _, c := range []struct {
		claim  string
		clock  func() uint64
		counts bool
		off    func(time.Duration) bool // of the clock, and as verification says
	}{
		{"a right one", nil, true, func(d time.Duration) bool { return d == 0 }},
		{"some seconds late", at(-20 * time.Second), true, func(d time.Duration) bool { return d == 0 }},
		{"an hour late", at(-time.Hour), true, func(d time.Duration) bool { return d < -59*time.Minute && d > -61*time.Minute }},
		{"an hour early", at(time.Hour), true, func(d time.Duration) bool { return d > 59*time.Minute && d < 61*time.Minute }},
		{"of 1970", exactly(1), true, func(d time.Duration) bool { return d < -50*year }},
		{"of a year with thirteen digits", exactly(math.MaxInt64), true, func(d time.Duration) bool { return d > 50*year }},
		{"that shows nothing", exactly(0), false, nil},
		{"that shows what is no time", exactly(math.MaxInt64 + 1), false, nil},
	} {
		t.Run(c.claim, func(t *testing.T) {
			w, other := clockedWitness(t, "a.example/w", c.clock), newFakeWitness(t, "b.example/w")
			cfg := witnessed(t, 2, w.config("a.example"), other.config("b.example"))
			l := mustOpen(t, cfg)
			mustAppend(t, l, decision(1))
			if !c.counts {
				await(t, "refused", func() bool { a := l.Anchors(); return a.Witnesses[0].Err != nil && a.Witnesses[1].Size == 2 })
				if a := l.Anchors(); a.Size != 0 || l.Err() != nil {
					t.Errorf("anchored %+v, halted by %v", a, l.Err())
				}
				return
			}
			await(t, "anchored by both", func() bool { return l.Anchors().Records == 0 })
			states := l.Anchors().Witnesses
			right := c.off(0)
			if d := states[0].Ahead; right != (d.Abs() <= clockSlack) || !right && !c.off(d) {
				t.Errorf("its clock is %v ahead", d)
			}
			if d := states[1].Ahead; d.Abs() > 10*time.Second {
				t.Errorf("the other's clock is %v ahead", d)
			}
			mustClose(t, l)
			report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{Witnesses: cfg.Witnesses})
			if err != nil || !report.OK() || report.Anchored != report.TreeSize || len(report.Cosigned) != 2 {
				t.Fatalf("Verify = %+v, %v", report, err)
			}
			said := report.Cosigned[0]
			if !c.off(time.Duration(said.Off)*time.Second) || said.Witness != "a.example/w" || strings.Contains(said.String(), "clock") != (said.Off != 0) {
				t.Errorf("verification says %+v: %s", said, said)
			}
			if other := report.Cosigned[1]; other.Off != 0 || other.String() != "" {
				t.Errorf("of the other it says %+v", other)
			}
			if _, err := json.Marshal(report); err != nil {
				t.Errorf("the report cannot be printed: %v", err)
			}
		})
	}
}

// A log whose clock went wrong is told by its witnesses, one at a time.
func TestTheTimeOfACosignatureLiesBetweenThatOfItsBatchAndTheNext(t *testing.T) {
	base := time.Unix(1_800_000_000, 0)
	for _, c := range []struct {
		claim string
		at    time.Duration
		next  time.Duration // of the next batch; 0: there is none
		off   int64
	}{
		{"at once", 0, time.Second, 0},
		{"within the slack, before", -50 * time.Second, time.Second, 0},
		{"within the slack, after", time.Second + 50*time.Second, time.Second, 0},
		{"long before", -2 * time.Hour, time.Second, -7200},
		{"long after the next", 2 * time.Hour, time.Hour, 3600},
		{"long after, of an idle log", 2 * time.Hour, 0, 0},
		{"after now, of an idle log", 5 * time.Hour, 0, 7200},
	} {
		times := cosignTimes{size: 10, by: []Cosigned{{Unix: base.Add(c.at).Unix()}}}
		times.see(4, base.Add(-time.Hour).UnixMicro())
		times.see(10, base.UnixMicro())
		if c.next != 0 {
			times.see(12, base.Add(c.next).UnixMicro())
			times.see(14, base.Add(9*time.Hour).UnixMicro())
		}
		if got := times.judge(base.Add(3 * time.Hour))[0].Off; got != c.off {
			t.Errorf("%s: off by %d s, want %d", c.claim, got, c.off)
		}
	}
}
