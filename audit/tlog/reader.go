package tlog

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// position is where a batch starts, and what a reader must know to go on
// from there.
type position struct {
	v       int // format of the segment
	segment int
	offset  int64
	chain   chainHash
	next    uint64 // index of the next record
}

// batch is what one trailer signs.
type batch struct {
	at      position
	after   position
	leaves  [][]byte // valid until the next read, as what follows
	arena   []byte
	bounds  []int       // of each leaf in the arena
	hashes  []tlog.Hash // of the leaves in the tree; none in format 1
	seal    []byte      // its MAC, if it has one
	trailer trailer
	bare    bool          // it has its seal and no trailer
	signed  chainHash     // the chain that the trailer signs, or the seal
	key     note.Verifier // whose signature it must be; set when it is checked
}

// segmentReader reads the batches of one segment file. It checks each frame's
// CRC, sequence and chain; roots and signatures are for its caller.
type segmentReader struct {
	file   readCloserAt
	in     *bufio.Reader
	header header
	pos    position
	arena  []byte // frames of the current batch
	bounds []int  // of each leaf in the arena
	hashes []tlog.Hash
	leaves [][]byte
	sealed *batch // what next could read of a batch that has its seal and no trailer
}

// openSegment opens a segment and reads its header, which it takes at its word.
func openSegment(dir string, number int) (*segmentReader, error) {
	r, err := openSegmentAt(dir, position{segment: number})
	if err != nil {
		return nil, err
	}
	if err := r.readHeader(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// openSegmentAt opens a segment at a batch boundary, past its header.
func openSegmentAt(dir string, at position) (*segmentReader, error) {
	f, err := os.Open(segmentPath(dir, at.segment))
	if err != nil {
		return nil, fmt.Errorf("open segment: %w", err)
	}
	return newSegmentReader(f, at), nil
}

func newSegmentReader(file readCloserAt, at position) *segmentReader {
	in := bufio.NewReaderSize(io.NewSectionReader(file, at.offset, math.MaxInt64-at.offset), 1<<17)
	return &segmentReader{file: file, in: in, pos: at}
}

// readCloserAt is a segment open for reading.
type readCloserAt interface {
	io.ReaderAt
	io.Closer
}

// Close closes the file.
func (r *segmentReader) Close() error { return r.file.Close() }

func (r *segmentReader) fault(code Code, kind frameKind, format string, args ...any) *Fault {
	index, where := r.pos.next, "record"
	switch kind {
	case frameTrailer, frameSeal:
		where = kind.String() + " after the record"
		if index > 0 {
			index--
		}
	case frameHeader:
		where = "segment header before the record"
	}
	return &Fault{
		Code: code, Index: index, Segment: r.pos.segment, Offset: r.pos.offset,
		Detail: where + ": " + fmt.Sprintf(format, args...),
	}
}

// peek returns the frame at the current offset without checking its place in
// the chain. At the end of the frames it returns a nil frame.
func (r *segmentReader) peek() ([]byte, frameKind, error) {
	window, err := r.in.Peek(frameHead)
	if err == nil {
		length := int(binary.LittleEndian.Uint32(window) & 0xffffff)
		window, err = r.in.Peek(frameHead + min(length, maxPayload))
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, fmt.Errorf("read segment %d: %w", r.pos.segment, err)
	}
	frame, kind, code := parseFrame(window)
	if r.pos.offset == 0 {
		kind = frameHeader
	}
	if code != "" {
		return nil, kind, r.fault(code, kind, "%d bytes in sight", len(window))
	}
	return frame, kind, nil
}

// take checks that frame is the next one and moves past it. Its payload is
// appended to the arena; take returns where it starts there.
func (r *segmentReader) take(frame []byte, kind frameKind) (payload int, err error) {
	at := len(r.arena)
	r.arena = append(r.arena, frame...)
	frame = r.arena[at:]
	if seq := binary.LittleEndian.Uint64(frame[8:]); seq != r.pos.next {
		return 0, r.fault(SequenceGap, kind, "sequence %d where %d is due", seq, r.pos.next)
	}
	want := chainHash(frame[16:frameHead])
	var chain chainHash
	if kind == frameRecord && r.pos.v != formatV1 {
		var leaf tlog.Hash
		chain, leaf = linkRecord(frame, r.pos.chain)
		r.hashes = append(r.hashes, leaf)
	} else {
		chain = link(frame, r.pos.chain)
	}
	if chain != want {
		return 0, r.fault(ChainBroken, kind, "does not follow what is before it")
	}
	if _, err := r.in.Discard(len(frame)); err != nil {
		return 0, fmt.Errorf("read segment %d: %w", r.pos.segment, err)
	}
	r.pos.chain = want
	r.pos.offset += int64(len(frame))
	return at + frameHead, nil
}

// readHeader reads the first frame. The sequence and chain that it must have
// are those it states itself; whether they are right is for the caller.
func (r *segmentReader) readHeader() error {
	frame, kind, err := r.peek()
	if err != nil {
		return err
	}
	if frame == nil {
		return r.fault(Truncated, frameHeader, "the segment starts with none")
	}
	if frameKind(frame[3]) != frameHeader {
		return r.fault(OutOfPlace, frameHeader, "the segment starts with another frame")
	}
	if err := json.Unmarshal(frame[frameHead:], &r.header); err != nil || r.header.V != formatVersion && r.header.V != formatV1 {
		return r.fault(BadHeader, frameHeader, "of neither format %d nor %d", formatV1, formatVersion)
	}
	r.pos.v, r.pos.next, r.pos.chain = r.header.V, r.header.Size, r.header.Prev
	r.arena = r.arena[:0]
	if _, err := r.take(frame, kind); err != nil {
		return err
	}
	if r.header.Segment != r.pos.segment {
		return r.fault(BadHeader, frameHeader, "segment %d is in the file of segment %d", r.header.Segment, r.pos.segment)
	}
	return nil
}

// next reads one batch. At the end of the last batch it returns io.EOF; damage
// and an unfinished batch are a *[Fault].
func (r *segmentReader) next() (*batch, error) {
	b := &batch{at: r.pos}
	r.arena, r.bounds, r.hashes, r.sealed = r.arena[:0], r.bounds[:0], r.hashes[:0], nil
	for {
		frame, kind, err := r.peek()
		switch {
		case err != nil:
			return nil, err
		case frame == nil && r.pos.offset == b.at.offset:
			return nil, io.EOF
		case frame == nil && r.sealed != nil:
			return nil, r.fault(Unsigned, frameTrailer, "%d records are sealed, and not signed yet: whoever has the key signs them when the log is opened next", len(r.sealed.leaves))
		case frame == nil:
			return nil, r.fault(Truncated, frameRecord, "the log ends inside a batch")
		case !r.mayBe(kind):
			return nil, r.fault(OutOfPlace, kind, "not where one can be")
		}
		before := r.pos.chain
		payload, err := r.take(frame, kind)
		if err != nil {
			return nil, err
		}
		switch kind {
		case frameTrailer:
			b.trailer, b.bare = parseTrailer(r.arena[payload:]), false
			r.close(b, before)
			return b, nil
		case frameSeal:
			b.seal, b.bare = bytes.Clone(r.arena[payload:]), true
			r.close(b, before)
			r.sealed = b
		default:
			r.bounds = append(r.bounds, payload, len(r.arena))
			r.pos.next++
		}
	}
}

// mayBe says whether a frame of that kind may come next in a batch: records,
// then a seal or none, then a trailer.
func (r *segmentReader) mayBe(kind frameKind) bool {
	switch kind {
	case frameRecord:
		return r.sealed == nil
	case frameSeal:
		return r.sealed == nil && len(r.bounds) > 0 && r.pos.v != formatV1
	case frameTrailer:
		return len(r.bounds) > 0
	}
	return false
}

// close sets what there is in a batch, after its seal or trailer has been read.
func (r *segmentReader) close(b *batch, before chainHash) {
	b.signed, b.after = before, r.pos
	r.leaves = r.leaves[:0]
	for i := 0; i < len(r.bounds); i += 2 {
		r.leaves = append(r.leaves, r.arena[r.bounds[i]:r.bounds[i+1]:r.bounds[i+1]])
	}
	b.leaves, b.arena, b.bounds, b.hashes = r.leaves, r.arena, r.bounds, r.hashes
}

// rest faults unless what remains of the segment is zeros.
func (r *segmentReader) rest() error {
	buf := make([]byte, 1<<16)
	for {
		n, err := r.in.Read(buf)
		if len(bytes.Trim(buf[:n], "\x00")) > 0 {
			return r.fault(TrailingData, frameTrailer, "bytes that are not zero follow it")
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read segment %d: %w", r.pos.segment, err)
		}
	}
}

// marks of the frames that end what a batch says.
var (
	trailerMark = binary.LittleEndian.AppendUint32(nil, uint32(frameTrailer)<<24|trailerSize)
	sealMark    = binary.LittleEndian.AppendUint32(nil, uint32(frameSeal)<<24|sealSize)
)

// nextMark is where a trailer or seal may begin, or -1.
func nextMark(b []byte) int {
	i, j := bytes.Index(b, trailerMark), bytes.Index(b, sealMark)
	if i < 0 || j >= 0 && j < i {
		return j
	}
	return i
}

// endsBeyond says whether a trailer or seal with a valid CRC starts at or after
// offset: then what is damaged before it is not a torn write.
func endsBeyond(dir string, number int, offset int64) (bool, error) {
	f, err := os.Open(segmentPath(dir, number))
	if err != nil {
		return false, fmt.Errorf("read segment: %w", err)
	}
	defer f.Close()
	const overlap = frameHead + trailerSize // a trailer may lie across two reads
	buf := make([]byte, 1<<20)
	for {
		n, err := f.ReadAt(buf, offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return false, fmt.Errorf("read segment: %w", err)
		}
		for at := 0; ; at++ {
			i := nextMark(buf[at:n])
			if i < 0 {
				break
			}
			at += i
			if frame, _, _ := parseFrame(buf[at:n]); frame != nil {
				return true, nil
			}
		}
		if err != nil {
			return false, nil
		}
		offset += int64(n - overlap)
	}
}
