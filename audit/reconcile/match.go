package reconcile

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

// forward is one ticket that a relay served.
type forward struct {
	log     string // of the relay
	index   uint64
	at      time.Time
	of      string // origin of the gateway's log
	replica string
	pool    string
	model   string
	epoch   string
	tenant  string
	own     string // the replica whose relay's log it is
	matched bool
}

func (f *forward) finding(code Code, k key, format string, args ...any) Finding {
	return Finding{
		Code: code, Log: f.log, Index: f.index, ID: k.id.String(), Attempt: k.n, Replica: f.own, Tenant: f.tenant, Time: f.at,
		Detail: fmt.Sprintf(format, args...),
	}
}

// each gives take the records of a log that no other copy of it had. One that
// cannot be read is a finding.
func (r *run) each(l Log, s *span, take func(index uint64, rec *leaf)) error {
	for e, err := range l.Records {
		if err != nil {
			return err
		}
		if again, same := s.again(e); again {
			if !same {
				r.fault(Finding{Code: Forked, Log: l.Origin, Index: e.Index, Detail: "another copy of the log has another record there"})
			}
			continue
		}
		rec, err := read(e.Leaf)
		if err != nil {
			r.fault(Finding{Code: Malformed, Log: l.Origin, Index: e.Index, Detail: err.Error()})
			continue
		}
		s.see(e.Index, rec, r.within)
		take(e.Index, rec)
	}
	return nil
}

// relay takes in a relay's log.
func (r *run) relay(l Log, s *span) error {
	own, texts := s.Replica, make(map[string]string) // of another copy
	intern := func(t string) string {
		if _, ok := texts[t]; !ok {
			t = strings.Clone(t) // and not all of its leaf
			texts[t] = t
		}
		return texts[t]
	}
	return r.each(l, s, func(index uint64, rec *leaf) {
		if rec.Kind == audit.KindBoot {
			own = ""
			if rec.Gateway != nil {
				own = strings.Clone(rec.Gateway.SPIFFE)
			}
			r.relays[own], s.Replica = s, own
		}
		if rec.Kind != audit.KindAccess || rec.Status != audit.StatusServed {
			return
		}
		if !r.within(rec.at()) {
			r.report.Outside++
		}
		if !r.near(rec.at()) {
			return
		}
		v := rec.served
		model := v.Model
		if v.Adapter != "" {
			model = v.Adapter
		}
		f := &forward{
			log: l.Origin, index: index, at: rec.at(), of: intern(v.Log), replica: intern(v.Replica),
			pool: intern(v.Pool), model: intern(model), epoch: intern(v.Epoch), tenant: intern(tenantOf(v.Domain)),
		}
		if own == "" { // the start of the log is gone: it is believed about itself
			own = f.replica
			r.relays[own], s.Replica = s, own
		}
		f.own = own
		r.take(f, v, own)
	})
}

// take adds one forward.
func (r *run) take(f *forward, v *audit.Served, own string) {
	judged := r.within(f.at)
	if judged {
		r.report.Forwards++
	}
	k, err := keyOf(v.Ticket, v.Attempt)
	switch {
	case err != nil:
		r.fault(f.finding(Malformed, k, "ticket %q: %v", v.Ticket, err))
		return
	case judged && f.replica != own:
		r.fault(f.finding(ForwardForeign, k, "the log is of %s", own))
	}
	if before := r.forwards[k]; before != nil {
		r.fault(f.finding(ForwardTwice, k, "also record %d of %s", before.index, before.log))
		return
	}
	r.forwards[k] = f
}

// gateway holds a gateway's log against the forwards.
func (r *run) gateway(l Log, s *span) error {
	r.gateways[l.Origin] = s
	return r.each(l, s, func(index uint64, rec *leaf) {
		if rec.Kind != audit.KindDecision && rec.Kind != audit.KindOutcome {
			return
		}
		k, err := keyOf(rec.ID, rec.Attempt)
		switch {
		case err != nil:
			r.fault(Finding{Code: Malformed, Log: l.Origin, Index: index, ID: rec.ID, Time: rec.at(), Detail: err.Error()})
		case rec.Kind == audit.KindOutcome:
			a := s.open[k]
			if a == nil {
				return // of a listing, or its decision is gone or outside the window
			}
			delete(s.open, k)
			a.Outcome, a.Answered = rec.Status, rec.answered()
			r.settle(k, a, l.Size > 0 && index >= l.Size)
		case rec.Status != audit.StatusAllowed:
			r.refused(l, k)
		case rec.Placement != nil:
			if !r.within(rec.at()) {
				r.report.Outside++
			}
			if r.near(rec.at()) {
				r.decided(s, k, attemptOf(l, index, rec))
			}
		}
	})
}

// decided takes in an attempt that was allowed. Nobody may answer for two of them
// with one.
func (r *run) decided(s *span, k key, a *Attempt) {
	before := s.open[k]
	s.open[k] = a
	if f := r.forwards[k]; before == nil && (f == nil || !f.matched || f.of != a.Log) || !r.within(a.Time) {
		return
	}
	found := Finding{Code: DecisionTwice, Log: a.Log, Index: a.Index, ID: a.ID, Attempt: a.N, Replica: a.Replica, Tenant: a.Tenant, Time: a.Time}
	if before != nil {
		found.Detail = fmt.Sprintf("also record %d, which is judged no further", before.Index)
	}
	r.fault(found)
}

