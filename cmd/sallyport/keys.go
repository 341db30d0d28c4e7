package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/audit/tlog"
)

func keysCommand() *cobra.Command {
	cmd := commandGroup("keys", "Make keys")
	cmd.AddCommand(keysNewCommand(), keysListCommand(), keysRevokeCommand(), keysPepperCommand(), keysLogCommand())
	return cmd
}

func keysLogCommand() *cobra.Command {
	var origin, out string
	cmd := &cobra.Command{
		Use:   "log --origin NAME --out FILE",
		Short: "Make the key that signs an audit log",
		Long: "Log writes the signer key to FILE (mode 0600) and the verifier key to FILE.pub, and prints\n" +
			"the latter. Keep a copy of FILE.pub where the gateway's host cannot reach it: it is what\n" +
			"an auditor pins.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if origin == "" || out == "" {
				return errors.New("--origin and --out are required")
			}
			vkey, err := createLogKey(out, origin)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), vkey)
			return nil
		},
	}
	cmd.Flags().StringVar(&origin, "origin", "", "the log's name, for example example.org/gateway/a")
	cmd.Flags().StringVar(&out, "out", "", "file for the signer key")
	return cmd
}

// createLogKey writes a signer key to path and its verifier key to path.pub.
func createLogKey(path, origin string) (vkey string, err error) {
	if vkey, err = tlog.CreateKeyFile(path, origin); err != nil {
		return "", err
	}
	if err := os.WriteFile(path+".pub", []byte(vkey+"\n"), 0o644); err != nil {
		return "", fmt.Errorf("write verifier key: %w", err)
	}
	return vkey, nil
}
