package blockid

import (
	"math/bits"
)

// A SipHash is one long chain of dependent operations, which leaves most of a
// core idle. Blocks do not depend on each other, so they are hashed side by
// side: four where the processor has AVX2 (quad_amd64.go), and two.

// round is one SipRound.
func round(v0, v1, v2, v3 uint64) (_, _, _, _ uint64) {
	v0 += v1
	v2 += v3
	v1 = bits.RotateLeft64(v1, 13) ^ v0
	v3 = bits.RotateLeft64(v3, 16) ^ v2
	v0 = bits.RotateLeft64(v0, 32)
	v2 += v1
	v0 += v3
	v1 = bits.RotateLeft64(v1, 17) ^ v2
	v3 = bits.RotateLeft64(v3, 21) ^ v0
	v2 = bits.RotateLeft64(v2, 32)
	return v0, v1, v2, v3
}

// lane is the number of tokens that appendPairs takes at a time.
const lane = 8

// appendPairs appends the ids of an even number of blocks, whose size is a
// multiple of lane.
func appendPairs(dst []uint64, key *Key, tokens []uint32, size int) []uint64 {
	from, last := start(key), uint64(size)*4<<56
	for len(tokens) >= 2*size {
		a, b := from, from
		for i := 0; i < size; i += lane {
			absorb(&a, &b, (*[lane]uint32)(tokens[i:]), (*[lane]uint32)(tokens[size+i:]))
		}
		tokens = tokens[2*size:]
		x, y := end2(&a, &b, last)
		dst = append(dst, x, y)
	}
	return dst
}

// absorb adds some tokens to each of two states.
func absorb(a, b *state, s, t *[lane]uint32) {
	a0, a1, a2, a3 := a.v0, a.v1, a.v2, a.v3
	b0, b1, b2, b3 := b.v0, b.v1, b.v2, b.v3
	for i := 0; i < lane; i += 2 {
		m, n := uint64(s[i])|uint64(s[i+1])<<32, uint64(t[i])|uint64(t[i+1])<<32
		a3 ^= m
		b3 ^= n
		a0, a1, a2, a3 = round(a0, a1, a2, a3)
		b0, b1, b2, b3 = round(b0, b1, b2, b3)
		a0, a1, a2, a3 = round(a0, a1, a2, a3)
		b0, b1, b2, b3 = round(b0, b1, b2, b3)
		a0 ^= m
		b0 ^= n
	}
	a.v0, a.v1, a.v2, a.v3 = a0, a1, a2, a3
	b.v0, b.v1, b.v2, b.v3 = b0, b1, b2, b3
}

// end2 is end for two states.
func end2(a, b *state, last uint64) (_, _ uint64) {
	a0, a1, a2, a3 := a.v0, a.v1, a.v2, a.v3^last
	b0, b1, b2, b3 := b.v0, b.v1, b.v2, b.v3^last
	a0, a1, a2, a3 = round(a0, a1, a2, a3)
	b0, b1, b2, b3 = round(b0, b1, b2, b3)
	a0, a1, a2, a3 = round(a0, a1, a2, a3)
	b0, b1, b2, b3 = round(b0, b1, b2, b3)
	a0, b0 = a0^last, b0^last
	a2, b2 = a2^0xff, b2^0xff
	for range 4 {
		a0, a1, a2, a3 = round(a0, a1, a2, a3)
		b0, b1, b2, b3 = round(b0, b1, b2, b3)
	}
	return a0 ^ a1 ^ a2 ^ a3, b0 ^ b1 ^ b2 ^ b3
}
