// Package claim judges a statement about where requests were served: that none
// of a tenant's requests with a label, or a higher one, was served outside a
// region in a span of time.
//
// Start at [New]. A [Judge] is told of each attempt and of each finding of
// package reconcile, and of what else there is to doubt; [Judge.Verdict] then
// says that the claim holds, that it does not and by which requests, or that
// nobody can tell and why. Whatever is not known is doubt, never consent.
//
// # What makes it false
//
// A request of that tenant and label that a relay outside the region served, by
// that relay's own log; or one that was decided for a replica there and that,
// by the gateway's log, was answered.
//
// # What makes it undecidable
//
// Anything that could hide such a request: a replica whose region is not known,
// a decision for a replica outside whose relay's log does not cover the time, a
// forward by a relay outside for which there is no decision (unless its ticket
// names another tenant), a log that is missing, damaged, or does not reach from
// the beginning of the time to its end.
package claim

import (
	"fmt"
	"slices"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/reconcile"
)

// Claim is the statement.
type Claim struct {
	Tenant string    `json:"tenant"`
	Label  string    `json:"label"` // and higher ones
	Region string    `json:"region"`
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"` // exclusive
}

func (c Claim) String() string {
	return fmt.Sprintf("no request of %s labelled %s or higher was served outside %s from %s to %s",
		c.Tenant, c.Label, c.Region, c.Since.Format(time.RFC3339), c.Until.Format(time.RFC3339))
}

// Levels are the labels from the lowest.
var Levels = []string{"public", "internal", "confidential", "restricted"}

// rank of a label. One that is absent or unknown is the highest.
func rank(label string) int {
	if i := slices.Index(Levels, label); i >= 0 {
		return i
	}
	return len(Levels) - 1
}

// Result is what became of a claim.
type Result string

// The results.
const (
	Holds      Result = "holds"
	DoesNot    Result = "does_not_hold"
	CannotTell Result = "cannot_tell"
)

// Served is a request that makes the claim false.
type Served struct {
	ID      string    `json:"id"`
	Attempt int       `json:"attempt"`
	Time    time.Time `json:"time"`
	Log     string    `json:"log"`
	Index   uint64    `json:"index"`
	Label   string    `json:"label"`
	Replica string    `json:"replica"`
	Region  string    `json:"region"`
	By      string    `json:"by"` // whose word it is: relay or gateway
}

// Verdict is what can be said of a claim.
type Verdict struct {
	Claim    Claim  `json:"claim"`
	Result   Result `json:"result"`
	OfTenant int    `json:"of_tenant"` // attempts of that tenant and time that were allowed, whatever their label
	Requests int    `json:"requests"`  // attempts of that tenant, label and time that were allowed
	Inside   int    `json:"inside"`    // of these, those that a relay inside served, by its own log
	Trusted  int    `json:"trusted"`   // those that were decided for a replica inside and not seen by any relay's log
	Unserved int    `json:"unserved"`  // those that were decided for outside and served nowhere

	Against  []Served       `json:"against"` // the first of them
	Violated int            `json:"violated"`
	Doubts   map[string]int `json:"doubts"` // why nobody can tell, with how often
}

// listed bounds the requests that are listed against a claim.
const listed = 100

// Judge judges one claim.
type Judge struct {
	regions map[string]string // by replica
	v       Verdict
}

// New returns a judge who knows the regions of these replicas.
func New(c Claim, regions map[string]string) *Judge {
	return &Judge{regions: regions, v: Verdict{Claim: c, Against: []Served{}, Doubts: make(map[string]int)}}
}

// Doubt adds a reason why nobody can tell.
func (j *Judge) Doubt(format string, args ...any) { j.v.Doubts[fmt.Sprintf(format, args...)]++ }

