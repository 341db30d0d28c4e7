package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/audit/bundle"
	"github.com/sallyport-ai/sallyport/audit/excerpt"
	"github.com/sallyport-ai/sallyport/audit/reconcile"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

func auditVerifyCommand() *cobra.Command {
	var read reads
	var v verification
	cmd := &cobra.Command{
		Use:   "verify (DIR | EXCERPT | BUNDLE | CHECKPOINT | FILE.tlog-proof)... --key FILE",
		Short: "Check every record, batch signature and root of logs against pinned keys",
		Long: "Verify reads log directories without opening them for writing, also while gateways write.\n" +
			"With --relay-log it also holds the relays' own logs of tickets served against the decisions:\n" +
			"it reports each forward without a decision, and each decision whose forward is missing.\n" +
			"With --fleet it verifies every log of a fleet register, and fails if one is missing or silent.\n" +
			"With --witness it asks that others vouch for each: for a log, up to the newest checkpoint that\n" +
			"they cosigned; for a checkpoint, a proof, an excerpt and each gateway's in a bundle, in full. A\n" +
			"register names its own witnesses. Relays' logs have none.\n" +
			"Each batch of a log is signed. In a log of no more than 256 MiB each signature is checked; in a\n" +
			"larger one the last and one in 1024, which vouch for those before them, or, with\n" +
			"--every-signature, each. What was taken out of a log has the signature of a checkpoint alone,\n" +
			"which is always checked.\n" +
			"It exits with 0 if all is well, 1 if not, and 2 if it cannot tell: without the verifier key,\n" +
			"kept elsewhere, a log can only agree with itself.",
		RunE: func(cmd *cobra.Command, args []string) error {
			v.out = cmd.OutOrStdout()
			v.read = func(paths ...string) { read.try(cmd, args, paths...) }
			v.read(append(slices.Clone(args), v.relayDirs...)...)
			return errors.Join(v.run(cmd.Context(), args), v.close())
		},
	}
	v.pins.flag(cmd)
	v.window.flags(cmd)
	v.vouchers.flags(cmd)
	everySignature(cmd, &v.signatures)
	cmd.Flags().StringArrayVar(&v.relayDirs, "relay-log", nil, "log of tickets that a relay served; may be given several times")
	cmd.Flags().StringVar(&v.fleetFile, "fleet", "", "fleet register: every log that there should be, with its key")
	cmd.Flags().StringArrayVar(&v.checkpoints, "checkpoint", nil, "file with a checkpoint that was kept elsewhere, which its log must extend; may be given several times")
	cmd.Flags().Uint64Var(&v.from, "from", 0, "verify only records from this index on, against the published checkpoint")
	cmd.Flags().Uint64Var(&v.to, "to", 0, "and only those before this one")
	cmd.Flags().BoolVar(&v.json, "json", false, "print JSON, one object a line")
	cmd.MarkFlagsMutuallyExclusive("fleet", "witness")
	return cmd
}

// everySignature adds the flag that says which signatures of batches are checked.
func everySignature(cmd *cobra.Command, to *tlog.Signatures) {
	cmd.Flags().BoolFunc("every-signature", "check the signature of each batch of a log, however large it is; =false: of one in 1024, however small", func(text string) error {
		every, err := strconv.ParseBool(text)
		if *to = tlog.SampleSignatures; every {
			*to = tlog.EverySignature
		}
		return err
	})
}

// verification is one `audit verify`.
type verification struct {
	pins        pins
	vouchers    vouchers
	window      window
	relayDirs   []string
	fleetFile   string
	checkpoints []string
	from, to    uint64
	signatures  tlog.Signatures
	json        bool
	out         io.Writer
	read        func(paths ...string) // notes that logs are read

	fleet            *register         // nil: none
	held             map[string][]byte // checkpoints by origin
	extended         map[string]bool   // origins of logs that were held against theirs
	gateways, relays side
	closers          []func() error

	claimed string // the bundle that says of itself which window is meant, which nobody signed

	bad     bool // something is wrong
	unknown bool // something could not be judged
}

// side is the logs of gateways, or those of relays.
type side struct {
	logs      []reconcile.Log // to be held against the other side's
	witnesses tlog.Witnesses  // who have to vouch for them; none: nobody
}

func (v *verification) run(ctx context.Context, args []string) error {
	if len(args) == 0 && v.fleetFile == "" {
		return cannotTell(errors.New("nothing to verify: name logs, or a register with --fleet"))
	}
	if err := v.load(); err != nil {
		return err
	}
	// The gateways' logs are measured before the relays' are read, and held
	// against them afterwards: see reconcile.Log.
	for _, arg := range args {
		if err := v.target(ctx, arg, &v.gateways); err != nil {
			return err
		}
	}
	if v.fleet != nil {
		if err := v.registered(ctx, v.fleet.Gateways, &v.gateways); err != nil {
			return err
		}
	}
	for _, dir := range v.relayDirs {
		if err := v.target(ctx, dir, &v.relays); err != nil {
			return err
		}
	}
	if v.fleet != nil {
		if err := v.registered(ctx, v.fleet.Relays, &v.relays); err != nil {
			return err
		}
	}
	held := len(v.relays.logs) > 0 && !v.bad
	if held {
		report, err := reconcile.Run(v.gateways.logs, v.relays.logs, v.options())
		if err != nil {
			return cannotTell(err)
		}
		if err := v.printReconciled(report); err != nil {
			return err
		}
		if v.claimed != "" && report.Forwards+report.Decisions == 0 && report.Outside > 0 {
			err := v.undecided(missing{v.claimed, "nothing_judged", fmt.Sprintf(
				"0 of %d forwards and decisions are of the time that the bundle says it is of; say yourself of which, with --since, --until or --month", report.Outside)})
			if err != nil {
				return err
			}
		}
	}
	if len(v.relays.logs) > 0 && v.bad && !v.json && !held {
		sayf(v.out, "the two sides were not held against each other: for that every log has to be there, and whole\n")
	}
	if !v.bad {
		if err := v.printUnused(); err != nil {
			return err
		}
	}
	switch {
	case v.bad:
		return &exitError{code: exitBad}
	case v.unknown:
		return &exitError{code: exitCannotTell}
	}
	return nil
}

