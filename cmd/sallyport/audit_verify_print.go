package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/sallyport-ai/sallyport/audit/excerpt"
	"github.com/sallyport-ai/sallyport/audit/reconcile"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

// print prints a result as JSON or in words.
func (v *verification) print(result any, words func()) error {
	if v.json {
		return json.NewEncoder(v.out).Encode(result)
	}
	words()
	return nil
}

func (v *verification) printReport(r verified) error {
	return v.print(r, func() {
		if !r.OK() {
			sayf(v.out, "%s: %s\n", wrong(r.Code), r.Detail)
			if r.Code == tlog.NotAnchored {
				sayf(v.out, "not read: %s\n", r.Origin)
			} else { // what is signed by another key than the pinned one may be whole, and does not count
				sayf(v.out, "whole up to %d records of %s\n", min(r.TreeSize, uint64(max(r.FirstBad, 0))), r.Origin)
			}
			return
		}
		sayf(v.out, "whole: %d records of %s, root %s\n", r.TreeSize, r.Origin, r.RootHex)
		if r.Decisions+r.Outcomes > 0 {
			fmt.Fprintf(v.out, "%d decisions, %d outcomes (a refusal has none), %d allowed decisions without an outcome yet, %d starts\n", r.Decisions, r.Outcomes, r.Unresolved, r.Boots)
		}
		if len(r.Witnesses) > 0 {
			sayf(v.out, "cosigned by %s up to record %d\n", strings.Join(r.Witnesses, ", "), r.Anchored)
		}
		for _, by := range r.Cosigned {
			if wrong := by.String(); wrong != "" {
				sayf(v.out, "clock: %s\n", wrong)
			}
		}
		for _, how := range r.Exposed {
			sayf(v.out, "exposed: %s\n", how)
		}
		fmt.Fprintf(v.out, "%d of %d batch signatures checked; %.0f records a second\n", r.Signatures, r.Batches, float64(r.Records)/r.Seconds)
	})
}

// printReconciled says what the two sides say of each other.
func (v *verification) printReconciled(r *reconcile.Report) error {
	v.bad, v.unknown = v.bad || !r.OK(), v.unknown || !r.Decided()
	if v.json {
		return json.NewEncoder(v.out).Encode(struct {
			Reconciled *reconcile.Report `json:"reconciled"`
		}{r})
	}
	fmt.Fprintf(v.out, "%d forwards and %d decisions held against each other: %d agree, %d decisions reached no relay and did not have to\n",
		r.Forwards, r.Decisions, r.Matched, r.Unseen)
	if r.Outside > 0 {
		fmt.Fprintf(v.out, "%d more are of another time and were not judged\n", r.Outside)
	}
	for _, part := range []struct {
		word   string
		counts map[reconcile.Code]int
	}{{"WRONG", r.Faults}, {"undecided", r.Undecided}} {
		for _, code := range slices.Sorted(maps.Keys(part.counts)) {
			fmt.Fprintf(v.out, "%s: %d %s\n", part.word, part.counts[code], code)
		}
	}
	return printFindings(v.out, r.Findings)
}

func printFindings(w io.Writer, findings []reconcile.Finding) error {
	if len(findings) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CODE\tTIME\tLOG\tINDEX\tID\tATTEMPT\tREPLICA\tDETAIL")
	for _, f := range findings {
		sayf(t, "%s\t%s\t%s\t%d\t%s\t%d\t%s\t%s\n", f.Code, f.Time.Format(timeFormat), f.Log, f.Index, f.ID, f.Attempt, f.Replica, f.Detail)
	}
	return t.Flush()
}

// verifiedExcerpt is what became of an excerpt.
type verifiedExcerpt struct {
	excerpt.Report
	Witnesses []string `json:"witnesses,omitempty"` // who vouch for it, of those asked for
}

func (v *verification) printExcerpt(name string, report verifiedExcerpt) error {
	return v.print(report, func() {
		switch {
		case !report.OK():
			sayf(v.out, "%s: %s: %s: %s\n", wrong(report.Code), name, report.Code, report.Detail)
		case report.Selected:
			sayf(v.out, "in the log: %d records of %s, selected from %d to %d of %d, root %s\n", report.Records, report.Origin, report.From, report.To, report.TreeSize, report.RootHex)
		default:
			sayf(v.out, "whole: records %d to %d of %d of %s, root %s\n", report.From, report.To, report.TreeSize, report.Origin, report.RootHex)
		}
		if report.OK() {
			v.printWitnesses(report.Witnesses)
		}
	})
}

func (v *verification) printCheckpoint(r checkpointResult) error {
	return v.print(r, func() {
		if r.Code != "" {
			sayf(v.out, "%s: %s: %s: %s\n", wrong(r.Code), r.Checkpoint, r.Code, r.Detail)
			return
		}
		sayf(v.out, "signed: the checkpoint of %d records of %s, root %s\n", r.TreeSize, r.Origin, r.RootHex)
		v.printWitnesses(r.Witnesses)
	})
}

// printWitnesses says who else vouches for what has been printed.
func (v *verification) printWitnesses(names []string) {
	if len(names) > 0 {
		sayf(v.out, "cosigned by %s\n", strings.Join(names, ", "))
	}
}

// wrong is the word for a fault: what nobody vouches for may be whole.
func wrong(code tlog.Code) string {
	if code == tlog.NotAnchored {
		return "NOT ANCHORED"
	}
	return "DAMAGED"
}
