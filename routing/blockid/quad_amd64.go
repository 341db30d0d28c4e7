package blockid

import "golang.org/x/sys/cpu"

// quad hashes four blocks that follow each other, one in each 64-bit lane of
// AVX2's registers. from is the state of the key, size the tokens in a block,
// a multiple of lane and not 0, and last the word that ends the message.
//
//go:noescape
func quad(dst *[4]uint64, from *state, tokens *uint32, size int, last uint64)

// appendQuads appends the ids of as many blocks as can be hashed four at a
// time: none where the processor cannot.
func appendQuads(dst []uint64, key *Key, tokens []uint32, size int) []uint64 {
	if !cpu.X86.HasAVX2 {
		return dst
	}
	from, last := start(key), uint64(size)*4<<56
	var ids [4]uint64
	for len(tokens) >= 4*size {
		quad(&ids, &from, &tokens[0], size, last)
		dst = append(dst, ids[:]...)
		tokens = tokens[4*size:]
	}
	return dst
}
