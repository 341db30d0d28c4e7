package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

func keysCommand() *cobra.Command {
	cmd := commandGroup("keys", "Make, list, revoke and destroy keys")
	cmd.AddCommand(keysNewCommand(), keysListCommand(), keysRevokeCommand(), keysPepperCommand(), keysLogCommand(), keysMACCommand())
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
	cmd.AddCommand(keysLogRotateCommand())
	return cmd
}

func keysLogRotateCommand() *cobra.Command {
	var keyFile, second string
	cmd := &cobra.Command{
		Use:   "rotate DIR --key FILE",
		Short: "Have a new key sign an audit log from now on",
		Long: "Rotate makes a key, has it and the old one sign a record in the log that it takes over,\n" +
			"and puts it in the old one's place in FILE. Who pins the old verifier key can still verify\n" +
			"the whole log; relays and witnesses must be told of the new one. The gateway must be\n" +
			"stopped. If rotate is cut short, run it again.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if keyFile == "" {
				return errors.New("--key is required")
			}
			if _, err := tlog.Origin(args[0]); err != nil {
				return err
			}
			vkey, err := tlog.RotateKeyFile(cmd.Context(), tlog.Config{
				Dir: args[0], Dir2: second, Boot: audit.Gateway{SPIFFE: "sallyport keys log rotate", Build: build()},
			}, keyFile)
			if err != nil {
				return err
			}
			if err := os.WriteFile(keyFile+".pub", []byte(vkey+"\n"), 0o644); err != nil {
				return fmt.Errorf("write verifier key: %w", err)
			}
			fmt.Fprintln(cmd.OutOrStdout(), vkey)
			return nil
		},
	}
	cmd.Flags().StringVar(&keyFile, "key", "", "file of the signer key")
	cmd.Flags().StringVar(&second, "dir2", "", "second directory of the log, if it has one")
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
