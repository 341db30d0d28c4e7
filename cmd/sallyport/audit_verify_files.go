package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sallyport-ai/sallyport/audit/bundle"
	"github.com/sallyport-ai/sallyport/audit/durable"
	"github.com/sallyport-ai/sallyport/audit/excerpt"
	"github.com/sallyport-ai/sallyport/audit/reconcile"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/policy"
)

// part verifies a range of a log directory as if it had been exported.
func (v *verification) part(dir string, of *side) error {
	o := excerpt.Options{From: v.from, To: v.to}
	if o.To == 0 {
		_, tree, err := tlog.Published(dir)
		if err != nil {
			return cannotTell(err)
		}
		o.To = uint64(tree.N)
	}
	checkpoint, _, err := tlog.Covering(dir, o.To)
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
		_, err := excerpt.Write(w, dir, o)
		_ = w.CloseWithError(err) // always nil
	}()
	report, err := excerpt.Verify(r, key)
	if err := errors.Join(err, r.Close()); err != nil {
		return cannotTell(err)
	}
	return v.judgeExcerpt(dir, report, of)
}

// excerpt verifies part of a log in a file. One that is selected says nothing
// about what is not in it, so it is held against nothing. The name is what users know it by.
func (v *verification) excerpt(path, name string, size uint64, to *side) error {
	origin, checkpoint, _ := excerpt.Of(path)
	key, err := v.pins.signer(origin, checkpoint)
	if err != nil {
		return err
	}
	f, err := durable.OpenRegular(path)
	if err != nil {
		return cannotTell(err)
	}
	report, err := excerpt.Verify(f, key)
	if err := errors.Join(err, f.Close()); err != nil {
		return cannotTell(err)
	}
	if !report.Selected {
		to.logs = append(to.logs, reconcile.Log{Origin: report.Origin, Records: excerpt.Read(path), Size: size})
	}
	return v.judgeExcerpt(name, report, to)
}

// judgeExcerpt asks for the witnesses of an excerpt, if it is whole.
func (v *verification) judgeExcerpt(name string, report excerpt.Report, of *side) (err error) {
	r := verifiedExcerpt{Report: report}
	if report.OK() {
		r.Witnesses, r.Code, r.Detail, err = of.vouch(report.Checkpoint)
		if err != nil {
			return cannotTell(err)
		}
	}
	v.bad = v.bad || !r.OK()
	return v.printExcerpt(name, r)
}

// vouch returns the witnesses that have cosigned a checkpoint. With a code they
// are too few.
func (s *side) vouch(checkpoint []byte) (by []string, code tlog.Code, detail string, err error) {
	if len(s.witnesses.List) == 0 {
		return nil, "", "", nil
	}
	by, err = s.witnesses.Vouch(checkpoint)
	var fault *tlog.Fault
	if errors.As(err, &fault) {
		return by, fault.Code, fault.Detail, nil
	}
	return by, "", "", err
}

// checkpointResult is what verifying a checkpoint alone prints.
type checkpointResult struct {
	Checkpoint string   `json:"checkpoint"`
	Origin     string   `json:"origin"`
	TreeSize   uint64   `json:"tree_size"`
	RootHex    string   `json:"root"`
	Witnesses  []string `json:"witnesses,omitempty"`

	Code   tlog.Code `json:"code,omitempty"`
	Detail string    `json:"detail,omitempty"`
}

// checkpoint verifies who signed a checkpoint in a file.
func (v *verification) checkpoint(path string, of *side) error {
	origin, text, err := tlog.ReadCheckpointFile(path)
	if err != nil {
		return cannotTell(fmt.Errorf("%w; nor is it the directory of a log, an excerpt, a bundle or a %s file", err, proofSuffix))
	}
	key, err := v.pins.signer(origin, text)
	if err != nil {
		return err
	}
	r := checkpointResult{Checkpoint: path, Origin: origin}
	tree, err := tlog.OpenCheckpoint(text, key)
	var fault *tlog.Fault
	switch {
	case errors.As(err, &fault):
		r.Code, r.Detail = fault.Code, fault.Detail
	case err != nil:
		return cannotTell(err)
	default:
		r.TreeSize, r.RootHex = uint64(tree.N), fmt.Sprintf("%x", tree.Hash[:])
		if r.Witnesses, r.Code, r.Detail, err = of.vouch(text); err != nil {
			return cannotTell(err)
		}
	}
	v.bad = v.bad || r.Code != ""
	return v.printCheckpoint(r)
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
		return v.print(map[string]string{"bundle": path, "detail": err.Error()}, func() { v.sayDamaged(err) })
	}
	if err != nil {
		return cannotTell(err)
	}
	if v.window == (window{}) { // else what is asked for counts
		v.window.sinceText, v.window.untilText = b.About["since"], b.About["until"]
		if err := v.window.parse(time.Now()); err != nil {
			return err
		}
		if v.window != (window{}) {
			v.claimed = path
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
		to     *side
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

// sayDamaged says what is wrong with a bundle, each fault on a line.
func (v *verification) sayDamaged(err error) {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		sayf(v.out, "DAMAGED: %s\n", line)
	}
}

// archived checks that an archived policy is what its name says.
func (v *verification) archived(ctx context.Context, path string) error {
	digest := strings.TrimSuffix(filepath.Base(path), ".tar.gz")
	_, err := policy.LoadArchived(ctx, filepath.Dir(path), digest, policy.Config{Timeout: evaluationTime})
	v.bad = v.bad || err != nil
	return v.print(map[string]any{"policy": digest, "ok": err == nil}, func() {
		if err != nil {
			sayf(v.out, "DAMAGED: policy %s: %v\n", digest, err)
			return
		}
		sayf(v.out, "policy %s is the one that the records name\n", digest)
	})
}
