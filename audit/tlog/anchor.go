package tlog

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/sallyport-ai/sallyport/audit"
)

// anchoredFile holds the newest checkpoint that enough witnesses cosigned.
const anchoredFile = "anchored"

// Anchors says how much of a log its witnesses vouch for. Whoever holds the
// directory and the key can rewrite what is not anchored.
type Anchors struct {
	Configured bool
	Size       uint64        // records that are anchored
	Records    uint64        // records that are not
	Age        time.Duration // no record has been without an anchor for longer
	Witnesses  []WitnessState
}

// WitnessState is what one witness did last.
type WitnessState struct {
	Name     string
	Operator string
	Counts   bool          // towards the quorum
	Size     uint64        // of the checkpoint that it cosigned last
	Ahead    time.Duration // of its clock before ours, when it cosigned last; to the second
	Refused  bool          // it holds something that the log does not extend
	Err      error         // why it does not cosign, or nil
}

// State is "cosigned", "failed", "refused", or "asked" before its first answer.
func (s WitnessState) State() string {
	switch {
	case s.Refused:
		return "refused"
	case s.Err != nil:
		return "failed"
	case s.Size > 0:
		return "cosigned"
	}
	return "asked"
}

// anchorer brings checkpoints to the witnesses. Its goroutine owns witnesses.
type anchorer struct {
	cfg       Witnesses
	log       *Log
	client    *http.Client
	witnesses []*witness
	wake      chan struct{} // a checkpoint has been published

	mu     sync.Mutex // guards what follows
	size   uint64     // anchored
	at     time.Time  // when a checkpoint that was then anchored had been published
	states []WitnessState
}

// newAnchorer returns nil if no witnesses are configured.
func newAnchorer(l *Log) (*anchorer, error) {
	if len(l.cfg.Witnesses.List) == 0 {
		return nil, nil
	}
	ws, err := l.cfg.Witnesses.open()
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	a := &anchorer{
		cfg: l.cfg.Witnesses, log: l, witnesses: ws, wake: make(chan struct{}, 1), at: l.start,
		client: &http.Client{Timeout: cmp.Or(l.cfg.Witnesses.Timeout, 5*time.Second)},
	}
	for _, w := range ws {
		a.states = append(a.states, WitnessState{Name: w.key.name, Operator: w.Operator, Counts: w.counts})
	}
	// What is anchored already is read back as a verifier would.
	text, err := os.ReadFile(filepath.Join(l.cfg.Dir, anchoredFile))
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read anchored checkpoint: %w", err)
	}
	if cp, err := parseTree(text); err == nil && agreed(cosigned(text, ws)) >= a.cfg.quorum() {
		a.size = cp.size
	}
	return a, nil
}

// probe shows the state that was recovered to the witnesses, before anything is
// appended to it. It returns a refusal unless enough of them have nothing
// against it, or the log is to go on regardless. Those that do not answer are
// asked again as soon as there is a checkpoint.
func (a *anchorer) probe(ctx context.Context, cp checkpoint) error {
	text, err := signCheckpoint(a.log.cfg.Key, cp.size, cp.root)
	if err != nil {
		return err
	}
	errs := a.each(a.witnesses, func(w *witness) error { return w.probe(ctx, a.client, text, cp) })
	var fine []*witness
	var refusals []error
	for i, w := range a.witnesses {
		switch {
		case errs[i] == nil:
			fine = append(fine, w)
		case errors.Is(errs[i], ErrRefused):
			refusals = append(refusals, errs[i])
		default:
			a.log.cfg.Logger.Warn("witness does not answer", "witness", w.key.name, "error", errs[i])
		}
	}
	if len(refusals) == 0 || a.cfg.Warn || agreed(fine) >= a.cfg.quorum() {
		return nil // a refusal is recorded once it is repeated
	}
	return errors.Join(refusals...)
}

// each asks witnesses side by side.
func (a *anchorer) each(ws []*witness, ask func(w *witness) error) []error {
	errs := make([]error, len(ws))
	var wg sync.WaitGroup
	for i, w := range ws {
		wg.Go(func() { errs[i] = ask(w) })
	}
	wg.Wait()
	return errs
}

