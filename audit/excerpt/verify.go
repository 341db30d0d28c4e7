package excerpt

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/transparency-dev/merkle/compact"
	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"golang.org/x/mod/sumdb/note"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/durable"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

// maxLine is the longest line: a leaf has less than 64 KiB, and hashes and
// checkpoints take less.
const maxLine = 256 << 10

// Report is what [Verify] found. With an empty Code every record of the excerpt
// is in the log, and, unless it is selected, so is nothing else between.
type Report struct {
	Origin   string `json:"origin"`
	Excerpt  bool   `json:"excerpt"` // always true: tells it from the report of a log
	From     uint64 `json:"from"`
	To       uint64 `json:"to"`
	Selected bool   `json:"selected"`
	Records  uint64 `json:"records"`
	TreeSize uint64 `json:"tree_size"` // of the checkpoint
	RootHex  string `json:"root"`
	// Checkpoint is what was verified, for who wants to see who else signed it.
	Checkpoint []byte `json:"-"`

	Code     tlog.Code `json:"code,omitempty"`
	FirstBad int64     `json:"first_bad"` // index of the damaged or nearest record, -1 if that cannot be told
	Detail   string    `json:"detail,omitempty"`
}

// OK says whether no fault was found.
func (r *Report) OK() bool { return r.Code == "" }

// damage is what is wrong with an excerpt.
type damage struct {
	code   tlog.Code
	index  int64
	detail string
}

func (d *damage) Error() string { return fmt.Sprintf("%s: %s", d.code, d.detail) }

func bad(code tlog.Code, index int64, format string, args ...any) error {
	return &damage{code, index, fmt.Sprintf(format, args...)}
}

// Is says whether a file begins as an excerpt does.
func Is(path string) bool {
	_, _, ok := Of(path)
	return ok
}

// Of returns the checkpoint of an excerpt, and the name of the log that it says
// it is of, if the file begins as one does. Nothing of it has been checked.
func Of(path string) (origin string, checkpoint []byte, ok bool) {
	f, err := durable.OpenRegular(path)
	if err != nil {
		return "", nil, false
	}
	defer f.Close() // read only
	h, err := newReader(f).header()
	return h.Origin, []byte(h.Checkpoint), err == nil
}

// Verify checks an excerpt against a pinned key. The error says that no answer
// can be given; what is wrong with the excerpt is in the report.
func Verify(in io.Reader, key note.Verifier) (Report, error) {
	if key == nil {
		return Report{}, tlog.ErrNoKey
	}
	v := verifier{in: newReader(in), key: key}
	v.report = Report{Origin: key.Name(), Excerpt: true, FirstBad: -1}
	err := v.run()
	var d *damage
	var fault *tlog.Fault
	switch {
	case errors.As(err, &d):
		v.report.Code, v.report.FirstBad, v.report.Detail = d.code, d.index, d.detail
	case errors.As(err, &fault):
		v.report.Code, v.report.Detail = fault.Code, fault.Detail
	case err != nil:
		return v.report, err
	}
	return v.report, nil
}

// verifier is one run of Verify.
type verifier struct {
	in     *reader
	key    note.Verifier
	report Report

	root  []byte         // of the checkpoint
	whole *compact.Range // of everything up to the last record read; nil if selected
	right *compact.Range // of what comes after the excerpt
	next  uint64         // of a selected one, the least index that the next record may have
}

// claim is that the leaf before it is at an index.
type claim struct {
	index uint64
	path  [][]byte
}

func (v *verifier) run() error {
	h, err := v.in.header()
	if err != nil {
		return err
	}
	r := &v.report
	r.From, r.To, r.Selected = h.From, h.To, h.Selected
	if h.Origin != v.key.Name() {
		return bad(tlog.OriginMismatch, -1, "excerpt is of log %q, not %q", h.Origin, v.key.Name())
	}
	tree, err := tlog.OpenCheckpoint([]byte(h.Checkpoint), v.key)
	if err != nil {
		return err
	}
	r.Checkpoint = []byte(h.Checkpoint)
	v.root, r.TreeSize, r.RootHex = tree.Hash[:], uint64(tree.N), fmt.Sprintf("%x", tree.Hash[:])
	if h.To > r.TreeSize {
		return bad(tlog.SizeMismatch, -1, "records up to %d of a tree of %d", h.To, r.TreeSize)
	}
	if !h.Selected {
		v.whole, err = ranges.NewRange(0, h.From, slicesOf(h.Left))
		if err == nil {
			v.right, err = ranges.NewRange(h.To, r.TreeSize, slicesOf(h.Right))
		}
		if err != nil {
			return bad(tlog.BadHeader, -1, "edges: %v", err)
		}
	}
	for {
		line, err := v.in.next()
		if err != nil {
			return err
		}
		if bytes.HasPrefix(line, recordPrefix) {
			if err := v.record(line); err != nil {
				return err
			}
			continue
		}
		return v.end(line)
	}
}

