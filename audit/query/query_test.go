package query

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
)

// example writes a small log and returns its directory. The index of each record
// is in its reason, so that tests can name them.
func example(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	tlogtest.Write(t, tlog.Config{Dir: dir},
		allowed("a", 1, "acme", "alice", "chat", "internal", "general", "r0"),
		allowed("b", 1, "globex", "bob", "rag", "restricted", "restricted", "r1"),
		ended("b", 1, audit.StatusOK, "r1"),
		ended("a", 1, audit.StatusError, "r0"),
		allowed("a", 2, "acme", "alice", "chat", "internal", "general", "r1"),
		&audit.Record{Kind: audit.KindDecision, ID: "c", Attempt: 1, Status: audit.StatusDenied, Reason: "policy_denied", Caller: &audit.Caller{Tenant: "acme", Ref: "mal\"lory"}},
		ended("a", 2, audit.StatusOK, "r1"),
		&audit.Record{Kind: audit.KindAdmin, ID: "d"},
	)
	return dir
}

func allowed(id string, n int, tenant, subject, class, label, pool, replica string) *audit.Record {
	return &audit.Record{
		Kind: audit.KindDecision, ID: id, Attempt: n, Status: audit.StatusAllowed,
		Caller: &audit.Caller{Tenant: tenant, Ref: subject}, Class: &audit.Class{Name: class}, Label: &audit.Label{Level: label},
		Request: &audit.Request{Model: "fast", Served: "small"}, Placement: &audit.Placement{Pool: pool, Replica: replica},
	}
}

func ended(id string, n int, status, replica string) *audit.Record {
	return &audit.Record{Kind: audit.KindOutcome, ID: id, Attempt: n, Status: status, Outcome: &audit.Outcome{Status: status, Replica: replica}}
}

func TestSelectPicksWhatIsAskedFor(t *testing.T) {
	dir := example(t)
	const boot = "boot:"
	for _, c := range []struct {
		claim string
		f     Filter
		want  []string
	}{
		{"everything, without a filter", Filter{}, []string{boot, "decision:a1", "decision:b1", "outcome:b1", "outcome:a1", "decision:a2", "decision:c1", "outcome:a2", "admin:d0", "seal:"}},
		{"a tenant's outcomes with its decisions", Filter{Tenant: "acme"}, []string{"decision:a1", "outcome:a1", "decision:a2", "decision:c1", "outcome:a2"}},
		{"a label", Filter{Label: "restricted"}, []string{"decision:b1", "outcome:b1"}},
		{"a class and a pool", Filter{Class: "chat", Pool: "general"}, []string{"decision:a1", "outcome:a1", "decision:a2", "outcome:a2"}},
		{"a class in a pool where it was not", Filter{Class: "chat", Pool: "restricted"}, nil},
		{"a replica", Filter{Replica: "r1"}, []string{"decision:b1", "outcome:b1", "decision:a2", "outcome:a2"}},
		{"a tenant's on one replica", Filter{Tenant: "acme", Replica: "r1"}, []string{"decision:a2", "outcome:a2"}},
		{"a model by either name", Filter{Model: "small", Status: audit.StatusAllowed}, []string{"decision:a1", "decision:b1", "decision:a2"}},
		{"a tenant's failures", Filter{Tenant: "acme", Status: audit.StatusError}, []string{"outcome:a1"}},
		{"a reason", Filter{Reason: "policy_denied"}, []string{"decision:c1"}},
		{"one id", Filter{ID: "a"}, []string{"decision:a1", "outcome:a1", "decision:a2", "outcome:a2"}},
		{"a kind", Filter{Kind: audit.KindAdmin}, []string{"admin:d0"}},
		{"a subject that needs escaping", Filter{Subject: `mal"lory`}, []string{"decision:c1"}},
		{"what is to come", Filter{Since: time.Now().Add(time.Hour)}, nil},
		{"what was long ago", Filter{Until: time.Now().Add(-time.Hour)}, nil},
		{"a text that stands elsewhere in the record is not it", Filter{Tenant: "alice"}, nil},
	} {
		var got []string
		for m, err := range Select(tlog.Read(dir, 0), c.f) {
			if err != nil {
				t.Fatal(err)
			}
			switch name := fmt.Sprintf("%s:%s%d", m.Record.Kind, m.Record.ID, m.Record.Attempt); m.Record.Kind {
			case audit.KindBoot, audit.KindSeal:
				got = append(got, string(m.Record.Kind)+":")
			default:
				got = append(got, name)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.claim, got, c.want)
		}
	}
}

func TestSelectRemembersOnlyWhatIsOpen(t *testing.T) {
	s := selector{f: Filter{Tenant: "acme"}, open: make(map[attempt]bool)}
	s.needles = s.f.needles()
	for i := range 10_000 {
		id := fmt.Sprint(i)
		for _, r := range []*audit.Record{allowed(id, 1, "acme", "alice", "chat", "internal", "general", "r0"), ended(id, 1, audit.StatusOK, "r0")} {
			r.V = audit.Version
			leaf, err := audit.Encode(r)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := s.read(tlog.Entry{Leaf: leaf}); err != nil || got == nil {
				t.Fatalf("record %d: %v, %v", i, got, err)
			}
		}
		if len(s.open) > 1 {
			t.Fatalf("%d attempts remembered after %d requests", len(s.open), i+1)
		}
	}
}

func BenchmarkSelect(b *testing.B) {
	var leaves []tlog.Entry
	for i := range 4096 {
		tenant := fmt.Sprintf("tenant-%d", i%64)
		r := allowed(fmt.Sprint(i), 1, tenant, "alice", "chat", "internal", "general", "r0")
		for range 8 {
			r.Placement.Candidates = append(r.Placement.Candidates, audit.Candidate{Replica: "spiffe://example.org/pool/general/r0", CostNS: int64(i)})
		}
		r.V = audit.Version
		leaf, err := audit.Encode(r)
		if err != nil {
			b.Fatal(err)
		}
		leaves = append(leaves, tlog.Entry{Index: uint64(i), Leaf: leaf})
	}
	records := func(yield func(tlog.Entry, error) bool) {
		for i := range b.N {
			if !yield(leaves[i%len(leaves)], nil) {
				return
			}
		}
	}
	b.ReportAllocs()
	for _, err := range Select(records, Filter{Tenant: "tenant-7"}) {
		if err != nil {
			b.Fatal(err)
		}
	}
}
