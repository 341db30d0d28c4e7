package tlog

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/durable"
)

// recovered is what a log directory holds, and what is to be cut from it
// before the log can go on. Finding out changes nothing on disk.
type recovered struct {
	state     state
	last      int // number of the last segment, -1 in a new log
	marks     marks
	clean     bool // the last record is the seal of an orderly shutdown
	open      []summary
	published uint64        // size of the checkpoint file's tree
	ends      map[int]int64 // where each segment that is not poisoned ends
	drop      []int         // segments in which no batch was ever signed
	start     uint64        // where the leaves begin
	pruned    uint64        // where they should
	rotations []audit.Turn
	torn      int64 // bytes of an unfinished batch that are to be cut

	// The last batch had its seal and not its trailer yet, which is then this
	// frame: so many records were acknowledged, or might have been.
	trailer       []byte
	signed        chainHash // after it
	countersigned int

	// later are changes of the key that come after what the directory holds. Of a
	// seal under a key before them, only the key that is gone could tell whose it is.
	later []audit.Turn
}

// recoverLog replays the segments of dir, which must extend its checkpoint and
// what else is held against it. Of what was pruned, tiles holds the hashes. It
// returns an error, and so leaves the log as
// it is, unless all damage there is can be explained by one write that was
// under way when the process died.
func recoverLog(dir, tiles string, key *Key, held ...heldCheckpoint) (*recovered, error) {
	rec := new(recovered)
	if err := rec.recover(dir, tiles, key, held...); err != nil {
		return nil, err
	}
	return rec, nil
}

func (rec *recovered) recover(dir, tiles string, key *Key, held ...heldCheckpoint) error {
	segs, err := listSegments(dir)
	if err != nil {
		return err
	}
	if err := checkSpares(dir, segs); err != nil {
		return fmt.Errorf("log in %s is left untouched: %w", dir, err)
	}
	rec.last, rec.clean, rec.ends = -1, true, make(map[int]int64)
	if segs, err = rec.dropUnfinished(dir, segs, key); err != nil {
		return err
	}
	cp, err := readCheckpoint(dir, key.Verifier())
	if err != nil {
		return err
	}
	if err := rec.replay(dir, tiles, segs, key, append(held, cp)); err != nil {
		return fmt.Errorf("log in %s is left untouched: %w", dir, err)
	}
	rec.published = cp.size
	return nil
}

// checkSpares checks that the segments that begin with zeros, and so pass for
// unused, hold no more than one batch: the first, of which the power went before
// the disk had written the first sector.
func checkSpares(dir string, used []int) error {
	last := -1
	if len(used) > 0 {
		last = used[len(used)-1]
	}
	for number := last + 1; ; number++ {
		data, err := os.ReadFile(segmentPath(dir, number))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read spare segment: %w", err)
		}
		if len(ends(data)) > 1 {
			return &Fault{Code: BadFrame, Segment: number, Detail: "a segment that begins with zeros holds batches"}
		}
	}
}

// dropUnfinished takes segments off the end whose first batch was neither signed
// nor sealed: they were being started when the process died.
func (rec *recovered) dropUnfinished(dir string, segs []int, key *Key) ([]int, error) {
	for len(segs) > 0 {
		number := segs[len(segs)-1]
		h, sealed, err := firstBatch(dir, number)
		if err != nil && sealed != nil {
			err = rec.isSealed(h, sealed, key)
		}
		if err == nil {
			break
		}
		var fault *Fault
		if !errors.As(err, &fault) {
			return nil, err
		}
		more, err := endsBeyond(dir, number, 0)
		if more && err == nil {
			var torn bool
			torn, err = lostSectors(dir, number, 0, false)
			more = !torn
		}
		if err != nil || more || fault.Code == BadSeal {
			return nil, errors.Join(fmt.Errorf("log in %s is left untouched: %w", dir, fault), err)
		}
		n, err := bytesFrom(dir, number, 0)
		if err != nil {
			return nil, err
		}
		rec.torn += n
		rec.drop = append(rec.drop, number)
		segs = segs[:len(segs)-1]
	}
	return segs, nil
}

// isSealed checks a batch's seal. The error is a *[Fault].
func (rec *recovered) isSealed(h header, b *batch, key *Key) error {
	if slices.ContainsFunc(rec.later, func(t audit.Turn) bool { return t.Old == h.Key }) {
		return nil
	}
	if h.Key != key.VerifierKey() {
		return b.fault(KeyMismatch, "the records before it wait for a signature of %s, and this is %s", h.Key, key.VerifierKey())
	}
	if mac := key.seal(b.signed, b.after.next); !hmac.Equal(mac[:], b.seal) {
		return b.fault(BadSeal, "the log's key did not make the seal of the records before it")
	}
	return nil
}

