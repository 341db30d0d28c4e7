package kvevents

import (
	"encoding/binary"
	"errors"
	"math"
)

// Errors of a reader. A value of another type than was asked for leaves the
// reader where it was; a truncated one ends it.
var (
	errTruncated = errors.New("msgpack: truncated")
	errType      = errors.New("msgpack: value of another type")
)

// A reader walks over MessagePack without copying. It never recurses.
type reader struct {
	b   []byte
	off int
}

// msgpack kinds of value, as far as we tell them apart.
type kind uint8

const (
	kindOther kind = iota // bool, float, ext, reserved
	kindNil
	kindInt
	kindStr
	kindBin
	kindArray
	kindMap
)

// A header is a value's first bytes: its kind, and its integer value or the
// number of bytes, elements or pairs that follow.
type header struct {
	kind     kind
	negative bool
	n        uint64 // the value's bit pattern if kindInt, else the count that follows
	size     int    // bytes of the header itself
}

func (r *reader) peek() (header, error) {
	if r.off >= len(r.b) {
		return header{}, errTruncated
	}
	c := r.b[r.off]
	switch {
	case c <= 0x7f:
		return header{kind: kindInt, n: uint64(c), size: 1}, nil
	case c <= 0x8f:
		return header{kind: kindMap, n: uint64(c & 0x0f), size: 1}, nil
	case c <= 0x9f:
		return header{kind: kindArray, n: uint64(c & 0x0f), size: 1}, nil
	case c <= 0xbf:
		return header{kind: kindStr, n: uint64(c & 0x1f), size: 1}, nil
	case c >= 0xe0:
		return header{kind: kindInt, negative: true, n: uint64(int64(int8(c))), size: 1}, nil
	}
	return r.peekWide(c)
}

// wide describes the formats 0xc0 to 0xdf: their kind, the width of the
// integer after the first byte, and bytes of content beyond what it says.
var wide = [32]struct {
	kind  kind
	width uint8
	fixed uint8
	sign  bool
	bad   bool
}{
	0x00: {kind: kindNil}, 0x01: {bad: true}, 0x02: {}, 0x03: {},
	0x04: {kind: kindBin, width: 1}, 0x05: {kind: kindBin, width: 2}, 0x06: {kind: kindBin, width: 4},
	0x07: {width: 1, fixed: 1}, 0x08: {width: 2, fixed: 1}, 0x09: {width: 4, fixed: 1}, // ext
	0x0a: {fixed: 4}, 0x0b: {fixed: 8}, // float
	0x0c: {kind: kindInt, width: 1}, 0x0d: {kind: kindInt, width: 2},
	0x0e: {kind: kindInt, width: 4}, 0x0f: {kind: kindInt, width: 8},
	0x10: {kind: kindInt, width: 1, sign: true}, 0x11: {kind: kindInt, width: 2, sign: true},
	0x12: {kind: kindInt, width: 4, sign: true}, 0x13: {kind: kindInt, width: 8, sign: true},
	0x14: {fixed: 2}, 0x15: {fixed: 3}, 0x16: {fixed: 5}, 0x17: {fixed: 9}, 0x18: {fixed: 17}, // fixext
	0x19: {kind: kindStr, width: 1}, 0x1a: {kind: kindStr, width: 2}, 0x1b: {kind: kindStr, width: 4},
	0x1c: {kind: kindArray, width: 2}, 0x1d: {kind: kindArray, width: 4},
	0x1e: {kind: kindMap, width: 2}, 0x1f: {kind: kindMap, width: 4},
}

func (r *reader) peekWide(c byte) (header, error) {
	w := wide[c-0xc0]
	if w.bad {
		return header{}, errors.New("msgpack: reserved format 0xc1")
	}
	rest := r.b[r.off+1:]
	if len(rest) < int(w.width) {
		return header{}, errTruncated
	}
	h := header{kind: w.kind, size: 1 + int(w.width)}
	switch w.width {
	case 1:
		h.n = uint64(rest[0])
	case 2:
		h.n = uint64(binary.BigEndian.Uint16(rest))
	case 4:
		h.n = uint64(binary.BigEndian.Uint32(rest))
	case 8:
		h.n = binary.BigEndian.Uint64(rest)
	}
	if w.sign {
		shift := 64 - 8*uint(w.width)
		h.n = uint64(int64(h.n<<shift) >> shift)
		h.negative = int64(h.n) < 0
	}
	h.n += uint64(w.fixed)
	return h, nil
}

// count is the number of bytes or values that follow the header. Each is at
// least a byte, so a number that cannot be true is refused before it is used.
func (r *reader) count(h header, each int) (int, error) {
	if h.n > uint64(len(r.b)-r.off-h.size)/uint64(each) {
		return 0, errTruncated
	}
	return int(h.n), nil
}

// skip passes over one value of any depth.
func (r *reader) skip() error {
	for todo := 1; todo > 0; todo-- {
		h, err := r.peek()
		if err != nil {
			return err
		}
		switch h.kind {
		case kindArray, kindMap:
			each := 1
			if h.kind == kindMap {
				each = 2
			}
			n, err := r.count(h, each)
			if err != nil {
				return err
			}
			todo += n * each
			r.off += h.size
		case kindNil, kindInt:
			r.off += h.size
		default:
			n, err := r.count(h, 1)
			if err != nil {
				return err
			}
			r.off += h.size + n
		}
	}
	return nil
}

// isNil passes over a nil if there is one.
func (r *reader) isNil() bool {
	if r.off < len(r.b) && r.b[r.off] == 0xc0 {
		r.off++
		return true
	}
	return false
}

// container reads the header of an array or map.
func (r *reader) container(k kind) (int, error) {
	h, err := r.peek()
	if err != nil {
		return 0, err
	}
	if h.kind != k {
		return 0, errType
	}
	each := 1
	if k == kindMap {
		each = 2
	}
	n, err := r.count(h, each)
	if err == nil {
		r.off += h.size
	}
	return n, err
}

// bytes reads a string or binary. The result is part of the input.
func (r *reader) bytes() ([]byte, error) {
	h, err := r.peek()
	if err != nil {
		return nil, err
	}
	if h.kind != kindStr && h.kind != kindBin {
		return nil, errType
	}
	n, err := r.count(h, 1)
	if err != nil {
		return nil, err
	}
	from := r.off + h.size
	r.off = from + n
	return r.b[from:r.off], nil
}

// bits reads an integer as its 64-bit pattern.
func (r *reader) bits() (u uint64, negative bool, err error) {
	h, err := r.peek()
	if err != nil {
		return 0, false, err
	}
	if h.kind != kindInt {
		return 0, false, errType
	}
	r.off += h.size
	return h.n, h.negative, nil
}

// int reads an integer between lo and hi.
func (r *reader) int(lo, hi int64) (int64, error) {
	u, negative, err := r.bits()
	if err != nil {
		return 0, err
	}
	if !negative && u > math.MaxInt64 || int64(u) < lo || int64(u) > hi {
		return 0, errType
	}
	return int64(u), nil
}

// float reads a number.
func (r *reader) float() (float64, error) {
	rest := r.b[min(r.off, len(r.b)):]
	switch {
	case len(rest) >= 9 && rest[0] == 0xcb:
		r.off += 9
		return math.Float64frombits(binary.BigEndian.Uint64(rest[1:])), nil
	case len(rest) >= 5 && rest[0] == 0xca:
		r.off += 5
		return float64(math.Float32frombits(binary.BigEndian.Uint32(rest[1:]))), nil
	}
	u, negative, err := r.bits()
	if negative {
		return float64(int64(u)), err
	}
	return float64(u), err
}