// run brings each new checkpoint to the witnesses until ctx is done, and the
// last one after published is closed.
func (a *anchorer) run(ctx context.Context, published <-chan struct{}) {
	again := time.NewTicker(max(a.log.cfg.CheckpointEvery, 100*time.Millisecond))
	defer again.Stop()
	for {
		select {
		case <-a.wake:
		case <-again.C: // for those that failed
		case <-ctx.Done():
			<-published
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.client.Timeout)
			defer cancel()
			a.round(last, true)
			return
		}
		a.round(ctx, false)
	}
}

// due are the witnesses to be asked for a checkpoint now: for the last one, those
// that are being left alone too.
func (a *anchorer) due(size uint64, last bool) []*witness {
	a.mu.Lock()
	defer a.mu.Unlock()
	var due []*witness
	for i, w := range a.witnesses {
		if a.states[i].Size < size && (last || time.Now().After(w.after)) {
			due = append(due, w)
		}
	}
	return due
}

// round brings the newest checkpoint to those witnesses that have not cosigned
// it, and keeps their cosignatures with it.
func (a *anchorer) round(ctx context.Context, last bool) {
	dir, key := a.log.cfg.Dir, a.log.Head().key
	text, err := os.ReadFile(filepath.Join(dir, checkpointFile))
	if err != nil {
		return // there is none yet, or publishing says so
	}
	cp, err := parseCheckpoint(text, key.Verifier())
	if err != nil || a.log.inPlace() != nil {
		return
	}
	due := a.due(cp.size, last)
	if len(due) == 0 {
		return
	}
	bare, err := signCheckpoint(key, cp.size, cp.root)
	if err != nil {
		return
	}
	prove := func(old uint64, cp checkpoint) (tlog.TreeProof, error) { return proveTree(dir, old, cp) }
	var mu sync.Mutex
	var lines [][]byte
	errs := a.each(due, func(w *witness) error {
		line, err := w.cosign(ctx, a.client, bare, cp, prove)
		mu.Lock()
		defer mu.Unlock()
		if line != nil {
			lines = append(lines, line)
		}
		return err
	})
	a.note(due, errs, cp)
	a.keep(bytes.Join(append([][]byte{text}, lines...), nil), cp)
	a.judge(ctx, due, errs)
}

// note keeps what each witness did. One that fails is left alone for a while.
func (a *anchorer) note(asked []*witness, errs []error, cp checkpoint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, w := range asked {
		s := a.stateOf(w)
		if s.Err = errs[i]; errs[i] == nil {
			a.clock(s, w)
			w.failures, s.Size, s.Refused = 0, cp.size, false
			continue
		}
		w.failures++
		w.after = time.Now().Add(min(time.Minute, time.Second<<min(w.failures-1, 6)))
	}
}

// clock notes how a witness's clock goes, and says when it begins to be wrong.
func (a *anchorer) clock(s *WitnessState, w *witness) {
	if now := w.ahead.Abs() > clockSlack; now && s.Ahead.Abs() <= clockSlack {
		a.log.cfg.Logger.Warn("clocks of witness and log differ", "witness", w.key.name, "ahead", w.ahead.Round(time.Second))
	}
	s.Ahead = w.ahead
}

func (a *anchorer) stateOf(w *witness) *WitnessState {
	for i := range a.states {
		if a.states[i].Name == w.key.name {
			return &a.states[i]
		}
	}
	return nil
}

