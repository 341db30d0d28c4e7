package tlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/sallyport-ai/sallyport/audit/durable"
)

// segmentFile is a segment open for writing.
type segmentFile interface {
	WriteAt(p []byte, off int64) (int, error)
	Datasync() error
	Truncate(size int64) error
	Stat() (os.FileInfo, error)
	Close() error
}

// osFile is the segmentFile that a log uses.
type osFile struct{ *os.File }

func (f osFile) Datasync() error { return datasync(f.File) }

// createFile opens a new file; it is a field of the log's volumes so that
// tests can make disks fail.
type createFile func(path string) (segmentFile, error)

func createOSFile(path string) (segmentFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// segment is the file that batches are being written to. A segment belongs to
// one process run: reopening a log starts a new one.
type segment struct {
	number int
	file   segmentFile
	place  place
	end    int64 // bytes written, and synced but for a trailer at the end
	size   int64 // bytes preallocated

	poisoned bool // a write or sync failed: not to be touched again
	replaces bool // the segment before it is poisoned
	full     bool // takes no more: its key has been replaced
	reserved bool // made of the space that was kept for when there is none
}

// volume writes the segments of one directory. Only the commit loop uses it,
// but for the goroutine that prepares the next segment.
type volume struct {
	dir    string
	lock   place
	bytes  int64
	create createFile
	reach  func(point string) error
	cur    *segment
	spare  chan spare // holds the next segment once it is ready

	// reserve is a segment without a number yet, for when no other can be made.
	reserve *segment
}

// reserveBytes is how much space is kept for the end: some thousand outcomes.
const reserveBytes = 4 << 20

const reserveFile = "reserve"

// spare is a prepared segment, or why there is none.
type spare struct {
	seg *segment
	err error
}

// openVolume returns a volume whose first segment, numbered next, is ready.
func openVolume(cfg Config, dir *lock, next int) (*volume, error) {
	v := &volume{dir: filepath.Dir(dir.path), lock: dir.place, bytes: cfg.SegmentBytes, create: cfg.create, reach: cfg.reach, spare: make(chan spare, 1)}
	seg, err := v.prepare(next)
	if err != nil {
		return nil, err
	}
	v.cur = seg
	if err := v.keepReserve(); err != nil {
		return nil, errors.Join(err, seg.file.Close(), os.Remove(seg.place.path))
	}
	go v.prepareSpare(nil, next+1)
	return v, nil
}

// keepReserve sets space aside.
func (v *volume) keepReserve() error {
	path := filepath.Join(v.dir, walDir, reserveFile)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("make reserve: %w", err)
	}
	seg, err := v.zeroed(path, min(v.bytes, reserveBytes))
	if err != nil {
		return fmt.Errorf("make reserve: %w", err)
	}
	v.reserve = seg
	return nil
}

// useReserve makes the reserve the segment of that number.
func (v *volume) useReserve(number int) (*segment, error) {
	seg := v.reserve
	if seg == nil {
		return nil, errors.New("the reserve is used up")
	}
	path := segmentPath(v.dir, number)
	if err := os.Rename(seg.place.path, path); err != nil {
		return nil, fmt.Errorf("use reserve: %w", err)
	}
	if err := durable.SyncDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	seg.place.path, seg.number, seg.reserved, v.reserve = path, number, true, nil
	return seg, nil
}

// refill leaves the reserve for an ordinary segment, if one can be made now and
// the reserve too.
func (v *volume) refill() error {
	next := <-v.spare
	if next.err != nil {
		next.seg, next.err = v.prepare(v.cur.number + 1)
	}
	// A segment that could be made stays, though there is no room for a reserve
	// yet: it could not be made twice.
	v.spare <- next
	if next.err != nil {
		return next.err
	}
	if err := v.keepReserve(); err != nil {
		return err
	}
	v.cur.full = v.cur.full || v.cur.reserved
	return nil
}

// prepare creates a zero-filled segment. Writing into blocks that already hold
// zeros needs no journal commit when it is synced; fallocate alone would.
func (v *volume) prepare(number int) (*segment, error) {
	seg, err := v.zeroed(segmentPath(v.dir, number), v.bytes)
	if err != nil {
		return nil, err
	}
	seg.number = number
	return seg, nil
}

// zeroed makes a file of so many zeros.
func (v *volume) zeroed(path string, size int64) (_ *segment, err error) {
	f, err := v.create(path)
	if err != nil {
		return nil, fmt.Errorf("create segment: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("prepare segment: %w", err), f.Close(), os.Remove(path))
		}
	}()
	zeros := make([]byte, 1<<20)
	for off := int64(0); off < size; off += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), size-off)], off); err != nil {
			return nil, err
		}
	}
	if err := f.Datasync(); err != nil {
		return nil, err
	}
	if err := durable.SyncDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return &segment{file: f, place: place{path, info}, size: size}, nil
}

// prepareSpare closes a segment that is done with and makes the next one.
func (v *volume) prepareSpare(done *segment, number int) {
	var err error
	if done != nil {
		err = done.seal()
	}
	if err := v.reach("preparing"); err != nil {
		v.spare <- spare{err: err}
		return
	}
	seg, prepareErr := v.prepare(number)
	if prepareErr != nil {
		v.spare <- spare{err: errors.Join(err, prepareErr)}
		return
	}
	v.spare <- spare{seg: seg} // that zeros were left on the segment before does no harm
}

