package tlog

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

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
	// Signatures says of which batches they are checked.
	Signatures Signatures
}

// Signatures is of which batches they are checked. Through the chain each
// vouches for all before it, signatures included: so the last is enough to show
// that whoever holds the key stands by the whole log, and all of them that it
// was written by the key batch for batch, as a log is.
type Signatures int

// Which signatures are checked.
const (
	SignaturesBySize Signatures = iota // all of them if the log takes no more than 256 MiB, else as SampleSignatures
	SampleSignatures                   // one in 1024, and the last
	EverySignature
)

// smallBytes is up to which size, in bytes, the signatures of a log are few enough
// to be checked each: even if each batch has one short record they take seconds.
const smallBytes = 256 << 20

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

	Boots      int        `json:"boots"`
	Decisions  int        `json:"decisions"`
	Outcomes   int        `json:"outcomes"`
	Unresolved int        `json:"unresolved"` // allowed decisions without an outcome
	Batches    int        `json:"batches"`
	Signatures int        `json:"signatures"` // of batches, that were checked
	Segments   int        `json:"segments"`
	Pruned     uint64     `json:"pruned,omitempty"`          // records below this were destroyed, as a record says; their hashes remain
	Rotations  int        `json:"rotations,omitempty"`       // of the signing key
	Backwards  int        `json:"clock_backwards,omitempty"` // batches whose time is before the one before: records are ordered by index, never by time
	Gaps       int        `json:"gaps,omitempty"`            // gap records: what the log says that it cannot show
	Anchored   uint64     `json:"anchored,omitempty"`        // records that witnesses vouch for, of those asked for
	Witnesses  []string   `json:"witnesses,omitempty"`       // who did
	Cosigned   []Cosigned `json:"cosigned,omitempty"`        // and when, by their own clocks
	Exposed    []string   `json:"exposed,omitempty"`         // files that others than their owner can change, and how
	Sealed     uint64     `json:"sealed,omitempty"`          // records at the end that are sealed and not signed, and so not verified
	Live       bool       `json:"live"`                      // being written to: an unfinished batch at the end was passed over
}

// OK says whether no fault was found.
func (r *Report) OK() bool { return r.Code == "" }

// Verify checks a log directory against a pinned key: every frame's CRC, place
// and chain, every trailer's count and root, the signatures, that segments
// follow each other, and the checkpoint file. The pinned key may be any that
// signed the log: from one to the next lead rotations that both signed. Verify
// opens nothing for writing and may run while another process appends.
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
		if _, _, lost := Published(dir); lost != nil { // else a checkpoint says what is gone
			return report, fmt.Errorf("verify log: %w", err)
		}
	}
	report.Exposed = exposure(dir)
	v := &verifier{dir: dir, key: key, report: &report, every: opts.Signatures == EverySignature}
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
	dir      string
	key      note.Verifier
	every    bool
	report   *Report
	open     openDecisions
	sum      summarizer
	cosigned cosignTimes
	wall     int64 // of the last batch, in µs since the Unix epoch

	pending  []*batch // batches whose signature is still to be checked
	checking []*batch // those before, whose signatures are being checked meanwhile
	checked  chan int // gets the index of the first bad one of them, or their number; nil: none are
}

// run returns a *[Fault] for damage.
func (v *verifier) run(opts VerifyOptions) error {
	// The checkpoints are read first: they must not be newer than the segments.
	own, err := readCheckpoint(v.dir, v.key)
	if err != nil {
		return err
	}
	at := []heldCheckpoint{own}
	if opts.Checkpoint != nil {
		held, err := openCheckpoint(opts.Checkpoint, v.key)
		if err != nil {
			return err
		}
		at = append(at, held)
	}
	if len(opts.Witnesses.List) > 0 {
		anchored, err := v.anchored(opts)
		if err != nil {
			return err
		}
		at = append(at, anchored)
	}
	if err := regularSegments(v.dir); err != nil {
		return err
	}
	segs, err := listSegments(v.dir)
	if err != nil {
		return err
	}
	v.report.Segments = len(segs)
	if opts.Signatures == SignaturesBySize {
		if v.every, err = isSmall(v.dir, segs); err != nil {
			return err
		}
	}
	if err := v.walk(segs, at); err != nil {
		return err
	}
	v.report.Unresolved = len(v.open.open)
	return nil
}

// anchored finds the checkpoint that the witnesses vouch for.
func (v *verifier) anchored(opts VerifyOptions) (heldCheckpoint, error) {
	text := opts.Checkpoint
	if text == nil {
		var err error
		text, err = os.ReadFile(filepath.Join(v.dir, anchoredFile))
		if errors.Is(err, fs.ErrNotExist) {
			return heldCheckpoint{}, &Fault{Code: NotAnchored, Detail: "no checkpoint that witnesses cosigned"}
		}
		if err != nil {
			return heldCheckpoint{}, fmt.Errorf("read anchored checkpoint: %w", err)
		}
	}
	cp, err := openCheckpoint(text, v.key)
	if err != nil {
		return heldCheckpoint{}, err
	}
	by, err := opts.Witnesses.vouch(text)
	if err != nil {
		return heldCheckpoint{}, err
	}
	for _, w := range by {
		v.report.Witnesses = append(v.report.Witnesses, w.key.name)
	}
	v.report.Anchored = cp.size
	v.cosigned.of(text, cp.size, by)
	return cp, nil
}

