package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/audit/claim"
	"github.com/sallyport-ai/sallyport/audit/reconcile"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

func auditResidencyCommand() *cobra.Command {
	var read reads
	var r residencyCheck
	cmd := &cobra.Command{
		Use:   "residency --fleet FILE --tenant NAME --region NAME --month YYYY-MM",
		Short: "Prove that no request of a tenant with a label was served outside a region",
		Long: "Residency verifies the logs of every gateway and every relay of a fleet register, holds them\n" +
			"against each other, and says whether a request of the tenant with that label, or a higher one,\n" +
			"that was decided in that time, was served outside the region. It says what the answer rests on.\n" +
			"It exits with 0 if none was, 1 if one was, and 2 if nobody can tell.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.v.out = io.Discard
			r.v.read = func(paths ...string) { read.try(cmd, args, paths...) }
			return r.run(cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&r.v.fleetFile, "fleet", "", "fleet register (required)")
	cmd.Flags().StringVar(&r.claim.Tenant, "tenant", "", "tenant (required)")
	cmd.Flags().StringVar(&r.claim.Label, "label", "restricted", "label; higher ones count as well")
	cmd.Flags().StringVar(&r.claim.Region, "region", "", "region that they must not have left (required)")
	cmd.Flags().BoolVar(&r.anchored, "anchored", false, "tell only if witnesses or held checkpoints vouch for all records of that time")
	cmd.Flags().BoolVar(&r.json, "json", false, "print JSON")
	r.v.window.flags(cmd)
	everySignature(cmd, &r.v.signatures)
	return cmd
}

// residencyCheck is one `audit residency`.
type residencyCheck struct {
	v        verification
	claim    claim.Claim
	anchored bool
	json     bool

	judge  *claim.Judge
	rests  []evidence
	absent []string // logs of relays inside the region
}

// evidence is one log that an answer rests on.
type evidence struct {
	Origin   string             `json:"origin"`
	Region   string             `json:"region,omitempty"` // of a relay
	Replica  string             `json:"replica,omitempty"`
	Records  uint64             `json:"records"`
	Root     string             `json:"root"`
	Anchored uint64             `json:"anchored"` // records that somebody else vouches for
	Covers   reconcile.Coverage `json:"covers"`

	entry registered
}

// residencyAnswer is what it prints as JSON.
type residencyAnswer struct {
	claim.Verdict
	RestsOn []evidence `json:"rests_on"`
	Absent  []string   `json:"absent,omitempty"` // logs of relays inside the region, which it does not need
	Assumes []string   `json:"assumes"`
}

// assumptions are what no log can show.
var assumptions = []string{
	"the register lists every gateway and every relay, their keys, and where each relay is",
	"nobody held the signing keys of both a gateway and the relay in question",
	"nothing but the relay reaches its engine, and the engine does its work where it is",
	"the tenant is who the identity provider said, and the label what the gateway found it to be",
	"clocks were right to within minutes: a request counts by the time of its decision",
}

func (r *residencyCheck) run(out io.Writer) error {
	c := &r.claim
	if err := r.v.load(); err != nil {
		return err
	}
	if r.v.fleet == nil || c.Tenant == "" || c.Region == "" {
		return cannotTell(errors.New("--fleet, --tenant and --region are required"))
	}
	if !slices.Contains(claim.Levels, c.Label) {
		return cannotTell(fmt.Errorf("no label %q: want one of %v", c.Label, claim.Levels))
	}
	if r.v.window.since.IsZero() || r.v.window.until.IsZero() {
		return cannotTell(errors.New("say of what time: --month, or --since and --until"))
	}
	c.Since, c.Until = r.v.window.since, r.v.window.until
	r.judge = claim.New(*c, r.v.fleet.regions())
	gateways, err := r.open(r.v.fleet.Gateways, &r.v.gateways)
	if err != nil {
		return err
	}
	relays, err := r.open(r.v.fleet.Relays, &r.v.relays)
	if err != nil {
		return err
	}
	o := r.v.options()
	o.Visit, o.Found = r.judge.Attempt, r.judge.Found
	report, err := reconcile.Run(gateways, relays, o)
	if err != nil {
		return cannotTell(err)
	}
	for i := range r.rests {
		e := &r.rests[i]
		e.Covers = report.Logs[slices.IndexFunc(report.Logs, func(l reconcile.Coverage) bool { return l.Origin == e.Origin })]
		if e.entry.Replica == "" || e.Region != c.Region { // what a relay inside did not keep hides nothing
			r.judge.Covers(e.Covers, e.entry.since, e.entry.until)
		}
	}
	return r.answer(out)
}

// open verifies logs. One that cannot be vouched for is a reason for doubt, and
// is read all the same: it may show that the claim is false.
func (r *residencyCheck) open(entries []registered, of *side) ([]reconcile.Log, error) {
	var logs []reconcile.Log
	for _, e := range entries {
		outside := e.Replica == "" || e.Region != r.claim.Region
		if e.Log == "" || r.v.there(e) != nil {
			if outside {
				r.judge.Doubt("the log of %s is missing", e.origin)
			} else {
				r.absent = append(r.absent, e.origin)
			}
			continue
		}
		report, err := r.v.log(e.Log, of)
		if err != nil {
			return nil, err
		}
		if !report.OK() {
			r.judge.Doubt("the log of %s is damaged: %s", e.origin, report.Detail)
			if report.TreeSize == 0 {
				continue
			}
		}
		anchored := max(report.Anchored, r.heldSize(e.origin))
		if r.anchored && outside {
			if err := r.mustBeAnchored(e, anchored); err != nil {
				return nil, err
			}
		}
		r.rests = append(r.rests, evidence{
			Origin: e.origin, Region: e.Region, Replica: e.Replica, Records: report.TreeSize, Root: report.RootHex, Anchored: anchored, entry: e,
		})
		logs = append(logs, reconcile.Log{Origin: e.origin, Records: untilDamage(tlog.Read(e.Log, 0)), Size: report.TreeSize})
	}
	return logs, nil
}

// untilDamage ends where a log cannot be read on: that it is damaged is known.
func untilDamage(all iter.Seq2[tlog.Entry, error]) iter.Seq2[tlog.Entry, error] {
	return func(yield func(tlog.Entry, error) bool) {
		for e, err := range all {
			var fault *tlog.Fault
			if errors.As(err, &fault) || !yield(e, err) {
				return
			}
		}
	}
}

// heldSize is how many records a checkpoint that was kept elsewhere covers. That
// the log extends it has been verified.
func (r *residencyCheck) heldSize(origin string) uint64 {
	text := r.v.held[origin]
	if text == nil {
		return 0
	}
	for _, key := range r.v.pins.keys[origin] {
		if tree, err := tlog.OpenCheckpoint(text, key); err == nil {
			return uint64(tree.N)
		}
	}
	return 0 // and the log did not verify
}

// mustBeAnchored doubts a log of which some record of the time has no anchor.
func (r *residencyCheck) mustBeAnchored(e registered, anchored uint64) error {
	for rec, err := range tlog.Read(e.Log, anchored) {
		if err != nil {
			return cannotTell(err)
		}
		at, err := timeOf(rec.Leaf)
		if err != nil {
			return cannotTell(err)
		}
		if at.Before(r.claim.Until) {
			r.judge.Doubt("nobody else vouches for the records of %s from %d on", e.origin, anchored)
			return nil
		}
		break
	}
	return nil
}

func (r *residencyCheck) answer(out io.Writer) error {
	v := r.judge.Verdict()
	var err error
	if r.json {
		err = json.NewEncoder(out).Encode(residencyAnswer{v, r.rests, r.absent, assumptions})
	} else {
		err = r.print(out, v)
	}
	if err != nil {
		return err
	}
	switch v.Result {
	case claim.Holds:
		return nil
	case claim.DoesNot:
		return &exitError{code: exitBad}
	}
	return &exitError{code: exitCannotTell}
}

func (r *residencyCheck) print(w io.Writer, v claim.Verdict) error {
	words := map[claim.Result]string{claim.Holds: "HOLDS:", claim.DoesNot: "DOES NOT HOLD that", claim.CannotTell: "CANNOT TELL whether"}
	say := func(format string, args ...any) { sayf(w, format+"\n", args...) }
	say("%s %s", words[v.Result], v.Claim)
	say("%d such requests were allowed: %d served inside by the word of a relay, %d decided for inside and seen by no relay, %d decided for outside and served nowhere, %d served outside",
		v.Requests, v.Inside, v.Trusted, v.Unserved, v.Violated)
	if v.OfTenant == 0 {
		say("No log holds an allowed request of %s of that time, whatever its label: see that this is the tenant's name.", v.Claim.Tenant)
	}
	for _, s := range v.Against {
		say("  outside: %s attempt %d, %s, at %s in %s, by the log of the %s (record %d of %s)", s.ID, s.Attempt, s.Time.Format(timeFormat), s.Replica, s.Region, s.By, s.Index, s.Log)
	}
	if len(v.Doubts) > 0 {
		say("What stands against telling:")
		for _, d := range slices.Sorted(maps.Keys(v.Doubts)) {
			say("  %s (%d)", d, v.Doubts[d])
		}
	}
	say("It rests on:")
	for _, e := range r.rests {
		who := "gateway"
		if e.Replica != "" {
			who = "relay of " + e.Replica + " in " + e.Region
		}
		say("  %s, log %s: %d records verified, from %s to %s, root %s", who, e.Origin, e.Records, e.Covers.From.Format(timeFormat), e.Covers.To.Format(timeFormat), e.Root)
		switch {
		case e.Anchored == 0:
			say("    nobody else vouches for it: who has its key and its files could have rewritten it, but not the other side's")
		case e.Anchored < e.Records:
			say("    others vouch for the first %d records, and not for the %d after them", e.Anchored, e.Records-e.Anchored)
		default:
			say("    others vouch for all of it")
		}
	}
	for _, origin := range r.absent {
		say("  and not on log %s, which is not there: what its relay served was served inside", origin)
	}
	say("and it is taken for granted that:")
	for _, a := range assumptions {
		say("  %s", a)
	}
	say("Verified on %s.", time.Now().UTC().Format(timeFormat))
	return nil
}
