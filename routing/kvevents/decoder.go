package kvevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Limits on a whole batch, so that a frame of tiny values cannot become a
// hundred times as much memory.
const (
	maxEvents      = 65_536
	maxBatchBlocks = 4 * MaxBlocks
	maxBatchTokens = 4 * MaxTokens
	maxBatchExtra  = 4 * MaxBlocks
)

// Errors that cost an event.
var (
	errField    = errors.New("field is absent or not of its type")
	errTooLarge = errors.New("event is larger than the limits")
)

// A Decoder decodes batches into memory that it reuses. The zero value is
// ready; it is for one goroutine.
type Decoder struct {
	batch  Batch
	hashes []Hash
	tokens []uint32
	extra  []ExtraKey
	blocks [][]ExtraKey
	names  names
}

// Decode decodes one batch, of any dialect. The result is valid until the next
// Decode and does not refer to payload.
//
// An error means that the batch cannot be told from noise: its framing is
// broken, it has no events, or it is empty and has no time either.
func (d *Decoder) Decode(payload []byte) (*Batch, error) {
	d.batch = Batch{Rank: None, Events: d.batch.Events[:0], Skipped: d.batch.Skipped[:0]}
	d.hashes, d.tokens, d.extra, d.blocks = d.hashes[:0], d.tokens[:0], d.extra[:0], d.blocks[:0]
	r := reader{b: payload}
	if err := d.decodeBatch(&r); err != nil {
		return nil, fmt.Errorf("decode event batch at byte %d: %w", r.off, err)
	}
	if r.off != len(payload) {
		return nil, fmt.Errorf("decode event batch: %d bytes follow it", len(payload)-r.off)
	}
	if d.batch.TS == 0 && len(d.batch.Events) == 0 {
		return nil, errors.New("decode event batch: nothing in it")
	}
	return &d.batch, nil
}

func (d *Decoder) decodeBatch(r *reader) error {
	h, err := r.peek()
	if err != nil {
		return err
	}
	var seen int
	switch h.kind {
	case kindArray:
		seen, err = d.batchArray(r)
	case kindMap:
		seen, err = d.batchMap(r)
	default:
		return errType
	}
	if err == nil && seen&(1<<batchEvents) == 0 {
		err = errors.New("no events field")
	}
	return err
}

// Parts of a batch, in the order of the array form.
const (
	batchTS = iota
	batchEvents
	batchRank
	batchOther
)

func (d *Decoder) batchArray(r *reader) (seen int, err error) {
	n, err := r.container(kindArray)
	if err != nil {
		return 0, err
	}
	for i := range n {
		if err := d.batchPart(r, min(i, batchOther)); err != nil {
			return seen, err
		}
		seen |= 1 << min(i, batchOther)
	}
	return seen, nil
}

func (d *Decoder) batchMap(r *reader) (seen int, err error) {
	n, err := r.container(kindMap)
	if err != nil {
		return 0, err
	}
	for range n {
		key, err := r.bytes()
		if err != nil {
			return seen, err
		}
		part := batchOther
		switch string(key) {
		case "ts":
			part = batchTS
		case "events":
			part = batchEvents
		case "data_parallel_rank", "attn_dp_rank": // vLLM, SGLang
			part = batchRank
		}
		if part != batchOther && seen&(1<<part) != 0 {
			return seen, fmt.Errorf("field %q twice", key)
		}
		if err := d.batchPart(r, part); err != nil {
			return seen, err
		}
		seen |= 1 << part
	}
	return seen, nil
}

func (d *Decoder) batchPart(r *reader, part int) (err error) {
	switch part {
	case batchTS:
		d.batch.TS, err = r.float()
	case batchEvents:
		err = d.events(r)
	case batchRank:
		if r.isNil() {
			return nil
		}
		var rank int64
		rank, err = r.int(0, math.MaxUint16)
		d.batch.Rank = int(rank)
	default:
		err = r.skip()
	}
	return err
}

func (d *Decoder) events(r *reader) error {
	n, err := r.container(kindArray)
	if err != nil {
		return err
	}
	if n > maxEvents {
		return fmt.Errorf("%d events, at most %d", n, maxEvents)
	}
	for range n {
		start := r.off
		ev := newEvent()
		err := d.event(r, &ev)
		if err == nil {
			d.batch.Events = append(d.batch.Events, ev)
			continue
		}
		// Its framing may still be sound; then only this event is lost.
		r.off = start
		if err := r.skip(); err != nil {
			return err
		}
		d.batch.skip(ev.Type, reasonFor(err))
	}
	return nil
}

func reasonFor(err error) SkipReason {
	switch {
	case errors.Is(err, errUnknownType):
		return UnknownType
	case errors.Is(err, errTooLarge):
		return TooLarge
	case errors.Is(err, errShape):
		return BadShape
	default:
		return BadField
	}
}

// hash reads one hash: an integer, signed or not, or a digest.
func (r *reader) hash() (Hash, error) {
	u, _, err := r.bits()
	if err == nil {
		return IntHash(u), nil
	}
	b, err := r.bytes()
	if err != nil {
		return Hash{}, err
	}
	return BytesHash(b)
}

func (d *Decoder) hashList(r *reader) ([]Hash, error) {
	n, err := r.container(kindArray)
	if err != nil {
		return nil, err
	}
	from := len(d.hashes)
	if n > MaxBlocks || from+n > maxBatchBlocks {
		return nil, errTooLarge
	}
	for range n {
		h, err := r.hash()
		if err != nil {
			return nil, err
		}
		d.hashes = append(d.hashes, h)
	}
	return d.hashes[from:len(d.hashes):len(d.hashes)], nil
}

func (d *Decoder) tokenList(r *reader) ([]uint32, error) {
	n, err := r.container(kindArray)
	if err != nil {
		return nil, err
	}
	from := len(d.tokens)
	if n > MaxTokens || from+n > maxBatchTokens {
		return nil, errTooLarge
	}
	d.tokens = slices.Grow(d.tokens, n)
	for range n {
		t, err := r.token()
		if err != nil {
			return nil, err
		}
		d.tokens = append(d.tokens, t)
	}
	return d.tokens[from:len(d.tokens):len(d.tokens)], nil
}

// token reads an unsigned integer of up to 32 bits. Token ids are most of what
// engines send, so their usual widths have a short way.
func (r *reader) token() (uint32, error) {
	if b := r.b[min(r.off, len(r.b)):]; len(b) >= 5 {
		switch b[0] {
		case 0xcd:
			r.off += 3
			return uint32(binary.BigEndian.Uint16(b[1:])), nil
		case 0xce:
			r.off += 5
			return binary.BigEndian.Uint32(b[1:]), nil
		}
	}
	u, negative, err := r.bits()
	if err == nil && (negative || u > math.MaxUint32) {
		err = errField
	}
	return uint32(u), err
}

// names interns the strings that come again and again: tiers, adapters, salts
// of one tenant. Its size is bounded by starting over.
type names struct{ m map[string]string }

func (n *names) get(b []byte) string {
	const (
		most    = 4096
		longest = 256
	)
	if len(b) == 0 {
		return ""
	}
	if s, ok := n.m[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(s) > longest {
		return s
	}
	if n.m == nil || len(n.m) == most {
		n.m = make(map[string]string)
	}
	n.m[s] = s
	return s
}
