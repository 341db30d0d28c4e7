package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/policies"
	"github.com/sallyport-ai/sallyport/policy"
)

func policyInitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "init DIR",
		Short: "Write the rules that ship and example data into a new bundle directory",
		Long: "Init writes the Rego that ships with its tests, its schemas, and the data of the demonstration to\n" +
			"DIR, which must not exist. Edit DIR/sallyport/*/data.json, then run policy check and policy test.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := os.Stat(args[0]); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s exists already", args[0])
			}
			data, err := policies.Demo()
			if err != nil {
				return err
			}
			if err := policy.Write(args[0], []fs.FS{policies.FS, data}); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: rules in sallyport/*.rego, data in sallyport/*/data.json\n", args[0])
			return nil
		},
	}
}

func policyBuildCommand() *cobra.Command {
	var revision, key, out string
	cmd := &cobra.Command{
		Use:   "build DIR --revision R --out FILE",
		Short: "Make a bundle tarball of a directory, signed where a key is given",
		Long: "Build writes the bundle in DIR as FILE, with revision R in its manifest. Production takes only signed\n" +
			"ones: make a key with `openssl ecparam -name prime256v1 -genkey -noout`, and give gateways its public\n" +
			"half as policy.verify_key_file. A gateway never goes back to an older revision.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if revision == "" || out == "" {
				return errors.New("--revision and --out are required")
			}
			f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
			if err != nil {
				return fmt.Errorf("build bundle: %w", err)
			}
			err = policy.Build(f, []fs.FS{os.DirFS(args[0])}, revision, key)
			if err = errors.Join(err, f.Close()); err != nil {
				return errors.Join(err, os.Remove(out)) // half a bundle is none
			}
			fmt.Fprintln(cmd.OutOrStdout(), out)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&revision, "revision", "", "revision, for example 2026.11.1")
	f.StringVar(&key, "key", "", "PEM file of the signing key: ECDSA P-256 or P-384, or RSA")
	f.StringVar(&out, "out", "", "tarball to write; never replaced")
	return cmd
}