func attemptOf(l Log, index uint64, rec *leaf) *Attempt {
	p := rec.Placement
	a := &Attempt{
		Log: l.Origin, Index: index, ID: rec.ID, N: rec.Attempt, Time: rec.at(), Pool: p.Pool, Replica: p.Replica, Epoch: p.Epoch,
	}
	if rec.Caller != nil {
		a.Tenant = rec.Caller.Tenant
	}
	if rec.Class != nil {
		a.Class = rec.Class.Name
	}
	if rec.Label != nil {
		a.Label = rec.Label.Level
	}
	if rec.Request != nil {
		a.Model = rec.Request.Served
	}
	if rec.Policy != nil {
		a.Digest = rec.Policy.Digest
	}
	for _, c := range p.Candidates {
		if c.Replica == p.Replica {
			a.Region = c.Region
		}
	}
	return a
}

// refused finds the forward of a decision that allowed none.
func (r *run) refused(l Log, k key) {
	f := r.forwards[k]
	if f == nil || f.of != l.Origin || f.matched {
		return
	}
	f.matched = true
	if r.within(f.at) {
		r.fault(f.finding(ForwardOfDenied, k, "%s refused it", l.Origin))
	}
}

// settle judges one attempt: a is whole, or has no outcome. What is late was
// written when the relays' logs had been read.
func (r *run) settle(k key, a *Attempt, late bool) {
	judged := r.within(a.Time)
	relay := r.relays[a.Replica]
	a.Covered = relay != nil && !late && (!relay.Pruned || a.Time.After(relay.From))
	if f := r.forwards[k]; f != nil && f.of == a.Log && !f.matched {
		f.matched, a.Forwarded, a.ServedBy = true, true, f.own
		r.compare(k, a, f)
	}
	if !judged {
		return
	}
	r.report.Decisions++
	switch {
	case a.Forwarded:
		r.report.Matched++
	case !a.Answered:
		r.report.Unseen++
	case late:
		r.report.Newer++
	default:
		r.missing(a, relay)
	}
	if r.o.Visit != nil {
		r.o.Visit(a)
	}
}

// compare holds a forward against its decision.
func (r *run) compare(k key, a *Attempt, f *forward) {
	if !r.within(f.at) && !r.within(a.Time) {
		return
	}
	switch {
	case a.Outcome == audit.StatusNotForwarded:
		r.fault(f.finding(ForwardDenied, k, "record %d of %s", a.Index, a.Log))
	case f.replica != a.Replica, f.pool != a.Pool, f.model != a.Model, a.Epoch != "" && f.epoch != a.Epoch:
		r.fault(f.finding(ForwardElsewhere, k, "decided for %s in %s as process %q with %s, served by %s in %s as %q with %s",
			a.Replica, a.Pool, a.Epoch, a.Model, f.replica, f.pool, f.epoch, f.model))
	}
}

// missing is an attempt that was answered and whose forward is not there.
func (r *run) missing(a *Attempt, relay *span) {
	f := Finding{Log: a.Log, Index: a.Index, ID: a.ID, Attempt: a.N, Replica: a.Replica, Tenant: a.Tenant, Time: a.Time}
	switch {
	case relay == nil:
		f.Code = UndecidedRelayMissing
	case a.Time.Before(relay.From):
		f.Code, f.Detail = UndecidedForwardPruned, "the relay's log begins at "+relay.From.Format(time.RFC3339Nano)
	default:
		f.Code = DecisionWithoutForward
		r.fault(f)
		return
	}
	r.undecided(f)
}

// unmatched judges the forwards that no gateway's log has answered for.
func (r *run) unmatched() {
	for k, f := range r.forwards {
		if f.matched || !r.within(f.at) {
			continue
		}
		s := r.gateways[f.of]
		switch {
		case s == nil && r.o.Listed != nil && !r.o.Listed(f.of):
			r.fault(f.finding(ForwardUnlisted, k, "of log %s", f.of))
		case s == nil:
			r.undecided(f.finding(UndecidedGatewayMissing, k, "of log %s", f.of))
		case s.Pruned && f.at.Before(s.From):
			r.undecided(f.finding(UndecidedDecisionPruned, k, "%s begins at %s", f.of, s.From.Format(time.RFC3339Nano)))
		case s.lost(f.at):
			r.undecided(f.finding(UndecidedCrash, k, "%s did not stop in order then", f.of))
		default:
			r.fault(f.finding(ForwardWithoutDecision, k, "not in %s", f.of))
		}
	}
}

// tenantOf reads whose a cache domain is: base64url of its kind and its tenant,
// each preceded by its length as a little-endian uint32.
func tenantOf(domain string) string {
	b, err := base64.RawURLEncoding.DecodeString(domain)
	if err != nil {
		return ""
	}
	kind, rest, ok := lengthPrefixed(b)
	tenant, _, ok2 := lengthPrefixed(rest)
	if !ok || !ok2 || string(kind) == "public" {
		return ""
	}
	return string(tenant)
}

func lengthPrefixed(b []byte) (part, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := binary.LittleEndian.Uint32(b)
	if b = b[4:]; uint64(n) > uint64(len(b)) {
		return nil, nil, false
	}
	return b[:n], b[n:], true
}
