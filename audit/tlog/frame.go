package tlog

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Sizes of the parts of a frame, in bytes.
const (
	frameHead   = 4 + 4 + 8 + sha256.Size
	trailerSize = 8 + tlog.HashSize + 8 + signatureSize
	sealSize    = sha256.Size

	trailerFrame = frameHead + trailerSize

	signatureSize = 64

	// maxPayload is what a C2SP entry bundle can hold: its entries are
	// prefixed with 16 bits of length.
	maxPayload = 1<<16 - 1
)

// frameKind is the high byte of a frame's length field. It is never 0, so that
// the zeros after the last frame of a segment cannot be read as a frame.
type frameKind byte

const (
	frameRecord  frameKind = 1
	frameTrailer frameKind = 2
	frameHeader  frameKind = 3
	frameSeal    frameKind = 4
)

func (k frameKind) String() string {
	switch k {
	case frameRecord:
		return "record"
	case frameTrailer:
		return "batch trailer"
	case frameHeader:
		return "segment header"
	case frameSeal:
		return "batch seal"
	}
	return fmt.Sprintf("frame of kind %d", byte(k))
}

// chainHash is the running hash over every frame of a log.
type chainHash [sha256.Size]byte

func (c chainHash) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%x", c[:]), nil }

func (c *chainHash) UnmarshalText(text []byte) error {
	var b []byte
	if _, err := fmt.Sscanf(string(text), "%x", &b); err != nil || len(b) != len(c) {
		return fmt.Errorf("chain hash %q is not %d hex bytes", text, len(c))
	}
	copy(c[:], b)
	return nil
}

// genesis is the chain before the first frame of a log. It holds the origin,
// so that frames of one log never chain onto another.
func genesis(origin string) chainHash {
	return sha256.Sum256([]byte("sallyport-tlog-v1\x00" + origin))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frameCRC covers the whole frame but the CRC itself.
func frameCRC(frame []byte) uint32 {
	return crc32.Update(crc32.Checksum(frame[:4], castagnoli), castagnoli, frame[8:])
}

// link computes the chain over frame. It overwrites the CRC and chain fields
// of frame, and returns the new chain without storing it.
func link(frame []byte, prev chainHash) chainHash {
	clear(frame[4:8])
	copy(frame[16:frameHead], prev[:])
	return sha256.Sum256(frame)
}

// linkRecord is link of a record, in which its hash in the tree stands for the
// leaf, so that each leaf is hashed once. It returns that as well.
func linkRecord(frame []byte, prev chainHash) (chainHash, tlog.Hash) {
	frame[frameHead-1] = 0 // what RFC 6962 puts before a leaf
	leaf := sha256.Sum256(frame[frameHead-1:])
	var short [frameHead + tlog.HashSize]byte
	copy(short[:], frame[:frameHead])
	copy(short[frameHead:], leaf[:])
	return link(short[:], prev), leaf
}

// state is where a log stands between two frames. It is a value: a writer
// advances a copy and keeps it once the bytes are durable.
type state struct {
	chain chainHash
	tree  tree
}

// append adds one frame to buf.
func (s *state) append(buf []byte, kind frameKind, payload []byte) []byte {
	buf, _ = s.frame(buf, kind, payload)
	return buf
}

// frame is append that also returns the hash of a record's leaf.
func (s *state) frame(buf []byte, kind frameKind, payload []byte) (_ []byte, leaf tlog.Hash) {
	at := len(buf)
	buf = binary.LittleEndian.AppendUint32(buf, uint32(kind)<<24|uint32(len(payload)))
	buf = append(buf, 0, 0, 0, 0)
	buf = binary.LittleEndian.AppendUint64(buf, s.tree.size)
	buf = append(buf, s.chain[:]...)
	buf = append(buf, payload...)
	frame := buf[at:]
	if kind == frameRecord {
		s.chain, leaf = linkRecord(frame, s.chain)
	} else {
		s.chain = link(frame, s.chain)
	}
	copy(frame[16:], s.chain[:])
	binary.LittleEndian.PutUint32(frame[4:], frameCRC(frame))
	return buf, leaf
}

// appendRecord adds the frame of one leaf and grows the tree by it.
func (s *state) appendRecord(buf, leaf []byte) []byte {
	buf, hash := s.frame(buf, frameRecord, leaf)
	s.tree.add(hash)
	return buf
}

// appendSeal ends the records of a batch whose trailer is to follow.
func (s *state) appendSeal(buf []byte, key *Key) []byte {
	mac := key.seal(s.chain, s.tree.size)
	return s.append(buf, frameSeal, mac[:])
}

// appendTrailer closes a batch: it signs the tree and the chain as they stand.
// root is the tree's.
func (s *state) appendTrailer(buf []byte, key note.Signer, root tlog.Hash, wall int64) ([]byte, error) {
	t := trailer{size: s.tree.size, root: root, wall: wall}
	sig, err := key.Sign(t.message(key.Name(), s.chain))
	if err != nil {
		return nil, fmt.Errorf("sign batch: %w", err)
	}
	copy(t.sig[:], sig)
	return s.append(buf, frameTrailer, t.encode()), nil
}

// appendHeader opens a segment.
func (s *state) appendHeader(buf []byte, h header) ([]byte, error) {
	h.V, h.Size, h.Prev = formatVersion, s.tree.size, s.chain
	payload, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode segment header: %w", err)
	}
	return s.append(buf, frameHeader, payload), nil
}