// Attempt takes one allowed attempt into account.
func (j *Judge) Attempt(a *reconcile.Attempt) {
	c := &j.v.Claim
	if a.Tenant != c.Tenant {
		return
	}
	j.v.OfTenant++
	if rank(a.Label) < rank(c.Label) {
		return
	}
	j.v.Requests++
	at := a.Replica
	if a.Forwarded {
		at = a.ServedBy
	}
	region, known := j.regions[at]
	switch {
	case !known:
		j.Doubt("the register does not say where %s is", at)
	case at == a.Replica && a.Region != "" && a.Region != region:
		j.Doubt("the register says that %s is in %s, and the gateway's log in %s", at, region, a.Region)
	case a.Forwarded && region == c.Region:
		j.v.Inside++
	case a.Forwarded:
		j.against(a, at, region, "relay")
	case region == c.Region && a.Answered && a.Covered:
		j.Doubt("a request was answered, and the log of the relay of %s, which it was decided for, does not hold it", at)
	case region == c.Region:
		j.v.Trusted++
	case a.Answered:
		j.against(a, at, region, "gateway")
	case a.Outcome == audit.StatusNotForwarded || a.Covered:
		j.v.Unserved++
	default:
		j.Doubt("a request was decided for %s in %s, and the log of its relay does not say whether it got there", at, region)
	}
}

func (j *Judge) against(a *reconcile.Attempt, replica, region, by string) {
	if j.v.Violated++; len(j.v.Against) < listed {
		j.v.Against = append(j.v.Against, Served{
			ID: a.ID, Attempt: a.N, Time: a.Time, Log: a.Log, Index: a.Index, Label: a.Label, Replica: replica, Region: region, By: by,
		})
	}
}

// Found takes a finding of package reconcile into account. Those about forwards
// count where they could be the tenant's, and outside the region.
func (j *Judge) Found(f reconcile.Finding, _ bool) {
	switch f.Code {
	case reconcile.ForwardElsewhere, reconcile.ForwardDenied:
		return // the attempt counts where it was served
	case reconcile.DecisionWithoutForward, reconcile.UndecidedRelayMissing, reconcile.UndecidedForwardPruned:
		return // the attempt counts where it was decided to be
	case reconcile.DecisionTwice:
		j.Doubt("%s holds two decisions of one attempt", f.Log)
		return
	case reconcile.Malformed:
		j.Doubt("a record of %s cannot be read", f.Log)
		return
	}
	region, known := j.regions[f.Replica]
	switch {
	case f.Tenant != "" && f.Tenant != j.v.Claim.Tenant:
	case !known:
		j.Doubt("%s: %s, whose region the register does not say", f.Code, f.Replica)
	case region != j.v.Claim.Region:
		j.Doubt("%s: %s in %s served what may have been such a request", f.Code, f.Replica, region)
	}
}

// Covers holds what a log covers against the time of the claim. A log that was
// in service only for a part of it says so by the times given; zero: throughout.
func (j *Judge) Covers(l reconcile.Coverage, since, until time.Time) {
	c := &j.v.Claim
	from := later(c.Since, since)
	to := c.Until
	if !until.IsZero() && until.Before(to) {
		to = until
	}
	if !from.Before(to) {
		return
	}
	if l.From.After(from) && (l.Pruned || since.IsZero() || l.From.After(from.Add(Slack))) {
		j.Doubt("%s begins at %s", l.Origin, l.From.Format(time.RFC3339))
	}
	if l.To.Before(to) && !(l.Sealed && !until.IsZero() && l.To.After(to.Add(-Slack))) {
		j.Doubt("%s ends at %s", l.Origin, l.To.Format(time.RFC3339))
	}
	for _, g := range l.Gaps {
		switch {
		case g.Reason == audit.GapHalted: // nothing was forwarded meanwhile
		case g.Reason == audit.GapBoundedLost && rank(c.Label) >= rank("confidential"): // never bounded
		default:
			j.Doubt("%s has a gap: %s", l.Origin, g.Reason)
		}
	}
}

// Slack is how exactly a register has to say when a log began and ended.
const Slack = 10 * time.Minute

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Verdict says what became of the claim.
func (j *Judge) Verdict() Verdict {
	v := j.v
	switch {
	case v.Violated > 0:
		v.Result = DoesNot
	case len(v.Doubts) > 0:
		v.Result = CannotTell
	default:
		v.Result = Holds
	}
	return v
}
