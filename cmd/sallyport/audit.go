package main

import (
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/excerpt"
	"github.com/sallyport-ai/sallyport/audit/inbox"
	"github.com/sallyport-ai/sallyport/audit/query"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

func auditCommand() *cobra.Command {
	cmd := commandGroup("audit", "Verify and read an audit log")
	cmd.AddCommand(
		auditVerifyCommand(), auditShowCommand(), auditQueryCommand(), auditProveCommand(), auditExplainCommand(),
		auditExportCommand(), auditBundleCommand(), auditResidencyCommand(), auditPruneCommand(), auditReanchorCommand(),
	)
	return cmd
}

func auditShowCommand() *cobra.Command {
	var read reads
	var asJSON bool
	var from uint64
	cmd := &cobra.Command{
		Use:   "show (DIR | EXCERPT) [ID]",
		Short: "List the records of a log, or print those of one decision whole",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := read.note(cmd, args, args[0]); err != nil {
				return err
			}
			if len(args) == 2 {
				entries, err := find(args[0], args[1], from)
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
	read.flag(cmd)
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
	_, err = fmt.Fprintf(w, "%s\n", printableLines(string(b)))
	return err
}

func listRecords(w io.Writer, dir string, from uint64, asJSON bool) error {
	n, err := 0, error(nil)
	if asJSON {
		n, err = printLeaves(w, all(records(dir, from), false))
	} else {
		n, err = printMatches(w, all(records(dir, from), true))
	}
	if err == nil && n == 0 && from == 0 && !excerpt.Is(dir) { // a log begins with the start of its gateway
		return fmt.Errorf("%s is no log", dir)
	}
	return err
}

// all matches every record. Bytes that are only printed need not be understood.
func all(records iter.Seq2[tlog.Entry, error], decode bool) iter.Seq2[query.Match, error] {
	return func(yield func(query.Match, error) bool) {
		for e, err := range records {
			m := query.Match{Index: e.Index, Leaf: e.Leaf}
			if err == nil && decode {
				m.Record, err = audit.Decode(e.Leaf)
			}
			if !yield(m, err) || err != nil {
				return
			}
		}
	}
}

const listHeader = "INDEX\tTIME\tKIND\tID\tTENANT\tCLASS\tLABEL\tSTATUS\tREPLICA\tBASIS\tREASON"

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
	reason := r.Reason
	if reason == "" {
		reason = reader(r)
	}
	sayf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", index,
		time.UnixMicro(r.Time.Wall).UTC().Format(timeFormat), string(r.Kind), r.ID, tenant, class, label, r.Status, replica, basis, reason)
}

// reader is who read the log with which command, of a record that says so.
func reader(r *audit.Record) string {
	if r.Kind != audit.KindAccess || r.Status != inbox.StatusRead {
		return ""
	}
	var event struct {
		Note access `json:"note"`
	}
	if err := json.Unmarshal(r.Event, &event); err != nil || event.Note.Command == "" {
		return ""
	}
	return event.Note.User + "@" + event.Note.Host + ": " + event.Note.Command
}
