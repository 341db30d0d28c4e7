package reconcile

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

const (
	gatewayA = "example.org/gateway/a"
	gatewayB = "example.org/gateway/b"
	r0       = "spiffe://example.org/pool/general/r0"
	r1       = "spiffe://example.org/pool/general/r1"
)

var start = time.Date(2026, 11, 3, 9, 0, 0, 0, time.UTC)

// writer makes the records of one log, one second apart.
type writer struct {
	t      *testing.T
	origin string
	first  uint64
	at     time.Time
	leaves [][]byte
}

func newLog(t *testing.T, origin string) *writer { return &writer{t: t, origin: origin, at: start} }

func (w *writer) add(r *audit.Record) *writer {
	w.t.Helper()
	r.V, r.Time.Wall = audit.Version, w.at.UnixMicro()
	r.Log = audit.LogRef{Origin: w.origin, Seq: w.first + uint64(len(w.leaves))}
	w.at = w.at.Add(time.Second)
	leaf, err := audit.Encode(r)
	if err != nil {
		w.t.Fatal(err)
	}
	w.leaves = append(w.leaves, leaf)
	return w
}

func (w *writer) boot(id string, clean bool) *writer {
	return w.add(&audit.Record{
		Kind: audit.KindBoot, ID: audit.NewID(), Gateway: &audit.Gateway{SPIFFE: id},
		Event: fmt.Appendf(nil, `{"previous_size":0,"clean":%v}`, clean),
	})
}

func (w *writer) allow(id string, n int, replica string) *writer {
	return w.decide(&audit.Record{ID: id, Attempt: n, Status: audit.StatusAllowed, Placement: placed(replica)})
}

func placed(replica string) *audit.Placement {
	return &audit.Placement{
		Pool: "general", Replica: replica, Epoch: "e1",
		Candidates: []audit.Candidate{{Replica: replica, Region: "eu-1"}},
	}
}

func (w *writer) decide(r *audit.Record) *writer {
	r.Kind = audit.KindDecision
	r.Caller, r.Label = &audit.Caller{Tenant: "acme"}, &audit.Label{Level: "restricted"}
	r.Request = &audit.Request{Served: "small"}
	return w.add(r)
}

func (w *writer) deny(id string) *writer {
	return w.decide(&audit.Record{ID: id, Attempt: 1, Status: audit.StatusDenied})
}

func (w *writer) outcome(id string, n int, status string) *writer {
	return w.add(&audit.Record{Kind: audit.KindOutcome, ID: id, Attempt: n, Status: status, Outcome: &audit.Outcome{Status: status}})
}

func (w *writer) answered(id string, n int, replica string) *writer {
	return w.allow(id, n, replica).outcome(id, n, audit.StatusOK)
}

func (w *writer) serve(id string, n int, change ...func(*audit.Served)) *writer {
	w.t.Helper()
	s := audit.Served{Ticket: id, Attempt: n, Log: gatewayA, Replica: r0, Epoch: "e1", Pool: "general", Model: "small"}
	for _, c := range change {
		c(&s)
	}
	event, err := json.Marshal(s)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.add(&audit.Record{Kind: audit.KindAccess, ID: audit.NewID(), Status: audit.StatusServed, Event: event})
}

func (w *writer) log() Log {
	return Log{Origin: w.origin, Size: w.first + uint64(len(w.leaves)), Records: iter.Seq2[tlog.Entry, error](func(yield func(tlog.Entry, error) bool) {
		for i, leaf := range w.leaves {
			if !yield(tlog.Entry{Index: w.first + uint64(i), Leaf: leaf}, nil) {
				return
			}
		}
	})}
}

// pruned is the log without its first n records.
func (w *writer) pruned(n int) *writer {
	w.first, w.leaves = w.first+uint64(n), w.leaves[n:]
	return w
}

// piece is the log from one record to before another.
func (w *writer) piece(from, to int) *writer {
	return &writer{t: w.t, origin: w.origin, first: w.first + uint64(from), leaves: w.leaves[from:to]}
}

// later makes what follows happen later.
func (w *writer) later(d time.Duration) *writer { w.at = w.at.Add(d); return w }

func of(origin string) func(*audit.Served)  { return func(s *audit.Served) { s.Log = origin } }
func by(replica string) func(*audit.Served) { return func(s *audit.Served) { s.Replica = replica } }