// load reads what the flags name.
func (v *verification) load() error {
	if err := v.pins.load(); err != nil {
		return err
	}
	if err := v.window.parse(time.Now()); err != nil {
		return err
	}
	v.held, v.extended = make(map[string][]byte), make(map[string]bool)
	for _, file := range v.checkpoints {
		if _, err := v.hold(file); err != nil {
			return err
		}
	}
	var err error
	if v.gateways.witnesses, err = v.vouchers.load(); err != nil {
		return cannotTell(err)
	}
	if v.fleetFile == "" {
		return nil
	}
	if v.fleet, err = loadRegister(v.fleetFile); err != nil {
		return cannotTell(err)
	}
	v.gateways.witnesses = v.fleet.Witnesses
	for _, e := range append(slices.Clone(v.fleet.Gateways), v.fleet.Relays...) {
		v.read(e.Log)
		if err := v.pins.pin(e.VKey); err != nil {
			return cannotTell(err)
		}
		if e.Checkpoint == "" {
			continue
		}
		origin, err := v.hold(e.Checkpoint)
		if err != nil {
			return err
		}
		if origin != e.origin {
			return cannotTell(fmt.Errorf("%s is no checkpoint of %s", e.Checkpoint, e.origin))
		}
	}
	return nil
}

// hold reads a checkpoint that was kept elsewhere, and returns the name of the
// log that it says it is of.
func (v *verification) hold(file string) (origin string, err error) {
	origin, text, err := tlog.ReadCheckpointFile(file)
	if err != nil {
		return "", cannotTell(err)
	}
	if v.held[origin] != nil {
		return "", cannotTell(fmt.Errorf("%s is a second checkpoint of %q: give the newest", file, origin))
	}
	v.held[origin] = text
	return origin, nil
}

// printUnused says which checkpoints no log was held against, as of one that is
// misspelt, or of a log that was given as an excerpt.
func (v *verification) printUnused() error {
	for _, origin := range slices.Sorted(maps.Keys(v.held)) {
		if v.extended[origin] {
			continue
		}
		if err := v.undecided(missing{origin, "checkpoint_unused", "no log of that name was verified whole, to be held against the checkpoint"}); err != nil {
			return err
		}
	}
	return nil
}

func (v *verification) options() reconcile.Options {
	o := reconcile.Options{Since: v.window.since, Until: v.window.until}
	if v.fleet != nil {
		listed := v.fleet.origins()
		o.Listed = func(origin string) bool { return listed[origin] }
	}
	return o
}

func (v *verification) close() error {
	var errs []error
	for _, f := range v.closers {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// target verifies one thing, by what it is, and adds a log to those that are to
// be held against each other.
func (v *verification) target(ctx context.Context, path string, to *side) error {
	info, err := os.Stat(path)
	switch {
	case strings.HasSuffix(path, proofSuffix):
		return v.proof(path, to)
	case excerpt.Is(path):
		return v.excerpt(path, path, 0, to)
	case bundle.Is(path):
		return v.bundle(ctx, path)
	case err == nil && info.Mode().IsRegular():
		return v.checkpoint(path, to)
	case v.from > 0 || v.to > 0:
		return v.part(path, to)
	}
	report, err := v.log(path, to)
	if err != nil {
		return err
	}
	to.logs = append(to.logs, reconcile.Log{Origin: report.Origin, Records: tlog.Read(path, 0), Size: report.TreeSize})
	if err := v.printReport(report); err != nil || !report.OK() || v.held[report.Origin] != nil {
		return err
	}
	// Who removes it can cut the log back, even without its key.
	if _, _, err := tlog.Published(path); errors.Is(err, tlog.ErrNotFound) {
		return v.undecided(missing{report.Origin, "checkpoint_missing", "a log has one a second after its first record; without it nothing says how far this one had got"})
	}
	return nil
}

// verified is what became of a log directory.
type verified struct {
	tlog.Report
	Seconds float64 `json:"seconds"` // that it took
}

// log verifies a log directory.
func (v *verification) log(dir string, of *side) (report verified, err error) {
	key, err := v.pins.of(dir)
	if err != nil {
		return report, err
	}
	o := tlog.VerifyOptions{Checkpoint: v.held[key.Name()], Signatures: v.signatures, Witnesses: of.witnesses}
	start := time.Now()
	if report.Report, err = tlog.Verify(dir, key, o); err != nil {
		return report, cannotTell(err)
	}
	report.Seconds = time.Since(start).Seconds()
	v.extended[key.Name()] = true
	v.bad = v.bad || !report.OK()
	return report, nil
}
