package main

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/claim"
	"github.com/sallyport-ai/sallyport/audit/query"
	"github.com/sallyport-ai/sallyport/policy"
)

func auditQueryCommand() *cobra.Command {
	var read reads
	var filter filterFlags
	var asJSON bool
	var from uint64
	cmd := &cobra.Command{
		Use:   "query (DIR | EXCERPT)",
		Short: "List the records that are about a tenant, a label, a replica, a time …",
		Long: "Query reads a log once and prints what all flags agree on. What the caller, the class, the\n" +
			"label, the model and the pool of an outcome were is taken from its decision.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := filter.parse(time.Now())
			if err != nil {
				return err
			}
			if err := read.note(cmd, args, args[0]); err != nil {
				return err
			}
			matches := query.Select(records(args[0], from), f)
			n := 0
			if asJSON {
				n, err = printLeaves(cmd.OutOrStdout(), matches)
			} else {
				n, err = printMatches(cmd.OutOrStdout(), matches)
			}
			if err == nil && n == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "sallyport: no record agrees with all of these flags")
			}
			return err
		},
	}
	read.flag(cmd)
	filter.flags(cmd)
	cmd.Flags().Uint64Var(&from, "from", 0, "first index to look at")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print each record's exact bytes, one a line")
	return cmd
}

// flushEvery bounds the rows that a table is laid out over, so that a long list
// is neither held back nor held in memory.
const flushEvery = 256

// printMatches prints a table, and returns of how many records: of those before
// damage, if there is some.
func printMatches(w io.Writer, matches iter.Seq2[query.Match, error]) (n int, err error) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, listHeader)
	for m, err := range matches {
		if err != nil {
			return n, errors.Join(err, t.Flush())
		}
		listRow(t, m.Index, m.Record)
		if n++; n%flushEvery == 0 {
			if err := t.Flush(); err != nil {
				return n, err
			}
		}
	}
	return n, t.Flush()
}

// printLeaves prints the exact bytes of records, and returns of how many.
func printLeaves(w io.Writer, matches iter.Seq2[query.Match, error]) (n int, err error) {
	for m, err := range matches {
		if err != nil {
			return n, err
		}
		if err := printLeaf(w, m.Leaf, true); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// filterFlags are a [query.Filter] as users give it.
type filterFlags struct {
	filter query.Filter
	kind   string
	window window
}

func (f *filterFlags) flags(cmd *cobra.Command) {
	for _, flag := range []struct {
		to          *string
		name, usage string
	}{
		{&f.filter.ID, "id", "decision id"},
		{&f.filter.Tenant, "tenant", "tenant"},
		{&f.filter.Subject, "subject", "caller, as recorded: perhaps a pseudonym"},
		{&f.filter.Class, "class", "class of the request"},
		{&f.filter.Label, "label", "label of the request"},
		{&f.filter.Model, "model", "model, as asked for or as served"},
		{&f.filter.Pool, "pool", "pool that it was placed in"},
		{&f.filter.Replica, "replica", "SPIFFE ID of the replica"},
		{&f.filter.Reason, "reason", "why it was refused or tried again"},
		{&f.filter.Status, "status", "allowed, denied, or how it ended"},
		{&f.kind, "kind", "kind of record, such as decision or policy"},
	} {
		cmd.Flags().StringVar(flag.to, flag.name, "", flag.usage)
	}
	f.window.flags(cmd)
}

func (f *filterFlags) parse(now time.Time) (query.Filter, error) {
	if err := f.window.parse(now); err != nil {
		return query.Filter{}, err
	}
	// A word that no record can hold would find nothing, as if there were nothing.
	if f.kind != "" && !slices.Contains(audit.Kinds, audit.Kind(f.kind)) {
		return query.Filter{}, cannotTell(fmt.Errorf("--kind: no kind %q: want one of %v", f.kind, audit.Kinds))
	}
	if f.filter.Label != "" && !slices.Contains(claim.Levels, f.filter.Label) {
		return query.Filter{}, cannotTell(fmt.Errorf("--label: no label %q: want one of %v", f.filter.Label, claim.Levels))
	}
	if f.filter.Class != "" {
		if _, err := policy.ParseClass(f.filter.Class); err != nil {
			return query.Filter{}, cannotTell(fmt.Errorf("--class: %w", err))
		}
	}
	out := f.filter
	out.Kind, out.Since, out.Until = audit.Kind(f.kind), f.window.since, f.window.until
	return out, nil
}
