// Package excerpt puts records of a log into one file that can be verified with
// the log's key and nothing else.
//
// Start at [Write], which makes one, and [Verify], which checks one.
//
// # Format
//
// Lines of JSON. The first says what the file is, and holds the signed
// checkpoint of a tree that all records are in; then come records, each line
// the exact bytes of a leaf; the last counts them:
//
//	{"excerpt":1,"origin":"example.org/gateway","from":256,"to":812,"selected":false,
//	 "checkpoint":"example.org/gateway\n900\n…","left":["…"],"right":["…"]}   (one line)
//	{"v":1,"kind":"decision",…}
//	…
//	{"records":556}
//
// An excerpt that is not selected has every record from index from up to, not
// including, to. The hashes of the subtrees to the left and to the right of them
// (RFC 6962, in the order that https://pkg.go.dev/github.com/transparency-dev/merkle/compact
// has) and those of the records give the root of the checkpoint: so nothing
// between is missing or changed.
//
// A selected one has only some of them, each followed by its proof,
//
//	{"proof":{"index":300,"hashes":["…"]}}
//
// and shows that these are in the log, each of them once and in order. It cannot
// show that nothing was left out.
package excerpt

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"iter"

	"github.com/transparency-dev/merkle/compact"
	"github.com/transparency-dev/merkle/rfc6962"
	xtlog "golang.org/x/mod/sumdb/tlog"

	"github.com/sallyport-ai/sallyport/audit/tlog"
)

const version = 1

// header is the first line.
type header struct {
	V          int    `json:"excerpt"`
	Origin     string `json:"origin"`
	From       uint64 `json:"from"`
	To         uint64 `json:"to"` // exclusive
	Selected   bool   `json:"selected"`
	Checkpoint string `json:"checkpoint"`
	Left       []node `json:"left,omitempty"`
	Right      []node `json:"right,omitempty"`
}

// proofLine follows each record of a selected excerpt.
type proofLine struct {
	Proof struct {
		Index  uint64 `json:"index"`
		Hashes []node `json:"hashes"`
	} `json:"proof"`
}

// footer is the last line.
type footer struct {
	Records uint64 `json:"records"`
}

// node is the hash of a subtree. Its text is base64, of which there is one.
type node [sha256.Size]byte

func (n node) MarshalText() ([]byte, error) { return base64.StdEncoding.AppendEncode(nil, n[:]), nil }

func (n *node) UnmarshalText(text []byte) error {
	b, err := base64.StdEncoding.Strict().DecodeString(string(text))
	if err != nil || len(b) != len(n) {
		return fmt.Errorf("hash %q", text)
	}
	*n = node(b)
	return nil
}

func nodesOf(hashes []xtlog.Hash) []node {
	out := make([]node, len(hashes))
	for i, h := range hashes {
		out[i] = node(h)
	}
	return out
}

// slicesOf are the bytes of nodes, as package merkle wants them.
func slicesOf(nodes []node) [][]byte {
	out := make([][]byte, len(nodes))
	for i := range nodes {
		out[i] = nodes[i][:]
	}
	return out
}

// ranges makes compact ranges of RFC 6962 trees.
var ranges = compact.RangeFactory{Hash: rfc6962.DefaultHasher.HashChildren}

// Options say what goes into an excerpt.
type Options struct {
	From, To uint64 // To is exclusive; 0: as far as the log is published, unless it is None
	None     bool   // no record, between that before From and From: nothing is left out
	// Select returns the records that are wanted out of all of them, in order;
	// nil wants all. It makes the excerpt a selected one.
	Select func(iter.Seq2[tlog.Entry, error]) iter.Seq2[tlog.Entry, error]
}

