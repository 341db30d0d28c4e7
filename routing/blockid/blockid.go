// Package blockid computes the ids under which Sallyport knows prompt blocks
// and cache namespaces: SipHash-2-4 under a key that is random per gateway.
//
// Start at [Append], which cuts a prompt's token ids into full blocks, and
// [Namespace], which names the cache domain the blocks live in.
//
// # Format
//
//	block id  = SipHash-2-4(key, tokens as little-endian uint32 ‖ extra)
//	namespace = SipHash-2-4(key, LenPrefix(model, adapter, domain))
//	sole      = SipHash-2-4(key, LenPrefix("sole", domain))
//
// An id says what a block holds, not where it stands: ids are not chained, the
// prefix is the path of ids from the root. Adapter and cache salt are not in
// the id; they choose the namespace. The key keeps a caller, who chooses the
// tokens, from constructing blocks whose ids collide, and keeps ids worthless
// outside the processes that share it.
package blockid

import "encoding/binary"

// Key is a SipHash key. The zero key works but is known to everyone: use a
// random one.
type Key [16]byte

// Sum is SipHash-2-4 of p, as in the reference implementation's 64-bit output
// read as a little-endian integer.
func Sum(key *Key, p []byte) uint64 {
	s := start(key)
	n := uint64(len(p))
	for len(p) >= 8 {
		s.add(binary.LittleEndian.Uint64(p))
		p = p[8:]
	}
	return s.end(tail(p) | n<<56)
}

// Tokens is the id of the block with these tokens. extra is the canonical form
// of what else the engine keyed the block by (a multimodal item's hash and
// offset, say); nil for plain text.
func Tokens(key *Key, tokens []uint32, extra []byte) uint64 {
	s := start(key)
	n := uint64(len(tokens))*4 + uint64(len(extra))
	for len(tokens) >= 2 {
		s.add(uint64(tokens[0]) | uint64(tokens[1])<<32)
		tokens = tokens[2:]
	}
	if len(tokens) == 0 {
		for len(extra) >= 8 {
			s.add(binary.LittleEndian.Uint64(extra))
			extra = extra[8:]
		}
		return s.end(tail(extra) | n<<56)
	}
	// An odd token leaves half a word for the first four bytes of extra.
	half := uint64(tokens[0])
	for len(extra) >= 4 {
		s.add(half | uint64(binary.LittleEndian.Uint32(extra))<<32)
		extra = extra[4:]
		if len(extra) < 4 {
			return s.end(tail(extra) | n<<56)
		}
		half = uint64(binary.LittleEndian.Uint32(extra))
		extra = extra[4:]
	}
	return s.end(half | tail(extra)<<32 | n<<56)
}

// Append appends the ids of the full blocks of tokens, in order, to dst. A
// last, partial block has no id. A blockSize below 1 yields nothing.
func Append(dst []uint64, key *Key, tokens []uint32, blockSize int) []uint64 {
	if blockSize < 1 {
		return dst
	}
	if blockSize%lane == 0 {
		for _, many := range [...]func([]uint64, *Key, []uint32, int) []uint64{appendQuads, appendPairs} {
			n := len(dst)
			dst = many(dst, key, tokens, blockSize)
			tokens = tokens[(len(dst)-n)*blockSize:]
		}
	}
	for len(tokens) >= blockSize {
		dst = append(dst, Tokens(key, tokens[:blockSize], nil))
		tokens = tokens[blockSize:]
	}
	return dst
}

// Namespace is the id of the cache namespace of a model, an adapter (empty for
// none) and a cache domain.
func Namespace(key *Key, model, adapter, domain string) uint64 {
	return Sum(key, LenPrefix(model, adapter, domain))
}

// Sole names a domain to whoever knows it, and tells others nothing: the one
// domain that a route without proven isolation serves.
func Sole(key *Key, domain string) uint64 {
	return Sum(key, LenPrefix("sole", domain))
}

// LenPrefix joins parts, each preceded by its length in bytes as a
// little-endian uint32, so that no two lists of parts encode alike.
func LenPrefix(parts ...string) []byte {
	n := 0
	for _, p := range parts {
		n += 4 + len(p)
	}
	out := make([]byte, 0, n)
	for _, p := range parts {
		out = binary.LittleEndian.AppendUint32(out, uint32(len(p)))
		out = append(out, p...)
	}
	return out
}