func TestTwoSidesAreHeldAgainstEachOther(t *testing.T) {
	a, b := uuid.NewString(), uuid.NewString()
	for name, c := range map[string]struct {
		gateways, relays func(t *testing.T) []*writer
		o                Options
		faults           map[Code]int
		undecided        map[Code]int
		matched, unseen  int
	}{
		"a decision and its forward agree": {
			gateways: one(func(w *writer) { w.boot("g", true).answered(a, 1, r0) }),
			relays:   relay(func(w *writer) { w.serve(a, 1) }), matched: 1,
		},
		"a second attempt has a forward of its own": {
			gateways: one(func(w *writer) {
				w.boot("g", true).allow(a, 1, r0).outcome(a, 1, audit.StatusError).answered(a, 2, r0)
			}),
			relays: relay(func(w *writer) { w.serve(a, 2) }), matched: 1, unseen: 1,
		},
		"a forward without a decision is found": {
			gateways: one(func(w *writer) { w.boot("g", true) }),
			relays:   relay(func(w *writer) { w.serve(a, 1) }), faults: map[Code]int{ForwardWithoutDecision: 1},
		},
		"the attempt counts, not only the decision": {
			gateways: one(func(w *writer) { w.boot("g", true).answered(a, 1, r0) }),
			relays:   relay(func(w *writer) { w.serve(a, 1).serve(a, 2) }), matched: 1, faults: map[Code]int{ForwardWithoutDecision: 1},
		},
		"a decision that was answered misses its forward": {
			gateways: one(func(w *writer) { w.boot("g", true).answered(a, 1, r0).answered(b, 1, r0) }),
			relays:   relay(func(w *writer) { w.serve(b, 1) }), matched: 1, faults: map[Code]int{DecisionWithoutForward: 1},
		},
		"a forward of what was refused is found": {
			gateways: one(func(w *writer) { w.boot("g", true).deny(a) }),
			relays:   relay(func(w *writer) { w.serve(a, 1) }), faults: map[Code]int{ForwardOfDenied: 1},
		},
		"a forward of what never left is found": {
			gateways: one(func(w *writer) { w.boot("g", true).allow(a, 1, r0).outcome(a, 1, audit.StatusNotForwarded) }),
			relays:   relay(func(w *writer) { w.serve(a, 1) }), matched: 1, faults: map[Code]int{ForwardDenied: 1},
		},
		"a forward to another replica than decided is found": {
			gateways: one(func(w *writer) { w.boot("g", true).answered(a, 1, r1) }),
			relays:   relay(func(w *writer) { w.serve(a, 1) }), matched: 1, faults: map[Code]int{ForwardElsewhere: 1},
		},
		"a forward with another model is found": {
			gateways: one(func(w *writer) { w.boot("g", true).answered(a, 1, r0) }),
			relays:   relay(func(w *writer) { w.serve(a, 1, func(s *audit.Served) { s.Model = "large" }) }), matched: 1,
			faults: map[Code]int{ForwardElsewhere: 1},
		},
		"a forward by another process of the replica is found": {
			gateways: one(func(w *writer) { w.boot("g", true).answered(a, 1, r0) }),
			relays:   relay(func(w *writer) { w.serve(a, 1, func(s *audit.Served) { s.Epoch = "e2" }) }), matched: 1,
			faults: map[Code]int{ForwardElsewhere: 1},
		},
		"a ticket that counted twice is found": {
			gateways: one(func(w *writer) { w.boot("g", true).answered(a, 1, r0) }),
			relays:   relay(func(w *writer) { w.serve(a, 1).serve(a, 1) }), matched: 1, faults: map[Code]int{ForwardTwice: 1},
		},
		"an attempt that was decided twice is found": {
			gateways: one(func(w *writer) { w.boot("g", true).allow(a, 1, r1).answered(a, 1, r0) }),
			relays:   relay(func(w *writer) { w.serve(a, 1) }), matched: 1, faults: map[Code]int{DecisionTwice: 1},
		},
		"and when the first of them has been answered": {
			gateways: one(func(w *writer) { w.boot("g", true).answered(a, 1, r0).allow(a, 1, r0) }),
			relays:   relay(func(w *writer) { w.serve(a, 1) }), matched: 1, unseen: 1, faults: map[Code]int{DecisionTwice: 1},
		},
		"a record of another replica in a relay's log is found": {
			gateways: one(func(w *writer) { w.boot("g", true).answered(a, 1, r1) }),
			relays:   relay(func(w *writer) { w.serve(a, 1, by(r1)) }), matched: 1, faults: map[Code]int{ForwardForeign: 1},
		},
		"several gateways share a relay": {
			gateways: func(t *testing.T) []*writer {
				return []*writer{newLog(t, gatewayA).boot("g", true).answered(a, 1, r0), newLog(t, gatewayB).boot("g", true).answered(b, 1, r0)}
			},
			relays: relay(func(w *writer) { w.serve(a, 1).serve(b, 1, of(gatewayB)) }), matched: 2,
		},
		"the decision of one gateway does not answer for another's forward": {
			gateways: func(t *testing.T) []*writer {
				return []*writer{newLog(t, gatewayA).boot("g", true).answered(a, 1, r0), newLog(t, gatewayB).boot("g", true)}
			},
			relays: relay(func(w *writer) { w.serve(a, 1, of(gatewayB)) }),
			faults: map[Code]int{ForwardWithoutDecision: 1, DecisionWithoutForward: 1},
		},
		"without the other gateway's log its forwards are undecided": {
			gateways: one(func(w *writer) { w.boot("g", true) }),
			relays:   relay(func(w *writer) { w.serve(a, 1, of(gatewayB)) }), undecided: map[Code]int{UndecidedGatewayMissing: 1},
		},
		"a gateway that no register lists is a finding": {
			gateways: one(func(w *writer) { w.boot("g", true) }),
			relays:   relay(func(w *writer) { w.serve(a, 1, of("elsewhere")) }),
			o:        Options{Listed: func(origin string) bool { return origin == gatewayB }}, faults: map[Code]int{ForwardUnlisted: 1},
		},
		"without the relay's log a decision is undecided": {
			gateways: one(func(w *writer) { w.boot("g", true).answered(a, 1, r1) }),
			relays:   relay(func(*writer) {}), undecided: map[Code]int{UndecidedRelayMissing: 1},
		},
		"a gateway that died after deciding need not have forwarded": {
			gateways: one(func(w *writer) {
				w.boot("g", true).allow(a, 1, r0).outcome(a, 1, audit.StatusUnknownCrash).boot("g", false)
			}),
			relays: relay(func(*writer) {}), unseen: 1,
		},
		"and may have": {
			gateways: one(func(w *writer) {
				w.boot("g", true).allow(a, 1, r0).outcome(a, 1, audit.StatusUnknownCrash).boot("g", false)
			}),
			relays: relay(func(w *writer) { w.serve(a, 1) }), matched: 1,
		},
		"a crash explains no forward of a gateway that always waits for its log": {
			gateways: one(func(w *writer) { w.boot("g", true).later(time.Second).boot("g", false) }),
			relays:   relay(func(w *writer) { w.serve(a, 1) }), faults: map[Code]int{ForwardWithoutDecision: 1},
		},
		"one that need not may have lost the decision": {
			gateways: one(func(w *writer) {
				w.boot("g", true).decide(&audit.Record{ID: b, Attempt: 1, Status: audit.StatusAllowed, Durability: audit.Bounded, Placement: placed(r0)}).
					outcome(b, 1, audit.StatusUnknownCrash).later(time.Second).boot("g", false)
			}),
			relays: relay(func(w *writer) { w.later(2*time.Second).serve(a, 1) }), unseen: 1, undecided: map[Code]int{UndecidedCrash: 1},
		},
		"but not long before": {
			gateways: one(func(w *writer) {
				w.boot("g", true).later(time.Minute).
					decide(&audit.Record{ID: b, Attempt: 1, Status: audit.StatusAllowed, Durability: audit.Bounded, Placement: placed(r0)}).
					outcome(b, 1, audit.StatusUnknownCrash).boot("g", false)
			}),
			relays: relay(func(w *writer) { w.serve(a, 1) }), unseen: 1, faults: map[Code]int{ForwardWithoutDecision: 1},
		},
		"what was pruned from a gateway's log is undecided": {
			gateways: one(func(w *writer) { w.boot("g", true).answered(a, 1, r0).later(time.Hour).boot("g", true).pruned(3) }),
			relays:   relay(func(w *writer) { w.serve(a, 1) }), undecided: map[Code]int{UndecidedDecisionPruned: 1},
		},
		"what was pruned from a relay's log is undecided": {
			gateways: one(func(w *writer) { w.boot("g", true).answered(a, 1, r0) }),
			relays: relay(func(w *writer) {
				w.serve(a, 1).later(time.Hour).serve(b, 1, of(gatewayB)).pruned(2)
			}), undecided: map[Code]int{UndecidedForwardPruned: 1, UndecidedGatewayMissing: 1},
		},
		"a relay that began its log later is no witness of what was before": {
			gateways: one(func(w *writer) { w.boot("g", true).answered(a, 1, r0) }),
			relays: func(t *testing.T) []*writer {
				return []*writer{newLog(t, "example.org/relay/r0").later(time.Hour).boot(r0, true)}
			}, undecided: map[Code]int{UndecidedForwardPruned: 1},
		},
		"records outside the window match but are not judged": {
			gateways: one(func(w *writer) { w.boot("g", true).answered(a, 1, r0).later(time.Minute).answered(b, 1, r0) }),
			relays:   relay(func(w *writer) { w.later(time.Minute).serve(a, 1).serve(b, 1) }),
			o:        Options{Since: start.Add(30 * time.Second)}, matched: 1,
		},
		"nor are they missed": {
			gateways: one(func(w *writer) { w.boot("g", true).answered(a, 1, r0) }),
			relays:   relay(func(w *writer) { w.serve(b, 1) }), o: Options{Since: start.Add(time.Hour)},
		},
		"a decision id that is none is said so": {
			gateways: one(func(w *writer) { w.boot("g", true) }),
			relays:   relay(func(w *writer) { w.serve("42", 1) }), faults: map[Code]int{Malformed: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			report, err := Run(logs(c.gateways(t)), logs(c.relays(t)), c.o)
			if err != nil {
				t.Fatal(err)
			}
			if !maps.Equal(report.Faults, c.faults) || !maps.Equal(report.Undecided, c.undecided) {
				t.Errorf("faults %v, undecided %v; want %v and %v", report.Faults, report.Undecided, c.faults, c.undecided)
			}
			if report.Matched != c.matched || report.Unseen != c.unseen {
				t.Errorf("%d matched and %d unseen, want %d and %d", report.Matched, report.Unseen, c.matched, c.unseen)
			}
			if report.OK() != (len(c.faults) == 0) || report.Decided() != (len(c.undecided) == 0) {
				t.Errorf("OK %v, Decided %v", report.OK(), report.Decided())
			}
			if t.Failed() {
				t.Log(report.Findings)
			}
		})
	}
}

