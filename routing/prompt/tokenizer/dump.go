package tokenizer

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Format of the tables, integers little-endian uint32, lists and texts after
// their length:
//
//	tablesMagic ‖ SHA-256 of the tokenizer.json
//	‖ flags ‖ patterns ‖ prefix ‖ suffix ‖ ids of the bytes
//	‖ lengths of the tokens ‖ their texts ‖ reachable ‖ whole
//	‖ merges, three ids each ‖ seams, two characters each ‖ added tokens
//	‖ SHA-256 of all that
//
// The magic changes whenever the format, or what is made of a tokenizer.json,
// does.
const tablesMagic = "sallyport tokenizer tables 1\n"

// ErrTables is in the chain of the errors about tables that are damaged, of
// another version or of another tokenizer.json.
var ErrTables = errors.New("tokenizer tables cannot be used")

const (
	flagPieces = 1 << iota
	flagNFC
	flagIgnoreMerges
)

const (
	flagSpecial = 1 << iota
	flagNormalized
	flagSingleWord
	flagLStrip
	flagRStrip
)

// AppendTables appends what Parse has made of the tokenizer.json with the
// digest, for [FromTables] to load many times faster. Who can write tables
// decides what is tokenized: keep them as safe as the model.
func (t *Tokenizer) AppendTables(dst []byte, digest [sha256.Size]byte) []byte {
	w := dumper{append(dst, tablesMagic...)}
	start := len(dst)
	w.b = append(w.b, digest[:]...)
	w.bits(t.pieces, t.nfc, t.ignoreMerges)
	w.text(t.patterns)
	w.ids(t.prefix)
	w.ids(t.suffix)
	w.ids(t.bytes[:])
	lengths := make([]uint32, len(t.tokens))
	for i, s := range t.tokens {
		lengths[i] = uint32(len(s))
	}
	w.ids(lengths)
	for _, s := range t.tokens {
		w.b = append(w.b, s...)
	}
	w.set(t.reachable)
	w.set(t.whole)
	list := t.merges.list()
	w.uint(uint32(len(list)))
	for _, m := range list {
		w.uint(m.a)
		w.uint(m.b)
		w.uint(m.id)
	}
	w.seams(t.seams)
	w.uint(uint32(len(t.added)))
	for i := range t.added {
		a := &t.added[i]
		w.uint(a.id)
		w.bits(a.special, a.normalized, a.singleWord, a.lstrip, a.rstrip)
		w.text(a.content)
	}
	sum := sha256.Sum256(w.b[start:])
	return append(w.b, sum[:]...)
}

type dumper struct{ b []byte }

func (w *dumper) uint(v uint32) { w.b = binary.LittleEndian.AppendUint32(w.b, v) }

func (w *dumper) bits(flags ...bool) {
	v := uint32(0)
	for i, f := range flags {
		if f {
			v |= 1 << i
		}
	}
	w.uint(v)
}

func (w *dumper) text(s string) {
	w.uint(uint32(len(s)))
	w.b = append(w.b, s...)
}

func (w *dumper) ids(list []uint32) {
	w.uint(uint32(len(list)))
	for _, v := range list {
		w.uint(v)
	}
}

func (w *dumper) set(b bitset) {
	w.uint(uint32(len(b)))
	for _, v := range b {
		w.b = binary.LittleEndian.AppendUint64(w.b, v)
	}
}

func (w *dumper) seams(s *seams) {
	at := len(w.b)
	w.uint(0)
	n := uint32(0)
	if s != nil {
		s.each(func(a, b rune) {
			w.uint(uint32(a))
			w.uint(uint32(b))
			n++
		})
	}
	binary.LittleEndian.PutUint32(w.b[at:], n)
}

// FromTables loads what AppendTables has written for a tokenizer.json with that
// digest.
func FromTables(data []byte, digest [sha256.Size]byte) (*Tokenizer, error) {
	n := len(data) - sha256.Size
	if n < 0 {
		return nil, fmt.Errorf("%w: they are too short", ErrTables)
	}
	if sum := sha256.Sum256(data[:n]); !bytes.Equal(sum[:], data[n:]) {
		return nil, fmt.Errorf("%w: they are damaged", ErrTables)
	}
	head := append([]byte(tablesMagic), digest[:]...)
	if !bytes.HasPrefix(data[:n], head) {
		return nil, fmt.Errorf("%w: they are of another version or tokenizer.json", ErrTables)
	}
	r := loader{b: data[len(head):n]}
	t, err := r.tokenizer()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTables, err)
	}
	return t, nil
}