// Write writes an excerpt of the log in dir. It reads what the log has
// published, and may be used while another process appends. If a checkpoint that
// witnesses cosigned covers the records, it is that which the excerpt holds.
func Write(w io.Writer, dir string, o Options) (records uint64, err error) {
	switch {
	case o.None:
		o.To = o.From
	case o.To == 0:
		_, tree, err := tlog.Published(dir)
		if err != nil {
			return 0, err
		}
		o.To = uint64(tree.N)
	}
	checkpoint, tree, err := tlog.Covering(dir, o.To)
	if err != nil {
		return 0, err
	}
	origin, err := tlog.Origin(dir)
	if err != nil {
		return 0, err
	}
	size := uint64(tree.N)
	if o.From > o.To || o.To > size {
		return 0, fmt.Errorf("%w: records %d to %d of %d published", tlog.ErrNotFound, o.From, o.To, size)
	}
	x := writer{out: json.NewEncoder(w), w: w, tree: tree, hashes: tlog.Hashes(dir, tree)}
	x.out.SetEscapeHTML(false)
	h := header{V: version, Origin: origin, From: o.From, To: o.To, Selected: o.Select != nil, Checkpoint: string(checkpoint)}
	if !h.Selected {
		if h.Left, err = x.nodes(0, o.From); err != nil {
			return 0, err
		}
		if h.Right, err = x.nodes(o.To, size); err != nil {
			return 0, err
		}
	}
	if err := x.out.Encode(h); err != nil {
		return 0, fmt.Errorf("write excerpt: %w", err)
	}
	var f footer
	within := upTo(tlog.Read(dir, o.From), o.To)
	if h.Selected {
		within = o.Select(within)
	}
	for e, err := range within {
		if err != nil {
			return f.Records, err
		}
		if !h.Selected && e.Index != o.From+f.Records {
			return f.Records, fmt.Errorf("%w: records %d to %d were pruned", tlog.ErrNotFound, o.From+f.Records, e.Index)
		}
		if err := x.record(e, h.Selected); err != nil {
			return f.Records, err
		}
		f.Records++
	}
	if !h.Selected && f.Records != o.To-o.From {
		return f.Records, fmt.Errorf("%w: of records %d to %d only %d are there", tlog.ErrNotFound, o.From, o.To, f.Records)
	}
	if err := x.out.Encode(f); err != nil {
		return f.Records, fmt.Errorf("write excerpt: %w", err)
	}
	return f.Records, nil
}

// upTo ends before an index.
func upTo(records iter.Seq2[tlog.Entry, error], end uint64) iter.Seq2[tlog.Entry, error] {
	return func(yield func(tlog.Entry, error) bool) {
		for e, err := range records {
			if err == nil && e.Index >= end || !yield(e, err) {
				return
			}
		}
	}
}

// writer writes the lines of one excerpt.
type writer struct {
	w      io.Writer
	out    *json.Encoder
	tree   xtlog.Tree
	hashes xtlog.HashReader
}

// record writes a leaf, and its proof if it needs one of its own.
func (x *writer) record(e tlog.Entry, selected bool) error {
	if _, err := fmt.Fprintf(x.w, "%s\n", e.Leaf); err != nil {
		return fmt.Errorf("write excerpt: %w", err)
	}
	if !selected {
		return nil
	}
	path, err := xtlog.ProveRecord(x.tree.N, int64(e.Index), x.hashes)
	if err != nil {
		return fmt.Errorf("prove record %d: %w", e.Index, err)
	}
	var p proofLine
	p.Proof.Index, p.Proof.Hashes = e.Index, nodesOf(path)
	if err := x.out.Encode(p); err != nil {
		return fmt.Errorf("write excerpt: %w", err)
	}
	return nil
}

// nodes are the hashes of the subtrees that make up a range of records.
func (x *writer) nodes(begin, end uint64) ([]node, error) {
	if begin == end {
		return nil, nil
	}
	var indexes []int64
	for _, id := range compact.RangeNodes(begin, end, nil) {
		indexes = append(indexes, xtlog.StoredHashIndex(int(id.Level), int64(id.Index)))
	}
	hashes, err := x.hashes.ReadHashes(indexes)
	if err != nil {
		return nil, fmt.Errorf("read tiles: %w", err)
	}
	return nodesOf(hashes), nil
}
