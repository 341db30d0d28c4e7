package tlog

import (
	"os"
	"testing"
	"time"
)

func TestSegmentsCannotBeMovedAround(t *testing.T) {
	made := func(t *testing.T) (Config, int) {
		cfg := testConfig(t, testKey(t))
		l := mustOpen(t, cfg)
		fill(t, l, 5)
		mustClose(t, l)
		return cfg, lastSegment(t, cfg.Dir)
	}
	to := func(t *testing.T, cfg Config, from, to int) {
		t.Helper()
		data, err := os.ReadFile(segmentPath(cfg.Dir, from))
		if err == nil {
			err = os.WriteFile(segmentPath(cfg.Dir, to), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cases := []struct {
		name string
		harm func(t *testing.T, cfg Config, last int)
	}{
		{"two that changed places", func(t *testing.T, cfg Config, last int) {
			to(t, cfg, 1, last+7)
			to(t, cfg, 2, 1)
			to(t, cfg, last+7, 2)
			if err := os.Remove(segmentPath(cfg.Dir, last+7)); err != nil {
				t.Fatal(err)
			}
		}},
		{"one that is missing", func(t *testing.T, cfg Config, _ int) {
			if err := os.Remove(segmentPath(cfg.Dir, 2)); err != nil {
				t.Fatal(err)
			}
		}},
		{"one that is empty", func(t *testing.T, cfg Config, _ int) {
			if err := os.Truncate(segmentPath(cfg.Dir, 2), 0); err != nil {
				t.Fatal(err)
			}
		}},
		{"one under a higher number", func(t *testing.T, cfg Config, last int) {
			move(t, segmentPath(cfg.Dir, last), segmentPath(cfg.Dir, last+1))
		}},
		{"one that is there twice", func(t *testing.T, cfg Config, last int) { to(t, cfg, 1, last+1) }},
		{"an earlier one in the place of the last", func(t *testing.T, cfg Config, last int) { to(t, cfg, 1, last) }},
		{"the last one of another log", func(t *testing.T, cfg Config, last int) {
			other, _ := made(t)
			data, err := os.ReadFile(segmentPath(other.Dir, last))
			if err != nil {
				t.Skip("the other log is shorter")
			}
			if err := os.WriteFile(segmentPath(cfg.Dir, last), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"a link to another", func(t *testing.T, cfg Config, last int) {
			if err := os.Remove(segmentPath(cfg.Dir, last)); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(segmentPath(cfg.Dir, 1), segmentPath(cfg.Dir, last)); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cfg, last := made(t)
			remove(t, cfg.Dir, checkpointFile) // so that nothing else tells
			c.harm(t, cfg, last)
			report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{})
			if err != nil || report.OK() || report.FirstBad < 0 {
				t.Errorf("Verify = %+v, %v", report, err)
			}
			if _, err := Open(cfg); err == nil {
				t.Error("Open accepts it")
			}
		})
	}
}

func TestAClockThatWasSetBackIsSaidToBe(t *testing.T) {
	key := testKey(t)
	cfg := testConfig(t, key)
	now := time.Now().UnixMicro()
	hour := time.Hour.Microseconds()
	st := state{chain: genesis(origin)}
	buf, err := st.appendHeader(nil, header{Origin: origin, Key: key.VerifierKey()})
	if err != nil {
		t.Fatal(err)
	}
	for _, wall := range []int64{now, now + hour, now + 1, now + 2, now - hour} {
		buf = st.appendRecord(buf, []byte(`{"v":1,"kind":"heartbeat","id":"x","log":{}}`))
		if buf, err = st.appendTrailer(buf, key, st.tree.root(), wall); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(cfg.Dir+"/"+walDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(segmentPath(cfg.Dir, 0), buf, 0o600); err != nil {
		t.Fatal(err)
	}
	if report := mustVerify(t, cfg); report.Backwards != 2 || report.Records != 5 {
		t.Errorf("report %+v", report)
	}
}