// loader reads what a dumper has written. What is too short is zero, and bad.
type loader struct {
	b   []byte
	bad bool
}

var errShort = errors.New("they end too early")

func (r *loader) tokenizer() (*Tokenizer, error) {
	flags := r.uint()
	kind := form{pieces: flags&flagPieces != 0, nfc: flags&flagNFC != 0, patterns: string(r.take(r.uint()))}
	if !kind.pieces && scanners[kind.patterns] == nil {
		return nil, errors.New("they have an unknown pattern")
	}
	kind.prefix, kind.suffix = r.ids(), r.ids()
	t := newTokenizer(kind, flags&flagIgnoreMerges != 0)
	if copy(t.bytes[:], r.ids()) != 256 {
		return nil, errShort
	}
	t.tokens = r.texts(r.ids())
	t.reachable, t.whole = r.set(), r.set()
	if words := (len(t.tokens) + 63) / 64; len(t.reachable) != words || len(t.whole) != words {
		return nil, errShort
	}
	if !r.merges(t) {
		return nil, errors.New("they have a merge of no ids, or one twice")
	}
	r.seams(t)
	r.added(t)
	if r.bad || len(r.b) > 0 {
		return nil, errShort
	}
	if err := t.inRange(); err != nil {
		return nil, err
	}
	t.ready()
	return t, nil
}

func (r *loader) take(n uint32) []byte {
	if uint64(n) > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *loader) uint() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// list is the bytes of a list whose items have that size, and how many.
func (r *loader) list(size uint32) (b []byte, n int) {
	count := r.uint()
	if uint64(count)*uint64(size) > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return nil, 0
	}
	return r.take(count * size), int(count)
}

func (r *loader) ids() []uint32 {
	b, n := r.list(4)
	if n == 0 {
		return nil
	}
	out := make([]uint32, n)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return out
}

// texts are strings of those lengths, all in one.
func (r *loader) texts(lengths []uint32) []string {
	total := uint64(0)
	for _, n := range lengths {
		total += uint64(n)
	}
	if total > uint64(len(r.b)) {
		r.bad = true
		return nil
	}
	all := string(r.take(uint32(total)))
	out := make([]string, len(lengths))
	for i, n := range lengths {
		out[i], all = all[:n], all[n:]
	}
	return out
}

func (r *loader) set() bitset {
	b, n := r.list(8)
	out := make(bitset, n)
	for i := range out {
		out[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return out
}

func (r *loader) merges(t *Tokenizer) bool {
	b, n := r.list(12)
	if n > maxMerges || len(t.tokens) > maxID {
		return false
	}
	t.merges = newMerges(n)
	ids := uint32(len(t.tokens))
	for i := range n {
		m := b[12*i:]
		x, y, id := binary.LittleEndian.Uint32(m), binary.LittleEndian.Uint32(m[4:]), binary.LittleEndian.Uint32(m[8:])
		if x >= ids || y >= ids || id >= ids || !t.merges.add(x, y, i, id) {
			return false
		}
	}
	return true
}

func (r *loader) seams(t *Tokenizer) {
	b, n := r.list(8)
	if n > 0 && !t.pieces {
		r.bad = true
		return
	}
	for i := range n {
		x, y := binary.LittleEndian.Uint32(b[8*i:]), binary.LittleEndian.Uint32(b[8*i+4:])
		if x > utf8.MaxRune || y > utf8.MaxRune {
			r.bad = true
			return
		}
		t.seams.add(rune(x), rune(y))
	}
}

func (r *loader) added(t *Tokenizer) {
	n := r.uint()
	for range n {
		a := addedToken{id: r.uint()}
		flags := r.uint()
		a.special, a.normalized, a.singleWord = flags&flagSpecial != 0, flags&flagNormalized != 0, flags&flagSingleWord != 0
		a.lstrip, a.rstrip = flags&flagLStrip != 0, flags&flagRStrip != 0
		if a.content = string(r.take(r.uint())); r.bad || a.content == "" {
			r.bad = true
			return
		}
		t.added = append(t.added, a)
	}
}

// inRange checks the ids that were not yet.
func (t *Tokenizer) inRange() error {
	lists := [][]uint32{t.prefix, t.suffix, t.bytes[:]}
	for i := range t.added {
		lists = append(lists, []uint32{t.added[i].id})
	}
	for _, list := range lists {
		for _, id := range list {
			if int(id) >= len(t.tokens) {
				return fmt.Errorf("they have the id %d, which there is not", id)
			}
		}
	}
	return nil
}
