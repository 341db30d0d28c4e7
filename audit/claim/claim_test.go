package claim

import (
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/reconcile"
)

var (
	october  = time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)
	november = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
)

// judge judges that acme's restricted requests of October stayed in eu-1.
func judge() *Judge {
	return New(Claim{Tenant: "acme", Label: "restricted", Region: "eu-1", Since: october, Until: november},
		map[string]string{"r0": "eu-1", "r1": "eu-1", "us": "us-1"})
}

// of makes an attempt of acme's for a replica, answered and seen there.
func of(change func(*reconcile.Attempt)) *reconcile.Attempt {
	a := &reconcile.Attempt{
		Tenant: "acme", Label: "restricted", Replica: "r0", Region: "eu-1", ServedBy: "r0",
		Outcome: audit.StatusOK, Answered: true, Forwarded: true, Covered: true,
	}
	change(a)
	return a
}

func TestAnAttemptIsJudgedByWhereItWasServed(t *testing.T) {
	for _, c := range []struct {
		claim  string
		change func(*reconcile.Attempt)
		want   Result
	}{
		{"inside, by the relay's log", func(*reconcile.Attempt) {}, Holds},
		{"outside, by the relay's log", func(a *reconcile.Attempt) { a.Replica, a.ServedBy, a.Region = "us", "us", "us-1" }, DoesNot},
		{"decided for inside and served outside", func(a *reconcile.Attempt) { a.ServedBy = "us" }, DoesNot},
		{"outside, by the gateway's log alone", func(a *reconcile.Attempt) { a.Replica, a.Region, a.Forwarded, a.Covered = "us", "us-1", false, false }, DoesNot},
		{"outside, and never got there", func(a *reconcile.Attempt) {
			a.Replica, a.Region, a.Forwarded, a.Answered, a.Outcome = "us", "us-1", false, false, audit.StatusError
		}, Holds},
		{"outside, and the gateway says that it never left", func(a *reconcile.Attempt) {
			a.Replica, a.Region, a.Forwarded, a.Answered, a.Covered, a.Outcome = "us", "us-1", false, false, false, audit.StatusNotForwarded
		}, Holds},
		{"outside, and nobody knows whether it got there", func(a *reconcile.Attempt) {
			a.Replica, a.Region, a.Forwarded, a.Answered, a.Covered, a.Outcome = "us", "us-1", false, false, false, audit.StatusUnknownCrash
		}, CannotTell},
		{"inside, without the relay's log", func(a *reconcile.Attempt) { a.Forwarded, a.Covered = false, false }, Holds},
		{"inside, and the relay's log does not hold what was answered", func(a *reconcile.Attempt) { a.Forwarded = false }, CannotTell},
		{"by a replica that no register lists", func(a *reconcile.Attempt) { a.Replica, a.ServedBy = "r9", "r9" }, CannotTell},
		{"inside, by the register alone", func(a *reconcile.Attempt) { a.Region = "us-1" }, CannotTell},
		{"outside, without a label, which is the highest", func(a *reconcile.Attempt) { a.Label, a.ServedBy = "", "us" }, DoesNot},
		{"outside, with a label nobody knows", func(a *reconcile.Attempt) { a.Label, a.ServedBy = "top secret", "us" }, DoesNot},
		{"outside, of a lower label", func(a *reconcile.Attempt) { a.Label, a.ServedBy = "confidential", "us" }, Holds},
		{"outside, of another tenant", func(a *reconcile.Attempt) { a.Tenant, a.ServedBy = "globex", "us" }, Holds},
	} {
		j := judge()
		j.Attempt(of(c.change))
		if v := j.Verdict(); v.Result != c.want {
			t.Errorf("%s: %+v, want %s", c.claim, v, c.want)
		}
	}
	if v := judge().Verdict(); v.Result != Holds {
		t.Errorf("no request: %+v", v)
	}
}

