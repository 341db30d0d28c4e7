// Package reconcile holds the logs of gateways against those of relays: what
// was decided against what was forwarded.
//
// Start at [Run]. A gateway writes a decision down before it forwards, and a
// relay writes a ticket down before it asks its engine, each in a log of its
// own under a key of its own. So whoever would hide a forward has to change two
// logs, on two machines, alike. Run reads logs; whether they are whole is for
// tlog.Verify to say first.
//
// # What is held against what
//
// Records are matched by decision id and attempt, never by time: clocks differ.
// A time window says only which of them are judged; what they are matched with
// may lie an hour to either side of it.
//
// A log may be given more than once, as its directory and an excerpt of it. Each
// of its records counts once; two that have one index and differ are a fork.
//
// A decision whose outcome says that the replica answered must have its
// forward. One that ended otherwise may have one: a gateway cannot know how far
// a request got when its connection broke, or when it was killed itself.
//
// # What cannot be told
//
// What has been pruned from a log, or was before the log began, matches
// nothing, and neither does a log that is not at hand. That is counted apart, as
// undecided: it is no evidence of anything.
package reconcile

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

// Log is one log to read.
type Log struct {
	Origin  string
	Records iter.Seq2[tlog.Entry, error]
	// Size is how many records it had before any relay's log was read. What a
	// gateway answered later is not missed there. 0: it is not growing.
	Size uint64
}

// Options say what is judged.
type Options struct {
	Since, Until time.Time // Until is exclusive; zero: no bound
	// Listed says which origins there should be, if that is known: a forward
	// for any other is a finding.
	Listed func(origin string) bool
	// Visit is told of each attempt that is judged, in the order of its log.
	Visit func(*Attempt)
	// Found is told of each finding, also of those that are not listed.
	Found func(f Finding, undecided bool)
}

// Code says what is wrong with a forward or a decision. The values are stable.
type Code string

// The codes of findings. An undecided one is one that could not be judged.
const (
	ForwardWithoutDecision Code = "forward_without_decision" // the gateway's log does not hold its decision
	ForwardOfDenied        Code = "forward_of_denied"        // the decision was to refuse
	ForwardElsewhere       Code = "forward_elsewhere"        // the decision was for another replica, pool or model
	ForwardDenied          Code = "forward_of_not_forwarded" // the gateway says that it never left
	ForwardTwice           Code = "forward_twice"            // one attempt was served more than once
	ForwardForeign         Code = "forward_of_other_relay"   // a relay's log holds what another replica served
	ForwardUnlisted        Code = "forward_of_unlisted_log"  // the fleet register knows no such gateway
	DecisionTwice          Code = "decision_twice"           // one attempt was decided more than once: which of them was acted on?
	DecisionWithoutForward Code = "decision_without_forward" // the replica answered, and its relay's log does not hold it
	Malformed              Code = "malformed_record"
	Forked                 Code = "forked_log" // a log was given twice, and the copies differ in a record

	UndecidedDecisionPruned Code = "decision_pruned"        // the gateway's log begins after the forward
	UndecidedForwardPruned  Code = "forward_pruned"         // the relay's log begins after the decision
	UndecidedGatewayMissing Code = "gateway_log_missing"    // of a forward
	UndecidedRelayMissing   Code = "relay_log_missing"      // of a decision
	UndecidedCrash          Code = "lost_in_bounded_window" // a crash may have lost the decision, which was let go before it was durable
)

// Finding is one record that has no match, or a wrong one.
type Finding struct {
	Code    Code   `json:"code"`
	Log     string `json:"log"`   // origin of the log that holds the record
	Index   uint64 `json:"index"` // of the record there
	ID      string `json:"id"`    // decision id
	Attempt int    `json:"attempt"`
	Replica string `json:"replica"`
	// Tenant is whose cache the ticket of a forward is for; empty where it does
	// not say, as one for a public cache.
	Tenant string    `json:"tenant,omitempty"`
	Time   time.Time `json:"time"`
	Detail string    `json:"detail,omitempty"`
}

