package kvevents

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
)

// MaxHash is the longest digest an engine may name a block by, in bytes.
const MaxHash = 32

// A Hash is the engine's own name of a block: 64 bits or a digest, opaque and
// usually seeded at random, so it means nothing beyond one engine process.
// Values are comparable; the zero value names no block.
type Hash struct {
	size uint8 // 0 none, 1..MaxHash a digest of so many bytes, intHash an integer
	b    [MaxHash]byte
}

const intHash = 0xff

// IntHash is a hash sent as an integer. Engines that send it signed mean the
// same 64 bits.
func IntHash(u uint64) Hash {
	h := Hash{size: intHash}
	binary.BigEndian.PutUint64(h.b[:], u)
	return h
}

// BytesHash is a hash sent as 1 to [MaxHash] bytes.
func BytesHash(b []byte) (Hash, error) {
	if len(b) == 0 || len(b) > MaxHash {
		return Hash{}, fmt.Errorf("block hash of %d bytes, want 1 to %d", len(b), MaxHash)
	}
	h := Hash{size: uint8(len(b))}
	copy(h.b[:], b)
	return h, nil
}

// IsZero reports whether h names no block.
func (h Hash) IsZero() bool { return h == Hash{} }

// Uint64 returns the integer, if it was sent as one.
func (h Hash) Uint64() (u uint64, ok bool) {
	return binary.BigEndian.Uint64(h.b[:]), h.size == intHash
}

// Bytes returns the digest, or the big-endian integer.
func (h Hash) Bytes() []byte {
	if h.size == intHash {
		return h.b[:8]
	}
	return h.b[:h.size]
}

// String is the decimal integer or the hexadecimal digest.
func (h Hash) String() string {
	if u, ok := h.Uint64(); ok {
		return strconv.FormatUint(u, 10)
	}
	return hex.EncodeToString(h.Bytes())
}
