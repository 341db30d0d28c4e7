package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/spf13/cobra"
	xtlog "golang.org/x/mod/sumdb/tlog"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/bundle"
	"github.com/sallyport-ai/sallyport/audit/excerpt"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/policy"
)

// Folders of a bundle.
const (
	bundleLogs     = "logs"
	bundleRelays   = "relays"
	bundlePolicies = "policy"
	bundleKeys     = "keys.txt"
)

func auditBundleCommand() *cobra.Command {
	var read reads
	var b bundler
	cmd := &cobra.Command{
		Use:   "bundle DIR... --out PATH",
		Short: "Pack the records of a time, with what it takes to judge them, for an auditor",
		Long: "Bundle packs an excerpt of each log for a time, of each relay's log as well, and the policies\n" +
			"that their records name. `sallyport audit verify PATH --key FILE` checks all of it.\n" +
			"If PATH ends with .tar it is one file, else a directory. The keys that are packed are for\n" +
			"reference: whoever verifies has to have them from elsewhere.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if b.out == "" {
				return errors.New("--out is required")
			}
			if err := b.pins.load(); err != nil {
				return err
			}
			if err := b.window.parse(time.Now()); err != nil {
				return err
			}
			if err := read.note(cmd, args, append(slices.Clone(args), b.relays...)...); err != nil {
				return err
			}
			n, err := b.make(args)
			if err != nil {
				return err
			}
			for _, path := range b.absent {
				fmt.Fprintf(cmd.ErrOrStderr(), "sallyport: records name the policy %s, which is not there: it is not packed, and their decisions cannot be made again\n", path)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d records in %s\n", n, b.out)
			return nil
		},
	}
	read.flag(cmd)
	b.pins.flag(cmd)
	b.window.flags(cmd)
	cmd.Flags().StringArrayVar(&b.relays, "relay-log", nil, "log of tickets that a relay served; may be given several times")
	cmd.Flags().StringVar(&b.out, "out", "", "directory or .tar file to make")
	return cmd
}

// bundler is one `audit bundle`.
type bundler struct {
	pins   pins
	window window
	relays []string
	out    string

	w       *bundle.Writer
	packed  map[string]bool // digests of policies
	absent  []string        // paths of policies that could not be
	records uint64
}

func (b *bundler) make(logs []string) (records uint64, err error) {
	dir := b.out
	if strings.HasSuffix(b.out, ".tar") {
		scratch, err := os.MkdirTemp(filepath.Dir(b.out), ".bundle-")
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
		dir = filepath.Join(scratch, "bundle")
	}
	about := make(map[string]string)
	for name, at := range map[string]time.Time{"since": b.window.since, "until": b.window.until} {
		if !at.IsZero() {
			about[name] = at.Format(time.RFC3339Nano)
		}
	}
	if b.w, err = bundle.Create(dir, "sallyport "+build(), about); err != nil {
		return 0, err
	}
	// What the gateways answered up to here, the relays' logs hold by the time
	// that they are packed; and what these hold, the gateways' do then.
	for i, log := range logs {
		size, err := sizeNow(log)
		if err != nil {
			return 0, err
		}
		about[sizeOf(logName(i))] = strconv.FormatUint(size, 10)
	}
	for i, log := range b.relays {
		if err := b.log(fmt.Sprintf("%s/%d.jsonl", bundleRelays, i), log); err != nil {
			return 0, err
		}
	}
	for i, log := range logs {
		if err := b.log(logName(i), log); err != nil {
			return 0, err
		}
		if err := b.policies(log, filepath.Join(dir, filepath.FromSlash(logName(i)))); err != nil {
			return 0, err
		}
	}
	if err := b.keys(); err != nil {
		return 0, err
	}
	if err := b.w.Close(); err != nil {
		return 0, err
	}
	if dir == b.out {
		return b.records, nil
	}
	return b.records, createFile(b.out, func(w io.Writer) error { return bundle.Tar(w, dir) })
}

// bundleMargin is how much before and after the time asked for is packed as
// well: a request that was decided before it may have been forwarded in it.
const bundleMargin = 15 * time.Minute

