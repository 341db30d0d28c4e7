package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

func auditReanchorCommand() *cobra.Command {
	var key, checkpoint, newKey, by, reason string
	cmd := &cobra.Command{
		Use:   "reanchor OLD-DIR NEW-DIR --key FILE --checkpoint FILE --new-key FILE --by WHO",
		Short: "Begin a log that goes on for one that lost records",
		Long: "A log that was restored from an old copy, cut back or wiped is refused: by its witnesses,\n" +
			"its second directory or its own checkpoint. Reanchor begins another, with a key of another\n" +
			"name, whose second record holds what the old one has left and a checkpoint of it that was\n" +
			"held elsewhere (by a witness, in the SIEM, with an auditor), and so how much is missing. The\n" +
			"old directory is kept as it is and opened no more. List both in the fleet register, and\n" +
			"point audit.dir and audit.key_file at the new one.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if key == "" || checkpoint == "" || newKey == "" || by == "" {
				return errors.New("--key, --checkpoint, --new-key and --by are required")
			}
			pinned, err := tlog.ReadVerifierFile(key)
			if err != nil {
				return cannotTell(err)
			}
			text, err := os.ReadFile(checkpoint)
			if err != nil {
				return fmt.Errorf("read held checkpoint: %w", err)
			}
			signer, err := tlog.ReadKeyFile(newKey)
			if err != nil {
				return err
			}
			gap, err := tlog.Reanchor(cmd.Context(), tlog.Config{
				Dir: args[1], Key: signer, Boot: audit.Gateway{SPIFFE: "sallyport audit reanchor", Build: build()},
			}, tlog.Lost{Dir: args[0], Key: pinned, Checkpoint: text, By: by, Reason: reason})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s goes on for %s, which has %d records left of %d\n", signer.Name(), gap.Origin, gap.Size, gap.Held)
			return nil
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "file with the old log's verifier key")
	takeVerifyKey(cmd)
	cmd.Flags().StringVar(&checkpoint, "checkpoint", "", "checkpoint of the old log that was held elsewhere")
	cmd.Flags().StringVar(&newKey, "new-key", "", "file of the new log's signer key")
	cmd.Flags().StringVar(&by, "by", "", "who says so, for the record")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return cmd
}