// record takes one leaf in, with its proof if it has one.
func (v *verifier) record(leaf []byte) error {
	r := &v.report
	hash := rfc6962.DefaultHasher.HashLeaf(leaf)
	index := r.From + r.Records
	if v.whole == nil {
		c, err := v.in.proof()
		if err != nil {
			return err
		}
		if index = c.index; index < max(r.From, v.next) || index >= r.To {
			return bad(tlog.SequenceGap, int64(index), "the excerpt is of records %d to %d, each once and in order", r.From, r.To)
		}
		v.next = index + 1
		if err := proof.VerifyInclusion(rfc6962.DefaultHasher, c.index, r.TreeSize, hash, c.path, v.root); err != nil {
			return bad(tlog.RootMismatch, int64(c.index), "record %d is not the one in the log: its hashes do not lead to the checkpoint's root", c.index)
		}
	} else if err := v.whole.Append(hash, nil); err != nil {
		return bad(tlog.SizeMismatch, int64(index), "%v", err)
	}
	// The place that a record gives itself makes it possible to say where
	// something is missing, which the root alone does not.
	var rec struct {
		Log audit.LogRef `json:"log"`
	}
	if err := jsonv2.Unmarshal(leaf, &rec); err == nil && (rec.Log.Seq != index || rec.Log.Origin != r.Origin) {
		return bad(tlog.SequenceGap, int64(index), "the record says that it is %d of %s", rec.Log.Seq, rec.Log.Origin)
	}
	r.Records++
	return nil
}

// end checks the last line, and everything against it.
func (v *verifier) end(line []byte) error {
	r := &v.report
	var f footer
	if err := strict(line, &f); err != nil {
		return bad(tlog.BadFrame, -1, "last line: %v", err)
	}
	if _, err := v.in.next(); !errors.Is(err, errEnd) {
		return bad(tlog.TrailingData, -1, "something follows the last line")
	}
	if f.Records != r.Records {
		return bad(tlog.SizeMismatch, -1, "%d records where the last line counts %d", r.Records, f.Records)
	}
	if v.whole == nil {
		return nil
	}
	if r.Records != r.To-r.From {
		return bad(tlog.SizeMismatch, -1, "%d records where there must be %d", r.Records, r.To-r.From)
	}
	if err := v.whole.AppendRange(v.right, nil); err != nil {
		return bad(tlog.SizeMismatch, -1, "right edge: %v", err)
	}
	root, err := v.whole.GetRootHash(nil)
	if err != nil {
		return bad(tlog.SizeMismatch, -1, "%v", err)
	}
	if r.TreeSize == 0 { // a compact range has no root then
		root = rfc6962.DefaultHasher.EmptyRoot()
	}
	if !bytes.Equal(root, v.root) {
		return bad(tlog.RootMismatch, -1, "the records do not give the root of the checkpoint")
	}
	return nil
}

// recordPrefix is how a leaf begins: its fields have a fixed order.
var recordPrefix = []byte(`{"v":`)

// Read returns the records of an excerpt. It verifies nothing.
func Read(path string) iter.Seq2[tlog.Entry, error] {
	return func(yield func(tlog.Entry, error) bool) {
		f, err := durable.OpenRegular(path)
		if err != nil {
			yield(tlog.Entry{}, fmt.Errorf("read excerpt: %w", err))
			return
		}
		defer f.Close() // read only
		in := newReader(f)
		h, err := in.header()
		if err != nil {
			yield(tlog.Entry{}, err)
			return
		}
		for index := h.From; ; index++ {
			line, err := in.next()
			if err == nil && !bytes.HasPrefix(line, recordPrefix) {
				return
			}
			leaf := bytes.Clone(line)
			if err == nil && h.Selected {
				var c claim
				c, err = in.proof()
				index = c.index
			}
			if !yield(tlog.Entry{Index: index, Leaf: leaf}, err) || err != nil {
				return
			}
		}
	}
}

// reader reads lines.
type reader struct{ lines *bufio.Scanner }

func newReader(in io.Reader) *reader {
	s := bufio.NewScanner(in)
	s.Buffer(make([]byte, 64<<10), maxLine)
	return &reader{s}
}

// errEnd says that there is no further line.
var errEnd = &damage{code: tlog.Truncated, index: -1, detail: "the excerpt ends before its last line"}

// next returns a line, valid until the one after it.
func (r *reader) next() ([]byte, error) {
	if r.lines.Scan() {
		return r.lines.Bytes(), nil
	}
	switch err := r.lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, bad(tlog.BadFrame, -1, "a line is too long")
	case err != nil:
		return nil, fmt.Errorf("read excerpt: %w", err)
	}
	return nil, errEnd
}

func (r *reader) header() (h header, err error) {
	line, err := r.next()
	if err != nil {
		return h, err
	}
	if err := strict(line, &h); err != nil || h.V != version || h.From > h.To {
		return h, bad(tlog.BadHeader, -1, "not an excerpt of version %d", version)
	}
	return h, nil
}

func (r *reader) proof() (c claim, err error) {
	line, err := r.next()
	if err != nil {
		return c, err
	}
	var p proofLine
	if err := strict(line, &p); err != nil {
		return c, bad(tlog.BadFrame, -1, "proof: %v", err)
	}
	return claim{index: p.Proof.Index, path: slicesOf(p.Proof.Hashes)}, nil
}

// strict decodes a line of ours, which has no other fields than we know.
func strict(line []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows it")
	}
	return nil
}