// Report is what Run found.
type Report struct {
	Forwards  int          `json:"forwards"`  // judged
	Decisions int          `json:"decisions"` // attempts judged that were allowed to a replica
	Matched   int          `json:"matched"`   // of the decisions, those with their forward
	Unseen    int          `json:"unseen"`    // those that reached no relay and did not have to
	Newer     int          `json:"newer"`     // those answered since the relays' logs were read
	Outside   int          `json:"outside"`   // forwards and such attempts that were not judged, being of another time
	Faults    map[Code]int `json:"faults"`
	Undecided map[Code]int `json:"undecided"`
	Logs      []Coverage   `json:"logs"` // of relays and gateways, each once
	// Findings are the first of each code, faults before what is undecided.
	Findings []Finding `json:"findings"`
}

// OK says whether nothing was found to be wrong.
func (r *Report) OK() bool { return len(r.Faults) == 0 }

// Decided says whether everything could be judged.
func (r *Report) Decided() bool { return len(r.Undecided) == 0 }

// Coverage is what one log says of itself.
type Coverage struct {
	Origin  string    `json:"origin"`
	Replica string    `json:"replica,omitempty"` // whose relay's it is
	From    time.Time `json:"from"`              // of its first record
	To      time.Time `json:"to"`                // of its last
	Pruned  bool      `json:"pruned"`            // its beginning is gone
	Sealed  bool      `json:"sealed"`            // the last record is that of an orderly end
	Bounded int       `json:"bounded"`           // decisions judged that were let go before they were durable
	Gaps    []Gap     `json:"gaps,omitempty"`    // that it records, of the time judged
}

// Gap is something that a log records that it cannot show.
type Gap struct {
	Time   time.Time `json:"time"`
	Reason string    `json:"reason"`
}

// Attempt is one allowed decision, with what became of it.
type Attempt struct {
	Log    string
	Index  uint64
	ID     string
	N      int
	Time   time.Time
	Tenant string
	Class  string
	Label  string // empty: the record says none
	Pool   string
	// Replica is where it was to run, and Region where the record says that is.
	Replica, Region string
	Model           string
	Epoch           string
	Digest          string // of the policy
	Outcome         string // its status; empty: none is recorded
	Answered        bool   // the outcome says that an answer came
	Forwarded       bool   // a relay's log holds it
	ServedBy        string // the replica whose relay's log that is
	Covered         bool   // the log of that replica's relay would hold it
}

// margin is how far outside the window records are still matched.
const margin = time.Hour

// listed bounds the findings of each code that are listed.
const listed = 50

// key names one attempt.
type key struct {
	id uuid.UUID
	n  int
}

// run is one call of Run.
type run struct {
	o        Options
	report   *Report
	forwards map[key]*forward
	relays   map[string]*span // by replica
	gateways map[string]*span // by origin
	spans    []*span          // of all logs
	perCode  map[Code]int
}

// Run reads the relays' logs, then the gateways', and matches them. It holds
// the forwards of the window in memory, some 200 bytes each.
func Run(gateways, relays []Log, o Options) (*Report, error) {
	r := &run{
		o: o, report: &Report{Faults: make(map[Code]int), Undecided: make(map[Code]int), Findings: []Finding{}},
		forwards: make(map[key]*forward), relays: make(map[string]*span), gateways: make(map[string]*span), perCode: make(map[Code]int),
	}
	copies := make(map[string]int)
	for _, l := range slices.Concat(relays, gateways) {
		copies[l.Origin]++
	}
	for _, l := range relays {
		s := r.begin(l, copies[l.Origin] > 1)
		if err := r.relay(l, s); err != nil {
			return nil, fmt.Errorf("relay log %s: %w", l.Origin, err)
		}
	}
	for _, s := range r.spans {
		s.join()
	}
	for _, l := range gateways {
		s := r.begin(l, copies[l.Origin] > 1)
		if err := r.gateway(l, s); err != nil {
			return nil, fmt.Errorf("gateway log %s: %w", l.Origin, err)
		}
	}
	for _, s := range r.gateways {
		s.join()
		for k, a := range s.open {
			r.settle(k, a, true)
		}
	}
	r.unmatched()
	for _, s := range r.spans {
		r.report.Logs = append(r.report.Logs, s.Coverage)
	}
	slices.SortStableFunc(r.report.Findings, func(a, b Finding) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Log, b.Log), cmp.Compare(a.Index, b.Index))
	})
	return r.report, nil
}