// countersign takes a batch that has its seal but not its trailer, and makes
// that. The log's own key sealed it, once its records were given to a disk, so
// they may have been acknowledged.
func (rec *recovered) countersign(c *checker, h header, b *batch, key *Key) error {
	if err := rec.isSealed(h, b, key); err != nil {
		return err
	}
	if err := c.check(h, b); err != nil {
		return err
	}
	st := state{chain: b.after.chain, tree: c.tree}
	var err error
	if rec.trailer, err = st.appendTrailer(nil, key, c.tree.root(), time.Now().UnixMicro()); err != nil {
		return err
	}
	rec.signed, rec.countersigned = st.chain, len(b.leaves)
	return nil
}

// replay walks the log and checks it. Of the signatures it checks only the
// last in each segment: through the chain it vouches for all before it.
func (rec *recovered) replay(dir, tiles string, segs []int, key *Key, held []heldCheckpoint) error {
	w := walk(dir, segs, key.Name())
	w.deep = true
	defer w.Close()
	c, err := newChecker(key.Verifier(), w, tiles, held...)
	if err != nil {
		return err
	}
	var (
		open openDecisions
		z    summarizer
		last *batch // of the current segment
	)
	take := func(b *batch) error {
		last = b
		rec.ends[b.at.segment], rec.last = b.after.offset, b.at.segment
		if w.cur.header.Poisoned {
			delete(rec.ends, b.at.segment-1)
		}
		rec.marks.add(b.at)
		for _, leaf := range b.leaves {
			s, err := z.read(leaf)
			if err != nil {
				return err
			}
			if open.see(s); s.Kind == audit.KindBoot {
				open = openDecisions{} // written only after all before it were answered
			}
			rec.clean = s.Kind == audit.KindSeal
		}
		return nil
	}
	for {
		b, err := w.batch()
		if last != nil && (err != nil || b.at.segment != last.at.segment) && !last.isSigned() {
			return last.fault(BadSignature, "not signed by the key that its segment names")
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			if err := c.check(w.cur.header, b); err != nil {
				return err
			}
			if err := take(b); err != nil {
				return err
			}
			continue
		}
		if b := w.sealed(); b != nil && b.at.segment == segs[len(segs)-1] {
			if err := rec.countersign(c, w.cur.header, b, key); err != nil {
				return err
			}
			if err := take(b); err != nil {
				return err
			}
		}
		if err := rec.tear(dir, segs, last, err); err != nil {
			return err
		}
		break
	}
	if err := cmp.Or(c.ring.foresee(rec.later, c.tree.size), c.end()); err != nil {
		return err
	}
	if len(c.ring.held) > 0 && c.ring.current().vkey != key.VerifierKey() {
		return &Fault{Code: KeyMismatch, Index: c.tree.size, Detail: fmt.Sprintf("the log's key was changed to %s, and this is %s", c.ring.current().vkey, key.VerifierKey())}
	}
	rec.start, rec.pruned, rec.rotations = c.start, c.pruned, c.ring.rotations
	rec.state = state{chain: genesis(key.Name()), tree: c.tree}
	switch {
	case rec.countersigned > 0:
		rec.state.chain = rec.signed
	case last != nil:
		rec.state.chain = last.after.chain
	}
	rec.clean = rec.clean && rec.torn == 0 && rec.countersigned == 0
	rec.open = open.list()
	return nil
}

// tear decides whether damage is the rest of a write that was under way. A
// batch was acknowledged only once all up to its seal, or to its trailer if it
// has no seal, was durable. So damage with one of these beyond it is not, unless
// sectors are missing from what was written last; neither is a whole frame out of
// place.
func (rec *recovered) tear(dir string, segs []int, last *batch, err error) error {
	var fault *Fault
	if !errors.As(err, &fault) || last == nil || fault.Segment != last.at.segment {
		return err
	}
	if !fault.torn {
		if !fault.Code.torn() || fault.Segment != segs[len(segs)-1] {
			return err
		}
		torn, lostErr := lostSectors(dir, fault.Segment, last.after.offset, last.bare)
		if lostErr != nil || !torn {
			return errors.Join(err, lostErr)
		}
	}
	n, readErr := bytesFrom(dir, last.at.segment, last.after.offset)
	if readErr != nil {
		return readErr
	}
	rec.torn += n
	return nil
}

// sectorSize is the least that a disk writes at once, in bytes.
const sectorSize = 512