func logName(i int) string { return fmt.Sprintf("%s/%d.jsonl", bundleLogs, i) }

// sizeOf is under which name the manifest says how many records a log had
// before the relays' logs were packed.
func sizeOf(name string) string { return "size of " + name }

// sizeNow is how many records a log has, published or not.
func sizeNow(dir string) (uint64, error) {
	_, tree, err := tlog.Published(dir)
	if err != nil {
		return 0, err
	}
	size := uint64(tree.N)
	for e, err := range tlog.Read(dir, size) {
		if err != nil {
			return 0, err
		}
		size = e.Index + 1
	}
	return size, nil
}

// publishTime is how long to wait for a log to publish what it holds, many times
// as long as it takes one, and anchorTime for its witnesses, which may be down.
const (
	publishTime = 15 * time.Second
	anchorTime  = 3 * time.Second
)

// published waits until a checkpoint covers all that a log holds now, one that
// its witnesses cosigned if they do in time. It returns how much that is.
func published(dir string) (size uint64, err error) {
	if size, err = sizeNow(dir); err != nil {
		return 0, err
	}
	covers := func(checkpoint func(string) ([]byte, xtlog.Tree, error), within time.Duration) (bool, error) {
		for end := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
			_, tree, err := checkpoint(dir)
			if err != nil || uint64(tree.N) >= size {
				return err == nil, err
			}
			if time.Now().After(end) {
				return false, nil
			}
		}
	}
	if ok, err := covers(tlog.Published, publishTime); err != nil || !ok {
		return 0, cmp.Or(err, fmt.Errorf("%s: its checkpoint does not cover %d records, and is not renewed", dir, size))
	}
	if _, err := covers(tlog.Anchored, anchorTime); err != nil && !errors.Is(err, tlog.ErrNotFound) {
		return 0, err
	}
	return size, nil
}

// log packs one log, all of it or that of a time.
func (b *bundler) log(name, dir string) error {
	size, err := published(dir)
	if err != nil {
		return err
	}
	o := excerpt.Options{To: size}
	if !b.window.since.IsZero() || !b.window.until.IsZero() {
		since, until := b.window.since, b.window.until
		if !since.IsZero() {
			since = since.Add(-bundleMargin)
		}
		if !until.IsZero() {
			until = until.Add(bundleMargin)
		}
		if o, err = between(dir, o, since, until); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	return b.w.Add(name, func(w io.Writer) error {
		n, err := excerpt.Write(w, dir, o)
		b.records += n
		return err
	})
}

// policies packs the bundles that the records of an excerpt name. One that is
// not there any more is not: explaining a decision says so.
func (b *bundler) policies(dir, packed string) error {
	if b.packed == nil {
		b.packed = make(map[string]bool)
	}
	digests := make(map[string]bool)
	for e, err := range excerpt.Read(packed) {
		if err != nil {
			return err
		}
		var r struct {
			Policy audit.Policy `json:"policy"`
		}
		if err := jsonv2.Unmarshal(e.Leaf, &r); err != nil {
			return fmt.Errorf("record %d: %w", e.Index, err)
		}
		if d := r.Policy.Digest; d != "" && !b.packed[d] {
			digests[d] = true
		}
	}
	for _, digest := range slices.Sorted(maps.Keys(digests)) {
		path, err := policy.Archived(policyArchive(dir), digest)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			b.absent = append(b.absent, path)
			continue
		}
		if err != nil {
			return err
		}
		b.packed[digest] = true
		name := bundlePolicies + "/" + filepath.Base(path)
		if err := b.w.Add(name, func(w io.Writer) error { _, err := w.Write(text); return err }); err != nil {
			return err
		}
	}
	return nil
}

func (b *bundler) keys() error {
	if len(b.pins.lines) == 0 {
		return nil
	}
	return b.w.Add(bundleKeys, func(w io.Writer) error {
		_, err := io.WriteString(w, "# For reference. Verify with keys that you have from elsewhere.\n"+strings.Join(b.pins.lines, "\n")+"\n")
		return err
	})
}
