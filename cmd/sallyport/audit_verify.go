package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sallyport-ai/sallyport/audit/bundle"
	"github.com/sallyport-ai/sallyport/audit/excerpt"
	"github.com/sallyport-ai/sallyport/audit/reconcile"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/policy"
)

func auditVerifyCommand() *cobra.Command {
	var read reads
	var v verification
	cmd := &cobra.Command{
		Use:   "verify (DIR | EXCERPT | BUNDLE | FILE.tlog-proof)... --key FILE",
		Short: "Check every record, batch signature and root of logs against pinned keys",
		Long: "Verify reads log directories without opening them for writing, also while gateways write.\n" +
			"With --relay-log it also holds the relays' own logs of tickets served against the decisions:\n" +
			"it reports each forward without a decision, and each decision whose forward is missing.\n" +
			"With --fleet it verifies every log of a fleet register, and fails if one is missing or silent.\n" +
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
	everySignature(cmd, &v.signatures)
	cmd.Flags().StringArrayVar(&v.relayDirs, "relay-log", nil, "log of tickets that a relay served; may be given several times")
	cmd.Flags().StringVar(&v.fleetFile, "fleet", "", "fleet register: every log that there should be, with its key")
	cmd.Flags().StringArrayVar(&v.checkpoints, "checkpoint", nil, "file with a checkpoint that was kept elsewhere, which its log must extend; may be given several times")
	cmd.Flags().Uint64Var(&v.from, "from", 0, "verify only records from this index on, against the published checkpoint")
	cmd.Flags().Uint64Var(&v.to, "to", 0, "and only those before this one")
	cmd.Flags().BoolVar(&v.json, "json", false, "print JSON, one object a line")
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
	gateways, relays []reconcile.Log
	closers          []func() error

	bad     bool // something is wrong
	unknown bool // something could not be judged
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
	if len(v.relays) > 0 && !v.bad {
		report, err := reconcile.Run(v.gateways, v.relays, v.options())
		if err != nil {
			return cannotTell(err)
		}
		if err := v.printReconciled(report); err != nil {
			return err
		}
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
	if v.fleetFile == "" {
		return nil
	}
	var err error
	if v.fleet, err = loadRegister(v.fleetFile); err != nil {
		return cannotTell(err)
	}
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
	text, err := os.ReadFile(file)
	if err != nil {
		return "", cannotTell(fmt.Errorf("read held checkpoint: %w", err))
	}
	origin, _, _ = strings.Cut(string(text), "\n")
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
func (v *verification) target(ctx context.Context, path string, to *[]reconcile.Log) error {
	switch {
	case strings.HasSuffix(path, proofSuffix):
		return v.proof(path)
	case excerpt.Is(path):
		return v.excerpt(path, path, 0, to)
	case bundle.Is(path):
		return v.bundle(ctx, path)
	}
	if v.from > 0 || v.to > 0 {
		return v.part(path)
	}
	report, err := v.log(path)
	if err != nil {
		return err
	}
	*to = append(*to, reconcile.Log{Origin: report.Origin, Records: tlog.Read(path, 0), Size: report.TreeSize})
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
func (v *verification) log(dir string) (report verified, err error) {
	key, err := v.pins.of(dir)
	if err != nil {
		return report, err
	}
	o := tlog.VerifyOptions{Checkpoint: v.held[key.Name()], Signatures: v.signatures}
	if v.fleet != nil && slices.ContainsFunc(v.fleet.Gateways, func(e registered) bool { return e.origin == key.Name() }) {
		o.Witnesses = v.fleet.Witnesses
	}
	start := time.Now()
	if report.Report, err = tlog.Verify(dir, key, o); err != nil {
		return report, cannotTell(err)
	}
	report.Seconds = time.Since(start).Seconds()
	v.extended[key.Name()] = true
	v.bad = v.bad || !report.OK()
	return report, nil
}

// part verifies a range of a log directory as if it had been exported.
func (v *verification) part(dir string) error {
	checkpoint, _, err := tlog.Published(dir)
	if err != nil {
		return cannotTell(err)
	}
	origin, err := tlog.Origin(dir)
	if err != nil {
		return cannotTell(err)
	}
	key, err := v.pins.signer(origin, checkpoint)
	if err != nil {
		return err
	}
	r, w := io.Pipe()
	go func() {
		_, err := excerpt.Write(w, dir, excerpt.Options{From: v.from, To: v.to})
		_ = w.CloseWithError(err) // always nil
	}()
	report, err := excerpt.Verify(r, key)
	if err := errors.Join(err, r.Close()); err != nil {
		return cannotTell(err)
	}
	v.bad = v.bad || !report.OK()
	return v.printExcerpt(dir, report)
}

// excerpt verifies part of a log in a file. One that is selected says nothing
// about what is not in it, so it is held against nothing. The name is what users know it by.
func (v *verification) excerpt(path, name string, size uint64, to *[]reconcile.Log) error {
	origin, checkpoint, _ := excerpt.Of(path)
	key, err := v.pins.signer(origin, checkpoint)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return cannotTell(err)
	}
	report, err := excerpt.Verify(f, key)
	if err := errors.Join(err, f.Close()); err != nil {
		return cannotTell(err)
	}
	v.bad = v.bad || !report.OK()
	if !report.Selected {
		*to = append(*to, reconcile.Log{Origin: report.Origin, Records: excerpt.Read(path), Size: size})
	}
	return v.printExcerpt(name, report)
}

func (v *verification) printExcerpt(name string, report excerpt.Report) error {
	return v.print(report, func() {
		switch {
		case !report.OK():
			fmt.Fprintf(v.out, "DAMAGED: %s: %s: %s\n", name, report.Code, report.Detail)
		case report.Selected:
			fmt.Fprintf(v.out, "in the log: %d records of %s, selected from %d to %d of %d, root %s\n", report.Records, report.Origin, report.From, report.To, report.TreeSize, report.RootHex)
		default:
			fmt.Fprintf(v.out, "whole: records %d to %d of %d of %s, root %s\n", report.From, report.To, report.TreeSize, report.Origin, report.RootHex)
		}
	})
}

// bundle verifies everything in a bundle.
func (v *verification) bundle(ctx context.Context, path string) error {
	scratch, err := os.MkdirTemp("", "sallyport-bundle-")
	if err != nil {
		return cannotTell(err)
	}
	v.closers = append(v.closers, func() error { return os.RemoveAll(scratch) }) // after the logs in it have been held against each other
	b, err := bundle.Open(path, scratch)
	if errors.Is(err, bundle.ErrDamaged) {
		v.bad = true
		return v.print(map[string]string{"bundle": path, "detail": err.Error()}, func() { fmt.Fprintf(v.out, "DAMAGED: %v\n", err) })
	}
	if err != nil {
		return cannotTell(err)
	}
	if v.window == (window{}) { // else what is asked for counts
		v.window.sinceText, v.window.untilText = b.About["since"], b.About["until"]
		if err := v.window.parse(time.Now()); err != nil {
			return err
		}
		// Nobody signed that, so it is said.
		since, until := v.window.sinceText, v.window.untilText
		if err := v.print(map[string]string{"bundle": path, "since": since, "until": until}, func() {
			sayf(v.out, "judged as %s says of itself: since %q, until %q\n", path, since, until)
		}); err != nil {
			return err
		}
	}
	for _, in := range []struct {
		folder string
		to     *[]reconcile.Log
	}{{bundleLogs, &v.gateways}, {bundleRelays, &v.relays}} {
		for _, name := range b.Under(in.folder) {
			size, _ := strconv.ParseUint(b.About[sizeOf(name)], 10, 64) // of a relay's log there is none
			if err := v.excerpt(b.Path(name), path+": "+name, size, in.to); err != nil {
				return err
			}
		}
	}
	for _, name := range b.Under(bundlePolicies) {
		if err := v.archived(ctx, b.Path(name)); err != nil {
			return err
		}
	}
	return nil
}

// archived checks that an archived policy is what its name says.
func (v *verification) archived(ctx context.Context, path string) error {
	digest := strings.TrimSuffix(filepath.Base(path), ".tar.gz")
	_, err := policy.LoadArchived(ctx, filepath.Dir(path), digest, policy.Config{Timeout: evaluationTime})
	v.bad = v.bad || err != nil
	return v.print(map[string]any{"policy": digest, "ok": err == nil}, func() {
		if err != nil {
			fmt.Fprintf(v.out, "DAMAGED: policy %s: %v\n", digest, err)
			return
		}
		fmt.Fprintf(v.out, "policy %s is the one that the records name\n", digest)
	})
}

// print prints a result as JSON or in words.
func (v *verification) print(result any, words func()) error {
	if v.json {
		return json.NewEncoder(v.out).Encode(result)
	}
	words()
	return nil
}

func (v *verification) printReport(r verified) error {
	return v.print(r, func() {
		if !r.OK() {
			fmt.Fprintf(v.out, "DAMAGED: %s\n", r.Detail)
			fmt.Fprintf(v.out, "whole up to %d records of %s\n", r.TreeSize, r.Origin)
			return
		}
		fmt.Fprintf(v.out, "whole: %d records of %s, root %s\n", r.TreeSize, r.Origin, r.RootHex)
		if r.Decisions+r.Outcomes > 0 {
			fmt.Fprintf(v.out, "%d decisions, %d outcomes (a refusal has none), %d allowed decisions without an outcome yet, %d starts\n", r.Decisions, r.Outcomes, r.Unresolved, r.Boots)
		}
		for _, by := range r.Cosigned {
			if wrong := by.String(); wrong != "" {
				sayf(v.out, "clock: %s\n", wrong)
			}
		}
		for _, how := range r.Exposed {
			sayf(v.out, "exposed: %s\n", how)
		}
		fmt.Fprintf(v.out, "%d of %d batch signatures checked; %.0f records a second\n", r.Signatures, r.Batches, float64(r.Records)/r.Seconds)
	})
}

// printReconciled says what the two sides say of each other.
func (v *verification) printReconciled(r *reconcile.Report) error {
	v.bad, v.unknown = v.bad || !r.OK(), v.unknown || !r.Decided()
	if v.json {
		return json.NewEncoder(v.out).Encode(struct {
			Reconciled *reconcile.Report `json:"reconciled"`
		}{r})
	}
	fmt.Fprintf(v.out, "%d forwards and %d decisions held against each other: %d agree, %d decisions reached no relay and did not have to\n",
		r.Forwards, r.Decisions, r.Matched, r.Unseen)
	for _, part := range []struct {
		word   string
		counts map[reconcile.Code]int
	}{{"WRONG", r.Faults}, {"undecided", r.Undecided}} {
		for _, code := range slices.Sorted(maps.Keys(part.counts)) {
			fmt.Fprintf(v.out, "%s: %d %s\n", part.word, part.counts[code], code)
		}
	}
	return printFindings(v.out, r.Findings)
}

func printFindings(w io.Writer, findings []reconcile.Finding) error {
	if len(findings) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CODE\tTIME\tLOG\tINDEX\tID\tATTEMPT\tREPLICA\tDETAIL")
	for _, f := range findings {
		sayf(t, "%s\t%s\t%s\t%d\t%s\t%d\t%s\t%s\n", f.Code, f.Time.Format(timeFormat), f.Log, f.Index, f.ID, f.Attempt, f.Replica, f.Detail)
	}
	return t.Flush()
}