// lostSectors says whether what follows offset is one batch that a disk was
// writing when the power went: its seal or trailer is there and nothing beyond
// it, but of the sectors before some are still the zeros that the segment was
// filled with. A disk may write the sectors of a batch in any order until they
// are synced, and only after that was the batch acknowledged, and its trailer
// written if it has a seal. With it the trailer before is synced: if that is due,
// it may be there, or some of it.
//
// Whoever can write such zeros could as well cut the batch off; see the package
// comment for what tells of that.
func lostSectors(dir string, number int, offset int64, due bool) (bool, error) {
	data, err := os.ReadFile(segmentPath(dir, number))
	if err != nil {
		return false, fmt.Errorf("look at torn segment: %w", err)
	}
	data = bytes.TrimRight(data, "\x00")
	size := int64(len(data))
	if offset >= size {
		return false, nil
	}
	marks := ends(data[offset:])
	if due && len(marks) > 0 && marks[0].at == 0 {
		marks = marks[1:]
	}
	if len(marks) != 1 {
		return false, nil
	}
	last := marks[0]
	end, after := offset+int64(last.at), offset+int64(last.after)
	if after < size || after > size+sectorSize { // a signature may end with zeros, but not with so many
		return false, nil
	}
	for at := offset; at < end; {
		next := min((at/sectorSize+1)*sectorSize, end)
		if len(bytes.Trim(data[at:next], "\x00")) == 0 {
			return true, nil
		}
		at = next
	}
	return false, nil
}

// span is where something begins and ends.
type span struct{ at, after int }

// ends are where there are trailers and seals, whole or not.
func ends(data []byte) (found []span) {
	for from := 0; ; {
		i := nextMark(data[from:])
		if i < 0 {
			return found
		}
		at, size := from+i, frameHead+trailerSize
		if from = at + 1; !mayCount(data[at:]) {
			continue
		}
		if bytes.HasPrefix(data[at:], sealMark) {
			size = frameHead + sealSize
		}
		found = append(found, span{at, at + size})
	}
}

// mayCount says whether what looks like a frame has the sequence of one. The
// sequence of a record can itself look like a mark; chain follows on it then.
func mayCount(frame []byte) bool {
	return len(frame) < 16 || binary.LittleEndian.Uint64(frame[8:])>>maxTreeHeight == 0
}

// bytesFrom counts the bytes of a segment from an offset to its last that is
// not zero.
func bytesFrom(dir string, number int, offset int64) (int64, error) {
	data, err := os.ReadFile(segmentPath(dir, number))
	if err != nil {
		return 0, fmt.Errorf("measure torn segment: %w", err)
	}
	return int64(len(bytes.TrimRight(data[offset:], "\x00"))), nil
}

// apply cuts what recovery found to be unfinished, and makes durable what it
// found to be there.
func (rec *recovered) apply(dir string) error {
	for _, number := range rec.drop {
		if err := os.Remove(segmentPath(dir, number)); err != nil {
			return fmt.Errorf("drop unfinished segment: %w", err)
		}
	}
	// The log signs checkpoints of what is durable. That a run ended in order does
	// not say so of its last batch.
	if rec.last >= 0 && (!rec.clean || rec.published < rec.state.tree.size) {
		if err := resync(segmentPath(dir, rec.last), rec.ends[rec.last], rec.trailer); err != nil {
			return err
		}
		rec.ends[rec.last] += int64(len(rec.trailer))
	}
	for number, end := range rec.ends {
		if err := trim(segmentPath(dir, number), end); err != nil {
			return err
		}
	}
	return removeSpares(dir, rec.last)
}

// resync replaces a segment by a synced copy of its first bytes, and the trailer
// that its last batch lacks. That batch may have been read from memory and be
// nowhere else: never synced, or, after a failed sync, dropped from what a sync
// would still write.
func resync(path string, size int64, trailer []byte) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("resync last segment: %w", err)
	}
	return replaceFile(path, append(data[:size:size], trailer...), true) // removeSpares syncs the directory
}

// trim shortens a file, durably.
func trim(path string, size int64) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("trim segment: %w", err)
	}
	if info.Size() <= size {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("trim segment: %w", err)
	}
	if err := errors.Join(f.Truncate(size), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("trim segment: %w", err)
	}
	return nil
}

// removeSpares removes prepared segments that were never written to.
func removeSpares(dir string, last int) error {
	for number := last + 1; ; number++ {
		err := os.Remove(segmentPath(dir, number))
		if errors.Is(err, fs.ErrNotExist) {
			return durable.SyncDir(filepath.Join(dir, walDir))
		}
		if err != nil {
			return fmt.Errorf("remove spare segment: %w", err)
		}
	}
}
