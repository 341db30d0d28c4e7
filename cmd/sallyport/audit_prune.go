package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"time"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

func auditPruneCommand() *cobra.Command {
	var p pruning
	cmd := &cobra.Command{
		Use:   "prune DIR --key-file FILE --before TIME",
		Short: "Destroy the records of a log that are older than a time",
		Long: "Prune destroys whole segments of records and keeps their hashes, so that what is kept can still\n" +
			"be verified and proven. A record of it is written first. The policies that no record names any\n" +
			"more go too. It needs the key that signs the log, and the gateway must be stopped: one that\n" +
			"serves prunes by itself, if its configuration says audit.retention.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if p.keyFile == "" || p.before == "" && p.below == 0 {
				return errors.New("--key-file, and --before or --below, are required")
			}
			event, err := p.run(cmd.Context(), args[0])
			none := errors.Is(err, tlog.ErrNothingToPrune)
			switch {
			case errors.Is(err, tlog.ErrLocked):
				return fmt.Errorf("%w: stop it first; a gateway that serves prunes by itself, if its configuration says audit.retention", err)
			case err != nil && !none:
				return err
			case p.json:
				return json.NewEncoder(cmd.OutOrStdout()).Encode(event)
			case none:
				fmt.Fprintln(cmd.OutOrStdout(), "nothing to prune: no whole segment is that old, of those before the newest two")
				return nil
			}
			fmt.Fprintf(cmd.OutOrStdout(), "pruned: records %d to %d\n", event.From, event.Size)
			return nil
		},
	}
	cmd.Flags().StringVar(&p.keyFile, "key-file", "", "file of the key that signs the log")
	cmd.Flags().StringVar(&p.dir2, "dir2", "", "second directory of the log, if it has one")
	cmd.Flags().StringVar(&p.before, "before", "", "a date, an RFC 3339 time, or how long ago (8784h)")
	cmd.Flags().Uint64Var(&p.below, "below", 0, "destroy only records with a smaller index")
	cmd.Flags().StringVar(&p.reason, "reason", "", "why, for the record")
	cmd.Flags().BoolVar(&p.json, "json", false, "print JSON")
	return cmd
}

// pruning is one `audit prune`.
type pruning struct {
	keyFile, dir2, before, reason string
	below                         uint64
	json                          bool
}

func (p *pruning) run(ctx context.Context, dir string) (event audit.Prune, err error) {
	before, err := parseWhen(p.before, time.Now())
	if err != nil {
		return event, fmt.Errorf("--before: %w", err)
	}
	if _, err := tlog.Origin(dir); err != nil { // else one would be begun there
		return event, err
	}
	key, err := tlog.ReadKeyFile(p.keyFile)
	if err != nil {
		return event, err
	}
	by := "uid " + fmt.Sprint(os.Getuid())
	if u, err := user.Current(); err == nil {
		by = u.Username
	}
	log, err := tlog.Open(tlog.Config{Dir: dir, Dir2: p.dir2, Key: key, Boot: audit.Gateway{SPIFFE: "sallyport audit prune", Build: build()}})
	if err != nil {
		return event, err
	}
	event, err = log.Prune(ctx, tlog.PruneOptions{Before: before, Below: p.below, Reason: p.reason, By: by})
	if err := errors.Join(err, log.Close()); err != nil {
		return event, err
	}
	return event, prunePolicies(dir, nil, 0)
}
