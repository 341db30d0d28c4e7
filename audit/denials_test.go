package audit_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
)

// openLog opens a real log and returns its directory.
func openLog(t testing.TB) (*tlog.Log, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "log")
	l := tlogtest.Open(t, tlog.Config{Dir: dir, SegmentBytes: 1 << 20})
	return l, dir
}

// summaries adds up all denial summaries in a log, by prefix and code.
func summaries(t *testing.T, dir string) (counts map[string]uint64, total uint64) {
	t.Helper()
	counts = make(map[string]uint64)
	seen := make(map[string]bool)
	for _, r := range tlogtest.Records(t, dir, 0) {
		if seen[r.ID] {
			continue // written twice: see Flush
		}
		seen[r.ID] = true
		for _, d := range r.Denials {
			if d.First > d.Last || d.First == 0 {
				t.Errorf("%s %s was seen from %d to %d", d.Prefix, d.Code, d.First, d.Last)
			}
			counts[d.Prefix+" "+d.Code] += d.Count
			total += d.Count
		}
	}
	return counts, total
}

func v4(i uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], i)
	return netip.AddrFrom4(b)
}

func TestDenialsAreCountedByPrefixAndCode(t *testing.T) {
	l, dir := openLog(t)
	d := audit.NewDenials(l, 100)
	for _, c := range []struct{ source, code string }{
		{"192.0.2.1", "no_credential"},
		{"192.0.2.250", "no_credential"},
		{"::ffff:192.0.2.9", "no_credential"},
		{"192.0.2.1", "bad_credential"},
		{"192.0.3.1", "no_credential"},
		{"2001:db8:0:1::1", "no_credential"},
		{"2001:db8:0:ff::1", "no_credential"},
		{"2001:db8:0:100::1", "no_credential"},
		{"fe80::1%eth0", "no_credential"},
	} {
		d.Count(netip.MustParseAddr(c.source), c.code)
	}
	d.Count(netip.Addr{}, "no_credential")
	if err := d.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, _ := summaries(t, dir)
	want := map[string]uint64{
		"192.0.2.0/24 no_credential": 3, "192.0.2.0/24 bad_credential": 1, "192.0.3.0/24 no_credential": 1,
		"2001:db8::/56 no_credential": 2, "2001:db8:0:100::/56 no_credential": 1, "fe80::/56 no_credential": 1, "unknown no_credential": 1,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("counted %v, want %v", got, want)
	}
	if err := d.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again, _ := summaries(t, dir); fmt.Sprint(again) != fmt.Sprint(want) {
		t.Errorf("a flush of nothing wrote %v", again)
	}
}

func TestTotalsStayExactInAFlood(t *testing.T) {
	l, dir := openLog(t)
	d := audit.NewDenials(l, 300)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx, time.Millisecond) }()
	const workers, each = 8, 5000
	var wg sync.WaitGroup
	for w := range uint32(workers) {
		wg.Go(func() {
			for i := range uint32(each) {
				d.Count(v4((i*workers+w)<<8), []string{"no_credential", "bad_credential"}[i%2])
			}
		})
	}
	wg.Wait()
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	counts, total := summaries(t, dir)
	if total != workers*each {
		t.Errorf("%d denials are in the log, want %d", total, workers*each)
	}
	if counts[audit.OtherPrefixes+" no_credential"] == 0 {
		t.Error("the table was never full: the test floods nothing")
	}
}

func TestAFailedFlushLosesNoCount(t *testing.T) {
	l, dir := openLog(t)
	d := audit.NewDenials(l, 2)
	for i := range uint32(5) {
		d.Count(v4(i<<8), "no_credential")
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Flush(gone); err == nil {
		t.Fatal("flush with a cancelled context succeeds")
	}
	d.Count(v4(0), "no_credential")
	if err := d.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	counts, total := summaries(t, dir)
	if total != 6 || counts[audit.OtherPrefixes+" no_credential"] != 3 {
		t.Errorf("counted %v, total %d", counts, total)
	}
}

func TestCountingAllocatesNothing(t *testing.T) {
	l, _ := openLog(t)
	d := audit.NewDenials(l, 1000)
	a := netip.MustParseAddr("192.0.2.1")
	if n := testing.AllocsPerRun(1000, func() { d.Count(a, "no_credential") }); n != 0 {
		t.Errorf("%v allocations per count of a known source", n)
	}
	i := uint32(0)
	if n := testing.AllocsPerRun(900, func() { i += 256; d.Count(v4(i), "no_credential") }); n != 0 {
		t.Errorf("%v allocations per count of a new source", n)
	}
}

func TestASummaryIsOfNetworksOrOfTenants(t *testing.T) {
	l, dir := openLog(t)
	d := audit.NewDenials(l, 0)
	for range 300 {
		d.CountTenant("acme", "rate_limited")
	}
	d.CountTenant("globex", "rate_limited")
	d.Count(netip.MustParseAddr("192.0.2.7"), "bad_credential")
	if err := d.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	counts, _ := summaries(t, dir)
	if counts["tenant:acme rate_limited"] != 300 || counts["tenant:globex rate_limited"] != 1 || counts["192.0.2.0/24 bad_credential"] != 1 {
		t.Errorf("counts %v", counts)
	}
	for _, r := range tlogtest.Records(t, dir, 0) {
		tenants := 0
		for _, c := range r.Denials {
			if strings.HasPrefix(c.Prefix, "tenant:") {
				tenants++
			}
		}
		if tenants != 0 && tenants != len(r.Denials) {
			t.Errorf("one summary is of both: %+v", r.Denials)
		}
	}
}
