package tlog

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit"
)

// siteDisk fails one operation at one site, the nth time that it is done, and
// counts what is done to a file after it failed.
type siteDisk struct {
	site string
	err  error

	mu    sync.Mutex
	left  int
	after int
}

// reach says whether this is the time to fail.
func (d *siteDisk) reach(site string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if site != d.site {
		return nil
	}
	if d.left--; d.left == 0 {
		return d.err
	}
	return nil
}

func (d *siteDisk) create(path string) (segmentFile, error) {
	if err := d.reach("create"); err != nil {
		return nil, err
	}
	f, err := createOSFile(path)
	if err != nil {
		return nil, err
	}
	return &siteFile{segmentFile: f, disk: d}, nil
}

type siteFile struct {
	segmentFile
	disk         *siteDisk
	used, failed bool // owned by the one who writes
}

func (f *siteFile) fail(site string) error {
	if f.failed {
		f.disk.mu.Lock()
		f.disk.after++
		f.disk.mu.Unlock()
	}
	err := f.disk.reach(site)
	f.failed = f.failed || err != nil
	return err
}

func (f *siteFile) WriteAt(p []byte, off int64) (int, error) {
	if p[0] != 0 {
		f.used = true
	}
	if !f.used {
		if err := f.fail("zeros"); err != nil {
			return 0, err
		}
		return f.segmentFile.WriteAt(p, off)
	}
	what := "write"
	if len(p) == trailerFrame && frameKind(p[3]) == frameTrailer {
		what = "trailer"
	}
	if err := f.fail(what + " nothing"); err != nil {
		return 0, err
	}
	if err := f.fail(what + " half"); err != nil {
		n, _ := f.segmentFile.WriteAt(p[:len(p)/2], off) // what is told is the other error
		return n, err
	}
	n, err := f.segmentFile.WriteAt(p, off)
	if err == nil {
		err = f.fail(what + " all")
	}
	return n, err
}

func (f *siteFile) Datasync() error {
	site := "sync zeros"
	if f.used {
		site = "sync"
	}
	if err := f.fail(site); err != nil {
		return err
	}
	return f.segmentFile.Datasync()
}

func (f *siteFile) Truncate(size int64) error {
	if err := f.fail("truncate"); err != nil {
		return err
	}
	return f.segmentFile.Truncate(size)
}

// sites are all places where a log writes.
var sites = []string{
	"create", "zeros", "sync zeros", "write nothing", "write half", "write all", "sync", "truncate",
	"trailer nothing", "trailer half", "trailer all", "before trailer", "after trailer",
	"rolling", "preparing", "tile", "checkpoint",
}

func TestNothingAcknowledgedIsLostToAFailureAtAnySite(t *testing.T) {
	for _, site := range sites {
		for _, cause := range []error{syscall.ENOSPC, syscall.EIO, syscall.EDQUOT, syscall.EROFS} {
			for _, nth := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s/%v/%d", site, cause, nth), func(t *testing.T) {
					t.Parallel()
					failAt(t, site, cause, nth)
				})
			}
		}
	}
}

func failAt(t *testing.T, site string, cause error, nth int) {
	d := &siteDisk{site: site, err: cause, left: nth}
	cfg := testConfig(t, testKey(t))
	cfg.create, cfg.reach, cfg.CheckpointEvery = d.create, d.reach, 5*time.Millisecond
	acked := make(map[uint64]string)
	l, err := Open(cfg)
	if err == nil {
		for i := range 220 {
			r := decision(i)
			at, err := l.Append(t.Context(), r)
			switch {
			case err == nil:
				acked[at.Index] = r.ID
			case !errors.Is(err, audit.ErrUnavailable):
				t.Fatal(err)
			}
		}
		// How it ends is not the point; what is on disk is.
		if err := l.Close(); err != nil && l.Err() == nil && site != "truncate" {
			t.Logf("close: %v", err)
		}
	}
	if d.after > 0 {
		t.Errorf("a file that had failed was touched %d times", d.after)
	}
	cfg.create, cfg.reach = nil, nil
	mustClose(t, mustOpen(t, cfg))
	report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{Signatures: EverySignature})
	if err != nil || !report.OK() || report.Unresolved != 0 {
		t.Fatalf("Verify = %+v, %v", report, err)
	}
	rs := records(t, cfg.Dir)
	for index, id := range acked {
		if index >= uint64(len(rs)) || rs[index].ID != id {
			t.Errorf("acknowledged record %d is lost", index)
		}
	}
}
