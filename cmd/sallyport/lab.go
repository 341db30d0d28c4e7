package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/routing/sim/lab"
)

// labFlags are what the lab is asked to do.
type labFlags struct {
	trace    string
	requests int
	faults   string
	json     bool
	report   string
	quiet    bool
	lab.Config
}

func labCommand() *cobra.Command {
	var f labFlags
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Compare placement strategies on a simulated fleet",
		Long: "Lab replays a trace of requests against simulated engines, placed by our own index and\n" +
			"placement (kv), by the published formulas of others, each tuned to the trace, and by an\n" +
			"oracle that tries every replica. Load 1.0 is what the oracle can just carry.\n" +
			"docs/lab.md says how to read what it prints.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runLab(cmd, &f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.trace, "trace", "synthetic:chat", "FILE in Mooncake's JSON lines, or synthetic:NAME")
	flags.IntVar(&f.requests, "requests", 0, "requests of the trace to use; 0: all of a file, 3000 of a synthetic one")
	flags.IntVar(&f.Replicas, "replicas", 8, "engines")
	flags.IntVar(&f.Gateways, "gateways", 1, "gateways that do not know of each other")
	flags.StringSliceVar(&f.Strategies, "strategy", lab.Strategies(), "strategies, by comma")
	flags.Float64SliceVar(&f.Loads, "load", []float64{0.5, 0.8, 0.95}, "loads, 1.0 being the oracle's saturation")
	flags.Float64SliceVar(&f.Capacities, "capacity", []float64{0.1, 0.3, 1}, "memory of each replica, 1.0 being room for every block of the trace")
	flags.IntVar(&f.Seeds, "seeds", 3, "runs of each")
	flags.Uint64Var(&f.FirstSeed, "first-seed", 1, "seed of the first run; the next has the next")
	flags.IntVar(&f.OracleRequests, "oracle-requests", 2000, "requests, from the first, that the oracle places")
	flags.IntVar(&f.OracleSeeds, "oracle-seeds", 3, "runs of the oracle, at most as many as seeds")
	flags.IntVar(&f.TuneRequests, "tune-requests", 1000, "requests, from the first, that the others are tuned on")
	flags.StringVar(&f.faults, "faults", "", "event-loss=SHARE, replica-loss, model-roll, by comma")
	flags.BoolVar(&f.json, "json", false, "print a JSON object for each strategy, load and capacity")
	flags.StringVar(&f.report, "report", "", "write an HTML report with charts to this file")
	flags.BoolVar(&f.quiet, "quiet", false, "do not say on standard error what is going on")
	return cmd
}

func runLab(cmd *cobra.Command, f *labFlags) error {
	for _, flag := range []string{"replicas", "gateways", "seeds", "oracle-requests", "oracle-seeds", "tune-requests"} {
		if n, err := cmd.Flags().GetInt(flag); err != nil || n < 1 { // 0 would be the default
			return fmt.Errorf("--%s: want at least 1, got %d", flag, n)
		}
	}
	if f.requests < 0 {
		return fmt.Errorf("--requests: want 0 or more, got %d", f.requests)
	}
	faults, err := lab.ParseFaults(f.faults)
	if err != nil {
		return err
	}
	f.Faults = faults
	if f.Source, err = f.source(); err != nil {
		return err
	}
	if !f.quiet {
		f.Progress = func(s string) { fmt.Fprintln(cmd.ErrOrStderr(), s) }
	}
	report, err := lab.Run(cmd.Context(), f.Config)
	if err != nil {
		return err
	}
	if f.report != "" {
		if err := writeLabReport(f.report, report); err != nil {
			return err
		}
	}
	if !f.json {
		return report.WriteTable(cmd.OutOrStdout())
	}
	enc := json.NewEncoder(cmd.OutOrStdout())
	for _, r := range report.Results {
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// source finds the trace, and adds to the faults those of a synthetic one.
func (f *labFlags) source() (lab.Source, error) {
	name, synthetic := strings.CutPrefix(f.trace, "synthetic:")
	if !synthetic {
		base := filepath.Base(f.trace)
		return lab.FromFile(f.trace, strings.TrimSuffix(base, filepath.Ext(base)), f.requests)
	}
	source, faults, err := lab.Synthetic(name, f.requests)
	f.Faults = f.Faults.With(faults)
	return source, err
}

func writeLabReport(path string, r *lab.Report) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("lab report: %w", err)
	}
	if err := errors.Join(r.WriteHTML(file), file.Close()); err != nil {
		return fmt.Errorf("lab report: %w", err)
	}
	return nil
}
