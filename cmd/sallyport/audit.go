package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

func auditCommand() *cobra.Command {
	cmd := commandGroup("audit", "Verify and read an audit log")
	cmd.AddCommand(auditVerifyCommand(), auditShowCommand())
	return cmd
}

func auditVerifyCommand() *cobra.Command {
	var keyFile string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify DIR --key FILE",
		Short: "Check every record, batch signature and root of a log against a pinned key",
		Long: "Verify reads a log directory without opening it for writing, also while a gateway writes.\n" +
			"It exits with 0 if the log is whole, 1 if it is damaged, and 2 if it cannot tell: without\n" +
			"the verifier key, kept elsewhere, a log can only agree with itself.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if keyFile == "" {
				return &exitError{exitCannotTell, errors.New("no pinned key: give the log's verifier key with --key; without it a forged log would look as good as a true one")}
			}
			key, err := tlog.ReadVerifierFile(keyFile)
			if err != nil {
				return &exitError{exitCannotTell, err}
			}
			report, err := tlog.Verify(args[0], key, tlog.VerifyOptions{})
			if err != nil {
				return &exitError{exitCannotTell, err}
			}
			if err := printReport(cmd.OutOrStdout(), report, asJSON); err != nil {
				return err
			}
			if !report.OK() {
				return &exitError{code: exitBad}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&keyFile, "key", "", "file with the log's verifier key (required)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printReport(w io.Writer, r tlog.Report, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	if !r.OK() {
		fmt.Fprintf(w, "DAMAGED: %s\n", r.Detail)
		fmt.Fprintf(w, "whole up to %d records of %s\n", r.TreeSize, r.Origin)
		return nil
	}
	fmt.Fprintf(w, "whole: %d records of %s, root %s\n", r.TreeSize, r.Origin, r.RootHex)
	fmt.Fprintf(w, "%d decisions, %d outcomes, %d decisions without an outcome yet, %d starts\n", r.Decisions, r.Outcomes, r.Unresolved, r.Boots)
	return nil
}

func auditShowCommand() *cobra.Command {
	var asJSON bool
	var from uint64
	cmd := &cobra.Command{
		Use:   "show DIR [ID]",
		Short: "List the records of a log, or print those of one decision whole",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				entries, err := tlog.Find(args[0], args[1], from)
				if err != nil {
					return err
				}
				for _, e := range entries {
					if err := printLeaf(cmd.OutOrStdout(), e.Leaf, asJSON); err != nil {
						return err
					}
				}
				return nil
			}
			return listRecords(cmd.OutOrStdout(), args[0], from, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print each record's exact bytes, one a line")
	cmd.Flags().Uint64Var(&from, "from", 0, "first index")
	return cmd
}

// printLeaf prints exact bytes, or an indented view of them.
func printLeaf(w io.Writer, leaf []byte, exact bool) error {
	if exact {
		_, err := fmt.Fprintf(w, "%s\n", leaf)
		return err
	}
	var v json.RawMessage = leaf
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("show record: %w", err)
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}

func listRecords(w io.Writer, dir string, from uint64, asJSON bool) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if !asJSON {
		fmt.Fprintln(table, "INDEX\tTIME\tKIND\tID\tTENANT\tCLASS\tLABEL\tSTATUS\tREPLICA\tBASIS\tREASON")
	}
	empty := true
	for e, err := range tlog.Read(dir, from) {
		if err != nil {
			return err
		}
		empty = false
		if asJSON {
			if err := printLeaf(w, e.Leaf, true); err != nil {
				return err
			}
			continue
		}
		r, err := audit.Decode(e.Leaf)
		if err != nil {
			return err
		}
		listRow(table, e.Index, r)
	}
	if empty && from == 0 { // a log begins with the start of its gateway
		return fmt.Errorf("%s is no log", dir)
	}
	return table.Flush()
}

func listRow(w io.Writer, index uint64, r *audit.Record) {
	var tenant, class, label, replica, basis string
	if r.Caller != nil {
		tenant = r.Caller.Tenant
	}
	if r.Class != nil {
		class = r.Class.Name
	}
	if r.Label != nil {
		label = r.Label.Level
	}
	if r.Placement != nil {
		replica, basis = r.Placement.Replica, r.Placement.Basis
	}
	if r.Outcome != nil {
		replica = r.Outcome.Replica
	}
	fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", index,
		time.UnixMicro(r.Time.Wall).UTC().Format("2006-01-02T15:04:05.000Z"), r.Kind, r.ID, tenant, class, label, r.Status, replica, basis, r.Reason)
}
