package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/audit/reconcile"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

func auditVerifyCommand() *cobra.Command {
	var v verification
	cmd := &cobra.Command{
		Use:   "verify (DIR | FILE.tlog-proof)... --key FILE",
		Short: "Check every record, batch signature and root of logs against pinned keys",
		Long: "Verify reads log directories without opening them for writing, also while gateways write.\n" +
			"With --relay-log it also holds the relays' own logs of tickets served against the decisions:\n" +
			"it reports each forward without a decision, and each decision whose forward is missing.\n" +
			"It exits with 0 if all is well, 1 if not, and 2 if it cannot tell: without the verifier key,\n" +
			"kept elsewhere, a log can only agree with itself.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			v.out = cmd.OutOrStdout()
			return v.run(args)
		},
	}
	v.pins.flag(cmd)
	v.window.flags(cmd)
	cmd.Flags().StringArrayVar(&v.relayDirs, "relay-log", nil, "log of tickets that a relay served; may be given several times")
	cmd.Flags().BoolVar(&v.json, "json", false, "print JSON, one object a line")
	return cmd
}

// verification is one `audit verify`.
type verification struct {
	pins      pins
	window    window
	relayDirs []string
	json      bool
	out       io.Writer

	bad     bool // something is wrong
	unknown bool // something could not be judged
}

func (v *verification) run(args []string) error {
	if err := v.pins.load(); err != nil {
		return err
	}
	if err := v.window.parse(time.Now()); err != nil {
		return err
	}
	// The gateways' logs are measured before the relays' are read, and held
	// against them afterwards: see reconcile.Log.
	var logs []string
	for _, arg := range args {
		if !strings.HasSuffix(arg, proofSuffix) {
			logs = append(logs, arg)
			continue
		}
		if err := v.proof(arg); err != nil {
			return err
		}
	}
	gateways, err := v.logs("log", logs)
	if err != nil {
		return err
	}
	relays, err := v.logs("relay log", v.relayDirs)
	if err != nil {
		return err
	}
	if len(relays) > 0 && !v.bad {
		report, err := reconcile.Run(gateways, relays, reconcile.Options{Since: v.window.since, Until: v.window.until})
		if err != nil {
			return cannotTell(err)
		}
		if err := v.printReconciled(report); err != nil {
			return err
		}
	}
	switch {
	case v.bad:
		return &exitError{code: exitBad}
	case v.unknown:
		return &exitError{code: exitCannotTell}
	}
	return nil
}

// logs verifies log directories.
func (v *verification) logs(what string, dirs []string) ([]reconcile.Log, error) {
	var out []reconcile.Log
	for _, dir := range dirs {
		key, err := v.pins.of(dir)
		if err != nil {
			return nil, err
		}
		report, err := tlog.Verify(dir, key, tlog.VerifyOptions{})
		if err != nil {
			return nil, cannotTell(fmt.Errorf("%s: %w", what, err))
		}
		v.bad = v.bad || !report.OK()
		if err := v.printReport(report); err != nil {
			return nil, err
		}
		out = append(out, reconcile.Log{Origin: report.Origin, Records: tlog.Read(dir, 0), Size: report.TreeSize})
	}
	return out, nil
}

// print prints a result as JSON or in words.
func (v *verification) print(result any, words func()) error {
	if v.json {
		return json.NewEncoder(v.out).Encode(result)
	}
	words()
	return nil
}

func (v *verification) printReport(r tlog.Report) error {
	return v.print(r, func() {
		if !r.OK() {
			fmt.Fprintf(v.out, "DAMAGED: %s\n", r.Detail)
			fmt.Fprintf(v.out, "whole up to %d records of %s\n", r.TreeSize, r.Origin)
			return
		}
		fmt.Fprintf(v.out, "whole: %d records of %s, root %s\n", r.TreeSize, r.Origin, r.RootHex)
		if r.Decisions+r.Outcomes > 0 {
			fmt.Fprintf(v.out, "%d decisions, %d outcomes, %d decisions without an outcome yet, %d starts\n", r.Decisions, r.Outcomes, r.Unresolved, r.Boots)
		}
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
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%d\t%s\t%s\n", f.Code, f.Time.Format(timeFormat), f.Log, f.Index, f.ID, f.Attempt, f.Replica, f.Detail)
	}
	return t.Flush()
}
