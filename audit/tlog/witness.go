package tlog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Witness is somebody else who remembers how far a log has got, and cosigns
// only what extends that: any that speaks https://c2sp.org/tlog-witness.
type Witness struct {
	URL      string `yaml:"url"`      // submission prefix; /add-checkpoint is added
	Key      string `yaml:"key"`      // its verifier key for cosignatures
	Operator string `yaml:"operator"` // who runs it
}

// Witnesses are those of one log, and what their word is worth.
//
// A record is anchored once witnesses of Quorum different operators have
// cosigned a checkpoint that covers it. Witnesses that share an operator
// count once, those of the log's own operator not at all.
type Witnesses struct {
	Operator string    `yaml:"operator"` // who runs the log
	Quorum   int       `yaml:"quorum"`   // 1 if zero
	List     []Witness `yaml:"list"`

	// Warn keeps the log going when it is refused and Quorum is not reached.
	// Otherwise it then halts, and does not open.
	Warn    bool          `yaml:"warn"`
	Timeout time.Duration `yaml:"timeout"` // for one answer, 5 s if zero
	// Limit is how long records may be without an anchor before the log says
	// that it is not ready; 0: for ever.
	Limit time.Duration `yaml:"limit"`
}

// Trusted is witnesses as somebody knows them who only verifies: by their keys,
// each of an operator of its own. The quorum is all of them if it is 0.
func Trusted(quorum int, keys ...string) (Witnesses, error) {
	w := Witnesses{Operator: "the verifier", Quorum: cmp.Or(quorum, len(keys))}
	for _, key := range keys {
		w.List = append(w.List, Witness{Key: key, Operator: key})
	}
	if len(keys) == 0 {
		return w, errors.New("witnesses: no key of any")
	}
	_, err := w.open()
	return w, err
}

// Check returns everything that is wrong with the configuration of a log.
func (w Witnesses) Check() error {
	_, err := w.open()
	errs := []error{err}
	for i, one := range w.List {
		if u, err := url.Parse(one.URL); err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
			errs = append(errs, fmt.Errorf("witnesses: list[%d]: %q is not an http or https URL", i, one.URL))
		}
	}
	return errors.Join(errs...)
}

// Vouch returns the names of those whose cosignature a checkpoint bears. If they
// are fewer than the quorum the error is a *[Fault], NotAnchored. Whether the
// log signed the checkpoint is not looked at.
func (w Witnesses) Vouch(checkpoint []byte) (names []string, err error) {
	by, err := w.vouch(checkpoint)
	for _, one := range by {
		names = append(names, one.key.name)
	}
	return names, err
}

func (w Witnesses) vouch(checkpoint []byte) ([]*witness, error) {
	list, err := w.open()
	if err != nil {
		return nil, err
	}
	by, quorum := cosigned(checkpoint, list), w.quorum()
	if n := agreed(by); n < quorum {
		cp, _ := parseTree(checkpoint) // what is none, nobody has cosigned
		return by, &Fault{Code: NotAnchored, Index: cp.size, Detail: fmt.Sprintf(
			"the checkpoint of %d records is cosigned by %d operators of the %d it takes", cp.size, n, quorum)}
	}
	return by, nil
}

// quorum is how many operators must agree.
func (w Witnesses) quorum() int { return cmp.Or(w.Quorum, 1) }

// open reads the keys. With no witness there is nothing to open.
func (w Witnesses) open() ([]*witness, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("witnesses: "+format, args...)) }
	operators := make(map[string]bool)
	names, keys := make(map[string]bool), make(map[string]bool)
	var out []*witness
	for i, one := range w.List {
		key, err := parseCosigner(one.Key)
		if err != nil {
			bad("list[%d]: %w", i, err)
			continue
		}
		if names[key.name] || keys[key.public] {
			bad("list[%d]: %s, or its key, is there twice", i, key.name)
		}
		names[key.name], keys[key.public] = true, true
		if one.Operator == "" {
			bad("list[%d]: no operator", i)
		}
		operators[one.Operator] = true
		out = append(out, &witness{Witness: one, key: key, counts: one.Operator != w.Operator})
	}
	delete(operators, w.Operator)
	if len(w.List) > 0 && w.Operator == "" {
		bad("no operator of the log")
	}
	if len(w.List) > 0 && len(errs) == 0 && len(operators) < w.quorum() || w.Quorum < 0 {
		bad("a quorum of %d where %d other operators are listed", w.quorum(), len(operators))
	}
	if w.Timeout < 0 || w.Limit < 0 {
		bad("a negative time")
	}
	return out, errors.Join(errs...)
}

// agreed counts the operators that count, of these witnesses.
func agreed(ws []*witness) int {
	operators := make(map[string]bool)
	for _, w := range ws {
		if w.counts {
			operators[w.Operator] = true
		}
	}
	return len(operators)
}