// isSmall says whether segments take no more than smallBytes.
func isSmall(dir string, segs []int) (bool, error) {
	var size int64
	for _, n := range segs {
		info, err := os.Stat(segmentPath(dir, n))
		if err != nil {
			return false, fmt.Errorf("verify log: %w", err)
		}
		size += info.Size()
	}
	return size <= smallBytes, nil
}

// walk checks all batches, in order. Signatures are checked in runs, one run
// while the next is read; an earlier bad one comes before a later fault of
// another kind.
func (v *verifier) walk(segs []int, at []heldCheckpoint) error {
	w := walk(v.dir, segs, v.key.Name())
	w.deep = true
	defer w.Close()
	c, err := newChecker(v.key, w, v.dir, at...)
	if err != nil {
		return err
	}
	for {
		b, err := w.batch()
		if err == nil {
			err = c.check(w.cur.header, b)
		}
		if err != nil {
			if sigErr := cmp.Or(v.signatures(), v.await()); sigErr != nil {
				return sigErr
			}
			if err := v.end(err); err != nil {
				return v.sealed(w, c, err)
			}
			return v.finish(c)
		}
		if v.pending = append(v.pending, b); len(v.pending) >= signatureRun {
			if err := v.signatures(); err != nil {
				return err
			}
		}
		v.count(b)
	}
}

// sealed counts the records of a last batch that has its seal and no signature.
// Whether the seal is the log's only its key can tell. With them the log must
// still reach its checkpoints.
func (v *verifier) sealed(w *walker, c *checker, err error) error {
	var fault *Fault
	b := w.sealed()
	if b == nil || !errors.As(err, &fault) || fault.Code != Unsigned {
		return err
	}
	v.report.Sealed = uint64(len(b.leaves))
	for _, cp := range c.at {
		if cp.size > b.after.next {
			return cmp.Or(c.end(), err)
		}
	}
	return err
}

// finish checks what only the whole log can tell.
func (v *verifier) finish(c *checker) error {
	if err := c.end(); err != nil {
		return err
	}
	v.report.Cosigned = v.cosigned.judge(time.Now())
	v.report.Pruned, v.report.Rotations = c.start, len(c.ring.rotations)
	for _, cp := range c.at {
		if cp.text == nil || cp.size == 0 || cp.size >= c.start {
			continue
		}
		// Its leaves are gone: the tiles must prove that the log extends it.
		now := checkpoint{size: c.tree.size, root: c.tree.root()}
		if own := c.at[0]; own.size > 0 && own.size >= c.start {
			now = own.checkpoint
		}
		proof, err := proveTree(v.dir, cp.size, now)
		if err == nil {
			err = tlog.CheckTree(proof, int64(now.size), now.root, int64(cp.size), cp.root)
		}
		if err != nil {
			return &Fault{Code: RootMismatch, Index: cp.size, Detail: fmt.Sprintf("the log does not extend the checkpoint of %d records: %v", cp.size, err)}
		}
	}
	return nil
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
	if b.trailer.wall < v.wall {
		v.report.Backwards++
	}
	v.wall = b.trailer.wall
	v.cosigned.see(b.trailer.size, b.trailer.wall)
	v.report.Records += uint64(len(b.leaves))
	for _, leaf := range b.leaves {
		s, err := v.sum.read(leaf)
		if err != nil {
			continue
		}
		switch s.Kind {
		case audit.KindBoot:
			v.report.Boots++
		case audit.KindGap:
			v.report.Gaps++
		case audit.KindDecision:
			v.report.Decisions++
		case audit.KindOutcome:
			v.report.Outcomes++
		}
		v.open.see(s)
	}
}

// signatureRun is how many batches one signature vouches for.
const signatureRun = 1024

// signatures begins to check those of the pending batches, once those before
// have been.
func (v *verifier) signatures() error {
	if err := v.await(); err != nil || len(v.pending) == 0 {
		return err
	}
	v.checking, v.pending = v.pending, v.checking[:0]
	v.checked = make(chan int, 1)
	go func(run []*batch, every bool, checked chan<- int) {
		if !every && run[len(run)-1].isSigned() {
			checked <- len(run)
			return
		}
		checked <- firstUnsigned(run)
	}(v.checking, v.every, v.checked)
	return nil
}

// await waits for the signatures that are being checked.
func (v *verifier) await() error {
	if v.checked == nil {
		return nil
	}
	i, run := <-v.checked, v.checking
	v.checked = nil
	if i < len(run) {
		return run[i].fault(BadSignature, "not signed by the key of %s", v.key.Name())
	}
	v.report.Signatures++
	if v.every {
		v.report.Signatures += len(run) - 1
	}
	t := run[len(run)-1].trailer
	v.report.TreeSize, v.report.RootHex = t.size, fmt.Sprintf("%x", t.root[:])
	return nil
}

// firstUnsigned checks each of them, on all processors.
func firstUnsigned(batches []*batch) int {
	workers := runtime.GOMAXPROCS(0)
	bad := make([]int, workers) // the first bad one that each worker has seen
	var wg sync.WaitGroup
	for worker := range workers {
		bad[worker] = len(batches)
		wg.Go(func() {
			for i := worker; i < len(batches); i += workers {
				if !batches[i].isSigned() {
					bad[worker] = i
					return
				}
			}
		})
	}
	wg.Wait()
	return slices.Min(bad)
}
