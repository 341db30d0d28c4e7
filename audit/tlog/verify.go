package tlog

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/mod/sumdb/note"

	"github.com/sallyport-ai/sallyport/audit"
)

// VerifyOptions add to what [Verify] checks.
type VerifyOptions struct {
	// Checkpoint is a signed checkpoint of the log that was kept elsewhere.
	// The log must extend it; without one, a log that was cut back together
	// with its own checkpoint file looks whole.
	Checkpoint []byte
	// Witnesses, if it lists any, must have cosigned, by its quorum, a
	// checkpoint that the log extends: the held one, or else the one that is
	// kept with the log.
	Witnesses Witnesses
}

// Report is what [Verify] found. With an empty Code the log is whole up to
// TreeSize.
type Report struct {
	Origin   string `json:"origin"`
	Records  uint64 `json:"records"`   // read
	TreeSize uint64 `json:"tree_size"` // of the last verified batch
	RootHex  string `json:"root"`

	Code     Code   `json:"code,omitempty"`
	FirstBad int64  `json:"first_bad"` // index of the damaged or nearest record, -1 if none
	Detail   string `json:"detail,omitempty"`

	Boots      int      `json:"boots"`
	Decisions  int      `json:"decisions"`
	Outcomes   int      `json:"outcomes"`
	Unresolved int      `json:"unresolved"` // allowed decisions without an outcome
	Batches    int      `json:"batches"`
	Segments   int      `json:"segments"`
	Anchored   uint64   `json:"anchored,omitempty"`  // records that witnesses vouch for, of those asked for
	Witnesses  []string `json:"witnesses,omitempty"` // who did
	Live       bool     `json:"live"`                // being written to: an unfinished batch at the end was passed over
}

// OK says whether no fault was found.
func (r *Report) OK() bool { return r.Code == "" }

// Verify checks a log directory against a pinned key: every frame's CRC, place
// and chain, every trailer's count, root and signature, that segments follow
// each other, and the checkpoint file. It opens nothing for writing and may
// run while another process appends.
//
// The error says that no answer can be given; without a key it is [ErrNoKey].
// Damage is in the report.
func Verify(dir string, key note.Verifier, opts VerifyOptions) (Report, error) {
	report := Report{FirstBad: -1}
	if key == nil {
		return report, ErrNoKey
	}
	report.Origin = key.Name()
	if _, err := os.Stat(filepath.Join(dir, walDir)); err != nil {
		return report, fmt.Errorf("verify log: %w", err)
	}
	v := &verifier{dir: dir, key: key, report: &report}
	err := v.run(opts)
	var fault *Fault
	if errors.As(err, &fault) {
		report.Code, report.Detail, report.FirstBad = fault.Code, fault.Error(), int64(fault.Index)
		return report, nil
	}
	return report, err
}

// verifier is one run of Verify.
type verifier struct {
	dir    string
	key    note.Verifier
	report *Report
	open   openDecisions
	sum    summarizer

	pending []*batch // batches whose signature is still to be checked
}

// run returns a *[Fault] for damage.
func (v *verifier) run(opts VerifyOptions) error {
	// The checkpoint is read first: it must not be newer than the segments.
	own, err := readCheckpoint(v.dir, v.key)
	if err != nil {
		return err
	}
	var held checkpoint
	if opts.Checkpoint != nil {
		if held, err = parseCheckpoint(opts.Checkpoint, v.key); err != nil {
			return err
		}
	}
	anchored, err := v.anchored(opts, held)
	if err != nil {
		return err
	}
	segs, err := listSegments(v.dir)
	if err != nil {
		return err
	}
	v.report.Segments = len(segs)
	if err := v.walk(segs, own, held, anchored); err != nil {
		return err
	}
	v.report.Unresolved = len(v.open.open)
	return nil
}

// anchored finds the checkpoint that the witnesses vouch for.
func (v *verifier) anchored(opts VerifyOptions, held checkpoint) (cp checkpoint, err error) {
	if len(opts.Witnesses.List) == 0 {
		return checkpoint{}, nil
	}
	if opts.Checkpoint != nil {
		list, err := opts.Witnesses.open()
		if err != nil {
			return checkpoint{}, err
		}
		open := func([]byte) (checkpoint, error) { return held, nil }
		cp, v.report.Witnesses, err = checkCosigned(opts.Checkpoint, list, opts.Witnesses.quorum(), open)
		v.report.Anchored = cp.size
		return cp, err
	}
	open := func(text []byte) (checkpoint, error) { return parseCheckpoint(text, v.key) }
	cp, v.report.Witnesses, err = anchoredCheckpoint(v.dir, opts.Witnesses, open)
	v.report.Anchored = cp.size
	return cp, err
}

// walk checks all batches, in order. Signatures are checked many at a time;
// an earlier bad one comes before a later fault of another kind.
func (v *verifier) walk(segs []int, at ...checkpoint) error {
	w := walk(v.dir, segs, v.key.Name())
	w.deep = true
	defer w.Close()
	c := checker{key: v.key, at: at}
	for {
		b, err := w.batch()
		if err == nil {
			err = c.check(w.cur.header, b)
		}
		if err != nil {
			if sigErr := v.signatures(); sigErr != nil {
				return sigErr
			}
			if err := v.end(err); err != nil {
				return err
			}
			return c.end()
		}
		if v.pending = append(v.pending, b); len(v.pending) >= signatureRun {
			if err := v.signatures(); err != nil {
				return err
			}
		}
		v.count(b)
	}
}

// end passes over what a process that is writing has not finished.
func (v *verifier) end(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	live, liveErr := isLive(v.dir)
	if liveErr != nil {
		return liveErr
	}
	if v.report.Live = live; live && isTorn(err) {
		return nil
	}
	return err
}

// count looks at what the records of a batch are. A record that cannot be read
// is not damage: what is signed is its bytes.
func (v *verifier) count(b *batch) {
	v.report.Batches++
	v.report.Records += uint64(len(b.leaves))
	for _, leaf := range b.leaves {
		s, err := v.sum.read(leaf)
		if err != nil {
			continue
		}
		switch s.Kind {
		case audit.KindBoot:
			v.report.Boots++
		case audit.KindDecision:
			v.report.Decisions++
		case audit.KindOutcome:
			v.report.Outcomes++
		}
		v.open.see(s)
	}
}

// signatureRun is how many signatures are checked together.
const signatureRun = 4096

// signatures checks the pending batches, on all processors.
func (v *verifier) signatures() error {
	workers := runtime.GOMAXPROCS(0)
	bad := make([]int, workers) // the first bad one that each worker has seen
	var wg sync.WaitGroup
	for worker := range workers {
		bad[worker] = len(v.pending)
		wg.Go(func() {
			for i := worker; i < len(v.pending); i += workers {
				if !signedBy(v.key, v.pending[i]) {
					bad[worker] = i
					return
				}
			}
		})
	}
	wg.Wait()
	first := len(v.pending)
	for _, i := range bad {
		first = min(first, i)
	}
	if first < len(v.pending) {
		return v.pending[first].fault(BadSignature, "not signed by the pinned key of %s", v.key.Name())
	}
	if n := len(v.pending); n > 0 {
		t := v.pending[n-1].trailer
		v.report.TreeSize, v.report.RootHex = t.size, fmt.Sprintf("%x", t.root[:])
	}
	v.pending = v.pending[:0]
	return nil
}