// cosigned returns those whose cosignature a checkpoint bears.
func cosigned(text []byte, ws []*witness) []*witness {
	var out []*witness
	for _, w := range ws {
		if _, err := note.Open(text, note.VerifierList(w.key)); err == nil {
			out = append(out, w)
		}
	}
	return out
}

// witness is one of them with what we know of it. One goroutine at a time uses
// it.
type witness struct {
	Witness
	key    *cosigner
	counts bool          // is of another operator than the log
	held   uint64        // the size that it is thought to hold
	ahead  time.Duration // of its clock before ours, at its last cosignature

	failures int // in a row
	after    time.Time
}

// ErrRefused says that a witness holds something that the log does not extend:
// the log was cut back, replaced or forked. It comes as a *[Refusal].
var ErrRefused = errors.New("refused by a witness")

// Refusal is what a witness said against a log.
type Refusal struct {
	Witness  string
	Operator string
	Size     uint64 // of the tree that was shown to it
	Root     tlog.Hash
	Held     uint64 // what it holds; more than Size, or not consistent with it
}

func (r *Refusal) Error() string {
	if r.Held > r.Size {
		return fmt.Sprintf("witness %s holds %d records of the log, which has %d: state was lost", r.Witness, r.Held, r.Size)
	}
	return fmt.Sprintf("witness %s holds %d other records than the log's first: it was forked", r.Witness, r.Held)
}

func (r *Refusal) Unwrap() error { return ErrRefused }

func (w *witness) refusal(cp checkpoint) error {
	return &Refusal{Witness: w.key.name, Operator: w.Operator, Size: cp.size, Root: cp.root, Held: w.held}
}

// prover makes the proof that a tree of old records is the beginning of the
// one that a checkpoint is of.
type prover func(old uint64, cp checkpoint) (tlog.TreeProof, error)

// cosign asks for a cosignature of a checkpoint. The error is a *[Refusal], or
// says why there is no answer.
func (w *witness) cosign(ctx context.Context, client *http.Client, text []byte, cp checkpoint, prove prover) ([]byte, error) {
	// The first answer may be what size it holds, and the second too if
	// another request of ours was on its way.
	for range 3 {
		if w.held > cp.size {
			return nil, w.refusal(cp)
		}
		proof, err := prove(w.held, cp)
		if err != nil {
			return nil, err
		}
		line, held, err := w.post(ctx, client, text, cp, proof)
		if err != nil || line != nil {
			return line, err
		}
		if held == w.held && held == cp.size { // then what differs is the root
			return nil, w.refusal(cp)
		}
		w.held = held
	}
	return nil, fmt.Errorf("witness %s does not say twice the same", w.key.name)
}

// probe asks only whether a witness holds more than a checkpoint says there is,
// or something else of the same size.
func (w *witness) probe(ctx context.Context, client *http.Client, text []byte, cp checkpoint) error {
	w.held = cp.size
	line, held, err := w.post(ctx, client, text, cp, nil)
	if err != nil || line != nil {
		return err
	}
	w.held = held
	if held >= cp.size {
		return w.refusal(cp)
	}
	return nil
}

// post sends a checkpoint. It returns the cosignature, or else the size that the
// witness holds.
func (w *witness) post(ctx context.Context, client *http.Client, text []byte, cp checkpoint, proof tlog.TreeProof) (line []byte, held uint64, err error) {
	body := fmt.Appendf(nil, "old %d\n", w.held)
	for _, h := range proof {
		body = fmt.Appendf(body, "%s\n", h)
	}
	body = append(append(body, '\n'), text...)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(w.URL, "/")+"/add-checkpoint", bytes.NewReader(body))
	if err != nil {
		return nil, 0, fmt.Errorf("ask witness %s: %w", w.key.name, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, 0, fmt.Errorf("ask witness %s: %w", w.key.name, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return nil, 0, fmt.Errorf("ask witness %s: %w", w.key.name, err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		line, err := w.key.cosignature(text, answer)
		if err != nil {
			return nil, 0, fmt.Errorf("ask witness %s: %w", w.key.name, err)
		}
		w.held, w.ahead = cp.size, ahead(cosignedAt(string(line[bytes.LastIndexByte(line, ' ')+1:])), time.Now())
		return line, cp.size, nil
	case http.StatusConflict:
		held, err := strconv.ParseUint(strings.TrimSuffix(string(answer), "\n"), 10, 63)
		if err != nil {
			return nil, 0, fmt.Errorf("ask witness %s: it answers %q where a tree size is due", w.key.name, answer[:min(len(answer), 80)])
		}
		return nil, held, nil
	case http.StatusUnprocessableEntity:
		return nil, 0, w.refusal(cp) // our proof is right for what we hold
	}
	return nil, 0, fmt.Errorf("ask witness %s: status %d: %q", w.key.name, resp.StatusCode, answer[:min(len(answer), 80)])
}
