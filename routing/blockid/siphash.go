package blockid

import (
	"encoding/binary"
	"math/bits"
)

// state is SipHash's four words. See Aumasson and Bernstein, "SipHash: a fast
// short-input PRF" (2012), section 2.
type state struct{ v0, v1, v2, v3 uint64 }

func start(key *Key) state {
	k0 := binary.LittleEndian.Uint64(key[0:8])
	k1 := binary.LittleEndian.Uint64(key[8:16])
	return state{
		k0 ^ 0x736f6d6570736575,
		k1 ^ 0x646f72616e646f6d,
		k0 ^ 0x6c7967656e657261,
		k1 ^ 0x7465646279746573,
	}
}

// add absorbs one message word with two rounds.
func (s *state) add(m uint64) {
	v0, v1, v2, v3 := s.v0, s.v1, s.v2, s.v3^m

	v0 += v1
	v1 = bits.RotateLeft64(v1, 13) ^ v0
	v0 = bits.RotateLeft64(v0, 32)
	v2 += v3
	v3 = bits.RotateLeft64(v3, 16) ^ v2
	v0 += v3
	v3 = bits.RotateLeft64(v3, 21) ^ v0
	v2 += v1
	v1 = bits.RotateLeft64(v1, 17) ^ v2
	v2 = bits.RotateLeft64(v2, 32)

	v0 += v1
	v1 = bits.RotateLeft64(v1, 13) ^ v0
	v0 = bits.RotateLeft64(v0, 32)
	v2 += v3
	v3 = bits.RotateLeft64(v3, 16) ^ v2
	v0 += v3
	v3 = bits.RotateLeft64(v3, 21) ^ v0
	v2 += v1
	v1 = bits.RotateLeft64(v1, 17) ^ v2
	v2 = bits.RotateLeft64(v2, 32)

	s.v0, s.v1, s.v2, s.v3 = v0^m, v1, v2, v3
}

// end absorbs the last word, which carries the message length in its top byte,
// and finishes with four rounds.
func (s *state) end(last uint64) uint64 {
	s.add(last)
	s.v2 ^= 0xff
	s.add(0)
	s.add(0)
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3
}

// tail reads up to seven bytes as a little-endian integer.
func tail(p []byte) uint64 {
	var w uint64
	for i, b := range p {
		w |= uint64(b) << (8 * i)
	}
	return w
}