// trailer is the payload of the frame that ends a batch: tree size (u64),
// root (32 bytes), wall time in µs (i64) and Ed25519 signature (64 bytes).
type trailer struct {
	size uint64
	root tlog.Hash
	wall int64
	sig  [signatureSize]byte
}

func (t *trailer) body() []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, trailerSize), t.size)
	b = append(b, t.root[:]...)
	return binary.LittleEndian.AppendUint64(b, uint64(t.wall))
}

func (t *trailer) encode() []byte { return append(t.body(), t.sig[:]...) }

// message is what the signature covers. The chain makes one signature vouch
// for every byte before it, and the prefix keeps it from being anything else
// that the same key signs.
func (t *trailer) message(origin string, chain chainHash) []byte {
	m := []byte("sallyport-batch-v1\x00" + origin + "\x00")
	m = append(m, chain[:]...)
	return append(m, t.body()...)
}

// parseTrailer reads a payload of trailerSize bytes.
func parseTrailer(b []byte) (t trailer) {
	t.size = binary.LittleEndian.Uint64(b)
	t.root = tlog.Hash(b[8:])
	t.wall = int64(binary.LittleEndian.Uint64(b[8+tlog.HashSize:]))
	copy(t.sig[:], b[trailerSize-signatureSize:])
	return t
}

// formatVersion is the version of segments that this package writes. It also
// reads [formatV1].
const formatVersion = 2

// formatV1 has no seals, and its chain is over the leaves themselves.
const formatV1 = 1

// header is the payload of the first frame of a segment, as JSON.
type header struct {
	V        int       `json:"v"`
	Origin   string    `json:"origin"`
	Key      string    `json:"key"` // verifier key of the trailers that follow
	Segment  int       `json:"segment"`
	Size     uint64    `json:"size"` // tree size where the segment starts
	Prev     chainHash `json:"prev"` // chain where the segment starts
	Poisoned bool      `json:"poisoned,omitempty"`
}

// parseFrame cuts the frame at the start of b and checks its CRC. Where there
// is none, because b is empty or starts with a zero length field, frame is nil
// and code is empty. With a code, kind is the best guess at what is damaged.
func parseFrame(b []byte) (frame []byte, kind frameKind, code Code) {
	if len(b) < frameHead {
		if len(bytes.Trim(b, "\x00")) == 0 {
			return nil, 0, ""
		}
		return nil, 0, Truncated
	}
	word := binary.LittleEndian.Uint32(b)
	if word == 0 {
		return nil, 0, ""
	}
	kind, n := frameKind(word>>24), int(word&0xffffff)
	switch n { // no record or header is that short: its kind byte is damaged
	case trailerSize:
		kind = frameTrailer
	case sealSize:
		kind = frameSeal
	}
	if kind < frameRecord || kind > frameSeal || n == 0 || n > maxPayload {
		return nil, kind, BadFrame
	}
	if len(b) < frameHead+n {
		return nil, kind, Truncated
	}
	frame = b[:frameHead+n]
	if binary.LittleEndian.Uint32(frame[4:]) != frameCRC(frame) {
		return nil, kind, CRCMismatch
	}
	return frame, kind, ""
}
