package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/policies"
	"github.com/sallyport-ai/sallyport/policy"
)

func policyCommand() *cobra.Command {
	cmd := commandGroup("policy", "Check, test and explain policy")
	cmd.AddCommand(policyCheckCommand(), policyInitCommand(), policyBuildCommand(), policyTestCommand(), policyExplainCommand())
	return cmd
}

func policyCheckCommand() *cobra.Command {
	var key string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check BUNDLE",
		Short: "Load a bundle, a directory or .tar.gz, as activating it would",
		Long: "Check compiles the bundle, reads its data, runs its tests and asks it what every bundle must be\n" +
			"able to answer. It exits with 0 if a gateway could activate it, 1 if not, 2 if it is not there.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := os.Stat(args[0]); err != nil {
				return notChecked(cmd, asJSON, &exitError{exitCannotTell, err})
			}
			engine, err := policy.Load(cmd.Context(), policy.Config{Bundle: args[0], VerifyKeyFile: key})
			if err != nil {
				return notChecked(cmd, asJSON, &exitError{exitBad, err})
			}
			a := engine.Activation()
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(checkedBundle{OK: true, Activation: &a})
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is good: revision %s, digest %s\n", args[0], a.Revision, a.Digest)
			return nil
		},
	}
	bundleKey(cmd, &key)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// checkedBundle is what `policy check --json` prints: of a bundle that is good,
// what its activation would say, and of another why it is not.
type checkedBundle struct {
	OK bool `json:"ok"`
	*policy.Activation
	Error string `json:"error,omitempty"`
}

// notChecked tells why a bundle is not good, as JSON if that is asked for.
func notChecked(cmd *cobra.Command, asJSON bool, why *exitError) error {
	if !asJSON {
		return why
	}
	if err := json.NewEncoder(cmd.OutOrStdout()).Encode(checkedBundle{Error: why.Error()}); err != nil {
		return err
	}
	return &exitError{code: why.code}
}

func policyTestCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "test [DIR]",
		Short: "Run a bundle's own Rego tests with the capabilities and strictness of the gateway",
		Long:  "Test runs the test_ rules of the bundle in DIR, or of the policy that ships with the data of the demonstration.",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			layers, err := bundleLayers(args)
			if err != nil {
				return err
			}
			report, err := policy.RunTests(cmd.Context(), layers...)
			if err != nil {
				return err
			}
			if len(report.Tests) == 0 {
				return errors.New("policy test: there are no tests")
			}
			if err := printTests(cmd.OutOrStdout(), report, asJSON); err != nil {
				return err
			}
			if len(report.Failed()) > 0 {
				return &exitError{code: exitBad}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func bundleLayers(args []string) ([]fs.FS, error) {
	if len(args) == 1 {
		switch info, err := os.Stat(args[0]); {
		case err != nil:
			return nil, err
		case !info.IsDir():
			return nil, fmt.Errorf("%s is no directory; `sallyport policy check` runs the tests of a tarball", args[0])
		}
		return []fs.FS{os.DirFS(args[0])}, nil
	}
	demo, err := policies.Demo()
	if err != nil {
		return nil, err
	}
	return []fs.FS{policies.FS, demo}, nil
}

func printTests(w io.Writer, r policy.Report, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	failed := r.Failed()
	for _, t := range failed {
		fmt.Fprintf(w, "FAIL %s (%s) %s\n", t.Name, t.File, t.Error)
	}
	_, err := fmt.Fprintf(w, "%d passed, %d failed\n%.1f %% of the rules covered\n", len(r.Tests)-len(failed), len(failed), r.Coverage)
	return err
}