func TestAForwardWithoutADecisionIsADoubtOutside(t *testing.T) {
	for _, c := range []struct {
		claim string
		f     reconcile.Finding
		want  Result
	}{
		{"outside, of the tenant", reconcile.Finding{Code: reconcile.ForwardWithoutDecision, Replica: "us", Tenant: "acme"}, CannotTell},
		{"outside, of nobody knows whom", reconcile.Finding{Code: reconcile.ForwardWithoutDecision, Replica: "us"}, CannotTell},
		{"outside, of another tenant", reconcile.Finding{Code: reconcile.ForwardWithoutDecision, Replica: "us", Tenant: "globex"}, Holds},
		{"inside", reconcile.Finding{Code: reconcile.ForwardWithoutDecision, Replica: "r1", Tenant: "acme"}, Holds},
		{"nobody knows where", reconcile.Finding{Code: reconcile.ForwardWithoutDecision, Replica: "r9", Tenant: "acme"}, CannotTell},
		{"its decision was pruned", reconcile.Finding{Code: reconcile.UndecidedDecisionPruned, Replica: "us", Tenant: "acme"}, CannotTell},
		{"its decision was to refuse", reconcile.Finding{Code: reconcile.ForwardOfDenied, Replica: "us", Tenant: "acme"}, CannotTell},
		{"a second one of the same attempt", reconcile.Finding{Code: reconcile.ForwardTwice, Replica: "us", Tenant: "acme"}, CannotTell},
		{"one attempt was decided twice", reconcile.Finding{Code: reconcile.DecisionTwice, Replica: "r0", Tenant: "acme"}, CannotTell},
		{"the log of the gateway is missing", reconcile.Finding{Code: reconcile.UndecidedGatewayMissing, Replica: "us"}, CannotTell},
		{"a record that cannot be read", reconcile.Finding{Code: reconcile.Malformed, Replica: "r0"}, CannotTell},
	} {
		j := judge()
		j.Found(c.f, false)
		if v := j.Verdict(); v.Result != c.want {
			t.Errorf("%s: %+v, want %s", c.claim, v, c.want)
		}
	}
}

func TestALogMustReachFromBeginningToEnd(t *testing.T) {
	before, after := october.Add(-time.Hour), november.Add(time.Minute)
	mid := october.AddDate(0, 0, 15)
	for _, c := range []struct {
		claim        string
		l            reconcile.Coverage
		since, until time.Time
		want         Result
	}{
		{"it does", reconcile.Coverage{From: before, To: after}, time.Time{}, time.Time{}, Holds},
		{"it begins later", reconcile.Coverage{From: mid, To: after}, time.Time{}, time.Time{}, CannotTell},
		{"it begins when the gateway did", reconcile.Coverage{From: mid.Add(time.Minute), To: after}, mid, time.Time{}, Holds},
		{"it begins long after the gateway did", reconcile.Coverage{From: mid.Add(time.Hour), To: after}, mid, time.Time{}, CannotTell},
		{"its beginning was pruned, whatever the register says", reconcile.Coverage{From: mid.Add(time.Minute), To: after, Pruned: true}, mid, time.Time{}, CannotTell},
		{"it was pruned before", reconcile.Coverage{From: before, To: after, Pruned: true}, time.Time{}, time.Time{}, Holds},
		{"it ends earlier", reconcile.Coverage{From: before, To: mid}, time.Time{}, time.Time{}, CannotTell},
		{"it was closed when the gateway was", reconcile.Coverage{From: before, To: mid.Add(-time.Second), Sealed: true}, time.Time{}, mid, Holds},
		{"it broke off when the gateway was closed", reconcile.Coverage{From: before, To: mid.Add(-time.Second)}, time.Time{}, mid, CannotTell},
		{"the gateway came after", reconcile.Coverage{From: after, To: after}, after, time.Time{}, Holds},
		{"the gateway had gone before", reconcile.Coverage{From: before, To: before}, time.Time{}, before, Holds},
		{"it says that it goes on for one that was lost", reconcile.Coverage{From: before, To: after, Gaps: []reconcile.Gap{{Reason: audit.GapReanchored}}}, time.Time{}, time.Time{}, CannotTell},
		{"it was halted", reconcile.Coverage{From: before, To: after, Gaps: []reconcile.Gap{{Reason: audit.GapHalted}}}, time.Time{}, time.Time{}, Holds},
		{"it lost what is never restricted", reconcile.Coverage{From: before, To: after, Gaps: []reconcile.Gap{{Reason: audit.GapBoundedLost}}}, time.Time{}, time.Time{}, Holds},
	} {
		j := judge()
		j.Covers(c.l, c.since, c.until)
		if v := j.Verdict(); v.Result != c.want {
			t.Errorf("%s: %+v, want %s", c.claim, v, c.want)
		}
	}
}
