package main

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/excerpt"
	"github.com/sallyport-ai/sallyport/audit/query"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

// records reads a log directory, or an excerpt of one, from an index on.
func records(path string, from uint64) iter.Seq2[tlog.Entry, error] {
	if !excerpt.Is(path) {
		return tlog.Read(path, from)
	}
	return func(yield func(tlog.Entry, error) bool) {
		for e, err := range excerpt.Read(path) {
			if (err != nil || e.Index >= from) && !yield(e, err) {
				return
			}
		}
	}
}

// find returns the records of a decision in a log directory or an excerpt.
func find(path, id string, from uint64) (found []tlog.Entry, err error) {
	if !excerpt.Is(path) {
		return tlog.Find(path, id, from)
	}
	for m, err := range query.Select(records(path, from), query.Filter{ID: id}) {
		if err != nil {
			return nil, err
		}
		found = append(found, tlog.Entry{Index: m.Index, Leaf: m.Leaf})
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: %q", tlog.ErrNotFound, id)
	}
	return found, nil
}

func auditExportCommand() *cobra.Command {
	var read reads
	var filter filterFlags
	var from, to uint64
	var out string
	cmd := &cobra.Command{
		Use:   "export DIR [--out FILE]",
		Short: "Write records as lines of JSON that can be verified without the log",
		Long: "Export writes an excerpt of a log: the exact bytes of each record, one a line, between a line\n" +
			"that says what the file is, with the signed checkpoint and the hashes that it takes to get from\n" +
			"the records to the checkpoint's root, and one that counts them. `sallyport audit verify FILE`\n" +
			"checks it. With indexes or times alone it holds every record between; with any other flag each\n" +
			"record has a proof of its own, and that nothing was left out cannot be seen. Nothing to export\n" +
			"is an answer as well: an excerpt of 0 records.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := filter.parse(time.Now())
			if err != nil {
				return err
			}
			if err := read.note(cmd, args, args[0]); err != nil {
				return err
			}
			o := excerpt.Options{From: from, To: to}
			if o, err = narrowed(args[0], o, f); err != nil {
				return err
			}
			var n uint64
			if out == "" {
				if n, err = excerpt.Write(cmd.OutOrStdout(), args[0], o); err == nil && n == 0 {
					fmt.Fprintln(cmd.ErrOrStderr(), "0 records")
				}
				return err
			}
			err = createFile(out, func(w io.Writer) error { n, err = excerpt.Write(w, args[0], o); return err })
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "%d records in %s\n", n, out)
			}
			return err
		},
	}
	read.flag(cmd)
	filter.flags(cmd)
	cmd.Flags().Uint64Var(&from, "from", 0, "first index")
	cmd.Flags().Uint64Var(&to, "to", 0, "index to end before; without it, as far as the log is published")
	cmd.Flags().StringVar(&out, "out", "", "file to write, which must not be there; without it, standard output")
	return cmd
}

// narrowed makes a filter that is of time alone a range of indexes, so that it
// can be shown that nothing between is missing, and any other a selection.
func narrowed(dir string, o excerpt.Options, f query.Filter) (excerpt.Options, error) {
	timeless := f
	timeless.Since, timeless.Until = time.Time{}, time.Time{}
	if timeless != (query.Filter{}) {
		o.Select = func(all iter.Seq2[tlog.Entry, error]) iter.Seq2[tlog.Entry, error] {
			return func(yield func(tlog.Entry, error) bool) {
				for m, err := range query.Select(all, f) {
					if !yield(tlog.Entry{Index: m.Index, Leaf: m.Leaf}, err) {
						return
					}
				}
			}
		}
		return o, nil
	}
	if f == (query.Filter{}) {
		return o, nil
	}
	return between(dir, o, f.Since, f.Until)
}

// between finds the records from the first to the last that a window holds.
// Clocks jump, so what lies between may be outside. If there are none, that is
// what there is, after the last that is older.
func between(dir string, o excerpt.Options, since, until time.Time) (excerpt.Options, error) {
	_, tree, err := tlog.Published(dir)
	if err != nil {
		return o, err
	}
	end := uint64(tree.N)
	if o.To != 0 {
		end = min(end, o.To)
	}
	w := window{since: since, until: until}
	found, after := false, o.From
	for e, err := range records(dir, o.From) {
		if err != nil {
			return o, err
		}
		if e.Index >= end {
			break
		}
		at, err := timeOf(e.Leaf)
		if err != nil {
			return o, fmt.Errorf("record %d: %w", e.Index, err)
		}
		if !w.contains(at) {
			if at.Before(since) {
				after = e.Index + 1
			}
			continue
		}
		if !found {
			found, o.From = true, e.Index
		}
		o.To = e.Index + 1
	}
	if !found {
		o.From, o.None = after, true
	}
	return o, nil
}

func timeOf(leaf []byte) (time.Time, error) {
	var r struct {
		Time audit.Time `json:"time"`
	}
	if err := jsonv2.Unmarshal(leaf, &r); err != nil {
		return time.Time{}, err
	}
	return time.UnixMicro(r.Time.Wall).UTC(), nil
}

// createFile writes a file that was not there, for its owner alone, and leaves
// none behind that was not finished.
func createFile(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}