// one is gateway A's log alone.
func one(write func(*writer)) func(t *testing.T) []*writer {
	return func(t *testing.T) []*writer {
		w := newLog(t, gatewayA)
		write(w)
		return []*writer{w}
	}
}

// relay is the log of r0's relay alone.
func relay(write func(*writer)) func(t *testing.T) []*writer {
	return func(t *testing.T) []*writer {
		w := newLog(t, "example.org/relay/r0").boot(r0, true)
		w.at = start
		write(w)
		return []*writer{w}
	}
}

func logs(writers []*writer) (out []Log) {
	for _, w := range writers {
		out = append(out, w.log())
	}
	return out
}

// TestALogThatIsGivenTwiceCountsOnce gives logs as whole and in pieces.
func TestALogThatIsGivenTwiceCountsOnce(t *testing.T) {
	a, b := uuid.NewString(), uuid.NewString()
	g := newLog(t, gatewayA).boot("g", true).answered(a, 1, r0).answered(b, 1, r0)
	r := newLog(t, "example.org/relay/r0").boot(r0, true).serve(a, 1).serve(b, 1)
	other := newLog(t, gatewayA).boot("g", true).answered(a, 1, r0).answered(b, 1, r0)
	foreign := newLog(t, r.origin).boot(r0, true).serve(a, 1).serve(b, 1, by(r1))
	foreign.leaves[0], foreign.leaves[1] = r.leaves[0], r.leaves[1]
	for name, c := range map[string]struct {
		gateways, relays  []*writer
		matched, unseen   int
		faults, undecided map[Code]int
	}{
		"a gateway's, whole":              {gateways: []*writer{g, g}, relays: []*writer{r}, matched: 2},
		"a relay's, whole":                {gateways: []*writer{g}, relays: []*writer{r, r}, matched: 2},
		"both, in pieces":                 {gateways: []*writer{g.piece(0, 3), g.piece(2, 5)}, relays: []*writer{r.piece(1, 3), r.piece(0, 2)}, matched: 2},
		"cut between decision and answer": {gateways: []*writer{g.piece(0, 4), g}, relays: []*writer{r.piece(0, 2)}, matched: 1, faults: map[Code]int{DecisionWithoutForward: 1}},
		"with a hole":                     {gateways: []*writer{g.piece(0, 1), g.piece(4, 5)}, relays: []*writer{r}, undecided: map[Code]int{UndecidedDecisionPruned: 2}},
		"a relay's with a hole":           {gateways: []*writer{g}, relays: []*writer{r.piece(0, 1), r.piece(2, 3)}, matched: 1, undecided: map[Code]int{UndecidedForwardPruned: 1}},
		"that differ in a record":         {gateways: []*writer{g, other}, relays: []*writer{r}, matched: 2, faults: map[Code]int{Forked: 1}},
		"whose relay is known from before": {
			gateways: []*writer{g}, relays: []*writer{r.piece(0, 2), foreign}, matched: 2,
			faults: map[Code]int{ForwardForeign: 1, ForwardElsewhere: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			report, err := Run(logs(c.gateways), logs(c.relays), Options{})
			if err != nil {
				t.Fatal(err)
			}
			if !maps.Equal(report.Faults, c.faults) || !maps.Equal(report.Undecided, c.undecided) || report.Matched != c.matched || report.Unseen != c.unseen {
				t.Errorf("%d matched, %d unseen, faults %v, undecided %v; want %d, %d, %v, %v\n%v",
					report.Matched, report.Unseen, report.Faults, report.Undecided, c.matched, c.unseen, c.faults, c.undecided, report.Findings)
			}
			if len(report.Logs) != 2 {
				t.Errorf("coverage of %d logs, want 2", len(report.Logs))
			}
		})
	}
}