// within says whether something at that time is judged.
func (r *run) within(at time.Time) bool {
	return !at.Before(r.o.Since) && (r.o.Until.IsZero() || at.Before(r.o.Until))
}

// near says whether something at that time may match what is judged.
func (r *run) near(at time.Time) bool {
	return (r.o.Since.IsZero() || !at.Before(r.o.Since.Add(-margin))) && (r.o.Until.IsZero() || at.Before(r.o.Until.Add(margin)))
}

func (r *run) fault(f Finding)     { r.note(r.report.Faults, f, false) }
func (r *run) undecided(f Finding) { r.note(r.report.Undecided, f, true) }

func (r *run) note(counts map[Code]int, f Finding, undecided bool) {
	if r.o.Found != nil {
		r.o.Found(f, undecided)
	}
	counts[f.Code]++
	if r.perCode[f.Code]++; r.perCode[f.Code] <= listed {
		r.report.Findings = append(r.report.Findings, f)
	}
}

// begin starts on a log, or on another copy of one.
func (r *run) begin(l Log, copies bool) *span {
	if i := slices.IndexFunc(r.spans, func(s *span) bool { return s.Origin == l.Origin }); i >= 0 {
		return r.spans[i]
	}
	s := &span{Coverage: Coverage{Origin: l.Origin}, open: make(map[key]*Attempt)}
	if copies {
		s.copied, s.times = make(map[uint64]digest), make(map[uint64]time.Time)
	}
	r.spans = append(r.spans, s)
	return s
}

// span is what has been seen of a log.
type span struct {
	Coverage
	last    uint64            // index of its last record
	lax     bool              // it lets some decisions go before they are durable
	crashes []interval        // from the last record before a start that was not clean, to that start
	open    map[key]*Attempt  // a gateway's decisions without an outcome so far
	copied  map[uint64]digest // its records so far, where it is given more than once
	times   map[uint64]time.Time
}

type interval struct{ from, to time.Time }

type digest [sha256.Size]byte

// again says whether another copy of the log had that record, and whether it was
// the same.
func (s *span) again(e tlog.Entry) (again, same bool) {
	if s.copied == nil {
		return false, false
	}
	now := digest(sha256.Sum256(e.Leaf))
	before, again := s.copied[e.Index]
	if !again {
		s.copied[e.Index] = now
	}
	return again, before == now
}

// join says from when on the log is there without a hole, if it was given in
// pieces: what is before that is matched, and missed as little as what was pruned.
func (s *span) join() {
	if s.copied == nil || len(s.times) == 0 {
		return
	}
	first := s.last
	s.From = s.times[first]
	for first > 0 {
		if _, ok := s.copied[first-1]; !ok {
			break
		}
		first--
		if at, ok := s.times[first]; ok { // else it could not be read
			s.From = at
		}
	}
	s.Pruned = first > 0
}

// see takes one record into account.
func (s *span) see(index uint64, l *leaf, within func(time.Time) bool) {
	at := l.at()
	if s.From.IsZero() {
		s.From, s.Pruned = at, index > 0
	}
	if s.times != nil {
		s.times[index] = at
	}
	if l.Kind == audit.KindBoot && !s.To.IsZero() && !l.clean {
		s.crashes = append(s.crashes, interval{s.To, at})
	}
	if l.Durability == audit.Bounded && l.Kind == audit.KindDecision {
		s.lax = true
		if within(at) {
			s.Bounded++
		}
	}
	if l.Kind == audit.KindGap && within(at) {
		s.Gaps = append(s.Gaps, Gap{at, l.reason})
	}
	if index >= s.last { // a copy may be of what was before
		s.last, s.To, s.Sealed = index, at, l.Kind == audit.KindSeal
	}
}

// lost says whether a decision of that time may have been lost in a crash.
func (s *span) lost(at time.Time) bool {
	return s.lax && slices.ContainsFunc(s.crashes, func(c interval) bool {
		return at.After(c.from.Add(-boundedAge)) && at.Before(c.to)
	})
}

// boundedAge is far above how long a record may stay unsynced in bounded mode,
// and room for clocks that differ.
const boundedAge = 5 * time.Second
