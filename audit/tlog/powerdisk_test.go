package tlog

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// powerDisk remembers what each file is sure to hold, and all that a power cut
// may have left of the rest. It may fail as well.
type powerDisk struct {
	mu    sync.Mutex
	files map[string]*powerFile
	rng   *rand.Rand // of failures
	fails int        // one in so many writes and syncs does; none if it is 0
	after int        // how often a file was written or synced after it failed
}

func newPowerDisk() *powerDisk {
	return &powerDisk{files: make(map[string]*powerFile)}
}

// fail has one in so many writes and syncs fail from now on, at random.
func (d *powerDisk) fail(one int, seed uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fails, d.rng = one, rand.New(rand.NewPCG(seed, 2))
}

// failures says how many files have failed, and how often one was written or
// synced after that.
func (d *powerDisk) failures() (failed, after int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.files {
		if f.failed {
			failed++
		}
	}
	return failed, d.after
}

// create is a [createFile].
func (d *powerDisk) create(path string) (segmentFile, error) {
	f, err := createOSFile(path)
	if err != nil {
		return nil, err
	}
	p := &powerFile{segmentFile: f, disk: d, pending: make(map[int][][]byte)}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files[path] = p
	return p, nil
}

// powerFile is a file of zeros, then of records. The disk's lock guards it.
type powerFile struct {
	segmentFile
	disk    *powerDisk
	used    bool // more than zeros has been written
	failed  bool
	durable []byte
	pending map[int][][]byte // each state of a sector since the last sync
}

func (f *powerFile) WriteAt(p []byte, off int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if !f.used && len(bytes.Trim(p, "\x00")) == 0 {
		if end := int(off) + len(p); end > len(f.durable) { // synced before anything else is written
			f.durable = append(f.durable, make([]byte, end-len(f.durable))...)
		}
		return f.segmentFile.WriteAt(p, off)
	}
	f.used = true
	var failure error
	if f.fails() {
		p, failure = p[:f.disk.rng.IntN(len(p)+1)], syscall.EIO
	}
	n, err := f.segmentFile.WriteAt(p, off)
	f.remember(p, int(off))
	return n, errors.Join(err, failure)
}

// remember notes what the sectors that p is written to hold now.
func (f *powerFile) remember(p []byte, off int) {
	for len(p) > 0 {
		number, at := off/sectorSize, off%sectorSize
		s := make([]byte, sectorSize)
		if states := f.pending[number]; len(states) > 0 {
			copy(s, states[len(states)-1])
		} else {
			copy(s, f.durable[number*sectorSize:])
		}
		n := copy(s[at:], p)
		f.pending[number] = append(f.pending[number], s)
		p, off = p[n:], off+n
	}
}

// Datasync does not ask the real disk: only what is copied by cut is looked at.
// After a failure any part of what was due may be there.
func (f *powerFile) Datasync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.used && f.fails() {
		return syscall.EIO
	}
	for number, states := range f.pending {
		copy(f.durable[number*sectorSize:], states[len(states)-1])
	}
	clear(f.pending)
	return nil
}

// fails says whether the file fails now.
func (f *powerFile) fails() bool {
	d := f.disk
	if f.failed {
		d.after++
	}
	if d.fails > 0 && d.rng.IntN(d.fails) == 0 {
		f.failed = true
	}
	return f.failed
}

// What there can be of the states that a sector had since it was synced: the
// number of one, counted from 1, or 0.
type survives func(states int) int

func nothing(int) int           { return 0 }      // the power went before any was written
func everything(states int) int { return states } // only the process is gone

// anything is what a power cut leaves: sectors are written in any order.
func anything(rng *rand.Rand) survives {
	return func(states int) int { return rng.IntN(states + 1) }
}

// cut returns copies of log directories as they are found afterwards.
func (d *powerDisk) cut(t *testing.T, what survives, dirs ...string) (copies []string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dir := range dirs {
		to := filepath.Join(t.TempDir(), "copy")
		if err := os.MkdirAll(filepath.Join(to, walDir), 0o700); err != nil {
			t.Fatal(err)
		}
		for path, f := range d.files {
			if filepath.Dir(filepath.Dir(path)) != dir {
				continue
			}
			if _, err := os.Stat(path); err != nil {
				continue // removed
			}
			if err := os.WriteFile(filepath.Join(to, walDir, filepath.Base(path)), f.left(what), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cp, err := os.ReadFile(filepath.Join(dir, checkpointFile))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, checkpointFile), cp, 0o600)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		copies = append(copies, to)
	}
	return copies
}

// left is what the file holds then.
func (f *powerFile) left(what survives) []byte {
	data := bytes.Clone(f.durable)
	for number, states := range f.pending {
		if n := what(len(states)); n > 0 {
			copy(data[number*sectorSize:], states[n-1])
		}
	}
	return data
}