// keep stores a checkpoint with its cosignatures.
func (a *anchorer) keep(text []byte, cp checkpoint) {
	ws := cosigned(text, a.witnesses)
	if len(ws) == 0 {
		return
	}
	failed := func(err error) {
		if err != nil {
			a.log.cfg.Logger.Error("cosigned checkpoint not kept", "error", err)
		}
	}
	failed(a.log.replaceCheckpoint(text, cp.size))
	if agreed(ws) < a.cfg.quorum() {
		return
	}
	if err := replaceFile(filepath.Join(a.log.cfg.Dir, anchoredFile), text, true); err != nil {
		failed(err)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if cp.size >= a.size {
		a.size, a.at = cp.size, a.log.published.since(cp.size)
	}
}

// judge deals with refusals: each is evidence, and goes into the log once. If
// the quorum is not reached the log is then halted.
func (a *anchorer) judge(ctx context.Context, asked []*witness, errs []error) {
	var worst error
	for i, w := range asked {
		var refusal *Refusal
		if !errors.As(errs[i], &refusal) {
			continue
		}
		worst = errs[i]
		a.mu.Lock()
		s := a.stateOf(w)
		known := s.Refused
		s.Refused = true
		a.mu.Unlock()
		if known {
			continue
		}
		a.log.cfg.Logger.Error("audit log refused by a witness", "witness", w.key.name, "error", refusal)
		if err := a.evidence(ctx, refusal); err != nil {
			a.log.cfg.Logger.Error("a witness's refusal is not recorded", "error", err)
		}
	}
	if worst == nil || a.cfg.Warn || a.log.Err() != nil {
		return
	}
	if agreed(a.cosigners()) < a.cfg.quorum() {
		a.log.halt(nil, worst)
	}
}

// cosigners are the witnesses that have nothing against the log as far as they
// have cosigned it.
func (a *anchorer) cosigners() []*witness {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []*witness
	for i, w := range a.witnesses {
		if s := a.states[i]; s.Size > 0 && !s.Refused {
			out = append(out, w)
		}
	}
	return out
}

// evidence records a refusal.
func (a *anchorer) evidence(ctx context.Context, r *Refusal) error {
	event, err := json.Marshal(audit.Gap{
		Reason: audit.GapRefused, Detail: r.Error(), Witness: r.Witness, Operator: r.Operator,
		Size: r.Size, Root: r.Root.String(), Held: r.Held,
	})
	if err != nil {
		return fmt.Errorf("encode gap record: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, err = a.log.Append(ctx, &audit.Record{Kind: audit.KindGap, ID: audit.NewID(), Gateway: &a.log.cfg.Boot, Event: event})
	return err
}

// Anchors returns how much of the log is anchored.
func (l *Log) Anchors() Anchors {
	head := l.Head().Size
	if l.anchorer == nil {
		return Anchors{Records: head}
	}
	a := l.anchorer
	a.mu.Lock()
	defer a.mu.Unlock()
	out := Anchors{Configured: true, Size: min(a.size, head), Witnesses: append([]WitnessState(nil), a.states...)}
	if out.Records = head - out.Size; out.Records > 0 {
		out.Age = time.Since(a.at)
	}
	return out
}

// publications are when the last checkpoints were published.
type publications struct {
	mu    sync.Mutex
	sizes []uint64
	times []time.Time
}

func (p *publications) add(size uint64, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	const kept = 64
	if len(p.sizes) == kept {
		p.sizes, p.times = p.sizes[1:], p.times[1:]
	}
	p.sizes, p.times = append(p.sizes, size), append(p.times, at)
}

// since is a time before which no record from size on had been appended.
func (p *publications) since(size uint64) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, s := range p.sizes {
		if s >= size {
			return p.times[i]
		}
	}
	return time.Now()
}

// proveTree proves that the tree of a checkpoint extends an older one.
func proveTree(dir string, old uint64, cp checkpoint) (tlog.TreeProof, error) {
	if old == 0 || old == cp.size {
		return nil, nil
	}
	hashes := tlog.TileHashReader(tlog.Tree{N: int64(cp.size), Hash: cp.root}, tileDir(dir))
	proof, err := tlog.ProveTree(int64(cp.size), int64(old), hashes)
	if err != nil {
		return nil, fmt.Errorf("prove that %d records extend %d: %w", cp.size, old, err)
	}
	return proof, nil
}

// replaceCheckpoint adds cosignatures to the checkpoint file, unless there is a
// newer one by now.
func (l *Log) replaceCheckpoint(text []byte, size uint64) error {
	l.checkpointing.Lock()
	defer l.checkpointing.Unlock()
	path := filepath.Join(l.cfg.Dir, checkpointFile)
	now, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read checkpoint: %w", err)
	}
	if cp, err := parseTree(now); err != nil || cp.size != size {
		return err
	}
	return replaceFile(path, text, true)
}