func TestWhatIsAnsweredWhileLogsAreReadIsNotMissed(t *testing.T) {
	g := newLog(t, gatewayA).boot("g", true).log()
	size := g.Size
	g = newLog(t, gatewayA).boot("g", true).answered(uuid.NewString(), 1, r0).log()
	g.Size = size
	report, err := Run([]Log{g}, logs([]*writer{newLog(t, "r").boot(r0, true)}), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !report.OK() || !report.Decided() || report.Newer != 1 || report.Matched != 0 {
		t.Errorf("%+v", report)
	}
}

func TestFindingsAreListedInOrderAndBounded(t *testing.T) {
	r := newLog(t, "r").boot(r0, true)
	for range 2 * listed {
		r.serve(uuid.NewString(), 1)
	}
	report, err := Run(logs([]*writer{newLog(t, gatewayA).boot("g", true)}), logs([]*writer{r}), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if report.Faults[ForwardWithoutDecision] != 2*listed || len(report.Findings) != listed {
		t.Errorf("%d counted, %d listed", report.Faults[ForwardWithoutDecision], len(report.Findings))
	}
	if !slices.IsSortedFunc(report.Findings, func(a, b Finding) int { return a.Time.Compare(b.Time) }) {
		t.Error("not in order")
	}
}

func TestVisitSeesEachAttemptWithWhatBecameOfIt(t *testing.T) {
	a, b := uuid.NewString(), uuid.NewString()
	g := newLog(t, gatewayA).boot("g", true).answered(a, 1, r0).allow(b, 1, r0)
	var seen []Attempt
	_, err := Run(logs([]*writer{g}), logs([]*writer{newLog(t, "r").boot(r0, true).serve(a, 1)}), Options{
		Visit: func(at *Attempt) { seen = append(seen, *at) },
	})
	if err != nil || len(seen) != 2 {
		t.Fatalf("%d attempts, %v", len(seen), err)
	}
	if at := seen[0]; at.ID != a || !at.Forwarded || !at.Answered || at.Outcome != audit.StatusOK || at.Region != "eu-1" || at.Tenant != "acme" || at.Label != "restricted" || !at.Covered {
		t.Errorf("%+v", at)
	}
	if at := seen[1]; at.ID != b || at.Forwarded || at.Answered || at.Outcome != "" {
		t.Errorf("%+v", at)
	}
}

func TestARecordOfAnotherFormIsReadAlike(t *testing.T) {
	id := uuid.NewString()
	w := newLog(t, gatewayA).boot("g", true).boot("g", false).decide(large(id)).outcome(id, 1, audit.StatusOK).deny(id).serve(id, 2).
		add(&audit.Record{Kind: audit.KindGap, Event: json.RawMessage(`{"reason":"halted","since":1}`)}).
		add(&audit.Record{Kind: audit.KindAccess, Status: "ok", Event: json.RawMessage(`{"ticket":7}`)}).
		add(&audit.Record{Kind: audit.KindAdmin, Event: json.RawMessage(`{"reason":7,"clean":"yes"}`)})
	for _, text := range w.leaves {
		want, err := read(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := read(append(text[:len(text):len(text)], ' '))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v of %s\nwith a space after it, and without it %+v", got, err, text, want)
		}
	}
}

func TestWhatIsNoRecordIsMalformed(t *testing.T) {
	for _, text := range []string{
		``, `{`, `{"kind":"outcome","kind":"decision"}`, `{"v":"1"}`, "{\"id\":\"\xff\"}",
		`{"kind":"access","status":"served"}`, `{"kind":"access","status":"served","event":{"ticket":7}}`,
		`{"kind":"access","status":"served","event":{"ticket":"a","ticket":"b"}}`, `{"kind":"boot","event":{"clean":"yes"}}`, `{"kind":"gap","event":[]}`,
	} {
		if l, err := read([]byte(text)); err == nil {
			t.Errorf("%s is read as %+v", text, l.Record)
		}
	}
}

// large makes a decision as large as those of a gateway are.
func large(id string) *audit.Record {
	r := &audit.Record{
		ID: id, Attempt: 1, Status: audit.StatusAllowed, Durability: audit.Strict, Salt: "AAAAAAAAAAAAAAAAAAAAAA", Placement: placed(r0),
		Gateway:  &audit.Gateway{SPIFFE: "spiffe://example.org/gateway/g0", Build: "1.0.0", Config: strings.Repeat("c0", 32)},
		Policy:   &audit.Policy{Revision: "r1", Digest: strings.Repeat("d1", 32), Rules: []string{"chat.allowed"}, EvalUS: 90},
		Class:    &audit.Class{Name: "chat", Facts: []string{"system_prompt"}, Table: "2026.11"},
		Input:    json.RawMessage(`{"v":1,"principal":{"tenant":"acme","subject":"user","kind":"human","method":"oidc","issuer":"https://idp.example","groups":["a","b"],"scopes":[],"chain":[],"workload":"","registration":""},"request":{"operation":"chat.completions","model":"small","stream":true,"tools":[],"max_tokens":512,"prompt_tokens":812,"prompt_tokens_basis":"native","region":"eu-1"},"class":{"name":"chat","facts":["system_prompt"],"mismatch":false,"table":"2026.11"},"label":{"level":"internal","rank":1,"categories":[],"sources":[]},"exemptions":[]}`),
		Decision: json.RawMessage(`{"allow":true,"reasons":["chat.allowed"],"pools":["general"],"strategy":"probabilistic","cache_domain":"tenant","inspect":{"request":[],"response":[]},"tools_allow":null,"limits":{"max_output_tokens":null},"durability":"strict","expose_cached_tokens":false,"reauthorize_s":300}`),
	}
	for i := range 3 {
		c := r.Placement.Candidates[0]
		c.Replica = fmt.Sprint("spiffe://example.org/pool/general/other", i)
		r.Placement.Candidates = append(r.Placement.Candidates, c)
	}
	return r
}

// BenchmarkRun matches decisions as large as real ones with their outcomes and
// forwards. One record in three is of each.
func BenchmarkRun(b *testing.B) {
	const n = 10_000
	t := new(testing.T) // the writers fail nothing here
	g, r := newLog(t, gatewayA).boot("g", true), newLog(t, "r").boot(r0, true)
	for range n {
		id := uuid.NewString()
		g.decide(large(id)).outcome(id, 1, audit.StatusOK)
		r.serve(id, 1)
	}
	gateways, relays := logs([]*writer{g}), logs([]*writer{r})
	size := 0
	for _, leaf := range append(g.leaves, r.leaves...) {
		size += len(leaf)
	}
	b.ReportAllocs()
	began := cpu(b)
	for b.Loop() {
		if report, err := Run(gateways, relays, Options{}); err != nil || report.Matched != n {
			b.Fatal(report, err)
		}
	}
	b.ReportMetric(float64(3*n*b.N)/b.Elapsed().Seconds(), "records/s")
	b.ReportMetric(float64(cpu(b)-began)/float64(3*n*b.N), "cpu-ns/record")
	b.ReportMetric(float64(size)/(3*n), "bytes/record")
}

// cpu is the time that this process has computed for, in ns.
func cpu(tb testing.TB) int64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		tb.Fatal(err)
	}
	return r.Utime.Nano() + r.Stime.Nano()
}