// seal cuts the zeros off a segment and closes it. That a crash may leave them
// there is harmless. A poisoned segment is left exactly as it is.
func (s *segment) seal() error {
	if s.poisoned {
		return s.file.Close()
	}
	return errors.Join(s.file.Truncate(s.end), s.file.Close())
}

// check returns [errDisplaced] unless the lock and the current segment are still
// where the volume is.
func (v *volume) check() error {
	if err := v.lock.check(); err != nil {
		return err
	}
	return v.cur.place.check()
}

// roll goes on to the next segment. It makes files in no directory but its own.
func (v *volume) roll() error {
	if err := v.check(); err != nil {
		return err
	}
	next := <-v.spare
	if next.err != nil {
		next.seg, next.err = v.prepare(v.cur.number + 1)
	}
	if next.err != nil {
		seg, err := v.useReserve(v.cur.number + 1)
		if err != nil {
			v.spare <- next
			return errors.Join(next.err, err)
		}
		next.seg = seg
	}
	if err := v.reach("rolling"); err != nil {
		v.spare <- next
		return err
	}
	done := v.cur
	v.cur = next.seg
	v.cur.replaces = done.poisoned
	go v.prepareSpare(done, v.cur.number+1)
	return nil
}

// write makes buf durable at the end of the current segment. After an error of
// this, follow or flush the segment is not to be written or synced again: the
// kernel may have dropped the dirty pages, and a second sync would then report
// success.
func (v *volume) write(buf []byte) error {
	s := v.cur
	if err := v.reach("before write"); err != nil {
		return v.poison(err)
	}
	if _, err := s.file.WriteAt(buf, s.end); err != nil {
		return v.poison(fmt.Errorf("write segment %d: %w", s.number, err))
	}
	if err := v.reach("after write"); err != nil {
		return v.poison(err)
	}
	if err := s.file.Datasync(); err != nil {
		return v.poison(fmt.Errorf("sync segment %d: %w", s.number, err))
	}
	if err := v.reach("after sync"); err != nil {
		return v.poison(err)
	}
	s.end += int64(len(buf))
	return nil
}

// follow writes the trailer of a batch after what is durable, unless that is
// there, and does not sync it. It returns an error unless the current segment is
// still where a reader will look for it: to be believed that must be asked after
// the batch was synced, and before it is acknowledged.
func (v *volume) follow(f *flight) error {
	if !f.whole {
		if err := v.signed(f.trailer); err != nil {
			return v.poison(err)
		}
	}
	if err := v.check(); err != nil {
		return v.poison(fmt.Errorf("look for segment %d: %w", v.cur.number, err))
	}
	return nil
}

func (v *volume) signed(trailer []byte) error {
	s := v.cur
	if err := v.reach("before trailer"); err != nil {
		return err
	}
	if _, err := s.file.WriteAt(trailer, s.end); err != nil {
		return fmt.Errorf("write trailer to segment %d: %w", s.number, err)
	}
	s.end += int64(len(trailer))
	return v.reach("after trailer")
}

// flush makes durable what followed.
func (v *volume) flush() error {
	if err := v.cur.file.Datasync(); err != nil {
		return v.poison(fmt.Errorf("sync segment %d: %w", v.cur.number, err))
	}
	return nil
}

// poison has the current segment left as it is from now on.
func (v *volume) poison(err error) error {
	v.cur.poisoned = true
	return err
}

// close seals the current segment and removes the spare. If the volume has been
// displaced, it leaves everything as it is.
func (v *volume) close() error {
	next := <-v.spare
	reserve := v.reserve
	if err := v.check(); err != nil {
		v.cur.poisoned = true
		if reserve != nil {
			err = errors.Join(err, reserve.file.Close())
		}
		err = errors.Join(err, v.cur.seal())
		if next.seg != nil {
			err = errors.Join(err, next.seg.file.Close())
		}
		return err
	}
	err := v.cur.seal()
	for _, unused := range []*segment{next.seg, reserve} {
		if unused != nil {
			err = errors.Join(err, unused.file.Close(), os.Remove(unused.place.path))
		}
	}
	return errors.Join(err, durable.SyncDir(filepath.Join(v.dir, walDir)))
}

const walDir = "wal"

func segmentPath(dir string, number int) string {
	return filepath.Join(dir, walDir, fmt.Sprintf("%08d", number))
}

// listSegments returns the numbers of the segments that hold anything, in
// order. A segment that starts with a zero is a spare.
func listSegments(dir string) ([]int, error) { return segmentsAfter(dir, -1) }

// segmentsAfter is listSegments of those with a higher number; only they are
// looked into.
func segmentsAfter(dir string, after int) ([]int, error) {
	entries, err := os.ReadDir(filepath.Join(dir, walDir))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list segments: %w", err)
	}
	var numbers []int
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil || e.Name() != fmt.Sprintf("%08d", n) || n <= after {
			continue
		}
		used, err := inUse(segmentPath(dir, n))
		if err != nil {
			return nil, err
		}
		if used {
			numbers = append(numbers, n)
		}
	}
	return numbers, nil
}

// inUse says whether a segment has been written to.
func inUse(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // a spare that was removed at close
	}
	if err != nil {
		return false, fmt.Errorf("open segment: %w", err)
	}
	defer f.Close()
	var head [frameHead]byte
	n, _ := f.ReadAt(head[:], 0) // a short or failed read shows in the reader proper
	for _, b := range head[:n] {
		if b != 0 {
			return true, nil
		}
	}
	return false, nil
}
